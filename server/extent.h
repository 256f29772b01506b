/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent.h - which contiguous parts of the pool are free, and which are taken.
 *
 * Not thread-safe: its owner (store.c) locks. It knows offsets only and never touches pool memory.
 * An extent is named by a number that stays valid until it is freed.
 */
#ifndef KVB_SERVER_EXTENT_H
#define KVB_SERVER_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#define KVB_EXTENT_NONE 0u

struct kvb_extents;

/* extents_max: allocated at once at most. alignment: power of two; lengths are rounded up to it.
 * 0; -EINVAL; -ENOMEM. Starts without any free byte. */
int kvb_extents_new(uint32_t extents_max, uint64_t alignment, struct kvb_extents **ret_extents);
void kvb_extents_free(struct kvb_extents *extents);

/* Adds free bytes and joins them with what lies next to them, in any order.
 * 0; -EINVAL unaligned, empty or (partly) there already; -ENOMEM too many separate ranges. */
int kvb_extent_add_range(struct kvb_extents *extents, uint64_t offset, uint64_t length);

/* 0; -EINVAL length 0; -ENOSPC no free extent is long enough; -ENOMEM extents_max are out.
 * -ENOSPC is exact: it is never returned while some free extent is long enough. */
int kvb_extent_alloc(struct kvb_extents *extents, uint64_t length, uint32_t *ret_extent);

/* Takes an allocated extent back and joins it with free neighbours. Numbers of allocated extents
 * stay as they are; of joined free ones the lowest by address survives. */
void kvb_extent_free(struct kvb_extents *extents, uint32_t extent);

/* Of an allocated extent the offset and the length never change, so whoever owns it may read them
 * without the lock. */
uint64_t kvb_extent_offset(const struct kvb_extents *extents, uint32_t extent);
uint64_t kvb_extent_length(const struct kvb_extents *extents, uint32_t extent);
bool kvb_extent_is_free(const struct kvb_extents *extents, uint32_t extent);

/* A number the caller attaches to an allocated extent; 0 until set. */
void kvb_extent_set_owner(struct kvb_extents *extents, uint32_t extent, uint32_t owner);
uint32_t kvb_extent_owner(const struct kvb_extents *extents, uint32_t extent);

/* The extent, free or allocated, that touches this one; KVB_EXTENT_NONE at a gap or an end. */
uint32_t kvb_extent_below(const struct kvb_extents *extents, uint32_t extent);
uint32_t kvb_extent_above(const struct kvb_extents *extents, uint32_t extent);

uint64_t kvb_extents_ready(const struct kvb_extents *extents); /* bytes added */
uint64_t kvb_extents_used(const struct kvb_extents *extents);  /* bytes allocated, with alignment */
uint32_t kvb_extents_count(const struct kvb_extents *extents); /* allocated extents */
/* Length of the largest free extent: looks at the topmost size class only. */
uint64_t kvb_extents_largest(const struct kvb_extents *extents);

/* Recounts everything. 0; -EBADMSG. */
int kvb_extents_check(const struct kvb_extents *extents);

#endif /* KVB_SERVER_EXTENT_H */
