/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_install.c - what is installed is enough: programs outside the tree build with it and run.
 *
 * The group installs the build under test into a fresh directory and moves it, since nothing in it
 * may know where it is. Compilers and their likes run under sh; the main thread drives and asserts.
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

#include "shm/util.h"
#include "tests/process.h"

#define STEP_MS    (120000u * TEST_SLOWER)
#define SCRIPT_MAX 2048

/* What each test finds: the directory with `prefix`, the installation, and all that is built.
 * Scripts run there and have $prefix, $source (the tree), $cc, $cxx and $flags (of the
 * sanitizers). */
static char top[64];
static char output[96];

static struct process_server server;

/* Runs a script to its end; its output is in the file named so. True: it succeeded; else the
 * output is printed. */
__attribute__((format(printf, 1, 2))) static bool run_script(const char *format, ...)
{
	struct process_options options = PROCESS_OPTIONS_INIT;
	char script[SCRIPT_MAX];
	const char *const argv[] = {"sh", "-euc", script, NULL};
	va_list args;
	pid_t pid;
	int n, r;

	n = snprintf(script, sizeof(script), "cd %s; exec 2>&1; ", top);
	va_start(args, format);
	n += vsnprintf(script + n, sizeof(script) - (size_t)n, format, args);
	va_end(args);
	if (n >= (int)sizeof(script))
		return false;
	options.output = output;
	pid = process_start(argv, &options);
	if (pid < 0)
		return false;
	r = process_wait(pid, STEP_MS);
	if (r == -ETIMEDOUT)
		kill(pid, SIGKILL);
	if (r != 0) {
		char *text = process_read_file(output);
		print_error("%s\nended with %d:\n%s\n", script, r, text);
		free(text);
	}
	return r == 0;
}

static bool output_has(const char *text)
{
	char *all = process_read_file(output);
	bool found = all && strstr(all, text);

	free(all);
	return found;
}

static bool output_is(const char *text)
{
	char *all = process_read_file(output);
	bool same = all && strcmp(all, text) == 0;

	if (!same)
		print_error("expected \"%s\", got \"%s\"\n", text, all ? all : "");
	free(all);
	return same;
}

static int install(void **state)
{
	char prefix[96], packages[128];

	(void)state;
	if (process_dir_new(top, sizeof(top)) < 0)
		return -1;
	snprintf(output, sizeof(output), "%s/output", top);
	snprintf(prefix, sizeof(prefix), "%s/prefix", top);
	snprintf(packages, sizeof(packages), "%s/" KVB_TEST_LIBDIR "/pkgconfig", prefix);
	setenv("PKG_CONFIG_PATH", packages, 1);
	setenv("prefix", prefix, 1);
	setenv("source", KVB_TEST_SOURCE_DIR, 1);
	setenv("cc", KVB_TEST_CC, 1);
	setenv("cxx", KVB_TEST_CXX, 1);
	setenv("flags", KVB_TEST_CFLAGS, 1);
	return run_script(KVB_TEST_CMAKE " --install " KVB_TEST_BUILD_DIR " --prefix staged; "
					 "mv staged prefix")
		? 0
		: -1;
}

static int away_with_it(void **state)
{
	(void)state;
	process_dir_remove(top);
	return 0;
}

static int start_server(void **state)
{
	static const char *const small[] = {"--pool", "32MiB", NULL};

	(void)state;
	memset(&server, 0, sizeof(server));
	return process_server_start(&server, small);
}

static int stop_server(void **state)
{
	int r = process_server_stop(&server);

	(void)state;
	process_dir_remove(server.dir);
	unlink(server.log);
	return r;
}

/* --------------------------------------------------------------------------------------- consumers */

enum linkage {
	SHARED,
	STATIC,
};
static const char *const linkage_names[] = {"shared", "static"};

struct consumer {
	const char *name, *source;
	const char *compiler;
	const char *library; /* as for -l */
};
static const struct consumer clients[] = {
	{"consumer_c", "consumer.c", "$cc -std=c11", "kvbell"},
	{"consumer_cpp", "consumer.cpp", "$cxx -std=c++17", "kvbell"},
};
static const struct consumer embedder = {
	"server_consumer", "server_consumer.c", "$cc -std=c11", "kvbell-server"};

