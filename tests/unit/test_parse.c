/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_parse.c - sizes, durations and numbers as people write them. Main thread; pure functions.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "shm/parse.h"
#include "shm/util.h"

#define UNTOUCHED 0xdeadbeefu

static void sizes_have_binary_units(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} cases[] = {
		{"0", 0},
		{"1", 1},
		{"4096", 4096},
		{"17B", 17},
		{"64KiB", 65536},
		{"64K", 65536},
		{"64kib", 65536},
		{"8M", 8388608},
		{"8MiB", 8388608},
		{"1.5GiB", 1610612736},
		{"0.5M", 524288},
		{"2G", 2147483648},
		{"1T", 1099511627776},
		{"3TiB", 3298534883328},
		{"16777215T", 18446742974197923840u},
		{"0.75", 0},
		{"007", 7},
	};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(cases); i++) {
		uint64_t bytes = UNTOUCHED;
		assert_int_equal(kvb_parse_size(cases[i].text, &bytes), 0);
		assert_int_equal(bytes, cases[i].bytes);
	}
}

static void rubbish_is_no_size(void **state)
{
	static const char *const cases[] = {"", " ", " 1", "1 ", "-1", "+1", "KiB", "1KB", "1Mi",
		"1 MiB", "1MiBs", "1,5G", ".5G", "0x10", "1p3", "inf", "nan", "1.2.3", "1P", "1ms",
		"1e3"};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(cases); i++) {
		uint64_t bytes = UNTOUCHED;
		assert_int_equal(kvb_parse_size(cases[i], &bytes), -EINVAL);
		assert_int_equal(bytes, UNTOUCHED);
	}
}

static void sizes_beyond_64_bits_do_not_fit(void **state)
{
	static const char *const cases[] = {
		"16777216T", "18446744073709551616", "99999999999999999999T"};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(cases); i++) {
		uint64_t bytes = UNTOUCHED;
		assert_int_equal(kvb_parse_size(cases[i], &bytes), -ERANGE);
		assert_int_equal(bytes, UNTOUCHED);
	}
}

static void durations_are_milliseconds(void **state)
{
	static const struct {
		const char *text;
		uint32_t ms;
	} cases[] = {
		{"0", 0},
		{"1", 1000},
		{"1.5", 1500},
		{"250ms", 250},
		{"30s", 30000},
		{"2m", 120000},
		{"2M", 120000},
		{"4294967295ms", 4294967295u},
	};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(cases); i++) {
		uint32_t ms = UNTOUCHED;
		assert_int_equal(kvb_parse_duration(cases[i].text, &ms), 0);
		assert_int_equal(ms, cases[i].ms);
	}
}

static void rubbish_is_no_duration(void **state)
{
	static const char *const cases[] = {
		"", "s", "-1s", "1h", "1 s", "1sec", "0x1s", "infinity", "1e2ms"};
	uint32_t ms = UNTOUCHED;

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(cases); i++)
		assert_int_equal(kvb_parse_duration(cases[i], &ms), -EINVAL);
	assert_int_equal(kvb_parse_duration("4294967296ms", &ms), -ERANGE);
	assert_int_equal(kvb_parse_duration("71583m", &ms), -ERANGE);
	assert_int_equal(ms, UNTOUCHED);
}

static void numbers_are_whole_and_within_bounds(void **state)
{
	uint64_t number = UNTOUCHED;

	(void)state;
	assert_int_equal(kvb_parse_number("1", 1, 8, &number), 0);
	assert_int_equal(number, 1);
	assert_int_equal(kvb_parse_number("8", 1, 8, &number), 0);
	assert_int_equal(number, 8);
	assert_int_equal(kvb_parse_number("18446744073709551615", 0, UINT64_MAX, &number), 0);
	assert_int_equal(number, UINT64_MAX);
	number = UNTOUCHED;
	assert_int_equal(kvb_parse_number("0", 1, 8, &number), -ERANGE);
	assert_int_equal(kvb_parse_number("9", 1, 8, &number), -ERANGE);
	assert_int_equal(kvb_parse_number("18446744073709551616", 0, UINT64_MAX, &number), -ERANGE);
	assert_int_equal(kvb_parse_number("", 0, 8, &number), -EINVAL);
	assert_int_equal(kvb_parse_number("-1", 0, 8, &number), -EINVAL);
	assert_int_equal(kvb_parse_number("+1", 0, 8, &number), -EINVAL);
	assert_int_equal(kvb_parse_number(" 1", 0, 8, &number), -EINVAL);
	assert_int_equal(kvb_parse_number("1 ", 0, 8, &number), -EINVAL);
	assert_int_equal(kvb_parse_number("1.0", 0, 8, &number), -EINVAL);
	assert_int_equal(kvb_parse_number("0x1", 0, 8, &number), -EINVAL);
	assert_int_equal(number, UNTOUCHED);
}

static void sizes_are_shown_in_16_bytes(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} cases[] = {
		{0, "0 B"},
		{17, "17 B"},
		{1023, "1023 B"},
		{1024, "1 KiB"},
		{65536, "64 KiB"},
		{1536, "1.50 KiB"},
		{1610612736, "1.50 GiB"},
		{1047552, "1023 KiB"},
		{UINT64_MAX, "16 EiB"},
	};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(cases); i++) {
		char buffer[16];
		assert_ptr_equal(kvb_format_size(buffer, sizeof(buffer), cases[i].bytes), buffer);
		assert_string_equal(buffer, cases[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_have_binary_units),
		cmocka_unit_test(rubbish_is_no_size),
		cmocka_unit_test(sizes_beyond_64_bits_do_not_fit),
		cmocka_unit_test(durations_are_milliseconds),
		cmocka_unit_test(rubbish_is_no_duration),
		cmocka_unit_test(numbers_are_whole_and_within_bounds),
		cmocka_unit_test(sizes_are_shown_in_16_bytes),
	};

	return cmocka_run_group_tests_name("parse", tests, NULL, NULL) ? 1 : 0;
}
