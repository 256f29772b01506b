/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_read_kill.c - readers whose server stands still or dies, and a server whose readers die.
 *
 * The server is a process of its own. Four threads of this one do nothing but local reads; they
 * record what they met, and the main thread asserts.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvbell/kvbell.h"
#include "shm/atomic.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/gate.h"
#include "tests/process.h"

#define THREADS    4
#define OBJECTS    16u
#define BYTES      70001u
#define KILLS      200u
#define HOLDERS    20u
#define MANY_READS 3000u
/* Each so many rounds, a pool that the kernel takes longer to tear down than a reader may wait. */
#define BIG_POOL_EVERY 50u
#define BIG_POOL       "2GiB"
/* A busy machine may not let a thread run for so long, but not most of the time. */
#define NOTICE_NS (100 * TEST_SLOWER * KVB_NS_PER_MS)

static struct process_server server;
static struct kvb_client *client;

static struct kvb_client *open_client(void)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *opened = NULL;

	options.dir = server.dir;
	options.name = "reader";
	return kvb_open(&options, &opened) == 0 ? opened : NULL;
}

static size_t key_of(unsigned number, char ret_key[16])
{
	return (size_t)snprintf(ret_key, 16, "object-%u", number);
}

static uint8_t byte_at(unsigned number, size_t position)
{
	return (uint8_t)(number * 37 + position * 11 + position / 251);
}

static void fill(unsigned number, uint8_t *ret_data)
{
	for (size_t i = 0; i < BYTES; i++)
		ret_data[i] = byte_at(number, i);
}

static void put_all(void)
{
	static uint8_t data[BYTES];
	char key[16];

	for (unsigned i = 0; i < OBJECTS; i++) {
		fill(i, data);
		assert_int_equal(kvb_put(client, key, key_of(i, key), data, BYTES), 0);
	}
}

static bool view_is_right(const struct kvb_lease *view, unsigned number)
{
	const uint8_t *data = view->data;

	if (view->length != BYTES)
		return false;
	for (size_t i = 0; i < BYTES; i += 97)
		if (data[i] != byte_at(number, i))
			return false;
	return data[BYTES - 1] == byte_at(number, BYTES - 1);
}

/* ------------------------------------------------------------------------------------------ readers */

struct reader {
	pthread_t thread;
	unsigned number;
	uint64_t reads; /* atomic */
	uint32_t stop;  /* atomic */
	uint32_t wrong;
	int error;         /* the first one */
	uint64_t error_ns; /* when */
	struct kvb_lease held;
	uint8_t copy[BYTES];
};

/* One of the three ways to read. The error; *ret_right: what came is what was put. */
static int read_one(struct reader *reader, unsigned way, bool *ret_right)
{
	unsigned number = (unsigned)(kvb_load_relaxed(&reader->reads) * 7) % OBJECTS;
	size_t key_len, len = 0;
	struct kvb_lease view;
	char key[16];
	int r;

	key_len = key_of(number, key);
	*ret_right = true;
	if (way == 0)
		return kvb_exists(client, key, key_len, NULL);
	if (way == 1) {
		r = kvb_get(client, key, key_len, reader->copy, BYTES, &len);
		*ret_right = r < 0 || (len == BYTES && reader->copy[97] == byte_at(number, 97));
		return r;
	}
	r = kvb_acquire(client, key, key_len, &view);
	if (r < 0)
		return r;
	*ret_right = view_is_right(&view, number);
	kvb_release(&view);
	return 0;
}

static void *read_on(void *arg)
{
	struct reader *reader = arg;
	bool right;
	char key[16];
	int r = kvb_acquire(client, key, key_of(reader->number, key), &reader->held);

	while (r == 0 && !kvb_load_relaxed(&reader->stop)) {
		r = read_one(reader, kvb_load_relaxed(&reader->reads) % 3, &right);
		reader->wrong += !right;
		if (r == 0)
			kvb_count(&reader->reads, 1);
	}
	reader->error_ns = kvb_now_ns();
	reader->error = r;
	return NULL;
}

