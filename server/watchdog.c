/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watchdog.c - the thread "kvb-watchdog".
 *
 * It looks at every ringing thread each TICK_MS and signals one whose write has taken longer than
 * HANG_MS; the handler does nothing, but the write returns with EINTR. A signal that comes just
 * before the write is lost, so it signals again at every tick until the thread is free. When no
 * ringing thread has been busy for a while it dozes without a timeout, so that an idle server makes
 * no wake-ups.
 *
 * It must never touch a session: it only knows threads.
 */
#include "server/watchdog.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"

#define TICK_MS         4
#define HANG_MS         4
#define QUIET_TICKS_MAX 250 /* about a second with nobody busy: doze */

static void ignore_signal(int signal)
{
	(void)signal;
}

static void free_hanging(struct kvb_watchdog *watchdog, uint64_t now_ns)
{
	for (uint32_t i = 0; i < watchdog->n_ringers; i++) {
		struct kvb_ringer *ringer = watchdog->ringers[i];
		uint64_t since = kvb_load_acquire(&ringer->since_ns);
		if (since == 0 || now_ns < since + HANG_MS * KVB_NS_PER_MS)
			continue;
		kvb_count(&ringer->freed, 1);
		pthread_kill(ringer->thread, watchdog->signal);
	}
}

static bool anybody_busy(const struct kvb_watchdog *watchdog)
{
	for (uint32_t i = 0; i < watchdog->n_ringers; i++)
		if (kvb_load_relaxed(&watchdog->ringers[i]->busy))
			return true;
	return false;
}

/* Sleeps until somebody is busy. */
static void doze(struct kvb_watchdog *watchdog)
{
	kvb_store_relaxed(&watchdog->dozing, true);
	/* Either this thread sees `busy`, or the other sees `dozing`; pairs with the fence in
	 * kvb_watchdog_busy(). */
	kvb_fence_full();
	while (!watchdog->stop && !anybody_busy(watchdog))
		pthread_cond_wait(&watchdog->wake, &watchdog->lock);
	kvb_store_relaxed(&watchdog->dozing, false);
}

static void *watchdog_main(void *arg)
{
	struct kvb_watchdog *watchdog = arg;
	uint32_t quiet = 0;

	pthread_mutex_lock(&watchdog->lock);
	while (!watchdog->stop) {
		quiet = anybody_busy(watchdog) ? 0 : quiet + 1;
		if (quiet > QUIET_TICKS_MAX) {
			doze(watchdog);
			quiet = 0;
		}
		(void)kvb_cond_wait_until(
			&watchdog->wake, &watchdog->lock, kvb_now_ns() + TICK_MS * KVB_NS_PER_MS);
		free_hanging(watchdog, kvb_now_ns());
	}
	pthread_mutex_unlock(&watchdog->lock);
	return NULL;
}

void kvb_watchdog_busy(struct kvb_watchdog *watchdog, struct kvb_ringer *ringer)
{
	kvb_store_relaxed(&ringer->busy, 1u);
	/* Pairs with the fence in doze(). */
	kvb_fence_full();
	if (!kvb_load_relaxed(&watchdog->dozing))
		return;
	pthread_mutex_lock(&watchdog->lock);
	pthread_cond_signal(&watchdog->wake);
	pthread_mutex_unlock(&watchdog->lock);
}

void kvb_watchdog_idle(struct kvb_ringer *ringer)
{
	kvb_store_relaxed(&ringer->busy, 0u);
}

int kvb_watchdog_start(struct kvb_watchdog *watchdog, int signal)
{
	struct sigaction action = {.sa_handler = ignore_signal};
	int r;

	memset(watchdog, 0, sizeof(*watchdog));
	watchdog->signal = signal;
	pthread_mutex_init(&watchdog->lock, NULL);
	kvb_cond_init(&watchdog->wake);
	sigemptyset(&action.sa_mask);
	if (sigaction(signal, &action, NULL) < 0)
		return -errno;
	r = kvb_thread_start(&watchdog->thread, "kvb-watchdog", watchdog_main, watchdog);
	watchdog->started = r == 0;
	return r;
}

void kvb_watchdog_stop(struct kvb_watchdog *watchdog)
{
	if (!watchdog->started)
		return;
	pthread_mutex_lock(&watchdog->lock);
	watchdog->stop = true;
	pthread_cond_signal(&watchdog->wake);
	pthread_mutex_unlock(&watchdog->lock);
	pthread_join(watchdog->thread, NULL);
	watchdog->started = false;
	pthread_cond_destroy(&watchdog->wake);
	pthread_mutex_destroy(&watchdog->lock);
}

void kvb_watchdog_join(struct kvb_watchdog *watchdog, struct kvb_ringer *ringer, const char *name)
{
	sigset_t set;

	*ringer = (struct kvb_ringer){.thread = pthread_self(), .name = name};
	sigemptyset(&set);
	sigaddset(&set, watchdog->signal);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	pthread_mutex_lock(&watchdog->lock);
	watchdog->ringers[watchdog->n_ringers++] = ringer;
	pthread_mutex_unlock(&watchdog->lock);
}

void kvb_watchdog_leave(struct kvb_watchdog *watchdog, struct kvb_ringer *ringer)
{
	pthread_mutex_lock(&watchdog->lock);
	for (uint32_t i = 0; i < watchdog->n_ringers; i++)
		if (watchdog->ringers[i] == ringer)
			watchdog->ringers[i] = watchdog->ringers[--watchdog->n_ringers];
	pthread_mutex_unlock(&watchdog->lock);
}
