/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_histogram.c - the steps, the quantiles and the merge of the log-linear histogram.
 *
 * Single thread; one test forks, and only the parent asserts. Every figure is worked out by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/histogram.h"
#include "shm/util.h"

/* The step's end of the only value. */
static uint64_t alone(uint64_t value)
{
	struct kvb_histogram histogram = {0};

	kvb_histogram_add(&histogram, value);
	return kvb_histogram_quantile(&histogram, 1.0);
}

static void test_empty(void **state)
{
	struct kvb_histogram histogram = {0};

	(void)state;
	assert_int_equal(kvb_histogram_quantile(&histogram, 0.0), 0);
	assert_int_equal(kvb_histogram_quantile(&histogram, 0.5), 0);
	assert_int_equal(kvb_histogram_quantile(&histogram, 1.0), 0);
}

static void test_small_values_are_exact(void **state)
{
	(void)state;
	for (uint64_t value = 0; value < 64; value++)
		assert_int_equal(alone(value), value);
}

static void test_steps(void **state)
{
	static const struct {
		uint64_t value, end;
	} cases[] = {
		{64, 65},
		{65, 65},
		{66, 67},
		{127, 127},
		{128, 131},
		{1000, 1007},
		{1008, 1023},
		{1024, 1055},
		{1000000, 1015807},
		{UINT64_C(1) << 63, (UINT64_C(33) << 58) - 1},
		{UINT64_MAX, UINT64_MAX},
	};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(cases); i++)
		assert_int_equal(alone(cases[i].value), cases[i].end);
}

/* Around every power of two, where an index is off by one if it ever is. */
static void test_error_is_at_most_a_32nd(void **state)
{
	(void)state;
	for (unsigned bit = 1; bit < 64; bit++) {
		uint64_t power = UINT64_C(1) << bit;
		for (uint64_t value = power - 1; value <= power + 1; value++) {
			uint64_t end = alone(value);
			assert_true(end >= value);
			assert_true(end - value <= value / KVB_HISTOGRAM_SUB);
		}
	}
}

static void test_quantiles(void **state)
{
	struct kvb_histogram histogram = {0};

	(void)state;
	for (uint64_t value = 50; value >= 1; value--)
		kvb_histogram_add(&histogram, value);
	for (unsigned i = 0; i < 50; i++)
		kvb_histogram_add(&histogram, 1000);
	assert_int_equal(histogram.count, 100);
	assert_int_equal(histogram.sum, 50 * 51 / 2 + 50 * 1000);
	assert_int_equal(kvb_histogram_quantile(&histogram, 0.0), 1);
	assert_int_equal(kvb_histogram_quantile(&histogram, 0.25), 25);
	assert_int_equal(kvb_histogram_quantile(&histogram, 0.50), 50);
	assert_int_equal(kvb_histogram_quantile(&histogram, 0.51), 1007);
	assert_int_equal(kvb_histogram_quantile(&histogram, 0.99), 1007);
	assert_int_equal(kvb_histogram_quantile(&histogram, 1.0), 1007);
}

static void test_one_slow_one_shows_only_at_the_end(void **state)
{
	struct kvb_histogram histogram = {0};

	(void)state;
	for (unsigned i = 0; i < 99; i++)
		kvb_histogram_add(&histogram, 7);
	kvb_histogram_add(&histogram, 1000000);
	assert_int_equal(kvb_histogram_quantile(&histogram, 0.99), 7);
	assert_int_equal(kvb_histogram_quantile(&histogram, 1.0), 1015807);
}

static void test_merge_is_adding_to_one(void **state)
{
	struct kvb_histogram all = {0}, even = {0}, odd = {0};

	(void)state;
	for (uint64_t value = 0; value < 100000; value += 7) {
		kvb_histogram_add(&all, value);
		kvb_histogram_add(value % 2 ? &odd : &even, value);
	}
	kvb_histogram_merge(&even, &odd);
	assert_memory_equal(&even, &all, sizeof(all));
}

static void test_merge_of_processes(void **state)
{
	struct kvb_histogram all = {0};
	struct kvb_histogram *shared = mmap(NULL, 2 * sizeof(*shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status[2] = {-1, -1};
	pid_t pids[2];

	(void)state;
	assert_ptr_not_equal(shared, MAP_FAILED);
	for (unsigned i = 0; i < 2; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			for (unsigned n = 0; n < 10; n++)
				kvb_histogram_add(&shared[i], 10 * (i + 1));
			_exit(0);
		}
	}
	for (unsigned i = 0; i < 2; i++)
		waitpid(pids[i], &status[i], 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(status[i], 0);
		kvb_histogram_merge(&all, &shared[i]);
	}
	munmap(shared, 2 * sizeof(*shared));
	assert_int_equal(all.count, 20);
	assert_int_equal(all.sum, 300);
	assert_int_equal(kvb_histogram_quantile(&all, 0.5), 10);
	assert_int_equal(kvb_histogram_quantile(&all, 0.75), 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_small_values_are_exact),
		cmocka_unit_test(test_steps),
		cmocka_unit_test(test_error_is_at_most_a_32nd),
		cmocka_unit_test(test_quantiles),
		cmocka_unit_test(test_one_slow_one_shows_only_at_the_end),
		cmocka_unit_test(test_merge_is_adding_to_one),
		cmocka_unit_test(test_merge_of_processes),
	};

	return cmocka_run_group_tests_name("histogram", tests, NULL, NULL) ? 1 : 0;
}
