/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_extent.c - the books of the pool: what is free, what is taken, what touches what.
 *
 * Owns no pool: extents are numbers. One thread. The random test compares every step with a model
 * that has one entry per unit of the pool; its seeds are fixed, so a failure can be had again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <errno.h>

#include "server/extent.h"
#include "shm/util.h"
#include "tests/random.h"

#define UNIT 4096ull

/* Books with one free range [0, units). */
static struct kvb_extents *books(uint32_t extents_max, uint64_t units)
{
	struct kvb_extents *extents = NULL;

	assert_int_equal(kvb_extents_new(extents_max, UNIT, &extents), 0);
	if (units > 0)
		assert_int_equal(kvb_extent_add_range(extents, 0, units * UNIT), 0);
	return extents;
}

static uint32_t take(struct kvb_extents *extents, uint64_t units)
{
	uint32_t extent = KVB_EXTENT_NONE;

	assert_int_equal(kvb_extent_alloc(extents, units * UNIT, &extent), 0);
	assert_int_not_equal(extent, KVB_EXTENT_NONE);
	assert_int_equal(kvb_extent_length(extents, extent), units * UNIT);
	assert_false(kvb_extent_is_free(extents, extent));
	return extent;
}

static uint64_t unit_of(const struct kvb_extents *extents, uint32_t extent)
{
	return kvb_extent_offset(extents, extent) / UNIT;
}

static void new_refuses_what_makes_no_sense(void **state)
{
	struct kvb_extents *extents = NULL;

	(void)state;
	assert_int_equal(kvb_extents_new(1, 0, &extents), -EINVAL);
	assert_int_equal(kvb_extents_new(1, 3, &extents), -EINVAL);
	assert_int_equal(kvb_extents_new(1, 4095, &extents), -EINVAL);
	assert_int_equal(kvb_extents_new(0, UNIT, &extents), -EINVAL);
	assert_int_equal(kvb_extents_new(UINT32_MAX, UNIT, &extents), -EINVAL);
	assert_null(extents);
	kvb_extents_free(NULL);
}

static void without_ranges_there_is_nothing(void **state)
{
	struct kvb_extents *extents = books(4, 0);
	uint32_t extent = 77;

	(void)state;
	assert_int_equal(kvb_extents_ready(extents), 0);
	assert_int_equal(kvb_extents_used(extents), 0);
	assert_int_equal(kvb_extents_count(extents), 0);
	assert_int_equal(kvb_extents_largest(extents), 0);
	assert_int_equal(kvb_extent_alloc(extents, 1, &extent), -ENOSPC);
	assert_int_equal(kvb_extent_alloc(extents, 0, &extent), -EINVAL);
	assert_int_equal(extent, 77);
	assert_int_equal(kvb_extents_check(extents), 0);
	kvb_extents_free(extents);
}

static void ranges_are_aligned_and_new(void **state)
{
	static const struct {
		uint64_t offset;
		uint64_t length;
	} bad[] = {
		{20 * UNIT, 0},                     /* empty */
		{20 * UNIT + 1, UNIT},              /* unaligned */
		{20 * UNIT, UNIT - 1},              /* unaligned */
		{8 * UNIT, 8 * UNIT},               /* there already */
		{7 * UNIT, 2 * UNIT},               /* its start is */
		{15 * UNIT, 2 * UNIT},              /* its end is */
		{9 * UNIT, UNIT},                   /* inside */
		{7 * UNIT, 10 * UNIT},              /* around */
		{0, 100 * UNIT},                    /* around both */
		{20 * UNIT, 11 * UNIT},             /* reaches into the second */
		{1ull << 63, UNIT},                 /* no offset of a file */
		{(1ull << 63) - UNIT, 2 * UNIT},    /* ends beyond one */
		{UNIT * 40, UINT64_MAX - UNIT + 1}, /* wraps */
		{UINT64_MAX - UNIT + 1, UNIT},      /* ends at 2^64 */
	};
	struct kvb_extents *extents = books(4, 0);

	(void)state;
	assert_int_equal(kvb_extent_add_range(extents, 8 * UNIT, 8 * UNIT), 0);
	assert_int_equal(kvb_extent_add_range(extents, 30 * UNIT, UNIT), 0);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(bad); i++) {
		if (kvb_extent_add_range(extents, bad[i].offset, bad[i].length) != -EINVAL)
			fail_msg("bad range %zu was taken", i);
		assert_int_equal(kvb_extents_ready(extents), 9 * UNIT);
		assert_int_equal(kvb_extents_check(extents), 0);
	}
	kvb_extents_free(extents);
}

