/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads.c - see threads.h.
 *
 * Owns nothing; any thread. A thread of ours must never take a signal that belongs to the program
 * it lives in, so all are blocked before it exists.
 */
#include "shm/threads.h"

#include <signal.h>
#include <time.h>

#include "shm/util.h"

int kvb_thread_start(pthread_t *ret_thread, const char *name, void *(*main)(void *), void *arg)
{
	sigset_t all, before;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(ret_thread, NULL, main, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r == 0)
		(void)pthread_setname_np(*ret_thread, name);
	return -r;
}

void kvb_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

int kvb_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns)
{
	struct timespec ts = {.tv_sec = (time_t)(deadline_ns / KVB_NS_PER_S),
		.tv_nsec = (long)(deadline_ns % KVB_NS_PER_S)};

	return -pthread_cond_timedwait(cond, lock, &ts);
}
