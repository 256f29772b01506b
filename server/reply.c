/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply.c - see reply.h.
 *
 * A ROUTER drops or blocks silently when a peer does not take its messages, so every send is
 * MANDATORY and DONTWAIT. What it refuses, which may only mean that ZMQ's own thread is a moment
 * behind, waits in the connection's outbox and is tried again; a client that lets more gather there
 * than it may is cut off, so that its memory is bounded and nobody else notices.
 *
 * Owns the outboxes; runs in the control thread. It must never send two replies to a connection out
 * of their order, never lose one without counting it, and never leave a message half sent: the next
 * one would be taken for its rest.
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
/* Of connections that no session has attached on. */
#define STRANGERS_MAX 64u
/* ZMQ does not tell when one peer of a ROUTER has room again, so we try: soon, and less often
 * the longer it has not read. */
#define RETRY_MIN_NS (2 * KVB_NS_PER_MS)
#define RETRY_MAX_NS (100 * KVB_NS_PER_MS)

struct kvb_outgoing {
	STAILQ_ENTRY(kvb_outgoing) link;
	struct kvb_msg_header header;
	size_t size;
	uint8_t body[];
};

/* Replies of one connection, oldest first; exists while there are any. */
struct kvb_outbox {
	TAILQ_ENTRY(kvb_outbox) link;
	struct kvb_peer peer;
	uint64_t session; /* that has attached on it, or was named by its first request */
	STAILQ_HEAD(, kvb_outgoing) queue;
	uint32_t count;
	uint64_t bytes;
	uint64_t progress_ns; /* when the last one went out, or the first one came in */
	uint64_t retry_ns;    /* when to try again */
};

void kvb_outboxes_init(struct kvb_outboxes *outboxes)
{
	*outboxes = (struct kvb_outboxes){0};
	TAILQ_INIT(&outboxes->list);
}

/* ------------------------------------------------------------------------------------------ sending */

static int make_frame(zmq_msg_t *frame, const void *data, size_t size)
{
	if (zmq_msg_init_size(frame, size) < 0)
		return -errno;
	memcpy(zmq_msg_data(frame), data, size);
	return 0;
}

