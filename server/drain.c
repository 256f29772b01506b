/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drain.c - quiescence before revocation.
 *
 *     ACTIVE ──► DRAINING ──────────────► QUIESCED ──────────► REVOKED ──────────► FREE
 *                closed, and no           a grace period,      descriptors are     the client's
 *                reference is out         and no reference     gone                end is gone
 *                    │ deadline              ▲
 *                    └──► QUARANTINED ───────┘
 *
 * Runs in the control thread, which alone changes a session's phase. A worker may still hold an
 * event of a session whose kick has left the wait set; the grace period waits until each worker has
 * been at the top of its loop since. Only then are the eventfds closed: a ring into a reused number
 * is impossible.
 *
 * It must never close a descriptor or unmap a segment before that, whatever a deadline says: what
 * is stuck stays open on purpose, and is named.
 */
#include "server/drain.h"

#include <errno.h>
#include <string.h>

#include "server/server.h"
#include "shm/atomic.h"
#include "shm/util.h"

#define TICK_NS (1000 * KVB_NS_PER_MS)
/* What open transfers that no worker holds need to be ended, after the deadline. */
#define ABORT_NS (250 * KVB_NS_PER_MS)
/* What replies that ZMQ has not taken may take, once everything else is quiet. */
#define REPLIES_NS (500 * KVB_NS_PER_MS)

static const char *name_of(const struct kvb_session *session)
{
	return session->name[0] ? session->name : "?";
}

static void order(struct kvb_session *session, uint32_t orders)
{
	/* Pairs with the exchange in execute.c. */
	(void)kvb_fetch_or(&session->orders, orders);
	kvb_session_wake(session);
}

/* ------------------------------------------------------------------------------- a session's way out */

void kvb_drain_session(struct kvb_session *session, enum kvb_reason reason)
{
	struct kvb_server *server = session->server;
	bool orderly = reason == KVB_REASON_SERVER_DRAIN;

	if (session->phase != KVB_PHASE_ACTIVE)
		return;
	session->phase = KVB_PHASE_DRAINING;
	session->reason = reason;
	session->deadline_ns = orderly
		? server->drain.transfers_ns
		: kvb_now_ns() + server->options.drain_timeout_ms * KVB_NS_PER_MS;
	/* Pairs with the client's acquire loads. */
	kvb_store_release(&session->header->state, (uint32_t)KVB_SESSION_DRAINING);
	if (!orderly) {
		kvb_log(&server->log, KVB_LOG_INFO, "session %u (%s) ends: %s", session->slot,
			name_of(session), kvb_reason_name(reason));
		kvb_inflight_abandon_session(session);
	}
	order(session, orderly ? KVB_ORDER_DRAIN : KVB_ORDER_END);
}

/* Ends a session at once, also one that is draining in peace. */
static void end_session(struct kvb_session *session, enum kvb_reason reason)
{
	kvb_drain_session(session, reason);
	if (session->phase == KVB_PHASE_DRAINING || session->phase == KVB_PHASE_QUARANTINED) {
		session->reason = reason;
		kvb_inflight_abandon_session(session);
		order(session, KVB_ORDER_END);
	}
}

void kvb_drain_peer_gone(struct kvb_session *session, enum kvb_reason reason)
{
	session->peer_gone = true;
	/* Nobody reads under them any more, whatever of the session is still at work. A process that dies has
	 * its descriptors closed after its memory was taken apart, which takes a while for a large pool: on
	 * purpose nothing earlier is listened to, since copies in the kernel and devices may go on till then. */
	kvb_session_drop_leases(session);
	kvb_door_forget(&session->server->door, session);
	end_session(session, reason);
}

static void check_failure(struct kvb_session *session)
{
	/* Pairs with the release store in kvb_session_fail(): the text is there. */
	enum kvb_reason failure = kvb_load_acquire(&session->failure);

	if (failure == KVB_REASON_NONE || session->failure_told)
		return;
	session->failure_told = true;
	kvb_count(&session->server->counters.sessions_failed, 1);
	kvb_log(&session->server->log, KVB_LOG_WARN, "session %u (%s, pid %d, uid %u): %s",
		session->slot, name_of(session), session->pid, session->uid, session->failure_text);
	end_session(session, failure);
}

/* True when no worker has or will take up work of the session, but for a late event. */
static bool is_quiet(struct kvb_session *session)
{
	/* Pairs with the release store in execute.c. */
	return kvb_load_acquire(&session->closed) && kvb_session_refs(session) == 0;
}

