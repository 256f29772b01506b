/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - the payload memory: reserved at once, populated in the background, handed to the store
 * range by range.
 */
#ifndef KVB_SERVER_POOL_H
#define KVB_SERVER_POOL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "shm/segment.h"

struct kvb_server;

struct kvb_pool {
	struct kvb_segment segment;
	pthread_t thread;
	bool started;
	uint32_t stop;         /* atomic */
	int32_t error;         /* atomic: -errno of the range that could not be populated */
	uint64_t failed_bytes; /* atomic: what will never be usable because of it */
	uint64_t populate_ns;  /* atomic: how long it took; 0 while it goes on */
	pthread_mutex_t lock;
	pthread_cond_t progress;
	bool first_done; /* under lock: the first range is there, or has failed */
};

/*
 * Waits until the host has memory enough, then makes and maps the memfd; no page of it is there
 * yet. 0; -ENOMEM the host cannot hold it, logged; -EINTR cancelled; other -errno.
 */
int kvb_pool_new(struct kvb_pool *pool, struct kvb_server *server);
/* Starts the thread "kvb-populate" and returns once the first range is usable. 0; -errno, logged. */
int kvb_pool_start(struct kvb_pool *pool, struct kvb_server *server);
/* Ends the thread, done or not. */
void kvb_pool_stop(struct kvb_pool *pool);
void kvb_pool_free(struct kvb_pool *pool);

#endif /* KVB_SERVER_POOL_H */
