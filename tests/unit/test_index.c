/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_index.c - the index and the leases: full buckets, wrapped generations, and readers that run
 * beside a writer.
 *
 * Owns a pool of plain memory, and lease cells as a client has them. The tests run in one thread, but
 * for the last ones, whose readers only record what is wrong; the test's thread asserts once they are
 * joined.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/index.h"
#include "server/lease.h"
#include "server/store.h"
#include "shm/atomic.h"
#include "shm/index.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"

#define UNIT    256u
#define CELLS   1024u
#define TOUCHES 64u
#define SEED    0x5eedull

struct room {
	struct kvb_store *store;
	unsigned char *pool;
	struct kvb_index index; /* as readers have it */
	struct kvb_leases leases;
};

static void add_leases(struct room *room)
{
	uint64_t bytes = kvb_round_up(kvb_lease_bytes(CELLS, TOUCHES), KVB_LINE);
	struct kvb_lease_header *header = aligned_alloc(KVB_LINE, bytes);

	assert_non_null(header);
	memset(header, 0, bytes);
	*header = (struct kvb_lease_header){.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.cells = CELLS,
		.touches = TOUCHES,
		.cells_used = CELLS};
	assert_int_equal(kvb_leases_open(&room->leases, header, bytes), 0);
	assert_int_equal(kvb_store_add_leases(room->store, &room->leases, 1), 0);
}

static void open_room(struct room *room, uint64_t units, uint32_t objects_max)
{
	struct kvb_store_config config = {.pool_bytes = units * UNIT,
		.objects_max = objects_max,
		.alignment = UNIT,
		.hash_seed = SEED,
		.low_percent = 100,
		.high_percent = 100};
	const struct kvb_segment *segment;

	room->pool = aligned_alloc(UNIT, units * UNIT);
	assert_non_null(room->pool);
	config.pool = room->pool;
	assert_int_equal(kvb_store_new(&config, &room->store), 0);
	assert_int_equal(kvb_store_add_range(room->store, 0, units * UNIT), 0);
	segment = kvb_store_index(room->store);
	assert_int_equal(kvb_index_open(&room->index, segment->base, segment->bytes), 0);
	add_leases(room);
}

static struct kvb_store_stats stats_of(const struct room *room)
{
	struct kvb_store_stats stats;

	kvb_store_get_stats(room->store, &stats);
	return stats;
}

static void close_room(struct room *room)
{
	assert_int_equal(kvb_store_check(room->store), 0);
	kvb_store_remove_leases(room->store, 1);
	assert_int_equal(stats_of(room).limbo, 0);
	assert_int_equal(kvb_store_check(room->store), 0);
	kvb_store_free(room->store);
	free(room->leases.header);
	free(room->pool);
}

static int put_bytes(const struct room *room, const void *key, size_t key_len, uint64_t length)
{
	struct kvb_object *object;
	int r = kvb_store_reserve(room->store, key, key_len, length, &object);

	return r < 0 ? r : kvb_store_commit(room->store, object);
}

static int put(const struct room *room, uint64_t key)
{
	return put_bytes(room, &key, sizeof(key), 0);
}

static int find(const struct room *room, uint64_t key, struct kvb_found *ret_found)
{
	return kvb_index_find(&room->index, kvb_index_hash(&room->index, &key, sizeof(key)), &key,
		sizeof(key), ret_found);
}

static bool is_there(const struct room *room, uint64_t key)
{
	struct kvb_found found;
	int r = find(room, key, &found);

	assert_true(r == 0 || r == -ENOENT);
	return r == 0;
}

static void lease(const struct room *room, uint32_t cell, uint64_t key)
{
	struct kvb_found found;

	assert_int_equal(
		kvb_index_lease(&room->index, &room->leases.cells[cell],
			kvb_index_hash(&room->index, &key, sizeof(key)), &key, sizeof(key), &found),
		0);
	assert_int_equal(room->leases.cells[cell], kvb_lease_word(found.slot, found.state));
}

static void release(const struct room *room, uint32_t cell)
{
	kvb_lease_clear(&room->leases.cells[cell]);
}

