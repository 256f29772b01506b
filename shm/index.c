/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c - see index.h.
 *
 * Owns nothing; any thread of any process that maps the index. The server is its only writer. It
 * must never take a stale entry for a miss, and never use what it read of a slot before it has seen
 * that the slot is still the same: either both loads of the state word agree, or everything in
 * between is forgotten.
 */
#include "shm/index.h"

#include <errno.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shm/atomic.h"
#include "shm/util.h"

/* Far more than any chain, or any run of replacements that one lookup can meet: beyond it the index is
 * not what it should be. Few enough for a reader of a server that lies to be back in a moment. */
#define BLOCKS_MAX   64u
#define RESTARTS_MAX 10000u

/* A slot is not the same any more: what was read of it means nothing. */
#define STALE 1

int kvb_index_open(struct kvb_index *ret_index, const void *base, uint64_t bytes)
{
	struct kvb_index_header header;

	if (bytes < sizeof(header))
		return -EPROTO;
	/* Volatile, so that the compiler cannot read the server's memory again after the checks. */
	header = *(const volatile struct kvb_index_header *)base;
	if (header.magic != KVB_MAGIC || header.abi != KVB_ABI_VERSION ||
		!kvb_is_power_of_two(header.buckets) || header.blocks / 2 < header.buckets ||
		header.blocks_offset % KVB_LINE != 0 || header.slots_offset % KVB_LINE != 0)
		return -EPROTO;
	if (!kvb_range_fits(header.blocks_offset,
		    header.blocks * (uint64_t)sizeof(struct kvb_index_block), bytes) ||
		!kvb_range_fits(header.slots_offset,
			header.slots * (uint64_t)sizeof(struct kvb_index_slot), bytes))
		return -EPROTO;
	*ret_index = (struct kvb_index){
		.blocks = (const void *)((const char *)base + header.blocks_offset),
		.slots = (const void *)((const char *)base + header.slots_offset),
		.hash_seed = header.hash_seed,
		.pool_bytes = header.pool_bytes,
		.bucket_mask = header.buckets - 1,
		.n_blocks = header.blocks,
		.n_slots = header.slots,
		.restarts_max = RESTARTS_MAX};
	return 0;
}

int kvb_leases_open(struct kvb_leases *ret_leases, void *base, uint64_t bytes)
{
	struct kvb_lease_header header;
	uint64_t *words;

	if (bytes < sizeof(header))
		return -EPROTO;
	/* As above. */
	header = *(const volatile struct kvb_lease_header *)base;
	if (header.magic != KVB_MAGIC || header.abi != KVB_ABI_VERSION ||
		!kvb_is_power_of_two(header.touches) || header.cells == 0 ||
		kvb_lease_bytes(header.cells, header.touches) > bytes)
		return -EPROTO;
	words = (uint64_t *)((char *)base + sizeof(header));
	*ret_leases = (struct kvb_leases){.header = base,
		.cells = words,
		.touches = words + header.cells,
		.n_cells = header.cells,
		.touch_mask = header.touches - 1};
	return 0;
}

uint64_t kvb_key_hash(const void *key, size_t key_len, uint64_t seed)
{
	return XXH3_64bits_withSeed(key, key_len, seed);
}

uint64_t kvb_index_hash(const struct kvb_index *index, const void *key, size_t key_len)
{
	return kvb_key_hash(key, key_len, index->hash_seed);
}

static const struct kvb_index_block *first_block(const struct kvb_index *index, uint64_t hash)
{
	return &index->blocks[2 * (hash & index->bucket_mask)];
}

void kvb_index_prefetch(const struct kvb_index *index, uint64_t hash)
{
	__builtin_prefetch(first_block(index, hash));
}

/* Whether the slot's key is this one; of a slot that may change meanwhile. */
static bool key_matches(const struct kvb_index_slot *slot, const void *key, size_t key_len)
{
	const uint8_t *bytes = key;
	uint64_t word;
	size_t i;

	if (kvb_load_relaxed(&slot->key_len) != key_len)
		return false;
	for (i = 0; i < key_len / 8; i++) {
		memcpy(&word, bytes + 8 * i, 8);
		if (kvb_load_relaxed(&slot->key[i]) != word)
			return false;
	}
	if (key_len % 8 == 0)
		return true;
	word = 0;
	memcpy(&word, bytes + 8 * i, key_len % 8);
	return kvb_load_relaxed(&slot->key[i]) == word;
}

