/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_library.c - libkvbell against a server in this process: every size and key, byte for byte;
 * every error with its name; threads, deadlines, fork.
 *
 * The main thread asserts; other threads and children record.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/pattern.h"
#include "kvbell/kvbell.h"
#include "server/hook.h"
#include "server/server.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/process.h"

static struct embedded embedded;
static struct kvb_client *client;

static struct kvb_client *open_client_with(uint32_t timeout_ms, uint32_t flags)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *opened = NULL;

	options.flags = flags;
	options.dir = embedded.dir;
	options.name = "library";
	options.timeout_ms = timeout_ms;
	return process_client_open(&options, &opened) == 0 ? opened : NULL;
}

static struct kvb_client *open_client(uint32_t timeout_ms)
{
	return open_client_with(timeout_ms, 0);
}

static int start_with_pool(uint64_t pool_bytes)
{
	struct kvb_server_options config;

	embedded_config(&config);
	config.pool_bytes = pool_bytes;
	config.staging_bytes = 8 * KVB_MIB;
	if (embedded_start(&embedded, &config) < 0)
		return -1;
	client = open_client(0);
	return client ? 0 : -1;
}

static int start(void **state)
{
	(void)state;
	return start_with_pool(64 * KVB_MIB);
}

static int start_big(void **state)
{
	(void)state;
	return start_with_pool(256 * KVB_MIB);
}

static int stop(void **state)
{
	(void)state;
	kvb_close(client);
	return embedded_stop(&embedded);
}

/* ------------------------------------------------------------------------------------ sizes and keys */

static void round_trip(const void *key, size_t key_len, size_t len)
{
	uint8_t *data = malloc(len + 1);
	uint8_t *back = malloc(len + 1);
	size_t got = SIZE_MAX;

	kvb_pattern_fill(data, len, len + key_len);
	memset(back, 0xee, len + 1);
	assert_int_equal(kvb_put(client, key, key_len, data, len), 0);
	assert_int_equal(kvb_exists(client, key, key_len, &got), 0);
	assert_int_equal(got, len);
	got = SIZE_MAX;
	assert_int_equal(kvb_get(client, key, key_len, back, len, &got), 0);
	assert_int_equal(got, len);
	assert_int_equal(memcmp(data, back, len), 0);
	assert_int_equal(back[len], 0xee);
	/* And into a buffer with room to spare. */
	memset(back, 0xee, len + 1);
	assert_int_equal(kvb_get(client, key, key_len, back, len + 1, &got), 0);
	assert_int_equal(got, len);
	assert_int_equal(memcmp(data, back, len), 0);
	assert_int_equal(back[len], 0xee);
	free(data);
	free(back);
}

static void every_size_comes_back_byte_for_byte(void **state)
{
	static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 512 * 1024 - 1, 512 * 1024,
		512 * 1024 + 1, 8 * 1024 * 1024 + 1, 32 * 1024 * 1024, 192 * 1024 * 1024};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(sizes); i++)
		round_trip("size", 4, sizes[i]);
}

static void every_key_length_works(void **state)
{
	static const size_t lengths[] = {1, 200, 201, 1024};
	uint8_t key[1024];

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(lengths); i++) {
		for (size_t k = 0; k < lengths[i]; k++)
			key[k] = (uint8_t)(k * 37 + i);
		round_trip(key, lengths[i], 5000 + i);
	}
	memset(key, 0, sizeof(key));
	round_trip(key, 7, 100);
	/* A prefix is another key. */
	assert_int_equal(kvb_exists(client, key, 6, NULL), -ENOENT);
}