/* The next key after `from` that falls into the bucket. */
static uint64_t next_key(const struct room *room, uint32_t bucket, uint64_t from)
{
	uint64_t key = from;

	do
		key++;
	while ((kvb_key_hash(&key, sizeof(key), SEED) & room->index.bucket_mask) != bucket);
	return key;
}

static void find_keys(const struct room *room, uint32_t bucket, uint64_t *ret_keys, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		ret_keys[i] = next_key(room, bucket, i ? ret_keys[i - 1] : 0);
}

/* Blocks and entries of a bucket's chain; 0 blocks: it makes no sense. */
static unsigned chain_of(const struct room *room, uint32_t bucket, unsigned *ret_entries)
{
	const struct kvb_index_block *block = &room->index.blocks[2 * bucket];
	unsigned blocks = 1;

	*ret_entries = 0;
	for (;; blocks++) {
		for (unsigned i = 0; i < KVB_INDEX_ENTRIES; i++)
			*ret_entries += block->entries[i] != 0;
		if (block->next == 0)
			return blocks;
		if (block->next >= room->index.n_blocks || blocks > KVB_CHAIN_MAX)
			return 0;
		block = &room->index.blocks[block->next];
	}
}

/* No chain is longer than allowed, and together they have an entry for each object. */
static void assert_chains(const struct room *room)
{
	uint64_t sum = 0;

	for (uint32_t b = 0; b <= room->index.bucket_mask; b++) {
		unsigned entries, blocks = chain_of(room, b, &entries);
		assert_in_range(blocks, 1, KVB_CHAIN_MAX);
		sum += entries;
	}
	assert_int_equal(sum, stats_of(room).objects);
}

/* -------------------------------------------------------------------------------------- looks at the leases */

/* The linker puts these in the place of the store's looks at the cells. */
void __real_kvb_leases_scan(const struct kvb_lease_table *table, struct kvb_scan *scan);
void __wrap_kvb_leases_scan(const struct kvb_lease_table *table, struct kvb_scan *scan);
void __real_kvb_leases_each(
	const struct kvb_lease_table *table, void (*fn)(void *user, uint64_t word), void *user);
void __wrap_kvb_leases_each(
	const struct kvb_lease_table *table, void (*fn)(void *user, uint64_t word), void *user);

static uint32_t looks;                 /* atomic: at all cells */
static const struct room *caught_room; /* a reader leases caught_key after the next scan; NULL */
static uint64_t caught_key;

void __wrap_kvb_leases_scan(const struct kvb_lease_table *table, struct kvb_scan *scan)
{
	const struct room *room = caught_room;

	kvb_count(&looks, 1);
	__real_kvb_leases_scan(table, scan);
	caught_room = NULL;
	if (room)
		lease(room, 0, caught_key);
}

void __wrap_kvb_leases_each(
	const struct kvb_lease_table *table, void (*fn)(void *user, uint64_t word), void *user)
{
	kvb_count(&looks, 1);
	__real_kvb_leases_each(table, fn, user);
}

#define MANY      1000u
#define LOOKS_MAX 8u

static int put_unit(const struct room *room, uint64_t key)
{
	return put_bytes(room, &key, sizeof(key), UNIT);
}

/* A put that is refused, and what it looked at. */
static uint32_t looks_of_refusal(const struct room *room)
{
	kvb_store_relaxed(&looks, 0u);
	assert_int_equal(put_unit(room, MANY + 1), -ENOSPC);
	return kvb_load_relaxed(&looks);
}