/* A signal, such as the watchdog's, must not cut a message in two. 0; -errno. */
static int send_frame(void *router, zmq_msg_t *frame, int flags)
{
	int r;

	do
		r = zmq_msg_send(frame, router, flags | ZMQ_DONTWAIT);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

/* 0, and ZMQ owns the frames; -EAGAIN the peer's pipe is full; -EHOSTUNREACH it is gone. */
static int send_frames(void *router, zmq_msg_t frames[3])
{
	int r = 0;

	/* Whether it goes out is decided at the first frame; the others need no memory any more. */
	for (unsigned i = 0; i < 3 && r == 0; i++)
		r = send_frame(router, &frames[i], i < 2 ? ZMQ_SNDMORE : 0);
	return r;
}

/* The same, and -ENOMEM. */
static int send_now(struct kvb_server *server, const struct kvb_peer *peer,
	const struct kvb_msg_header *header, const void *body, size_t size)
{
	zmq_msg_t frames[3];
	int r;

	for (unsigned i = 0; i < 3; i++)
		zmq_msg_init(&frames[i]);
	r = make_frame(&frames[0], peer->routing_id, peer->len);
	if (r == 0)
		r = make_frame(&frames[1], header, sizeof(*header));
	if (r == 0)
		r = make_frame(&frames[2], body, size);
	if (r == 0)
		r = send_frames(kvb_control_router(server), frames);
	for (unsigned i = 0; i < 3; i++)
		zmq_msg_close(&frames[i]);
	if (r == 0)
		kvb_count(&server->counters.control_replies, 1);
	return r;
}

static void drop(struct kvb_server *server)
{
	kvb_count(&server->counters.control_dropped, 1);
}

/* ----------------------------------------------------------------------------------------- outboxes */

static void count_waiting(struct kvb_server *server, int64_t replies)
{
	kvb_store_relaxed(&server->gauges.replies_waiting,
		server->gauges.replies_waiting + (uint64_t)replies);
}

static struct kvb_outbox *find(struct kvb_server *server, const struct kvb_peer *peer)
{
	struct kvb_outbox *outbox;

	TAILQ_FOREACH(outbox, &server->outboxes.list, link)
	if (kvb_peer_equal(&outbox->peer, peer))
		return outbox;
	return NULL;
}

static void remove_first(struct kvb_server *server, struct kvb_outbox *outbox)
{
	struct kvb_outgoing *first = STAILQ_FIRST(&outbox->queue);

	STAILQ_REMOVE_HEAD(&outbox->queue, link);
	outbox->count--;
	outbox->bytes -= sizeof(*first) + first->size;
	count_waiting(server, -1);
	free(first);
}

static void outbox_free(struct kvb_server *server, struct kvb_outbox *outbox)
{
	while (outbox->count > 0) {
		remove_first(server, outbox);
		drop(server);
	}
	TAILQ_REMOVE(&server->outboxes.list, outbox, link);
	server->outboxes.count--;
	free(outbox);
}

void kvb_outboxes_clear(struct kvb_server *server)
{
	struct kvb_outbox *outbox = TAILQ_FIRST(&server->outboxes.list), *next;

	for (; outbox; outbox = next) {
		next = TAILQ_NEXT(outbox, link);
		outbox_free(server, outbox);
	}
}

/* Anybody may become a stranger, when its session ends, and stop being one, when it attaches. */
static bool is_stranger(struct kvb_server *server, uint64_t session, const struct kvb_peer *peer)
{
	return !kvb_session_find_attached(&server->sessions, session, peer);
}

/* How many outboxes are of strangers, and which of them has waited longest. */
static uint32_t count_strangers(struct kvb_server *server, struct kvb_outbox **ret_first)
{
	struct kvb_outbox *outbox;
	uint32_t n = 0;

	TAILQ_FOREACH(outbox, &server->outboxes.list, link)
	{
		if (!is_stranger(server, outbox->session, &outbox->peer))
			continue;
		if (n++ == 0)
			*ret_first = outbox; /* new ones come last */
	}
	return n;
}

/* A client, of which there are no more than sessions, always finds a place: the bound is for
 * strangers, and those whose session has ended meanwhile go when there are too many. */
static bool make_place(struct kvb_server *server, uint64_t session, const struct kvb_peer *peer)
{
	struct kvb_outbox *first = NULL;

	if (is_stranger(server, session, peer))
		return count_strangers(server, &first) < STRANGERS_MAX;
	if (count_strangers(server, &first) > STRANGERS_MAX)
		outbox_free(server, first);
	return true;
}

static struct kvb_outbox *outbox_new(
	struct kvb_server *server, uint64_t session, const struct kvb_peer *peer)
{
	struct kvb_outbox *outbox;

	if (!make_place(server, session, peer))
		return NULL;
	outbox = malloc(sizeof(*outbox));
	if (!outbox)
		return NULL;
	*outbox =
		(struct kvb_outbox){.peer = *peer, .session = session, .progress_ns = kvb_now_ns()};
	STAILQ_INIT(&outbox->queue);
	TAILQ_INSERT_TAIL(&server->outboxes.list, outbox, link);
	server->outboxes.count++;
	return outbox;
}

/* Ends the session that has attached on the connection, if there is one. */
static void fail_session(struct kvb_server *server, const struct kvb_peer *peer,
	enum kvb_reason reason, const char *why, uint32_t waiting)
{
	for (uint32_t i = 0; i < server->sessions.count; i++) {
		struct kvb_session *session = &server->sessions.slots[i];
		if (session->phase == KVB_PHASE_ACTIVE &&
			kvb_peer_equal(&session->control_peer, peer))
			kvb_session_fail(session, reason, "%s: %u wait", why, waiting);
	}
}

/* The client has let too many wait: they go, and its session with them. */
static void cut(struct kvb_server *server, struct kvb_outbox *outbox, const char *why)
{
	fail_session(server, &outbox->peer, KVB_REASON_NOT_READING, why, outbox->count);
	outbox_free(server, outbox);
}

static int append(struct kvb_server *server, struct kvb_outbox *outbox,
	const struct kvb_msg_header *header, const void *body, size_t size)
{
	struct kvb_outgoing *outgoing = malloc(sizeof(*outgoing) + size);

	if (!outgoing)
		return -ENOMEM;
	outgoing->header = *header;
	outgoing->size = size;
	memcpy(outgoing->body, body, size);
	STAILQ_INSERT_TAIL(&outbox->queue, outgoing, link);
	/* A wrong id in one request makes no stranger of a client. */
	if (!is_stranger(server, header->session, &outbox->peer))
		outbox->session = header->session;
	outbox->count++;
	outbox->bytes += sizeof(*outgoing) + size;
	count_waiting(server, 1);
	return 0;
}

/* 0; -errno it cannot wait, and is lost. */
static int put_aside(struct kvb_server *server, const struct kvb_peer *peer,
	struct kvb_outbox *outbox, const struct kvb_msg_header *header, const void *body,
	size_t size)
{
	int r = -ENOMEM;

	if (outbox && (outbox->count >= OUTBOX_REPLIES || outbox->bytes + size > OUTBOX_BYTES)) {
		cut(server, outbox, "the client does not read its control replies");
		return -ENOBUFS;
	}
	if (!outbox)
		outbox = outbox_new(server, header->session, peer);
	if (outbox)
		r = append(server, outbox, header, body, size);
	/* A caller whose answer is lost must not wait for it in vain. */
	if (r < 0)
		fail_session(server, peer, KVB_REASON_NO_MEMORY,
			"the server has no memory for control replies", 1);
	return r;
}

void kvb_send_reply(struct kvb_server *server, const struct kvb_peer *peer,
	const struct kvb_msg_header *request, uint32_t flags, int status,
	const msgpack_sbuffer *body)
{
	struct kvb_outbox *outbox = find(server, peer);
	struct kvb_msg_header header = {.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = request->type,
		.request = request->request,
		.session = request->session,
		.status = status,
		.flags = flags};
	int r = -EAGAIN;

	memcpy(header.boot_id, server->boot_id, KVB_ID_BYTES);
	if (!outbox)
		r = send_now(server, peer, &header, body->data, body->size);
	if (r == -EAGAIN || r == -ENOMEM)
		r = put_aside(server, peer, outbox, &header, body->data, body->size);
	if (r < 0)
		drop(server);
}

static void send_waiting(struct kvb_server *server, struct kvb_outbox *outbox, uint64_t now_ns)
{
	while (outbox->count > 0) {
		const struct kvb_outgoing *first = STAILQ_FIRST(&outbox->queue);
		int r = send_now(server, &outbox->peer, &first->header, first->body, first->size);
		if (r == -EAGAIN || r == -ENOMEM)
			break;
		if (r < 0)
			drop(server);
		remove_first(server, outbox);
		outbox->progress_ns = now_ns;
	}
}

/* Frees it when it has become empty. Returns when it is to be tried again, or UINT64_MAX. */
static uint64_t flush(struct kvb_server *server, struct kvb_outbox *outbox, uint64_t now_ns)
{
	/* The first one may have come in since now_ns was read. */
	uint64_t stuck_ns;

	if (now_ns < outbox->retry_ns)
		return outbox->retry_ns;
	send_waiting(server, outbox, now_ns);
	stuck_ns = now_ns > outbox->progress_ns ? now_ns - outbox->progress_ns : 0;
	if (outbox->count == 0) {
		outbox_free(server, outbox);
		return UINT64_MAX;
	}
	if (stuck_ns > OUTBOX_STUCK_NS) {
		cut(server, outbox, "the client has read no control reply for 10 s");
		return UINT64_MAX;
	}
	outbox->retry_ns =
		now_ns + kvb_min_u64(kvb_max_u64(stuck_ns / 4, RETRY_MIN_NS), RETRY_MAX_NS);
	return outbox->retry_ns;
}

uint64_t kvb_reply_turn(struct kvb_server *server, uint64_t now_ns)
{
	struct kvb_outbox *outbox = TAILQ_FIRST(&server->outboxes.list), *next;
	uint64_t wake_ns = UINT64_MAX;

	for (; outbox; outbox = next) {
		next = TAILQ_NEXT(outbox, link);
		wake_ns = kvb_min_u64(wake_ns, flush(server, outbox, now_ns));
	}
	return wake_ns;
}
