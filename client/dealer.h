/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dealer.h - the client's end of the ZMQ control socket: made at first use, shared by all threads.
 *
 * An exchange is one request and its answer. Whoever is at the dealer does for all of them what can
 * be done without waiting; a thread that waits for its own sleeps on the socket's descriptor, one at
 * a time. Exchanges that nobody waits for are looked after by the thread that watches the door.
 */
#ifndef KVB_CLIENT_DEALER_H
#define KVB_CLIENT_DEALER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "kvbell/protocol.h"

struct kvb_conn;

enum kvb_dealer_state {
	KVB_DEALER_DETACHED = 0,
	KVB_DEALER_ATTACHING, /* the token is on its way */
	KVB_DEALER_ATTACHED,
};

enum kvb_exchange_state {
	KVB_EXCHANGE_QUEUED = 0,
	KVB_EXCHANGE_SENT,
	KVB_EXCHANGE_DONE,
};

struct kvb_exchange {
	/* --- the caller's, constant while it is at the dealer --- */
	uint16_t type;
	const void *request_body;
	size_t request_size;
	uint64_t deadline_ns;
	/* Called once, when it is done, under dealer->lock: the exchange is the function's then.
	 * NULL: somebody waits for it. */
	void (*done)(struct kvb_exchange *exchange);

	/* --- the dealer's --- */
	TAILQ_ENTRY(kvb_exchange) link;
	enum kvb_exchange_state state;
	uint64_t request;    /* its number */
	uint64_t attachment; /* it was sent on */
	uint32_t refusals;   /* how often it was sent where the token is not known */

	/* --- once it is done --- */
	int status;
	void *body; /* from malloc, the caller's to free; may be there with an error too */
	size_t size;
};

TAILQ_HEAD(kvb_exchange_list, kvb_exchange);

/* Of one attachment: a DEALER would reconnect by itself and hand old requests to a new server. */
struct kvb_dealer {
	int wake_fd; /* eventfd: wakes the thread that sleeps on the socket */

	pthread_mutex_t lock;   /* guards what follows; a ZMQ socket is not thread-safe */
	pthread_cond_t changed; /* an exchange is done, or nobody sleeps any more */
	void *context;
	void *socket;  /* NULL until used */
	int socket_fd; /* its ZMQ_FD, which is polled without the lock */
	enum kvb_dealer_state state;
	uint64_t attachments; /* how often the token was accepted */
	struct kvb_exchange attach;
	uint64_t attach_first; /* number of the first ATTACH that may still be answered */
	char attach_body[64];
	bool ended;                         /* takes no exchanges without a waiter any more */
	uint32_t unattended;                /* exchanges without a waiter */
	const struct kvb_exchange *sleeper; /* who sleeps on the socket; NULL nobody */
	uint64_t request;                   /* the last one's number */
	struct kvb_exchange_list exchanges; /* not done */
};

/* 0; -EMFILE, -ENFILE. */
int kvb_dealer_init(struct kvb_dealer *dealer);
/* No call may be inside. */
void kvb_dealer_done(struct kvb_dealer *dealer);
/* In a forked child, where ZMQ's threads are missing: closes what is ours alone. */
void kvb_dealer_done_in_child(struct kvb_dealer *dealer);
/* Lets whoever waits look at the connection again. Any thread. */
void kvb_dealer_wake(struct kvb_dealer *dealer);

/* Waits for the answer, which is in `exchange` then. Its status; -ETIMEDOUT; the connection's
 * error. */
int kvb_dealer_run(struct kvb_conn *conn, struct kvb_exchange *exchange);
/* Hands over an exchange that nobody waits for; it may be done when this returns. False: the
 * connection has ended, and the exchange is still the caller's. */
bool kvb_dealer_add(struct kvb_conn *conn, struct kvb_exchange *exchange);
/* Door thread: ends those that nobody waits for, and takes no more. */
void kvb_dealer_end(struct kvb_conn *conn, int error);
/* Door thread: what to poll, and until when, for those that nobody waits for; -1 and UINT64_MAX:
 * there are none. */
void kvb_dealer_needs(struct kvb_dealer *dealer, int *ret_fd, uint64_t *ret_deadline_ns);
/* Door thread: does what can be done, and ends those whose deadline has passed. */
void kvb_dealer_turn(struct kvb_conn *conn);

#endif /* KVB_CLIENT_DEALER_H */
