/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.h - reading without asking: the index, the pool and the lease cells of one attachment, as the
 * client's threads use them.
 *
 * Functions that take a kvb_local run between kvb_local_enter() and kvb_local_leave(), or with one of
 * its leases in hand.
 */
#ifndef KVB_CLIENT_LOCAL_H
#define KVB_CLIENT_LOCAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/connection.h"
#include "client/stream.h"
#include "shm/index.h"

struct kvb_client;

struct kvb_local {
	struct kvb_conn *conn; /* holds a reference: its door, its life page, its maps */
	struct kvb_index index;
	struct kvb_leases leases;
	const uint8_t *pool;
	uint64_t pool_bytes;
	uint64_t populated; /* internal thread: bytes of the pool that are mapped for sure */
	uint8_t *used;      /* atomic, one per cell: taken */
	uint32_t retired;   /* atomic: no new leases; the last one to go frees it */
	struct kvb_local *next_retired;
};

/* Of a reader's attachment; NULL *ret_local for any other. 0; -ENOMEM; -EPROTO. */
int kvb_local_new(struct kvb_conn *conn, struct kvb_local **ret_local);
/* Once nobody can enter it any more and nobody is inside: frees it now, or with its last lease. */
void kvb_local_retire(struct kvb_local *local);
/* In a forked child, where the maps are missing. */
void kvb_local_free_in_child(struct kvb_local *local);
/* Maps more of the pool's memory, as far as the server has it. True: call again soon. */
bool kvb_local_populate(struct kvb_local *local);

/* Whether there is nothing left to map. */
static inline bool kvb_local_is_populated(const struct kvb_local *local)
{
	return local->populated >= local->pool_bytes;
}

/* NULL: the server has to be asked, for whatever reason. Inside is the caller in either case, so that
 * kvb_close() waits for him, until one of the three below; but for a forked child, who never is. */
struct kvb_local *kvb_local_enter(struct kvb_client *client);
void kvb_local_leave(struct kvb_client *client);
/* As kvb_client_enter() and kvb_client_enter_any(); leaves once that has counted the caller, or has
 * refused him. */
int kvb_local_leave_for_ring(
	struct kvb_client *client, struct kvb_conn **ret_conn, uint64_t *ret_deadline_ns);
int kvb_local_leave_for_any(struct kvb_client *client);

/* Whether an object under such a key would be found here. */
static inline bool kvb_local_knows(size_t key_len)
{
	return key_len > 0 && key_len <= KVB_INDEX_KEY_MAX;
}

/* 0 and the length; -ENOENT; -EPROTO. */
int kvb_local_exists(
	struct kvb_local *local, const void *key, size_t key_len, uint64_t *ret_length);
/* Leases an object. 0; -ENOENT; -ENOBUFS all cells are in use; -EPROTO. */
int kvb_local_lease(struct kvb_local *local, const void *key, size_t key_len, uint32_t *ret_cell,
	struct kvb_found *ret_found);
/* Gives a lease back, also of one that has been retired. */
void kvb_local_release(struct kvb_local *local, uint32_t cell);

/* Whether it is a GET, an EXISTS, or a PUT if absent, of a key that would be found here. */
bool kvb_local_is_ours(const struct kvb_task *task);
/* Does it, or finds that the PUT need not be done. True: it is done, with *result and *length; false:
 * the server has to be asked. */
bool kvb_local_do(struct kvb_client *client, struct kvb_local *local, const struct kvb_task *task,
	bool reports, int *ret_result, uint64_t *ret_length);
/* All of it, for whoever kvb_close() waits for anyway. */
bool kvb_local_try(struct kvb_client *client, const struct kvb_task *task, bool reports,
	int *ret_result, uint64_t *ret_length);

#endif /* KVB_CLIENT_LOCAL_H */