static void each_fault_has_its_error_and_the_session_goes_on(void **state)
{
	uint8_t key[1025] = {'k'};
	uint8_t data[300] = {0};
	size_t len = 77;

	(void)state;
	assert_int_equal(kvb_put(client, key, 0, data, 1), -EINVAL);
	assert_int_equal(kvb_put(client, NULL, 1, data, 1), -EINVAL);
	assert_int_equal(kvb_put(client, key, 1, NULL, 1), -EINVAL);
	assert_int_equal(kvb_put(client, key, 1025, data, 1), -ENAMETOOLONG);
	assert_int_equal(kvb_put(client, key, 1, data, 64 * KVB_MIB + 1), -EFBIG);
	assert_int_equal(kvb_get(client, key, 0, data, 1, NULL), -EINVAL);
	assert_int_equal(kvb_get(client, key, 1025, data, 1, NULL), -ENAMETOOLONG);
	assert_int_equal(kvb_get(client, "no", 2, data, 1, &len), -ENOENT);
	assert_int_equal(kvb_exists(client, "no", 2, &len), -ENOENT);
	assert_int_equal(kvb_delete(client, "no", 2), -ENOENT);
	assert_int_equal(len, 77);
	kvb_pattern_fill(data, sizeof(data), 1);
	assert_int_equal(kvb_put(client, key, 1, data, sizeof(data)), 0);
	memset(data, 0xee, sizeof(data));
	assert_int_equal(kvb_get(client, key, 1, data, sizeof(data) - 1, &len), -EMSGSIZE);
	assert_int_equal(len, sizeof(data));
	assert_int_equal(data[0], 0xee);
	assert_int_equal(kvb_delete(client, key, 1), 0);
	assert_int_equal(kvb_get(client, key, 1, data, sizeof(data), &len), -ENOENT);
	round_trip("after", 5, 1000000);
}

static void a_long_object_in_a_short_buffer_tells_its_length(void **state)
{
	size_t len = 5 * 1024 * 1024 + 3, told = 0;
	uint8_t *data = malloc(len);

	(void)state;
	kvb_pattern_fill(data, len, 9);
	assert_int_equal(kvb_put(client, "long", 4, data, len), 0);
	memset(data, 0xee, len);
	assert_int_equal(kvb_get(client, "long", 4, data, 1024 * 1024, &told), -EMSGSIZE);
	assert_int_equal(told, len);
	assert_int_equal(kvb_get(client, "long", 4, data, len - 1, &told), -EMSGSIZE);
	assert_int_equal(data[0], 0xee);
	assert_int_equal(kvb_get(client, "long", 4, data, len, &told), 0);
	assert_true(kvb_pattern_check(data, len, 9));
	free(data);
}

static void errors_have_texts(void **state)
{
	(void)state;
	assert_string_equal(kvb_strerror(-ENOENT), "there is no object under this key");
	assert_non_null(strstr(kvb_strerror(-EFBIG), "--pool"));
	assert_non_null(strstr(kvb_strerror(-ECONNREFUSED), "kvbelld"));
	assert_string_equal(kvb_strerror(-EDOM), "Numerical argument out of domain");
	assert_string_equal(kvb_strerror(-99999), "unknown error");
	assert_string_equal(kvb_version(), KVB_SERVER_VERSION);
}

/* ---------------------------------------------------------------------------------------- the control */

struct seen {
	uint64_t count;
	uint64_t bytes;
	uint64_t pool_bytes;
	char state[16];
};

static int see_stat(void *user, const struct kvb_stat *stat)
{
	struct seen *seen = user;

	seen->count++;
	if (strcmp(stat->name, "pool.bytes") == 0)
		seen->pool_bytes = stat->value;
	if (strcmp(stat->name, "server.state") == 0)
		snprintf(seen->state, sizeof(seen->state), "%s", stat->text);
	return 0;
}

static int see_entry(void *user, const struct kvb_entry *entry)
{
	struct seen *seen = user;

	seen->count++;
	seen->bytes += entry->length;
	return entry->key_len == 6 ? 0 : -EBADMSG;
}

static int stop_here(void *user, const struct kvb_entry *entry)
{
	(void)entry;
	return ++*(int *)user == 3 ? -ECANCELED : 0;
}