/* Adds the ranges of 3 units numbered by the digits of `order` base 4, if these are a permutation. */
static void add_in_order(unsigned order)
{
	struct kvb_extents *extents = books(4, 0);
	unsigned seen = 0, i;
	uint32_t extent;

	for (i = 0; i < 4; i++)
		seen |= 1u << (order >> 2 * i & 3);
	for (i = 0; i < 4 && seen == 15; i++) {
		uint64_t range = order >> 2 * i & 3;
		assert_int_equal(kvb_extent_add_range(extents, range * 3 * UNIT, 3 * UNIT), 0);
		assert_int_equal(kvb_extents_ready(extents), 3 * (i + 1) * UNIT);
		assert_int_equal(kvb_extents_check(extents), 0);
	}
	if (seen == 15) {
		assert_int_equal(kvb_extents_largest(extents), 12 * UNIT);
		extent = take(extents, 12);
		assert_int_equal(kvb_extent_offset(extents, extent), 0);
		assert_int_equal(kvb_extents_largest(extents), 0);
	}
	kvb_extents_free(extents);
}

static void ranges_join_in_any_order(void **state)
{
	(void)state;
	for (unsigned order = 0; order < 256; order++)
		add_in_order(order);
}

static void ranges_join_around_what_is_stored(void **state)
{
	struct kvb_extents *extents = books(8, 0);
	uint32_t first, second, below, above;

	(void)state;
	assert_int_equal(kvb_extent_add_range(extents, 8 * UNIT, 8 * UNIT), 0);
	first = take(extents, 4);
	second = take(extents, 4);
	assert_int_equal(kvb_extent_add_range(extents, 17 * UNIT, 7 * UNIT), 0);
	assert_int_equal(
		kvb_extent_above(extents, second), KVB_EXTENT_NONE); /* a gap of one unit */
	assert_int_equal(kvb_extent_add_range(extents, 16 * UNIT, UNIT), 0);
	assert_int_equal(kvb_extent_add_range(extents, 0, 8 * UNIT), 0);
	assert_int_equal(kvb_extents_check(extents), 0);

	below = kvb_extent_below(extents, first);
	above = kvb_extent_above(extents, second);
	assert_true(kvb_extent_is_free(extents, below));
	assert_true(kvb_extent_is_free(extents, above));
	assert_int_equal(unit_of(extents, below), 0);
	assert_int_equal(kvb_extent_length(extents, below), 8 * UNIT);
	assert_int_equal(unit_of(extents, above), 16);
	assert_int_equal(kvb_extent_length(extents, above), 8 * UNIT);
	assert_int_equal(unit_of(extents, first), 8);
	assert_int_equal(unit_of(extents, second), 12);

	kvb_extent_free(extents, first);
	kvb_extent_free(extents, second);
	assert_int_equal(kvb_extents_largest(extents), 24 * UNIT);
	assert_int_equal(kvb_extents_check(extents), 0);
	kvb_extents_free(extents);
}

static void gaps_are_not_bridged(void **state)
{
	struct kvb_extents *extents = books(8, 4);
	uint32_t low, high, extent;

	(void)state;
	assert_int_equal(kvb_extent_add_range(extents, 5 * UNIT, 4 * UNIT), 0);
	assert_int_equal(kvb_extents_ready(extents), 8 * UNIT);
	assert_int_equal(kvb_extents_largest(extents), 4 * UNIT);
	assert_int_equal(kvb_extent_alloc(extents, 5 * UNIT, &extent), -ENOSPC);
	low = take(extents, 4);
	high = take(extents, 4);
	assert_int_equal(unit_of(extents, low) + unit_of(extents, high), 5);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(kvb_extent_below(extents, i ? low : high), KVB_EXTENT_NONE);
		assert_int_equal(kvb_extent_above(extents, i ? low : high), KVB_EXTENT_NONE);
	}
	kvb_extent_free(extents, high);
	kvb_extent_free(extents, low);
	assert_int_equal(kvb_extents_largest(extents), 4 * UNIT);
	assert_int_equal(kvb_extents_check(extents), 0);
	kvb_extents_free(extents);
}

