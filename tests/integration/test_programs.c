/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_programs.c - kvbelld as a program: its directory, its signals, its exit status, its order of
 * leaving.
 *
 * Real processes; the main thread drives and asserts.
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
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/pattern.h"
#include "kvbell/kvbell.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/process.h"

static struct process_server server;
static struct kvb_client *client;

static const char *const small[] = {"--pool", "32MiB", NULL};

static int setup(void **state)
{
	(void)state;
	memset(&server, 0, sizeof(server));
	client = NULL;
	return process_dir_new(server.dir, sizeof(server.dir));
}

static int teardown(void **state)
{
	(void)state;
	kvb_close(client);
	process_dir_remove(server.dir);
	unlink(server.log);
	return 0;
}

static int open_client(const char *dir)
{
	struct kvb_options options = KVB_OPTIONS_INIT;

	options.dir = dir;
	options.name = "programs";
	return kvb_open(&options, &client);
}

static mode_t mode_of(const char *name)
{
	char path[128];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", server.dir, name);
	return lstat(path, &st) == 0 ? st.st_mode & 07777 : 0;
}

/* ---------------------------------------------------------------------------------------- the directory */

static void a_server_leaves_its_lock_file_only(void **state)
{
	(void)state;
	assert_int_equal(process_server_start(&server, small), 0);
	assert_int_equal(process_count_entries(server.dir), 3);
	assert_int_equal(mode_of("."), 0700);
	assert_int_equal(mode_of("door.sock"), 0600);
	assert_int_equal(mode_of("control.sock"), 0600);
	assert_int_equal(mode_of("kvbelld.lock"), 0600);
	assert_int_equal(process_server_stop(&server), 0);
	assert_int_equal(process_count_entries(server.dir), 1);
}

static void modes_open_up_for_others(void **state)
{
	static const char *const args[] = {"--pool", "32MiB", "--allow-uid", "1001", NULL};

	(void)state;
	assert_int_equal(process_server_start(&server, args), 0);
	assert_int_equal(mode_of("."), 0711);
	assert_int_equal(mode_of("door.sock"), 0666);
	assert_int_equal(mode_of("control.sock"), 0600);
	assert_int_equal(process_server_stop(&server), 0);
}

static void a_second_server_refuses_and_the_first_goes_on(void **state)
{
	struct process_server second;

	(void)state;
	assert_int_equal(process_server_start(&server, small), 0);
	assert_int_equal(open_client(server.dir), 0);
	second = server;
	assert_int_equal(process_server_start(&second, small), -ECHILD);
	assert_int_equal(second.pid, 1);
	assert_true(process_log_has(&second, "another server is running in"));
	assert_int_equal(kvb_put(client, "k", 1, "v", 1), 0);
	assert_int_equal(process_server_stop(&server), 0);
}

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void a_file_in_a_sockets_place_is_kept(void **state)
{
	static const char *const names[] = {"door.sock", "control.sock"};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(names); i++) {
		char path[128], *text;
		snprintf(path, sizeof(path), "%s/%s", server.dir, names[i]);
		write_file(path, "precious");
		assert_int_equal(process_server_start(&server, small), -ECHILD);
		assert_int_equal(server.pid, 1);
		assert_true(process_log_has(&server, "exists and is not a socket"));
		text = process_read_file(path);
		assert_string_equal(text, "precious");
		free(text);
		unlink(path);
	}
}

static void a_directory_with_other_files_keeps_its_mode(void **state)
{
	char path[128];

	(void)state;
	snprintf(path, sizeof(path), "%s/notes.txt", server.dir);
	write_file(path, "precious");
	assert_int_equal(chmod(server.dir, 0755), 0);
	assert_int_equal(process_server_start(&server, small), -ECHILD);
	assert_true(process_log_has(&server, "holds other files"));
	assert_int_equal(mode_of("."), 0755);
}

