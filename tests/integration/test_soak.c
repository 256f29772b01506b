/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_soak.c - four client processes, a minute of puts and gets of 64 KiB to 32 MiB, with a pool
 * that holds a quarter of what they store: no wrong byte, and nothing that grows.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/pattern.h"
#include "kvbell/kvbell.h"
#include "shm/atomic.h"
#include "shm/util.h"
#include "tests/process.h"

#define SECONDS 60
#define CLIENTS 4
#define KEYS    128
#define LEN_MIN (64 * KVB_KIB)
#define LEN_MAX (32 * KVB_MIB)
/* KEYS objects of the mean length take 4 times this. */
#define POOL "208MiB"

static struct process_server server;

static struct shared {
	uint64_t puts, gets, misses, full; /* atomic */
	uint64_t wrong;                    /* atomic: objects with a wrong byte or length */
	uint64_t missed_wakes;             /* atomic */
} * shared;

static uint64_t next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return *seed >> 24;
}

/* Small ones are common, large ones have most of the bytes: as many of each power of two. */
static size_t length_of(uint64_t version)
{
	uint64_t random = version * 0x9e3779b97f4a7c15ull;
	unsigned doublings = (unsigned)(random >> 32) % 9;
	size_t base = LEN_MIN << doublings;

	return base + (size_t)(random >> 8) % base / 2 > LEN_MAX
		? LEN_MAX
		: base + (size_t)(random >> 8) % base / 2;
}

/* The first 8 bytes of an object say which version it is; the rest follows from it. */
static int put_one(struct kvb_client *client, uint8_t *data, uint64_t version, const char *key)
{
	size_t len = length_of(version);
	int r;

	kvb_pattern_fill(data, len, version);
	memcpy(data, &version, sizeof(version));
	r = kvb_put(client, key, strlen(key), data, len);
	if (r == 0)
		kvb_count(&shared->puts, 1);
	else if (r == -ENOSPC)
		kvb_count(&shared->full, 1);
	return r == -ENOSPC ? 0 : r;
}

static bool is_right(uint8_t *data, size_t len)
{
	uint64_t version, first;

	memcpy(&version, data, sizeof(version));
	first = kvb_pattern_word(version, 0);
	memcpy(data, &first, sizeof(first));
	return len == length_of(version) && kvb_pattern_check(data, len, version);
}

static int get_one(struct kvb_client *client, uint8_t *data, const char *key)
{
	size_t len = 0;
	int r = kvb_get(client, key, strlen(key), data, LEN_MAX, &len);

	if (r == -ENOENT) {
		kvb_count(&shared->misses, 1);
		return 0;
	}
	if (r < 0)
		return r;
	kvb_count(&shared->gets, 1);
	if (!is_right(data, len))
		kvb_count(&shared->wrong, 1);
	return 0;
}

static int be_client(void *arg)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	uint64_t seed = *(unsigned *)arg + 1, end_ns = kvb_now_ns() + SECONDS * KVB_NS_PER_S;
	uint64_t version = *(unsigned *)arg * 1000000000ull + 1;
	uint8_t *data = malloc(LEN_MAX);
	struct kvb_client *client;
	struct kvb_info info;
	char key[32];
	int r = 0;

	options.dir = server.dir;
	options.name = "soak";
	if (!data || kvb_open(&options, &client) < 0)
		return 1;
	while (r == 0 && kvb_now_ns() < end_ns) {
		snprintf(key, sizeof(key), "soak-%u", (unsigned)(next_random(&seed) % KEYS));
		r = next_random(&seed) % 3 == 0 ? put_one(client, data, version++, key)
						: get_one(client, data, key);
	}
	if (r < 0) {
		fprintf(stderr, "soak: %s\n", kvb_strerror(r));
		return 2;
	}
	if (kvb_get_info(client, &info) == 0)
		kvb_count(&shared->missed_wakes, info.missed_wakes);
	kvb_close(client);
	free(data);
	return 0;
}

struct numbers {
	uint64_t evicted, missed_wakes, held, pending, failed;
};

static int see_number(void *user, const struct kvb_stat *stat)
{
	struct numbers *numbers = user;

	if (strcmp(stat->name, "store.evicted") == 0)
		numbers->evicted = stat->value;
	if (strcmp(stat->name, "bells.missed_wakes") == 0)
		numbers->missed_wakes = stat->value;
	if (strcmp(stat->name, "store.held") == 0)
		numbers->held = stat->value;
	if (strcmp(stat->name, "store.pending") == 0)
		numbers->pending = stat->value;
	if (strcmp(stat->name, "sessions.failed") == 0)
		numbers->failed = stat->value;
	return 0;
}

/* What the server itself takes, without the pool and the sessions' segments. */
static uint64_t private_memory(void)
{
	return process_memory(server.pid, "RssAnon:");
}

static void a_minute_of_mixed_load(void **state)
{
	static const char *const args[] = {"--pool", POOL, "--log-level", "warning", NULL};
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct numbers numbers = {0};
	unsigned number[CLIENTS], fds_before, fds_early;
	uint64_t memory_early, memory_late;
	struct kvb_client *watcher;
	pid_t pids[CLIENTS];

	(void)state;
	shared = mmap(
		NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(shared != MAP_FAILED);
	assert_int_equal(process_server_start(&server, args), 0);
	fds_before = process_fds(server.pid);
	for (unsigned i = 0; i < CLIENTS; i++) {
		number[i] = i;
		pids[i] = process_fork(be_client, &number[i]);
	}
	sleep(SECONDS / 4);
	memory_early = private_memory();
	fds_early = process_fds(server.pid);
	sleep(SECONDS / 2);
	memory_late = private_memory();
	assert_int_equal(process_fds(server.pid), fds_early);
	for (unsigned i = 0; i < CLIENTS; i++)
		assert_int_equal(process_wait(pids[i], 60000), 0);

	options.dir = server.dir;
	assert_int_equal(kvb_open(&options, &watcher), 0);
	assert_int_equal(kvb_stats(watcher, see_number, &numbers), 0);
	kvb_close(watcher);
	print_message(
		"%llu puts, %llu gets, %llu misses, %llu without room, %llu evicted; private memory "
		"%llu KiB, then %llu KiB\n",
		(unsigned long long)shared->puts, (unsigned long long)shared->gets,
		(unsigned long long)shared->misses, (unsigned long long)shared->full,
		(unsigned long long)numbers.evicted, (unsigned long long)memory_early / 1024,
		(unsigned long long)memory_late / 1024);
	assert_int_equal(shared->wrong, 0);
	assert_int_equal(shared->missed_wakes, 0);
	assert_int_equal(numbers.missed_wakes, 0);
	assert_int_equal(numbers.held, 0);
	assert_int_equal(numbers.pending, 0);
	assert_int_equal(numbers.failed, 0);
	assert_true(shared->puts > 100 && shared->gets > 100 && numbers.evicted > 100);
	/* Allocators round; a leak per request would be far more. */
	assert_true(memory_late < memory_early + 4 * KVB_MIB);
	assert_true(fds_early > fds_before);
	assert_int_equal(process_server_stop(&server), 0);
	process_dir_remove(server.dir);
	unlink(server.log);
	munmap(shared, sizeof(*shared));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_minute_of_mixed_load),
	};

	return cmocka_run_group_tests_name("soak", tests, NULL, NULL) ? 1 : 0;
}
