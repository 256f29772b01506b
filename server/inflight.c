/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inflight.c - see inflight.h.
 *
 *     control: begin ──► lane ──► thread: run ──► output queue ──► control: turn: reply, free
 *                 │         │                                         ▲
 *                 └─────────┴── deadline, session's end: error now ───┘ (then the late answer is dropped)
 *
 * Owns the list of unanswered calls of each handler and the output queue. Runs in the control
 * thread, but for kvb_inflight_give_back(). A call is freed by the control thread alone, once no
 * other thread can hold it: after it came back, or was taken out of its lane. It must never answer
 * a call twice, and never look at the answer of a call that has not come back.
 */
#include "server/inflight.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "server/server.h"
#include "shm/atomic.h"
#include "shm/util.h"

void kvb_inflight_init(struct kvb_inflight *inflight)
{
	*inflight = (struct kvb_inflight){0};
	pthread_mutex_init(&inflight->lock, NULL);
	TAILQ_INIT(&inflight->output);
}

void kvb_inflight_free(struct kvb_inflight *inflight)
{
	assert(inflight->count == 0);
	pthread_mutex_destroy(&inflight->lock);
}

static void set_count(struct kvb_server *server, uint64_t count)
{
	server->inflight.count = count;
	kvb_store_relaxed(&server->gauges.calls_in_flight, count);
}

static void call_free(struct kvb_call *call)
{
	struct kvb_server *server = call->server;

	kvb_call_free_answer(call);
	zmq_msg_close(&call->frame);
	kvb_session_put(call->session);
	free(call);
	set_count(server, server->inflight.count - 1);
}

/* A copy that outlives the message, with a reference on the session. */
static struct kvb_call *call_new(const struct kvb_call *request)
{
	struct kvb_call *call = malloc(sizeof(*call));

	if (!call)
		return NULL;
	*call = *request;
	call->object = NULL;
	kvb_call_init_answer(call);
	zmq_msg_init(&call->frame);
	call->deadline_ns = kvb_now_ns() + call->handler->timeout_ms * KVB_NS_PER_MS;
	call->session =
		kvb_session_get(&call->server->sessions, kvb_session_own_id(request->session));
	assert(call->session == request->session);
	set_count(call->server, call->server->inflight.count + 1);
	return call;
}

int kvb_inflight_begin(const struct kvb_call *request, zmq_msg_t *frame)
{
	struct kvb_call *call = call_new(request);
	int r;

	if (!call)
		return -ENOMEM;
	/* The bytes of a small message lie within the frame, so they move with it. */
	zmq_msg_move(&call->frame, frame);
	call->body = zmq_msg_data(&call->frame);
	TAILQ_INSERT_TAIL(&call->handler->waiting, call, in_flight);
	r = kvb_handler_pool_push(call->handler->pool, call);
	if (r < 0) {
		TAILQ_REMOVE(&call->handler->waiting, call, in_flight);
		call_free(call);
	}
	kvb_count(
		r < 0 ? &request->server->counters.calls_refused : &request->server->counters.calls,
		1);
	return r;
}

void kvb_inflight_give_back(struct kvb_server *server, struct kvb_call *call)
{
	pthread_mutex_lock(&server->inflight.lock);
	TAILQ_INSERT_TAIL(&server->inflight.output, call, in_output);
	pthread_mutex_unlock(&server->inflight.lock);
	/* The server outlives this thread, which is joined before output_fd is closed. */
	kvb_server_notify(server);
}

static void answer(struct kvb_call *call, uint32_t flags, int status, const msgpack_sbuffer *body)
{
	TAILQ_REMOVE(&call->handler->waiting, call, in_flight);
	call->answered = true;
	kvb_send_reply(call->server, &call->peer, &call->header, flags, status, body);
}

/* Answers a call that is not ours at the moment; frees it if no thread will ever look at it. */
static void end_early(struct kvb_call *call, int status, const char *text)
{
	bool unseen = kvb_handler_pool_remove(call->handler->pool, call);
	msgpack_sbuffer body;
	msgpack_packer packer;

	msgpack_sbuffer_init(&body);
	msgpack_packer_init(&packer, &body, msgpack_sbuffer_write);
	kvb_pack_error(&packer, status, text);
	kvb_store_relaxed(&call->abandoned, 1u);
	answer(call, unseen ? KVB_MSG_REFUSED : 0, status, &body);
	msgpack_sbuffer_destroy(&body);
	if (unseen)
		call_free(call);
}