/* Whether bytes or slots run out, one who leases all does not make every put look at all for each. */
static void many_leases_cost_few_looks(void **state)
{
	struct room room;

	(void)state;
	for (unsigned slots = 0; slots < 2; slots++) {
		open_room(&room, MANY + slots, MANY + !slots);
		for (uint64_t key = 0; key < MANY; key++) {
			assert_int_equal(put_unit(&room, key), 0);
			lease(&room, (uint32_t)key, key);
		}
		assert_in_range(looks_of_refusal(&room), 1, LOOKS_MAX);
		assert_int_equal(stats_of(&room).leased_spared, MANY);
		/* Nor does each that comes when all of that waits to be free. */
		for (uint64_t key = 0; key < MANY; key++)
			assert_int_equal(kvb_store_delete(room.store, &key, sizeof(key)), 0);
		assert_int_equal(stats_of(&room).limbo, MANY);
		assert_in_range(looks_of_refusal(&room), 1, LOOKS_MAX);
		release(&room, 7);
		assert_int_equal(put_unit(&room, MANY + 1), 0);
		assert_int_equal(stats_of(&room).limbo, MANY - 1);
		close_room(&room);
	}
}

static bool limbo_is_empty(const void *arg)
{
	return stats_of(arg).limbo == 0;
}

/* It is leased between the look that found it free and the moment that takes it out of sight. */
static void what_a_reader_catches_is_freed_later(void **state)
{
	struct kvb_found found;
	struct room room;

	(void)state;
	/* Slots run out before bytes do: at the high watermark maintenance would be awake. */
	open_room(&room, 4, 2);
	assert_int_equal(kvb_store_start_maintenance(room.store), 0);
	/* From the second round on maintenance has gone to sleep before. */
	for (uint64_t key = 0; key < 9; key += 3) {
		uint64_t last = key - 1;
		if (key > 0)
			assert_int_equal(kvb_store_delete(room.store, &last, sizeof(last)), 0);
		assert_true(embedded_wait(limbo_is_empty, &room));
		assert_int_equal(put_unit(&room, key), 0);
		assert_int_equal(put_unit(&room, key + 1), 0);
		caught_key = key;
		caught_room = &room;
		assert_int_equal(put_unit(&room, key + 2), 0);
		assert_int_equal(stats_of(&room).limbo, 1);
		assert_int_equal(find(&room, key, &found), -ENOENT);
		release(&room, 0);
		/* With nobody else asking for room. */
		assert_true(embedded_wait(limbo_is_empty, &room));
	}
	kvb_store_stop_maintenance(room.store);
	close_room(&room);
}

/* A reader divides by the number of cells, and masks by that of touches. */
static void impossible_leases_are_refused(void **state)
{
	const uint64_t bytes = kvb_round_up(kvb_lease_bytes(4, 8), KVB_LINE);
	struct kvb_lease_header *header = aligned_alloc(KVB_LINE, bytes);
	const struct {
		uint32_t magic, abi, cells, touches;
		int r;
	} tries[] = {
		{KVB_MAGIC, KVB_ABI_VERSION, 4, 8, 0},
		{KVB_MAGIC, KVB_ABI_VERSION, 0, 8, -EPROTO},
		{KVB_MAGIC, KVB_ABI_VERSION, 4, 0, -EPROTO},
		{KVB_MAGIC, KVB_ABI_VERSION, 4, 7, -EPROTO},
		{KVB_MAGIC, KVB_ABI_VERSION, 1000, 8, -EPROTO},
		{KVB_MAGIC, KVB_ABI_VERSION, UINT32_MAX, 8, -EPROTO},
		{KVB_MAGIC, KVB_ABI_VERSION + 1, 4, 8, -EPROTO},
		{KVB_MAGIC + 1, KVB_ABI_VERSION, 4, 8, -EPROTO},
	};

	(void)state;
	assert_non_null(header);
	memset(header, 0, bytes);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(tries); i++) {
		struct kvb_leases leases;
		header->magic = tries[i].magic;
		header->abi = tries[i].abi;
		header->cells = tries[i].cells;
		header->touches = tries[i].touches;
		assert_int_equal(kvb_leases_open(&leases, header, bytes), tries[i].r);
	}
	assert_int_equal(kvb_leases_open(&(struct kvb_leases){0}, header, 8), -EPROTO);
	free(header);
}

/* -------------------------------------------------------------------------------------------- full buckets */

#define BUCKET 5u
#define OTHERS 100u

