/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tickets.h - asynchronous operations: what was submitted, what is finished, and the descriptor
 * that tells of it.
 *
 * A ticket is a batch of items, or one call. Lanes (lane.h) take items and finish them; a call is
 * finished by the control socket (control.c). A ticket whose items are all finished waits to be
 * reaped. Every function but init and done takes tickets->lock itself, unless its name says
 * _locked, and may be called with a connection's lock held.
 */
#ifndef KVB_CLIENT_TICKETS_H
#define KVB_CLIENT_TICKETS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "kvbell/kvbell.h"

struct kvb_client;

/* Lookups do not wait behind payload; loads and stores take turns. */
enum kvb_ticket_queue {
	KVB_QUEUE_QUICK = 0,
	KVB_QUEUE_GET,
	KVB_QUEUE_PUT,
	KVB_QUEUES,
};

struct kvb_ticket {
	TAILQ_ENTRY(kvb_ticket)
	link;                               /* in `open` or `finished`; in neither while awaited and
					       finished */
	TAILQ_ENTRY(kvb_ticket) queue_link; /* while it has items that nobody has taken */
	LIST_ENTRY(kvb_ticket) id_link;
	uint64_t id;
	void *user;
	uint64_t deadline_ns;
	uint8_t op;    /* enum kvb_op; of a batch */
	uint8_t flags; /* KVB_SQE_IF_ABSENT */
	bool finished;
	bool awaited; /* a thread is in kvb_wait() for it, and kvb_reap() leaves it alone */
	struct kvb_item *items; /* the caller's; NULL of a call */
	size_t n;
	size_t next; /* the first item that nobody has taken */
	size_t left; /* items that are not finished */
	int result;
	size_t failed;
};

TAILQ_HEAD(kvb_ticket_list, kvb_ticket);

#define KVB_TICKET_BUCKETS 256u

struct kvb_tickets {
	int ready_fd; /* eventfd: written when something is there to reap, or to drive */
	int event_fd; /* epoll over it, and over the bell of a lane that callers drive */

	pthread_mutex_t lock;    /* guards what follows */
	pthread_cond_t finished; /* an awaited ticket is, or nobody drives any more, or closing */
	bool ready;              /* ready_fd is readable */
	unsigned reaping;        /* threads that will look at the finished ones before they leave */
	bool closing;
	bool away; /* the client is not attached, and nothing is to be queued */
	uint64_t last_id;
	struct kvb_ticket_list open; /* not finished; oldest first */
	struct kvb_ticket_list done; /* finished, for kvb_reap() */
	struct kvb_ticket_list queues[KVB_QUEUES];
	unsigned payload_turn; /* which of the payload queues comes first */
	unsigned quick_run;    /* quick items taken since the last one with payload */
	LIST_HEAD(, kvb_ticket) ids[KVB_TICKET_BUCKETS];
};

/* 0; -EMFILE, -ENFILE. */
int kvb_tickets_init(struct kvb_tickets *tickets);
/* Also in a forked child. Nobody may be inside. */
void kvb_tickets_done(struct kvb_tickets *tickets);

/* One item that somebody has taken and has to finish. */
struct kvb_taken {
	struct kvb_ticket *ticket;
	size_t index;
};

/* Takes the next item. `payload_room`: no payload longer than this; 0: no payload at all. */
bool kvb_tickets_take_locked(
	struct kvb_tickets *tickets, uint64_t payload_room, struct kvb_taken *ret_taken);
/* Whether kvb_tickets_take_locked() would find one. */
bool kvb_tickets_may_take_locked(const struct kvb_tickets *tickets, uint64_t payload_room);
/* Writes the item's result; the last one finishes the ticket. */
void kvb_tickets_finish_item(
	struct kvb_tickets *tickets, const struct kvb_taken *taken, int result, uint64_t length);
/* A call, which is finished with kvb_tickets_finish_call(). NULL: no memory. */
struct kvb_ticket *kvb_tickets_add_call(struct kvb_tickets *tickets, void *user, uint64_t *ret_id);
/* Finishes a call. */
void kvb_tickets_finish_call(struct kvb_tickets *tickets, struct kvb_ticket *ticket, int result);
/* Finishes what nobody has taken and is past its deadline. */
void kvb_tickets_expire(struct kvb_tickets *tickets, uint64_t now_ns);
/* The client is not attached any more: finishes all that nobody has taken, and lets nothing be queued. */
void kvb_tickets_go_away(struct kvb_tickets *tickets);
void kvb_tickets_come_back(struct kvb_tickets *tickets);
/* Earliest deadline of batches that are not finished; UINT64_MAX: there are none. */
uint64_t kvb_tickets_deadline(struct kvb_tickets *tickets);
/* The same of those that have items which nobody has taken. */
uint64_t kvb_tickets_queued_deadline(struct kvb_tickets *tickets);
/* Makes event_fd readable, so that a caller comes to reap or drive. */
void kvb_tickets_signal(struct kvb_tickets *tickets);
/* Lets whoever waits look again. */
void kvb_tickets_wake(struct kvb_tickets *tickets);
/* Lets nobody wait any more. */
void kvb_tickets_close(struct kvb_tickets *tickets);

#endif /* KVB_CLIENT_TICKETS_H */
