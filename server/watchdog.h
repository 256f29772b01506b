/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watchdog.h - frees a thread that hangs in ringing a client's bell.
 */
#ifndef KVB_SERVER_WATCHDOG_H
#define KVB_SERVER_WATCHDOG_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/bells.h"

#define KVB_RINGERS_MAX 257u /* every worker and the control thread */

struct kvb_watchdog {
	pthread_t thread;
	bool started;
	int signal;
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t wake;
	bool stop;
	bool dozing; /* also read without the lock, as a hint: see kvb_watchdog_busy() */
	struct kvb_ringer *ringers[KVB_RINGERS_MAX];
	uint32_t n_ringers;
};

/* Installs the signal's handler (no SA_RESTART) and starts the thread. 0; -errno. */
int kvb_watchdog_start(struct kvb_watchdog *watchdog, int signal);
void kvb_watchdog_stop(struct kvb_watchdog *watchdog);

/* The calling thread will ring: unblocks the signal and puts it under watch; and the reverse,
 * before the thread ends. */
void kvb_watchdog_join(struct kvb_watchdog *watchdog, struct kvb_ringer *ringer, const char *name);
void kvb_watchdog_leave(struct kvb_watchdog *watchdog, struct kvb_ringer *ringer);

/* Around every stretch of work in which the thread may ring. Cheap while the watchdog ticks. */
void kvb_watchdog_busy(struct kvb_watchdog *watchdog, struct kvb_ringer *ringer);
void kvb_watchdog_idle(struct kvb_ringer *ringer);

#endif /* KVB_SERVER_WATCHDOG_H */