/* Objects that are older than all of the bucket's, in other buckets. */
static void put_others(const struct room *room)
{
	uint64_t key = 1000000;

	for (unsigned i = 0; i < OTHERS; i++) {
		key = next_key(room, (BUCKET + 1 + i) & room->index.bucket_mask, key);
		assert_int_equal(put(room, key), 0);
	}
}

static void assert_others(const struct room *room)
{
	uint64_t key = 1000000;

	for (unsigned i = 0; i < OTHERS; i++) {
		key = next_key(room, (BUCKET + 1 + i) & room->index.bucket_mask, key);
		assert_true(is_there(room, key));
	}
}

static void a_full_bucket_evicts_its_own_oldest(void **state)
{
	uint64_t keys[3 * KVB_CHAIN_ENTRIES];
	struct room room;
	unsigned entries;

	(void)state;
	open_room(&room, 8, 4096);
	find_keys(&room, BUCKET, keys, KVB_ARRAY_SIZE(keys));
	put_others(&room);
	for (unsigned i = 0; i < KVB_ARRAY_SIZE(keys); i++) {
		unsigned gone = i < KVB_CHAIN_ENTRIES ? 0 : i + 1 - KVB_CHAIN_ENTRIES;
		assert_int_equal(put(&room, keys[i]), 0);
		for (unsigned k = 0; k <= i; k++)
			assert_int_equal(is_there(&room, keys[k]), k >= gone);
		assert_int_equal(stats_of(&room).evicted, gone);
		assert_int_equal(chain_of(&room, BUCKET, &entries),
			kvb_min_u64(i / KVB_INDEX_ENTRIES + 1, KVB_CHAIN_MAX));
		assert_int_equal(entries, i + 1 - gone);
	}
	assert_others(&room);
	assert_chains(&room);
	close_room(&room);
}

/* The order is that of use, not that of coming. */
static void a_full_bucket_spares_what_is_used(void **state)
{
	uint64_t keys[KVB_CHAIN_ENTRIES + 2], length;
	struct kvb_object *held;
	struct room room;

	(void)state;
	open_room(&room, 8, 4096);
	find_keys(&room, BUCKET, keys, KVB_ARRAY_SIZE(keys));
	put_others(&room);
	for (unsigned i = 0; i < KVB_CHAIN_ENTRIES; i++)
		assert_int_equal(put(&room, keys[i]), 0);
	assert_int_equal(kvb_store_exists(room.store, &keys[0], sizeof(keys[0]), &length), 0);
	lease(&room, 7, keys[1]);
	assert_int_equal(kvb_store_hold(room.store, &keys[2], sizeof(keys[2]), &held), 0);
	assert_int_equal(put(&room, keys[KVB_CHAIN_ENTRIES]), 0);
	assert_int_equal(put(&room, keys[KVB_CHAIN_ENTRIES + 1]), 0);
	for (unsigned i = 0; i < KVB_ARRAY_SIZE(keys); i++)
		assert_int_equal(is_there(&room, keys[i]), i != 3 && i != 4);
	assert_int_equal(stats_of(&room).leased_spared, 1);
	assert_int_equal(stats_of(&room).limbo, 0);
	kvb_store_unhold(room.store, held);
	release(&room, 7);
	assert_others(&room);
	assert_chains(&room);
	close_room(&room);
}