static void start_readers(struct reader readers[THREADS])
{
	memset(readers, 0, THREADS * sizeof(readers[0]));
	for (unsigned i = 0; i < THREADS; i++) {
		readers[i].number = i;
		assert_int_equal(pthread_create(&readers[i].thread, NULL, read_on, &readers[i]), 0);
	}
}

struct reads_wanted {
	struct reader *readers;
	uint64_t from[THREADS], more;
};

static bool all_have_read(const void *arg)
{
	const struct reads_wanted *wanted = arg;

	for (unsigned i = 0; i < THREADS; i++)
		if (kvb_load_relaxed(&wanted->readers[i].reads) < wanted->from[i] + wanted->more)
			return false;
	return true;
}

/* Waits until each has done so many more. */
static bool await_reads(struct reader readers[THREADS], uint64_t more)
{
	struct reads_wanted wanted = {.readers = readers, .more = more};

	for (unsigned i = 0; i < THREADS; i++)
		wanted.from[i] = kvb_load_relaxed(&readers[i].reads);
	return embedded_wait(all_have_read, &wanted);
}

static int setup(void **state)
{
	(void)state;
	memset(&server, 0, sizeof(server));
	client = NULL;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	process_dir_remove(server.dir);
	unlink(server.log);
	return 0;
}

/* ------------------------------------------------------------------------------ the server stands still */

static char state_of(pid_t pid)
{
	char path[64], *text, *at;
	char state;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	text = process_read_file(path);
	at = strrchr(text, ')');
	state = '?';
	if (at && at[1] == ' ')
		state = at[2];
	free(text);
	return state;
}

static bool is_stopped(const void *arg)
{
	return state_of(*(const pid_t *)arg) == 'T';
}

/* How many a second, of all readers; a figure to look at, not to judge. */
static double read_rate(struct reader readers[THREADS])
{
	uint64_t begin_ns = kvb_now_ns();

	assert_true(await_reads(readers, MANY_READS));
	return (double)(THREADS * MANY_READS) * 1e9 / (double)(kvb_now_ns() - begin_ns);
}

static void reads_go_on_while_the_server_stands_still(void **state)
{
	static const char *const args[] = {"--pool", "64MiB", NULL};
	static struct reader readers[THREADS];
	double before, during;

	(void)state;
	assert_int_equal(process_server_start(&server, args), 0);
	client = open_client();
	assert_non_null(client);
	put_all();
	start_readers(readers);
	before = read_rate(readers);
	kill(server.pid, SIGSTOP);
	assert_true(embedded_wait(is_stopped, &server.pid));
	during = read_rate(readers);
	print_message(
		"%.0f reads a second, and %.0f while the server stands still\n", before, during);
	assert_int_equal(state_of(server.pid), 'T');
	kill(server.pid, SIGCONT);
	for (unsigned i = 0; i < THREADS; i++) {
		kvb_store_relaxed(&readers[i].stop, 1u);
		assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
		assert_int_equal(readers[i].error, 0);
		assert_int_equal(readers[i].wrong, 0);
		kvb_release(&readers[i].held);
	}
	assert_int_equal(kvb_put(client, "later", 5, "x", 1), 0);
	kvb_close(client);
	assert_int_equal(process_server_stop(&server), 0);
}

/* ---------------------------------------------------------------------------------- the server is killed */

static int see_populated(void *user, const struct kvb_stat *stat)
{
	if (strcmp(stat->name, "pool.populate_ms") == 0)
		*(uint64_t *)user = stat->value;
	return 0;
}

/* Under a server whose pool is there as a whole. */
static bool works_again(const void *arg)
{
	uint64_t populate_ms = 0;

	(void)arg;
	return kvb_stats(client, see_populated, &populate_ms) == 0 && populate_ms > 0;
}

