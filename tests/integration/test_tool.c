/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tool.c - kvbell, the command line tool: bytes, texts and exit status.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/pattern.h"
#include "shm/util.h"
#include "tests/process.h"

static struct process_server server;
static char in_path[96], out_path[96], err_path[96];

static int group_setup(void **state)
{
	static const char *const args[] = {"--pool", "256MiB", NULL};

	(void)state;
	if (process_server_start(&server, args) < 0)
		return -1;
	snprintf(in_path, sizeof(in_path), "%s.in", server.dir);
	snprintf(out_path, sizeof(out_path), "%s.out", server.dir);
	snprintf(err_path, sizeof(err_path), "%s.err", server.dir);
	return 0;
}

/* Runs "kvbell --dir D ARGS..." with stdin from in_path when `input`; stdout and stderr go to
 * files. */
static int tool_with(const char *dir, bool input, const char *const args[])
{
	struct process_options options = PROCESS_OPTIONS_INIT;
	const char *argv[32] = {KVB_TEST_TOOL, "--dir", dir};
	unsigned n = 3;

	while (*args && n < 31)
		argv[n++] = *args++;
	options.input = input ? in_path : NULL;
	options.output = out_path;
	options.errors = err_path;
	unlink(err_path);
	return process_run(argv, &options);
}
#define TOOL(...)       tool_with(server.dir, false, (const char *const[]){__VA_ARGS__, NULL})
#define TOOL_STDIN(...) tool_with(server.dir, true, (const char *const[]){__VA_ARGS__, NULL})

static bool printed(const char *path, const char *text)
{
	char *all = process_read_file(path);
	bool found = strstr(all, text) != NULL;

	if (!found)
		print_message("%s holds: %s\n", path, all);
	free(all);
	return found;
}

static void write_payload(size_t len, uint64_t seed)
{
	uint8_t *data = malloc(len + 1);
	FILE *file = fopen(in_path, "we");

	kvb_pattern_fill(data, len, seed);
	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, len, file), len);
	fclose(file);
	free(data);
}

static void check_payload(const char *path, size_t len, uint64_t seed)
{
	uint8_t *data = malloc(len + 1);
	FILE *file = fopen(path, "re");

	assert_non_null(file);
	assert_int_equal(fread(data, 1, len + 1, file), len);
	assert_true(kvb_pattern_check(data, len, seed));
	fclose(file);
	free(data);
}

static void round_trip(const char *key, size_t len, uint64_t seed)
{
	char back[128];

	snprintf(back, sizeof(back), "%s.back", server.dir);
	write_payload(len, seed);
	assert_int_equal(TOOL("put", key, in_path), 0);
	assert_int_equal(TOOL("get", key, back), 0);
	check_payload(back, len, seed);
	unlink(back);
	/* And through pipes. */
	assert_int_equal(TOOL_STDIN("put", key, "-"), 0);
	assert_int_equal(TOOL("get", key), 0);
	check_payload(out_path, len, seed);
}

static void every_size_comes_back(void **state)
{
	static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 512 * 1024 - 1, 512 * 1024 + 1,
		8 * 1024 * 1024 + 1, 32 * 1024 * 1024, 192 * 1024 * 1024};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(sizes); i++)
		round_trip("size", sizes[i], i + 1);
	assert_int_equal(TOOL("rm", "size"), 0);
}

static void every_key_works(void **state)
{
	static const size_t lengths[] = {1, 200, 201, 1024};
	char key[1026];

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(lengths); i++) {
		memset(key, 'k', lengths[i]);
		key[lengths[i]] = '\0';
		round_trip(key, 1000, i);
		assert_int_equal(TOOL("rm", key), 0);
	}
	memset(key, 'k', 1025);
	key[1025] = '\0';
	assert_int_equal(TOOL("put", key, in_path), 1);
	assert_true(printed(err_path, "longer than 1024 bytes"));
	assert_int_equal(TOOL("put", "", in_path), 1);
	assert_true(printed(err_path, "the key is empty"));
	/* Binary, zero bytes too. */
	write_payload(500, 5);
	assert_int_equal(TOOL("--hex", "put", "00ff0a1b", in_path), 0);
	assert_int_equal(TOOL("--hex", "get", "00FF0A1B"), 0);
	check_payload(out_path, 500, 5);
	assert_int_equal(TOOL("ls"), 0);
	assert_true(printed(out_path, "\\x00\\xff\\x0a\\x1b"));
	assert_int_equal(TOOL("--json", "ls"), 0);
	assert_true(printed(out_path, "\"key_hex\": \"00ff0a1b\""));
	assert_int_equal(TOOL("--hex", "rm", "00ff0a1b"), 0);
	assert_int_equal(TOOL("--hex", "rm", "00f"), 2);
	assert_true(printed(err_path, "not a key in hexadecimal"));
}

