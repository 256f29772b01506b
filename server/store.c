/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - see store.h.
 *
 * Owns the table of slots, the hash index, the recency lists, the books of the pool (extent.c) and
 * the thread "kvb-evict". Everything is under one lock, held for short steps; any thread calls in.
 * Must never read or write payload, never call out under the lock except for the list callback, and
 * never free the bytes of an object that somebody holds or is still writing.
 *
 * A slot is unused, PENDING (reserved), VISIBLE, ORPHAN (deleted or replaced while held: out of the
 * index, let go by its last holder), or in LIMBO (let go, perhaps leased). VISIBLE objects without holders are the only ones that can
 * be evicted and the only ones on the recency lists: the first holder takes an object off, the last
 * one appends it as the most recently used. So whoever looks for a victim never meets a held
 * object. Objects without bytes have a list of their own, since evicting them makes no room.
 *
 * Contiguous room is made around the least recently used object (make_room): its neighbours by
 * address join it, the less recently used side first, until the run is long enough, and then the
 * whole run goes. When all objects have one length this is plain LRU. When the run is stopped on
 * both sides by blocks that are held or pending, nothing in it is evicted and the next object in
 * order of use is tried; its members are marked, so that a block is walked at most once for nothing
 * in a search. A reservation that fails therefore evicts nothing, ends after one walk over the pool
 * at most, and is remembered, so that the next one as long fails at once until something is let go.
 *
 * Readers in other processes find objects through the shared index, and lease them there without
 * asking (index.c, lease.c). An object that goes is first taken out of the index and retired, then,
 * after a full fence, looked for in the lease cells of all sessions: if nobody has leased it, its
 * bytes and its slot are free; if somebody has, it stays in limbo, and is looked for again. Such
 * scans are made for many objects at once, the more the more cells there are. An object that is
 * leased when its turn to be evicted comes is in use, and moves to the end of the order instead.
 *
 * Slots 0 to 2 are the ends of the recency lists and of limbo; 0 is also the null of all other links.
 */
#include "server/store.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kvbell/protocol.h"
#include "server/extent.h"
#include "server/index.h"
#include "server/lease.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"

#define NONE        0u
#define LIST_BYTES  0u /* objects with an extent */
#define LIST_EMPTY  1u
#define LIST_LIMBO  2u
#define SLOTS_FIRST 3u
#define KEY_INLINE  200u
/* A scan of this many lease cells is worth one object more in its batch. */
#define CELLS_PER_OBJECT 64u
/* A search that has come upon leases so often looks for all of them at once. */
#define LEASES_MET 4u
/* How often maintenance looks again at what is in limbo; but a look takes the lock for no more than its
 * part of the time. */
#define LIMBO_NS   (20 * KVB_NS_PER_MS)
#define LIMBO_PART 20u

/* In `walked`, beside the number of the search. */
#define SPARED ((uint64_t)1 << 63)

enum object_state { SLOT_UNUSED, SLOT_PENDING, SLOT_VISIBLE, SLOT_ORPHAN, SLOT_LIMBO };

/* Four cache lines; a lookup that compares hashes only touches the first. */
struct kvb_object {
	uint64_t hash;
	uint64_t length;
	uint64_t
		used_at; /* value of the store's clock; in limbo: number of the last look that saw a lease */
	uint64_t walked; /* number of the last search that rejected it, or the run it lies in */
	uint32_t extent;
	uint32_t chain; /* next in the bucket, or next unused slot */
	uint32_t newer;
	uint32_t older;
	uint32_t holders;
	uint16_t key_len;
	uint16_t state;
	union {
		unsigned char bytes[KEY_INLINE];
		unsigned char *far; /* longer keys */
	} key;
};
_Static_assert(sizeof(struct kvb_object) == 256, "four cache lines");

struct kvb_store {
	struct kvb_store_config config;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t thread;
	bool running;
	bool stopping;
	bool asleep;       /* maintenance waits without a deadline */
	bool behind;       /* above the high watermark and not yet down at the low one */
	uint64_t limbo_ns; /* when maintenance looks at limbo again */
	struct kvb_extents *extents;
	struct kvb_index_writer index;
	struct kvb_lease_table leases;
	struct kvb_object *slots;
	uint32_t *buckets;
	uint64_t bucket_mask;
	uint32_t slots_end;    /* slots from here on were never touched */
	uint32_t slots_unused; /* list of given back slots */
	uint32_t slots_taken;
	uint32_t evictable;
	uint64_t evictable_bytes; /* of extents */
	uint64_t clock;
	uint64_t walk;
	uint64_t looks;    /* over all leases, for what is in limbo */
	uint64_t fresh;    /* of those in limbo the newest, which nobody has looked for leases of */
	uint64_t hopeless; /* a run this long is not to be had until something is let go */
	struct kvb_store_stats stats;
};

static const unsigned char *key_of(const struct kvb_object *object)
{
	return object->key_len > KEY_INLINE ? object->key.far : object->key.bytes;
}

static uint32_t id_of(const struct kvb_store *store, const struct kvb_object *object)
{
	return (uint32_t)(object - store->slots);
}

static uint64_t extent_bytes(const struct kvb_store *store, const struct kvb_object *object)
{
	return kvb_extent_length(store->extents, object->extent);
}

static uint64_t hash_of(const struct kvb_store *store, const void *key, size_t key_len)
{
	return kvb_key_hash(key, key_len, store->config.hash_seed);
}

/* The link in the index that leads to the key's object, or the null link at the chain's end. */
static uint32_t *find_link(struct kvb_store *store, const void *key, size_t key_len, uint64_t hash)
{
	uint32_t *link = &store->buckets[hash & store->bucket_mask];

	while (*link != NONE) {
		struct kvb_object *object = &store->slots[*link];
		if (object->hash == hash && object->key_len == key_len &&
			memcmp(key_of(object), key, key_len) == 0)
			break;
		link = &object->chain;
	}
	return link;
}

static struct kvb_object *find(
	struct kvb_store *store, const void *key, size_t key_len, uint64_t hash)
{
	uint32_t id = *find_link(store, key, key_len, hash);

	return id == NONE ? NULL : &store->slots[id];
}

