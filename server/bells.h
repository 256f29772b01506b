/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bells.h - ringing a client's bell from a server thread, under the watchdog's eye.
 */
#ifndef KVB_SERVER_BELLS_H
#define KVB_SERVER_BELLS_H

#include <pthread.h>
#include <stdint.h>

struct kvb_session;

/* What the watchdog sees of one thread that rings. Owned by that thread. */
struct kvb_ringer {
	uint64_t since_ns; /* atomic: the write began then; 0: not ringing */
	uint32_t busy;     /* atomic: it may ring any moment; see kvb_watchdog_busy() */
	uint32_t freed;    /* atomic: signals the watchdog sent for it */
	pthread_t thread;
	const char *name;
};

/*
 * Publishes nothing; call it after a completion was posted. Rings if the client sleeps. A client
 * that makes the write block is failed. The calling thread owns `ringer`.
 */
void kvb_session_ring(struct kvb_session *session, struct kvb_ringer *ringer);
/* The same without asking whether the client sleeps: the final ring. */
void kvb_session_ring_always(struct kvb_session *session, struct kvb_ringer *ringer);

#endif /* KVB_SERVER_BELLS_H */
