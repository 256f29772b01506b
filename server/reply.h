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

struct kvb_outbox;
struct kvb_server;

/* Connections with replies that ZMQ would not take yet. */
struct kvb_outboxes {
	TAILQ_HEAD(, kvb_outbox) list;
	uint32_t count;
};

void kvb_outboxes_init(struct kvb_outboxes *outboxes);

/*
 * Answers a request: `request` is its header, `flags` of enum kvb_msg_flag. What cannot go out now
 * waits; what cannot be delivered at all is counted. Never blocks.
 */
void kvb_send_reply(struct kvb_server *server, const struct kvb_peer *peer,
	const struct kvb_msg_header *request, uint32_t flags, int status,
	const msgpack_sbuffer *body);

/* Sends what waits, as far as it goes; fails sessions that do not read. Returns when it wants to
 * be called next, or UINT64_MAX. */
uint64_t kvb_reply_turn(struct kvb_server *server, uint64_t now_ns);
/* Drops what waits for anybody, and counts it. */
void kvb_outboxes_clear(struct kvb_server *server);

#endif /* KVB_SERVER_REPLY_H */