static void lengths_are_rounded_up(void **state)
{
	static const uint64_t lengths[] = {1, UNIT - 1, UNIT, UNIT + 1, 3 * UNIT};
	static const uint64_t units[] = {1, 1, 1, 2, 3};
	struct kvb_extents *extents = books(8, 8);
	uint64_t sum = 0;
	uint32_t extent;

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(lengths); i++) {
		assert_int_equal(kvb_extent_alloc(extents, lengths[i], &extent), 0);
		assert_int_equal(kvb_extent_offset(extents, extent), sum * UNIT);
		assert_int_equal(kvb_extent_length(extents, extent), units[i] * UNIT);
		sum += units[i];
		assert_int_equal(kvb_extents_used(extents), sum * UNIT);
		assert_int_equal(kvb_extents_count(extents), i + 1);
		assert_int_equal(kvb_extents_check(extents), 0);
	}
	assert_int_equal(kvb_extent_alloc(extents, 1, &extent), -ENOSPC);
	assert_int_equal(kvb_extent_alloc(extents, UINT64_MAX, &extent), -ENOSPC);
	kvb_extents_free(extents);
}

static void free_joins_and_the_lowest_survives(void **state)
{
	struct kvb_extents *extents = books(8, 5);
	uint32_t at[5], i;

	(void)state;
	for (i = 0; i < 5; i++) {
		at[i] = take(extents, 1);
		assert_int_equal(unit_of(extents, at[i]), i);
	}
	kvb_extent_free(extents, at[1]); /* alone */
	assert_int_equal(kvb_extents_largest(extents), UNIT);
	kvb_extent_free(extents, at[2]); /* with the one below */
	assert_int_equal(kvb_extents_largest(extents), 2 * UNIT);
	assert_int_equal(kvb_extent_below(extents, at[3]), at[1]);
	assert_int_equal(kvb_extent_length(extents, at[1]), 2 * UNIT);
	kvb_extent_free(extents, at[0]); /* with the one above */
	assert_int_equal(kvb_extent_below(extents, at[3]), at[0]);
	assert_int_equal(kvb_extent_length(extents, at[0]), 3 * UNIT);
	kvb_extent_free(extents, at[4]);
	assert_int_equal(kvb_extent_above(extents, at[3]), at[4]);
	assert_int_equal(kvb_extents_largest(extents), 3 * UNIT);
	kvb_extent_free(extents, at[3]); /* with both */
	assert_int_equal(kvb_extents_largest(extents), 5 * UNIT);
	assert_true(kvb_extent_is_free(extents, at[0]));
	assert_int_equal(kvb_extent_length(extents, at[0]), 5 * UNIT);
	assert_int_equal(kvb_extents_used(extents), 0);
	assert_int_equal(kvb_extents_count(extents), 0);
	assert_int_equal(kvb_extents_check(extents), 0);
	kvb_extents_free(extents);
}

static void owners_are_kept_and_forgotten(void **state)
{
	struct kvb_extents *extents = books(4, 4);
	uint32_t one = take(extents, 1), two = take(extents, 1);

	(void)state;
	assert_int_equal(kvb_extent_owner(extents, one), 0);
	kvb_extent_set_owner(extents, one, 41);
	kvb_extent_set_owner(extents, two, UINT32_MAX);
	assert_int_equal(kvb_extent_owner(extents, one), 41);
	assert_int_equal(kvb_extent_owner(extents, two), UINT32_MAX);
	kvb_extent_free(extents, one);
	assert_int_equal(kvb_extent_owner(extents, two), UINT32_MAX);
	assert_int_equal(take(extents, 1), one);
	assert_int_equal(kvb_extent_owner(extents, one), 0);
	kvb_extents_free(extents);
}

/* Also with every second extent free, when there are nearly as many free ones as taken ones. */
static void extents_run_out(void **state)
{
	enum { MAX = 1000 };
	struct kvb_extents *extents = books(MAX, 3 * MAX);
	uint32_t at[2 * MAX], extent, i;

	(void)state;
	for (i = 0; i < MAX; i++)
		at[i] = take(extents, 1);
	assert_int_equal(kvb_extent_alloc(extents, 1, &extent), -ENOMEM);
	for (i = 0; i < MAX; i += 2)
		kvb_extent_free(extents, at[i]);
	assert_int_equal(kvb_extents_count(extents), MAX / 2);
	for (i = 0; i < MAX / 2; i++)
		at[MAX + i] = take(extents, 2);
	assert_int_equal(kvb_extent_alloc(extents, 1, &extent), -ENOMEM);
	assert_int_equal(kvb_extents_count(extents), MAX);
	assert_int_equal(kvb_extents_check(extents), 0);
	for (i = 1; i < MAX; i += 2)
		kvb_extent_free(extents, at[i]);
	for (i = MAX; i < MAX + MAX / 2; i++)
		kvb_extent_free(extents, at[i]);
	assert_int_equal(kvb_extents_largest(extents), 3 * MAX * UNIT);
	assert_int_equal(kvb_extents_check(extents), 0);
	kvb_extents_free(extents);
}

