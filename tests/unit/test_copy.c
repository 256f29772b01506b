/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_copy.c - copies past the cache: every byte of the range, no byte beside it, whatever the
 * alignment. One thread. That the stores are ordered before a publication no run on one machine can
 * show; tests/lint.sh looks for the fence in what the compiler made.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "shm/copy.h"
#include "shm/util.h"

/* What decides how it is copied: the total, not the length. */
#define SMALL  (64 * KVB_KIB)
#define LARGE  (64 * KVB_MIB)
#define GUARD  64u
#define MAX    1216u /* with the guards a multiple of 64: aligned_alloc takes nothing else */
#define BEFORE 0xc3

static uint8_t *from, *to;

static uint8_t pattern(size_t i)
{
	return (uint8_t)(i * 131 + (i >> 8) * 29 + 7);
}

static int setup(void **state)
{
	(void)state;
	from = aligned_alloc(64, MAX + 2 * GUARD);
	to = aligned_alloc(64, MAX + 2 * GUARD + 64);
	if (!from || !to)
		return -1;
	for (size_t i = 0; i < MAX + 2 * GUARD; i++)
		from[i] = pattern(i);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(from);
	free(to);
	return 0;
}

static void check(size_t to_at, size_t from_at, size_t n, uint64_t total)
{
	uint8_t *target = to + GUARD + to_at;

	memset(to, BEFORE, MAX + 2 * GUARD + 64);
	kvb_copy_cold(target, from + from_at, n, total);
	assert_memory_equal(target, from + from_at, n);
	for (uint8_t *byte = to; byte < target; byte++)
		assert_int_equal(*byte, BEFORE);
	for (uint8_t *byte = target + n; byte < to + MAX + 2 * GUARD + 64; byte++)
		assert_int_equal(*byte, BEFORE);
}

static void every_length_at_every_alignment(void **state)
{
	static const uint64_t totals[] = {SMALL, LARGE};

	(void)state;
	for (size_t t = 0; t < KVB_ARRAY_SIZE(totals); t++)
		for (size_t at = 0; at < 33; at++)
			for (size_t n = 0; n <= MAX; n += n < 300 ? 1 : 97)
				check(at, (at * 7 + n) % GUARD, n, totals[t]);
}

static void large_ranges(void **state)
{
	size_t n = 5 * KVB_MIB + 77;
	uint8_t *source = malloc(n), *target = malloc(n + 2);

	(void)state;
	assert_true(source && target);
	for (size_t i = 0; i < n; i++)
		source[i] = pattern(i);
	target[0] = target[n + 1] = BEFORE;
	kvb_copy_cold(target + 1, source, n, n);
	assert_memory_equal(target + 1, source, n);
	assert_int_equal(target[0], BEFORE);
	assert_int_equal(target[n + 1], BEFORE);
	free(source);
	free(target);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_length_at_every_alignment),
		cmocka_unit_test(large_ranges),
	};

	return cmocka_run_group_tests_name("copy", tests, setup, teardown) ? 1 : 0;
}
