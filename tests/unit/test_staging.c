/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_staging.c - the ring of bytes: in order, in any order, around its end, and at random against
 * a map of who has which line. Main thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/pattern.h"
#include "kvbell/protocol.h"
#include "shm/staging.h"
#include "shm/util.h"

#define LINES  32u
#define BYTES  (LINES * KVB_LINE)
#define BLOCKS 8u

static struct kvb_staging staging;

static int set_up(void **state)
{
	(void)state;
	return kvb_staging_init(&staging, BYTES, BLOCKS);
}

static int tear_down(void **state)
{
	(void)state;
	kvb_staging_done(&staging);
	return staging.blocks ? -1 : 0;
}

/* The block's number; the offset must be as expected. */
static uint32_t take(uint64_t length, uint64_t expected_offset)
{
	uint64_t offset = UINT64_MAX;
	uint32_t block = UINT32_MAX;

	assert_int_equal(kvb_staging_take(&staging, length, &offset, &block), 0);
	assert_int_equal(offset, expected_offset);
	return block;
}

static void refuse(uint64_t length)
{
	uint64_t offset = 7;
	uint32_t block = 7;

	assert_int_equal(kvb_staging_take(&staging, length, &offset, &block), -EAGAIN);
	assert_int_equal(offset, 7);
	assert_int_equal(block, 7);
}

static void blocks_lie_one_after_the_other(void **state)
{
	uint32_t a, b, c;

	(void)state;
	a = take(1, 0);
	b = take(KVB_LINE, KVB_LINE);
	c = take(KVB_LINE + 1, 2 * KVB_LINE);
	take(0, 4 * KVB_LINE);
	take(5, 5 * KVB_LINE);
	kvb_staging_give(&staging, a);
	kvb_staging_give(&staging, b);
	kvb_staging_give(&staging, c);
	assert_int_equal(staging.start, 4 * KVB_LINE);
}

static void the_whole_area_can_be_one_block(void **state)
{
	(void)state;
	/* From every position, since an empty area begins at 0 again. */
	for (uint32_t i = 0; i < LINES; i++) {
		uint32_t small = take((uint64_t)(i + 1) * KVB_LINE, 0);
		uint32_t whole;
		kvb_staging_give(&staging, small);
		whole = take(BYTES, 0);
		refuse(1);
		kvb_staging_give(&staging, whole);
	}
	refuse(BYTES + 1);
	assert_int_equal(staging.start, staging.end);
}

static void given_in_any_order_reclaimed_in_order(void **state)
{
	uint32_t a = take(10 * KVB_LINE, 0);
	uint32_t b = take(10 * KVB_LINE, 10 * KVB_LINE);
	uint32_t c = take(12 * KVB_LINE, 20 * KVB_LINE);

	(void)state;
	refuse(1);
	kvb_staging_give(&staging, b);
	refuse(1);
	kvb_staging_give(&staging, c);
	refuse(1);
	kvb_staging_give(&staging, a);
	take(BYTES, 0);
}

static void a_block_never_goes_around_the_end(void **state)
{
	uint32_t a = take(20 * KVB_LINE, 0);
	uint32_t b = take(4 * KVB_LINE, 20 * KVB_LINE);
	uint32_t c;

	(void)state;
	/* Eight lines are left at the end, none at the beginning. */
	refuse(9 * KVB_LINE);
	kvb_staging_give(&staging, a);
	/* The eight are padding now. */
	c = take(9 * KVB_LINE, 0);
	/* 20 lines before b, 9 of them taken. */
	refuse(12 * KVB_LINE);
	take(11 * KVB_LINE, 9 * KVB_LINE);
	refuse(1);
	kvb_staging_give(&staging, c);
	refuse(1);
	/* With b its place, the padding behind it and c's come back. */
	kvb_staging_give(&staging, b);
	take(12 * KVB_LINE, 20 * KVB_LINE);
	take(9 * KVB_LINE, 0);
	refuse(1);
}

static void there_are_so_many_blocks_and_no_more(void **state)
{
	uint32_t first = take(1, 0);

	(void)state;
	for (uint32_t i = 1; i < BLOCKS; i++)
		take(1, (uint64_t)i * KVB_LINE);
	refuse(1);
	kvb_staging_give(&staging, first);
	take(1, BLOCKS * KVB_LINE);
	refuse(1);
}

static void block_numbers_wrap(void **state)
{
	(void)state;
	staging.first = staging.next = UINT32_MAX - 2;
	for (uint32_t round = 0; round < 3; round++) {
		uint32_t a = take(3, 0);
		uint32_t b = take(3, KVB_LINE);
		kvb_staging_give(&staging, b);
		assert_int_equal(staging.next - staging.first, 2);
		kvb_staging_give(&staging, a);
		assert_int_equal(staging.next, staging.first);
	}
	assert_int_equal(staging.next, 3);
}

/* ------------------------------------------------------------------------------------------- at random */

struct taken {
	uint32_t block;
	uint64_t first_line, n_lines;
};

struct book {
	uint8_t owner[LINES]; /* 1: somebody has it */
	struct taken taken[BLOCKS];
	unsigned n;
};

static uint64_t lines_of(uint64_t length)
{
	return kvb_max_u64((length + KVB_LINE - 1) / KVB_LINE, 1);
}

static void take_into_book(struct book *book, uint64_t length)
{
	struct taken *taken = &book->taken[book->n];
	uint64_t offset;

	if (kvb_staging_take(&staging, length, &offset, &taken->block) < 0) {
		/* An empty area has room for anything. */
		assert_true(book->n > 0);
		return;
	}
	assert_true(book->n < BLOCKS);
	assert_int_equal(offset % KVB_LINE, 0);
	assert_true(kvb_range_fits(offset, length, BYTES));
	taken->first_line = offset / KVB_LINE;
	taken->n_lines = lines_of(length);
	for (uint64_t i = 0; i < taken->n_lines; i++) {
		assert_int_equal(book->owner[taken->first_line + i], 0);
		book->owner[taken->first_line + i] = 1;
	}
	book->n++;
}

static void give_from_book(struct book *book, unsigned which)
{
	struct taken *taken = &book->taken[which];

	memset(&book->owner[taken->first_line], 0, taken->n_lines);
	kvb_staging_give(&staging, taken->block);
	*taken = book->taken[--book->n];
}

static void no_two_blocks_overlap(void **state)
{
	struct book book = {0};
	uint64_t random = 0;

	(void)state;
	for (uint64_t i = 0; i < 200000; i++) {
		random = kvb_pattern_word(1, i);
		if (book.n > 0 && random & 1)
			give_from_book(&book, (unsigned)((random >> 8) % book.n));
		else
			take_into_book(
				&book, (random >> 16) % ((random & 2 ? 4 : LINES) * KVB_LINE + 1));
	}
	while (book.n > 0)
		give_from_book(&book, 0);
	assert_int_equal(staging.start, staging.end);
	take(BYTES, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(blocks_lie_one_after_the_other, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_whole_area_can_be_one_block, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			given_in_any_order_reclaimed_in_order, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_block_never_goes_around_the_end, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			there_are_so_many_blocks_and_no_more, set_up, tear_down),
		cmocka_unit_test_setup_teardown(block_numbers_wrap, set_up, tear_down),
		cmocka_unit_test_setup_teardown(no_two_blocks_overlap, set_up, tear_down),
	};

	return cmocka_run_group_tests_name("staging", tests, NULL, NULL) ? 1 : 0;
}