/* 0 it is the key's object; -ENOENT it is another's; STALE. */
static int look_at(const struct kvb_index *index, uint64_t entry, const void *key, size_t key_len,
	struct kvb_found *ret_found)
{
	uint32_t number = (uint32_t)entry - 1;
	const struct kvb_index_slot *slot = &index->slots[number];
	uint64_t state;
	bool matches;

	if (number >= index->n_slots)
		return -EPROTO;
	/* The key lies on the next lines; their misses need not wait for the first one's. */
	__builtin_prefetch((const char *)slot + 64);
	__builtin_prefetch((const char *)slot + 128);
	/* Pairs with the release store in kvb_index_fill() of the server: key and place are there. */
	state = kvb_load_acquire(&slot->state);
	if ((state & 3) != KVB_INDEX_LIVE || (uint16_t)(state >> 2) != (uint16_t)(entry >> 32))
		return STALE;
	matches = key_matches(slot, key, key_len);
	*ret_found = (struct kvb_found){.slot = number,
		.state = state,
		.offset = kvb_load_relaxed(&slot->offset),
		.length = kvb_load_relaxed(&slot->length)};
	/* Orders the loads above before the one below; pairs with the fence between the server's
	 * stores of the state word and of what comes next into the slot. */
	kvb_fence_acquire_release();
	if (kvb_load_relaxed(&slot->state) != state)
		return STALE;
	return matches ? 0 : -ENOENT;
}

/* Once through the chain. 0; -ENOENT; STALE. */
static int search(const struct kvb_index *index, uint64_t hash, const void *key, size_t key_len,
	struct kvb_found *ret_found)
{
	const struct kvb_index_block *block = first_block(index, hash);
	uint64_t next;

	for (unsigned n = 0; n < BLOCKS_MAX; n++) {
		for (unsigned i = 0; i < KVB_INDEX_ENTRIES; i++) {
			/* Pairs with the server's release stores of entries: the slot is LIVE. */
			uint64_t entry = kvb_load_acquire(&block->entries[i]);
			int r;
			if (entry == 0 || entry >> 48 != hash >> 48)
				continue;
			r = look_at(index, entry, key, key_len, ret_found);
			if (r != -ENOENT)
				return r;
			/* The slot may have come round to the entry's 16 bits of generation while
			 * this thread was not running: then the entry has changed. */
			if (kvb_load_relaxed(&block->entries[i]) != entry)
				return STALE;
		}
		next = kvb_load_acquire(&block->next);
		if (next == 0)
			return -ENOENT;
		if (next >= index->n_blocks)
			return -EPROTO;
		block = &index->blocks[next];
	}
	return -EPROTO;
}

/* A stale entry is one that the server has cleared or replaced since: the bucket has the answer by now,
 * which may be another object of the same key. Counts down the restarts that are left. */
static int find(const struct kvb_index *index, uint64_t hash, const void *key, size_t key_len,
	uint32_t *restarts, struct kvb_found *ret_found)
{
	for (; *restarts > 0; (*restarts)--) {
		int r = search(index, hash, key, key_len, ret_found);
		if (r != STALE)
			return r;
		kvb_cpu_relax();
	}
	return -EPROTO;
}

int kvb_index_find(const struct kvb_index *index, uint64_t hash, const void *key, size_t key_len,
	struct kvb_found *ret_found)
{
	uint32_t restarts = index->restarts_max;

	return find(index, hash, key, key_len, &restarts, ret_found);
}

static bool is_sound(const struct kvb_index *index, const struct kvb_found *found)
{
	return kvb_range_fits(found->offset, found->length, index->pool_bytes);
}

int kvb_index_lease(const struct kvb_index *index, uint64_t *cell, uint64_t hash, const void *key,
	size_t key_len, struct kvb_found *ret_found)
{
	for (uint32_t restarts = index->restarts_max; restarts > 0; restarts--) {
		int r = find(index, hash, key, key_len, &restarts, ret_found);
		if (r < 0)
			return r;
		kvb_store_relaxed(cell, kvb_lease_word(ret_found->slot, ret_found->state));
		/* Orders the store above before the load below; pairs with the fence between the
		 * server's DYING and its scan of the cells: either it sees the lease, or this
		 * sees DYING. */
		kvb_fence_full();
		if (kvb_load_relaxed(&index->slots[ret_found->slot].state) == ret_found->state) {
			if (is_sound(index, ret_found))
				return 0;
			kvb_lease_clear(cell);
			return -EPROTO;
		}
		kvb_lease_clear(cell);
	}
	return -EPROTO;
}

void kvb_lease_clear(uint64_t *cell)
{
	/* All reads of the bytes come before; pairs with the acquire loads of the server's scan. */
	kvb_store_release(cell, (uint64_t)0);
}
