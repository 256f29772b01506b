/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.c - see local.h.
 *
 * Owns the lease cells of one attachment: which thread has which. Runs in the callers' threads, and is
 * made and retired by the internal one. It must never read payload without a lease, never hold a lease
 * that its cell does not show, and never unmap what somebody holds a lease of.
 */
#include "client/local.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "client/client.h"
#include "client/hook.h"
#include "client/inside.h"
#include "shm/atomic.h"
#include "shm/copy.h"
#include "shm/util.h"

/* Threads begin to look for a free cell at places of their own. */
#define CELLS_PER_THREAD 8u
#define POPULATE_BYTES   (64 * KVB_MIB)
/* A large copy reports its progress this often. */
#define COPY_BYTES (4 * KVB_MIB)

enum { CELL_FREE = 0, CELL_TAKEN, CELL_LEAVING };

/* Those that wait for their last lease to be given back. */
static pthread_mutex_t retired_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvb_local *retired_locals;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ------------------------------------------------------------------------------------ life and death */

/* In a forked child: whoever held the lock did not come along, and the parent's leases stay its own. */
static void be_alone(void)
{
	pthread_mutex_init(&retired_lock, NULL);
	retired_locals = NULL;
}

static void prepare(void)
{
	(void)pthread_atfork(NULL, NULL, be_alone);
}

int kvb_local_new(struct kvb_conn *conn, struct kvb_local **ret_local)
{
	const struct kvb_attached *attached = &conn->attached;
	struct kvb_local *local;
	int r;

	*ret_local = NULL;
	if (!(attached->welcome.flags & KVB_WELCOME_READER))
		return 0;
	pthread_once(&once, prepare);
	local = calloc(1, sizeof(*local));
	if (!local)
		return -ENOMEM;
	r = kvb_index_open(&local->index, attached->index.base, attached->index.bytes);
	if (r == 0)
		r = kvb_leases_open(&local->leases, attached->leases.base, attached->leases.bytes);
	if (r == 0 && local->index.pool_bytes != attached->pool.bytes)
		r = -EPROTO;
	if (r == 0) {
		local->used = calloc(local->leases.n_cells, 1);
		r = local->used ? 0 : -ENOMEM;
	}
	if (r < 0) {
		free(local);
		return r;
	}
	local->pool = attached->pool.base;
	local->pool_bytes = attached->pool.bytes;
	local->conn = kvb_conn_ref(conn);
	*ret_local = local;
	return 0;
}

static void destroy(struct kvb_local *local)
{
	kvb_conn_unref(local->conn);
	free(local->used);
	free(local);
}

/* Under retired_lock: takes it off the list if it has no leases. */
static bool unlink_if_unused(struct kvb_local *local)
{
	struct kvb_local **link = &retired_locals;

	for (uint32_t i = 0; i < local->leases.n_cells; i++)
		if (kvb_load_relaxed(&local->used[i]) != CELL_FREE)
			return false;
	while (*link && *link != local)
		link = &(*link)->next_retired;
	if (!*link)
		return false;
	*link = local->next_retired;
	return true;
}

void kvb_local_retire(struct kvb_local *local)
{
	const struct timespec moment = {.tv_nsec = 20000};
	bool unused;

	kvb_store_relaxed(&local->retired, 1u);
	/* Pairs with the fence in kvb_local_release(): who stood at LEAVING and did not see the store
	 * above is seen there below, and will not come back; all others will see it. */
	kvb_inside_barrier();
	for (uint32_t i = 0; i < local->leases.n_cells; i++)
		/* Pairs with the release store in kvb_local_release(). */
		while (kvb_load_acquire(&local->used[i]) == CELL_LEAVING)
			(void)nanosleep(&moment, NULL);
	pthread_mutex_lock(&retired_lock);
	local->next_retired = retired_locals;
	retired_locals = local;
	unused = unlink_if_unused(local);
	pthread_mutex_unlock(&retired_lock);
	if (unused)
		destroy(local);
}

void kvb_local_free_in_child(struct kvb_local *local)
{
	free(local->used);
	free(local);
}

