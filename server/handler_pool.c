/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handler_pool.c - the threads "kvb-call-<number>" that run BLOCKING handlers.
 *
 * Owns the lanes and the threads. A thread takes a call, runs its handler, and hands the call back
 * to control by the output queue (inflight.c). It must never touch a ZMQ socket or a client's
 * descriptor: a handler may take as long as it likes, and what it finishes late must find nothing
 * of a closed server or session. Hence the threads are joined before anything is closed, and each
 * call holds its session.
 */
#include "server/handler_pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/server.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"

#define THREADS_MAX 256u
#define QUEUE_MAX   65536u

/* ------------------------------------------------------------------------------------------- lanes */

static void lane_init(struct kvb_handler_lane *lane, struct kvb_handler_pool *pool)
{
	lane->pool = pool;
	pthread_mutex_init(&lane->lock, NULL);
	pthread_cond_init(&lane->changed, NULL);
	TAILQ_INIT(&lane->queue);
}

static void lane_done(struct kvb_handler_lane *lane)
{
	pthread_cond_destroy(&lane->changed);
	pthread_mutex_destroy(&lane->lock);
}

static void unlink_locked(struct kvb_handler_lane *lane, struct kvb_call *call)
{
	TAILQ_REMOVE(&lane->queue, call, in_lane);
	call->lane = NULL;
	lane->count--;
}

/* Waits for a call. NULL: the lane is empty and stops. */
static struct kvb_call *lane_take(struct kvb_handler_lane *lane)
{
	struct kvb_call *call;

	pthread_mutex_lock(&lane->lock);
	while (TAILQ_EMPTY(&lane->queue) && !lane->stop)
		pthread_cond_wait(&lane->changed, &lane->lock);
	call = TAILQ_FIRST(&lane->queue);
	if (call) {
		unlink_locked(lane, call);
		/* Under the lock: control knows of each call whether a thread has it. */
		kvb_store_relaxed(&call->started_ns, kvb_now_ns());
	}
	pthread_mutex_unlock(&lane->lock);
	return call;
}

static struct kvb_handler_lane *lane_for(struct kvb_handler_pool *pool, const struct kvb_call *call)
{
	return &pool->lanes[call->session->slot % pool->n_lanes];
}

int kvb_handler_pool_push(struct kvb_handler_pool *pool, struct kvb_call *call)
{
	struct kvb_handler_lane *lane = lane_for(pool, call);
	bool full;

	pthread_mutex_lock(&lane->lock);
	full = lane->count >= pool->queue_max;
	if (!full) {
		TAILQ_INSERT_TAIL(&lane->queue, call, in_lane);
		call->lane = lane;
		lane->count++;
		pthread_cond_signal(&lane->changed);
	}
	pthread_mutex_unlock(&lane->lock);
	return full ? -EAGAIN : 0;
}

bool kvb_handler_pool_remove(struct kvb_handler_pool *pool, struct kvb_call *call)
{
	struct kvb_handler_lane *lane = lane_for(pool, call);
	bool queued;

	pthread_mutex_lock(&lane->lock);
	queued = call->lane != NULL;
	if (queued)
		unlink_locked(lane, call);
	pthread_mutex_unlock(&lane->lock);
	return queued;
}

/* ------------------------------------------------------------------------------------------ threads */

static void *thread_main(void *arg)
{
	struct kvb_handler_thread *thread = arg;
	struct kvb_server *server = thread->lane->pool->server;
	struct kvb_call *call;

	while ((call = lane_take(thread->lane))) {
		kvb_store_relaxed(&thread->running, call);
		kvb_call_run(call);
		kvb_store_relaxed(&thread->running, (struct kvb_call *)NULL);
		kvb_inflight_give_back(server, call);
	}
	return NULL;
}

/* `first`: the number of the pool's first thread. */
static int pool_start(struct kvb_handler_pool *pool, uint32_t first)
{
	for (uint32_t i = 0; i < pool->n_threads; i++) {
		struct kvb_handler_thread *thread = &pool->threads[i];
		int r;
		thread->lane = &pool->lanes[i % pool->n_lanes];
		snprintf(thread->name, sizeof(thread->name), "kvb-call-%u", (first + i) % 1000);
		r = kvb_thread_start(&thread->thread, thread->name, thread_main, thread);
		if (r < 0)
			return r;
		thread->started = true;
	}
	return 0;
}

