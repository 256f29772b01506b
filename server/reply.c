/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply.c - see reply.h.
 *
 * A ROUTER drops or blocks silently when a peer does not read, so every send is MANDATORY and DONTWAIT. What it
 * refuses waits in the session's outbox and is tried again; a client that lets more gather there than
 * it may is cut off, so that its memory is bounded and nobody else notices.
 *
 * Owns the outboxes; runs in the control thread. It must never send two replies of a session out of their order,
 * and never lose one without counting it.
 */
#include "server/reply.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "server/server.h"
#include "shm/atomic.h"
#include "shm/util.h"

#define OUTBOX_REPLIES  8192u
#define OUTBOX_BYTES    (8 * KVB_MIB)
#define OUTBOX_STUCK_NS (10 * KVB_NS_PER_S)
/* ZMQ does not tell when one peer of a ROUTER has room again, so we try: soon, and less often the longer it
 * has not read. */
#define RETRY_MIN_NS (2 * KVB_NS_PER_MS)
#define RETRY_MAX_NS (100 * KVB_NS_PER_MS)

struct kvb_outgoing {
	STAILQ_ENTRY(kvb_outgoing) link;
	struct kvb_msg_header header;
	size_t size;
	uint8_t body[];
};

void kvb_outbox_init(struct kvb_outbox *outbox)
{
	*outbox = (struct kvb_outbox){0};
	STAILQ_INIT(&outbox->queue);
}

/* 0; -EAGAIN the peer does not read; -EHOSTUNREACH it is gone. */
static int send_now(struct kvb_server *server, const struct kvb_peer *peer,
	const struct kvb_msg_header *header, const void *body, size_t size)
{
	void *router = kvb_control_router(server);
	int flags = ZMQ_DONTWAIT | ZMQ_SNDMORE;

	/* Whether it goes out is decided at the first frame. */
	if (zmq_send(router, peer->routing_id, peer->len, flags) < 0 ||
		zmq_send(router, header, sizeof(*header), flags) < 0 ||
		zmq_send(router, body, size, ZMQ_DONTWAIT) < 0)
		return -errno;
	kvb_count(&server->counters.control_replies, 1);
	return 0;
}

static void count_waiting(struct kvb_server *server, int64_t replies)
{
	kvb_store_relaxed(&server->gauges.replies_waiting,
		server->gauges.replies_waiting + (uint64_t)replies);
}

static void drop(struct kvb_server *server)
{
	kvb_count(&server->counters.control_dropped, 1);
}

static void remove_first(struct kvb_session *session)
{
	struct kvb_outbox *outbox = &session->outbox;
	struct kvb_outgoing *first = STAILQ_FIRST(&outbox->queue);

	STAILQ_REMOVE_HEAD(&outbox->queue, link);
	outbox->count--;
	outbox->bytes -= sizeof(*first) + first->size;
	count_waiting(session->server, -1);
	free(first);
}

void kvb_outbox_clear(struct kvb_session *session)
{
	while (session->outbox.count > 0) {
		remove_first(session);
		drop(session->server);
	}
}

/* False: it may not, or cannot, wait. */
static bool put_aside(struct kvb_session *session, const struct kvb_msg_header *header,
	const void *body, size_t size)
{
	struct kvb_outbox *outbox = &session->outbox;
	struct kvb_outgoing *outgoing;

	/* One that has failed is about to end, and has no right to more memory. */
	if (kvb_load_relaxed(&session->failure) != KVB_REASON_NONE)
		return false;
	if (outbox->count >= OUTBOX_REPLIES || outbox->bytes + size > OUTBOX_BYTES) {
		kvb_session_fail(session, KVB_REASON_NOT_READING,
			"the client does not read its control replies: %u wait (%llu bytes)",
			outbox->count, (unsigned long long)outbox->bytes);
		return false;
	}
	outgoing = malloc(sizeof(*outgoing) + size);
	if (!outgoing)
		return false;
	outgoing->header = *header;
	outgoing->size = size;
	memcpy(outgoing->body, body, size);
	if (outbox->count == 0) {
		outbox->progress_ns = kvb_now_ns();
		outbox->retry_ns = 0;
	}
	STAILQ_INSERT_TAIL(&outbox->queue, outgoing, link);
	outbox->count++;
	outbox->bytes += sizeof(*outgoing) + size;
	count_waiting(session->server, 1);
	return true;
}

static void send_or_keep(struct kvb_server *server, struct kvb_session *session,
	const struct kvb_peer *peer, const struct kvb_msg_header *header, const void *body,
	size_t size)
{
	int r = -EAGAIN;

	/* An answer to a connection that the session has left is not the session's to keep. */
	if (session && !kvb_peer_equal(&session->control_peer, peer))
		session = NULL;
	if (!session || session->outbox.count == 0)
		r = send_now(server, peer, header, body, size);
	if (r == 0 || (r == -EAGAIN && session && put_aside(session, header, body, size)))
		return;
	drop(server);
}

void kvb_send_reply(struct kvb_server *server, struct kvb_session *session,
	const struct kvb_peer *peer, const struct kvb_msg_header *request, int status,
	const msgpack_sbuffer *body)
{
	struct kvb_msg_header header = {.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = request->type,
		.request = request->request,
		.session = request->session,
		.status = status};

	memcpy(header.boot_id, server->boot_id, KVB_ID_BYTES);
	send_or_keep(server, session, peer, &header, body->data, body->size);
}

static void send_waiting(struct kvb_session *session, uint64_t now_ns)
{
	struct kvb_outbox *outbox = &session->outbox;

	while (outbox->count > 0) {
		const struct kvb_outgoing *first = STAILQ_FIRST(&outbox->queue);
		int r = send_now(session->server, &session->control_peer, &first->header,
			first->body, first->size);
		if (r == -EAGAIN)
			break;
		if (r < 0)
			drop(session->server);
		remove_first(session);
		outbox->progress_ns = now_ns;
	}
}

/* Returns when it is to be tried again, or UINT64_MAX. */
static uint64_t flush(struct kvb_session *session, uint64_t now_ns)
{
	struct kvb_outbox *outbox = &session->outbox;
	uint64_t stuck_ns;

	if (outbox->count > 0 && now_ns >= outbox->retry_ns)
		send_waiting(session, now_ns);
	if (outbox->count == 0)
		return UINT64_MAX;
	/* The first one may have come in since now_ns was read. */
	stuck_ns = now_ns > outbox->progress_ns ? now_ns - outbox->progress_ns : 0;
	if (stuck_ns > OUTBOX_STUCK_NS)
		kvb_session_fail(session, KVB_REASON_NOT_READING,
			"the client has read none of %u control replies for %llu s", outbox->count,
			(unsigned long long)(OUTBOX_STUCK_NS / KVB_NS_PER_S));
	if (now_ns >= outbox->retry_ns)
		outbox->retry_ns =
			now_ns + kvb_min_u64(kvb_max_u64(stuck_ns / 4, RETRY_MIN_NS), RETRY_MAX_NS);
	return outbox->retry_ns;
}

uint64_t kvb_reply_turn(struct kvb_server *server, uint64_t now_ns)
{
	uint64_t wake_ns = UINT64_MAX;

	if (server->gauges.replies_waiting == 0)
		return wake_ns;
	for (uint32_t i = 0; i < server->sessions.count; i++)
		wake_ns = kvb_min_u64(wake_ns, flush(&server->sessions.slots[i], now_ns));
	return wake_ns;
}