static int run_with_dir(const char *dir)
{
	struct process_options options = PROCESS_OPTIONS_INIT;
	const char *const argv[] = {KVB_TEST_SERVER, "--dir", dir, "--pool", "1MiB", NULL};

	snprintf(server.log, sizeof(server.log), "%s.log", server.dir);
	options.errors = server.log;
	return process_run(argv, &options);
}

static void a_path_of_108_bytes_is_a_clear_error(void **state)
{
	char dir[200];

	(void)state;
	/* dir + "/control.sock" has 108 bytes. */
	memset(dir, 'd', sizeof(dir));
	memcpy(dir, server.dir, strlen(server.dir));
	dir[strlen(server.dir)] = '/';
	dir[108 - strlen("/control.sock")] = '\0';
	assert_int_equal(run_with_dir(dir), 1);
	assert_true(process_log_has(&server, "has 108 bytes, and a socket's path at most 107"));
	assert_int_equal(process_count_entries(server.dir), 0);
}

static void bad_usage_names_the_option(void **state)
{
	static const char *const wrong[][2] = {
		{"--pool=12x", "--pool: \"12x\" is not a size"},
		{"--pool=1KiB", "pool_bytes (--pool) must be at least"},
		{"--fragment=3MiB", "staging_bytes (--staging) must be from two fragments"},
		{"--ring-entries=100", "ring_entries (--ring-entries) must be a power of two"},
		{"--workers=0", "--workers: \"0\" is not a number from 1 to 256"},
		{"--populate=maybe", "--populate: \"maybe\" is not require or try"},
		{"--trust-uid=root", "--trust-uid: \"root\" is not a numeric id"},
		{"extra", "\"extra\": kvbelld takes options only"},
	};

	(void)state;
	snprintf(server.log, sizeof(server.log), "%s.log", server.dir);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(wrong); i++) {
		struct process_options options = PROCESS_OPTIONS_INIT;
		const char *const argv[] = {
			KVB_TEST_SERVER, "--dir", server.dir, "--staging=4MiB", wrong[i][0], NULL};
		options.errors = server.log;
		assert_int_equal(process_run(argv, &options), 2);
		assert_true(process_log_has(&server, wrong[i][1]));
	}
}

static void a_pool_beyond_the_host_is_a_clear_error(void **state)
{
	static const char *const args[] = {"--pool", "4000TiB", NULL};

	(void)state;
	assert_int_equal(process_server_start(&server, args), -ECHILD);
	assert_int_equal(server.pid, 1);
	assert_true(process_log_has(&server, "does not fit this host"));
}

static void too_few_open_files_are_a_clear_error(void **state)
{
	struct process_options options = PROCESS_OPTIONS_INIT;
	const char *const argv[] = {"sh", "-c", "ulimit -n 512; exec \"$0\" \"$@\"",
		KVB_TEST_SERVER, "--dir", server.dir, "--pool", "1MiB", NULL};

	(void)state;
	snprintf(server.log, sizeof(server.log), "%s.log", server.dir);
	options.errors = server.log;
	assert_int_equal(process_run(argv, &options), 1);
	assert_true(process_log_has(
		&server, "256 sessions may need 1728 open files and the limit is 512"));
	assert_int_equal(process_count_entries(server.dir), 0);
}

/* ------------------------------------------------------------------------------------------- leaving */

#define BIG (192 * KVB_MIB)

struct put {
	uint8_t *data;
	int result;
};

static void *put_big(void *arg)
{
	struct put *put = arg;

	put->result = kvb_put(client, "big", 3, put->data, BIG);
	return NULL;
}

static int see_pending(void *user, const struct kvb_stat *stat)
{
	if (strcmp(stat->name, "store.pending") == 0)
		*(uint64_t *)user = stat->value;
	return 0;
}

static int see_ready(void *user, const struct kvb_stat *stat)
{
	if (strcmp(stat->name, "pool.ready_bytes") == 0)
		*(uint64_t *)user = stat->value;
	return 0;
}