static void list_append(struct kvb_store *store, struct kvb_object *object)
{
	uint32_t end = object->length ? LIST_BYTES : LIST_EMPTY;
	uint32_t id = id_of(store, object);
	uint32_t newest = store->slots[end].older;

	object->older = newest;
	object->newer = end;
	store->slots[newest].newer = id;
	store->slots[end].older = id;
}

static void list_remove(struct kvb_store *store, const struct kvb_object *object)
{
	store->slots[object->older].newer = object->newer;
	store->slots[object->newer].older = object->older;
}

static void make_evictable(struct kvb_store *store, struct kvb_object *object)
{
	object->used_at = ++store->clock;
	list_append(store, object);
	store->evictable++;
	store->evictable_bytes += extent_bytes(store, object);
}

static void pin(struct kvb_store *store, struct kvb_object *object)
{
	list_remove(store, object);
	store->evictable--;
	store->evictable_bytes -= extent_bytes(store, object);
}

static bool is_evictable(const struct kvb_object *object)
{
	return object->state == SLOT_VISIBLE && object->holders == 0;
}

/* In this search it was found to be leased. */
static bool is_spared(const struct kvb_store *store, const struct kvb_object *object)
{
	return object->walked == (store->walk | SPARED);
}

static void mark_used(struct kvb_store *store, struct kvb_object *object)
{
	/* A held one is on no list and becomes the most recently used when it is let go. */
	if (object->holders > 0)
		return;
	object->used_at = ++store->clock;
	list_remove(store, object);
	list_append(store, object);
}

/* 0; -ENOMEM there is no memory for its part of the index. */
static int slot_new(struct kvb_store *store, uint32_t *ret_id)
{
	uint32_t id = store->slots_unused;
	int r = id == NONE ? kvb_index_prepare(&store->index, store->slots_end) : 0;

	if (r < 0)
		return r;
	if (id != NONE)
		store->slots_unused = store->slots[id].chain;
	else
		id = store->slots_end++;
	store->slots_taken++;
	*ret_id = id;
	return 0;
}

/* The object is in no list and not in the index. */
static void object_drop(struct kvb_store *store, struct kvb_object *object)
{
	if (object->extent != KVB_EXTENT_NONE)
		kvb_extent_free(store->extents, object->extent);
	if (object->key_len > KEY_INLINE)
		free(object->key.far);
	object->state = SLOT_UNUSED;
	object->chain = store->slots_unused;
	store->slots_unused = id_of(store, object);
	store->slots_taken--;
}

static bool is_shared(const struct kvb_object *object)
{
	return object->key_len <= KVB_INDEX_KEY_MAX;
}

/* --------------------------------------------------------------------------------------------- limbo */

static uint64_t lease_word(const struct kvb_store *store, uint32_t id)
{
	return kvb_lease_word(id, kvb_index_state_of(&store->index, id));
}

static void enter_limbo(struct kvb_store *store, struct kvb_object *object)
{
	uint32_t id = id_of(store, object), newest = store->slots[LIST_LIMBO].older;

	object->state = SLOT_LIMBO;
	object->used_at = 0; /* no look's number yet */
	object->older = newest;
	object->newer = LIST_LIMBO;
	store->slots[newest].newer = id;
	store->slots[LIST_LIMBO].older = id;
	store->stats.limbo++;
	store->stats.limbo_bytes += extent_bytes(store, object);
	store->fresh++;
}

static void leave_limbo(struct kvb_store *store, struct kvb_object *object)
{
	store->stats.limbo--;
	store->stats.limbo_bytes -= extent_bytes(store, object);
	list_remove(store, object);
	kvb_index_recycle(&store->index, id_of(store, object));
	object_drop(store, object);
	store->hopeless = UINT64_MAX;
}

/* Leases end without a word, so that maintenance has to look again now and then. */
static void watch_limbo(struct kvb_store *store)
{
	if (store->stats.limbo > 0 && store->asleep)
		pthread_cond_signal(&store->wake);
}

/* The slot of a lease word, which may be any number at all; NONE: it means nothing here. */
static uint32_t leased_slot(const struct kvb_store *store, uint64_t word)
{
	uint32_t id = (uint32_t)word - 1;

	if (id < SLOTS_FIRST || id >= store->slots_end || lease_word(store, id) != word)
		return NONE;
	return id;
}

/* Of a few: what the cells hold is compared with each. */
static void reclaim_few(struct kvb_store *store, uint32_t n)
{
	uint32_t ids[KVB_SCAN_MAX] = {NONE}, id = store->slots[LIST_LIMBO].older;
	struct kvb_scan scan = {.n = 0};

	for (; id != LIST_LIMBO && scan.n < n; id = store->slots[id].older) {
		ids[scan.n] = id;
		scan.words[scan.n++] = lease_word(store, id);
	}
	kvb_leases_scan(&store->leases, &scan);
	for (uint32_t i = 0; i < scan.n; i++)
		if (!scan.leased[i])
			leave_limbo(store, &store->slots[ids[i]]);
}

static void see_lease(void *user, uint64_t word)
{
	struct kvb_store *store = user;
	uint32_t id = leased_slot(store, word);

	if (id != NONE && store->slots[id].state == SLOT_LIMBO)
		store->slots[id].used_at = store->looks;
}

/* Of many: one look at all cells, whatever their number. */
static void reclaim_many(struct kvb_store *store, uint64_t n)
{
	uint32_t id = store->slots[LIST_LIMBO].older, older;

	store->looks++;
	kvb_leases_each(&store->leases, see_lease, store);
	for (uint64_t i = 0; id != LIST_LIMBO && i < n; i++, id = older) {
		older = store->slots[id].older;
		if (store->slots[id].used_at != store->looks)
			leave_limbo(store, &store->slots[id]);
	}
}

/* Frees those of the newest `n` in limbo that nobody has leased. All in limbo was retired before. */
static void reclaim(struct kvb_store *store, uint64_t n)
{
	store->fresh = 0;
	if (n == 0)
		return;
	/* Orders the retirements before the loads of the cells; pairs with the full fence in
	 * kvb_index_lease(): of a reader and this, one sees the other. */
	kvb_fence_full();
	if (n <= KVB_SCAN_MAX)
		reclaim_few(store, (uint32_t)n);
	else
		reclaim_many(store, n);
	watch_limbo(store);
}

