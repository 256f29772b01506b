/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_trace.c - what the kernel sees, by strace: no payload on any socket, bells rung by workers
 * alone.
 *
 * The server runs under one strace; this program runs itself, as a client, under another.
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
#include <unistd.h>

#include <cmocka.h>

#include "bench/pattern.h"
#include "kvbell/kvbell.h"
#include "shm/util.h"
#include "tests/process.h"

#define PAYLOAD (64 * KVB_MIB)
#define PATTERN 64u
#define SEED    4711u

static struct process_server server;
static char server_trace[96], client_trace[96];

static int setup(void **state)
{
	(void)state;
	memset(&server, 0, sizeof(server));
	if (process_dir_new(server.dir, sizeof(server.dir)) < 0)
		return -1;
	snprintf(server_trace, sizeof(server_trace), "%s.server", server.dir);
	snprintf(client_trace, sizeof(client_trace), "%s.client", server.dir);
	/* The leak checker cannot work under strace. */
	return setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
}

static int teardown(void **state)
{
	(void)state;
	process_dir_remove(server.dir);
	unlink(server.log);
	unlink(server_trace);
	unlink(client_trace);
	return 0;
}

/* ------------------------------------------------------------------------------------------ the client */

static void fill(uint8_t *data, size_t len)
{
	uint8_t pattern[PATTERN];

	kvb_pattern_fill(pattern, sizeof(pattern), SEED);
	for (size_t i = 0; i < len; i += PATTERN)
		memcpy(data + i, pattern, PATTERN);
}

static int be_client(const char *dir)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	uint8_t *data = malloc(PAYLOAD), *back = calloc(1, PAYLOAD);
	struct kvb_client *client;
	size_t len = 0;
	int faults;

	options.dir = dir;
	if (!data || !back || kvb_open(&options, &client) < 0)
		return 1;
	fill(data, PAYLOAD);
	faults = kvb_put(client, "traced", 6, data, PAYLOAD) != 0 ? 2 : 0;
	faults |= kvb_get(client, "traced", 6, back, PAYLOAD, &len) != 0 ? 4 : 0;
	faults |= memcmp(data, back, PAYLOAD) != 0 ? 8 : 0;
	faults |= kvb_ping_control(client) != 0 ? 16 : 0;
	kvb_close(client);
	free(data);
	free(back);
	return faults;
}

static int run_client_traced(void)
{
	struct process_options options = PROCESS_OPTIONS_INIT;
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	const char *const argv[] = {"strace", "-f", "-xx", "-yy", "-s", "256", "-o", client_trace,
		self, server.dir, NULL};

	if (n < 0)
		return -errno;
	self[n] = '\0';
	return process_run(argv, &options);
}

/* The traced server's own pid. */
static pid_t traced_pid(void)
{
	char path[64], *children;
	pid_t pid;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", server.pid, server.pid);
	children = process_read_file(path);
	pid = (pid_t)strtol(children, NULL, 10);
	free(children);
	return pid;
}

static void serve_traced(const char *const *prefix)
{
	static const char *const args[] = {"--pool", "256MiB", "--workers", "2", NULL};

	server.prefix = prefix;
	assert_int_equal(process_server_start(&server, args), 0);
	/* The pool grows in the background; the put needs 64 MiB at once, which the first range
	 * has. */
	assert_int_equal(run_client_traced(), 0);
	kill(traced_pid(), SIGTERM);
	assert_int_equal(process_wait(server.pid, 60000 * TEST_SLOWER), 0);
}

/* --------------------------------------------------------------------------------------- the traces */

/* Calls fn for each line of a file. */
static void for_lines(const char *path, void (*fn)(const char *line, void *arg), void *arg)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t size = 0;

	assert_non_null(file);
	while (getline(&line, &size, file) >= 0)
		fn(line, arg);
	free(line);
	fclose(file);
}

struct seen {
	char needle[4 * 16 + 1]; /* 16 bytes of the pattern as strace -xx shows them */
	uint64_t lines, with_pattern, socket_bytes;
};

static void see_line(const char *line, void *arg)
{
	struct seen *seen = arg;
	const char *result = strrchr(line, '=');

	seen->lines++;
	seen->with_pattern += strstr(line, seen->needle) != NULL;
	if (strstr(line, "UNIX") && result &&
		(strstr(line, "send") || strstr(line, "recv") || strstr(line, "read") ||
			strstr(line, "write"))) {
		long long bytes = strtoll(result + 1, NULL, 10);
		seen->socket_bytes += bytes > 0 ? (uint64_t)bytes : 0;
	}
}