static void name_culprit(struct kvb_session *session)
{
	struct kvb_server *server = session->server;
	const struct kvb_worker *worker =
		kvb_workers_find(&server->workers, kvb_session_own_id(session));

	kvb_log(&server->log, KVB_LOG_ERR,
		"session %u (%s, pid %d, uid %u) is stuck: %u references, %u open transfers, %s%s; its "
		"descriptors stay open",
		session->slot, name_of(session), session->pid, session->uid,
		kvb_session_refs(session), kvb_load_relaxed(&session->open_transfers),
		worker ? "held by " : "held by no worker", worker ? worker->name : "");
	kvb_inflight_name_running(server, session);
}

/* A deadline passes in two steps: open transfers are ended first, which is not being stuck. */
static void check_deadline(struct kvb_session *session, uint64_t now_ns)
{
	if (now_ns < session->deadline_ns)
		return;
	if (!session->abort_ordered) {
		session->abort_ordered = true;
		session->deadline_ns = now_ns + ABORT_NS;
		order(session, KVB_ORDER_ABORT);
		return;
	}
	session->phase = KVB_PHASE_QUARANTINED;
	session->deadline_ns = UINT64_MAX;
	name_culprit(session);
}

static void quiesce(struct kvb_session *session)
{
	kvb_group_unwatch(session->group, session);
	session->grace_id = kvb_group_grace_begin(session->group);
	session->deadline_ns = UINT64_MAX;
	session->phase = KVB_PHASE_QUIESCED;
}

/* The last words to a client: state and reason, the final ring. */
static void ring_finally(struct kvb_session *session)
{
	kvb_store_relaxed(&session->header->reason, (uint32_t)session->reason);
	/* Pairs with the client's acquire loads: reason and all completions are there. */
	kvb_store_release(&session->header->state, (uint32_t)KVB_SESSION_REVOKED);
	kvb_log(&session->server->log, KVB_LOG_DEBUG, "step: ring session %u", session->slot);
	/* The watchdog dozes while nobody is busy, and this bell may block as well as any. */
	kvb_watchdog_busy(&session->server->watchdog, &session->server->control_ringer);
	kvb_session_ring_always(session, &session->server->control_ringer);
	kvb_watchdog_idle(&session->server->control_ringer);
}

static void say_goodbye(struct kvb_session *session)
{
	kvb_door_say_goodbye(
		session, session->reason, session->failure_text[0] ? session->failure_text : NULL);
}

static void free_slot(struct kvb_session *session)
{
	if (!session->peer_gone)
		kvb_door_forget(&session->server->door, session);
	kvb_session_release_slot(session);
}

static void revoke(struct kvb_session *session)
{
	ring_finally(session);
	say_goodbye(session);
	kvb_session_revoke_descriptors(session);
	session->phase = KVB_PHASE_REVOKED;
}

static bool has_quiesced(struct kvb_session *session)
{
	return session->phase == KVB_PHASE_QUIESCED &&
		kvb_group_grace_passed(session->group, session->grace_id) && is_quiet(session);
}

/* One step; called again until nothing changes. */
static void session_turn(struct kvb_session *session, uint64_t now_ns)
{
	bool whole_server = session->server->drain.stage != KVB_DRAIN_NONE;

	if (session->phase != KVB_PHASE_FREE)
		check_failure(session);
	if (session->phase == KVB_PHASE_DRAINING || session->phase == KVB_PHASE_QUARANTINED) {
		if (is_quiet(session))
			quiesce(session);
		else
			check_deadline(session, now_ns);
	}
	/* When the whole server drains, nothing is closed until everything is quiet. */
	if (whole_server)
		return;
	if (has_quiesced(session))
		revoke(session);
	if (session->phase == KVB_PHASE_REVOKED && session->peer_gone)
		free_slot(session);
}

/* --------------------------------------------------------------------------------------- the tick */

/* A client that published and rang, and is not served: twice the same is a wake that got lost. */
static void check_missed_wake(struct kvb_session *session)
{
	/* Pairs with the client's release store of its tail. */
	uint32_t tail = kvb_load_acquire(&session->header->sq_tail);
	bool unserved = tail != kvb_load_relaxed(&session->sq_head_seen) &&
		kvb_load_relaxed(&session->run) == KVB_RUN_IDLE;
	bool again = unserved && session->unserved && session->unserved_tail == tail;

	session->unserved = unserved;
	session->unserved_tail = tail;
	if (!again)
		return;
	session->unserved = false;
	kvb_count(&session->server->counters.missed_wakes, 1);
	kvb_log(&session->server->log, KVB_LOG_WARN, "session %u (%s): a wake-up was missed",
		session->slot, name_of(session));
	kvb_session_wake(session);
}

static void check_transfers(struct kvb_session *session, uint64_t now_ns)
{
	uint64_t oldest = kvb_load_relaxed(&session->oldest_progress_ns);
	uint64_t timeout_ns = session->server->options.transfer_timeout_ms * KVB_NS_PER_MS;

	if (oldest != 0 && now_ns >= oldest + timeout_ns)
		order(session, KVB_ORDER_SWEEP);
}

