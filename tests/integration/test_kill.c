/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kill.c - SIGKILL of a client and of the server, at the worst moments.
 *
 * Real processes. Children record into shared memory and end with _exit(); the main thread asserts.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvbell/kvbell.h"
#include "shm/atomic.h"
#include "shm/parse.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/process.h"

#define BIG       (192 * KVB_MIB)
#define FRAGMENTS 384u /* of BIG */
#define KILLS     50
/* A busy machine may not let a process end for so long, but not most of the time. */
#define NOTICE_NS (100 * TEST_SLOWER * KVB_NS_PER_MS)

static struct process_server server;

static struct kvb_client *open_client(kvb_progress_fn *progress, void *user)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client = NULL;

	options.dir = server.dir;
	options.name = "kill";
	options.progress = progress;
	options.progress_user = user;
	return kvb_open(&options, &client) == 0 ? client : NULL;
}

static int see_populate(void *user, const struct kvb_stat *stat)
{
	if (strcmp(stat->name, "pool.populate_ms") == 0)
		*(uint64_t *)user = stat->value;
	return 0;
}

/* How long it takes to make the pool; a client of its own waits for the end. */
static uint64_t wait_populated(void)
{
	struct kvb_client *client = open_client(NULL, NULL);
	uint64_t populate_ms = 0;

	assert_non_null(client);
	while (populate_ms == 0) {
		assert_int_equal(kvb_stats(client, see_populate, &populate_ms), 0);
		usleep(20000);
	}
	kvb_close(client);
	return populate_ms;
}

static int teardown(void **state)
{
	(void)state;
	process_dir_remove(server.dir);
	unlink(server.log);
	memset(&server, 0, sizeof(server));
	return 0;
}

/* ---------------------------------------------------------------------------------- a client is killed */

struct victim {
	int pipe[2];
	uint32_t at_fragment;
	uint32_t fragments;
};

/* Tells the parent when it is far enough, and goes on; but never to the end. */
static void tell_progress(void *user, uint64_t done, uint64_t total)
{
	struct victim *victim = user;

	(void)done;
	(void)total;
	victim->fragments++;
	if (victim->fragments == victim->at_fragment)
		(void)!write(victim->pipe[1], "x", 1);
	while (victim->fragments > FRAGMENTS - 20)
		pause();
}

