/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handler.h - functions registered for control message types. All run in the control thread.
 */
#ifndef KVB_SERVER_HANDLER_H
#define KVB_SERVER_HANDLER_H

#include <msgpack.h>
#include <stdbool.h>
#include <stdint.h>

struct kvb_server;
struct kvb_session;

/* A ZMQ connection, as the ROUTER names it. Never shown to anybody. */
struct kvb_peer {
	uint8_t routing_id[255];
	uint8_t len;
};

struct kvb_call {
	struct kvb_server *server;
	const struct kvb_peer *peer;
	uint64_t session_id;         /* as the message says */
	struct kvb_session *session; /* attached to this connection; NULL for ATTACH */
	const msgpack_object *body;  /* the request's; valid during the call */
	msgpack_packer *reply;       /* the answer's body goes here; ignored on error */
	const char *error_text; /* set with an error, when there is more to say than its name */
};

/* 0, and one MessagePack object in `reply`; -errno. */
typedef int kvb_handler_fn(struct kvb_call *call);

struct kvb_handler {
	uint16_t type;
	bool unattached; /* may come before ATTACH */
	kvb_handler_fn *fn;
};

/* The handler of a message type; NULL when there is none. */
const struct kvb_handler *kvb_handler_find(uint16_t type);

#endif /* KVB_SERVER_HANDLER_H */
