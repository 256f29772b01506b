/* SPDX-License-Identifier: Apache-2.0 */
/*
 * door.h - the Unix socket where clients are let in. Everything here belongs to the control thread.
 */
#ifndef KVB_SERVER_DOOR_H
#define KVB_SERVER_DOOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvbell/protocol.h"

struct kvb_server;
struct kvb_session;

#define KVB_DOOR_PENDING 64u

/* A connection that has not said HELLO. */
struct kvb_door_pending {
	int fd; /* -1: free */
	uint64_t deadline_ns;
};

struct kvb_door {
	struct kvb_server *server;
	int listen_fd;
	int epoll_fd;   /* listener, pending connections, and the doors and pidfds of sessions */
	bool listening; /* the listener is in the set */
	uint64_t
		retry_ns; /* when to listen again after running out of descriptors; 0: not waiting */
	struct kvb_door_pending pending[KVB_DOOR_PENDING];
};

/* Binds door.sock and listens. 0; -errno, logged. */
int kvb_door_open(struct kvb_door *door, struct kvb_server *server);
/* Takes what has happened at the door. */
void kvb_door_serve(struct kvb_door *door);
/* Time-outs. Returns when it wants to be called next, or UINT64_MAX. */
uint64_t kvb_door_turn(struct kvb_door *door);
/* Lets nobody in any more; closes nothing. */
void kvb_door_shut(struct kvb_door *door);
void kvb_door_close(struct kvb_door *door);

/* Sends GOODBYE to a session's client, as far as it still listens. `text` may be NULL. */
void kvb_door_say_goodbye(struct kvb_session *session, enum kvb_reason reason, const char *text);
/* The session's client is known to be gone: stops watching door and process. */
void kvb_door_forget(struct kvb_door *door, struct kvb_session *session);

/* True when somebody other than the server's own uid may be let in. */
struct kvb_server_options;
bool kvb_door_open_to_others(const struct kvb_server_options *options);

#endif /* KVB_SERVER_DOOR_H */
