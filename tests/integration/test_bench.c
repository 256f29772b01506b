/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench.c - kvbell-bench runs, and what it writes for programs has the form that they rely on.
 *
 * The figures themselves are not judged here: that is for people, on a machine that is quiet.
 */
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
#include <jansson.h>

#include "shm/numa.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/process.h"

static char dir[64], output[96], errors[96];

static int setup(void **state)
{
	(void)state;
	if (process_dir_new(dir, sizeof(dir)) < 0)
		return -1;
	snprintf(output, sizeof(output), "%s/output", dir);
	snprintf(errors, sizeof(errors), "%s/errors", dir);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	process_dir_remove(dir);
	return 0;
}

static int run(const char *const argv[])
{
	struct process_options options = PROCESS_OPTIONS_INIT;

	options.output = output;
	options.errors = errors;
	return process_run(argv, &options);
}

static void assert_errors_have(const char *text)
{
	char *all = process_read_file(errors);

	assert_non_null(strstr(all, text));
	free(all);
}

static void assert_no_errors(void)
{
	char *all = process_read_file(errors);

	assert_string_equal(all, "");
	free(all);
}

static json_t *find(json_t *results, const char *name)
{
	size_t i;
	json_t *result;

	json_array_foreach(results, i,
		result) if (strcmp(json_string_value(json_object_get(result, "name")), name) ==
		0) return result;
	return NULL;
}

static double number_of(json_t *object, const char *name)
{
	json_t *number = json_object_get(object, name);

	assert_true(json_is_number(number));
	return json_number_value(number);
}

static void check_result(json_t *results, const char *name, const char *unit, const char *limit)
{
	json_t *result = find(results, name), *beside = limit ? find(results, limit) : NULL;

	assert_non_null(result);
	assert_string_equal(json_string_value(json_object_get(result, "unit")), unit);
	assert_true(number_of(result, "n") > 0);
	assert_true(number_of(result, "p50") > 0);
	assert_true(number_of(result, "p99") > 0 && number_of(result, "p999") > 0);
	assert_true(number_of(result, "max") > 0);
	if (!limit)
		return;
	assert_non_null(beside);
	assert_true(number_of(result, "limit") == number_of(beside, "p50"));
	assert_true(number_of(result, "ratio") ==
		number_of(result, "p50") / number_of(result, "limit"));
}

/* A figure of its own: it may be 0, and stands beside nothing. */
static void check_server_cpu(json_t *result)
{
	assert_non_null(result);
	assert_string_equal(json_string_value(json_object_get(result, "unit")), "%");
	assert_true(number_of(result, "n") >= 1000000);
	assert_true(number_of(result, "p50") >= 0);
	assert_true(number_of(result, "p50") == number_of(result, "max"));
}

static void check_reads(json_t *results, const char *objects)
{
	char name[48];

	check_result(results, "dram.load", "ns", NULL);
	snprintf(name, sizeof(name), "exists.local.%s", objects);
	check_result(results, name, "ns", "dram.load");
	snprintf(name, sizeof(name), "acquire.local.%s", objects);
	check_result(results, name, "ns", "dram.load");
	snprintf(name, sizeof(name), "prefix.local.1000.%s", objects);
	check_result(results, name, "ns/key", "dram.load");
	check_server_cpu(find(results, "acquire.local.server_cpu"));
}

static void check_copies(json_t *results)
{
	static const char *const names[] = {"get.32MiB.copy.warm", "get.32MiB.copy.first",
		"get.32MiB.copy.warm.1mover", "get.32MiB.copy.warm.2movers"};
	double plain = number_of(find(results, "memcpy.32MiB.beside"), "p50");
	double streaming = number_of(find(results, "ntcopy.32MiB.beside"), "p50");

	for (size_t i = 0; i < KVB_ARRAY_SIZE(names); i++)
		check_result(results, names[i], "GB/s",
			streaming > plain ? "ntcopy.32MiB.beside" : "memcpy.32MiB.beside");
}