static bool has_room(const void *arg)
{
	uint64_t ready = 0;

	(void)arg;
	return kvb_stats(client, see_ready, &ready) == 0 && ready >= 2 * BIG;
}

static bool put_is_open(const void *arg)
{
	uint64_t pending = 0;

	(void)arg;
	return kvb_stats(client, see_pending, &pending) == 0 && pending == 1;
}

static void assert_log_order(const char *log, const char *earlier, const char *later)
{
	const char *last = NULL, *first = strstr(log, later);

	for (const char *at = strstr(log, earlier); at; at = strstr(at + 1, earlier))
		last = at;
	assert_non_null(last);
	assert_non_null(first);
	assert_true(last < first);
}

static void a_drain_lets_a_big_put_finish_and_leaves_in_order(void **state)
{
	static const char *const args[] = {"--pool", "400MiB", "--drain-timeout", "60s", NULL};
	struct put put = {.data = malloc(BIG), .result = 1};
	pthread_t thread;
	char *log;

	(void)state;
	assert_int_equal(process_server_start(&server, args), 0);
	assert_int_equal(open_client(server.dir), 0);
	kvb_pattern_fill(put.data, BIG, 1);
	assert_true(embedded_wait(has_room, NULL));
	assert_int_equal(kvb_thread_start(&thread, "put", put_big, &put), 0);
	assert_true(embedded_wait(put_is_open, NULL));
	assert_int_equal(process_server_stop(&server), 0);
	pthread_join(thread, NULL);
	assert_int_equal(put.result, 0);
	free(put.data);
	log = process_read_file(server.log);
	assert_log_order(log, "step: ring", "step: close");
	assert_log_order(log, "step: close", "step: unlink");
	free(log);
	assert_int_equal(process_count_entries(server.dir), 1);
}

/* The thread named so, of a process. */
static pid_t find_thread(pid_t pid, const char *name)
{
	char path[64], line[64];

	for (pid_t tid = pid; tid < pid + 200; tid++) {
		char *comm;
		snprintf(path, sizeof(path), "/proc/%d/task/%d/comm", pid, tid);
		snprintf(line, sizeof(line), "%s\n", name);
		comm = process_read_file(path);
		bool found = strcmp(comm, line) == 0;
		free(comm);
		if (found)
			return tid;
	}
	return -1;
}

static void stop_thread(pid_t tid)
{
	int status;

	assert_int_equal(ptrace(PTRACE_SEIZE, tid, NULL, NULL), 0);
	assert_int_equal(ptrace(PTRACE_INTERRUPT, tid, NULL, NULL), 0);
	assert_int_equal(waitpid(tid, &status, __WALL), tid);
}

static void a_stuck_worker_is_named_and_left_behind(void **state)
{
	static const char *const args[] = {
		"--pool", "32MiB", "--drain-timeout", "300ms", "--workers", "2", NULL};
	uint64_t start_ns;
	pid_t tid;
	int status;

	(void)state;
	assert_int_equal(process_server_start(&server, args), 0);
	assert_int_equal(open_client(server.dir), 0);
	assert_int_equal(kvb_ping(client), 0);
	tid = find_thread(server.pid, "kvb-worker-1");
	assert_true(tid > 0);
	stop_thread(tid);
	start_ns = kvb_now_ns();
	kill(server.pid, SIGTERM);
	/* The stopped thread's end has to be taken first: this process traces it. */
	assert_int_equal(waitpid(tid, &status, __WALL), tid);
	assert_int_equal(process_wait(server.pid, 10000), 3);
	assert_true(kvb_now_ns() - start_ns < (300 + 500 + 1000) * TEST_SLOWER * KVB_NS_PER_MS);
	/* It may have been stopped inside the session, or outside with the session's event. */
	assert_true(process_log_has(&server, "kvb-worker-1 is stuck") ||
		process_log_has(&server, "held by kvb-worker-1"));
	assert_true(process_log_has(&server, "work is stuck at the drain deadline"));
	assert_false(process_log_has(&server, "step: close kick"));
}

