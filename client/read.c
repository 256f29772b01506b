/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - holding objects for reading, and looking up lists of keys.
 *
 * Owns nothing beyond the call but the leases it hands out. Runs in the caller's thread. It must never
 * keep a lease after an error.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/local.h"
#include "client/process.h"
#include "kvbell/kvbell.h"
#include "shm/util.h"

/* In lease->cell of an object that was copied: the memory is the lease's own. */
#define COPIED UINT32_MAX

/* A prefix is looked for this many keys ahead of where it is. */
#define AHEAD 8u

static int check_key(const void *key, size_t key_len)
{
	if (!key || key_len == 0)
		return -EINVAL;
	return key_len > KVB_KEY_MAX ? -ENAMETOOLONG : 0;
}

static int acquire_local(
	struct kvb_local *local, const void *key, size_t key_len, struct kvb_lease *ret_lease)
{
	struct kvb_found found;
	uint32_t cell;
	int r = kvb_local_lease(local, key, key_len, &cell, &found);

	if (r < 0)
		return r;
	*ret_lease = (struct kvb_lease){.data = found.length ? local->pool + found.offset : NULL,
		.length = found.length,
		.owner = local,
		.cell = cell,
		.process = kvb_process_number()};
	return 0;
}

/* The object may grow between the look at its length and the copy, as often as it is replaced. */
static int look_and_copy(
	struct kvb_client *client, const void *key, size_t key_len, struct kvb_lease *ret_lease)
{
	size_t length = 0, room;
	void *data = NULL;
	int r = kvb_exists(client, key, key_len, &length);

	while (r == 0 || r == -EMSGSIZE) {
		free(data);
		room = length;
		data = malloc(room + 1);
		if (!data)
			return -ENOMEM;
		r = kvb_get(client, key, key_len, data, room, &length);
		if (r == 0) {
			*ret_lease = (struct kvb_lease){
				.data = data, .length = length, .owner = data, .cell = COPIED};
			return 0;
		}
	}
	free(data);
	return r;
}

static int acquire(
	struct kvb_client *client, const void *key, size_t key_len, struct kvb_lease *ret_lease)
{
	bool knows = kvb_local_knows(key_len);
	struct kvb_local *local = knows ? kvb_local_enter(client) : NULL;
	int r;

	if (local) {
		r = acquire_local(local, key, key_len, ret_lease);
		kvb_local_leave(client);
		return r;
	}
	/* Several requests are one call: kvb_close() waits for all of it. */
	r = knows ? kvb_local_leave_for_any(client) : kvb_client_enter_any(client);
	if (r < 0)
		return r;
	r = look_and_copy(client, key, key_len, ret_lease);
	kvb_client_leave_any(client);
	return r;
}

int kvb_acquire(
	struct kvb_client *client, const void *key, size_t key_len, struct kvb_lease *ret_lease)
{
	int r = check_key(key, key_len);

	return r < 0 ? r : acquire(client, key, key_len, ret_lease);
}

const void *kvb_view(const struct kvb_lease *lease, size_t *ret_len)
{
	if (ret_len)
		*ret_len = lease->length;
	return lease->data;
}

void kvb_release(struct kvb_lease *lease)
{
	if (lease->owner && lease->cell == COPIED)
		free(lease->owner);
	else if (lease->owner && lease->process == kvb_process_number())
		kvb_local_release(lease->owner, lease->cell);
	*lease = (struct kvb_lease){0};
}

/* ---------------------------------------------------------------------------------------- lists of keys */

static bool all_known(const struct kvb_key *keys, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!kvb_local_knows(keys[i].len))
			return false;
	return true;
}

static void look_ahead(struct kvb_local *local, const struct kvb_key *key)
{
	kvb_index_prefetch(&local->index, kvb_index_hash(&local->index, key->data, key->len));
}

static int prefix_local(struct kvb_local *local, const struct kvb_key *keys, size_t n,
	struct kvb_lease *leases, size_t *ret_n)
{
	uint64_t length;
	int r = 0;

	*ret_n = 0;
	for (size_t i = 0; i < kvb_min_u64(n, AHEAD); i++)
		look_ahead(local, &keys[i]);
	for (size_t i = 0; i < n; i++) {
		if (i + AHEAD < n)
			look_ahead(local, &keys[i + AHEAD]);
		r = leases ? acquire_local(local, keys[i].data, keys[i].len, &leases[i])
			   : kvb_local_exists(local, keys[i].data, keys[i].len, &length);
		if (r < 0)
			break;
		*ret_n = i + 1;
	}
	return r == -ENOENT ? 0 : r;
}

static int prefix_asking(struct kvb_client *client, const struct kvb_key *keys, size_t n,
	struct kvb_lease *leases, size_t *ret_n)
{
	int r = 0;

	*ret_n = 0;
	for (size_t i = 0; i < n && r == 0; i++) {
		r = leases ? acquire(client, keys[i].data, keys[i].len, &leases[i])
			   : kvb_exists(client, keys[i].data, keys[i].len, NULL);
		*ret_n += r == 0;
	}
	return r == -ENOENT ? 0 : r;
}

static int prefix(struct kvb_client *client, const struct kvb_key *keys, size_t n,
	struct kvb_lease *leases, size_t *ret_n)
{
	bool known = all_known(keys, n);
	struct kvb_local *local = known ? kvb_local_enter(client) : NULL;
	int r;

	if (local) {
		r = prefix_local(local, keys, n, leases, ret_n);
		kvb_local_leave(client);
		return r;
	}
	r = known ? kvb_local_leave_for_any(client) : kvb_client_enter_any(client);
	if (r < 0)
		return r;
	r = prefix_asking(client, keys, n, leases, ret_n);
	kvb_client_leave_any(client);
	return r;
}

int kvb_prefix(struct kvb_client *client, const struct kvb_key *keys, size_t n,
	struct kvb_lease *ret_leases, size_t *ret_n)
{
	size_t found = 0;
	int r = !keys && n > 0 ? -EINVAL : 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = check_key(keys[i].data, keys[i].len);
	if (r < 0)
		return r;
	r = prefix(client, keys, n, ret_leases, &found);
	if (r == 0)
		*ret_n = found;
	else if (ret_leases)
		while (found > 0)
			kvb_release(&ret_leases[--found]);
	return r;
}