/* So many objects share a scan of the cells, so that each pays little for it. */
static uint64_t batch_size(const struct kvb_store *store)
{
	return kvb_min_u64(1 + kvb_leases_used(&store->leases) / CELLS_PER_OBJECT, KVB_SCAN_MAX);
}

/* Lets an object go that is out of sight. */
static void let_go(struct kvb_store *store, struct kvb_object *object)
{
	enter_limbo(store, object);
	if (store->fresh >= batch_size(store))
		reclaim(store, store->fresh);
	else
		watch_limbo(store);
}

/* Takes a visible object out of sight: it is let go now, or by its last holder. `successor`: what
 * readers find in its place; NULL nothing. */
static void object_hide(struct kvb_store *store, struct kvb_object *object, uint32_t *link,
	const struct kvb_object *successor)
{
	uint32_t id = id_of(store, object);

	*link = object->chain;
	store->stats.objects--;
	store->stats.payload_bytes -= object->length;
	if (is_shared(object)) {
		if (successor)
			kvb_index_replace(&store->index, id, id_of(store, successor), object->hash);
		else
			kvb_index_remove(&store->index, id, object->hash);
		kvb_index_retire(&store->index, id);
	}
	if (object->holders > 0)
		object->state = SLOT_ORPHAN;
	else
		pin(store, object);
}

static void remove_visible(struct kvb_store *store, struct kvb_object *object, uint32_t *link,
	const struct kvb_object *successor)
{
	object_hide(store, object, link, successor);
	if (object->holders == 0)
		let_go(store, object);
}

/* Takes one that nobody holds out of sight, into limbo, without looking for leases yet. */
static void evict(struct kvb_store *store, uint32_t id)
{
	struct kvb_object *object = &store->slots[id];
	uint32_t *link = &store->buckets[object->hash & store->bucket_mask];

	while (*link != id)
		link = &store->slots[*link].chain;
	store->stats.evicted++;
	store->stats.evicted_bytes += object->length;
	object_hide(store, object, link, NULL);
	enter_limbo(store, object);
}

static void spare(struct kvb_store *store, struct kvb_object *object)
{
	object->walked = store->walk | SPARED;
	mark_used(store, object);
	store->stats.leased_spared++;
}

/* Drops those that are leased now from the batch: they are in use, and the last to go. */
static uint32_t spare_leased(struct kvb_store *store, uint32_t ids[], uint32_t n)
{
	struct kvb_scan scan = {.n = n};
	uint32_t kept = 0;

	if (n == 0)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		scan.words[i] = lease_word(store, ids[i]);
	kvb_leases_scan(&store->leases, &scan);
	for (uint32_t i = 0; i < n; i++) {
		if (!scan.leased[i]) {
			ids[kept++] = ids[i];
			continue;
		}
		spare(store, &store->slots[ids[i]]);
	}
	return kept;
}

static void spare_if_leased(void *user, uint64_t word)
{
	struct kvb_store *store = user;
	uint32_t id = leased_slot(store, word);

	if (id != NONE && is_evictable(&store->slots[id]) && !is_spared(store, &store->slots[id]))
		spare(store, &store->slots[id]);
}

/* With many leases, one look at all of them costs less than a look for each candidate. */
static void spare_all_leased(struct kvb_store *store)
{
	kvb_leases_each(&store->leases, spare_if_leased, store);
}

static void touch(void *user, uint64_t word)
{
	struct kvb_store *store = user;
	uint32_t id = leased_slot(store, word);

	if (id != NONE && store->slots[id].state == SLOT_VISIBLE)
		mark_used(store, &store->slots[id]);
}

/* What readers have used without asking is more recently used than the order knows. */
static void hear_readers(struct kvb_store *store)
{
	kvb_leases_touched(&store->leases, touch, store);
}

/* A run of extents by address, none of them held or pending. */
struct run {
	uint32_t low;
	uint32_t high;
	uint64_t length;
};

/* A neighbour that may join a run, else KVB_EXTENT_NONE. Free ones count as never used. */
static uint32_t joinable(const struct kvb_store *store, uint32_t extent, uint64_t *ret_used_at)
{
	const struct kvb_object *object;

	if (extent == KVB_EXTENT_NONE)
		return KVB_EXTENT_NONE;
	if (kvb_extent_is_free(store->extents, extent)) {
		*ret_used_at = 0;
		return extent;
	}
	object = &store->slots[kvb_extent_owner(store->extents, extent)];
	if (!is_evictable(object) || is_spared(store, object))
		return KVB_EXTENT_NONE;
	*ret_used_at = object->used_at;
	return extent;
}

/* Grows the run until it is long enough. False: held or pending blocks stop it on both sides. */
static bool run_grow(const struct kvb_store *store, struct run *run, uint64_t bytes)
{
	while (run->length < bytes) {
		uint64_t below_at = UINT64_MAX, above_at = UINT64_MAX;
		uint32_t below =
			joinable(store, kvb_extent_below(store->extents, run->low), &below_at);
		uint32_t above =
			joinable(store, kvb_extent_above(store->extents, run->high), &above_at);

		if (below == KVB_EXTENT_NONE && above == KVB_EXTENT_NONE)
			return false;
		if (below_at <= above_at) {
			run->low = below;
			run->length += kvb_extent_length(store->extents, below);
		} else {
			run->high = above;
			run->length += kvb_extent_length(store->extents, above);
		}
	}
	return true;
}

/* Drops what a long last neighbour made superfluous. The object in the middle always goes. */
static void run_trim(
	const struct kvb_store *store, struct run *run, uint64_t bytes, uint32_t middle)
{
	uint64_t end;

	while (run->low != middle) {
		end = kvb_extent_length(store->extents, run->low);
		if (run->length - end < bytes)
			break;
		run->length -= end;
		run->low = kvb_extent_above(store->extents, run->low);
	}
	while (run->high != middle) {
		end = kvb_extent_length(store->extents, run->high);
		if (run->length - end < bytes)
			break;
		run->length -= end;
		run->high = kvb_extent_below(store->extents, run->high);
	}
}

