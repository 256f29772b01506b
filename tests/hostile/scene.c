/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scene.c - see scene.h.
 *
 * Owns the server's process, the honest client's, and a session that watches the statistics. The honest
 * client is a forked child that records into shared memory and ends with _exit(); all else runs in the
 * main thread. It must never call the honest client's errors its own fault: what hostile clients may do
 * to others by design (evict, fill the pool) is counted apart.
 */
#include "tests/hostile/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/pattern.h"
#include "shm/atomic.h"
#include "tests/random.h"

#define HONEST_KEYS   8u
#define HONEST_LENGTH (100 * KVB_KIB)
#define PAUSE_US      200
#define STALL_NS      (KVB_NS_PER_S * TEST_SLOWER)
#define SETTLE_NS     (20 * KVB_NS_PER_S)
#define SETTLED_LOOKS 10u
#define PROGRESS      20u /* operations that a test must see */

struct process_server scene_server;
uint64_t scene_missed_wakes;

/* Of the honest client; all words are atomic. */
static struct honest {
	uint32_t stop, ready;
	uint64_t operations, wrong, errors, no_room, evicted;
	uint64_t longest_ns; /* taken by scene_check() */
	int32_t error;
	uint32_t kind;
} * honest;
static pid_t honest_pid;
static struct raw_client watcher;
static uint64_t sessions_before, operations_before;
static unsigned fds_before, threads_before;

/* ------------------------------------------------------------------------------- the honest client */

static uint8_t payload[HONEST_LENGTH], found[HONEST_LENGTH];

struct object {
	char key[16];
	size_t len;
	uint64_t seed; /* 0: not stored */
};

enum kind { KIND_OPEN = 1, KIND_PUT, KIND_GET, KIND_VIEW };

static int note(enum kind kind, uint64_t begin_ns, int r)
{
	uint64_t took_ns = kvb_now_ns() - begin_ns;

	if (took_ns > kvb_load_relaxed(&honest->longest_ns))
		kvb_store_relaxed(&honest->longest_ns, took_ns);
	kvb_count(&honest->operations, 1);
	if (r == -ENOSPC) {
		kvb_count(&honest->no_room, 1);
	} else if (r == -ENOENT) {
		kvb_count(&honest->evicted, 1);
	} else if (r < 0) {
		kvb_count(&honest->errors, 1);
		kvb_store_relaxed(&honest->error, r);
		kvb_store_relaxed(&honest->kind, (uint32_t)kind);
	}
	return r;
}

static void check(const struct object *object, const void *data, size_t len)
{
	if (len != object->len || !kvb_pattern_check(data, len, object->seed))
		kvb_count(&honest->wrong, 1);
}

static void put(struct kvb_client *client, struct object *object, uint64_t *seed)
{
	uint64_t begin_ns;

	object->len = 1 + next_random(seed) % HONEST_LENGTH;
	object->seed = next_random(seed) + 1ull;
	kvb_pattern_fill(payload, object->len, object->seed);
	begin_ns = kvb_now_ns();
	if (note(KIND_PUT, begin_ns,
		    kvb_put(client, object->key, strlen(object->key), payload, object->len)) < 0)
		object->seed = 0;
}

static void get(struct kvb_client *client, const struct object *object)
{
	uint64_t begin_ns = kvb_now_ns();
	size_t len = 0;

	if (note(KIND_GET, begin_ns,
		    kvb_get(client, object->key, strlen(object->key), found, sizeof(found),
			    &len)) == 0)
		check(object, found, len);
}

static void view(struct kvb_client *client, const struct object *object)
{
	uint64_t begin_ns = kvb_now_ns();
	struct kvb_lease lease;
	const void *data;
	size_t len;

	if (note(KIND_VIEW, begin_ns,
		    kvb_acquire(client, object->key, strlen(object->key), &lease)) < 0)
		return;
	data = kvb_view(&lease, &len);
	check(object, data, len);
	kvb_release(&lease);
}

static int open_as(const char *name, uint32_t flags, struct kvb_client **ret_client)
{
	struct kvb_options options = KVB_OPTIONS_INIT;

	options.dir = scene_server.dir;
	options.name = name;
	options.flags = flags;
	return process_client_open(&options, ret_client);
}

/* Its keys are its own: only eviction takes them away. */
static void work(struct kvb_client *ring, struct kvb_client *reader)
{
	static struct object objects[HONEST_KEYS];
	const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
	uint64_t seed = 1;

	for (unsigned i = 0; i < HONEST_KEYS; i++)
		snprintf(objects[i].key, sizeof(objects[i].key), "honest-%u", i);
	while (!kvb_load_relaxed(&honest->stop)) {
		struct object *object = &objects[next_random(&seed) % HONEST_KEYS];
		uint32_t what = next_random(&seed) % 3;
		if (what == 0 || object->seed == 0)
			put(ring, object, &seed);
		else if (what == 1)
			get(ring, object);
		else
			view(reader, object);
		kvb_store_relaxed(&honest->ready, 1u);
		nanosleep(&pause, NULL);
	}
}

static int be_honest(void *arg)
{
	struct kvb_client *ring, *reader;
	int r;

	(void)arg;
	r = open_as("honest-ring", KVB_OPEN_RING_ONLY, &ring);
	if (r == 0)
		r = open_as("honest-reader", 0, &reader);
	if (r < 0) {
		(void)note(KIND_OPEN, kvb_now_ns(), r);
		return 1;
	}
	work(ring, reader);
	kvb_close(reader);
	kvb_close(ring);
	return 0;
}

