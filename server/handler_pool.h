/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handler_pool.h - threads for BLOCKING handlers, with bounded queues ("lanes") before them.
 *
 * A normal pool has one lane that all its threads take from; an affinity pool has one lane per
 * thread, and a session's calls always go to the same one.
 */
#ifndef KVB_SERVER_HANDLER_POOL_H
#define KVB_SERVER_HANDLER_POOL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvbell/server.h"
#include "server/call.h"

struct kvb_handler_pool;

struct kvb_handler_lane {
	struct kvb_handler_pool *pool;
	pthread_mutex_t lock;   /* guards what follows */
	pthread_cond_t changed; /* something to take, or stop */
	struct kvb_call_list queue;
	uint32_t count;
	bool stop;
};

struct kvb_handler_thread {
	struct kvb_handler_lane *lane;
	pthread_t thread;
	bool started;
	char name[16];
	/* Atomic, for the log; control may follow it, since only control frees calls. */
	struct kvb_call *running;
};

struct kvb_handler_pool {
	struct kvb_server *server;
	uint32_t queue_max; /* of each lane */
	struct kvb_handler_lane *lanes;
	uint32_t n_lanes;
	struct kvb_handler_thread *threads;
	uint32_t n_threads;
};

struct kvb_handler_pools {
	struct kvb_server *server;
	struct kvb_handler_pool **pools;
	uint32_t count;
};

void kvb_handler_pools_init(struct kvb_handler_pools *pools, struct kvb_server *server);
/* 0 and its number; -EINVAL; -ENOMEM. */
int kvb_handler_pools_add(struct kvb_handler_pools *pools, enum kvb_pool_kind kind,
	uint32_t threads, uint32_t queue_max, uint32_t *ret_number);
/* NULL when there is no such pool. */
struct kvb_handler_pool *kvb_handler_pools_find(struct kvb_handler_pools *pools, uint32_t number);
/* Starts all threads. 0; -errno, and some may run until kvb_handler_pools_stop(). */
int kvb_handler_pools_start(struct kvb_handler_pools *pools);
/* Joins all threads: each lane is worked off first. */
void kvb_handler_pools_stop(struct kvb_handler_pools *pools);
/* Stops them, too. */
void kvb_handler_pools_free(struct kvb_handler_pools *pools);

/* Queues a call. 0, and the pool's threads own it; -EAGAIN the lane is full. */
int kvb_handler_pool_push(struct kvb_handler_pool *pool, struct kvb_call *call);
/* Takes a call out of its lane. False: a thread has taken it before. Control thread. */
bool kvb_handler_pool_remove(struct kvb_handler_pool *pool, struct kvb_call *call);

#endif /* KVB_SERVER_HANDLER_POOL_H */