static void run_mark(struct kvb_store *store, const struct run *run)
{
	uint32_t extent = run->low;

	for (;;) {
		if (!kvb_extent_is_free(store->extents, extent))
			store->slots[kvb_extent_owner(store->extents, extent)].walked = store->walk;
		if (extent == run->high)
			return;
		extent = kvb_extent_above(store->extents, extent);
	}
}

/* The run's objects from `*extent` upwards, as many as a scan takes; *extent is where to go on. */
static uint32_t run_objects(const struct kvb_store *store, const struct run *run, uint32_t *extent,
	uint32_t ret_ids[KVB_SCAN_MAX])
{
	uint32_t n = 0;

	while (*extent != KVB_EXTENT_NONE && n < KVB_SCAN_MAX) {
		if (!kvb_extent_is_free(store->extents, *extent))
			ret_ids[n++] = kvb_extent_owner(store->extents, *extent);
		*extent = *extent == run->high ? KVB_EXTENT_NONE
					       : kvb_extent_above(store->extents, *extent);
	}
	return n;
}

/* Evicts all objects of a run. False: some are leased; those were spared, and none evicted. */
static bool run_evict(struct kvb_store *store, const struct run *run)
{
	uint32_t ids[KVB_SCAN_MAX], extent = run->low, n;
	bool spared = false;

	while ((n = run_objects(store, run, &extent, ids)) > 0)
		spared = spare_leased(store, ids, n) < n || spared;
	if (spared)
		return false;
	/* In limbo they keep their extents, so the run stays as it is until the end. */
	extent = run->low;
	while ((n = run_objects(store, run, &extent, ids)) > 0)
		for (uint32_t i = 0; i < n; i++)
			evict(store, ids[i]);
	reclaim(store, store->stats.limbo);
	return true;
}

/* Finds a run long enough around the least recently used object that allows it, and evicts what is in
 * it. 0; -ENOSPC; -EAGAIN leases were met, look again. */
static int make_room_once(struct kvb_store *store, uint64_t bytes)
{
	uint32_t id;

	for (id = store->slots[LIST_BYTES].newer; id != LIST_BYTES; id = store->slots[id].newer) {
		uint32_t middle = store->slots[id].extent;
		struct run run = {middle, middle, extent_bytes(store, &store->slots[id])};

		if (store->slots[id].walked == store->walk || is_spared(store, &store->slots[id]))
			continue;
		if (!run_grow(store, &run, bytes)) {
			run_mark(store, &run);
			continue;
		}
		run_trim(store, &run, bytes, middle);
		return run_evict(store, &run) ? 0 : -EAGAIN;
	}
	return -ENOSPC;
}

/* Evicts such that a free extent of so many bytes exists, and takes it. Evicts nothing when that
 * cannot be, but for the case that objects are leased at the last moment. */
static int make_room(struct kvb_store *store, uint64_t bytes, uint32_t *ret_extent)
{
	uint64_t spared = store->stats.leased_spared, unused;
	unsigned met = 0;
	int r;

	if (store->stats.limbo > 0) {
		reclaim(store, store->stats.limbo);
		r = kvb_extent_alloc(store->extents, bytes, ret_extent);
		if (r != -ENOSPC)
			return r;
	}
	hear_readers(store);
	unused = kvb_extents_ready(store->extents) - kvb_extents_used(store->extents);
	if (bytes > unused + store->evictable_bytes || bytes >= store->hopeless) {
		store->stats.leased_refused += store->stats.limbo > 0;
		return -ENOSPC;
	}
	store->walk++;
	/* Ends: each turn spares or evicts objects that no later turn looks at again. */
	do {
		r = make_room_once(store, bytes);
		if (r == -EAGAIN && ++met == LEASES_MET)
			spare_all_leased(store);
		if (r == 0)
			r = kvb_extent_alloc(store->extents, bytes, ret_extent);
		else if (r == -ENOSPC)
			break;
	} while (r == -EAGAIN || r == -ENOSPC);
	if (r != -ENOSPC)
		return r;
	/* Leases end without a word, so it may be had at any time. */
	if (spared == store->stats.leased_spared && store->stats.limbo == 0)
		store->hopeless = bytes;
	else
		store->stats.leased_refused++;
	return -ENOSPC;
}

/* The objects that were not used for longest, those without bytes included if `any`, as many as are
 * to share a scan; those that were spared are no candidates. */
static uint32_t oldest_objects(
	const struct kvb_store *store, bool any, uint32_t wanted, uint32_t ret_ids[KVB_SCAN_MAX])
{
	uint32_t with = store->slots[LIST_BYTES].newer;
	uint32_t without = any ? store->slots[LIST_EMPTY].newer : LIST_EMPTY;
	uint32_t n = 0;

	while (n < wanted) {
		/* Spared ones stand at the end of both lists. */
		bool end_with = with == LIST_BYTES || is_spared(store, &store->slots[with]);
		bool end_without =
			without == LIST_EMPTY || is_spared(store, &store->slots[without]);
		if (end_with && end_without)
			break;
		if (end_without ||
			(!end_with && store->slots[with].used_at < store->slots[without].used_at)) {
			ret_ids[n++] = with;
			with = store->slots[with].newer;
		} else {
			ret_ids[n++] = without;
			without = store->slots[without].newer;
		}
	}
	return n;
}

/* Evicts up to `wanted` of the oldest that are not leased. Returns how many candidates there were. */
static uint32_t evict_oldest(struct kvb_store *store, bool any, uint32_t wanted)
{
	uint32_t ids[KVB_SCAN_MAX];
	uint32_t n = oldest_objects(store, any, wanted, ids), kept = spare_leased(store, ids, n);

	for (uint32_t i = 0; i < kept; i++)
		evict(store, ids[i]);
	reclaim(store, store->fresh);
	return n;
}

/* Makes sure that there is a slot. 0; -ENOSPC. */
static int make_slot(struct kvb_store *store)
{
	uint64_t spared = store->stats.leased_spared;
	unsigned met = 0;

	if (store->slots_taken < store->config.objects_max)
		return 0;
	reclaim(store, store->stats.limbo);
	hear_readers(store);
	store->walk++;
	while (store->slots_taken == store->config.objects_max) {
		if (evict_oldest(store, true, (uint32_t)batch_size(store)) > 0) {
			if (++met == LEASES_MET)
				spare_all_leased(store);
			continue;
		}
		store->stats.leased_refused +=
			store->stats.leased_spared > spared || store->stats.limbo > 0;
		return -ENOSPC;
	}
	return 0;
}

