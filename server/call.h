/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.h - one control message on its way through a handler, and the answer it will get.
 *
 * A SYNC call lives on the control thread's stack. A BLOCKING call is allocated, and owned by one
 * thread at a time: control, then whoever takes it from the pool's queue, then control again.
 * Control keeps its place in the list of unanswered calls all the while, and may answer it on its
 * own when time is up; it never looks at the members marked "handler" before the call came back.
 */
#ifndef KVB_SERVER_CALL_H
#define KVB_SERVER_CALL_H

#include <msgpack.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/queue.h>
#include <zmq.h>

#include "kvbell/protocol.h"

struct kvb_handler;
struct kvb_handler_lane;
struct kvb_server;
struct kvb_session;

/* A ZMQ connection, as the ROUTER names it. Never shown to anybody. */
struct kvb_peer {
	uint8_t routing_id[255];
	uint8_t len;
};

static inline bool kvb_peer_equal(const struct kvb_peer *a, const struct kvb_peer *b)
{
	return a->len == b->len && memcmp(a->routing_id, b->routing_id, a->len) == 0;
}

struct kvb_call {
	/* --- constant --- */
	struct kvb_server *server;
	struct kvb_handler *handler;
	struct kvb_peer peer;
	struct kvb_msg_header header; /* the request's */
	struct kvb_session *session;  /* NULL for ATTACH. A BLOCKING call holds a reference */
	const void *body;
	size_t body_size;
	const msgpack_object *object; /* the body, for handlers that want it unpacked */
	zmq_msg_t frame;              /* what `body` points into; BLOCKING only */
	uint64_t deadline_ns;         /* BLOCKING only */

	/* --- handler: the answer --- */
	msgpack_sbuffer reply; /* empty: none yet */
	msgpack_packer packer; /* into `reply` */
	bool replied_twice;
	int status;
	char text[KVB_TEXT_BYTES]; /* "" none */

	/* --- atomic --- */
	uint32_t abandoned;  /* nobody waits for the answer any more */
	uint64_t started_ns; /* 0: not yet taken by a thread */

	/* --- control thread --- */
	bool answered;
	TAILQ_ENTRY(kvb_call) in_flight;

	/* --- under the lane's lock --- */
	struct kvb_handler_lane *lane; /* whose queue it is in; NULL: none */
	TAILQ_ENTRY(kvb_call) in_lane;

	/* --- under the output's lock --- */
	TAILQ_ENTRY(kvb_call) in_output;
};

TAILQ_HEAD(kvb_call_list, kvb_call);

/* An answer without a reply, for a call whose constant members are set. */
void kvb_call_init_answer(struct kvb_call *call);
void kvb_call_free_answer(struct kvb_call *call);
/* Calls the handler and makes what it did into one answer: status, and a reply that fits it. */
void kvb_call_run(struct kvb_call *call);
/* Makes the answer an error; `text` NULL: its name. */
void kvb_call_set_error(struct kvb_call *call, int status, const char *text);
/* {"error": text} */
void kvb_pack_error(msgpack_packer *packer, int status, const char *text);

#endif /* KVB_SERVER_CALL_H */