static void a_bucket_full_of_leases_takes_no_more(void **state)
{
	uint64_t keys[KVB_CHAIN_ENTRIES + 1], more;
	struct kvb_store_stats before;
	struct kvb_object *object;
	struct kvb_found found;
	struct room room;

	(void)state;
	open_room(&room, 8, 4096);
	find_keys(&room, BUCKET, keys, KVB_ARRAY_SIZE(keys));
	more = keys[KVB_CHAIN_ENTRIES];
	put_others(&room);
	for (unsigned i = 0; i < KVB_CHAIN_ENTRIES; i++) {
		assert_int_equal(put(&room, keys[i]), 0);
		lease(&room, i, keys[i]);
	}
	before = stats_of(&room);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(put_bytes(&room, &more, sizeof(more), UNIT), -ENOSPC);
		assert_false(is_there(&room, more));
		assert_int_equal(
			kvb_store_reserve(room.store, &more, sizeof(more), UNIT, &object), 0);
		assert_int_equal(kvb_store_commit_absent(room.store, object), -ENOSPC);
		assert_int_equal(kvb_store_check(room.store), 0);
	}
	assert_int_equal(stats_of(&room).used_bytes, 0);
	assert_int_equal(stats_of(&room).objects, before.objects);
	assert_int_equal(stats_of(&room).evicted, 0);
	/* One of its own is replaced where it is, and what its lease holds waits aside. */
	assert_int_equal(find(&room, keys[3], &found), 0);
	assert_int_equal(put(&room, keys[3]), 0);
	assert_int_equal(stats_of(&room).limbo, 1);
	assert_int_equal(room.index.slots[found.slot].state & 3, KVB_INDEX_DYING);
	lease(&room, 3 + KVB_CHAIN_ENTRIES, keys[3]);
	assert_int_equal(put(&room, more), -ENOSPC);
	/* Another bucket has nothing to do with it. */
	assert_int_equal(put(&room, next_key(&room, BUCKET - 1, 0)), 0);
	release(&room, 9);
	assert_int_equal(put(&room, more), 0);
	for (unsigned i = 0; i < KVB_ARRAY_SIZE(keys); i++)
		assert_int_equal(is_there(&room, keys[i]), i != 9);
	release(&room, 3);
	assert_others(&room);
	assert_chains(&room);
	close_room(&room);
}

/* What readers say of their use counts before anything is evicted for want of a place. */
static void a_full_bucket_hears_its_readers(void **state)
{
	uint64_t keys[KVB_CHAIN_ENTRIES + 1];
	struct kvb_found found;
	struct room room;

	(void)state;
	open_room(&room, 8, 4096);
	find_keys(&room, BUCKET, keys, KVB_ARRAY_SIZE(keys));
	for (unsigned i = 0; i < KVB_CHAIN_ENTRIES; i++)
		assert_int_equal(put(&room, keys[i]), 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(find(&room, keys[i], &found), 0);
		room.leases.touches[i] = kvb_lease_word(found.slot, found.state);
	}
	room.leases.header->touch_tail = 2;
	assert_int_equal(put(&room, keys[KVB_CHAIN_ENTRIES]), 0);
	for (unsigned i = 0; i < KVB_ARRAY_SIZE(keys); i++)
		assert_int_equal(is_there(&room, keys[i]), i != 2);
	close_room(&room);
}

/* A server that lies: an entry whose object is never there. The reader comes to an end, by one measure for
 * look-up and lease together, and leaves no lease. */
static void what_is_stale_for_ever_makes_no_sense(void **state)
{
	struct kvb_index_slot *slots;
	struct kvb_found found;
	uint64_t key = 1, hash, cell = 0;
	struct room room;

	(void)state;
	open_room(&room, 8, 8);
	assert_int_equal(put(&room, key), 0);
	hash = kvb_index_hash(&room.index, &key, sizeof(key));
	assert_int_equal(kvb_index_find(&room.index, hash, &key, sizeof(key), &found), 0);
	slots = (struct kvb_index_slot *)((char *)kvb_store_index(room.store)->base +
		((const char *)room.index.slots - (const char *)room.index.blocks) +
		((const struct kvb_index_header *)kvb_store_index(room.store)->base)
			->blocks_offset);
	slots[found.slot].state ^= KVB_INDEX_LIVE ^ KVB_INDEX_DYING;
	assert_int_equal(kvb_index_find(&room.index, hash, &key, sizeof(key), &found), -EPROTO);
	assert_int_equal(
		kvb_index_lease(&room.index, &cell, hash, &key, sizeof(key), &found), -EPROTO);
	assert_int_equal(cell, 0);
	slots[found.slot].state ^= KVB_INDEX_LIVE ^ KVB_INDEX_DYING;
	assert_int_equal(kvb_index_lease(&room.index, &cell, hash, &key, sizeof(key), &found), 0);
	close_room(&room);
}