static void tick(struct kvb_server *server, uint64_t now_ns)
{
	for (uint32_t i = 0; i < server->sessions.count; i++) {
		struct kvb_session *session = &server->sessions.slots[i];
		if (session->phase == KVB_PHASE_ACTIVE)
			check_missed_wake(session);
		if (session->phase == KVB_PHASE_ACTIVE || session->phase == KVB_PHASE_DRAINING)
			check_transfers(session, now_ns);
	}
}

/* ------------------------------------------------------------------------------- the server's way out */

static void for_each(struct kvb_server *server, void (*fn)(struct kvb_session *session))
{
	for (uint32_t i = 0; i < server->sessions.count; i++)
		fn(&server->sessions.slots[i]);
}

static void drain_active(struct kvb_session *session)
{
	kvb_drain_session(session, KVB_REASON_SERVER_DRAIN);
}

static void ring_quiesced(struct kvb_session *session)
{
	if (session->phase == KVB_PHASE_QUIESCED)
		ring_finally(session);
}

static void goodbye_quiesced(struct kvb_session *session)
{
	if (session->phase == KVB_PHASE_QUIESCED)
		say_goodbye(session);
}

static void close_session(struct kvb_session *session)
{
	if (session->phase == KVB_PHASE_FREE)
		return;
	if (session->phase == KVB_PHASE_QUIESCED)
		kvb_session_revoke_descriptors(session);
	free_slot(session);
}

static void begin_server_drain(struct kvb_server *server, uint64_t now_ns)
{
	kvb_log(&server->log, KVB_LOG_INFO, "draining, for %u ms at most",
		server->options.drain_timeout_ms);
	server->drain.stage = KVB_DRAIN_WAITING;
	/* Pairs with the acquire load in kvb_server_is_draining(). */
	kvb_store_release(&server->draining, 1u);
	kvb_door_shut(&server->door);
	server->drain.transfers_ns = now_ns + server->options.drain_timeout_ms * KVB_NS_PER_MS;
	server->drain.deadline_ns = server->drain.transfers_ns + 2 * ABORT_NS;
}

/* Sessions are told once no handler runs, since a handler may be a client of this very server:
 * until then they are served, but for what opens new work. */
static void tell_sessions(struct kvb_server *server, uint64_t now_ns)
{
	if (server->drain.told ||
		(server->inflight.count > 0 && now_ns < server->drain.transfers_ns))
		return;
	server->drain.told = true;
	for_each(server, drain_active);
}

/* Once everything else is quiet. */
static uint64_t replies_deadline(const struct kvb_server *server)
{
	return server->drain.quiet_ns + REPLIES_NS;
}

/* What was answered is given a moment to go out. */
static bool replies_are_out(struct kvb_server *server, uint64_t now_ns)
{
	if (server->drain.quiet_ns == 0)
		server->drain.quiet_ns = now_ns;
	return server->outboxes.count == 0 || now_ns >= replies_deadline(server);
}

static bool everything_quiet(struct kvb_server *server)
{
	/* Also calls that were answered for their handler: it may still touch its session. */
	if (!server->drain.told || server->inflight.count > 0)
		return false;
	for (uint32_t i = 0; i < server->sessions.count; i++) {
		struct kvb_session *session = &server->sessions.slots[i];
		if (session->phase != KVB_PHASE_FREE && session->phase != KVB_PHASE_REVOKED &&
			!has_quiesced(session))
			return false;
	}
	return true;
}

static void close_memory(struct kvb_server *server)
{
	kvb_log(&server->log, KVB_LOG_DEBUG, "step: close pool and life page");
	kvb_store_free(server->store);
	server->store = NULL;
	kvb_pool_free(&server->pool);
	kvb_life_end(&server->life);
	kvb_life_free(&server->life);
}

static void name_late_workers(struct kvb_server *server)
{
	for (uint32_t g = 0; g < server->workers.n_groups; g++) {
		const struct kvb_group *group = &server->workers.groups[g];
		for (uint32_t i = 0; i < group->n_workers; i++)
			if (kvb_load_acquire(&group->workers[i].grace_seen) <
				kvb_load_relaxed(&group->grace_wanted))
				kvb_log(&server->log, KVB_LOG_ERR,
					"%s is stuck: it has not been seen to let go of what it held",
					group->workers[i].name);
	}
}

