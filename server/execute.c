/* SPDX-License-Identifier: Apache-2.0 */
/*
 * execute.c - requests of one session, executed by the worker that took it from the run queue.
 *
 * Owns the session's transfer table, its ends of the rings and its `closed` word while it runs. It
 * must never touch the segment of a closed session, never read a client's word twice, never publish
 * a byte that this transfer did not write, and never hold more than one bounded visit.
 *
 * A descriptor that makes no sense is answered with -EINVAL, since nothing was harmed; indices, key
 * lengths and credit that are impossible end the session, since nothing in the rings can be trusted
 * then.
 */
#include "server/execute.h"

#include <errno.h>
#include <string.h>

#include "server/bells.h"
#include "server/hook.h"
#include "server/server.h"
#include "server/stats.h"
#include "shm/atomic.h"
#include "shm/bell.h"
#include "shm/copy.h"
#include "shm/util.h"

#define SPIN_LOOKS  64u
#define SPIN_ROUNDS 16u

/* One request on its way through: private copies, and the completion it will get. */
struct request {
	struct kvb_server *server;
	struct kvb_session *session;
	bool portable; /* the carrier it came on */
	struct kvb_sqe sqe;
	struct kvb_cqe cqe;
	uint64_t moved; /* payload bytes, or what takes as long, for the visit's bound */
	uint8_t key[KVB_KEY_MAX];
};

/* ------------------------------------------------------------------------------ the transfer table */

static bool transfer_id_valid(uint32_t id)
{
	return KVB_TRANSFER_SLOT(id) < KVB_TRANSFERS && id >> 8 != 0;
}

/* The open transfer that a request speaks of; NULL also when the other carrier opened it. */
static struct kvb_transfer *transfer_find(const struct request *request, bool is_put)
{
	uint32_t id = request->sqe.transfer;
	struct kvb_transfer *transfer;

	if (!transfer_id_valid(id))
		return NULL;
	transfer = &request->session->transfers[KVB_TRANSFER_SLOT(id)];
	return transfer->id == id && transfer->is_put == is_put &&
			transfer->portable == request->portable
		? transfer
		: NULL;
}

/* Tells control how long the least active open transfer has rested. */
static void note_progress(struct kvb_session *session)
{
	uint64_t oldest = 0;

	for (uint32_t i = 0; i < KVB_TRANSFERS; i++) {
		const struct kvb_transfer *transfer = &session->transfers[i];
		if (transfer->id && (oldest == 0 || transfer->progress_ns < oldest))
			oldest = transfer->progress_ns;
	}
	kvb_store_relaxed(&session->oldest_progress_ns, oldest);
}

static void transfer_open(struct kvb_session *session, const struct kvb_transfer *transfer)
{
	session->transfers[KVB_TRANSFER_SLOT(transfer->id)] = *transfer;
	if (transfer->is_put)
		session->open_bytes += transfer->total;
	kvb_store_relaxed(&session->open_transfers, session->open_transfers + 1);
	note_progress(session);
}

/* Takes the transfer off the table; what becomes of its object is the caller's business. */
static void transfer_forget(struct kvb_session *session, struct kvb_transfer *transfer)
{
	if (transfer->is_put)
		session->open_bytes -= transfer->total;
	*transfer = (struct kvb_transfer){0};
	kvb_store_relaxed(&session->open_transfers, session->open_transfers - 1);
	note_progress(session);
}

static void transfer_abort(struct kvb_session *session, struct kvb_transfer *transfer)
{
	struct kvb_server *server = session->server;

	if (transfer->is_put) {
		kvb_store_abort(server->store, transfer->object);
		kvb_count(&server->counters.put_aborts, 1);
	} else {
		kvb_store_unhold(server->store, transfer->object);
	}
	transfer_forget(session, transfer);
}