/* 128 to 131 units share a size class, of which the shortest is at the head. */
static void a_class_is_searched_to_its_end(void **state)
{
	struct kvb_extents *extents = books(16, 128 + 1 + 129 + 1 + 131 + 1);
	uint32_t h128 = take(extents, 128), walls[3], h129, h131, extent;

	(void)state;
	walls[0] = take(extents, 1);
	h129 = take(extents, 129);
	walls[1] = take(extents, 1);
	h131 = take(extents, 131);
	walls[2] = take(extents, 1);
	assert_int_equal(kvb_extents_largest(extents), 0);
	kvb_extent_free(extents, h131);
	kvb_extent_free(extents, h129);
	kvb_extent_free(extents, h128);

	assert_int_equal(kvb_extents_largest(extents), 131 * UNIT);
	assert_int_equal(kvb_extent_alloc(extents, 132 * UNIT, &extent), -ENOSPC);
	assert_int_equal(take(extents, 131), h131);
	assert_int_equal(kvb_extents_largest(extents), 129 * UNIT);
	assert_int_equal(kvb_extent_alloc(extents, 130 * UNIT, &extent), -ENOSPC);
	assert_int_equal(take(extents, 129), h129);
	assert_int_equal(take(extents, 128), h128);
	assert_int_equal(kvb_extents_largest(extents), 0);
	assert_int_equal(unit_of(extents, walls[1]), 128 + 1 + 129);
	assert_int_equal(kvb_extents_check(extents), 0);
	kvb_extents_free(extents);
}

/* A hole that fits exactly is taken before a longer one is cut. */
static void an_exact_hole_is_preferred(void **state)
{
	struct kvb_extents *extents = books(8, 100);
	uint32_t hole = take(extents, 7), wall = take(extents, 1);

	(void)state;
	kvb_extent_free(extents, hole);
	assert_int_equal(take(extents, 7), hole);
	assert_int_equal(unit_of(extents, hole), 0);
	assert_int_equal(unit_of(extents, wall), 7);
	assert_int_equal(kvb_extents_largest(extents), 92 * UNIT);
	kvb_extents_free(extents);
}

static void the_largest_numbers_work(void **state)
{
	static const uint64_t alignments[] = {1, UNIT, 2 * KVB_MIB, 1ull << 40};
	const uint64_t all = 1ull << 62;

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(alignments); i++) {
		struct kvb_extents *extents = NULL;
		uint32_t extent, rest;
		assert_int_equal(kvb_extents_new(2, alignments[i], &extents), 0);
		assert_int_equal(kvb_extent_add_range(extents, all, all - alignments[i]), 0);
		assert_int_equal(kvb_extent_add_range(extents, 0, all), 0);
		assert_int_equal(kvb_extents_largest(extents), 2 * all - alignments[i]);
		assert_int_equal(kvb_extent_alloc(extents, 2 * all, &extent), -ENOSPC);
		assert_int_equal(kvb_extent_alloc(extents, all + 1, &extent), 0);
		assert_int_equal(kvb_extent_offset(extents, extent), 0);
		assert_int_equal(kvb_extent_length(extents, extent), all + alignments[i]);
		assert_int_equal(kvb_extents_largest(extents), all - 2 * alignments[i]);
		assert_int_equal(kvb_extent_alloc(extents, all - 2 * alignments[i], &rest), 0);
		assert_int_equal(kvb_extent_above(extents, extent), rest);
		assert_int_equal(kvb_extents_used(extents), kvb_extents_ready(extents));
		assert_int_equal(kvb_extents_check(extents), 0);
		kvb_extents_free(extents);
	}
}

static void too_many_separate_ranges(void **state)
{
	enum { REGIONS = 65536 };
	struct kvb_extents *extents = books(REGIONS + 8, 0);
	uint64_t i;

	(void)state;
	for (i = 0; i < REGIONS; i++)
		assert_int_equal(kvb_extent_add_range(extents, 2 * i * UNIT, UNIT), 0);
	assert_int_equal(kvb_extent_add_range(extents, 2 * i * UNIT, UNIT), -ENOMEM);
	assert_int_equal(kvb_extents_ready(extents), REGIONS * UNIT);
	assert_int_equal(kvb_extents_check(extents), 0);
	for (i = 0; i < REGIONS; i++)
		take(extents, 1);
	assert_int_equal(kvb_extents_largest(extents), 0);
	assert_int_equal(kvb_extents_check(extents), 0);
	kvb_extents_free(extents);
}

