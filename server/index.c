/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c - see index.h.
 *
 * Owns the index memfd; any thread, under the store's lock. It must never let an entry lead to a
 * slot that is not LIVE: a slot becomes LIVE before its entry appears, and its entry goes before it
 * stops to be LIVE. So a reader that meets a slot in another state knows that the entry has changed.
 */
#include "server/index.h"

#include <errno.h>
#include <string.h>

#include "shm/atomic.h"
#include "shm/util.h"

#define ENTRIES_PER_BUCKET 4u /* on average; one line holds seven */
#define BUCKETS_MIN        16u
#define POPULATE_BYTES     (4 * KVB_MIB)

static uint64_t entry_of(const struct kvb_index_writer *index, uint32_t slot, uint64_t hash)
{
	uint16_t generation = (uint16_t)(kvb_index_state_of(index, slot) >> 2);

	return hash >> 48 << 48 | (uint64_t)generation << 32 | (slot + 1);
}

static uint32_t slot_of(uint64_t entry)
{
	return (uint32_t)entry - 1;
}

uint64_t kvb_index_state_of(const struct kvb_index_writer *index, uint32_t slot)
{
	return kvb_load_relaxed(&index->slots[slot].state);
}

/* ------------------------------------------------------------------------------------- life and memory */

static uint32_t buckets_for(uint32_t n_slots)
{
	uint32_t buckets = BUCKETS_MIN;

	while (buckets < n_slots / ENTRIES_PER_BUCKET)
		buckets *= 2;
	return buckets;
}

int kvb_index_new(struct kvb_index_writer *index, const uint8_t boot_id[KVB_ID_BYTES],
	uint64_t hash_seed, uint64_t pool_bytes, uint32_t n_slots)
{
	uint32_t buckets = buckets_for(n_slots), blocks = 2 * buckets + buckets / 8;
	struct kvb_index_header header = {.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.hash_seed = hash_seed,
		.pool_bytes = pool_bytes,
		.blocks_offset = sizeof(header),
		.buckets = buckets,
		.blocks = blocks,
		.slots = n_slots};
	char *base;
	int r;

	header.slots_offset = kvb_round_up(
		header.blocks_offset + (uint64_t)blocks * sizeof(struct kvb_index_block), 4096);
	memcpy(header.boot_id, boot_id, KVB_ID_BYTES);
	*index = (struct kvb_index_writer){.segment = KVB_SEGMENT_NONE};
	r = kvb_segment_new("kvbell-index",
		kvb_round_up(
			header.slots_offset + (uint64_t)n_slots * sizeof(struct kvb_index_slot),
			4096),
		KVB_SEALS_FIXED_SIZE | KVB_SEAL_FUTURE_WRITE, &index->segment);
	if (r == 0)
		r = kvb_segment_populate(&index->segment, 0, header.slots_offset, true);
	if (r < 0) {
		kvb_segment_free(&index->segment);
		return r;
	}
	base = index->segment.base;
	memcpy(base, &header, sizeof(header));
	index->blocks = (struct kvb_index_block *)(base + header.blocks_offset);
	index->slots = (struct kvb_index_slot *)(base + header.slots_offset);
	index->hash_seed = hash_seed;
	index->populated = header.slots_offset;
	index->bucket_mask = buckets - 1;
	index->next_reserve = 2 * buckets;
	index->n_blocks = blocks;
	index->n_slots = n_slots;
	return 0;
}

void kvb_index_free(struct kvb_index_writer *index)
{
	kvb_segment_free(&index->segment);
}

void kvb_index_set_ready(struct kvb_index_writer *index, uint64_t offset, uint64_t length)
{
	struct kvb_index_header *header = index->segment.base;

	if (kvb_load_relaxed(&header->ready_bytes) == offset)
		kvb_store_relaxed(&header->ready_bytes, offset + length);
}

int kvb_index_prepare(struct kvb_index_writer *index, uint32_t slot)
{
	uint64_t end = (uint64_t)((char *)&index->slots[slot + 1] - (char *)index->segment.base);
	uint64_t bytes;
	int r;

	if (end <= index->populated)
		return 0;
	bytes = kvb_min_u64(kvb_max_u64(POPULATE_BYTES, kvb_round_up(end - index->populated, 4096)),
		index->segment.bytes - index->populated);
	r = kvb_segment_populate(&index->segment, index->populated, bytes, true);
	if (r == 0)
		index->populated += bytes;
	return r;
}

/* -------------------------------------------------------------------------------------------- slots */