/* Ends the transfers that made no progress since `before_ns`. */
static uint32_t abort_idle_since(struct kvb_session *session, uint64_t before_ns)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < KVB_TRANSFERS; i++) {
		struct kvb_transfer *transfer = &session->transfers[i];
		if (transfer->id && transfer->progress_ns <= before_ns) {
			transfer_abort(session, transfer);
			n++;
		}
	}
	return n;
}

/* ------------------------------------------------------------------------------------- operations */

static bool opens_work_in_drain(const struct request *request)
{
	return kvb_server_is_draining(request->server) ||
		(request->session->orders_seen & KVB_ORDER_DRAIN) != 0;
}

/* The slot a new transfer may take. 0; -EINVAL; -EBUSY. */
static int transfer_slot_check(const struct request *request)
{
	uint32_t id = request->sqe.transfer;

	if (!transfer_id_valid(id))
		return -EINVAL;
	return request->session->transfers[KVB_TRANSFER_SLOT(id)].id == 0 ? 0 : -EBUSY;
}

static void copy_in(struct request *request, struct kvb_object *object, uint64_t offset)
{
	uint8_t *data = kvb_store_object_data(request->server->store, object);
	const struct kvb_sqe *sqe = &request->sqe;

	kvb_hook(KVB_HOOK_COPY, request->session->slot);
	kvb_copy_cold(data + offset, request->session->staging + sqe->staging, sqe->length,
		kvb_store_object_length(object));
	request->moved = sqe->length;
	kvb_count(&request->server->counters.put_bytes, sqe->length);
}

static void copy_out(
	struct request *request, struct kvb_object *object, uint64_t offset, uint32_t n)
{
	const uint8_t *data = kvb_store_object_data(request->server->store, object);

	kvb_hook(KVB_HOOK_COPY, request->session->slot);
	/* Staging is small so that it stays in cache, for the reader's copy: a plain copy. */
	memcpy(request->session->staging + request->sqe.staging, data + offset, n);
	request->moved = n;
	request->cqe.length = n;
	kvb_count(&request->server->counters.get_bytes, n);
}

static bool put_is_whole(const struct kvb_sqe *sqe)
{
	return sqe->length == sqe->total;
}

/* Whether the session may have so many more bytes in open transfers; one is always allowed,
 * whatever its size. */
static bool open_bytes_fit(const struct kvb_session *session, uint64_t total)
{
	uint64_t max = session->server->options.open_max;

	return session->open_bytes == 0 ||
		(session->open_bytes <= max && total <= max - session->open_bytes);
}

static bool put_finds_object(struct request *request)
{
	const struct kvb_sqe *sqe = &request->sqe;
	uint64_t length;

	return (sqe->flags & KVB_SQE_IF_ABSENT) &&
		kvb_store_exists(request->server->store, request->key, sqe->key_len, &length) == 0;
}

/* All that can be said before there is room. */
static int put_open_check(struct request *request)
{
	const struct kvb_sqe *sqe = &request->sqe;
	int r;

	if (sqe->key_len == 0 || sqe->offset != 0 || sqe->length > sqe->total)
		return -EINVAL;
	if (!put_is_whole(sqe) && sqe->length == 0)
		return -EINVAL;
	if (opens_work_in_drain(request))
		return -ESHUTDOWN;
	r = put_is_whole(sqe) ? 0 : transfer_slot_check(request);
	if (r < 0)
		return r;
	if (put_finds_object(request)) {
		kvb_count(&request->server->counters.puts_present, 1);
		return -EEXIST;
	}
	return put_is_whole(sqe) || open_bytes_fit(request->session, sqe->total) ? 0 : -EDQUOT;
}

/* 0; -EEXIST somebody else was first, and stays; -ENOSPC. */
static int put_commit(struct request *request, struct kvb_object *object, bool if_absent)
{
	struct kvb_counters *counters = &request->server->counters;
	struct kvb_store *store = request->server->store;
	int r = if_absent ? kvb_store_commit_absent(store, object)
			  : kvb_store_commit(store, object);

	kvb_count(&counters->puts, r == 0);
	kvb_count(&counters->puts_present, r == -EEXIST);
	return r;
}