static void every_figure_stands_beside_its_limit(void **state)
{
	static const char *const argv[] = {KVB_TEST_BENCH, "--json", "--seconds", "0.05", "--sizes",
		"4KiB,1MiB", "--objects", "1000", NULL};
	static const char *const limits[] = {"memcpy_GBps", "ntcopy_GBps", "eventfd_rtt_us",
		"cacheline_rtt_us", "zmq_rtt_us", "dram_load_ns"};
	json_t *all, *results;

	(void)state;
	assert_int_equal(run(argv), 0);
	all = json_load_file(output, 0, NULL);
	assert_non_null(all);
	assert_int_equal(json_integer_value(json_object_get(all, "schema")), 1);
	assert_string_equal(json_string_value(json_object_get(all, "suite")), "all");
	assert_true(json_is_object(json_object_get(all, "machine")));
	for (size_t i = 0; i < KVB_ARRAY_SIZE(limits); i++)
		assert_true(number_of(json_object_get(all, "limits"), limits[i]) > 0);
	results = json_object_get(all, "results");
	check_result(results, "memcpy.32MiB", "GB/s", NULL);
	check_result(results, "ping.ring.block", "us", "eventfd.rtt");
	check_result(results, "ping.ring.idle", "us", "eventfd.rtt");
	check_result(results, "ping.ring.spin", "us", "cacheline.rtt");
	check_result(results, "ping.zmq", "us", "zmq.rtt");
	check_result(results, "put.4KiB.ring", "us", "eventfd.rtt");
	check_result(results, "get.4KiB.ring.idle", "us", "eventfd.rtt");
	check_result(results, "put.4KiB.ring.spin", "us", "cacheline.rtt");
	check_result(results, "put.1MiB.ring", "GB/s", "memcpy.1MiB");
	check_result(results, "put.1MiB.ring.idle", "GB/s", "memcpy.1MiB");
	check_result(results, "get.1MiB.ring.idle", "GB/s", "memcpy.1MiB");
	check_result(results, "get.1MiB.ring.spin", "GB/s", "memcpy.1MiB");
	check_result(results, "put.1MiB.zmq", "GB/s", "memcpy.1MiB");
	check_result(results, "put.1MiB.batch", "GB/s", "memcpy.1MiB");
	check_result(results, "put.1MiB.batch.2movers", "GB/s", "memcpy.1MiB");
	check_reads(results, "1e3");
	check_copies(results);
	assert_int_equal(json_array_size(json_object_get(all, "left_out")), 0);
	json_decref(all);
}

static void check_fairness(json_t *results, const char *suffix)
{
	char name[48];
	json_t *result;
	double idle_p99;

	snprintf(name, sizeof(name), "fairness.put.64MiB%s", suffix);
	check_result(results, name, "GB/s", NULL);
	snprintf(name, sizeof(name), "fairness.get.4KiB.idle%s", suffix);
	check_result(results, name, "us", NULL);
	result = find(results, name);
	idle_p99 = number_of(result, "p99");
	snprintf(name, sizeof(name), "fairness.get.4KiB.flooded%s", suffix);
	check_result(results, name, "us", NULL);
	result = find(results, name);
	assert_string_equal(json_string_value(json_object_get(result, "judged")), "p99");
	/* By two copies of a fragment. */
	assert_true(number_of(result, "limit") > idle_p99);
	assert_true(number_of(result, "ratio") ==
		number_of(result, "p99") / number_of(result, "limit"));
}

static void a_flood_is_measured_beside_an_idle_neighbour(void **state)
{
	static const char *const argv[] = {
		KVB_TEST_BENCH, "fairness", "--json", "--seconds", "0.05", "--sizes", "4KiB", NULL};
	json_t *all, *results;

	(void)state;
	assert_int_equal(run(argv), 0);
	assert_no_errors();
	all = json_load_file(output, 0, NULL);
	assert_non_null(all);
	results = json_object_get(all, "results");
	check_result(results, "memcpy.512KiB", "GB/s", NULL);
	check_fairness(results, "");
	check_fairness(results, ".2workers");
	check_fairness(results, ".local");
	json_decref(all);
}