static void payload_never_crosses_a_socket(void **state)
{
	const char *const prefix[] = {
		"strace", "-f", "-xx", "-yy", "-s", "256", "-o", server_trace, NULL};
	struct seen seen = {0};
	uint8_t pattern[PATTERN];

	(void)state;
	kvb_pattern_fill(pattern, sizeof(pattern), SEED);
	for (unsigned i = 0; i < 16; i++)
		snprintf(seen.needle + 4 * i, 5, "\\x%02x", pattern[i]);
	serve_traced(prefix);
	for_lines(server_trace, see_line, &seen);
	for_lines(client_trace, see_line, &seen);
	print_message("%llu traced calls, %llu bytes over sockets\n",
		(unsigned long long)seen.lines, (unsigned long long)seen.socket_bytes);
	assert_true(seen.lines > 500);
	assert_int_equal(seen.with_pattern, 0);
	/* HELLO and WELCOME at least, or the traces were not read right. */
	assert_true(seen.socket_bytes > 64 + 256);
	assert_true(seen.socket_bytes < PAYLOAD / 100);
	/* And the needle can be found where there is payload. */
	FILE *file = fopen(client_trace, "ae");
	fprintf(file, "1 write(1, \"%s\", 16) = 16\n", seen.needle);
	fclose(file);
	for_lines(client_trace, see_line, &seen);
	assert_int_equal(seen.with_pattern, 1);
}

#define THREADS 64u

struct rings {
	int bell; /* descriptor number in the server; -1 not yet seen */
	uint64_t by_workers, by_control, by_others;
	struct {
		long tid;
		char name[16];
	} threads[THREADS]; /* as their creator named them */
	unsigned n_threads;
};

/* write(5</proc/1/task/TID/comm>, "NAME", 12) = 12 */
static void learn_name(struct rings *rings, const char *line)
{
	const char *task = strstr(line, "/task/");
	long tid;
	char name[16];

	if (!task || rings->n_threads == THREADS ||
		sscanf(task, "/task/%ld/comm>, \"%15[^\"]", &tid, name) != 2)
		return;
	rings->threads[rings->n_threads].tid = tid;
	snprintf(rings->threads[rings->n_threads++].name, sizeof(name), "%s", name);
}

/* Of the thread whose call the line is. */
static const char *name_of(const struct rings *rings, const char *line)
{
	long tid = strtol(line, NULL, 10);

	for (unsigned i = 0; i < rings->n_threads; i++)
		if (rings->threads[i].tid == tid)
			return rings->threads[i].name;
	return "";
}

/* WELCOME carries session, life, kick, bell. */
static int bell_of(const char *line)
{
	const char *at = strstr(line, "cmsg_data=[");

	for (int i = 0; at && i < 3; i++)
		at = strstr(at + 1, ", ");
	return at ? (int)strtol(at + 2, NULL, 10) : -1;
}

static void see_ring(const char *line, void *arg)
{
	struct rings *rings = arg;
	char call[32];

	learn_name(rings, line);
	if (rings->bell < 0 && strstr(line, "sendmsg(") && strstr(line, "SCM_RIGHTS"))
		rings->bell = bell_of(line);
	if (rings->bell < 0)
		return;
	snprintf(call, sizeof(call), " write(%d<", rings->bell);
	if (!strstr(line, call))
		return;
	if (strncmp(name_of(rings, line), "kvb-worker-", 11) == 0)
		rings->by_workers++;
	else if (strcmp(name_of(rings, line), "kvb-control") == 0)
		rings->by_control++;
	else
		rings->by_others++;
}

static void bells_are_rung_by_workers_and_once_by_control(void **state)
{
	const char *const prefix[] = {
		"strace", "-f", "-yy", "-e", "trace=write,sendmsg,close", "-o", server_trace, NULL};
	struct rings rings = {.bell = -1};

	(void)state;
	serve_traced(prefix);
	for_lines(server_trace, see_ring, &rings);
	print_message("bell %d: %llu rings by workers, %llu by control\n", rings.bell,
		(unsigned long long)rings.by_workers, (unsigned long long)rings.by_control);
	assert_true(rings.bell > 2);
	assert_true(rings.by_workers > 5);
	assert_int_equal(rings.by_control, 1);
	assert_int_equal(rings.by_others, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(payload_never_crosses_a_socket, setup, teardown),
		cmocka_unit_test_setup_teardown(
			bells_are_rung_by_workers_and_once_by_control, setup, teardown),
	};

	if (argc > 1)
		return be_client(argv[1]);
	return cmocka_run_group_tests_name("trace", tests, NULL, NULL) ? 1 : 0;
}