/* ------------------------------------------------------------------------------------- the model */

#define UNITS_MAX 3000u
#define LIVE_MAX  256u
#define ABSENT    UINT32_MAX
#define FREE      (UINT32_MAX - 1)

struct model {
	struct kvb_extents *extents;
	uint64_t alignment;
	uint64_t seed;
	uint32_t units;
	uint32_t longest;       /* units of a request at most */
	uint32_t of[UNITS_MAX]; /* ABSENT, FREE or the number of the extent */
	uint32_t live[LIVE_MAX];
	uint32_t live_count;
	uint32_t refused; /* -ENOSPC so far */
};

/* Everything but the expected answer says where it went wrong. */
static void demand(const struct model *model, bool holds, const char *what)
{
	if (!holds)
		fail_msg("%s (alignment %llu, %u units, next seed %llu)", what,
			(unsigned long long)model->alignment, model->units,
			(unsigned long long)model->seed);
}

static uint32_t random_below(struct model *model, uint32_t n)
{
	return next_random(&model->seed) % n;
}

static uint32_t units_at(const struct model *model, uint32_t extent)
{
	return (uint32_t)(kvb_extent_length(model->extents, extent) / model->alignment);
}

static uint32_t start_at(const struct model *model, uint32_t extent)
{
	return (uint32_t)(kvb_extent_offset(model->extents, extent) / model->alignment);
}

static uint32_t run_from(const struct model *model, uint32_t unit)
{
	uint32_t end = unit;

	while (end < model->units && model->of[end] == FREE)
		end++;
	return end - unit;
}

static uint32_t longest_free(const struct model *model)
{
	uint32_t longest = 0;

	for (uint32_t unit = 0; unit < model->units; unit++) {
		uint32_t run = run_from(model, unit);
		longest = run > longest ? run : longest;
		unit += run;
	}
	return longest;
}

static void model_set(struct model *model, uint32_t unit, uint32_t count, uint32_t was, uint32_t is)
{
	for (uint32_t i = unit; i < unit + count; i++) {
		demand(model, i < model->units && model->of[i] == was,
			"units are not what they were");
		model->of[i] = is;
	}
}

static void step_alloc(struct model *model)
{
	uint32_t want = 1 + random_below(model, model->longest);
	uint64_t length = want * model->alignment - random_below(model, (uint32_t)model->alignment);
	uint32_t extent = KVB_EXTENT_NONE;
	int r = kvb_extent_alloc(model->extents, length, &extent);

	if (model->live_count == LIVE_MAX) {
		demand(model, r == -ENOMEM || r == -ENOSPC, "more extents than allowed");
		return;
	}
	demand(model, r == (longest_free(model) < want ? -ENOSPC : 0), "room is judged wrongly");
	if (r < 0) {
		model->refused++;
		return;
	}
	demand(model, units_at(model, extent) == want, "another length than asked for");
	demand(model, kvb_extent_owner(model->extents, extent) == 0,
		"an owner before there is one");
	model_set(model, start_at(model, extent), want, FREE, extent);
	kvb_extent_set_owner(model->extents, extent, ~extent);
	model->live[model->live_count++] = extent;
}

static void step_free(struct model *model)
{
	uint32_t i, extent;

	if (model->live_count == 0)
		return;
	i = random_below(model, model->live_count);
	extent = model->live[i];
	model->live[i] = model->live[--model->live_count];
	model_set(model, start_at(model, extent), units_at(model, extent), extent, FREE);
	kvb_extent_free(model->extents, extent);
}

static void step_add(struct model *model)
{
	uint32_t unit = random_below(model, model->units);
	uint32_t count = 1 + random_below(model, 40);
	bool is_new = unit + count <= model->units;
	int r;

	if (!is_new)
		return; /* the model ends there, the books do not */
	for (uint32_t i = unit; i < unit + count; i++)
		is_new = is_new && model->of[i] == ABSENT;
	r = kvb_extent_add_range(model->extents, unit * model->alignment, count * model->alignment);
	demand(model, r == (is_new ? 0 : -EINVAL), "a range is judged wrongly");
	if (is_new)
		model_set(model, unit, count, ABSENT, FREE);
}