static int put_open(struct request *request)
{
	const struct kvb_sqe *sqe = &request->sqe;
	bool if_absent = sqe->flags & KVB_SQE_IF_ABSENT;
	struct kvb_object *object;
	int r = put_open_check(request);

	if (r == 0)
		r = kvb_store_reserve(
			request->server->store, request->key, sqe->key_len, sqe->total, &object);
	if (r < 0)
		return r;
	if (sqe->length > 0)
		copy_in(request, object, 0);
	if (put_is_whole(sqe))
		return put_commit(request, object, if_absent);
	transfer_open(request->session,
		&(struct kvb_transfer){.id = sqe->transfer,
			.is_put = true,
			.if_absent = if_absent,
			.portable = request->portable,
			.object = object,
			.total = sqe->total,
			.next = sqe->length,
			.progress_ns = kvb_now_ns()});
	return 0;
}

static int put_more(struct request *request)
{
	const struct kvb_sqe *sqe = &request->sqe;
	struct kvb_transfer *transfer = transfer_find(request, true);
	int r;

	if (!transfer)
		return -ESTALE;
	if (sqe->offset != transfer->next || sqe->length == 0 ||
		sqe->length > transfer->total - transfer->next) {
		/* A gap would publish bytes that nobody wrote: the transfer ends here. */
		transfer_abort(request->session, transfer);
		return -EINVAL;
	}
	copy_in(request, transfer->object, transfer->next);
	transfer->next += sqe->length;
	if (transfer->next < transfer->total) {
		transfer->progress_ns = kvb_now_ns();
		note_progress(request->session);
		return 0;
	}
	r = put_commit(request, transfer->object, transfer->if_absent);
	transfer_forget(request->session, transfer);
	return r;
}

static bool staging_range_valid(const struct request *request)
{
	const struct kvb_sqe *sqe = &request->sqe;

	return sqe->length <= request->server->options.fragment_bytes &&
		kvb_range_fits(sqe->staging, sqe->length, request->session->layout.staging_bytes);
}

static int op_put(struct request *request)
{
	if (!staging_range_valid(request))
		return -EINVAL;
	return request->sqe.flags & KVB_SQE_OPEN ? put_open(request) : put_more(request);
}

/* With the object held; what does not end here goes on the table and stays held. */
static int get_first(struct request *request, struct kvb_object *object, bool *ret_stays)
{
	const struct kvb_sqe *sqe = &request->sqe;
	uint64_t length = kvb_store_object_length(object);
	uint32_t n = (uint32_t)kvb_min_u64(length, sqe->length);
	int r;

	*ret_stays = false;
	request->cqe.value = length;
	if (length > sqe->total)
		return -EMSGSIZE;
	if (n < length) {
		r = n == 0 ? -EINVAL : transfer_slot_check(request);
		if (r < 0)
			return r;
		transfer_open(request->session,
			&(struct kvb_transfer){.id = sqe->transfer,
				.is_put = false,
				.portable = request->portable,
				.object = object,
				.total = length,
				.next = n,
				.progress_ns = kvb_now_ns()});
		*ret_stays = true;
	}
	if (n > 0)
		copy_out(request, object, 0, n);
	return 0;
}

static int get_open(struct request *request)
{
	const struct kvb_sqe *sqe = &request->sqe;
	struct kvb_store *store = request->server->store;
	struct kvb_object *object;
	bool stays;
	int r;

	if (sqe->key_len == 0 || sqe->offset != 0)
		return -EINVAL;
	if (opens_work_in_drain(request))
		return -ESHUTDOWN;
	r = kvb_store_hold(store, request->key, sqe->key_len, &object);
	if (r < 0) {
		kvb_count(&request->server->counters.get_misses, 1);
		return r;
	}
	r = get_first(request, object, &stays);
	if (!stays)
		kvb_store_unhold(store, object);
	if (r == 0 && !stays)
		kvb_count(&request->server->counters.gets, 1);
	return r;
}