/* No session has work and no worker holds an event: each step finds the one before it done. */
static void finish_server_drain(struct kvb_server *server)
{
	kvb_pool_stop(&server->pool);
	kvb_store_stop_maintenance(server->store);
	kvb_workers_stop(&server->workers);
	kvb_handler_pools_stop(&server->handler_pools);
	for_each(server, ring_quiesced);
	for_each(server, goodbye_quiesced);
	for_each(server, close_session);
	kvb_workers_free(&server->workers);
	kvb_door_close(&server->door);
	close_memory(server);
	kvb_outboxes_clear(server);
	kvb_control_close(server);
	kvb_rundir_unlink(&server->rundir);
	server->drain.stage = KVB_DRAIN_DONE;
}

static void server_turn(struct kvb_server *server, uint64_t now_ns)
{
	/* Pairs with the release store in kvb_server_stop_begin(). */
	if (server->drain.stage == KVB_DRAIN_NONE && kvb_load_acquire(&server->stop))
		begin_server_drain(server, now_ns);
	if (server->drain.stage != KVB_DRAIN_WAITING)
		return;
	tell_sessions(server, now_ns);
	if (everything_quiet(server) && replies_are_out(server, now_ns)) {
		finish_server_drain(server);
	} else if (now_ns >= server->drain.deadline_ns) {
		server->drain.deadline_ns =
			now_ns + server->options.drain_timeout_ms * KVB_NS_PER_MS;
		name_late_workers(server);
		kvb_inflight_end_queued(server);
		kvb_inflight_name_running(server, NULL);
		kvb_server_set_stop_result(server, -ETIMEDOUT);
	}
}

/* --------------------------------------------------------------------------------------- the turn */

static void count_sessions(struct kvb_server *server, uint64_t *ret_wake_ns)
{
	struct kvb_gauges gauges = {0};

	for (uint32_t i = 0; i < server->sessions.count; i++) {
		struct kvb_session *session = &server->sessions.slots[i];
		gauges.session_bytes += session->segment.bytes;
		gauges.sessions_active += session->phase == KVB_PHASE_ACTIVE;
		gauges.sessions_quarantined += session->phase == KVB_PHASE_QUARANTINED;
		gauges.sessions_revoked += session->phase == KVB_PHASE_REVOKED;
		gauges.sessions_ending += session->phase == KVB_PHASE_DRAINING ||
			session->phase == KVB_PHASE_QUIESCED || session->phase == KVB_PHASE_REVOKED;
		if (session->phase == KVB_PHASE_DRAINING)
			*ret_wake_ns = kvb_min_u64(*ret_wake_ns, session->deadline_ns);
	}
	kvb_store_relaxed(&server->gauges.sessions_active, gauges.sessions_active);
	kvb_store_relaxed(&server->gauges.sessions_ending, gauges.sessions_ending);
	kvb_store_relaxed(&server->gauges.sessions_quarantined, gauges.sessions_quarantined);
	kvb_store_relaxed(&server->gauges.sessions_revoked, gauges.sessions_revoked);
	kvb_store_relaxed(&server->gauges.session_bytes, gauges.session_bytes);
}

static uint64_t gauges_of_living(const struct kvb_server *server)
{
	const struct kvb_gauges *gauges = &server->gauges;

	return gauges->sessions_active + gauges->sessions_ending + gauges->sessions_quarantined;
}

uint64_t kvb_drain_turn(struct kvb_server *server)
{
	uint64_t now_ns = kvb_now_ns();
	uint64_t wake_ns = UINT64_MAX;

	for (uint32_t i = 0; i < server->sessions.count; i++)
		session_turn(&server->sessions.slots[i], now_ns);
	server_turn(server, now_ns);
	if (server->drain.stage == KVB_DRAIN_DONE)
		return 0;
	if (now_ns >= server->drain.tick_ns) {
		tick(server, now_ns);
		server->drain.tick_ns = now_ns + TICK_NS;
	}
	count_sessions(server, &wake_ns);
	/* An empty server sleeps without a tick. */
	if (gauges_of_living(server) > 0)
		wake_ns = kvb_min_u64(wake_ns, server->drain.tick_ns);
	if (server->drain.stage == KVB_DRAIN_WAITING) {
		wake_ns = kvb_min_u64(wake_ns, server->drain.deadline_ns);
		/* Once it has passed something else is waited for, and must let the thread sleep. */
		if (server->drain.quiet_ns > 0 && now_ns < replies_deadline(server))
			wake_ns = kvb_min_u64(wake_ns, replies_deadline(server));
		if (!server->drain.told)
			wake_ns = kvb_min_u64(wake_ns, server->drain.transfers_ns);
	}
	for (uint32_t i = 0; i < server->workers.n_groups; i++)
		wake_ns = kvb_min_u64(
			wake_ns, kvb_group_grace_turn(&server->workers.groups[i], now_ns));
	return wake_ns;
}

bool kvb_drain_finished(struct kvb_server *server)
{
	return server->drain.stage == KVB_DRAIN_DONE;
}