bool kvb_local_populate(struct kvb_local *local)
{
	const struct kvb_index_header *header = local->conn->attached.index.base;
	/* What the server does not have yet would be charged to this process. */
	uint64_t ready = kvb_min_u64(kvb_load_relaxed(&header->ready_bytes), local->pool_bytes);
	uint64_t bytes;

	if (local->populated >= ready)
		return false;
	bytes = kvb_min_u64(POPULATE_BYTES, ready - local->populated);
	/* Without it the first touch is slower, and that is all. */
	if (kvb_segment_populate(&local->conn->attached.pool, local->populated, bytes, false) < 0)
		local->populated = UINT64_MAX;
	else
		local->populated += bytes;
	return local->populated < ready;
}

/* ------------------------------------------------------------------------------------- in and out */

struct kvb_local *kvb_local_enter(struct kvb_client *client)
{
	struct kvb_local *local;

	if (kvb_client_is_forked_child(client))
		return NULL;
	kvb_inside_enter(&client->in);
	/* Pairs with the release store in install() of client.c. */
	local = kvb_load_acquire(&client->local);
	/* Tells the internal thread, too, if the server has died. */
	return local && kvb_conn_check(local->conn) == 0 ? local : NULL;
}

void kvb_local_leave(struct kvb_client *client)
{
	kvb_inside_leave(&client->in);
}

/* The last access to a client that is being closed. */
static int leave_with(struct kvb_client *client, int r)
{
	if (r != -ECHILD)
		kvb_inside_leave(&client->in);
	return r;
}

int kvb_local_leave_for_ring(
	struct kvb_client *client, struct kvb_conn **ret_conn, uint64_t *ret_deadline_ns)
{
	kvb_client_hook(KVB_CLIENT_HOOK_ASK);
	return leave_with(client, kvb_client_enter(client, ret_conn, ret_deadline_ns));
}

int kvb_local_leave_for_any(struct kvb_client *client)
{
	kvb_client_hook(KVB_CLIENT_HOOK_ASK);
	return leave_with(client, kvb_client_enter_any(client));
}

/* ------------------------------------------------------------------------------------------- leases */

/* Lets the server know that cells up to this one are to be looked at; before the cell is set. */
static void show_cell(struct kvb_local *local, uint32_t cell)
{
	uint32_t *shown = &local->leases.header->cells_used;
	uint32_t before = kvb_load_relaxed(shown);

	while (before <= cell && !kvb_compare_exchange(shown, &before, cell + 1))
		;
}

static int take_cell(struct kvb_local *local, uint32_t *ret_cell)
{
	uint32_t n = local->leases.n_cells;
	uint32_t first = kvb_inside_thread() * CELLS_PER_THREAD % n;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t cell = (first + i) % n;
		uint8_t was = CELL_FREE;
		if (kvb_load_relaxed(&local->used[cell]) != CELL_FREE ||
			!kvb_compare_exchange(&local->used[cell], &was, (uint8_t)CELL_TAKEN))
			continue;
		show_cell(local, cell);
		*ret_cell = cell;
		return 0;
	}
	return -ENOBUFS;
}

/* Tells the server what was used; if several threads do at once, some of it gets lost. */
static void touch(struct kvb_local *local, const struct kvb_found *found)
{
	uint32_t *tail = &local->leases.header->touch_tail;
	uint32_t at = kvb_load_relaxed(tail);

	kvb_store_relaxed(&local->leases.touches[at & local->leases.touch_mask],
		kvb_lease_word(found->slot, found->state));
	kvb_store_relaxed(tail, at + 1);
}

int kvb_local_exists(struct kvb_local *local, const void *key, size_t key_len, uint64_t *ret_length)
{
	struct kvb_found found;
	int r = kvb_index_find(
		&local->index, kvb_index_hash(&local->index, key, key_len), key, key_len, &found);

	if (r < 0)
		return r;
	touch(local, &found);
	*ret_length = found.length;
	return 0;
}

int kvb_local_lease(struct kvb_local *local, const void *key, size_t key_len, uint32_t *ret_cell,
	struct kvb_found *ret_found)
{
	uint64_t hash = kvb_index_hash(&local->index, key, key_len);
	uint32_t cell;
	int r;