static void stats_list_and_pings(void **state)
{
	struct seen seen = {0};
	struct kvb_info info;
	char key[8];
	int calls = 0;

	(void)state;
	assert_int_equal(kvb_ping(client), 0);
	assert_int_equal(kvb_ping_control(client), 0);
	assert_int_equal(kvb_list(client, see_entry, &seen), 0);
	assert_int_equal(seen.count, 0);
	for (unsigned i = 0; i < 500; i++) {
		snprintf(key, sizeof(key), "key%03u", i);
		assert_int_equal(kvb_put(client, key, 6, embedded.dir, 10), 0);
	}
	assert_int_equal(kvb_list(client, see_entry, &seen), 0);
	assert_int_equal(seen.count, 500);
	assert_int_equal(seen.bytes, 5000);
	assert_int_equal(kvb_list(client, stop_here, &calls), -ECANCELED);
	assert_int_equal(calls, 3);
	seen = (struct seen){0};
	assert_int_equal(kvb_stats(client, see_stat, &seen), 0);
	assert_in_range(seen.count, 40, 200);
	assert_int_equal(seen.pool_bytes, 64 * KVB_MIB);
	assert_string_equal(seen.state, "active");
	assert_int_equal(kvb_get_info(client, &info), 0);
	assert_string_equal(info.kind, "own");
	assert_int_equal(info.attaches, 1);
	assert_int_equal(info.payload_max, 64 * KVB_MIB);
	assert_int_equal(info.credit, 256);
	assert_int_equal(info.missed_wakes, 0);
	assert_int_equal(strlen(info.boot_id), 32);
}

/* -------------------------------------------------------------------------------------------- threads */

#define MOVERS 6
#define MOVES  60

struct mover {
	pthread_t thread;
	unsigned number;
	int error;
	uint32_t wrong;
};

static void *move_payloads(void *arg)
{
	static const size_t sizes[] = {100, 70000, 300000, 3000000};
	struct mover *mover = arg;
	uint8_t *data = malloc(3000000);

	for (unsigned i = 0; i < MOVES && mover->error == 0; i++) {
		size_t len = sizes[(i + mover->number) % KVB_ARRAY_SIZE(sizes)], got;
		char key[32];
		snprintf(key, sizeof(key), "mover%u-%u", mover->number, i % 3);
		kvb_pattern_fill(data, len, mover->number * 1000 + i);
		mover->error = kvb_put(client, key, strlen(key), data, len);
		memset(data, 0, len);
		if (mover->error == 0)
			mover->error = kvb_get(client, key, strlen(key), data, 3000000, &got);
		if (mover->error == 0 &&
			(got != len || !kvb_pattern_check(data, len, mover->number * 1000 + i)))
			mover->wrong++;
	}
	free(data);
	return NULL;
}

/* They share one ring: credit, staging and the server's transfer table. */
static void threads_share_a_client(void **state)
{
	struct mover movers[MOVERS] = {0};
	struct kvb_info info;

	(void)state;
	for (unsigned i = 0; i < MOVERS; i++) {
		movers[i].number = i;
		assert_int_equal(
			kvb_thread_start(&movers[i].thread, "mover", move_payloads, &movers[i]), 0);
	}
	for (unsigned i = 0; i < MOVERS; i++)
		pthread_join(movers[i].thread, NULL);
	for (unsigned i = 0; i < MOVERS; i++) {
		assert_int_equal(movers[i].error, 0);
		assert_int_equal(movers[i].wrong, 0);
	}
	assert_int_equal(kvb_get_info(client, &info), 0);
	assert_int_equal(info.missed_wakes, 0);
	assert_int_equal(kvb_load_relaxed(&embedded.server->counters.missed_wakes), 0);
}

static int start_odd(void **state)
{
	struct kvb_server_options config;

	(void)state;
	embedded_config(&config);
	config.pool_bytes = 64 * KVB_MIB;
	config.fragment_bytes = 4096;
	config.staging_bytes = 12288;
	if (embedded_start(&embedded, &config) < 0)
		return -1;
	client = open_client(0);
	return client ? 0 : -1;
}