static int extent_new(struct kvb_store *store, uint64_t bytes, uint32_t *ret_extent)
{
	int r = kvb_extent_alloc(store->extents, bytes, ret_extent);

	if (r != -ENOSPC)
		return r;
	return make_room(store, bytes, ret_extent);
}

/* A share of the added bytes, without overflow and without losing the rest. */
static bool over_mark(const struct kvb_store *store, uint32_t percent)
{
	uint64_t ready = kvb_extents_ready(store->extents);

	/* What is in limbo goes by itself. */
	return kvb_extents_used(store->extents) - store->stats.limbo_bytes >
		ready / 100 * percent + ready % 100 * percent / 100;
}

static int reserve_locked(struct kvb_store *store, uint64_t bytes, struct kvb_object **ret_object)
{
	bool slots_out = store->slots_taken == store->config.objects_max;
	uint32_t extent = KVB_EXTENT_NONE, id = NONE;
	int r;

	if (slots_out && store->evictable == 0 && store->stats.limbo == 0)
		return -ENOSPC;
	if (bytes > 0) {
		r = extent_new(store, bytes, &extent);
		if (r < 0)
			return r;
	}
	/* Only now, since making room for the bytes may have given a slot back as well. */
	r = make_slot(store);
	if (r == 0)
		r = slot_new(store, &id);
	if (r < 0) {
		if (extent != KVB_EXTENT_NONE)
			kvb_extent_free(store->extents, extent);
		return r;
	}
	if (extent != KVB_EXTENT_NONE)
		kvb_extent_set_owner(store->extents, extent, id);
	if (over_mark(store, store->config.high_percent) && !store->behind) {
		store->behind = true;
		pthread_cond_signal(&store->wake);
	}
	store->slots[id].extent = extent;
	*ret_object = &store->slots[id];
	return 0;
}

int kvb_store_reserve(struct kvb_store *store, const void *key, size_t key_len, uint64_t length,
	struct kvb_object **ret_object)
{
	struct kvb_object *object = NULL;
	unsigned char *far = NULL;
	uint64_t hash;
	int r;

	if (key_len == 0 || key_len > KVB_KEY_MAX)
		return -EINVAL;
	if (length > store->config.pool_bytes)
		return -EFBIG;
	if (key_len > KEY_INLINE) {
		far = malloc(key_len);
		if (!far)
			return -ENOMEM;
	}
	hash = hash_of(store, key, key_len);
	pthread_mutex_lock(&store->lock);
	r = reserve_locked(store, kvb_round_up(length, store->config.alignment), &object);
	if (r == 0) {
		object->hash = hash;
		object->length = length;
		object->holders = 0;
		object->key_len = (uint16_t)key_len;
		object->state = SLOT_PENDING;
		if (far)
			object->key.far = far;
		memcpy(far ? far : object->key.bytes, key, key_len);
		store->stats.pending++;
		store->stats.pending_bytes += length;
		*ret_object = object;
	}
	pthread_mutex_unlock(&store->lock);
	if (r < 0)
		free(far);
	return r;
}

static void no_longer_pending(struct kvb_store *store, const struct kvb_object *object)
{
	store->stats.pending--;
	store->stats.pending_bytes -= object->length;
	store->hopeless = UINT64_MAX;
}

/* Evicts the oldest of a bucket. False: all in it are held or leased. */
static bool evict_from_chain(struct kvb_store *store, uint64_t hash)
{
	uint32_t chain[KVB_CHAIN_ENTRIES], n = kvb_index_chain(&store->index, hash, chain);
	uint32_t oldest = NONE;

	for (uint32_t i = 0; i < n; i++) {
		const struct kvb_object *object = &store->slots[chain[i]];
		if (!is_evictable(object) || is_spared(store, object))
			continue;
		if (oldest == NONE || object->used_at < store->slots[oldest].used_at)
			oldest = chain[i];
	}
	if (oldest == NONE)
		return false;
	if (spare_leased(store, &oldest, 1) == 1) {
		evict(store, oldest);
		reclaim(store, store->fresh);
	}
	return true;
}

/* Makes readers find it where they found the object of the same key, or anew. 0; -ENOSPC its bucket is
 * full of objects that are held or leased. */
static int publish(struct kvb_store *store, struct kvb_object *object, bool replaces)
{
	uint32_t id = id_of(store, object);
	uint64_t offset = 0;

	if (!is_shared(object))
		return 0;
	if (object->extent != KVB_EXTENT_NONE)
		offset = kvb_extent_offset(store->extents, object->extent);
	kvb_index_fill(&store->index, id, key_of(object), object->key_len, offset, object->length);
	if (replaces)
		return 0;
	if (kvb_index_insert(&store->index, id, object->hash) == 0)
		return 0;
	hear_readers(store);
	store->walk++;
	do {
		if (!evict_from_chain(store, object->hash))
			return -ENOSPC;
	} while (kvb_index_insert(&store->index, id, object->hash) < 0);
	return 0;
}

/* Where the key of an object that is not visible has its place; see find_link(). */
static uint32_t *link_for(struct kvb_store *store, const struct kvb_object *object)
{
	return find_link(store, key_of(object), object->key_len, object->hash);
}

static void make_visible(struct kvb_store *store, struct kvb_object *object)
{
	uint32_t *link = &store->buckets[object->hash & store->bucket_mask];

	object->chain = *link;
	*link = id_of(store, object);
	object->state = SLOT_VISIBLE;
	store->stats.objects++;
	store->stats.payload_bytes += object->length;
	make_evictable(store, object);
}

/* In place of the visible object that the key's link leads to, if there is one. 0; -ENOSPC, and the
 * object is dropped. */
static int object_show(struct kvb_store *store, struct kvb_object *object, uint32_t *link)
{
	bool replaces = *link != NONE;
	int r = publish(store, object, replaces);

	if (r < 0) {
		/* Nobody has found it, so nobody has leased it. */
		kvb_index_recycle(&store->index, id_of(store, object));
		object_drop(store, object);
		return r;
	}
	if (replaces) {
		store->stats.replaced++;
		remove_visible(store, &store->slots[*link], link, object);
	}
	make_visible(store, object);
	return 0;
}

