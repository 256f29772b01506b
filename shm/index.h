/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - looking a key up in the server's index, and leasing what it leads to, from any process.
 *
 * Every function may run in any number of threads and processes at once, beside a server that
 * inserts, replaces and evicts: no locks, no system calls, no messages.
 */
#ifndef KVB_SHM_INDEX_H
#define KVB_SHM_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvbell/protocol.h"

/* The index as one reader sees it: private copies of what is constant. */
struct kvb_index {
	const struct kvb_index_block *blocks;
	const struct kvb_index_slot *slots;
	uint64_t hash_seed;
	uint64_t pool_bytes;
	uint32_t bucket_mask;
	uint32_t n_blocks;
	uint32_t n_slots;
	uint32_t restarts_max; /* stale entries in a row after which the index makes no sense */
};

/* An object as it was when it was found. */
struct kvb_found {
	uint32_t slot;
	uint64_t state; /* the slot's word, LIVE */
	uint64_t offset;
	uint64_t length;
};

/* A lease memfd as its client sees it. */
struct kvb_leases {
	struct kvb_lease_header *header;
	uint64_t *cells;
	uint64_t *touches;
	uint32_t n_cells;
	uint32_t touch_mask;
};

static inline uint64_t kvb_lease_bytes(uint32_t cells, uint32_t touches)
{
	return sizeof(struct kvb_lease_header) + ((uint64_t)cells + touches) * sizeof(uint64_t);
}

/* The word that says: this slot in this generation. */
static inline uint64_t kvb_lease_word(uint32_t slot, uint64_t state)
{
	return ((uint64_t)slot + 1) | (state >> 2 << 32);
}

/* Checks a mapped index and remembers where things are. 0; -EPROTO. */
int kvb_index_open(struct kvb_index *ret_index, const void *base, uint64_t bytes);
/* Checks a mapped lease memfd. 0; -EPROTO. */
int kvb_leases_open(struct kvb_leases *ret_leases, void *base, uint64_t bytes);

/* XXH3 with a seed, in 64 bits. */
uint64_t kvb_key_hash(const void *key, size_t key_len, uint64_t seed);
uint64_t kvb_index_hash(const struct kvb_index *index, const void *key, size_t key_len);
/* Asks for the memory that a lookup of the hash begins with. */
void kvb_index_prefetch(const struct kvb_index *index, uint64_t hash);

/* Finds a visible object, and claims nothing: it may be gone at the next moment. `hash` is that of the
 * key, which is not longer than KVB_INDEX_KEY_MAX. 0; -ENOENT; -EPROTO the index makes no sense. */
int kvb_index_find(const struct kvb_index *index, uint64_t hash, const void *key, size_t key_len,
	struct kvb_found *ret_found);

/* Finds and leases: the bytes at ret_found->offset stay as they are until kvb_lease_clear(). The cell
 * is the caller's alone, and 0. Results as kvb_index_find(), with the cell cleared on error. */
int kvb_index_lease(const struct kvb_index *index, uint64_t *cell, uint64_t hash, const void *key,
	size_t key_len, struct kvb_found *ret_found);
void kvb_lease_clear(uint64_t *cell);

#endif /* KVB_SHM_INDEX_H */