static uint64_t memory_available(void)
{
	char *all = process_read_file("/proc/meminfo");
	const char *line = strstr(all, "MemAvailable:");
	uint64_t kib = line ? strtoull(line + strlen("MemAvailable:"), NULL, 10) : 0;

	free(all);
	return kib * KVB_KIB;
}

static void check_left_out(json_t *all, const char *name)
{
	json_t *left_out = find(json_object_get(all, "left_out"), name);

	assert_null(find(json_object_get(all, "results"), name));
	assert_non_null(left_out);
	assert_non_null(strstr(json_string_value(json_object_get(left_out, "why")), "of memory"));
}

static void what_there_is_no_memory_for_is_named(void **state)
{
	static const char *const argv[] = {KVB_TEST_BENCH, "reads", "--json", "--seconds", "0.02",
		"--sizes", "4KiB", "--objects", "10000000", NULL};
	json_t *all;

	(void)state;
	/* Ten million objects take 48 GiB and some. */
	if (memory_available() > 48 * KVB_GIB)
		skip();
	assert_int_equal(run(argv), 0);
	assert_no_errors();
	all = json_load_file(output, 0, NULL);
	assert_non_null(all);
	check_left_out(all, "exists.local.1e7");
	check_left_out(all, "acquire.local.1e7");
	check_left_out(all, "prefix.local.1000.1e7");
	check_left_out(all, "acquire.local.server_cpu");
	check_copies(json_object_get(all, "results"));
	json_decref(all);
}

static void bad_usage_names_what_is_wrong(void **state)
{
	static const char *const wrong[][2] = {
		{"--server-cpus=1-", "\"1-\" is not a list of CPUs"},
		{"--client-cpus=", "\"\" is not a list of CPUs"},
		{"--numa-node=-1", "--numa-node: \"-1\" is not a number"},
		{"--sizes=4KiB,,1MiB", "--sizes: \"4KiB,,1MiB\" is not a list of sizes"},
		{"--sizes=1GiB", "--sizes: \"1GiB\" is not a list of sizes"},
		{"--objects=999", "--objects: \"999\" is not a list of numbers from 1000"},
		{"--seconds=0", "--seconds: \"0\" is not a number"},
		{"--seconds=1s", "--seconds: \"1s\" is not a number"},
		{"--seconds=nan", "--seconds: \"nan\" is not a number"},
		{"--seconds=", "--seconds: \"\" is not a number"},
		{"--spin-us=no", "--spin-us: \"no\" is not a number"},
		{"throughput",
			"\"throughput\": give one of limits, latency, bandwidth, reads, fairness"},
	};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(wrong); i++) {
		const char *const argv[] = {KVB_TEST_BENCH, wrong[i][0], NULL};
		assert_int_equal(run(argv), 2);
		assert_errors_have(wrong[i][1]);
	}
}

static void without_a_terminal_the_table_is_all_there_is(void **state)
{
	static const char *const argv[] = {
		KVB_TEST_BENCH, "latency", "--seconds", "0.01", "--sizes", "4KiB", NULL};
	char *table;

	(void)state;
	assert_int_equal(run(argv), 0);
	assert_no_errors();
	table = process_read_file(output);
	assert_non_null(strstr(table, "\nping.ring.block "));
	assert_null(strpbrk(table, "\r\033"));
	free(table);
}