/* From the kill on, until all know. The views are held for longer. */
static uint64_t kill_under(struct reader readers[THREADS], unsigned delay_us)
{
	uint64_t killed_ns, latest_ns = 0;

	assert_true(await_reads(readers, 3));
	usleep(delay_us);
	killed_ns = kvb_now_ns();
	kill(server.pid, SIGKILL);
	for (unsigned i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
		assert_int_equal(readers[i].wrong, 0);
		if (readers[i].error != -ECONNRESET)
			assert_int_equal(readers[i].error, -ENOTCONN);
		assert_true(readers[i].error_ns > killed_ns);
		latest_ns = kvb_max_u64(latest_ns, readers[i].error_ns - killed_ns);
	}
	assert_int_equal(process_wait(server.pid, 60000), 128 + SIGKILL);
	return latest_ns;
}

static void release_views(struct reader readers[THREADS])
{
	for (unsigned i = 0; i < THREADS; i++) {
		assert_true(view_is_right(&readers[i].held, i));
		kvb_release(&readers[i].held);
	}
}

static void readers_of_a_killed_server_are_told(void **state)
{
	static struct reader readers[THREADS];
	uint64_t latest_ns = 0, round_ns;
	uint32_t random = 11, late[2] = {0};

	(void)state;
	for (unsigned round = 0; round < KILLS; round++) {
		bool big = round % BIG_POOL_EVERY == BIG_POOL_EVERY - 1;
		const char *const args[] = {"--pool", big ? BIG_POOL : "8MiB", NULL};
		assert_int_equal(process_server_start(&server, args), 0);
		if (!client)
			client = open_client();
		assert_non_null(client);
		assert_true(embedded_wait(works_again, NULL));
		/* Those of the round before, under a server that knows nothing of them. */
		if (round > 0)
			release_views(readers);
		put_all();
		start_readers(readers);
		random = random * 1103515245 + 12345;
		round_ns = kill_under(readers, (random >> 8) % 8000);
		latest_ns = kvb_max_u64(latest_ns, round_ns);
		late[big] += round_ns >= NOTICE_NS;
	}
	print_message("told after %.1f ms at the latest; %u times late, %u times with a big pool\n",
		(double)latest_ns / 1e6, late[0], late[1]);
	assert_true(late[0] < KILLS / 2);
	assert_true(late[1] <= KILLS / BIG_POOL_EVERY / 2);
	kvb_close(client);
	release_views(readers);
}

/* --------------------------------------------------------------------------------- a reader is killed */

/* Holds a view of each object until it dies. */
static int hold_all(void *arg)
{
	struct kvb_client *own = open_client();
	struct kvb_lease views[OBJECTS];
	const int *told = arg;
	char key[16];

	if (!own)
		return 1;
	for (unsigned i = 0; i < OBJECTS; i++)
		if (kvb_acquire(own, key, key_of(i, key), &views[i]) < 0)
			return 2;
	if (write(*told, "x", 1) != 1)
		return 3;
	for (;;)
		pause();
}

static int see_limbo(void *user, const struct kvb_stat *stat)
{
	if (strcmp(stat->name, "leases.limbo") == 0)
		*(uint64_t *)user = stat->value;
	return 0;
}

static uint64_t limbo(void)
{
	uint64_t objects = UINT64_MAX;

	assert_int_equal(kvb_stats(client, see_limbo, &objects), 0);
	return objects;
}

/* How long the leases of one who is killed outlive him. */
static uint64_t kill_holder(void)
{
	uint64_t killed_ns, gone_ns;
	int told[2];
	char key[16], byte;
	pid_t pid;

	put_all();
	assert_int_equal(pipe(told), 0);
	pid = process_fork(hold_all, &told[1]);
	close(told[1]);
	assert_int_equal(read(told[0], &byte, 1), 1);
	close(told[0]);
	for (unsigned i = 0; i < OBJECTS; i++)
		assert_int_equal(kvb_delete(client, key, key_of(i, key)), 0);
	assert_int_equal(limbo(), OBJECTS);
	kill(pid, SIGKILL);
	killed_ns = kvb_now_ns();
	while (limbo() > 0)
		assert_true(kvb_now_ns() - killed_ns < 20 * KVB_NS_PER_S);
	gone_ns = kvb_now_ns();
	assert_int_equal(process_wait(pid, 20000), 128 + SIGKILL);
	return gone_ns - killed_ns;
}

