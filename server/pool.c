/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - see pool.h.
 *
 * Owns the pool's memfd and mapping, and the thread "kvb-populate". It must never let the store
 * hand out a byte that is not populated: on a full host that would be a SIGBUS in a worker instead
 * of an error here.
 */
#include "server/pool.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/server.h"
#include "shm/atomic.h"
#include "shm/parse.h"
#include "shm/threads.h"
#include "shm/util.h"

#define RANGE_BYTES   (64 * KVB_MIB)
#define WAIT_POLL_MS  100
#define CGROUP_PREFIX "/sys/fs/cgroup"

/* First number in a file, or UINT64_MAX when there is none ("max"). */
static uint64_t read_number(const char *path)
{
	uint64_t value = UINT64_MAX;
	FILE *file = fopen(path, "re");

	if (!file)
		return UINT64_MAX;
	if (fscanf(file, "%" SCNu64, &value) != 1)
		value = UINT64_MAX;
	fclose(file);
	return value;
}

/* A field of /proc/meminfo in bytes; UINT64_MAX when it is not there. */
static uint64_t meminfo(const char *field)
{
	char line[128];
	uint64_t kib, found = UINT64_MAX;
	FILE *file = fopen("/proc/meminfo", "re");

	if (!file)
		return UINT64_MAX;
	while (found == UINT64_MAX && fgets(line, sizeof(line), file)) {
		size_t n = strlen(field);
		if (strncmp(line, field, n) == 0 && line[n] == ':' &&
			sscanf(line + n + 1, "%" SCNu64, &kib) == 1)
			found = kib * KVB_KIB;
	}
	fclose(file);
	return found;
}

/* Path of this process's cgroup (version 2) below the mount point; "" when unknown. */
static void own_cgroup(char *path, size_t size)
{
	FILE *file = fopen("/proc/self/cgroup", "re");

	path[0] = '\0';
	if (!file)
		return;
	while (fgets(path, (int)size, file)) {
		if (strncmp(path, "0::", 3) == 0) {
			path[strcspn(path, "\n")] = '\0';
			memmove(path, path + 3, strlen(path + 3) + 1);
			break;
		}
		path[0] = '\0';
	}
	fclose(file);
}

/* The least room that this cgroup or one above it leaves. */
static uint64_t cgroup_room(bool total)
{
	char group[PATH_MAX], path[PATH_MAX + 64];
	uint64_t room = UINT64_MAX;

	own_cgroup(group, sizeof(group));
	while (group[0] == '/') {
		snprintf(path, sizeof(path), CGROUP_PREFIX "%s/memory.max", group);
		uint64_t limit = read_number(path);
		snprintf(path, sizeof(path), CGROUP_PREFIX "%s/memory.current", group);
		uint64_t used = total ? 0 : read_number(path);
		if (limit != UINT64_MAX && used != UINT64_MAX)
			room = kvb_min_u64(room, limit > used ? limit - used : 0);
		*strrchr(group, '/') = '\0';
	}
	return room;
}

static uint64_t memory_available(void)
{
	return kvb_min_u64(meminfo("MemAvailable"), cgroup_room(false));
}

static uint64_t memory_total(void)
{
	return kvb_min_u64(meminfo("MemTotal"), cgroup_room(true));
}

/* Memory of a dead server comes back only when the kernel has torn it down and its clients have let
 * go of it, so a successor waits. */
static int wait_for_memory(struct kvb_server *server, uint64_t bytes)
{
	uint64_t deadline = kvb_now_ns() + server->options.start_wait_ms * KVB_NS_PER_MS;
	struct pollfd cancel = {.fd = server->options.cancel_fd, .events = POLLIN};
	char want[24], have[24];
	bool told = false;

	kvb_format_size(want, sizeof(want), bytes);
	if (bytes > memory_total()) {
		kvb_log(&server->log, KVB_LOG_ERR,
			"a pool of %s does not fit this host, which has %s in all; give a smaller --pool",
			want, kvb_format_size(have, sizeof(have), memory_total()));
		return -ENOMEM;
	}
	while (memory_available() < bytes) {
		kvb_format_size(have, sizeof(have), memory_available());
		if (kvb_now_ns() >= deadline) {
			kvb_log(&server->log, KVB_LOG_ERR,
				"a pool of %s needs more memory than the %s that are available; free "
				"some, or give a smaller --pool or a longer --start-wait",
				want, have);
			return -ENOMEM;
		}
		if (!told)
			kvb_log(&server->log, KVB_LOG_WARN,
				"waiting up to %u ms for memory: the pool takes %s and %s are "
				"available (clients of a dead server may still hold its pool)",
				server->options.start_wait_ms, want, have);
		told = true;
		if (poll(&cancel, 1, WAIT_POLL_MS) > 0)
			return -EINTR;
	}
	return 0;
}