static int be_victim(void *arg)
{
	struct kvb_client *client = open_client(tell_progress, arg);
	void *data = mmap(NULL, BIG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (!client || data == MAP_FAILED)
		return 1;
	(void)kvb_put(client, "victim", 6, data, BIG);
	return 2;
}

struct numbers {
	uint64_t active, ending, session_bytes, pending, used_bytes, missed_wakes;
};

static int see_number(void *user, const struct kvb_stat *stat)
{
	struct numbers *numbers = user;
	struct {
		const char *name;
		uint64_t *where;
	} table[] = {{"sessions.active", &numbers->active}, {"sessions.ending", &numbers->ending},
		{"sessions.bytes", &numbers->session_bytes}, {"store.pending", &numbers->pending},
		{"pool.used_bytes", &numbers->used_bytes},
		{"bells.missed_wakes", &numbers->missed_wakes}};

	for (size_t i = 0; i < KVB_ARRAY_SIZE(table); i++)
		if (strcmp(stat->name, table[i].name) == 0)
			*table[i].where = stat->value;
	return 0;
}

static struct numbers numbers_of(struct kvb_client *client)
{
	struct numbers numbers = {0};

	assert_int_equal(kvb_stats(client, see_number, &numbers), 0);
	return numbers;
}

/* How long what it had outlives it. */
static uint64_t kill_one(
	struct kvb_client *watcher, const struct numbers *before, uint32_t at_fragment)
{
	struct victim victim = {.at_fragment = at_fragment};
	struct numbers now;
	uint64_t killed_ns, gone_ns;
	char byte;
	pid_t pid;

	assert_int_equal(pipe(victim.pipe), 0);
	pid = process_fork(be_victim, &victim);
	close(victim.pipe[1]);
	assert_int_equal(read(victim.pipe[0], &byte, 1), 1);
	close(victim.pipe[0]);
	now = numbers_of(watcher);
	assert_int_equal(now.active, 2);
	assert_int_equal(now.pending, 1);
	kill(pid, SIGKILL);
	killed_ns = kvb_now_ns();
	do {
		now = numbers_of(watcher);
		gone_ns = kvb_now_ns() - killed_ns;
		assert_true(gone_ns < 20 * KVB_NS_PER_S);
	} while (now.session_bytes != before->session_bytes || now.pending != 0);
	assert_int_equal(now.used_bytes, before->used_bytes);
	assert_int_equal(kvb_exists(watcher, "victim", 6, NULL), -ENOENT);
	assert_int_equal(process_wait(pid, 20000), 128 + SIGKILL);
	return gone_ns;
}

static void a_killed_client_leaves_nothing(void **state)
{
	static const char *const args[] = {"--pool", "512MiB", NULL};
	struct kvb_client *watcher;
	struct numbers before, after;
	uint32_t random = 7, late = 0;
	unsigned fds;

	(void)state;
	assert_int_equal(process_server_start(&server, args), 0);
	(void)wait_populated();
	watcher = open_client(NULL, NULL);
	assert_non_null(watcher);
	assert_int_equal(kvb_put(watcher, "stays", 5, "here", 4), 0);
	/* The client that waited for the pool is still on its way out. */
	do {
		before = numbers_of(watcher);
	} while (before.active != 1 || before.ending != 0);
	fds = process_fds(server.pid);
	for (unsigned i = 0; i < KILLS; i++) {
		random = random * 1103515245 + 12345;
		late += kill_one(watcher, &before, 1 + (random >> 8) % (FRAGMENTS - 100)) >=
			NOTICE_NS;
	}
	print_message("%u of %u kills were cleared up late\n", late, KILLS);
	assert_true(late < KILLS / 2);
	after = numbers_of(watcher);
	assert_int_equal(after.active, 1);
	assert_int_equal(after.ending, 0);
	assert_int_equal(process_fds(server.pid), fds);
	assert_int_equal(kvb_exists(watcher, "stays", 5, NULL), 0);
	kvb_close(watcher);
	assert_int_equal(process_server_stop(&server), 0);
}

/* ---------------------------------------------------------------------------------- the server is killed */

#define CLIENTS 4

struct record {
	uint32_t calls;        /* atomic */
	int32_t flight_result; /* of the call that was in flight */
	uint64_t flight_ns;    /* from the kill to its end */
	int32_t next_result;
	uint64_t next_ns; /* how long the next call took */
	uint64_t back_ns; /* atomic: from the kill to the first call that works */
};

static struct shared {
	uint64_t killed_ns; /* atomic */
	struct record records[CLIENTS];
	uint32_t holding;     /* atomic */
	uint64_t released_ns; /* atomic: when the view was given back */
} * shared;

struct engine {
	unsigned number;
	struct kvb_client *client;
	uint8_t *data;
};

/* Two put big payloads all the time, two small ones. */
static int one_call(struct engine *engine)
{
	char key[16];

	snprintf(key, sizeof(key), "engine%u", engine->number);
	return kvb_put(engine->client, key, strlen(key), engine->data,
		engine->number < 2 ? BIG : 64 * KVB_KIB);
}

static void record_death(
	struct engine *engine, struct record *record, uint64_t killed_ns, int result)
{
	uint64_t start_ns;

	record->flight_result = result;
	record->flight_ns = kvb_now_ns() - killed_ns;
	start_ns = kvb_now_ns();
	record->next_result = one_call(engine);
	record->next_ns = kvb_now_ns() - start_ns;
}

static int be_engine(void *arg)
{
	struct engine engine = {.number = *(unsigned *)arg};
	struct record *record = &shared->records[engine.number];
	uint64_t killed_ns = 0;
	int r;

	engine.client = open_client(NULL, NULL);
	engine.data = calloc(1, BIG);
	if (!engine.client || !engine.data)
		return 1;
	for (;;) {
		r = one_call(&engine);
		killed_ns = kvb_load_acquire(&shared->killed_ns);
		if (killed_ns && r < 0)
			break;
		if (r < 0)
			return 2;
		kvb_count(&record->calls, 1);
	}
	record_death(&engine, record, killed_ns, r);
	while (one_call(&engine) < 0)
		usleep(5000);
	kvb_store_release(&record->back_ns, kvb_now_ns() - killed_ns);
	kvb_close(engine.client);
	return 0;
}

/* Holds a view of the dead server's pool, whose memory the next one needs, until that one has said
 * what it waits for. */
static int be_holder(void *arg)
{
	struct kvb_client *client = open_client(NULL, NULL);
	struct kvb_lease view;
	size_t len;

	(void)arg;
	if (!client || kvb_put(client, "held", 4, "the very bytes", 14) < 0 ||
		kvb_acquire(client, "held", 4, &view) < 0)
		return 1;
	kvb_store_release(&shared->holding, 1u);
	while (!process_log_has(&server, "waiting up to 120000 ms for memory: the pool takes"))
		usleep(5000);
	if (memcmp(kvb_view(&view, &len), "the very bytes", 14) != 0 || len != 14)
		return 2;
	kvb_store_release(&shared->released_ns, kvb_now_ns());
	kvb_release(&view);
	while (kvb_put(client, "held", 4, "other bytes", 11) < 0)
		usleep(5000);
	kvb_close(client);
	return 0;
}

static bool all_are_calling(const void *arg)
{
	(void)arg;
	if (!kvb_load_acquire(&shared->holding))
		return false;
	for (unsigned i = 0; i < CLIENTS; i++)
		if (kvb_load_relaxed(&shared->records[i].calls) < 2)
			return false;
	return true;
}

static uint64_t memory_field(const char *name)
{
	char *text = process_read_file("/proc/meminfo");
	char *at = strstr(text, name);
	uint64_t kib = at ? strtoull(at + strlen(name) + 1, NULL, 10) : 0;

	free(text);
	return kib * KVB_KIB;
}

static void a_killed_server_is_noticed_at_once_and_replaced(void **state)
{
	uint64_t pool = memory_field("MemTotal") / 10 * 6, populate_ms;
	char size[32];
	const char *const args[] = {"--pool", size, "--start-wait", "120s", NULL};
	unsigned numbers[CLIENTS];
	pid_t pids[CLIENTS], holder;

	(void)state;
	if (memory_field("MemAvailable") < pool + 2 * KVB_GIB) {
		print_message(
			"skipped: 60 %% of this machine's memory and 2 GiB are not available\n");
		skip();
	}
	snprintf(size, sizeof(size), "%llu", (unsigned long long)pool);
	shared = mmap(
		NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(shared != MAP_FAILED);
	assert_int_equal(process_server_start(&server, args), 0);
	populate_ms = wait_populated();
	for (unsigned i = 0; i < CLIENTS; i++) {
		numbers[i] = i;
		pids[i] = process_fork(be_engine, &numbers[i]);
	}
	holder = process_fork(be_holder, NULL);
	assert_true(embedded_wait(all_are_calling, NULL));
	/* Before the kill, so that no engine sees the server gone and nobody said to have killed
	 * it. */
	kvb_store_release(&shared->killed_ns, kvb_now_ns());
	kill(server.pid, SIGKILL);
	/* At once, while the kernel still tears the first one down. */
	pid_t first = server.pid;
	assert_int_equal(process_server_start(&server, args), 0);
	/* There is no room for two pools, so it serves only now. */
	assert_true(kvb_load_acquire(&shared->released_ns) > shared->killed_ns);
	for (unsigned i = 0; i < CLIENTS; i++)
		assert_int_equal(process_wait(pids[i], 120000), 0);
	assert_int_equal(process_wait(holder, 120000), 0);
	assert_int_equal(process_wait(first, 60000), 128 + SIGKILL);
	print_message("the view is given back %.0f ms after the kill\n",
		(double)(shared->released_ns - shared->killed_ns) / 1e6);
	for (unsigned i = 0; i < CLIENTS; i++) {
		const struct record *record = &shared->records[i];
		print_message(
			"client %u: in flight %d after %.1f ms, next %d in %.3f ms, works again "
			"after %.0f ms (populating takes %llu ms)\n",
			i, record->flight_result, (double)record->flight_ns / 1e6,
			record->next_result, (double)record->next_ns / 1e6,
			(double)record->back_ns / 1e6, (unsigned long long)populate_ms);
		assert_true(
			record->flight_result == -ECONNRESET || record->flight_result == -ENOTCONN);
		assert_true(record->flight_ns < KVB_NS_PER_S);
		assert_true(record->next_result < 0);
		assert_true(record->next_ns < KVB_NS_PER_S);
		assert_true(record->back_ns < (5000 + populate_ms) * KVB_NS_PER_MS);
	}
	assert_int_equal(process_server_stop(&server), 0);
	munmap(shared, sizeof(*shared));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(a_killed_client_leaves_nothing, teardown),
		cmocka_unit_test_teardown(
			a_killed_server_is_noticed_at_once_and_replaced, teardown),
	};

	return cmocka_run_group_tests_name("kill", tests, NULL, NULL) ? 1 : 0;
}