static void take_back(struct kvb_call *call)
{
	if (call->answered)
		kvb_count(&call->server->counters.calls_late, 1);
	else
		answer(call, 0, call->status, &call->reply);
	call_free(call);
}

static void take_output(struct kvb_server *server)
{
	struct kvb_call_list output = TAILQ_HEAD_INITIALIZER(output);
	struct kvb_call *call;

	pthread_mutex_lock(&server->inflight.lock);
	TAILQ_CONCAT(&output, &server->inflight.output, in_output);
	pthread_mutex_unlock(&server->inflight.lock);
	while ((call = TAILQ_FIRST(&output))) {
		TAILQ_REMOVE(&output, call, in_output);
		take_back(call);
	}
}

/* Calls of one handler have one timeout, so the oldest is the first to be overdue. */
static uint64_t end_overdue(struct kvb_handler *handler, uint64_t now_ns)
{
	struct kvb_call *call = TAILQ_FIRST(&handler->waiting), *next;

	for (; call && call->deadline_ns <= now_ns; call = next) {
		next = TAILQ_NEXT(call, in_flight);
		kvb_count(&call->server->counters.calls_timed_out, 1);
		end_early(call, -ETIMEDOUT,
			kvb_load_relaxed(&call->started_ns) ? "the handler took too long"
							    : "no thread was free in time");
	}
	return call ? call->deadline_ns : UINT64_MAX;
}

uint64_t kvb_inflight_turn(struct kvb_server *server, uint64_t now_ns)
{
	uint64_t wake_ns = UINT64_MAX;

	if (server->inflight.count == 0)
		return wake_ns;
	take_output(server);
	for (uint32_t i = 0; i < server->handlers.count; i++)
		wake_ns = kvb_min_u64(wake_ns, end_overdue(server->handlers.table[i], now_ns));
	return wake_ns;
}

/* Ends the unanswered calls that `picks` chooses. */
static void end_calls(struct kvb_server *server,
	bool (*picks)(const struct kvb_call *call, const void *arg), const void *arg, int status,
	const char *text)
{
	for (uint32_t i = 0; i < server->handlers.count; i++) {
		struct kvb_call *call = TAILQ_FIRST(&server->handlers.table[i]->waiting);
		while (call) {
			struct kvb_call *next = TAILQ_NEXT(call, in_flight);
			if (picks(call, arg))
				end_early(call, status, text);
			call = next;
		}
	}
}

static bool is_of_session(const struct kvb_call *call, const void *session)
{
	return call->session == session;
}

void kvb_inflight_abandon_session(struct kvb_session *session)
{
	if (session->server->inflight.count > 0)
		end_calls(session->server, is_of_session, session, -ECONNRESET,
			"the session has ended");
}

static bool is_queued(const struct kvb_call *call, const void *unused)
{
	(void)unused;
	return kvb_load_relaxed(&call->started_ns) == 0;
}

void kvb_inflight_end_queued(struct kvb_server *server)
{
	end_calls(server, is_queued, NULL, -ESHUTDOWN, "the server is shutting down");
}

static void name_running(struct kvb_server *server, const struct kvb_handler_thread *thread,
	const struct kvb_session *session)
{
	/* Not freed meanwhile: only the control thread frees calls. */
	const struct kvb_call *call = kvb_load_relaxed(&thread->running);
	uint64_t began_ns;

	if (!call || (session && call->session != session))
		return;
	began_ns = kvb_load_relaxed(&call->started_ns);
	kvb_log(&server->log, KVB_LOG_ERR,
		"%s is stuck: the handler of message type %u has run for %llu ms, for session %u "
		"(%s)",
		thread->name, call->header.type,
		(unsigned long long)((kvb_now_ns() - began_ns) / KVB_NS_PER_MS),
		call->session->slot, call->session->name);
}

void kvb_inflight_name_running(struct kvb_server *server, const struct kvb_session *session)
{
	for (uint32_t i = 0; i < server->handler_pools.count; i++) {
		const struct kvb_handler_pool *pool = server->handler_pools.pools[i];
		for (uint32_t t = 0; t < pool->n_threads; t++)
			name_running(server, &pool->threads[t], session);
	}
}