/* Without any reserve left a bucket has the two blocks that are its own. */
static void the_reserve_runs_out(void **state)
{
	uint64_t keys[KVB_CHAIN_ENTRIES];
	unsigned entries, bucket, longest = 0;
	struct room room;

	(void)state;
	open_room(&room, 8, 4096);
	for (bucket = 0; bucket <= room.index.bucket_mask; bucket++) {
		find_keys(&room, bucket, keys, KVB_CHAIN_ENTRIES);
		for (unsigned i = 0; i < KVB_CHAIN_ENTRIES; i++)
			assert_int_equal(put(&room, keys[i]), 0);
		if (chain_of(&room, bucket, &entries) == 2)
			break;
		longest = bucket;
	}
	assert_true(longest > 0);
	assert_int_equal(entries, 2 * KVB_INDEX_ENTRIES);
	for (unsigned i = 0; i < KVB_CHAIN_ENTRIES; i++)
		assert_int_equal(
			is_there(&room, keys[i]), i >= KVB_CHAIN_ENTRIES - 2 * KVB_INDEX_ENTRIES);
	/* Nobody else has lost anything. */
	assert_int_equal(stats_of(&room).evicted, KVB_CHAIN_ENTRIES - 2 * KVB_INDEX_ENTRIES);
	assert_chains(&room);
	close_room(&room);
}

static void churn_never_fills_the_index(void **state)
{
	const uint32_t capacity = 1000;
	struct room room;

	(void)state;
	open_room(&room, 8, capacity);
	for (uint64_t key = 1; key <= 1000ull * capacity; key++) {
		int r = put(&room, key);
		if (r != 0)
			fail_msg("put %llu: %d", (unsigned long long)key, r);
		if (!is_there(&room, key))
			fail_msg("put %llu is not there", (unsigned long long)key);
		if (key % 50000 == 0)
			assert_chains(&room);
	}
	/* Full buckets cost objects that need not have gone, but few of them. */
	print_message("%llu of %u objects after the churn\n",
		(unsigned long long)stats_of(&room).objects, capacity);
	assert_true(stats_of(&room).objects > capacity * 9 / 10);
	close_room(&room);
}

/* ----------------------------------------------------------------------------------- generations and keys */

/* The one slot is used so often that the 16 bits in entries come around, and around again. */
static void generations_wrap(void **state)
{
	struct kvb_found found = {0}, first = {0};
	uint64_t last = 0;
	struct room room;

	(void)state;
	open_room(&room, 8, 1);
	for (uint64_t key = 1; key <= 3 * 65536 + 10; key++) {
		assert_int_equal(put_bytes(&room, &key, sizeof(key), UNIT), 0);
		if (find(&room, key, &found) != 0 || find(&room, key - 1, &first) != -ENOENT)
			fail_msg("generation %llu", (unsigned long long)key);
		assert_int_equal(found.state & 3, KVB_INDEX_LIVE);
		assert_true(found.state >> 2 > last || key == 1);
		last = found.state >> 2;
		/* An old lease of the slot, with the same 16 bits, is one of another object. */
		if (key == 1)
			room.leases.cells[0] = kvb_lease_word(found.slot, found.state);
		if (key == 2)
			assert_int_equal(stats_of(&room).limbo, 0);
		/* It was to stay while it was the object's. */
		if (key == 1) {
			uint64_t next = 2;
			assert_int_equal(put_bytes(&room, &next, sizeof(next), UNIT), -ENOSPC);
			kvb_lease_clear(&room.leases.cells[0]);
		}
		if (key == 3)
			room.leases.cells[0] = kvb_lease_word(found.slot, 0);
	}
	assert_int_equal(stats_of(&room).leased_spared, 1);
	room.leases.cells[0] = 0;
	close_room(&room);
}