static void pool_stop(struct kvb_handler_pool *pool)
{
	for (uint32_t i = 0; i < pool->n_lanes; i++) {
		pthread_mutex_lock(&pool->lanes[i].lock);
		pool->lanes[i].stop = true;
		pthread_cond_broadcast(&pool->lanes[i].changed);
		pthread_mutex_unlock(&pool->lanes[i].lock);
	}
	for (uint32_t i = 0; i < pool->n_threads; i++) {
		if (pool->threads[i].started)
			pthread_join(pool->threads[i].thread, NULL);
		pool->threads[i].started = false;
	}
}

static void pool_free(struct kvb_handler_pool *pool)
{
	for (uint32_t i = 0; i < pool->n_lanes; i++)
		lane_done(&pool->lanes[i]);
	free(pool->lanes);
	free(pool->threads);
	free(pool);
}

static int pool_new(struct kvb_server *server, enum kvb_pool_kind kind, uint32_t threads,
	uint32_t queue_max, struct kvb_handler_pool **ret_pool)
{
	struct kvb_handler_pool *pool = calloc(1, sizeof(*pool));
	uint32_t n_lanes = kind == KVB_POOL_AFFINITY ? threads : 1;

	if (!pool)
		return -ENOMEM;
	*pool = (struct kvb_handler_pool){.server = server, .queue_max = queue_max};
	pool->lanes = calloc(n_lanes, sizeof(*pool->lanes));
	pool->threads = calloc(threads, sizeof(*pool->threads));
	if (!pool->lanes || !pool->threads) {
		pool_free(pool);
		return -ENOMEM;
	}
	pool->n_lanes = n_lanes;
	pool->n_threads = threads;
	for (uint32_t i = 0; i < n_lanes; i++)
		lane_init(&pool->lanes[i], pool);
	*ret_pool = pool;
	return 0;
}

/* --------------------------------------------------------------------------------------- all of them */

void kvb_handler_pools_init(struct kvb_handler_pools *pools, struct kvb_server *server)
{
	*pools = (struct kvb_handler_pools){.server = server};
}

int kvb_handler_pools_add(struct kvb_handler_pools *pools, enum kvb_pool_kind kind,
	uint32_t threads, uint32_t queue_max, uint32_t *ret_number)
{
	struct kvb_handler_pool **table;
	int r;

	if ((kind != KVB_POOL_NORMAL && kind != KVB_POOL_AFFINITY) || threads < 1 ||
		threads > THREADS_MAX || queue_max < 1 || queue_max > QUEUE_MAX)
		return -EINVAL;
	table = realloc(pools->pools, (pools->count + 1) * sizeof(struct kvb_handler_pool *));
	if (!table)
		return -ENOMEM;
	pools->pools = table;
	r = pool_new(pools->server, kind, threads, queue_max, &table[pools->count]);
	if (r == 0)
		*ret_number = pools->count++;
	return r;
}

struct kvb_handler_pool *kvb_handler_pools_find(struct kvb_handler_pools *pools, uint32_t number)
{
	return number < pools->count ? pools->pools[number] : NULL;
}

int kvb_handler_pools_start(struct kvb_handler_pools *pools)
{
	uint32_t first = 0;

	for (uint32_t i = 0; i < pools->count; i++) {
		int r = pool_start(pools->pools[i], first);
		if (r < 0)
			return r;
		first += pools->pools[i]->n_threads;
	}
	return 0;
}

void kvb_handler_pools_stop(struct kvb_handler_pools *pools)
{
	for (uint32_t i = 0; i < pools->count; i++)
		pool_stop(pools->pools[i]);
}

void kvb_handler_pools_free(struct kvb_handler_pools *pools)
{
	kvb_handler_pools_stop(pools);
	for (uint32_t i = 0; i < pools->count; i++)
		pool_free(pools->pools[i]);
	free(pools->pools);
	pools->pools = NULL;
	pools->count = 0;
}