static int get_more(struct request *request)
{
	const struct kvb_sqe *sqe = &request->sqe;
	struct kvb_transfer *transfer = transfer_find(request, false);
	uint32_t n;

	if (!transfer)
		return -ESTALE;
	if (sqe->offset != transfer->next || sqe->length == 0) {
		transfer_abort(request->session, transfer);
		return -EINVAL;
	}
	n = (uint32_t)kvb_min_u64(sqe->length, transfer->total - transfer->next);
	request->cqe.value = transfer->total;
	copy_out(request, transfer->object, transfer->next, n);
	transfer->next += n;
	if (transfer->next < transfer->total) {
		transfer->progress_ns = kvb_now_ns();
		note_progress(request->session);
		return 0;
	}
	kvb_store_unhold(request->server->store, transfer->object);
	transfer_forget(request->session, transfer);
	kvb_count(&request->server->counters.gets, 1);
	return 0;
}

static int op_get(struct request *request)
{
	if (!staging_range_valid(request))
		return -EINVAL;
	return request->sqe.flags & KVB_SQE_OPEN ? get_open(request) : get_more(request);
}

static int op_nop(struct request *request)
{
	kvb_count(&request->server->counters.nops, 1);
	return 0;
}

static int op_exists(struct request *request)
{
	struct kvb_counters *counters = &request->server->counters;
	uint64_t length;
	int r;

	if (request->sqe.key_len == 0)
		return -EINVAL;
	kvb_count(&counters->exists, 1);
	r = kvb_store_exists(request->server->store, request->key, request->sqe.key_len, &length);
	if (r < 0)
		return r;
	kvb_count(&counters->exists_hits, 1);
	request->cqe.value = length;
	return 0;
}

static int op_delete(struct request *request)
{
	int r;

	if (request->sqe.key_len == 0)
		return -EINVAL;
	r = kvb_store_delete(request->server->store, request->key, request->sqe.key_len);
	if (r == 0)
		kvb_count(&request->server->counters.deletes, 1);
	return r;
}

static int op_abort(struct request *request)
{
	struct kvb_transfer *transfer = transfer_find(request, true);

	if (!transfer)
		transfer = transfer_find(request, false);
	if (!transfer)
		return -ESTALE;
	transfer_abort(request->session, transfer);
	return 0;
}

static int op_stats(struct request *request)
{
	const struct kvb_sqe *sqe = &request->sqe;

	if (!kvb_range_fits(sqe->staging, sqe->length, request->session->layout.staging_bytes))
		return -EINVAL;
	/* It looks at all sessions: one in a visit. */
	request->moved = request->server->options.fragment_bytes;
	return kvb_stats_write(request->server, request->session->staging + sqe->staging,
		sqe->length, &request->cqe.value);
}

static bool flags_valid(const struct kvb_sqe *sqe)
{
	if (sqe->flags & ~(KVB_SQE_OPEN | KVB_SQE_IF_ABSENT))
		return false;
	return !(sqe->flags & KVB_SQE_IF_ABSENT) ||
		(sqe->op == KVB_OP_PUT && (sqe->flags & KVB_SQE_OPEN));
}

static int execute_op(struct request *request)
{
	static int (*const ops[KVB_OP_MAX])(struct request *) = {
		[KVB_OP_NOP] = op_nop,
		[KVB_OP_PUT] = op_put,
		[KVB_OP_GET] = op_get,
		[KVB_OP_EXISTS] = op_exists,
		[KVB_OP_DELETE] = op_delete,
		[KVB_OP_ABORT] = op_abort,
		[KVB_OP_STATS] = op_stats,
	};
	const struct kvb_sqe *sqe = &request->sqe;

	if (sqe->op >= KVB_OP_MAX)
		return -EOPNOTSUPP;
	if (!flags_valid(sqe) || sqe->reserved0 || sqe->reserved[0] || sqe->reserved[1])
		return -EINVAL;
	return ops[sqe->op](request);
}

/* ------------------------------------------------------------------------------------ the visit */