static void build_with_pkg_config(const struct consumer *consumer, enum linkage linkage)
{
	/* The linker prefers the shared library; the archive is had by its file name. */
	assert_true(run_script("libs=$(pkg-config %s --cflags --libs %s); "
			       "[ %s = shared ] || libs=$(echo \"$libs\" | "
			       "sed -E 's/-l(%s)( |$)/-l:lib\\1.a\\2/'); "
			       "%s -Wall -Wextra -pedantic -Werror $flags -o %s_%s "
			       "$source/tests/install/%s $libs",
		linkage == STATIC ? "--static" : "", consumer->library, linkage_names[linkage],
		consumer->library, consumer->compiler, consumer->name, linkage_names[linkage],
		consumer->source));
}

static bool configure(const char *project, const char *languages)
{
	return run_script(
		"for language in %s; do "
		"set -- \"$@\" \"-DCMAKE_${language}_FLAGS=$flags\"; done; " KVB_TEST_CMAKE
		" -G '" KVB_TEST_GENERATOR "' -S $source/%s -B $(basename %s).build "
		"-DCMAKE_PREFIX_PATH=$prefix -DCMAKE_C_COMPILER=$cc "
		"-DCMAKE_CXX_COMPILER=$cxx \"$@\"",
		languages, project, project);
}

static void build_with_cmake(const struct consumer *consumer, enum linkage linkage)
{
	assert_true(run_script(KVB_TEST_CMAKE " --build install.build --target %s_%s; "
					      "cp install.build/%s_%s .",
		consumer->name, linkage_names[linkage], consumer->name, linkage_names[linkage]));
}

/* It needs the library by the name that changes with the major version, or not at all. */
static void check_needed(const struct consumer *consumer, enum linkage linkage)
{
	char soname[64];

	snprintf(soname, sizeof(soname), "[lib%s.so.%d]", consumer->library, KVB_TEST_SOVERSION);
	assert_true(run_script("readelf -d %s_%s", consumer->name, linkage_names[linkage]));
	assert_true(output_has("(NEEDED)"));
	assert_int_equal(output_has(soname), linkage == SHARED);
	assert_int_equal(output_has("[libkvbell"), linkage == SHARED);
}

static void run_program(const char *program, const char *dir)
{
	assert_true(run_script(
		"LD_LIBRARY_PATH=$prefix/" KVB_TEST_LIBDIR " exec %s/%s %s", top, program, dir));
}

static void check_runs(const struct consumer *consumer, enum linkage linkage, const char *dir)
{
	char program[64];

	snprintf(program, sizeof(program), "%s_%s", consumer->name, linkage_names[linkage]);
	run_program(program, dir);
	assert_true(output_is("ok\n"));
}

static void programs_link_by_pkg_config(void **state)
{
	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(clients); i++) {
		for (enum linkage linkage = SHARED; linkage <= STATIC; linkage++) {
			build_with_pkg_config(&clients[i], linkage);
			check_needed(&clients[i], linkage);
			check_runs(&clients[i], linkage, server.dir);
		}
	}
}

static void programs_link_by_cmake(void **state)
{
	(void)state;
	assert_true(configure("tests/install", "C CXX"));
	for (size_t i = 0; i < KVB_ARRAY_SIZE(clients); i++) {
		for (enum linkage linkage = SHARED; linkage <= STATIC; linkage++) {
			build_with_cmake(&clients[i], linkage);
			check_needed(&clients[i], linkage);
			check_runs(&clients[i], linkage, server.dir);
		}
	}
}

static void check_embeds(enum linkage linkage)
{
	char dir[64];

	check_needed(&embedder, linkage);
	assert_int_equal(process_dir_new(dir, sizeof(dir)), 0);
	check_runs(&embedder, linkage, dir);
	process_dir_remove(dir);
}

static void servers_are_embedded_by_pkg_config(void **state)
{
	(void)state;
	for (enum linkage linkage = SHARED; linkage <= STATIC; linkage++) {
		build_with_pkg_config(&embedder, linkage);
		check_embeds(linkage);
	}
}