int kvb_store_commit(struct kvb_store *store, struct kvb_object *object)
{
	int r;

	pthread_mutex_lock(&store->lock);
	no_longer_pending(store, object);
	r = object_show(store, object, link_for(store, object));
	pthread_mutex_unlock(&store->lock);
	return r;
}

int kvb_store_commit_absent(struct kvb_store *store, struct kvb_object *object)
{
	uint32_t *link;
	int r;

	pthread_mutex_lock(&store->lock);
	no_longer_pending(store, object);
	link = link_for(store, object);
	if (*link == NONE) {
		r = object_show(store, object, link);
	} else {
		mark_used(store, &store->slots[*link]);
		object_drop(store, object);
		r = -EEXIST;
	}
	pthread_mutex_unlock(&store->lock);
	return r;
}

void kvb_store_abort(struct kvb_store *store, struct kvb_object *object)
{
	pthread_mutex_lock(&store->lock);
	no_longer_pending(store, object);
	object_drop(store, object);
	pthread_mutex_unlock(&store->lock);
}

int kvb_store_hold(
	struct kvb_store *store, const void *key, size_t key_len, struct kvb_object **ret_object)
{
	uint64_t hash = hash_of(store, key, key_len);
	struct kvb_object *object;

	pthread_mutex_lock(&store->lock);
	object = find(store, key, key_len, hash);
	if (object) {
		if (object->holders == 0) {
			pin(store, object);
			store->stats.held++;
		}
		object->holders++;
		*ret_object = object;
	}
	pthread_mutex_unlock(&store->lock);
	return object ? 0 : -ENOENT;
}

void kvb_store_unhold(struct kvb_store *store, struct kvb_object *object)
{
	pthread_mutex_lock(&store->lock);
	if (--object->holders == 0) {
		store->stats.held--;
		store->hopeless = UINT64_MAX;
		if (object->state == SLOT_ORPHAN)
			let_go(store, object);
		else
			make_evictable(store, object);
	}
	pthread_mutex_unlock(&store->lock);
}

/* Without the lock: extent and length stay as they are while the caller has a claim. */
void *kvb_store_object_data(const struct kvb_store *store, const struct kvb_object *object)
{
	if (object->length == 0)
		return NULL;
	return (char *)store->config.pool + kvb_extent_offset(store->extents, object->extent);
}

uint64_t kvb_store_object_length(const struct kvb_object *object)
{
	return object->length;
}

int kvb_store_exists(struct kvb_store *store, const void *key, size_t key_len, uint64_t *ret_length)
{
	uint64_t hash = hash_of(store, key, key_len);
	struct kvb_object *object;

	pthread_mutex_lock(&store->lock);
	object = find(store, key, key_len, hash);
	if (object) {
		mark_used(store, object);
		*ret_length = object->length;
	}
	pthread_mutex_unlock(&store->lock);
	return object ? 0 : -ENOENT;
}

int kvb_store_delete(struct kvb_store *store, const void *key, size_t key_len)
{
	uint64_t hash = hash_of(store, key, key_len);
	uint32_t *link;
	int r = -ENOENT;

	pthread_mutex_lock(&store->lock);
	link = find_link(store, key, key_len, hash);
	if (*link != NONE) {
		remove_visible(store, &store->slots[*link], link, NULL);
		r = 0;
	}
	pthread_mutex_unlock(&store->lock);
	return r;
}

uint64_t kvb_store_list(struct kvb_store *store, uint64_t cursor, kvb_store_list_fn *fn, void *user)
{
	uint64_t next = 0, id;

	pthread_mutex_lock(&store->lock);
	for (id = kvb_max_u64(cursor, SLOTS_FIRST); id < store->slots_end; id++) {
		const struct kvb_object *object = &store->slots[id];
		if (object->state != SLOT_VISIBLE)
			continue;
		if (fn(user, key_of(object), object->key_len, object->length) != 0) {
			next = id;
			break;
		}
	}
	pthread_mutex_unlock(&store->lock);
	return next;
}

const struct kvb_segment *kvb_store_index(const struct kvb_store *store)
{
	return &store->index.segment;
}

int kvb_store_add_leases(struct kvb_store *store, const struct kvb_leases *leases, uint64_t number)
{
	int r;

	pthread_mutex_lock(&store->lock);
	r = kvb_leases_add(&store->leases, leases, number);
	pthread_mutex_unlock(&store->lock);
	return r;
}

void kvb_store_remove_leases(struct kvb_store *store, uint64_t number)
{
	pthread_mutex_lock(&store->lock);
	kvb_leases_remove(&store->leases, number);
	if (store->stats.limbo > 0)
		reclaim(store, store->stats.limbo);
	pthread_mutex_unlock(&store->lock);
}

int kvb_store_add_range(struct kvb_store *store, uint64_t offset, uint64_t length)
{
	int r;

	if (!kvb_range_fits(offset, length, store->config.pool_bytes))
		return -EINVAL;
	pthread_mutex_lock(&store->lock);
	r = kvb_extent_add_range(store->extents, offset, length);
	if (r == 0)
		kvb_index_set_ready(&store->index, offset, length);
	store->hopeless = UINT64_MAX;
	pthread_mutex_unlock(&store->lock);
	return r;
}

/* How many of the oldest have to go until the low watermark is reached, at most a scan's worth. */
static uint32_t surplus(const struct kvb_store *store)
{
	uint64_t used = kvb_extents_used(store->extents) - store->stats.limbo_bytes;
	uint64_t ready = kvb_extents_ready(store->extents), low, freed = 0;
	uint32_t id = store->slots[LIST_BYTES].newer, n = 0;

	low = ready / 100 * store->config.low_percent +
		ready % 100 * store->config.low_percent / 100;
	while (used - freed > low && id != LIST_BYTES && n < KVB_SCAN_MAX) {
		freed += extent_bytes(store, &store->slots[id]);
		id = store->slots[id].newer;
		n++;
	}
	return n;
}