/* ---------------------------------------------------------------------------------- deadlines and ends */

static uint32_t gate; /* atomic: 1 a worker that copies waits; 0 it goes on */

static void wait_at_gate(enum kvb_hook_point point, uint32_t slot)
{
	(void)slot;
	while (point == KVB_HOOK_COPY && kvb_load_acquire(&gate))
		usleep(1000);
}

static int start_gated(void **state)
{
	gate = 0;
	kvb_store_relaxed(&kvb_hook_installed, wait_at_gate);
	return start(state);
}

static int stop_gated(void **state)
{
	int r;

	kvb_store_release(&gate, 0u);
	r = stop(state);
	kvb_store_relaxed(&kvb_hook_installed, (kvb_hook_fn *)NULL);
	return r;
}

static bool nothing_open(const void *arg)
{
	struct kvb_store_stats stats;

	(void)arg;
	kvb_store_get_stats(embedded.server->store, &stats);
	return stats.pending == 0 && stats.held == 0;
}

/* The calls give up; what they left behind comes back with its completions, and nothing stays open. */
static void a_deadline_leaves_nothing_behind(void **state)
{
	struct kvb_client *hasty = open_client_with(100, KVB_OPEN_RING_ONLY);
	size_t len = 4 * 1024 * 1024;
	uint8_t *data = malloc(len);

	(void)state;
	assert_non_null(hasty);
	kvb_pattern_fill(data, len, 4);
	assert_int_equal(kvb_put(client, "there", 5, data, len), 0);
	for (int round = 0; round < 20; round++) {
		kvb_store_release(&gate, 1u);
		assert_int_equal(kvb_put(hasty, "late", 4, data, len), -ETIMEDOUT);
		assert_int_equal(kvb_get(hasty, "there", 5, data, len, NULL), -ETIMEDOUT);
		assert_int_equal(kvb_put(hasty, "late", 4, data, 100), -ETIMEDOUT);
		kvb_store_release(&gate, 0u);
		assert_true(embedded_wait(nothing_open, NULL));
	}
	assert_int_equal(kvb_get(client, "there", 5, data, len, NULL), 0);
	assert_true(kvb_pattern_check(data, len, 4));
	kvb_close(hasty);
	free(data);
}

static void *put_slowly(void *arg)
{
	static uint8_t data[8 * 1024 * 1024]; /* more than is in flight at a time */

	*(int *)arg = kvb_put(client, "slow", 4, data, sizeof(data));
	return NULL;
}

static bool has_pending(const void *arg)
{
	return !nothing_open(arg);
}

/* A call of another thread is inside, and stays inside until the server's completion would come. */
static void close_ends_the_calls_inside(void **state)
{
	pthread_t thread;
	int result = 1;

	(void)state;
	kvb_store_release(&gate, 1u);
	assert_int_equal(kvb_thread_start(&thread, "put", put_slowly, &result), 0);
	assert_true(embedded_wait(has_pending, NULL));
	kvb_close(client);
	pthread_join(thread, NULL);
	assert_int_equal(result, -ECONNRESET);
	kvb_store_release(&gate, 0u);
	client = open_client(0);
	assert_non_null(client);
	assert_int_equal(kvb_exists(client, "slow", 4, NULL), -ENOENT);
}