static bool nothing_waits(const struct kvb_session *session)
{
	return kvb_sq_empty(&session->sq) && kvb_portable_empty(&session->portable);
}

/* Pops one request, from the carriers in turn. 1; 0 nothing is there; negative: the session has
 * failed. */
static int next_request(struct kvb_session *session, struct request *request)
{
	int r;

	/* Room is asked for after a descriptor was seen: whoever submitted it gave the room back
	 * before, so an excess that stands is the client's fault. */
	if (nothing_waits(session))
		return 0;
	r = kvb_cq_room(&session->cq);
	if (r < 0) {
		kvb_session_fail(session, KVB_REASON_PROTOCOL,
			"more than %u requests without reading their completions",
			session->layout.cq_entries);
		return r;
	}
	request->portable = (session->portable_next || kvb_sq_empty(&session->sq)) &&
		kvb_portable_pop(&session->portable, &request->sqe, request->key);
	session->portable_next = !request->portable;
	if (request->portable)
		return 1;
	r = kvb_sq_pop(&session->sq, &request->sqe, request->key);
	if (r < 0)
		kvb_session_fail(session, KVB_REASON_PROTOCOL,
			"the submission queue's tail or a key's length is impossible");
	return r;
}

static void complete(struct kvb_worker *worker, struct request *request, int result)
{
	request->cqe.user_data = request->sqe.user_data;
	request->cqe.result = result;
	kvb_cq_post(&request->session->cq, &request->cqe);
	kvb_session_ring(request->session, &worker->ringer);
}

static bool has_failed(const struct kvb_session *session)
{
	return kvb_load_relaxed(&session->failure) != KVB_REASON_NONE;
}

/* What the rest of a visit may do. The request that takes the last byte may take more. */
struct budget {
	uint32_t requests;
	uint64_t bytes;
};

/* True: the queue was found empty, or the session has failed. */
static bool serve_requests(
	struct kvb_worker *worker, struct kvb_session *session, struct budget *budget)
{
	struct request request;
	bool empty = false;
	uint32_t n;

	request.server = session->server;
	request.session = session;
	for (n = 0; budget->requests > 0 && budget->bytes > 0; n++) {
		if (next_request(session, &request) <= 0) {
			empty = true;
			break;
		}
		memset(&request.cqe, 0, sizeof(request.cqe));
		request.moved = 0;
		complete(worker, &request, execute_op(&request));
		budget->requests--;
		budget->bytes -= kvb_min_u64(request.moved, budget->bytes);
		/* A client whose bell blocks must not block this worker once per request. */
		if (has_failed(session))
			break;
	}
	/* Only spinning asks for it. */
	if (n > 0 && session->server->options.spin_us > 0)
		session->worked_ns = kvb_now_ns();
	session->backlog -= (uint32_t)kvb_min_u64(n, session->backlog);
	kvb_store_relaxed(&session->sq_head_seen, session->sq.head);
	return empty;
}

static void close_for_workers(struct kvb_session *session)
{
	(void)abort_idle_since(session, UINT64_MAX);
	/* Pairs with the acquire loads in kvb_session_put() and drain.c: no worker will touch
	 * segment, transfers or bell again. */
	kvb_store_release(&session->closed, 1u);
}

static void sweep(struct kvb_session *session)
{
	uint64_t timeout_ns = session->server->options.transfer_timeout_ms * KVB_NS_PER_MS;
	uint32_t n = abort_idle_since(session, kvb_now_ns() - timeout_ns);

	if (n == 0)
		return;
	kvb_count(&session->server->counters.transfers_expired, n);
	kvb_log(&session->server->log, KVB_LOG_WARN,
		"session %u (%s): %u transfers without progress for %u ms are ended", session->slot,
		session->name, n, session->server->options.transfer_timeout_ms);
}

