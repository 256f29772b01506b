/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connection.h - one attachment to one server: its rings, its requests in flight, and waiting for
 * them.
 *
 * A connection is shared by all threads inside calls and by the internal thread. It dies once,
 * keeps its maps until the last reference is given back, and never comes to life again: the client
 * makes a new one. Functions with the suffix _locked want conn->lock held.
 */
#ifndef KVB_CLIENT_CONNECTION_H
#define KVB_CLIENT_CONNECTION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/attach.h"
#include "client/dealer.h"
#include "shm/ring.h"
#include "shm/staging.h"

struct kvb_client;

#define KVB_NO_BLOCK UINT32_MAX

/* A request in flight. It gives its credit and its staging back with its completion, never before. */
struct kvb_request {
	uint32_t
		generation; /* in the high half of user_data: a late completion finds its own or none */
	uint32_t next_free;
	bool in_flight;
	bool done;
	bool orphan;    /* its caller has gone; the completion alone cleans up */
	uint32_t block; /* of staging; KVB_NO_BLOCK */
	uint64_t staging;
	int aborts; /* transfer slot that its completion sets free; -1 */
	struct kvb_cqe cqe;
};

enum kvb_slot_state {
	KVB_SLOT_FREE = 0,
	KVB_SLOT_BUSY,
	KVB_SLOT_ABORT, /* its caller has gone; ABORT is to be sent */
};

struct kvb_slot {
	enum kvb_slot_state state;
	uint32_t use; /* 24 bits, never 0 */
};

struct kvb_conn {
	struct kvb_client *client;
	int owner_wake_fd; /* eventfd: of the thread that watches its door */
	uint32_t refs;     /* atomic */
	int32_t failed;    /* atomic: the negative errno for all calls; 0 while it works */
	struct kvb_attached attached;
	struct kvb_session_header *header;
	uint8_t *staging_base;
	int wake_fd; /* eventfd: wakes the thread that sleeps on the bell */
	struct kvb_dealer dealer;

	pthread_mutex_t lock;
	pthread_cond_t
		changed;     /* a completion, room, death, or nobody sleeps on the bell any more */
	uint32_t waiting;    /* threads that wait for `changed` */
	bool sleeping;       /* a thread sleeps on the bell, and wakes the others */
	uint32_t room_given; /* atomic, written under the lock: counts tell_of_room() */
	bool sleeper_wants_room; /* no bell tells it of room: whoever gives some writes wake_fd */
	struct kvb_sq_producer sq;
	struct kvb_cq_consumer cq;
	struct kvb_staging staging;
	struct kvb_request *requests;
	uint32_t free_request; /* list; credit when there is none */
	struct kvb_slot *slots;
};

/* Takes what a WELCOME brought, on success only. One reference is the caller's. 0; -ENOMEM;
 * -EMFILE. */
int kvb_conn_new(struct kvb_client *client, struct kvb_attached *attached, int owner_wake_fd,
	struct kvb_conn **ret_conn);
struct kvb_conn *kvb_conn_ref(struct kvb_conn *conn);
void kvb_conn_unref(struct kvb_conn *conn);
/* In a forked child: frees what the child has of it and leaves the parent's session alone. */
void kvb_conn_free_in_child(struct kvb_conn *conn);

/* Ends it: everything in flight and every later call gets `error`. The first one counts. Any
 * thread. */
void kvb_conn_fail(struct kvb_conn *conn, int error);
/* 0 while it works. Looks at the life word too: it tells of a killed server before the kernel does. */
int kvb_conn_check(struct kvb_conn *conn);

/* Makes whoever waits for room, or rests, look again. Any thread, without the lock. */
void kvb_conn_poke(struct kvb_conn *conn);

/*
 * Takes credit, and staging for `length` bytes (0: none). 0; -EAGAIN not now; -EMSGSIZE more than
 * all staging; the connection's error. The request is the caller's until kvb_conn_finish_locked()
 * or kvb_conn_orphan_locked().
 */
int kvb_conn_take_locked(struct kvb_conn *conn, uint32_t length, uint32_t *ret_index);
/* Gives back a request that was not submitted, or is done. */
void kvb_conn_finish_locked(struct kvb_conn *conn, uint32_t index);
/* The caller leaves a submitted request behind. */
void kvb_conn_orphan_locked(struct kvb_conn *conn, uint32_t index);
/* Fills in user_data and staging, publishes, and kicks the server if it sleeps. */
void kvb_conn_submit_locked(
	struct kvb_conn *conn, uint32_t index, struct kvb_sqe *sqe, const void *key);

/* A transfer of the server's table. 0; -EAGAIN all are in use. */
int kvb_conn_slot_take_locked(struct kvb_conn *conn, uint32_t *ret_transfer);
/* `aborted`: the server may still hold the transfer open and is told to end it. */
void kvb_conn_slot_give_locked(struct kvb_conn *conn, uint32_t transfer, bool aborted);

/* Waits until room or a slot may have been given back: reaps completions, sleeps if there are none.
 * 0; -ETIMEDOUT; the connection's error. */
int kvb_conn_wait_room_locked(struct kvb_conn *conn, uint64_t deadline_ns);
/* With nothing in flight: sleeps until kvb_conn_poke(), the connection's end or the deadline
 * (UINT64_MAX: none). True: the door has something to say. */
bool kvb_conn_rest_locked(struct kvb_conn *conn, uint64_t deadline_ns);
/* Waits for one request. 0 it is done; -ETIMEDOUT; the connection's error. */
int kvb_conn_wait_done_locked(struct kvb_conn *conn, uint32_t index, uint64_t deadline_ns);
/* Takes what has completed. 0; the connection's error. */
int kvb_conn_reap_locked(struct kvb_conn *conn);

#endif /* KVB_CLIENT_CONNECTION_H */
