/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_syscalls.c - when both sides spin, requests and answers pass without the kernel; reads without
 * asking need neither the kernel nor the server.
 *
 * Server and client run under an strace each; this program runs itself as the client, which marks
 * where its rounds begin and end with writes that fail. The server's calls are told apart by time.
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvbell/kvbell.h"
#include "shm/util.h"
#include "tests/process.h"

#define SPIN_US   1000000u
#define SPIN_TEXT "1000000"
/* Who shares the machine may preempt a side, and the clock goes on; the best try counts. */
#define TRIES 40u
#define KEYS  4u
#define LARGE KVB_MIB
/* Timers run out, of the watchdog every few milliseconds. */
#define CALLS_MAX        100u
#define CALLS_PER_SECOND 1000u
#define MARK_FD          (-4711)
/* Of a lookup, a lease and a prefix: so many, among so many keys. */
#define READS      1000000u
#define READ_KEYS  64u
#define READ_BYTES 4096u
#define READ_TRIES 5u
/* What the server does by the clock while nobody asks it anything: twice its calls in the same time,
 * and these, are still that. */
#define IDLE_NS    (300 * KVB_NS_PER_MS)
#define IDLE_CALLS 20u

static int op_ping(struct kvb_client *client, const char *key, uint8_t *data, size_t len)
{
	(void)key;
	(void)data;
	(void)len;
	return kvb_ping(client);
}

static int op_put(struct kvb_client *client, const char *key, uint8_t *data, size_t len)
{
	return kvb_put(client, key, strlen(key), data, len);
}

static int op_get(struct kvb_client *client, const char *key, uint8_t *data, size_t len)
{
	return kvb_get(client, key, strlen(key), data, len, NULL);
}

static const struct round {
	const char *name;
	int (*fn)(struct kvb_client *client, const char *key, uint8_t *data, size_t len);
	size_t len;
	unsigned warm, count;
} rounds[] = {
	{"ping", op_ping, 0, 1000, 10000},
	{"put 4 KiB", op_put, 4096, 1000, 10000},
	{"get 4 KiB", op_get, 4096, 1000, 10000},
	{"put 1 MiB", op_put, LARGE, 20, 25},
	{"get 1 MiB", op_get, LARGE, 20, 25},
	/* In several fragments. */
	{"put 8 MiB", op_put, 8 * LARGE, 20, 25},
	{"get 8 MiB", op_get, 8 * LARGE, 20, 25},
};

/* ------------------------------------------------------------------------------- without asking the server */

/* Nothing, by a clock that is no call. */
static int read_nothing(struct kvb_client *client, const struct kvb_key *keys)
{
	uint64_t end_ns = kvb_now_ns() + IDLE_NS;

	(void)client;
	(void)keys;
	while (kvb_now_ns() < end_ns)
		;
	return 0;
}

static int read_acquire(struct kvb_client *client, const struct kvb_key *keys)
{
	int r = 0;

	for (unsigned i = 0; i < READS && r == 0; i++) {
		const struct kvb_key *key = &keys[i % READ_KEYS];
		struct kvb_lease lease;
		r = kvb_acquire(client, key->data, key->len, &lease);
		if (r == 0)
			kvb_release(&lease);
	}
	return r;
}

static int read_exists(struct kvb_client *client, const struct kvb_key *keys)
{
	int r = 0;

	for (unsigned i = 0; i < READS && r == 0; i++) {
		const struct kvb_key *key = &keys[i % READ_KEYS];
		r = kvb_exists(client, key->data, key->len, NULL);
	}
	return r;
}

static int read_prefix(struct kvb_client *client, const struct kvb_key *keys)
{
	static struct kvb_lease leases[READ_KEYS];
	int r = 0;

	for (unsigned i = 0; i < READS / READ_KEYS && r == 0; i++) {
		size_t n = 0;
		r = kvb_prefix(client, keys, READ_KEYS, leases, &n);
		if (r == 0 && n != READ_KEYS)
			r = -ENOENT;
		while (n > 0)
			kvb_release(&leases[--n]);
	}
	return r;
}

static int read_get(struct kvb_client *client, const struct kvb_key *keys)
{
	static uint8_t buffer[READ_BYTES];
	int r = 0;

	for (unsigned i = 0; i < READS && r == 0; i++) {
		const struct kvb_key *key = &keys[i % READ_KEYS];
		r = kvb_get(client, key->data, key->len, buffer, sizeof(buffer), NULL);
	}
	return r;
}

/* The first is what the others are compared with. */
static const struct reading {
	const char *name;
	int (*fn)(struct kvb_client *client, const struct kvb_key *keys);
} readings[] = {
	{"nothing", read_nothing},
	{"acquire", read_acquire},
	{"exists", read_exists},
	{"prefix", read_prefix},
	{"get 4 KiB without asking", read_get},
};
#define READ_SPANS (READ_TRIES * KVB_ARRAY_SIZE(readings))

/* ------------------------------------------------------------------------------------------ the client */

static void mark(void)
{
	/* Through no wrapper of a sanitizer that would look at the descriptor. */
	(void)syscall(SYS_write, MARK_FD, NULL, 0);
}

