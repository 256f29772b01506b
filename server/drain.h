/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drain.h - the way of sessions, and of the whole server, from ACTIVE to FREE. Control thread.
 */
#ifndef KVB_SERVER_DRAIN_H
#define KVB_SERVER_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "kvbell/protocol.h"

struct kvb_server;
struct kvb_session;

enum kvb_drain_stage {
	KVB_DRAIN_NONE = 0,
	KVB_DRAIN_WAITING, /* lets nobody in, waits for quiescence */
	KVB_DRAIN_DONE,    /* everything is closed and unlinked */
};

struct kvb_drain {
	enum kvb_drain_stage stage;
	bool told;             /* the sessions are draining, too */
	uint64_t transfers_ns; /* WAITING: open transfers are ended after this */
	uint64_t deadline_ns;  /* WAITING: say that something is stuck after this */
	uint64_t quiet_ns; /* when everything was first found quiet, but for replies; 0: not yet */
	uint64_t tick_ns;  /* next look at time-outs and missed wakes */
};

/* Begins the end of a session, unless it has begun. */
void kvb_drain_session(struct kvb_session *session, enum kvb_reason reason);
/* The client's side of the door has closed, or its process is gone. */
void kvb_drain_peer_gone(struct kvb_session *session, enum kvb_reason reason);

/* Moves along whatever can move. Returns when it wants to be called next, or UINT64_MAX. */
uint64_t kvb_drain_turn(struct kvb_server *server);
/* True once the whole server is down and only memory is left to be freed. */
bool kvb_drain_finished(struct kvb_server *server);

#endif /* KVB_SERVER_DRAIN_H */