void kvb_index_fill(struct kvb_index_writer *index, uint32_t slot, const void *key, size_t key_len,
	uint64_t offset, uint64_t length)
{
	struct kvb_index_slot *object = &index->slots[slot];
	uint64_t words[KVB_INDEX_KEY_MAX / 8] = {0};

	memcpy(words, key, key_len);
	kvb_store_relaxed(&object->offset, offset);
	kvb_store_relaxed(&object->length, length);
	kvb_store_relaxed(&object->key_len, key_len);
	for (size_t i = 0; i < (key_len + 7) / 8; i++)
		kvb_store_relaxed(&object->key[i], words[i]);
	/* Publishes what was stored above; pairs with the acquire load in look_at() of
	 * shm/index.c. */
	kvb_store_release(
		&object->state, (kvb_load_relaxed(&object->state) & ~(uint64_t)3) | KVB_INDEX_LIVE);
}

void kvb_index_retire(struct kvb_index_writer *index, uint32_t slot)
{
	uint64_t *state = &index->slots[slot].state;

	/* Orders the change of the entry before the store below; pairs with the acquire load in
	 * look_at() of shm/index.c: who sees DYING finds the entry changed. */
	kvb_store_release(state, (kvb_load_relaxed(state) & ~(uint64_t)3) | KVB_INDEX_DYING);
}

void kvb_index_recycle(struct kvb_index_writer *index, uint32_t slot)
{
	uint64_t *state = &index->slots[slot].state;

	kvb_store_relaxed(state, ((kvb_load_relaxed(state) >> 2) + 1) << 2 | KVB_INDEX_EMPTY);
	/* Orders the store above before those of the next kvb_index_fill(); pairs with the fence in
	 * look_at() of shm/index.c: a reader that saw any of the new sees that the slot changed. */
	kvb_fence_acquire_release();
}

/* ------------------------------------------------------------------------------------------- entries */

static uint64_t *next_of(struct kvb_index_block *block)
{
	return &block->next;
}

/* Appends a block to the chain: the bucket's second one, or one of the reserve. */
static struct kvb_index_block *extend(
	struct kvb_index_writer *index, struct kvb_index_block *last, unsigned length)
{
	uint32_t number = (uint32_t)(last - index->blocks) + 1;

	if (length == KVB_CHAIN_MAX)
		return NULL;
	if (length > 1) {
		if (index->next_reserve == index->n_blocks)
			return NULL;
		number = index->next_reserve++;
	}
	/* Pairs with the acquire load in search() of shm/index.c; the block is all zeros. */
	kvb_store_release(next_of(last), (uint64_t)number);
	return &index->blocks[number];
}

/* Where the chain has this entry; 0: where it has room, with a new block if need be. NULL. */
static uint64_t *find_entry(struct kvb_index_writer *index, uint64_t hash, uint64_t wanted)
{
	struct kvb_index_block *block = &index->blocks[2 * (hash & index->bucket_mask)];

	for (unsigned length = 1; block; length++) {
		for (unsigned i = 0; i < KVB_INDEX_ENTRIES; i++)
			if (kvb_load_relaxed(&block->entries[i]) == wanted)
				return &block->entries[i];
		if (*next_of(block))
			block = &index->blocks[*next_of(block)];
		else
			block = wanted == 0 ? extend(index, block, length) : NULL;
	}
	return NULL;
}

int kvb_index_insert(struct kvb_index_writer *index, uint32_t slot, uint64_t hash)
{
	uint64_t *entry = find_entry(index, hash, 0);

	if (!entry)
		return -ENOSPC;
	/* Pairs with the acquire load in search() of shm/index.c. */
	kvb_store_release(entry, entry_of(index, slot, hash));
	return 0;
}

void kvb_index_replace(struct kvb_index_writer *index, uint32_t old, uint32_t slot, uint64_t hash)
{
	uint64_t *entry = find_entry(index, hash, entry_of(index, old, hash));

	kvb_store_release(entry, entry_of(index, slot, hash));
}

void kvb_index_remove(struct kvb_index_writer *index, uint32_t slot, uint64_t hash)
{
	uint64_t *entry = find_entry(index, hash, entry_of(index, slot, hash));

	kvb_store_release(entry, (uint64_t)0);
}

uint32_t kvb_index_chain(
	const struct kvb_index_writer *index, uint64_t hash, uint32_t ret_slots[KVB_CHAIN_ENTRIES])
{
	const struct kvb_index_block *block = &index->blocks[2 * (hash & index->bucket_mask)];
	uint32_t n = 0;

	for (;;) {
		for (unsigned i = 0; i < KVB_INDEX_ENTRIES; i++)
			if (block->entries[i] != 0)
				ret_slots[n++] = slot_of(block->entries[i]);
		if (block->next == 0)
			return n;
		block = &index->blocks[block->next];
	}
}