	kvb_index_prefetch(&local->index, hash);
	r = take_cell(local, &cell);
	if (r < 0)
		return r;
	r = kvb_index_lease(
		&local->index, &local->leases.cells[cell], hash, key, key_len, ret_found);
	if (r < 0) {
		kvb_store_release(&local->used[cell], (uint8_t)CELL_FREE);
		return r;
	}
	touch(local, ret_found);
	*ret_cell = cell;
	return 0;
}

static void release_retired(struct kvb_local *local, uint32_t cell)
{
	bool unused;

	pthread_mutex_lock(&retired_lock);
	kvb_store_release(&local->used[cell], (uint8_t)CELL_FREE);
	unused = unlink_if_unused(local);
	pthread_mutex_unlock(&retired_lock);
	if (unused)
		destroy(local);
}

void kvb_local_release(struct kvb_local *local, uint32_t cell)
{
	kvb_lease_clear(&local->leases.cells[cell]);
	kvb_store_relaxed(&local->used[cell], (uint8_t)CELL_LEAVING);
	/* Pairs with kvb_inside_barrier() in kvb_local_retire(). */
	kvb_inside_fence();
	if (kvb_load_relaxed(&local->retired))
		release_retired(local, cell);
	else
		/* The last access: the memory may be gone after it. Pairs with the acquire load in
		 * kvb_local_retire(). */
		kvb_store_release(&local->used[cell], (uint8_t)CELL_FREE);
}

/* ----------------------------------------------------------------------------------- whole operations */

static void copy_out(struct kvb_client *client, struct kvb_local *local, void *buffer,
	const struct kvb_found *found, bool reports)
{
	const uint8_t *from = local->pool + found->offset;

	for (uint64_t done = 0; done < found->length;) {
		uint64_t n = kvb_min_u64(COPY_BYTES, found->length - done);
		kvb_copy_cold((uint8_t *)buffer + done, from + done, n, found->length);
		done += n;
		if (reports && client->progress)
			client->progress(client->progress_user, done, found->length);
	}
}

static int local_get(struct kvb_client *client, struct kvb_local *local,
	const struct kvb_task *task, bool reports, uint64_t *ret_length)
{
	struct kvb_found found;
	uint32_t cell;
	int r = kvb_local_lease(local, task->key, task->key_len, &cell, &found);

	if (r < 0)
		return r;
	*ret_length = found.length;
	if (found.length > task->size)
		r = -EMSGSIZE;
	else
		copy_out(client, local, task->buffer, &found, reports);
	kvb_local_release(local, cell);
	return r;
}

bool kvb_local_is_ours(const struct kvb_task *task)
{
	if (!task->key || !kvb_local_knows(task->key_len))
		return false;
	if (task->op == KVB_OP_GET)
		return task->buffer || task->size == 0;
	return task->op == KVB_OP_EXISTS ||
		(task->op == KVB_OP_PUT && (task->flags & KVB_SQE_IF_ABSENT));
}

bool kvb_local_do(struct kvb_client *client, struct kvb_local *local, const struct kvb_task *task,
	bool reports, int *ret_result, uint64_t *ret_length)
{
	int r;

	*ret_length = 0;
	if (task->op == KVB_OP_GET)
		r = local_get(client, local, task, reports, ret_length);
	else
		r = kvb_local_exists(local, task->key, task->key_len, ret_length);
	/* What is there needs no storing; what is not, does. */
	if (task->op == KVB_OP_PUT && r == 0) {
		r = -EEXIST;
		*ret_length = 0;
	}
	*ret_result = r;
	/* With all cells in use the ring still has room. */
	return r != -ENOBUFS && !(task->op == KVB_OP_PUT && r == -ENOENT);
}

bool kvb_local_try(struct kvb_client *client, const struct kvb_task *task, bool reports,
	int *ret_result, uint64_t *ret_length)
{
	struct kvb_local *local;
	bool done;

	if (!kvb_local_is_ours(task) || kvb_client_is_forked_child(client))
		return false;
	local = kvb_local_enter(client);
	done = local && kvb_local_do(client, local, task, reports, ret_result, ret_length);
	kvb_local_leave(client);
	return done;
}
