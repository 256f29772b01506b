/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane.h - a session of its own that moves the items of tickets.
 *
 * A client has one lane per mover, each with a thread that moves; without movers it has one, made at
 * the first ticket, whose thread only keeps it attached: the threads inside kvb_reap() and
 * kvb_wait() drive it, one at a time. Blocking calls have the client's own session, so that neither
 * takes the other's bells.
 */
#ifndef KVB_CLIENT_LANE_H
#define KVB_CLIENT_LANE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/stream.h"
#include "client/tickets.h"

#define KVB_LANES_MAX    64u
#define KVB_LANE_ACTIVES 64u

/* An item on its way. */
struct kvb_active {
	TAILQ_ENTRY(kvb_active) link;
	struct kvb_taken taken;
	uint64_t deadline_ns;
	uint64_t payload; /* bytes, as far as they count for what may be begun beside it */
	struct kvb_stream stream;
};

TAILQ_HEAD(kvb_active_list, kvb_active);

struct kvb_lane {
	struct kvb_client *client;
	bool moves;  /* its own thread drives it */
	int wake_fd; /* eventfd: wakes its thread */
	pthread_t thread;

	/* --- under tickets->lock --- */
	bool started;
	struct kvb_conn *conn; /* holds a reference; NULL while detached */
	bool driven;           /* a thread is at what follows further down */
	bool came;             /* another thread came to drive meanwhile */
	bool resting;          /* the driver looks at the queues only when poked */
	uint64_t open_max;     /* of its session: bytes in puts that are not complete */
	uint64_t room;         /* the longest payload that a resting one could begin */
	bool idle;             /* its thread looks at deadlines only when woken */

	/* --- the driver --- */
	struct kvb_active *actives;
	struct kvb_active_list moving; /* oldest first */
	struct kvb_active_list unused;
	uint64_t window;   /* bytes on their way */
	uint32_t payloads; /* items with payload among the moving */
	uint64_t payload_bytes;
	uint64_t expired_ns; /* when it last looked at deadlines */
};

/* Makes the lanes; with movers they are attached when it returns. 0; as kvb_open(), and what was made
 * is still to be ended and freed. */
int kvb_lanes_open(struct kvb_client *client);
/* Ends what is in flight, once client and tickets say that they are closing. */
void kvb_lanes_end(struct kvb_client *client);
/* After kvb_lanes_end(), and with nobody inside: joins the threads. */
void kvb_lanes_free(struct kvb_client *client);
/* In a forked child, in place of both. */
void kvb_lanes_free_in_child(struct kvb_client *client);
/* Lets lanes that are not attached try again at once. */
void kvb_lanes_nudge(struct kvb_client *client);

/* Before the first ticket. 0; -EAGAIN, -ENOMEM no thread can be made. */
int kvb_lanes_prepare_locked(struct kvb_client *client);
/* Which lanes, at most `shares`, are to look for items that came: references on their connections, which
 * kvb_lanes_poke() gives back, without the lock. */
unsigned kvb_lanes_choose_locked(
	struct kvb_client *client, size_t shares, struct kvb_conn *ret_pokes[KVB_LANES_MAX]);
void kvb_lanes_poke(struct kvb_conn *pokes[], unsigned n);

/* Without movers: whether a thread that calls kvb_lanes_drive() now could drive. */
bool kvb_lanes_may_drive_locked(const struct kvb_client *client);
/* Drives until `until` is finished, the deadline or the lane's end; NULL: for as long as something
 * moves, and not for long. Returns at once when it cannot. */
void kvb_lanes_drive(
	struct kvb_client *client, const struct kvb_ticket *until, uint64_t deadline_ns);

#endif /* KVB_CLIENT_LANE_H */
