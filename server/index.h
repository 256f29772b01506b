/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - the writer of the shared index (shm/index.h has the readers).
 *
 * The store is its one caller and holds its lock: one writer at a time. What is written here is seen
 * by readers in other processes at once, in the order in which it is written.
 */
#ifndef KVB_SERVER_INDEX_H
#define KVB_SERVER_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "kvbell/protocol.h"
#include "shm/segment.h"

/* Most blocks of a chain; every one is a cache line that a reader may have to look at. */
#define KVB_CHAIN_MAX     4u
#define KVB_CHAIN_ENTRIES (KVB_CHAIN_MAX * KVB_INDEX_ENTRIES)

struct kvb_index_writer {
	struct kvb_segment segment;
	struct kvb_index_block *blocks;
	struct kvb_index_slot *slots;
	uint64_t hash_seed;
	uint64_t populated; /* bytes from the segment's start that are sure to be there */
	uint32_t bucket_mask;
	uint32_t next_reserve; /* the first block of the reserve that no chain has taken */
	uint32_t n_blocks;
	uint32_t n_slots;
};

/* Makes an empty index for slots 0 to n_slots - 1. 0; -ENOMEM; other -errno. */
int kvb_index_new(struct kvb_index_writer *index, const uint8_t boot_id[KVB_ID_BYTES],
	uint64_t hash_seed, uint64_t pool_bytes, uint32_t n_slots);
void kvb_index_free(struct kvb_index_writer *index);

/* Tells readers that a part of the pool is populated, if it joins those from the start. */
void kvb_index_set_ready(struct kvb_index_writer *index, uint64_t offset, uint64_t length);

/* Before the slot's first use: makes sure of its memory. 0; -ENOMEM. */
int kvb_index_prepare(struct kvb_index_writer *index, uint32_t slot);

/* Describes an object in an EMPTY slot and makes it LIVE; nobody finds it yet. */
void kvb_index_fill(struct kvb_index_writer *index, uint32_t slot, const void *key, size_t key_len,
	uint64_t offset, uint64_t length);
/* Makes readers find a LIVE slot. 0; -ENOSPC the chain is full. */
int kvb_index_insert(struct kvb_index_writer *index, uint32_t slot, uint64_t hash);
/* Makes readers find `slot` where they found `old`, which has the same key, with nothing between. */
void kvb_index_replace(struct kvb_index_writer *index, uint32_t old, uint32_t slot, uint64_t hash);
/* Makes readers find it no more. */
void kvb_index_remove(struct kvb_index_writer *index, uint32_t slot, uint64_t hash);
/* Allows no more leases of it: those that are not seen in the cells after a full fence do not
 * exist. */
void kvb_index_retire(struct kvb_index_writer *index, uint32_t slot);
/* The slot may be filled again, as the next generation. */
void kvb_index_recycle(struct kvb_index_writer *index, uint32_t slot);

/* The slots of a hash's chain. Returns how many. */
uint32_t kvb_index_chain(
	const struct kvb_index_writer *index, uint64_t hash, uint32_t ret_slots[KVB_CHAIN_ENTRIES]);
uint64_t kvb_index_state_of(const struct kvb_index_writer *index, uint32_t slot);

#endif /* KVB_SERVER_INDEX_H */
