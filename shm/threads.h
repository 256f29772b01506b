/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads.h - the project's threads: named, with every signal blocked; conditions on the monotonic
 * clock.
 */
#ifndef KVB_SHM_THREADS_H
#define KVB_SHM_THREADS_H

#include <pthread.h>
#include <stdint.h>

/* name: at most 15 bytes. 0; -errno. */
int kvb_thread_start(pthread_t *ret_thread, const char *name, void *(*main)(void *), void *arg);
void kvb_cond_init(pthread_cond_t *cond);
/* 0; -ETIMEDOUT. */
int kvb_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

#endif /* KVB_SHM_THREADS_H */