static void a_forked_child_gets_an_error_and_does_no_harm(void **state)
{
	pid_t pid;
	int status;

	(void)state;
	round_trip("before", 6, 1000);
	pid = fork();
	if (pid == 0) {
		size_t len;
		char byte;
		struct kvb_info info;
		int faults = (kvb_put(client, "k", 1, "x", 1) != -ECHILD) +
			2 * (kvb_get(client, "k", 1, &byte, 1, &len) != -ECHILD) +
			4 * (kvb_ping_control(client) != -ECHILD) +
			8 * (kvb_get_info(client, &info) != -ECHILD);
		kvb_close(client);
		_exit(faults);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	round_trip("after", 5, 1000);
	assert_int_equal(kvb_ping_control(client), 0);
}

static void open_says_why_not(void **state)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *none = NULL;
	char path[200];

	(void)state;
	options.dir = "/nonexistent/kvbell";
	assert_int_equal(kvb_open(&options, &none), -ECONNREFUSED);
	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[108 - sizeof("/control.sock")] = '\0';
	options.dir = path;
	/* 107 bytes with the socket's name fit. */
	assert_int_equal(kvb_open(&options, &none), -ECONNREFUSED);
	path[108 - sizeof("/control.sock")] = 'x';
	path[109 - sizeof("/control.sock")] = '\0';
	assert_int_equal(kvb_open(&options, &none), -ENAMETOOLONG);
	path[109 - sizeof("/control.sock")] = 'x';
	path[199] = '\0';
	assert_int_equal(kvb_open(&options, &none), -ENAMETOOLONG);
	options.size = 4;
	assert_int_equal(kvb_open(&options, &none), -EINVAL);
	assert_null(none);
}

static bool can_ping(const void *arg)
{
	(void)arg;
	return kvb_ping(client) == 0;
}

static void a_new_server_is_found_without_a_new_client(void **state)
{
	struct kvb_server_options config;
	struct kvb_info info;
	int r;

	(void)state;
	round_trip("first", 5, 300000);
	kvb_server_stop_begin(embedded.server);
	assert_int_equal(kvb_server_stop_wait(embedded.server), 0);
	r = kvb_ping(client);
	assert_true(r == -ENOTCONN || r == -ECONNRESET);
	assert_int_equal(kvb_ping(client), -ENOTCONN);
	kvb_server_free(embedded.server);
	embedded_config(&config);
	config.staging_bytes = 8 * KVB_MIB;
	config.dir = embedded.dir;
	config.log = (struct kvb_log){0};
	assert_int_equal(kvb_server_new(&config, &embedded.server), 0);
	assert_int_equal(kvb_server_start(embedded.server), 0);
	assert_true(embedded_wait(can_ping, NULL));
	assert_int_equal(kvb_exists(client, "first", 5, NULL), -ENOENT);
	round_trip("second", 6, 300000);
	assert_int_equal(kvb_ping_control(client), 0);
	assert_int_equal(kvb_get_info(client, &info), 0);
	assert_int_equal(info.attaches, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			every_size_comes_back_byte_for_byte, start_big, stop),
		cmocka_unit_test_setup_teardown(every_key_length_works, start, stop),
		cmocka_unit_test_setup_teardown(
			each_fault_has_its_error_and_the_session_goes_on, start, stop),
		cmocka_unit_test_setup_teardown(
			a_long_object_in_a_short_buffer_tells_its_length, start, stop),
		cmocka_unit_test(errors_have_texts),
		cmocka_unit_test_setup_teardown(stats_list_and_pings, start, stop),
		cmocka_unit_test_setup_teardown(threads_share_a_client, start, stop),
		/* Three fragments of staging, which is no power of two. */
		cmocka_unit_test_setup_teardown(threads_share_a_client, start_odd, stop),
		cmocka_unit_test_setup_teardown(
			a_deadline_leaves_nothing_behind, start_gated, stop_gated),
		cmocka_unit_test_setup_teardown(
			close_ends_the_calls_inside, start_gated, stop_gated),
		cmocka_unit_test_setup_teardown(
			a_forked_child_gets_an_error_and_does_no_harm, start, stop),
		cmocka_unit_test_setup_teardown(open_says_why_not, start, stop),
		cmocka_unit_test_setup_teardown(
			a_new_server_is_found_without_a_new_client, start, stop),
	};

	return cmocka_run_group_tests_name("library", tests, NULL, NULL) ? 1 : 0;
}
