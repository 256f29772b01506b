/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - see store.h.
 *
 * Owns the table of slots, the hash index, the recency lists, the books of the pool (extent.c) and
 * the thread "kvb-evict". Everything is under one lock, held for short steps; any thread calls in.
 * Must never read or write payload, never call out under the lock except for the list callback, and
 * never free the bytes of an object that somebody holds or is still writing.
 *
 * A slot is unused, PENDING (reserved), VISIBLE, or ORPHAN (deleted or replaced while held: out of
 * the index, freed by its last holder). VISIBLE objects without holders are the only ones that can
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
 * Slots 0 and 1 are the ends of the recency lists; 0 is also the null of all other links.
 */
#include "server/store.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "kvbell/protocol.h"
#include "server/extent.h"
#include "shm/threads.h"
#include "shm/util.h"

#define NONE        0u
#define LIST_BYTES  0u /* objects with an extent */
#define LIST_EMPTY  1u
#define SLOTS_FIRST 2u
#define KEY_INLINE  200u
#define EVICT_BATCH 64u

enum object_state { SLOT_UNUSED, SLOT_PENDING, SLOT_VISIBLE, SLOT_ORPHAN };

/* Four cache lines; a lookup that compares hashes only touches the first. */
struct kvb_object {
	uint64_t hash;
	uint64_t length;
	uint64_t used_at; /* value of the store's clock */
	uint64_t walked;  /* number of the last search that rejected the run it lies in */
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
	bool behind; /* above the high watermark and not yet down at the low one */
	struct kvb_extents *extents;
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
	return XXH3_64bits_withSeed(key, key_len, store->config.hash_seed);
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

static void mark_used(struct kvb_store *store, struct kvb_object *object)
{
	/* A held one is on no list and becomes the most recently used when it is let go. */
	if (object->holders > 0)
		return;
	object->used_at = ++store->clock;
	list_remove(store, object);
	list_append(store, object);
}

static uint32_t slot_new(struct kvb_store *store)
{
	uint32_t id = store->slots_unused;

	if (id != NONE)
		store->slots_unused = store->slots[id].chain;
	else
		id = store->slots_end++;
	store->slots_taken++;
	return id;
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

/* Takes a visible object out of sight: it is freed now, or by its last holder. */
static void object_hide(struct kvb_store *store, struct kvb_object *object, uint32_t *link)
{
	*link = object->chain;
	store->stats.objects--;
	store->stats.payload_bytes -= object->length;
	if (object->holders > 0) {
		object->state = SLOT_ORPHAN;
		return;
	}
	pin(store, object);
	object_drop(store, object);
}

static void evict(struct kvb_store *store, uint32_t id)
{
	struct kvb_object *object = &store->slots[id];
	uint32_t *link = &store->buckets[object->hash & store->bucket_mask];

	while (*link != id)
		link = &store->slots[*link].chain;
	store->stats.evicted++;
	store->stats.evicted_bytes += object->length;
	object_hide(store, object, link);
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
	if (!is_evictable(object))
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

/* Downwards, because of free extents that join, the lowest keeps its number. */
static void run_evict(struct kvb_store *store, const struct run *run)
{
	uint32_t extent = run->high;
	bool last;

	do {
		uint32_t below = kvb_extent_below(store->extents, extent);
		last = extent == run->low;
		if (!kvb_extent_is_free(store->extents, extent))
			evict(store, kvb_extent_owner(store->extents, extent));
		extent = below;
	} while (!last);
}

/* Evicts such that a free extent of so many bytes exists. Evicts nothing when that cannot be. */
static int make_room(struct kvb_store *store, uint64_t bytes)
{
	uint64_t unused = kvb_extents_ready(store->extents) - kvb_extents_used(store->extents);
	uint32_t id;

	if (bytes > unused + store->evictable_bytes || bytes >= store->hopeless)
		return -ENOSPC;
	store->walk++;
	for (id = store->slots[LIST_BYTES].newer; id != LIST_BYTES; id = store->slots[id].newer) {
		uint32_t middle = store->slots[id].extent;
		struct run run = {middle, middle, extent_bytes(store, &store->slots[id])};

		if (store->slots[id].walked == store->walk)
			continue;
		if (run_grow(store, &run, bytes)) {
			run_trim(store, &run, bytes, middle);
			run_evict(store, &run);
			return 0;
		}
		run_mark(store, &run);
	}
	store->hopeless = bytes;
	return -ENOSPC;
}

/* There is an evictable object. */
static void evict_oldest(struct kvb_store *store)
{
	uint32_t with = store->slots[LIST_BYTES].newer;
	uint32_t without = store->slots[LIST_EMPTY].newer;

	if (without == LIST_EMPTY ||
		(with != LIST_BYTES && store->slots[with].used_at < store->slots[without].used_at))
		evict(store, with);
	else
		evict(store, without);
}

static int extent_new(struct kvb_store *store, uint64_t bytes, uint32_t *ret_extent)
{
	int r = kvb_extent_alloc(store->extents, bytes, ret_extent);

	if (r != -ENOSPC)
		return r;
	r = make_room(store, bytes);
	if (r < 0)
		return r;
	return kvb_extent_alloc(store->extents, bytes, ret_extent);
}

/* A share of the added bytes, without overflow and without losing the rest. */
static bool over_mark(const struct kvb_store *store, uint32_t percent)
{
	uint64_t ready = kvb_extents_ready(store->extents);

	return kvb_extents_used(store->extents) >
		ready / 100 * percent + ready % 100 * percent / 100;
}

static int reserve_locked(struct kvb_store *store, uint64_t bytes, struct kvb_object **ret_object)
{
	bool slots_out = store->slots_taken == store->config.objects_max;
	uint32_t extent = KVB_EXTENT_NONE, id;
	int r;

	if (slots_out && store->evictable == 0)
		return -ENOSPC;
	if (bytes > 0) {
		r = extent_new(store, bytes, &extent);
		if (r < 0)
			return r;
	}
	/* Only now, and only if making room for the bytes has not given a slot back as well. */
	if (store->slots_taken == store->config.objects_max)
		evict_oldest(store);
	id = slot_new(store);
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

/* Where the key of an object that is not in the index has its place; see find_link(). */
static uint32_t *link_for(struct kvb_store *store, const struct kvb_object *object)
{
	return find_link(store, key_of(object), object->key_len, object->hash);
}

/* In place of the visible object that the key's link leads to, if there is one. */
static void object_show(struct kvb_store *store, struct kvb_object *object, uint32_t *link)
{
	if (*link != NONE) {
		store->stats.replaced++;
		object_hide(store, &store->slots[*link], link);
	}
	link = &store->buckets[object->hash & store->bucket_mask];
	object->chain = *link;
	*link = id_of(store, object);
	object->state = SLOT_VISIBLE;
	store->stats.objects++;
	store->stats.payload_bytes += object->length;
	make_evictable(store, object);
}

void kvb_store_commit(struct kvb_store *store, struct kvb_object *object)
{
	pthread_mutex_lock(&store->lock);
	no_longer_pending(store, object);
	object_show(store, object, link_for(store, object));
	pthread_mutex_unlock(&store->lock);
}

int kvb_store_commit_absent(struct kvb_store *store, struct kvb_object *object)
{
	uint32_t *link;
	int r = 0;

	pthread_mutex_lock(&store->lock);
	no_longer_pending(store, object);
	link = link_for(store, object);
	if (*link == NONE) {
		object_show(store, object, link);
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
			object_drop(store, object);
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
		object_hide(store, &store->slots[*link], link);
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

int kvb_store_add_range(struct kvb_store *store, uint64_t offset, uint64_t length)
{
	int r;

	if (!kvb_range_fits(offset, length, store->config.pool_bytes))
		return -EINVAL;
	pthread_mutex_lock(&store->lock);
	r = kvb_extent_add_range(store->extents, offset, length);
	store->hopeless = UINT64_MAX;
	pthread_mutex_unlock(&store->lock);
	return r;
}

/* Evicts a batch towards the low watermark. False when there is nothing left to do. */
static bool evict_ahead(struct kvb_store *store)
{
	for (uint32_t i = 0; i < EVICT_BATCH; i++) {
		uint32_t oldest = store->slots[LIST_BYTES].newer;
		if (oldest == LIST_BYTES || !over_mark(store, store->config.low_percent))
			return false;
		evict(store, oldest);
	}
	return true;
}

static void *maintenance_main(void *arg)
{
	struct kvb_store *store = arg;

	pthread_mutex_lock(&store->lock);
	while (!store->stopping) {
		if (!store->behind) {
			pthread_cond_wait(&store->wake, &store->lock);
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
	return 0;
}

static void store_destroy(struct kvb_store *store)
{
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

void kvb_store_get_stats(struct kvb_store *store, struct kvb_store_stats *ret_stats)
{
	pthread_mutex_lock(&store->lock);
	*ret_stats = store->stats;
	ret_stats->pool_bytes = store->config.pool_bytes;
	ret_stats->ready_bytes = kvb_extents_ready(store->extents);
	ret_stats->used_bytes = kvb_extents_used(store->extents);
	ret_stats->objects_max = store->config.objects_max;
	ret_stats->free_largest = kvb_extents_largest(store->extents);
	pthread_mutex_unlock(&store->lock);
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
		(object->state == SLOT_PENDING && object->holders > 0) ||
		(object->state == SLOT_ORPHAN && object->holders == 0) ||
		object->hash != hash_of(store, key_of(object), object->key_len))
		return false;
	if (bytes != kvb_round_up(object->length, store->config.alignment))
		return false;
	if (bytes > 0 &&
		(kvb_extent_is_free(store->extents, object->extent) ||
			kvb_extent_owner(store->extents, object->extent) != id))
		return false;
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