/* Keys that differ in length alone, or in one byte at the end of a word. */
static void keys_are_compared_to_the_last_byte(void **state)
{
	unsigned char key[KVB_INDEX_KEY_MAX + 1] = {0};
	struct kvb_found found;
	struct room room;

	(void)state;
	open_room(&room, 512, 512);
	for (size_t len = 1; len <= KVB_INDEX_KEY_MAX; len++)
		assert_int_equal(put_bytes(&room, key, len, len), 0);
	for (size_t len = 1; len <= KVB_INDEX_KEY_MAX; len++) {
		uint64_t hash = kvb_index_hash(&room.index, key, len);
		assert_int_equal(kvb_index_find(&room.index, hash, key, len, &found), 0);
		assert_int_equal(found.length, len);
		key[len - 1] = 1;
		/* With the right hash only the comparison is left to tell. */
		assert_int_equal(kvb_index_find(&room.index, hash, key, len, &found), -ENOENT);
		key[len - 1] = 0;
		if (len < KVB_INDEX_KEY_MAX)
			assert_int_equal(
				kvb_index_find(&room.index, hash, key, len + 1, &found), -ENOENT);
	}
	assert_int_equal(put_bytes(&room, key, sizeof(key), 1), 0);
	assert_int_equal(stats_of(&room).objects, KVB_INDEX_KEY_MAX + 1);
	close_room(&room);
}

/* ------------------------------------------------------------------------------- readers beside a writer */

#define RACE_KEYS    10u
#define RACE_READERS 2u
#define RACE_WRITERS 2u
#define RACE_WORDS   (UNIT / 8)

struct race {
	struct room room;
	uint64_t lookups; /* of each reader */
	uint32_t running; /* atomic: readers that are */
	uint64_t missed;  /* atomic: keys that are always there and were not found */
	uint64_t wrong;   /* atomic: leased bytes that are not the key's */
	uint64_t found;   /* atomic */
	uint64_t turns;   /* atomic: puts */
	uint64_t full;    /* atomic: those that found no room */
};

struct racer {
	struct race *race;
	uint32_t cell;
	pthread_t thread;
};

static bool is_whole(const uint64_t *words, uint64_t key)
{
	for (unsigned i = 0; i < RACE_WORDS; i++)
		if (words[i] != words[0] || words[i] % RACE_KEYS != key)
			return false;
	return true;
}

static void *race_reader(void *arg)
{
	struct racer *racer = arg;
	struct race *race = racer->race;
	const struct room *room = &race->room;
	uint64_t *cell = &room->leases.cells[racer->cell];

	for (uint64_t n = 0; n < race->lookups; n++) {
		uint64_t key = n % RACE_KEYS;
		struct kvb_found found;
		int r = kvb_index_lease(&room->index, cell,
			kvb_index_hash(&room->index, &key, sizeof(key)), &key, sizeof(key), &found);
		if (r < 0) {
			kvb_count(&race->missed, 1);
			continue;
		}
		/* Long enough for the writer to come to these bytes again, if it believes that it may. */
		for (unsigned i = 0; i < n % 2 * 40; i++)
			kvb_cpu_relax();
		if (!is_whole((const uint64_t *)(room->pool + found.offset), key))
			kvb_count(&race->wrong, 1);
		kvb_lease_clear(cell);
		kvb_count(&race->found, 1);
	}
	(void)kvb_fetch_sub(&race->running, 1u);
	return NULL;
}

/* Replaces a key by bytes of its own. 0; -ENOSPC. */
static int race_put(const struct room *room, uint64_t key, uint64_t turn)
{
	struct kvb_object *object;
	int r = kvb_store_reserve(room->store, &key, sizeof(key), UNIT, &object);
	uint64_t *words;

	if (r < 0)
		return r;
	words = kvb_store_object_data(room->store, object);
	for (unsigned i = 0; i < RACE_WORDS; i++)
		words[i] = turn * RACE_KEYS + key;
	return kvb_store_commit(room->store, object);
}

struct writer {
	struct race *race;
	pthread_t thread;
	bool deletes; /* as well */
};

/* Replaces the keys without pause. */
static void *race_writer(void *arg)
{
	const struct writer *writer = arg;
	struct race *race = writer->race;

	while (kvb_load_acquire(&race->running)) {
		uint64_t turn = kvb_fetch_add(&race->turns, (uint64_t)1);
		uint64_t key = turn % RACE_KEYS;
		if (writer->deletes && turn % 3 == 0)
			(void)kvb_store_delete(race->room.store, &key, sizeof(key));
		if (race_put(&race->room, key, turn) != 0)
			kvb_count(&race->full, 1);
	}
	return NULL;
}

