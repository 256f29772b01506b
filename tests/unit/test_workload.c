/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_workload.c - traces, good and bad; generated conversations; the payload's pattern.
 *
 * Single thread. Owns one temporary file at a time. The figures of generated workloads come from a
 * model written apart from workload.c, so a change of the generator shows here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "bench/pattern.h"
#include "bench/workload.h"
#include "shm/util.h"

/* ------------------------------------------------------------------------------------------- traces */

/* Reads `text` as a trace. */
static int read_text(
	const char *text, size_t max_requests, struct kvb_workload *ret_workload, size_t *ret_line)
{
	char path[] = "/tmp/kvbell-test-XXXXXX";
	int fd = mkstemp(path);
	ssize_t n;
	int r;

	assert_true(fd >= 0);
	n = write(fd, text, strlen(text));
	close(fd);
	r = n == (ssize_t)strlen(text)
		? kvb_workload_read(path, max_requests, ret_workload, ret_line)
		: -EIO;
	unlink(path);
	return r;
}

static void assert_request(const struct kvb_workload *workload, size_t request,
	const uint64_t *chunks, size_t n_chunks)
{
	size_t count = SIZE_MAX;
	const uint64_t *found = kvb_workload_request(workload, request, &count);

	assert_int_equal(count, n_chunks);
	for (size_t i = 0; i < count; i++)
		assert_int_equal(found[i], chunks[i]);
}

static void test_trace(void **state)
{
	static const uint64_t first[] = {0, 1, 2}, last[] = {0, 9007199254740993};
	struct kvb_workload workload;
	size_t line = 77;

	(void)state;
	/* An empty line, a request for nothing, a number beyond a double, no newline at the end. */
	assert_int_equal(read_text("{\"timestamp\": 0, \"hash_ids\": [0, 1, 2]}\n"
				   "\n"
				   "{\"hash_ids\": []}\r\n"
				   "{\"hash_ids\": [0, 9007199254740993], \"output_length\": 3}",
				 100, &workload, &line),
		0);
	assert_int_equal(line, 77);
	assert_int_equal(workload.n_requests, 3);
	assert_request(&workload, 0, first, 3);
	assert_request(&workload, 1, NULL, 0);
	assert_request(&workload, 2, last, 2);
	kvb_workload_free(&workload);
	assert_int_equal(workload.n_requests, 0);
}

static void test_trace_stops_at_max(void **state)
{
	static const uint64_t second[] = {6};
	struct kvb_workload workload;
	size_t line;

	(void)state;
	/* What comes after is not even looked at. */
	assert_int_equal(read_text("{\"hash_ids\": [5]}\n{\"hash_ids\": [6]}\nrubbish\n", 2,
				 &workload, &line),
		0);
	assert_int_equal(workload.n_requests, 2);
	assert_request(&workload, 1, second, 1);
	kvb_workload_free(&workload);
}

static void test_trace_without_requests(void **state)
{
	struct kvb_workload workload;
	size_t line;

	(void)state;
	assert_int_equal(read_text("", 10, &workload, &line), 0);
	assert_int_equal(workload.n_requests, 0);
	kvb_workload_free(&workload);
}

static void test_trace_of_empty_requests(void **state)
{
	struct kvb_workload workload;
	size_t line, count = 77;

	(void)state;
	assert_int_equal(
		read_text("{\"hash_ids\": []}\n{\"hash_ids\": []}", 10, &workload, &line), 0);
	assert_int_equal(workload.n_requests, 2);
	assert_null(kvb_workload_request(&workload, 1, &count));
	assert_int_equal(count, 0);
	kvb_workload_free(&workload);
}

static void test_trace_with_a_bad_line(void **state)
{
	static const char *const bad[] = {
		"rubbish",
		"{\"hash_ids\": [1, 2",
		"{\"hash_ids\": [1]} more",
		"[1, 2]",
		"{\"hash\": [1]}",
		"{\"hash_ids\": 1}",
		"{\"hash_ids\": null}",
		"{\"hash_ids\": [1, -2]}",
		"{\"hash_ids\": [1, 2.0]}",
		"{\"hash_ids\": [1, \"2\"]}",
		"{\"hash_ids\": [99999999999999999999]}",
	};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(bad); i++) {
		struct kvb_workload workload = {.n_requests = 123};
		size_t line = 0;
		char text[256];
		/* Empty lines count: it is the line that an editor shows. */
		snprintf(text, sizeof(text), "{\"hash_ids\": [1]}\n\n%s\n{\"hash_ids\": [1]}\n",
			bad[i]);
		assert_int_equal(read_text(text, 10, &workload, &line), -EBADMSG);
		assert_int_equal(line, 3);
		assert_int_equal(workload.n_requests, 123);
	}
}

static void test_trace_that_cannot_be_read(void **state)
{
	struct kvb_workload workload;
	size_t line;

	(void)state;
	assert_int_equal(kvb_workload_read("/nonexistent/trace", 1, &workload, &line), -ENOENT);
	assert_int_equal(kvb_workload_read("/tmp", 1, &workload, &line), -EISDIR);
}

/* ---------------------------------------------------------------------------------------- generated */

static bool same(const struct kvb_workload *a, const struct kvb_workload *b)
{
	return a->n_requests == b->n_requests &&
		memcmp(a->ends, b->ends, a->n_requests * sizeof(*a->ends)) == 0 &&
		memcmp(a->chunks, b->chunks, a->ends[a->n_requests - 1] * sizeof(*a->chunks)) == 0;
}

