/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the client's end of the ZMQ control socket: made at first use, shared by all threads.
 */
#ifndef KVB_CLIENT_CONTROL_H
#define KVB_CLIENT_CONTROL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

enum kvb_dealer_state {
	KVB_DEALER_DETACHED = 0,
	KVB_DEALER_ATTACHING, /* a thread is presenting the token */
	KVB_DEALER_ATTACHED,
};

struct kvb_exchange;

/* Of one attachment: a DEALER would reconnect by itself and hand old requests to a new server. */
struct kvb_dealer {
	int wake_fd; /* eventfd: wakes the thread that sleeps on the socket */

	pthread_mutex_t lock;   /* guards what follows; a ZMQ socket is not thread-safe */
	pthread_cond_t changed; /* an answer, another state, or nobody sleeps any more */
	void *context;
	void *socket;  /* NULL until used */
	int socket_fd; /* its ZMQ_FD, which the sleeper polls without the lock */
	enum kvb_dealer_state state;
	uint32_t want_room;                 /* threads that wait to send */
	const struct kvb_exchange *sleeper; /* who sleeps on the socket; NULL nobody */
	uint64_t request;                   /* the last one's number */
	TAILQ_HEAD(kvb_exchanges, kvb_exchange) exchanges; /* without an answer */
};

/* 0; -EMFILE, -ENFILE. */
int kvb_dealer_init(struct kvb_dealer *dealer);
/* No call may be inside. */
void kvb_dealer_done(struct kvb_dealer *dealer);
/* In a forked child, where ZMQ's threads are missing: closes what is ours alone. */
void kvb_dealer_done_in_child(struct kvb_dealer *dealer);
/* Lets whoever waits look at the connection again. Any thread. */
void kvb_dealer_wake(struct kvb_dealer *dealer);

#endif /* KVB_CLIENT_CONTROL_H */