static void servers_are_embedded_by_cmake(void **state)
{
	(void)state;
	assert_true(configure("tests/install", "C CXX"));
	for (enum linkage linkage = SHARED; linkage <= STATIC; linkage++) {
		build_with_cmake(&embedder, linkage);
		check_embeds(linkage);
	}
}

static void the_examples_are_a_project_of_their_own(void **state)
{
	(void)state;
	assert_true(configure("examples", "C"));
	assert_true(run_script(KVB_TEST_CMAKE " --build examples.build"));
	run_program("examples.build/put_get", server.dir);
	assert_true(output_has("put and got 1048576 bytes"));
	run_program("examples.build/batch", server.dir);
	assert_true(output_has("load: 64 chunks, 0 failed"));
	run_program("examples.build/view", server.dir);
	assert_true(output_has("reads: local"));
	assert_true(output_has("held: first"));
	/* One is the server of the other, and stops in order. */
	assert_true(run_script("export LD_LIBRARY_PATH=$prefix/" KVB_TEST_LIBDIR "; "
			       "mkdir -m 700 embedded; cd examples.build; mkfifo ready; "
			       "./embed ../embedded >ready 2>log & "
			       "read -r line <ready; test \"$line\" = ready; "
			       "./call ../embedded; kill -TERM $!; wait $!"));
	assert_true(output_is("echo: a5 68 65 6c 6c 6f\n"
			      "nap: c0\n"
			      "nap: the body must be a number from 0 to 127\n"
			      "count: cd 00 01\n"
			      "count: cd 00 02\n"));
}

/* ----------------------------------------------------------------------------------------- exports */

/* The functions that a header marks KVB_API, those that the version script names, and those that
 * the shared library exports under the script's node: the same, and nothing else. A difference
 * is printed by diff. */
static void check_exports(const char *header, const char *map, const char *library)
{
	assert_true(run_script(
		"export LC_ALL=C; grep ^KVB_API $source/%s | sed -E 's/\\(.*//; s/.*[ *]//' | sort >declared; "
		"sed -nE '/^global:/,/^local:/s/^\t(.*);/\\1/p' $source/%s | sort >listed; "
		"node=$(sed -nE 's/^(\\w+) \\{$/\\1/p' $source/%s); "
		"nm -D --defined-only $prefix/" KVB_TEST_LIBDIR
		"/lib%s.so | awk -v node=$node '$NF != node {print $NF}' | sort >exported; "
		"test -s declared; diff -u declared listed; "
		"sed s/$/@@$node/ declared | sort | diff -u - exported",
		header, map, map, library));
}

static void the_client_library_exports_what_its_header_declares(void **state)
{
	(void)state;
	check_exports("include/kvbell/kvbell.h", "client/kvbell.map", "kvbell");
}

static void the_server_library_exports_what_its_header_declares(void **state)
{
	(void)state;
	check_exports("include/kvbell/server.h", "server/kvbell-server.map", "kvbell-server");
}

static void the_libraries_do_not_need_each_other(void **state)
{
	static const char *const libraries[] = {"kvbell", "kvbell-server"};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(libraries); i++) {
		char soname[64];
		snprintf(soname, sizeof(soname), "soname: [lib%s.so.%d]", libraries[i],
			KVB_TEST_SOVERSION);
		assert_true(run_script(
			"readelf -d $prefix/" KVB_TEST_LIBDIR "/lib%s.so", libraries[i]));
		assert_true(output_has(soname));
		assert_false(output_has("Shared library: [libkvbell"));
		/* Nor does it look for libraries where it was built. */
		assert_false(output_has("PATH)"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			programs_link_by_pkg_config, start_server, stop_server),
		cmocka_unit_test_setup_teardown(programs_link_by_cmake, start_server, stop_server),
		cmocka_unit_test(servers_are_embedded_by_pkg_config),
		cmocka_unit_test(servers_are_embedded_by_cmake),
		cmocka_unit_test_setup_teardown(
			the_examples_are_a_project_of_their_own, start_server, stop_server),
		cmocka_unit_test(the_client_library_exports_what_its_header_declares),
		cmocka_unit_test(the_server_library_exports_what_its_header_declares),
		cmocka_unit_test(the_libraries_do_not_need_each_other),
	};

	return cmocka_run_group_tests_name("install", tests, install, away_with_it) ? 1 : 0;
}