/* Evicts a batch towards the low watermark. False when there is nothing left to do. */
static bool evict_ahead(struct kvb_store *store)
{
	uint64_t evicted = store->stats.evicted;
	uint32_t n;

	hear_readers(store);
	store->walk++;
	n = surplus(store);
	/* Where all of a batch is leased, to go on might never end; the next reservation asks again. */
	return n > 0 && evict_oldest(store, false, n) > 0 && store->stats.evicted > evicted &&
		over_mark(store, store->config.low_percent);
}

static void look_at_limbo(struct kvb_store *store)
{
	uint64_t begin_ns = kvb_now_ns(), now_ns;

	reclaim(store, store->stats.limbo);
	now_ns = kvb_now_ns();
	store->limbo_ns = now_ns + kvb_max_u64(LIMBO_NS, LIMBO_PART * (now_ns - begin_ns));
}

/* Sleeps until there is something to do, or to look at again. */
static void rest(struct kvb_store *store)
{
	if (store->stats.limbo == 0) {
		store->asleep = true;
		pthread_cond_wait(&store->wake, &store->lock);
		store->asleep = false;
		store->limbo_ns = kvb_now_ns() + LIMBO_NS;
	} else if (kvb_cond_wait_until(&store->wake, &store->lock, store->limbo_ns) == -ETIMEDOUT) {
		look_at_limbo(store);
	}
}

static void *maintenance_main(void *arg)
{
	struct kvb_store *store = arg;

	pthread_mutex_lock(&store->lock);
	while (!store->stopping) {
		if (!store->behind) {
			rest(store);
			continue;
		}
		store->behind = evict_ahead(store);
		/* Between two batches others may have the lock. */
		pthread_mutex_unlock(&store->lock);
		pthread_mutex_lock(&store->lock);
	}
	pthread_mutex_unlock(&store->lock);
	return NULL;
}

int kvb_store_start_maintenance(struct kvb_store *store)
{
	int r = -EALREADY;

	pthread_mutex_lock(&store->lock);
	if (!store->running) {
		store->stopping = false;
		r = kvb_thread_start(&store->thread, "kvb-evict", maintenance_main, store);
		store->running = r == 0;
	}
	pthread_mutex_unlock(&store->lock);
	return r;
}

void kvb_store_stop_maintenance(struct kvb_store *store)
{
	bool was_running;

	pthread_mutex_lock(&store->lock);
	was_running = store->running && !store->stopping;
	store->stopping = true;
	pthread_cond_signal(&store->wake);
	pthread_mutex_unlock(&store->lock);
	if (!was_running)
		return;
	pthread_join(store->thread, NULL);
	pthread_mutex_lock(&store->lock);
	store->running = false;
	pthread_mutex_unlock(&store->lock);
}

static bool config_is_valid(const struct kvb_store_config *config)
{
	return config->pool && config->pool_bytes > 0 && config->pool_bytes <= INT64_MAX &&
		kvb_is_power_of_two(config->alignment) &&
		config->pool_bytes % config->alignment == 0 && config->objects_max > 0 &&
		config->objects_max < INT32_MAX - 65536 &&
		config->low_percent <= config->high_percent && config->high_percent <= 100;
}

/* Zeroed memory of which only touched pages count. */
static void *table_new(uint64_t bytes)
{
	void *table = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return table == MAP_FAILED ? NULL : table;
}

static uint64_t slots_bytes(const struct kvb_store *store)
{
	return (store->config.objects_max + (uint64_t)SLOTS_FIRST) * sizeof(struct kvb_object);
}

static uint64_t buckets_bytes(const struct kvb_store *store)
{
	return (store->bucket_mask + 1) * sizeof(uint32_t);
}

static int tables_new(struct kvb_store *store)
{
	uint64_t buckets = 1;
	int r;

	while (buckets < store->config.objects_max)
		buckets *= 2;
	store->bucket_mask = buckets - 1;
	store->slots = table_new(slots_bytes(store));
	store->buckets = table_new(buckets_bytes(store));
	if (!store->slots || !store->buckets)
		return -ENOMEM;
	/* One more than slots: an extent may be taken before the object that gives way for a slot. */
	r = kvb_extents_new(
		store->config.objects_max + 1, store->config.alignment, &store->extents);
	if (r < 0)
		return r;
	store->slots_end = SLOTS_FIRST;
	store->slots[LIST_EMPTY].newer = store->slots[LIST_EMPTY].older = LIST_EMPTY;
	store->slots[LIST_LIMBO].newer = store->slots[LIST_LIMBO].older = LIST_LIMBO;
	return kvb_index_new(&store->index, store->config.boot_id, store->config.hash_seed,
		store->config.pool_bytes, store->config.objects_max + SLOTS_FIRST);
}

static void store_destroy(struct kvb_store *store)
{
	kvb_leases_free(&store->leases);
	kvb_index_free(&store->index);
	kvb_extents_free(store->extents);
	if (store->buckets)
		munmap(store->buckets, buckets_bytes(store));
	if (store->slots)
		munmap(store->slots, slots_bytes(store));
	pthread_cond_destroy(&store->wake);
	pthread_mutex_destroy(&store->lock);
	free(store);
}

/* What is done under the lock is short, so spinning a little beats sleeping. */
static void lock_init(pthread_mutex_t *lock)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
	pthread_mutex_init(lock, &attr);
	pthread_mutexattr_destroy(&attr);
}

int kvb_store_new(const struct kvb_store_config *config, struct kvb_store **ret_store)
{
	struct kvb_store *store;
	int r;

	if (!config_is_valid(config))
		return -EINVAL;
	store = calloc(1, sizeof(*store));
	if (!store)
		return -ENOMEM;
	store->config = *config;
	store->hopeless = UINT64_MAX;
	store->index.segment = (struct kvb_segment)KVB_SEGMENT_NONE;
	lock_init(&store->lock);
	kvb_cond_init(&store->wake);
	r = tables_new(store);
	if (r < 0) {
		store_destroy(store);
		return r;
	}
	*ret_store = store;
	return 0;
}

void kvb_store_free(struct kvb_store *store)
{
	if (!store)
		return;
	kvb_store_stop_maintenance(store);
	for (uint32_t id = SLOTS_FIRST; id < store->slots_end; id++) {
		const struct kvb_object *object = &store->slots[id];
		if (object->state != SLOT_UNUSED && object->key_len > KEY_INLINE)
			free(object->key.far);
	}
	store_destroy(store);
}