static void leases_of_a_killed_reader_are_gone(void **state)
{
	static const char *const args[] = {"--pool", "64MiB", NULL};
	uint64_t latest_ns = 0, round_ns;
	uint32_t late = 0;

	(void)state;
	assert_int_equal(process_server_start(&server, args), 0);
	client = open_client();
	assert_non_null(client);
	for (unsigned i = 0; i < HOLDERS; i++) {
		round_ns = kill_holder();
		latest_ns = kvb_max_u64(latest_ns, round_ns);
		late += round_ns >= NOTICE_NS;
	}
	print_message(
		"gone after %.1f ms at the latest; %u times late\n", (double)latest_ns / 1e6, late);
	assert_true(late < HOLDERS / 2);
	kvb_close(client);
	assert_int_equal(process_server_stop(&server), 0);
}

/* -------------------------------------------------------------------------------------- a child is forked */

static __thread bool stays_in_unlock;

int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);

/* Keeps a thread that wishes so in its next call, once. */
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	if (stays_in_unlock) {
		stays_in_unlock = false;
		gate_pass();
	}
	return __real_pthread_mutex_unlock(mutex);
}

static void *release_slowly(void *arg)
{
	stays_in_unlock = true;
	kvb_release(arg);
	return NULL;
}

/* Reads, and closes, in a process that has no other thread. */
static int read_as_child(void *arg)
{
	struct kvb_client *own = open_client();
	struct kvb_lease view;
	char key[16];
	int r;

	(void)arg;
	if (!own)
		return 1;
	r = kvb_acquire(own, key, key_of(0, key), &view);
	if (r < 0)
		return 2;
	if (!view_is_right(&view, 0))
		return 3;
	kvb_release(&view);
	kvb_close(own);
	return 0;
}

/* A thread gives back the last view under a dead server, and the child is forked in the midst of it. */
static void a_child_waits_for_no_reader_of_its_parent(void **state)
{
	static const char *const args[] = {"--pool", "64MiB", NULL};
	struct kvb_lease view;
	pthread_t thread;
	char key[16];
	pid_t child;

	(void)state;
	assert_int_equal(process_server_start(&server, args), 0);
	client = open_client();
	assert_non_null(client);
	put_all();
	assert_int_equal(kvb_acquire(client, key, key_of(0, key), &view), 0);
	kill(server.pid, SIGKILL);
	assert_int_equal(process_wait(server.pid, 60000), 128 + SIGKILL);
	assert_int_equal(process_server_start(&server, args), 0);
	assert_true(embedded_wait(works_again, NULL));
	put_all();
	gate_close();
	assert_int_equal(pthread_create(&thread, NULL, release_slowly, &view), 0);
	assert_true(gate_wait_inside(1));
	child = process_fork(read_as_child, NULL);
	assert_int_equal(process_wait(child, 20000), 0);
	gate_open();
	pthread_join(thread, NULL);
	kvb_close(client);
	assert_int_equal(process_server_stop(&server), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			reads_go_on_while_the_server_stands_still, setup, teardown),
		cmocka_unit_test_setup_teardown(
			readers_of_a_killed_server_are_told, setup, teardown),
		cmocka_unit_test_setup_teardown(
			leases_of_a_killed_reader_are_gone, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_child_waits_for_no_reader_of_its_parent, setup, teardown),
	};

	return cmocka_run_group_tests_name("read_kill", tests, NULL, NULL) ? 1 : 0;
}