static bool is_draining(const void *arg)
{
	(void)arg;
	return process_log_has(&server, "draining, for");
}

static void a_second_signal_leaves_at_once(void **state)
{
	static const char *const args[] = {
		"--pool", "32MiB", "--drain-timeout", "600s", "--workers", "2", NULL};
	pid_t tid;
	int status;

	(void)state;
	assert_int_equal(process_server_start(&server, args), 0);
	assert_int_equal(open_client(server.dir), 0);
	tid = find_thread(server.pid, "kvb-worker-0");
	assert_true(tid > 0);
	stop_thread(tid);
	kill(server.pid, SIGTERM);
	assert_true(embedded_wait(is_draining, NULL));
	kill(server.pid, SIGINT);
	assert_int_equal(waitpid(tid, &status, __WALL), tid);
	assert_int_equal(process_wait(server.pid, 10000), 4);
	/* The stale sockets are no obstacle. */
	assert_int_equal(process_server_start(&server, small), 0);
	assert_int_equal(process_server_stop(&server), 0);
}

static void signals_at_any_time_end_in_order(void **state)
{
	static const char *const argv_tail[] = {"--pool", "64MiB", "--log-level", "error", NULL};

	(void)state;
	for (unsigned i = 0; i < 60; i++) {
		struct process_options options = PROCESS_OPTIONS_INIT;
		const char *const argv[] = {KVB_TEST_SERVER, "--dir", server.dir, argv_tail[0],
			argv_tail[1], argv_tail[2], argv_tail[3], NULL};
		pid_t pid = process_start(argv, &options);
		int status;
		assert_true(pid > 0);
		/* Spread over start, service and the time before the signals are blocked. */
		usleep(i * 1000 * TEST_SLOWER);
		kill(pid, SIGTERM);
		status = process_wait(pid, 30000);
		if (status != 0 && status != 1)
			assert_int_equal(status, 128 + SIGTERM);
		assert_int_equal(mode_of("door.sock"), 0);
	}
}

/* Written from docs/protocol.md alone: Python, ZMQ, MessagePack, mmap, the portable carrier. */
static void a_client_without_libkvbell_works(void **state)
{
	struct process_options options = PROCESS_OPTIONS_INIT;
	const char *const argv[] = {KVB_TEST_PYTHON,
		KVB_TEST_SOURCE_DIR "/tests/python/portable_client.py", server.dir, NULL};
	char output[96];
	char *text;

	(void)state;
	assert_int_equal(process_server_start(&server, small), 0);
	snprintf(output, sizeof(output), "%s/output", server.dir);
	options.output = output;
	assert_int_equal(process_run(argv, &options), 0);
	text = process_read_file(output);
	assert_non_null(strstr(text, "all 22 checks passed\n"));
	free(text);
	assert_int_equal(process_server_stop(&server), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_client_without_libkvbell_works, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_server_leaves_its_lock_file_only, setup, teardown),
		cmocka_unit_test_setup_teardown(modes_open_up_for_others, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_second_server_refuses_and_the_first_goes_on, setup, teardown),
		cmocka_unit_test_setup_teardown(a_file_in_a_sockets_place_is_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_directory_with_other_files_keeps_its_mode, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_path_of_108_bytes_is_a_clear_error, setup, teardown),
		cmocka_unit_test_setup_teardown(bad_usage_names_the_option, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_pool_beyond_the_host_is_a_clear_error, setup, teardown),
		cmocka_unit_test_setup_teardown(
			too_few_open_files_are_a_clear_error, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_drain_lets_a_big_put_finish_and_leaves_in_order, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_stuck_worker_is_named_and_left_behind, setup, teardown),
		cmocka_unit_test_setup_teardown(a_second_signal_leaves_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(signals_at_any_time_end_in_order, setup, teardown),
	};

	return cmocka_run_group_tests_name("programs", tests, NULL, NULL) ? 1 : 0;
}