/* CPUs and a node that are not there: nothing is measured somewhere else instead. */
static void a_placement_that_cannot_be_is_an_error(void **state)
{
	static const char *const wrong[][2] = {
		{"--client-cpus=1000", "pinning the client"},
		/* The kernel would take the one that is there. */
		{"--client-cpus=0,1000",
			"the client does not run on the CPUs asked for: 0,1000, but 0"},
		{"--server-cpus=0,1000",
			"the limit's server does not run on the CPUs asked for: 0,1000, but 0"},
		{"--server-cpus=1000", "a limit's server cannot be pinned"},
		{"--numa-node=63", "memory cannot be bound to node 63"},
	};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(wrong); i++) {
		const char *const argv[] = {KVB_TEST_BENCH, "limits", wrong[i][0], NULL};
		assert_int_equal(run(argv), 1);
		assert_errors_have(wrong[i][1]);
	}
}

/* The line of /proc/PID/status that tells where a process may run, to be freed. */
static char *allowed_cpus(pid_t pid)
{
	char path[64], *status, *line;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	status = process_read_file(path);
	line = strstr(status, "Cpus_allowed_list:");
	if (line && strchr(line, '\n'))
		*strchr(line, '\n') = '\0';
	line = strdup(line ? line : "");
	free(status);
	return line;
}

/* Its first child, if it has one, may run where this process may. */
static bool child_is_unpinned(const void *arg)
{
	pid_t pid = *(const pid_t *)arg;
	char path[64], *children, *own = allowed_cpus(getpid()), *its;
	bool same;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
	children = process_read_file(path);
	its = allowed_cpus((pid_t)strtol(children, NULL, 10));
	same = *children && strcmp(own, its) == 0;
	free(children);
	free(own);
	free(its);
	return same;
}

/* Only the client is pinned; and who wants to leave may do so while a limit is measured. */
static void a_pinned_client_pins_no_server(void **state)
{
	const char *const argv[] = {
		KVB_TEST_BENCH, "limits", "--seconds", "600", "--client-cpus", "0", NULL};
	struct process_options options = PROCESS_OPTIONS_INIT;
	pid_t pid;

	(void)state;
	options.output = output;
	options.errors = errors;
	pid = process_start(argv, &options);
	assert_true(pid > 0);
	assert_true(embedded_wait(child_is_unpinned, &pid));
	assert_int_equal(kill(pid, SIGTERM), 0);
	assert_int_equal(process_wait(pid, 20000), 1);
	assert_errors_have("eventfd.rtt: Interrupted system call");
}

static void a_placement_is_kept_and_reported(void **state)
{
	static const char *const argv[] = {KVB_TEST_BENCH, "latency", "--json", "--seconds", "0.02",
		"--sizes", "4KiB", "--server-cpus", "0", "--client-cpus", "0", "--numa-node", "0",
		NULL};
	struct kvb_numa numa;
	json_t *all, *machine;

	(void)state;
	kvb_numa_probe(&numa);
	if (!numa.available) {
		assert_int_equal(run(argv), 1);
		assert_errors_have("memory cannot be bound to node 0");
		return;
	}
	assert_int_equal(run(argv), 0);
	all = json_load_file(output, 0, NULL);
	machine = json_object_get(all, "machine");
	assert_string_equal(json_string_value(json_object_get(machine, "server_cpus")), "0");
	assert_string_equal(json_string_value(json_object_get(machine, "client_cpus")), "0");
	assert_true(number_of(machine, "numa_node") == 0);
	json_decref(all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			every_figure_stands_beside_its_limit, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_flood_is_measured_beside_an_idle_neighbour, setup, teardown),
		cmocka_unit_test_setup_teardown(
			what_there_is_no_memory_for_is_named, setup, teardown),
		cmocka_unit_test_setup_teardown(bad_usage_names_what_is_wrong, setup, teardown),
		cmocka_unit_test_setup_teardown(
			without_a_terminal_the_table_is_all_there_is, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_placement_that_cannot_be_is_an_error, setup, teardown),
		cmocka_unit_test_setup_teardown(a_pinned_client_pins_no_server, setup, teardown),
		cmocka_unit_test_setup_teardown(a_placement_is_kept_and_reported, setup, teardown),
	};

	return cmocka_run_group_tests_name("bench", tests, NULL, NULL) ? 1 : 0;
}
