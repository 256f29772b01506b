/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_index.c - the client's reading of index and lease memfd: open, look up, lease, read. The input
 * says how the server's index differs from one that its writer made, and how it changes meanwhile.
 *
 * An input: how it changes (u8, enum kvb_fuzz_how), the number of look-ups (u8), how much of it there is
 * (u16; 0: all), words to overwrite (count u8; number u16 and value u64 each), the changes, the look-ups
 * (u8 each, enum look_up), the head of the lease memfd.
 */
#include <errno.h>
#include <string.h>

#include "server/index.h"
#include "shm/atomic.h"
#include "shm/index.h"
#include "shm/util.h"
#include "tests/fuzz/fuzz.h"

#define SLOTS      16u
#define POOL_BYTES 8192u
#define OVERWRITES 8u
#define LOOK_UPS   16u
#define CELLS      8u
#define TOUCHES    16u
/* Replacements in a row that a reader puts up with; here nobody makes sense of a stale entry again. */
#define RESTARTS 10u

enum look_up {
	LOOK_KEY = 15u,       /* number of a key; beyond SLOTS / 2 of one that is not there */
	LOOK_LEASE = 1u << 4, /* and reads it */
	LOOK_RAW = 1u << 5,   /* a key from the input: its length (u8), its bytes */
};

static uint8_t *pristine, *shared, *pool;
static size_t bytes;
static uint8_t *lease_page;
static size_t lease_bytes;
static uint64_t seen;

/* Of every length modulo 8, and the longest there is. */
static size_t make_key(uint8_t number, uint8_t ret_key[KVB_INDEX_KEY_MAX])
{
	size_t len = number == 0 ? KVB_INDEX_KEY_MAX : number * 13u;

	memset(ret_key, 'a' + number, len);
	return len;
}

/* Half of the slots are live and lie one after the other in the pool; all in few buckets. */
static void make_index(void)
{
	static const uint8_t boot_id[KVB_ID_BYTES];
	struct kvb_index_writer writer;
	struct kvb_index index;
	uint8_t key[KVB_INDEX_KEY_MAX];

	kvb_fuzz_require(kvb_index_new(&writer, boot_id, 1, POOL_BYTES, SLOTS) == 0, "no index");
	kvb_fuzz_require(kvb_index_open(&index, writer.segment.base, writer.segment.bytes) == 0,
		"no reader");
	for (uint8_t i = 0; i < SLOTS / 2; i++) {
		size_t len = make_key(i, key);
		kvb_fuzz_require(kvb_index_prepare(&writer, i) == 0, "no slot");
		kvb_index_fill(&writer, i, key, len, i * 1024u, 1024);
		kvb_fuzz_require(
			kvb_index_insert(&writer, i, kvb_index_hash(&index, key, len)) == 0,
			"no place");
	}
	/* The writer's memory is whole pages; the reader is told where the last part ends. */
	bytes = (size_t)((const char *)(index.slots + index.n_slots) -
		(const char *)writer.segment.base);
	pristine = kvb_fuzz_alloc(bytes);
	shared = kvb_fuzz_alloc(bytes);
	memcpy(pristine, writer.segment.base, bytes);
	kvb_index_free(&writer);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	make_index();
	pool = kvb_fuzz_alloc(POOL_BYTES);
	lease_bytes = kvb_lease_bytes(CELLS, TOUCHES);
	lease_page = kvb_fuzz_alloc(lease_bytes);
	kvb_fuzz_page(shared, bytes);
	return 0;
}

static void overwrite(struct kvb_fuzz_input *input)
{
	unsigned n = kvb_fuzz_u8(input) % (OVERWRITES + 1);

	memcpy(shared, pristine, bytes);
	for (unsigned i = 0; i < n; i++) {
		size_t word = kvb_fuzz_u16(input) % (bytes / sizeof(uint64_t));
		uint64_t value = kvb_fuzz_u64(input);
		memcpy(shared + word * sizeof(uint64_t), &value, sizeof(value));
	}
}

static void look_up(const struct kvb_index *index, struct kvb_fuzz_input *input)
{
	static uint64_t cell;
	uint8_t what = kvb_fuzz_u8(input), key[KVB_INDEX_KEY_MAX];
	struct kvb_found found;
	size_t len;
	uint64_t hash;
	int r;

	if (what & LOOK_RAW) {
		len = 1 + kvb_fuzz_u8(input) % KVB_INDEX_KEY_MAX;
		kvb_fuzz_copy(input, key, len);
	} else {
		len = make_key(what & LOOK_KEY, key);
	}
	hash = kvb_index_hash(index, key, len);
	kvb_index_prefetch(index, hash);
	r = what & LOOK_LEASE ? kvb_index_lease(index, &cell, hash, key, len, &found)
			      : kvb_index_find(index, hash, key, len, &found);
	kvb_fuzz_decoded(1);
	kvb_fuzz_require(r == 0 || r == -ENOENT || r == -EPROTO, "a result that is not documented");
	if (!(what & LOOK_LEASE))
		return;
	kvb_fuzz_require((r == 0) == (cell != 0), "a lease that does not fit the result");
	if (r < 0)
		return;
	if (found.length > 0)
		seen += pool[found.offset] + pool[found.offset + found.length - 1];
	kvb_lease_clear(&cell);
}

/* The rest of the input is the lease memfd's head. */
static void open_leases(struct kvb_fuzz_input *input)
{
	struct kvb_leases leases;
	struct kvb_lease_header *header = (struct kvb_lease_header *)lease_page;

	memset(header, 0, sizeof(*header));
	*header = (struct kvb_lease_header){
		.magic = KVB_MAGIC, .abi = KVB_ABI_VERSION, .cells = CELLS, .touches = TOUCHES};
	if (input->left > 0) {
		header->cells = kvb_fuzz_u32(input);
		header->touches = kvb_fuzz_u32(input);
	}
	if (kvb_leases_open(&leases, header, lease_bytes) < 0)
		return;
	kvb_store_relaxed(&leases.cells[leases.n_cells - 1], (uint64_t)0);
	kvb_store_relaxed(&leases.touches[leases.touch_mask], (uint64_t)0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvb_fuzz_input input = {data, size};
	unsigned how = kvb_fuzz_u8(&input), n = kvb_fuzz_u8(&input) % LOOK_UPS;
	size_t there = kvb_fuzz_u16(&input);
	struct kvb_index index;

	there = there == 0 || there > bytes ? bytes : there;
	overwrite(&input);
	kvb_fuzz_hide(shared + there, bytes - there);
	kvb_fuzz_change(&input, there == bytes ? how : 0);
	/* As kvb_local_new() does, which knows how large the pool is that it has mapped. */
	if (kvb_index_open(&index, shared, there) == 0 && index.pool_bytes == POOL_BYTES) {
		index.restarts_max = RESTARTS;
		while (n-- > 0)
			look_up(&index, &input);
	}
	kvb_fuzz_still();
	kvb_fuzz_show(shared, bytes);
	open_leases(&input);
	return 0;
}
