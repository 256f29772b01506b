/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply.h - replies on their way out of the ROUTER. Control thread only.
 */
#ifndef KVB_SERVER_REPLY_H
#define KVB_SERVER_REPLY_H

#include <msgpack.h>
#include <stdint.h>
#include <sys/queue.h>

#include "kvbell/protocol.h"
#include "server/call.h"

struct kvb_server;
struct kvb_session;

/* Replies of one session that ZMQ would not take yet, oldest first. */
struct kvb_outbox {
	STAILQ_HEAD(, kvb_outgoing) queue;
	uint32_t count;
	uint64_t bytes;
	uint64_t progress_ns; /* when the last one went out, or the first one came in */
	uint64_t retry_ns;    /* when to try again */
};

void kvb_outbox_init(struct kvb_outbox *outbox);

/*
 * Answers a request: `request` is its header. `session`, unless NULL, keeps the reply when it cannot go out now. What
 * cannot be delivered at all is counted. Never blocks.
 */
void kvb_send_reply(struct kvb_server *server, struct kvb_session *session,
	const struct kvb_peer *peer, const struct kvb_msg_header *request, int status,
	const msgpack_sbuffer *body);

/* Sends what waits, as far as it goes; fails sessions that do not read. Returns when it wants to be called next, or
 * UINT64_MAX. */
uint64_t kvb_reply_turn(struct kvb_server *server, uint64_t now_ns);
/* Drops what waits, and counts it: the session has ended, or its connection is another one now. */
void kvb_outbox_clear(struct kvb_session *session);

#endif /* KVB_SERVER_REPLY_H */