/* Once all that lay in the queue before them is served. */
static void follow_orders(struct kvb_session *session)
{
	uint32_t orders = session->orders_seen;

	if (orders & KVB_ORDER_SWEEP)
		sweep(session);
	session->orders_seen &= ~(uint32_t)KVB_ORDER_SWEEP;
	if ((orders & KVB_ORDER_ABORT) || ((orders & KVB_ORDER_DRAIN) && !session->open_transfers))
		close_for_workers(session);
}

/* Says that nobody looks at the queue any more. False: something came meanwhile. */
static bool rest(struct kvb_session *session)
{
	uint32_t *sleeping = &session->header->sq_sleeping;

	kvb_bell_arm(sleeping);
	/* Pairs with the release half of control's fetch_or, and through kvb_bell_arm()'s fence
	 * with the client's kvb_bell_wanted(). */
	if (nothing_waits(session) && !kvb_load_acquire(&session->orders))
		return true;
	kvb_bell_disarm(sleeping);
	return false;
}

static void take_orders(struct kvb_session *session)
{
	uint32_t orders;

	if (kvb_load_relaxed(&session->orders) == 0)
		return;
	/* Pairs with the release half of control's fetch_or. */
	orders = kvb_exchange(&session->orders, 0u);
	session->orders_seen |= orders;
	/* A bound on what can lie in both queues, so that a client that never stops submitting
	 * cannot put the orders off. */
	session->backlog = session->layout.sq_entries + session->layout.cq_entries;
}

/* For spin_us after the last request the session stays awake, so that the next one needs no kick. */
static bool may_spin(const struct kvb_session *session)
{
	uint64_t spin_ns = session->server->options.spin_us * KVB_NS_PER_US;

	return spin_ns > 0 && kvb_now_ns() - session->worked_ns < spin_ns;
}

/* Looks for a moment, so that not each look costs a round through the run queue. True: something
 * has come. */
static bool spin(struct kvb_session *session)
{
	uint32_t *sleeping = &session->header->sq_sleeping;

	if (kvb_load_relaxed(sleeping) != KVB_AWAKE)
		kvb_bell_disarm(sleeping);
	kvb_count(&session->server->counters.spins, 1);
	kvb_hook(KVB_HOOK_SPIN, session->slot);
	for (unsigned i = 0; i < SPIN_LOOKS; i++) {
		if (!nothing_waits(session))
			return true;
		/* Many that spin look in turn, each as often as the others leave it time. */
		if (kvb_load_relaxed(&session->orders) || kvb_group_others_wait(session->group))
			return false;
		kvb_cpu_relax();
	}
	return false;
}

/* What there is, and for a spinning session what comes while it is looked for: within one budget,
 * since neighbours wait. */
static enum kvb_visit serve_visit(struct kvb_worker *worker, struct kvb_session *session)
{
	struct budget budget = {.requests = session->server->visit_requests,
		.bytes = session->server->options.fragment_bytes};

	for (unsigned round = 0; round < SPIN_ROUNDS; round++) {
		bool empty = serve_requests(worker, session, &budget);
		/* Gets no service any more; control will order its end. */
		if (has_failed(session))
			return KVB_VISIT_DONE;
		if (empty || session->backlog == 0)
			follow_orders(session);
		if (kvb_load_acquire(&session->closed))
			return KVB_VISIT_DONE;
		if (!empty)
			return KVB_VISIT_MORE;
		if (!may_spin(session))
			return rest(session) ? KVB_VISIT_DONE : KVB_VISIT_MORE;
		if (!spin(session))
			return KVB_VISIT_SPIN;
	}
	return KVB_VISIT_MORE;
}

enum kvb_visit kvb_execute(struct kvb_worker *worker, struct kvb_session *session)
{
	if (kvb_load_acquire(&session->closed))
		return KVB_VISIT_DONE;
	take_orders(session);
	if (session->orders_seen & KVB_ORDER_END) {
		close_for_workers(session);
		return KVB_VISIT_DONE;
	}
	/* Nor does one that failed in an earlier visit, or for another thread. */
	if (has_failed(session))
		return KVB_VISIT_DONE;
	return serve_visit(worker, session);
}