int kvb_pool_new(struct kvb_pool *pool, struct kvb_server *server)
{
	uint64_t bytes = server->options.pool_bytes;
	int r;

	*pool = (struct kvb_pool){.segment = KVB_SEGMENT_NONE};
	r = wait_for_memory(server, bytes);
	if (r < 0)
		return r;
	r = kvb_segment_new(
		"kvbell-pool", bytes, KVB_SEALS_FIXED_SIZE | KVB_SEAL_FUTURE_WRITE, &pool->segment);
	if (r < 0)
		kvb_log(&server->log, KVB_LOG_ERR, "cannot make the pool: %s", strerror(-r));
	return r;
}

static void tell_first(struct kvb_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	pool->first_done = true;
	pthread_cond_signal(&pool->progress);
	pthread_mutex_unlock(&pool->lock);
}

static void range_failed(struct kvb_server *server, uint64_t offset, int error)
{
	struct kvb_pool *pool = &server->pool;
	uint64_t lost = pool->segment.bytes - offset;
	char ready[24], all[24];

	kvb_store_relaxed(&pool->failed_bytes, lost);
	/* Pairs with the acquire loads in kvb_pool_start() and stats.c. */
	kvb_store_release(&pool->error, error);
	kvb_log(&server->log, KVB_LOG_ERR, "only %s of the pool's %s could be populated: %s",
		kvb_format_size(ready, sizeof(ready), offset),
		kvb_format_size(all, sizeof(all), pool->segment.bytes), strerror(-error));
	if (server->options.populate_require && offset > 0)
		kvb_server_fail(server, error);
}

static void *populate_main(void *arg)
{
	struct kvb_server *server = arg;
	struct kvb_pool *pool = &server->pool;
	uint64_t start_ns = kvb_now_ns();
	uint64_t offset = 0;

	while (offset < pool->segment.bytes && !kvb_load_relaxed(&pool->stop)) {
		uint64_t length = kvb_min_u64(RANGE_BYTES, pool->segment.bytes - offset);
		int r = kvb_segment_populate(&pool->segment, offset, length, true);
		if (r == 0)
			r = kvb_store_add_range(server->store, offset, length);
		if (r < 0) {
			range_failed(server, offset, r);
			break;
		}
		if (offset == 0)
			tell_first(pool);
		offset += length;
	}
	kvb_store_relaxed(&pool->populate_ns, kvb_now_ns() - start_ns);
	if (offset == pool->segment.bytes)
		kvb_log(&server->log, KVB_LOG_INFO, "the pool is populated: %.1f s",
			(double)pool->populate_ns / 1e9);
	/* The first range may be the one that failed. */
	tell_first(pool);
	return NULL;
}

int kvb_pool_start(struct kvb_pool *pool, struct kvb_server *server)
{
	int r;

	pthread_mutex_init(&pool->lock, NULL);
	kvb_cond_init(&pool->progress);
	r = kvb_thread_start(&pool->thread, "kvb-populate", populate_main, server);
	if (r < 0)
		return r;
	pool->started = true;
	pthread_mutex_lock(&pool->lock);
	while (!pool->first_done)
		pthread_cond_wait(&pool->progress, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
	/* Pairs with the release store in range_failed(). */
	r = kvb_load_acquire(&pool->error);
	return r < 0 &&
			(server->options.populate_require ||
				pool->failed_bytes == pool->segment.bytes)
		? r
		: 0;
}

void kvb_pool_stop(struct kvb_pool *pool)
{
	if (!pool->started)
		return;
	kvb_store_relaxed(&pool->stop, 1u);
	pthread_join(pool->thread, NULL);
	pool->started = false;
	pthread_cond_destroy(&pool->progress);
	pthread_mutex_destroy(&pool->lock);
}

void kvb_pool_free(struct kvb_pool *pool)
{
	kvb_segment_free(&pool->segment);
}
