/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent.c - see extent.h.
 *
 * Owns the table of blocks that describe the pool: one block per free or allocated extent, linked
 * by address, and free blocks also by size (two-level segregated fit: a power of two, cut in 32).
 * The table lies in reserved memory of its own, so that untouched blocks cost nothing and no byte
 * of the pool is read or written here: a client that could scribble on the pool could not break the
 * books, and a page of the pool that is not populated yet is not faulted in by bookkeeping.
 *
 * Runs in whichever thread holds the store's lock. Must never call out and never allocate after
 * kvb_extents_new(), except for the list of regions in kvb_extent_add_range().
 *
 * Alloc and free are O(1), with one exception. A class holds lengths that differ by up to 1/32, so
 * when no higher class has a block, the request's own class is searched to its end: an answer
 * -ENOSPC must be exact, because the store evicts on it. Where all lengths of a class are equal,
 * which is so below 64 units, the first block decides.
 *
 * Regions are the maximal contiguous parts of the pool added so far. They are what makes adding
 * ranges in any order cheap while objects are stored already: the neighbours of a new range are
 * found from the region after it. The first block of a region keeps its number for ever, because a
 * split leaves the lower part, and a join the lower block, under the old number.
 */
#include "server/extent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/util.h"

#define SUB_BITS    5u
#define SUBS        (1u << SUB_BITS)
#define TOPS        (64u - SUB_BITS + 1)
#define REGIONS_MAX 65536u

/* Block 0 is the end of the list by address in both directions and the null of every link. */
#define NONE KVB_EXTENT_NONE

enum block_state { BLOCK_UNUSED, BLOCK_FREE, BLOCK_TAKEN };

struct block {
	uint64_t offset;
	uint64_t length;
	uint32_t below; /* by address, across gaps */
	uint32_t above;
	uint32_t previous; /* by size class; `next` also links unused blocks */
	uint32_t next;
	uint32_t owner;
	uint32_t state;
};

struct region {
	uint64_t offset;
	uint64_t length;
	uint32_t first;
};

struct kvb_extents {
	struct block *blocks;
	size_t table_bytes;
	uint64_t ready;
	uint64_t used;
	uint32_t shift; /* alignment is 1 << shift */
	uint32_t extents_max;
	uint32_t taken;
	uint32_t fresh;  /* blocks from here on were never touched */
	uint32_t unused; /* list of given back blocks */
	uint32_t regions_count;
	uint32_t regions_room;
	struct region *regions; /* by offset */
	uint64_t tops;          /* bit per top with a block in one of its subs */
	uint32_t subs[TOPS];
	uint32_t heads[TOPS * SUBS];
};