static void errors_have_texts_and_status(void **state)
{
	FILE *file;

	(void)state;
	assert_int_equal(TOOL("get", "missing"), 1);
	assert_true(printed(err_path, "\"missing\": there is no object under this key"));
	assert_int_equal(TOOL("rm", "missing"), 1);
	assert_int_equal(TOOL("exists", "missing"), 1);
	assert_int_equal(TOOL("put", "k", "/nonexistent"), 1);
	assert_true(printed(err_path, "cannot read \"/nonexistent\""));
	/* A file that is larger than the pool, without its blocks. */
	file = fopen(in_path, "we");
	assert_non_null(file);
	assert_int_equal(ftruncate(fileno(file), 257 * 1024 * 1024), 0);
	fclose(file);
	assert_int_equal(TOOL("put", "k", in_path), 1);
	assert_true(printed(err_path, "\"k\": the payload is larger than the server's pool"));
	write_payload(100, 1);
	assert_int_equal(TOOL("put", "k", in_path), 0);
	assert_int_equal(TOOL("get", "k", "/nonexistent/x"), 1);
	assert_true(printed(err_path, "cannot write \"/nonexistent/x\""));
	assert_int_equal(TOOL("rm", "k"), 0);
	assert_int_equal(tool_with("/nonexistent", false, (const char *const[]){"ls", NULL}), 69);
	assert_true(printed(err_path, "no server is listening"));
}

static void usage_is_status_2(void **state)
{
	(void)state;
	assert_int_equal(TOOL("get"), 2);
	assert_int_equal(TOOL("frobnicate"), 2);
	assert_int_equal(TOOL("--frobnicate"), 2);
	assert_int_equal(TOOL("ls", "extra"), 2);
	assert_int_equal(TOOL("--timeout=soon", "ls"), 2);
	assert_int_equal(TOOL("ping", "--wait=never"), 2);
	assert_int_equal(TOOL("--help"), 0);
	assert_true(printed(out_path, "69 no server"));
	assert_int_equal(TOOL("--version"), 0);
	assert_true(printed(out_path, "kvbell 0.1.0\n"));
}

static void a_full_disk_is_a_failure(void **state)
{
	struct process_options options = PROCESS_OPTIONS_INIT;
	const char *const get[] = {KVB_TEST_TOOL, "--dir", server.dir, "get", "k", NULL};
	const char *const stat[] = {KVB_TEST_TOOL, "--dir", server.dir, "stat", NULL};

	(void)state;
	write_payload(100000, 1);
	assert_int_equal(TOOL("put", "k", in_path), 0);
	options.output = "/dev/full";
	options.errors = err_path;
	assert_int_equal(process_run(get, &options), 1);
	assert_true(printed(err_path, "cannot write \"stdout\": No space left on device"));
	assert_int_equal(process_run(stat, &options), 1);
	assert_int_equal(TOOL("rm", "k"), 0);
}

static void ping_stat_and_json(void **state)
{
	(void)state;
	write_payload(3, 1);
	assert_int_equal(TOOL("ping", "--wait=full", "--count=10"), 0);
	assert_true(printed(out_path, "the server answers through the ring: 10 pings"));
	assert_int_equal(TOOL("ping", "--control"), 0);
	assert_true(printed(out_path, "through the control socket: 1 ping,"));
	assert_int_equal(TOOL("stat"), 0);
	assert_true(printed(out_path, "bells.missed_wakes         0\n"));
	assert_true(printed(out_path, "pool.ready_bytes           268435456 (256 MiB)\n"));
	assert_int_equal(TOOL("--json", "stat", "store.objects"), 0);
	assert_true(printed(out_path, "\"store.objects\": 0"));
	assert_int_equal(TOOL("--json", "put", "j", in_path), 0);
	assert_true(printed(out_path, "\"length\": 3"));
	assert_int_equal(TOOL("exists", "j", "no"), 1);
	assert_true(printed(out_path, "           3  j\n           -  no\n"));
	assert_int_equal(TOOL("--json", "exists", "j"), 0);
	assert_true(printed(out_path, "\"exists\": true"));
	assert_int_equal(TOOL("ls"), 0);
	assert_true(printed(out_path, "           3  j\n"));
	assert_int_equal(TOOL("rm", "j"), 0);
}

static void nothing_is_left(void **state)
{
	(void)state;
	assert_int_equal(process_server_stop(&server), 0);
	assert_int_equal(process_count_entries(server.dir), 1);
	process_dir_remove(server.dir);
	unlink(server.log);
	unlink(in_path);
	unlink(out_path);
	unlink(err_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ping_stat_and_json),
		cmocka_unit_test(every_size_comes_back),
		cmocka_unit_test(every_key_works),
		cmocka_unit_test(errors_have_texts_and_status),
		cmocka_unit_test(usage_is_status_2),
		cmocka_unit_test(a_full_disk_is_a_failure),
		cmocka_unit_test(nothing_is_left),
	};

	return cmocka_run_group_tests_name("tool", tests, group_setup, NULL) ? 1 : 0;
}