static int repeat(
	struct kvb_client *client, const struct round *round, uint8_t *data, unsigned count)
{
	int r = 0;

	for (unsigned i = 0; i < count && r == 0; i++) {
		char key[32];
		snprintf(key, sizeof(key), "key-%zu-%u", round->len, i % KEYS);
		r = round->fn(client, key, data, round->len);
	}
	return r;
}

static int ask(struct kvb_client *client)
{
	static uint8_t data[8 * LARGE];
	int r = 0;

	for (size_t i = 0; i < KVB_ARRAY_SIZE(rounds) && r == 0; i++) {
		r = repeat(client, &rounds[i], data, rounds[i].warm);
		for (unsigned try = 0; try < TRIES && r == 0; try++) {
			mark();
			r = repeat(client, &rounds[i], data, rounds[i].count);
			mark();
		}
	}
	return r;
}

static int read_without_asking(struct kvb_client *client)
{
	static char text[READ_KEYS][32];
	static uint8_t data[READ_BYTES];
	struct kvb_key keys[READ_KEYS];
	uint64_t spun_ns;
	int r = 0;

	for (unsigned i = 0; i < READ_KEYS && r == 0; i++) {
		int n = snprintf(text[i], sizeof(text[i]), "read-%u", i);
		keys[i] = (struct kvb_key){text[i], (size_t)n};
		r = kvb_put(client, text[i], (size_t)n, data, sizeof(data));
	}
	/* Until the server has stopped looking for the next put. */
	spun_ns = kvb_now_ns() + SPIN_US * KVB_NS_PER_US + KVB_NS_PER_S / 2;
	while (r == 0 && kvb_now_ns() < spun_ns)
		r = read_acquire(client, keys);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(readings) && r == 0; i++)
		for (unsigned try = 0; try < READ_TRIES && r == 0; try++) {
			mark();
			r = readings[i].fn(client, keys);
			mark();
		}
	return r;
}

static int with_client(const char *dir, uint32_t flags, int (*fn)(struct kvb_client *client))
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client;
	int r;

	options.dir = dir;
	options.spin_us = SPIN_US;
	options.flags = flags;
	r = kvb_open(&options, &client);
	if (r < 0)
		return r;
	r = fn(client);
	kvb_close(client);
	return r;
}

static int be_client(const char *dir)
{
	if (with_client(dir, KVB_OPEN_RING_ONLY, ask) < 0)
		return 1;
	/* Its internal thread does not map the pool meanwhile: those would be calls. */
	return with_client(dir, KVB_OPEN_NO_POPULATE, read_without_asking) < 0 ? 2 : 0;
}

/* -------------------------------------------------------------------------------------------- the test */

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

static int run_client_traced(void)
{
	struct process_options options = PROCESS_OPTIONS_INIT;
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	const char *const argv[] = {
		"strace", "-f", "-ttt", "-o", client_trace, self, server.dir, NULL};

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

struct span {
	double begin, end;
	unsigned client_calls, server_calls;
	unsigned looks; /* of workers at the wait set, by the clock and not by the request */
};

/* "TID SECONDS CALL(..."; an epoll_wait counts at its end, where one can tell what it was. False:
 * a line of another kind. */
static bool parse_call(const char *line, double *ret_at, const char **ret_call)
{
	int used = 0;

	if (sscanf(line, "%*d %lf %n", ret_at, &used) != 1 || used == 0)
		return false;
	*ret_call = line + used;
	if (strncmp(*ret_call, "---", 3) == 0 || strncmp(*ret_call, "+++", 3) == 0)
		return false;
	if (strstr(*ret_call, "epoll_wait"))
		return !strstr(*ret_call, "<unfinished");
	return strncmp(*ret_call, "<...", 4) != 0;
}

/* An epoll_wait that neither waits nor finds anything. */
static bool is_look(const char *call)
{
	return strstr(call, "epoll_wait") && strstr(call, ", 0) = 0\n");
}

/* Finds the spans between marks, and counts the client's calls in them. */
static unsigned read_client(struct span *spans, unsigned max)
{
	char line[512], needle[32];
	unsigned marks = 0;
	FILE *file = fopen(client_trace, "re");

	assert_non_null(file);
	snprintf(needle, sizeof(needle), "write(%d,", MARK_FD);
	while (fgets(line, sizeof(line), file)) {
		const char *call;
		double at;
		if (!parse_call(line, &at, &call))
			continue;
		if (strncmp(call, needle, strlen(needle)) == 0) {
			assert_true(marks < 2 * max);
			*(marks % 2 ? &spans[marks / 2].end : &spans[marks / 2].begin) = at;
			marks++;
		} else if (marks % 2) {
			spans[marks / 2].client_calls++;
		}
	}
	fclose(file);
	return marks;
}

static unsigned read_server(struct span *spans, unsigned n)
{
	char line[512];
	unsigned lines = 0;
	FILE *file = fopen(server_trace, "re");

	assert_non_null(file);
	while (fgets(line, sizeof(line), file)) {
		const char *call;
		double at;
		if (!parse_call(line, &at, &call))
			continue;
		lines++;
		for (unsigned i = 0; i < n; i++)
			if (at > spans[i].begin && at < spans[i].end)
				*(is_look(call) ? &spans[i].looks : &spans[i].server_calls) += 1;
	}
	fclose(file);
	return lines;
}

/* The two that spin must not share a CPU, or each waits for the other's time slice. What this
 * process starts from now on runs on the n-th of its CPUs. */
static bool move_to(const cpu_set_t *all, unsigned n)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, all) || n-- > 0)
			continue;
		CPU_SET(cpu, &one);
		return sched_setaffinity(0, sizeof(one), &one) == 0;
	}
	return false;
}