/* Who holds most leases. The lock is taken for one session's cells at a time: all of them together are
 * more than puts should wait for. */
static void find_most_leases(struct kvb_store *store, uint64_t *ret_session, uint64_t *ret_leases)
{
	uint64_t number = 0, leases = 0;
	bool more = true;

	*ret_session = 0;
	*ret_leases = 0;
	for (uint32_t i = 0; more; i++) {
		pthread_mutex_lock(&store->lock);
		more = kvb_leases_count(&store->leases, i, &number, &leases);
		pthread_mutex_unlock(&store->lock);
		if (!more || leases <= *ret_leases)
			continue;
		*ret_session = number;
		*ret_leases = leases;
	}
}

void kvb_store_get_stats(struct kvb_store *store, struct kvb_store_stats *ret_stats)
{
	pthread_mutex_lock(&store->lock);
	*ret_stats = store->stats;
	ret_stats->pool_bytes = store->config.pool_bytes;
	ret_stats->ready_bytes = kvb_extents_ready(store->extents);
	ret_stats->used_bytes = kvb_extents_used(store->extents);
	ret_stats->objects_max = store->config.objects_max;
	ret_stats->free_largest = kvb_extents_largest(store->extents);
	ret_stats->index_bytes = store->index.segment.bytes;
	pthread_mutex_unlock(&store->lock);
	find_most_leases(store, &ret_stats->leases_session, &ret_stats->leases_most);
}

struct recount {
	struct kvb_store_stats stats;
	uint64_t used_bytes;
	uint64_t evictable_bytes;
	uint32_t evictable;
	uint32_t extents;
	uint32_t taken;
};

/* The object agrees with the index and with its extent, and is counted. */
static bool check_object(struct kvb_store *store, uint32_t id, struct recount *count)
{
	const struct kvb_object *object = &store->slots[id];
	bool visible = object->state == SLOT_VISIBLE;
	uint64_t bytes = extent_bytes(store, object);
	struct kvb_object *found = find(store, key_of(object), object->key_len, object->hash);

	if (visible != (found == object) ||
		((object->state == SLOT_PENDING || object->state == SLOT_LIMBO) &&
			object->holders > 0) ||
		(object->state == SLOT_ORPHAN && object->holders == 0) ||
		object->hash != hash_of(store, key_of(object), object->key_len))
		return false;
	if (bytes != kvb_round_up(object->length, store->config.alignment))
		return false;
	if (bytes > 0 &&
		(kvb_extent_is_free(store->extents, object->extent) ||
			kvb_extent_owner(store->extents, object->extent) != id))
		return false;
	count->stats.limbo += object->state == SLOT_LIMBO;
	count->stats.limbo_bytes += object->state == SLOT_LIMBO ? bytes : 0;
	count->taken++;
	count->extents += bytes > 0;
	count->used_bytes += bytes;
	count->stats.objects += visible;
	count->stats.payload_bytes += visible ? object->length : 0;
	count->stats.held += object->holders > 0;
	count->stats.pending += object->state == SLOT_PENDING;
	count->stats.pending_bytes += object->state == SLOT_PENDING ? object->length : 0;
	count->evictable += is_evictable(object);
	count->evictable_bytes += is_evictable(object) ? bytes : 0;
	return true;
}

/* The list is in order of use and well linked; returns how many are on it, or a wrong number. */
static uint64_t check_list(const struct kvb_store *store, uint32_t end)
{
	uint64_t counted = 0, used_at = 0;
	uint32_t id, previous = end;

	for (id = store->slots[end].newer; id != end; id = store->slots[id].newer) {
		const struct kvb_object *object = &store->slots[id];
		if (!is_evictable(object) || object->older != previous ||
			object->used_at <= used_at || counted++ > store->slots_taken ||
			(object->length == 0) != (end == LIST_EMPTY))
			return UINT32_MAX;
		used_at = object->used_at;
		previous = id;
	}
	return store->slots[end].older == previous ? counted : UINT32_MAX;
}

static uint64_t count_index(const struct kvb_store *store)
{
	uint64_t counted = 0;

	for (uint64_t i = 0; i <= store->bucket_mask; i++) {
		uint32_t id = store->buckets[i];
		for (; id != NONE && counted <= store->slots_taken; id = store->slots[id].chain)
			counted++;
	}
	return counted;
}

static uint64_t count_unused(const struct kvb_store *store)
{
	uint64_t counted = 0;
	uint32_t id = store->slots_unused;

	for (; id != NONE && counted <= store->slots_end; id = store->slots[id].chain)
		counted += store->slots[id].state == SLOT_UNUSED;
	return counted;
}

static bool check_locked(struct kvb_store *store)
{
	const struct kvb_store_stats *stats = &store->stats;
	struct recount count = {0};

	for (uint32_t id = SLOTS_FIRST; id < store->slots_end; id++) {
		if (store->slots[id].state != SLOT_UNUSED && !check_object(store, id, &count))
			return false;
	}
	return kvb_extents_check(store->extents) == 0 &&
		count.used_bytes == kvb_extents_used(store->extents) &&
		count.extents == kvb_extents_count(store->extents) &&
		count.taken == store->slots_taken && count.taken <= store->config.objects_max &&
		count.taken + count_unused(store) + SLOTS_FIRST == store->slots_end &&
		count.stats.objects == stats->objects && count_index(store) == stats->objects &&
		count.stats.payload_bytes == stats->payload_bytes &&
		count.stats.held == stats->held && count.stats.pending == stats->pending &&
		count.stats.pending_bytes == stats->pending_bytes &&
		count.stats.limbo == stats->limbo &&
		count.stats.limbo_bytes == stats->limbo_bytes &&
		count.evictable == store->evictable &&
		count.evictable_bytes == store->evictable_bytes &&
		check_list(store, LIST_BYTES) + check_list(store, LIST_EMPTY) == store->evictable;
}

int kvb_store_check(struct kvb_store *store)
{
	bool agrees;

	pthread_mutex_lock(&store->lock);
	agrees = check_locked(store);
	pthread_mutex_unlock(&store->lock);
	return agrees ? 0 : -EBADMSG;
}