static void test_first_requests(void **state)
{
	static const uint64_t first[] = {1000500, 1000501, 1000502, 1000503, 1000504, 1000505,
		1000506, 1000507, 1000508, 1000509, 1000510, 1000511, 1000512, 1000513, 1000514,
		2000000, 2000001, 2000002, 2000003};
	static const uint64_t second[] = {
		1000000, 1000001, 1000002, 1000003, 2000048, 2000049, 2000050};
	struct kvb_workload workload;

	(void)state;
	assert_int_equal(kvb_workload_generate(1, 2, &workload), 0);
	assert_int_equal(workload.n_requests, 2);
	assert_request(&workload, 0, first, KVB_ARRAY_SIZE(first));
	assert_request(&workload, 1, second, KVB_ARRAY_SIZE(second));
	kvb_workload_free(&workload);
}

static void test_seeds(void **state)
{
	struct kvb_workload one, again, other, more;

	(void)state;
	assert_int_equal(kvb_workload_generate(1, 100, &one), 0);
	assert_int_equal(kvb_workload_generate(1, 100, &again), 0);
	assert_int_equal(kvb_workload_generate(2, 100, &other), 0);
	assert_int_equal(kvb_workload_generate(1, 200, &more), 0);
	assert_true(same(&one, &again));
	assert_false(same(&one, &other));
	/* More requests go on where fewer end. */
	more.n_requests = 100;
	assert_true(same(&one, &more));
	kvb_workload_free(&one);
	kvb_workload_free(&again);
	kvb_workload_free(&other);
	kvb_workload_free(&more);
}

#define NUMBERS 3000000u /* above every chunk of 600 requests */

/* What a cache that forgets nothing would do with it. */
static void count_hits(const struct kvb_workload *workload, size_t *ret_found, size_t *ret_distinct)
{
	bool *seen = calloc(NUMBERS, sizeof(*seen));
	size_t found = 0, distinct = 0;

	assert_non_null(seen);
	for (size_t r = 0; r < workload->n_requests; r++) {
		size_t count, known = 0;
		const uint64_t *chunks = kvb_workload_request(workload, r, &count);
		while (known < count && seen[chunks[known]])
			known++;
		found += known;
		for (size_t i = 0; i < count; i++) {
			distinct += !seen[chunks[i]];
			seen[chunks[i]] = true;
		}
	}
	free(seen);
	*ret_found = found;
	*ret_distinct = distinct;
}

/* The demo's default: 8454 of 10391 are 81 % at best, and 1937 MiB do not fit its pool. */
static void test_hit_rate(void **state)
{
	struct kvb_workload workload;
	size_t found, distinct;

	(void)state;
	assert_int_equal(kvb_workload_generate(1, 600, &workload), 0);
	count_hits(&workload, &found, &distinct);
	assert_int_equal(workload.ends[599], 10391);
	assert_int_equal(found, 8454);
	assert_int_equal(distinct, 1937);
	kvb_workload_free(&workload);
}

/* Equal numbers mean equal prefixes: a chunk always has the same one before it. */
static void test_chunks_stand_for_prefixes(void **state)
{
	uint64_t *before = calloc(NUMBERS, sizeof(*before));
	struct kvb_workload workload;

	(void)state;
	assert_non_null(before);
	assert_int_equal(kvb_workload_generate(5, 600, &workload), 0);
	for (size_t r = 0; r < workload.n_requests; r++) {
		size_t count;
		const uint64_t *chunks = kvb_workload_request(&workload, r, &count);
		assert_true(count > 0);
		for (size_t i = 0; i < count; i++) {
			uint64_t is = i == 0 ? 1 : chunks[i - 1];
			assert_true(chunks[i] < NUMBERS);
			if (before[chunks[i]] == 0)
				before[chunks[i]] = is;
			assert_int_equal(before[chunks[i]], is);
		}
	}
	kvb_workload_free(&workload);
	free(before);
}

/* ------------------------------------------------------------------------------------------ pattern */

static void test_pattern(void **state)
{
	uint8_t data[21];
	uint64_t word;

	(void)state;
	memset(data, 0xaa, sizeof(data));
	kvb_pattern_fill(data, 20, 7);
	memcpy(&word, data, sizeof(word));
	assert_int_equal(word, UINT64_C(0x7aeb14a17076347b));
	memcpy(&word, data + 8, sizeof(word));
	assert_int_equal(word, UINT64_C(0x80ce66e6fc9dfe15));
	assert_int_equal(data[20], 0xaa);
	assert_true(kvb_pattern_check(data, 20, 7));
	assert_false(kvb_pattern_check(data, 20, 8));
	assert_true(kvb_pattern_check(data, 0, 8));
	/* No bit of any byte is overlooked, the odd ones at the end included. */
	for (size_t bit = 0; bit < 20 * 8; bit++) {
		data[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_false(kvb_pattern_check(data, 20, 7));
		data[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_trace),
		cmocka_unit_test(test_trace_stops_at_max),
		cmocka_unit_test(test_trace_without_requests),
		cmocka_unit_test(test_trace_of_empty_requests),
		cmocka_unit_test(test_trace_with_a_bad_line),
		cmocka_unit_test(test_trace_that_cannot_be_read),
		cmocka_unit_test(test_first_requests),
		cmocka_unit_test(test_seeds),
		cmocka_unit_test(test_hit_rate),
		cmocka_unit_test(test_chunks_stand_for_prefixes),
		cmocka_unit_test(test_pattern),
	};

	return cmocka_run_group_tests_name("workload", tests, NULL, NULL) ? 1 : 0;
}
