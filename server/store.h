/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - objects under keys in the pool: extents, visibility, recency, eviction.
 *
 * Every function is thread-safe. Payload bytes are copied by the caller, outside the store's lock,
 * between kvb_store_reserve() and kvb_store_commit(), or while it holds the object.
 */
#ifndef KVB_SERVER_STORE_H
#define KVB_SERVER_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "kvbell/protocol.h"
#include "shm/index.h"
#include "shm/segment.h"

struct kvb_store;

/* One slot of the store's fixed table; its address is stable. Fields belong to store.c. */
struct kvb_object;

struct kvb_store_config {
	void *pool; /* mapping of the whole pool; the caller owns it and outlives the store */
	uint64_t pool_bytes;           /* multiple of alignment */
	uint32_t objects_max;          /* slots; running out evicts like running out of bytes */
	uint32_t alignment;            /* of extents, power of two, 4096 by default */
	uint64_t hash_seed;            /* random per boot */
	uint8_t boot_id[KVB_ID_BYTES]; /* goes into the index */
	uint32_t low_percent;  /* maintenance evicts down to this share of the added bytes ... */
	uint32_t high_percent; /* ... once more than this share is used; 100 = only when it must */
};

struct kvb_store_stats {
	uint64_t pool_bytes;    /* final size */
	uint64_t ready_bytes;   /* added by kvb_store_add_range() so far */
	uint64_t used_bytes;    /* in extents, alignment included */
	uint64_t payload_bytes; /* of visible objects */
	uint64_t objects;       /* visible */
	uint64_t objects_max;
	uint64_t held;           /* objects with at least one holder */
	uint64_t pending;        /* reserved, not yet committed */
	uint64_t pending_bytes;  /* payload bytes of those */
	uint64_t evicted;        /* objects since start */
	uint64_t evicted_bytes;  /* payload bytes of those */
	uint64_t replaced;       /* objects since start */
	uint64_t free_largest;   /* largest free extent */
	uint64_t limbo;          /* objects out of sight that wait for their last lease */
	uint64_t limbo_bytes;    /* in extents of those */
	uint64_t leased_spared;  /* objects since start that were due to be evicted, and leased */
	uint64_t leased_refused; /* reservations since start that leases stood in the way of */
	uint64_t leases_most;    /* most leases that one session holds now ... */
	uint64_t leases_session; /* ... and its number, as in kvb_store_add_leases() */
	uint64_t index_bytes;
};

/* 0, -EINVAL, -ENOMEM. Starts without any usable byte; see kvb_store_add_range(). */
int kvb_store_new(const struct kvb_store_config *config, struct kvb_store **ret_store);

/* Nobody may hold or have reserved an object. Stops maintenance if it runs. NULL is allowed. */
void kvb_store_free(struct kvb_store *store);

/* Makes [offset, offset + length) of the pool usable; joins with adjacent ranges, so that in the
 * end one object may fill the whole pool. Multiples of the alignment, each byte at most once. */
int kvb_store_add_range(struct kvb_store *store, uint64_t offset, uint64_t length);

/* Starts/stops the thread "kvb-evict", which evicts ahead between the watermarks. It sleeps without
 * a timeout until a reservation passes the high watermark. */
int kvb_store_start_maintenance(struct kvb_store *store);
void kvb_store_stop_maintenance(struct kvb_store *store);

/*
 * Reserves an extent for an object that nobody sees yet, evicting the least recently used objects
 * that nobody holds as far as needed. Length 0 takes a slot and no bytes.
 * 0; -EINVAL a key no key can be; -EFBIG longer than the pool; -ENOSPC what is in the way is held,
 * pending or not added yet, and then nothing was evicted; -ENOMEM.
 */
int kvb_store_reserve(struct kvb_store *store, const void *key, size_t key_len, uint64_t length,
	struct kvb_object **ret_object);

/* Makes a reserved object visible in one step, replacing the one under the same key: that one is
 * freed once its last holder lets go. The caller's claim on `object` ends here, in any case.
 * 0; -ENOSPC its place in the index is full of objects that are held or leased: it is dropped. */
int kvb_store_commit(struct kvb_store *store, struct kvb_object *object);

/* The same if there is nothing under the key. 0; -EEXIST there is: that one stays and counts as
 * used, and `object` is given back. The claim ends either way. */
int kvb_store_commit_absent(struct kvb_store *store, struct kvb_object *object);

/* The shared index, to be handed to clients; the store's own. */
const struct kvb_segment *kvb_store_index(const struct kvb_store *store);

/* From now on objects that are leased in these cells keep their bytes, also when they are evicted,
 * replaced or deleted, until kvb_store_remove_leases() with the same number. 0; -ENOMEM. */
int kvb_store_add_leases(struct kvb_store *store, const struct kvb_leases *leases, uint64_t number);
void kvb_store_remove_leases(struct kvb_store *store, uint64_t number);

/* Gives a reserved object back; it was never visible. */
void kvb_store_abort(struct kvb_store *store, struct kvb_object *object);

/* Finds a visible object, marks it used and holds it: it keeps its bytes until released, also when
 * it is deleted or replaced meanwhile. 0; -ENOENT. */
int kvb_store_hold(
	struct kvb_store *store, const void *key, size_t key_len, struct kvb_object **ret_object);
void kvb_store_unhold(struct kvb_store *store, struct kvb_object *object);

/* Valid while the caller holds or has reserved the object. data is NULL when length is 0. */
void *kvb_store_object_data(const struct kvb_store *store, const struct kvb_object *object);
uint64_t kvb_store_object_length(const struct kvb_object *object);

/* 0 and the length; -ENOENT. Counts as use. */
int kvb_store_exists(
	struct kvb_store *store, const void *key, size_t key_len, uint64_t *ret_length);

/* 0; -ENOENT. Holders keep the object. */
int kvb_store_delete(struct kvb_store *store, const void *key, size_t key_len);

/* Calls fn for visible objects in slots [cursor, ...) until it returns non-zero (that object is not
 * consumed) or the end. Returns the cursor to go on with, 0 at the end. fn runs under the store's
 * lock: it only copies. An object present all the time is seen exactly once. */
typedef int kvb_store_list_fn(void *user, const void *key, size_t key_len, uint64_t length);
uint64_t kvb_store_list(
	struct kvb_store *store, uint64_t cursor, kvb_store_list_fn *fn, void *user);

void kvb_store_get_stats(struct kvb_store *store, struct kvb_store_stats *ret_stats);

/* Recounts everything from slots and extents and compares with the running books.
 * 0; -EBADMSG: they differ (for tests and for a debug build's shutdown). */
int kvb_store_check(struct kvb_store *store);

#endif /* KVB_SERVER_STORE_H */