/* In so few slots and bytes that all are used again at once. `deletes`: keys come and go as well. */
static void run_race(struct race *race, bool deletes)
{
	/* Room for what is visible, what readers lease, and what is being written. */
	const uint32_t slots = RACE_KEYS + RACE_READERS + RACE_WRITERS;
	struct racer racers[RACE_READERS];
	struct writer writers[RACE_WRITERS];

	open_room(&race->room, slots, slots);
	for (uint64_t key = 0; key < RACE_KEYS; key++)
		assert_int_equal(race_put(&race->room, key, 0), 0);
	race->running = RACE_READERS;
	for (uint32_t i = 0; i < RACE_READERS; i++) {
		racers[i] = (struct racer){.race = race, .cell = 10 * i};
		assert_int_equal(
			kvb_thread_start(&racers[i].thread, "reader", race_reader, &racers[i]), 0);
	}
	for (uint32_t i = 0; i < RACE_WRITERS; i++) {
		writers[i] = (struct writer){.race = race, .deletes = deletes};
		assert_int_equal(
			kvb_thread_start(&writers[i].thread, "writer", race_writer, &writers[i]),
			0);
	}
	for (uint32_t i = 0; i < RACE_READERS; i++)
		pthread_join(racers[i].thread, NULL);
	for (uint32_t i = 0; i < RACE_WRITERS; i++)
		pthread_join(writers[i].thread, NULL);
	print_message("%llu lookups, %llu found, %llu missed, %llu wrong; %llu puts, %llu of them "
		      "found no room\n",
		(unsigned long long)(race->lookups * RACE_READERS), (unsigned long long)race->found,
		(unsigned long long)race->missed, (unsigned long long)race->wrong,
		(unsigned long long)race->turns, (unsigned long long)race->full);
	assert_int_equal(race->wrong, 0);
	assert_true(race->found > 0);
	/* Nothing was evicted, so that nobody can have missed what is replaced only. */
	if (!deletes) {
		assert_int_equal(stats_of(&race->room).evicted, 0);
		assert_int_equal(race->full, 0);
		assert_int_equal(race->missed, 0);
	}
	close_room(&race->room);
}

/* A missing fence shows about once in 10^7 lookups. */
static uint64_t lookups(void)
{
	const char *text = getenv("KVB_TEST_LOOKUPS");

	return text ? strtoull(text, NULL, 10) : 1000000;
}

static void a_replaced_key_is_never_missed(void **state)
{
	struct race race = {.lookups = lookups()};

	(void)state;
	run_race(&race, false);
}

static void leased_bytes_stay_while_keys_come_and_go(void **state)
{
	struct race race = {.lookups = lookups()};

	(void)state;
	run_race(&race, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(impossible_leases_are_refused),
		cmocka_unit_test(many_leases_cost_few_looks),
		cmocka_unit_test(what_a_reader_catches_is_freed_later),
		cmocka_unit_test(a_full_bucket_evicts_its_own_oldest),
		cmocka_unit_test(a_full_bucket_spares_what_is_used),
		cmocka_unit_test(a_bucket_full_of_leases_takes_no_more),
		cmocka_unit_test(a_full_bucket_hears_its_readers),
		cmocka_unit_test(what_is_stale_for_ever_makes_no_sense),
		cmocka_unit_test(the_reserve_runs_out),
		cmocka_unit_test(churn_never_fills_the_index),
		cmocka_unit_test(generations_wrap),
		cmocka_unit_test(keys_are_compared_to_the_last_byte),
		cmocka_unit_test(a_replaced_key_is_never_missed),
		cmocka_unit_test(leased_bytes_stay_while_keys_come_and_go),
	};

	return cmocka_run_group_tests_name("index", tests, NULL, NULL) ? 1 : 0;
}