/* ------------------------------------------------------------------------------------- the server */

static unsigned count_threads(void)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task", scene_server.pid);
	return process_count_entries(path);
}

uint64_t scene_stat(const char *name)
{
	uint64_t value = 0;

	assert_int_equal(raw_stat(&watcher, name, &value), 0);
	return value;
}

static void sleep_ms(unsigned ms)
{
	const struct timespec pause = {.tv_nsec = (long)(ms * KVB_NS_PER_MS)};

	nanosleep(&pause, NULL);
}

int scene_start(void **state)
{
	/* Short terms, so that what is abandoned is gone soon. */
	static const char *const args[] = {"--pool", "64MiB", "--workers", "2", "--staging", "1MiB",
		"--fragment", "64KiB", "--ring-entries", "64", "--max-sessions", "32",
		"--transfer-timeout", "500ms", "--lease-cells", "256", "--log-level", "info", NULL};

	(void)state;
	honest = mmap(
		NULL, sizeof(*honest), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (honest == MAP_FAILED || process_server_start(&scene_server, args) < 0)
		return -1;
	honest_pid = process_fork(be_honest, NULL);
	if (honest_pid < 0 || raw_attach(&watcher, scene_server.dir) < 0)
		return -1;
	while (!kvb_load_relaxed(&honest->ready)) {
		if (kvb_load_relaxed(&honest->errors) > 0)
			return -1;
		sleep_ms(10);
	}
	sessions_before = scene_stat("sessions.active");
	fds_before = process_fds(scene_server.pid);
	threads_before = count_threads();
	return 0;
}

int scene_stop(void **state)
{
	(void)state;
	if (honest_pid > 0)
		kill(honest_pid, SIGKILL);
	if (scene_server.pid > 0)
		kill(scene_server.pid, SIGKILL);
	process_dir_remove(scene_server.dir);
	unlink(scene_server.log);
	munmap(honest, sizeof(*honest));
	return 0;
}

static bool is_settled(void)
{
	return scene_stat("sessions.active") == sessions_before &&
		scene_stat("sessions.ending") == 0 && scene_stat("sessions.revoked") == 0 &&
		process_fds(scene_server.pid) == fds_before && count_threads() == threads_before;
}

/* For a while, since what has closed a connection may still wait to be let in. */
static void settle(void)
{
	uint64_t end_ns = kvb_now_ns() + SETTLE_NS;
	unsigned looks = 0;

	while (looks < SETTLED_LOOKS && kvb_now_ns() < end_ns) {
		looks = is_settled() ? looks + 1 : 0;
		sleep_ms(5);
	}
	if (looks < SETTLED_LOOKS)
		fail_msg("left behind: %llu of %llu sessions, %llu ending, %llu revoked, %u of %u "
			 "descriptors, %u of %u threads",
			(unsigned long long)scene_stat("sessions.active"),
			(unsigned long long)sessions_before,
			(unsigned long long)scene_stat("sessions.ending"),
			(unsigned long long)scene_stat("sessions.revoked"),
			process_fds(scene_server.pid), fds_before, count_threads(), threads_before);
}

static void check_log(void)
{
	static const char *const signs[] = {"Sanitizer", "runtime error", "Assertion failed"};

	for (size_t i = 0; i < KVB_ARRAY_SIZE(signs); i++)
		assert_false(process_log_has(&scene_server, signs[i]));
}

static void check_honest(void)
{
	uint64_t end_ns = kvb_now_ns() + SETTLE_NS;
	uint64_t longest_ns;

	while (kvb_load_relaxed(&honest->operations) < operations_before + PROGRESS &&
		kvb_now_ns() < end_ns)
		sleep_ms(5);
	/* Pairs with nothing: a wait that ends just now counts for the next test. */
	longest_ns = kvb_exchange(&honest->longest_ns, (uint64_t)0);
	print_message(
		"honest beside it: %llu operations, %llu evicted, %llu without room, longest %.1f ms\n",
		(unsigned long long)(kvb_load_relaxed(&honest->operations) - operations_before),
		(unsigned long long)kvb_load_relaxed(&honest->evicted),
		(unsigned long long)kvb_load_relaxed(&honest->no_room), (double)longest_ns / 1e6);
	assert_int_equal(kvb_load_relaxed(&honest->wrong), 0);
	if (kvb_load_relaxed(&honest->errors) > 0)
		fail_msg("the honest client got %d (%u)", kvb_load_relaxed(&honest->error),
			kvb_load_relaxed(&honest->kind));
	assert_true(longest_ns < STALL_NS);
	assert_true(kvb_load_relaxed(&honest->operations) >= operations_before + PROGRESS);
	operations_before = kvb_load_relaxed(&honest->operations);
}

void scene_check(void)
{
	settle();
	assert_int_equal(scene_stat("bells.missed_wakes"), scene_missed_wakes);
	check_honest();
	check_log();
}

void scene_ends_well(void **state)
{
	(void)state;
	kvb_store_relaxed(&honest->stop, 1u);
	assert_int_equal(process_wait(honest_pid, 20000), 0);
	honest_pid = 0;
	raw_drop(&watcher);
	assert_int_equal(process_server_stop(&scene_server), 0);
	scene_server.pid = 0;
	check_log();
}