/* What lies at `unit`, seen from the extent that touches it there. */
static void compare_neighbour(const struct model *model, uint32_t unit, uint32_t neighbour)
{
	uint32_t is = unit < model->units ? model->of[unit] : ABSENT;

	if (is == ABSENT) {
		demand(model, neighbour == KVB_EXTENT_NONE, "a neighbour beyond a gap");
	} else if (is == FREE) {
		demand(model,
			neighbour != KVB_EXTENT_NONE &&
				kvb_extent_is_free(model->extents, neighbour),
			"it is not free");
		demand(model,
			units_at(model, neighbour) == run_from(model, start_at(model, neighbour)),
			"free ones are not joined");
	} else {
		demand(model, neighbour == is, "another neighbour");
	}
}

static void compare(const struct model *model)
{
	uint64_t ready = 0, used = 0;

	for (uint32_t i = 0; i < model->units; i++) {
		ready += model->of[i] != ABSENT;
		used += model->of[i] != ABSENT && model->of[i] != FREE;
	}
	demand(model, kvb_extents_ready(model->extents) == ready * model->alignment, "ready");
	demand(model, kvb_extents_used(model->extents) == used * model->alignment, "used");
	demand(model, kvb_extents_count(model->extents) == model->live_count, "count");
	demand(model, kvb_extents_largest(model->extents) == longest_free(model) * model->alignment,
		"largest");
	for (uint32_t i = 0; i < model->live_count; i++) {
		uint32_t extent = model->live[i];
		uint32_t start = start_at(model, extent);
		demand(model, !kvb_extent_is_free(model->extents, extent), "it became free");
		demand(model, kvb_extent_owner(model->extents, extent) == ~extent, "owner");
		demand(model, model->of[start] == extent, "offset");
		compare_neighbour(model, start - 1, kvb_extent_below(model->extents, extent));
		compare_neighbour(model, start + units_at(model, extent),
			kvb_extent_above(model->extents, extent));
	}
	demand(model, kvb_extents_check(model->extents) == 0, "the books disagree with themselves");
}

static void step(struct model *model)
{
	uint32_t dice = random_below(model, 100);

	if (dice < 8)
		step_add(model);
	else if (dice < 56)
		step_alloc(model);
	else
		step_free(model);
	compare(model);
}

static void run_model(uint64_t seed, uint64_t alignment, uint32_t units, uint32_t longest)
{
	struct model *model = calloc(1, sizeof(*model));

	assert_non_null(model);
	model->alignment = alignment;
	model->seed = seed;
	model->units = units;
	model->longest = longest;
	for (uint32_t i = 0; i < units; i++)
		model->of[i] = ABSENT;
	assert_int_equal(kvb_extents_new(LIVE_MAX, alignment, &model->extents), 0);
	for (unsigned i = 0; i < 3000; i++)
		step(model);
	demand(model, model->refused > 100, "was never short of room, which proves little");
	while (model->live_count > 0)
		step_free(model);
	compare(model);
	kvb_extents_free(model->extents);
	free(model);
}

static void random_steps_agree_with_a_model(void **state)
{
	static const uint64_t alignments[] = {1, UNIT, 2 * KVB_MIB};

	(void)state;
	for (uint64_t seed = 1; seed <= 6; seed++) {
		run_model(seed, alignments[seed % 3], 200, 12);
		run_model(seed + 100, alignments[seed % 3], 1200, 200);
	}
	run_model(1000, UNIT, UNITS_MAX, 1400);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(new_refuses_what_makes_no_sense),
		cmocka_unit_test(without_ranges_there_is_nothing),
		cmocka_unit_test(ranges_are_aligned_and_new),
		cmocka_unit_test(ranges_join_in_any_order),
		cmocka_unit_test(ranges_join_around_what_is_stored),
		cmocka_unit_test(gaps_are_not_bridged),
		cmocka_unit_test(lengths_are_rounded_up),
		cmocka_unit_test(free_joins_and_the_lowest_survives),
		cmocka_unit_test(owners_are_kept_and_forgotten),
		cmocka_unit_test(extents_run_out),
		cmocka_unit_test(a_class_is_searched_to_its_end),
		cmocka_unit_test(an_exact_hole_is_preferred),
		cmocka_unit_test(the_largest_numbers_work),
		cmocka_unit_test(too_many_separate_ranges),
		cmocka_unit_test(random_steps_agree_with_a_model),
	};

	return cmocka_run_group_tests_name("extent", tests, NULL, NULL) ? 1 : 0;
}