int kvb_extents_new(uint32_t extents_max, uint64_t alignment, struct kvb_extents **ret_extents)
{
	/* Free extents never touch, so there is at most one above each allocated one and one at the
	 * start of each region. One block more is the end, and one a range on its way in. */
	uint64_t blocks_max = 2ull * extents_max + REGIONS_MAX + 2;
	struct kvb_extents *extents;

	if (!kvb_is_power_of_two(alignment) || extents_max == 0 || blocks_max > UINT32_MAX)
		return -EINVAL;
	extents = calloc(1, sizeof(*extents));
	if (!extents)
		return -ENOMEM;
	extents->table_bytes = blocks_max * sizeof(struct block);
	extents->blocks = mmap(NULL, extents->table_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (extents->blocks == MAP_FAILED) {
		free(extents);
		return -ENOMEM;
	}
	extents->shift = (uint32_t)__builtin_ctzll(alignment);
	extents->extents_max = extents_max;
	extents->fresh = 1;
	*ret_extents = extents;
	return 0;
}

void kvb_extents_free(struct kvb_extents *extents)
{
	if (!extents)
		return;
	munmap(extents->blocks, extents->table_bytes);
	free(extents->regions);
	free(extents);
}

/* The class whose lengths include this one: exact below 2 * SUBS units. */
static uint32_t class_of(uint64_t units)
{
	uint32_t log;

	if (units < SUBS)
		return (uint32_t)units;
	log = 63u - (uint32_t)__builtin_clzll(units);
	return (log - SUB_BITS + 1) * SUBS + (uint32_t)(units >> (log - SUB_BITS)) % SUBS;
}

/* The lowest class of which every block has at least so many units. */
static uint32_t class_above(uint64_t units)
{
	uint32_t top = class_of(units) / SUBS;
	uint64_t step = top > 1 ? 1ull << (top - 1) : 1;

	return class_of(units + step - 1);
}

static uint32_t class_of_block(const struct kvb_extents *extents, uint32_t id)
{
	return class_of(extents->blocks[id].length >> extents->shift);
}

static void class_add(struct kvb_extents *extents, uint32_t id)
{
	uint32_t class = class_of_block(extents, id);
	struct block *block = &extents->blocks[id];

	block->state = BLOCK_FREE;
	block->previous = NONE;
	block->next = extents->heads[class];
	if (block->next != NONE)
		extents->blocks[block->next].previous = id;
	extents->heads[class] = id;
	extents->subs[class / SUBS] |= 1u << class % SUBS;
	extents->tops |= 1ull << class / SUBS;
}

static void class_remove(struct kvb_extents *extents, uint32_t id)
{
	uint32_t class = class_of_block(extents, id);
	const struct block *block = &extents->blocks[id];

	if (block->next != NONE)
		extents->blocks[block->next].previous = block->previous;
	if (block->previous != NONE)
		extents->blocks[block->previous].next = block->next;
	else
		extents->heads[class] = block->next;
	if (extents->heads[class] != NONE)
		return;
	extents->subs[class / SUBS] &= ~(1u << class % SUBS);
	if (extents->subs[class / SUBS] == 0)
		extents->tops &= ~(1ull << class / SUBS);
}

/* Some block of the lowest class from `class` on that has one. */
static uint32_t find_from(const struct kvb_extents *extents, uint32_t class)
{
	uint32_t top = class / SUBS;
	uint32_t subs = extents->subs[top] & ~0u << class % SUBS;

	if (subs == 0) {
		uint64_t tops = extents->tops & ~0ull << (top + 1);
		if (tops == 0)
			return NONE;
		top = (uint32_t)__builtin_ctzll(tops);
		subs = extents->subs[top];
	}
	return extents->heads[top * SUBS + (uint32_t)__builtin_ctz(subs)];
}

static uint32_t find_fit(const struct kvb_extents *extents, uint64_t length)
{
	uint32_t own = class_of(length >> extents->shift);
	uint32_t id = extents->heads[own];

	/* Objects of one length reuse each other's holes as they are. */
	if (id != NONE && extents->blocks[id].length >= length)
		return id;
	id = find_from(extents, class_above(length >> extents->shift));
	if (id != NONE)
		return id;
	id = extents->heads[own];
	while (id != NONE && extents->blocks[id].length < length)
		id = extents->blocks[id].next;
	return id;
}

static uint32_t block_new(struct kvb_extents *extents)
{
	uint32_t id = extents->unused;

	if (id != NONE)
		extents->unused = extents->blocks[id].next;
	else
		id = extents->fresh++;
	return id;
}

static void block_drop(struct kvb_extents *extents, uint32_t id)
{
	extents->blocks[id] = (struct block){.next = extents->unused, .state = BLOCK_UNUSED};
	extents->unused = id;
}

static void insert_above(struct kvb_extents *extents, uint32_t below, uint32_t id)
{
	struct block *blocks = extents->blocks;

	blocks[id].below = below;
	blocks[id].above = blocks[below].above;
	blocks[blocks[below].above].below = id;
	blocks[below].above = id;
}

/* Leaves `length` bytes in the block; the rest becomes a free block above it. */
static void split(struct kvb_extents *extents, uint32_t id, uint64_t length)
{
	struct block *block = &extents->blocks[id];
	uint32_t rest = block_new(extents);

	extents->blocks[rest] =
		(struct block){.offset = block->offset + length, .length = block->length - length};
	block->length = length;
	insert_above(extents, id, rest);
	class_add(extents, rest);
}

/* Makes the block above part of this one. Neither is in a class. */
static void absorb_above(struct kvb_extents *extents, uint32_t id)
{
	struct block *blocks = extents->blocks;
	uint32_t gone = blocks[id].above;

	blocks[id].length += blocks[gone].length;
	blocks[id].above = blocks[gone].above;
	blocks[blocks[gone].above].below = id;
	block_drop(extents, gone);
}

int kvb_extent_alloc(struct kvb_extents *extents, uint64_t length, uint32_t *ret_extent)
{
	uint64_t alignment = 1ull << extents->shift;
	struct block *block;
	uint32_t id;

	if (length == 0)
		return -EINVAL;
	if (length > extents->ready - extents->used)
		return -ENOSPC;
	if (extents->taken == extents->extents_max)
		return -ENOMEM;
	length = kvb_round_up(length, alignment);
	id = find_fit(extents, length);
	if (id == NONE)
		return -ENOSPC;
	class_remove(extents, id);
	block = &extents->blocks[id];
	if (block->length > length)
		split(extents, id, length);
	block->state = BLOCK_TAKEN;
	block->owner = 0;
	extents->used += length;
	extents->taken++;
	*ret_extent = id;
	return 0;
}

uint32_t kvb_extent_below(const struct kvb_extents *extents, uint32_t extent)
{
	const struct block *blocks = extents->blocks;
	uint32_t below = blocks[extent].below;

	if (below == NONE || blocks[below].offset + blocks[below].length != blocks[extent].offset)
		return NONE;
	return below;
}

uint32_t kvb_extent_above(const struct kvb_extents *extents, uint32_t extent)
{
	const struct block *blocks = extents->blocks;
	uint32_t above = blocks[extent].above;

	if (above == NONE || blocks[extent].offset + blocks[extent].length != blocks[above].offset)
		return NONE;
	return above;
}

/* The block is in no class yet. */
static void join_and_class(struct kvb_extents *extents, uint32_t id)
{
	uint32_t above = kvb_extent_above(extents, id);
	uint32_t below = kvb_extent_below(extents, id);

	if (above != NONE && kvb_extent_is_free(extents, above)) {
		class_remove(extents, above);
		absorb_above(extents, id);
	}
	if (below != NONE && kvb_extent_is_free(extents, below)) {
		class_remove(extents, below);
		absorb_above(extents, below);
		id = below;
	}
	class_add(extents, id);
}

void kvb_extent_free(struct kvb_extents *extents, uint32_t extent)
{
	extents->used -= extents->blocks[extent].length;
	extents->taken--;
	join_and_class(extents, extent);
}

/* How many regions begin below the offset. */
static uint32_t regions_below(const struct kvb_extents *extents, uint64_t offset)
{
	uint32_t low = 0, high = extents->regions_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (extents->regions[middle].offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static int regions_grow(struct kvb_extents *extents)
{
	uint32_t room = extents->regions_room ? extents->regions_room * 2 : 16;
	struct region *regions;

	if (extents->regions_count < extents->regions_room)
		return 0;
	if (extents->regions_count == REGIONS_MAX)
		return -ENOMEM;
	regions = reallocarray(extents->regions, room, sizeof(*regions));
	if (!regions)
		return -ENOMEM;
	extents->regions = regions;
	extents->regions_room = room;
	return 0;
}

/* Enters the range before region number `index` and joins what touches. There is room for one. */
static void regions_add(struct kvb_extents *extents, uint32_t index, struct region region)
{
	struct region *at = &extents->regions[index];
	uint32_t after = extents->regions_count - index;
	bool joins_below = index > 0 && at[-1].offset + at[-1].length == region.offset;
	bool joins_above = after > 0 && region.offset + region.length == at->offset;

	if (joins_below) {
		at[-1].length += region.length + (joins_above ? at->length : 0);
	} else if (joins_above) {
		region.length += at->length;
		*at = region;
	} else {
		memmove(at + 1, at, after * sizeof(*at));
		*at = region;
		extents->regions_count++;
	}
	if (joins_below && joins_above) {
		memmove(at, at + 1, (after - 1) * sizeof(*at));
		extents->regions_count--;
	}
}

static bool range_is_new(
	const struct kvb_extents *extents, uint32_t index, uint64_t offset, uint64_t length)
{
	const struct region *regions = extents->regions;

	if (length == 0 || (offset | length) & ((1ull << extents->shift) - 1))
		return false;
	if (offset > INT64_MAX || length > INT64_MAX - offset)
		return false;
	if (index > 0 && offset - regions[index - 1].offset < regions[index - 1].length)
		return false;
	return index == extents->regions_count || regions[index].offset - offset >= length;
}

int kvb_extent_add_range(struct kvb_extents *extents, uint64_t offset, uint64_t length)
{
	uint32_t index = regions_below(extents, offset);
	uint32_t id, above;
	int r;

	if (!range_is_new(extents, index, offset, length))
		return -EINVAL;
	r = regions_grow(extents);
	if (r < 0)
		return r;
	above = index < extents->regions_count ? extents->regions[index].first : NONE;
	id = block_new(extents);
	extents->blocks[id] = (struct block){.offset = offset, .length = length};
	insert_above(extents, extents->blocks[above].below, id);
	regions_add(extents, index, (struct region){offset, length, id});
	extents->ready += length;
	join_and_class(extents, id);
	return 0;
}

uint64_t kvb_extent_offset(const struct kvb_extents *extents, uint32_t extent)
{
	return extents->blocks[extent].offset;
}

uint64_t kvb_extent_length(const struct kvb_extents *extents, uint32_t extent)
{
	return extents->blocks[extent].length;
}

bool kvb_extent_is_free(const struct kvb_extents *extents, uint32_t extent)
{
	return extents->blocks[extent].state == BLOCK_FREE;
}

void kvb_extent_set_owner(struct kvb_extents *extents, uint32_t extent, uint32_t owner)
{
	extents->blocks[extent].owner = owner;
}

uint32_t kvb_extent_owner(const struct kvb_extents *extents, uint32_t extent)
{
	return extents->blocks[extent].owner;
}

uint64_t kvb_extents_ready(const struct kvb_extents *extents)
{
	return extents->ready;
}

uint64_t kvb_extents_used(const struct kvb_extents *extents)
{
	return extents->used;
}

uint32_t kvb_extents_count(const struct kvb_extents *extents)
{
	return extents->taken;
}

uint64_t kvb_extents_largest(const struct kvb_extents *extents)
{
	uint64_t largest = 0;
	uint32_t top, sub, id;

	if (extents->tops == 0)
		return 0;
	top = 63u - (uint32_t)__builtin_clzll(extents->tops);
	sub = 31u - (uint32_t)__builtin_clz(extents->subs[top]);
	id = extents->heads[top * SUBS + sub];
	if (top < 2) /* they are all equal, and there may be very many */
		return extents->blocks[id].length;
	for (; id != NONE; id = extents->blocks[id].next)
		largest = kvb_max_u64(largest, extents->blocks[id].length);
	return largest;
}

struct tally {
	uint64_t ready;
	uint64_t used;
	uint32_t taken;
	uint32_t free;
	uint32_t regions;
};

static bool check_region(const struct kvb_extents *extents, const struct tally *tally, uint32_t id)
{
	const struct region *region;

	if (tally->regions >= extents->regions_count)
		return false;
	region = &extents->regions[tally->regions];
	return region->first == id && region->offset == extents->blocks[id].offset &&
		(tally->regions + 1 == extents->regions_count ||
			region->offset + region->length < region[1].offset);
}

static bool check_block(const struct kvb_extents *extents, struct tally *tally, uint32_t id)
{
	const struct block *block = &extents->blocks[id];
	uint32_t below = kvb_extent_below(extents, id);
	bool is_free = block->state == BLOCK_FREE;

	if (block->length == 0 || (block->offset | block->length) & ((1ull << extents->shift) - 1))
		return false;
	if (block->state == BLOCK_UNUSED || extents->blocks[block->above].below != id)
		return false;
	if (below != NONE && is_free && kvb_extent_is_free(extents, below))
		return false;
	if (block->below != NONE && below == NONE &&
		block->offset <= extents->blocks[block->below].offset)
		return false;
	if (below == NONE && !check_region(extents, tally, id))
		return false;
	tally->regions += below == NONE;
	tally->ready += block->length;
	tally->used += is_free ? 0 : block->length;
	tally->taken += !is_free;
	tally->free += is_free;
	return true;
}

static bool check_class(const struct kvb_extents *extents, uint32_t class, uint32_t *counted)
{
	bool has_bit = extents->subs[class / SUBS] >> class % SUBS & 1;
	uint32_t previous = NONE, id;

	if (has_bit != (extents->heads[class] != NONE))
		return false;
	if ((extents->tops >> class / SUBS & 1) != (extents->subs[class / SUBS] != 0))
		return false;
	for (id = extents->heads[class]; id != NONE; id = extents->blocks[id].next) {
		const struct block *block = &extents->blocks[id];
		if (block->state != BLOCK_FREE || block->previous != previous ||
			class_of_block(extents, id) != class || ++*counted > extents->fresh)
			return false;
		previous = id;
	}
	return true;
}

int kvb_extents_check(const struct kvb_extents *extents)
{
	struct tally tally = {0};
	uint64_t region_bytes = 0;
	uint32_t id, i, in_classes = 0, unused = 0;

	for (id = extents->blocks[NONE].above; id != NONE; id = extents->blocks[id].above) {
		if (tally.taken + tally.free > extents->fresh || !check_block(extents, &tally, id))
			return -EBADMSG;
	}
	for (i = 0; i < TOPS * SUBS; i++) {
		if (!check_class(extents, i, &in_classes))
			return -EBADMSG;
	}
	for (i = 0; i < extents->regions_count; i++)
		region_bytes += extents->regions[i].length;
	for (id = extents->unused; id != NONE && unused <= extents->fresh; unused++)
		id = extents->blocks[id].next;
	if (tally.ready != extents->ready || tally.ready != region_bytes ||
		tally.used != extents->used || tally.taken != extents->taken ||
		tally.regions != extents->regions_count || tally.free != in_classes ||
		tally.taken + tally.free + unused + 1 != extents->fresh)
		return -EBADMSG;
	return 0;
}