static void serve_traced(unsigned workers)
{
	char workers_text[16];
	const char *const prefix[] = {"strace", "-f", "-ttt", "-o", server_trace, NULL};
	const char *const args[] = {
		"--pool", "128MiB", "--workers", workers_text, "--spin-us", SPIN_TEXT, NULL};
	cpu_set_t all;

	snprintf(workers_text, sizeof(workers_text), "%u", workers);
	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	if (!move_to(&all, 1)) {
		print_message("needs two CPUs\n");
		skip();
	}
	server.prefix = prefix;
	assert_int_equal(process_server_start(&server, args), 0);
	assert_true(move_to(&all, 0));
	assert_int_equal(run_client_traced(), 0);
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
	kill(traced_pid(), SIGTERM);
	assert_int_equal(process_wait(server.pid, 60000 * TEST_SLOWER), 0);
}

static unsigned calls_max(const struct round *round, const struct span *span)
{
	return (unsigned)kvb_min_u64(CALLS_MAX, round->count / 4) +
		(unsigned)((span->end - span->begin) * CALLS_PER_SECOND);
}

static unsigned all_calls(const struct span *span)
{
	return span->client_calls + span->server_calls + span->looks;
}

/* Of one round's tries. */
static const struct span *best_of(const struct span *spans, unsigned n)
{
	const struct span *best = spans;

	for (unsigned i = 1; i < n; i++)
		if (all_calls(&spans[i]) < all_calls(best))
			best = &spans[i];
	return best;
}

/* watched: another worker sleeps on the wait set, so that who serves need not look there. */
static void check_round(const struct round *round, const struct span *span, bool watched)
{
	print_message("%s: %u times, %u calls by the client, %u by the server and %u looks at the "
		      "wait set, %.3f s\n",
		round->name, round->count, span->client_calls, span->server_calls, span->looks,
		span->end - span->begin);
	assert_true(span->client_calls + span->server_calls < calls_max(round, span));
	if (watched)
		assert_true(all_calls(span) < calls_max(round, span));
	/* A large operation takes about as long as may pass between two looks. */
	if (round->len < LARGE)
		assert_true(span->looks < round->count / 2);
}

/* Of all tries: what never happens need not be looked for in the best of them. */
static void check_reading(const struct reading *reading, const struct span *spans, double idle)
{
	const struct span *best = best_of(spans, READ_TRIES);

	for (unsigned i = 0; i < READ_TRIES; i++)
		assert_int_equal(spans[i].client_calls, 0);
	print_message("%s: %u calls by the server in %.3f s\n", reading->name,
		best->server_calls + best->looks, best->end - best->begin);
	assert_true(best->server_calls + best->looks <=
		2 * idle * (best->end - best->begin) + IDLE_CALLS);
}

static void check_readings(const struct span *spans)
{
	const struct span *nothing = best_of(spans, READ_TRIES);
	double idle = (nothing->server_calls + nothing->looks) / (nothing->end - nothing->begin);

	/* By the clock, and not one per anything. */
	assert_true(idle < CALLS_PER_SECOND);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(readings); i++)
		check_reading(&readings[i], &spans[i * READ_TRIES], idle);
}

static void count_calls(unsigned workers)
{
	static struct span spans[TRIES * KVB_ARRAY_SIZE(rounds) + READ_SPANS];
	unsigned n = KVB_ARRAY_SIZE(spans);

	memset(spans, 0, sizeof(spans));
	serve_traced(workers);
	assert_int_equal(read_client(spans, n), 2 * n);
	assert_true(read_server(spans, n) > 50);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(rounds); i++)
		check_round(&rounds[i], best_of(&spans[i * TRIES], TRIES), workers > 1);
	check_readings(&spans[n - READ_SPANS]);
}

static void neither_spinning_sides_nor_local_reads_make_calls(void **state)
{
	(void)state;
	count_calls(1);
}

/* One of which is asleep, and has no reason to wake. */
static void nor_with_two_workers(void **state)
{
	(void)state;
	count_calls(2);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			neither_spinning_sides_nor_local_reads_make_calls, setup, teardown),
		cmocka_unit_test_setup_teardown(nor_with_two_workers, setup, teardown),
	};

	if (argc > 1)
		return be_client(argv[1]);
	return cmocka_run_group_tests_name("syscalls", tests, NULL, NULL) ? 1 : 0;
}
