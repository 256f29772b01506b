/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.c - the threads "kvb-worker-<number>" and the run queues they share.
 *
 * Each group owns one epoll set over the kicks of its sessions and one run queue. Where a session
 * stands with the workers is one word, session->run:
 *
 *     IDLE ──kick──► QUEUED ──taken──► RUNNING ──kick──► AGAIN
 *      ▲                ▲                 │ │              │
 *      └── found empty ─┼─────────────────┘ └── has more ──┤
 *                       └──────────────────────────────────┘
 *
 * Only the worker that took a session from the queue touches its rings and transfers. AGAIN
 * remembers a kick that came meanwhile; without it a worker could consume the kick while another
 * one leaves the session, and work would stay behind (tests/model/runq.pml). A session that is
 * not IDLE holds one reference, which moves along with it.
 *
 * Kicks are registered edge-triggered and never read: the client shares the descriptor's
 * description, could clear O_NONBLOCK and drain it, and the read would block.
 *
 * A worker must never keep what it learned from epoll_wait over the top of its loop, where it
 * passes grace periods; and must never block anywhere but in epoll_wait with an empty run queue.
 */
#include "server/worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/execute.h"
#include "server/hook.h"
#include "server/server.h"
#include "shm/atomic.h"
#include "shm/fd.h"
#include "shm/threads.h"
#include "shm/util.h"

#define EVENTS_MAX      64
#define HARVEST_VISITS  8
#define HARVEST_NS      50000ull
#define GRACE_RAISED_NS (50 * KVB_NS_PER_MS)
#define GRACE_PAUSE_MAX (500 * KVB_NS_PER_MS)

/* Event data that no session's id can be: there are no such slots. */
#define EVENT_WAKE    ((uint64_t)UINT32_MAX)
#define EVENT_QUIESCE ((uint64_t)UINT32_MAX - 1)

/* --------------------------------------------------------------------------------- the run queue */

/* When an idle worker is woken for what is appended. */
enum wakes {
	WAKES_NEVER,
	WAKES_BEHIND_OTHERS, /* by a worker that takes the oldest next: only what it leaves lying */
	WAKES_ALWAYS,        /* by a thread that takes nothing */
};

/* Appends. No more workers are woken than are idle. */
static void push(struct kvb_group *group, struct kvb_session *session, enum wakes wakes)
{
	bool wake = wakes != WAKES_NEVER;

	session->run_next = NULL;
	pthread_mutex_lock(&group->lock);
	if (group->queue_tail) {
		group->queue_tail->run_next = session;
	} else {
		kvb_store_relaxed(&group->queue_head, session);
		wake = wakes == WAKES_ALWAYS;
	}
	group->queue_tail = session;
	wake = wake && group->n_idle > group->n_waked;
	group->n_waked += wake;
	pthread_mutex_unlock(&group->lock);
	if (wake)
		(void)eventfd_write(group->wake_fd, 1);
}

/* Takes the oldest; NULL counts the caller as idle until leave_idle(). Says whether another
 * worker sleeps on the wait set, and will take what comes there. */
static struct kvb_session *pop_or_idle(struct kvb_group *group, bool *ret_watched)
{
	struct kvb_session *session;

	pthread_mutex_lock(&group->lock);
	session = group->queue_head;
	if (session) {
		kvb_store_relaxed(&group->queue_head, session->run_next);
		if (!group->queue_head)
			group->queue_tail = NULL;
	} else {
		group->n_idle++;
	}
	*ret_watched = group->n_idle > group->n_waked;
	pthread_mutex_unlock(&group->lock);
	return session;
}

static void leave_idle(struct kvb_group *group)
{
	pthread_mutex_lock(&group->lock);
	group->n_idle--;
	pthread_mutex_unlock(&group->lock);
}

static void take_wake(struct kvb_group *group)
{
	eventfd_t one;

	/* Several workers may see one ring; one of them gets it. */
	if (eventfd_read(group->wake_fd, &one) < 0)
		return;
	pthread_mutex_lock(&group->lock);
	group->n_waked--;
	pthread_mutex_unlock(&group->lock);
}

/* Takes the caller's reference. */
static void kick(struct kvb_session *session, enum wakes wakes)
{
	uint32_t run = kvb_load_relaxed(&session->run);

	for (;;) {
		uint32_t next = run == KVB_RUN_IDLE ? KVB_RUN_QUEUED
			: run == KVB_RUN_RUNNING    ? KVB_RUN_AGAIN
						    : run;
		/* Also when the word stays as it is: whoever takes it from here sees all that
		 * happened before this kick. Pairs with the exchange in serve(). */
		if (!kvb_compare_exchange(&session->run, &run, next))
			continue;
		if (run == KVB_RUN_IDLE)
			push(session->group, session, wakes);
		else
			kvb_session_put(session);
		return;
	}
}

bool kvb_group_others_wait(const struct kvb_group *group)
{
	return kvb_load_relaxed(&group->queue_head) != NULL;
}

void kvb_session_wake(struct kvb_session *session)
{
	struct kvb_session *held =
		kvb_session_get(&session->server->sessions, kvb_session_own_id(session));

	if (held)
		kick(held, WAKES_ALWAYS);
}

/* -------------------------------------------------------------------------------- the worker's loop */

static void serve(struct kvb_worker *worker, struct kvb_session *session)
{
	struct kvb_server *server = worker->group->server;
	uint32_t running = KVB_RUN_RUNNING;
	enum kvb_visit visit;

	/* Pairs with the compare-exchange in kick(), and with the last worker's below. */
	(void)kvb_exchange(&session->run, (uint32_t)KVB_RUN_RUNNING);
	kvb_store_relaxed(&worker->serving_ns, kvb_now_ns());
	kvb_store_relaxed(&worker->serving, kvb_session_own_id(session));
	kvb_watchdog_busy(&server->watchdog, &worker->ringer);
	kvb_count(&server->counters.visits, 1);
	visit = kvb_execute(worker, session);
	kvb_watchdog_idle(&worker->ringer);
	kvb_store_relaxed(&worker->serving, (uint64_t)0);

	if (visit == KVB_VISIT_DONE &&
		kvb_compare_exchange(&session->run, &running, (uint32_t)KVB_RUN_IDLE)) {
		kvb_session_put(session);
		return;
	}
	(void)kvb_exchange(&session->run, (uint32_t)KVB_RUN_QUEUED);
	/* A spinning session stays with whoever is awake. */
	push(worker->group, session, visit == KVB_VISIT_SPIN ? WAKES_NEVER : WAKES_BEHIND_OTHERS);
}

static void handle_kick(struct kvb_group *group, uint64_t id)
{
	struct kvb_session *session;

	kvb_hook(KVB_HOOK_EVENT_TAKEN, (uint32_t)id);
	session = kvb_session_get(&group->server->sessions, id);
	if (!session)
		return;
	kvb_count(&group->server->counters.kicks, 1);
	kick(session, WAKES_BEHIND_OTHERS);
}

/* With a timeout of 0 the worker is not idle: a wake that it finds is meant for one that is. */
static void harvest(struct kvb_group *group, int timeout_ms)
{
	struct epoll_event events[EVENTS_MAX];
	int n = epoll_wait(group->epoll_fd, events, EVENTS_MAX, timeout_ms);

	if (timeout_ms != 0)
		leave_idle(group);
	for (int i = 0; i < n; i++) {
		if (events[i].data.u64 == EVENT_WAKE) {
			if (timeout_ms != 0)
				take_wake(group);
		} else if (events[i].data.u64 != EVENT_QUIESCE) {
			handle_kick(group, events[i].data.u64);
		}
	}
}

/* The worker holds no session and no event here. */
static void quiescent_point(struct kvb_worker *worker)
{
	/* Pairs with the release store in kvb_group_grace_begin(). */
	uint64_t wanted = kvb_load_acquire(&worker->group->grace_wanted);

	if (kvb_load_relaxed(&worker->grace_seen) == wanted)
		return;
	/* Pairs with the acquire load in kvb_group_grace_passed(): all this worker did is done. */
	kvb_store_release(&worker->grace_seen, wanted);
	kvb_server_notify(worker->group->server);
}

static void work(struct kvb_worker *worker)
{
	struct kvb_group *group = worker->group;
	uint64_t harvested_ns = 0;
	uint32_t visits = 0;

	while (!kvb_load_acquire(&group->stop)) {
		struct kvb_session *session;
		bool watched;

		quiescent_point(worker);
		session = pop_or_idle(group, &watched);
		if (!session) {
			harvest(group, -1);
			visits = 0;
			continue;
		}
		serve(worker, session);
		if (watched)
			continue;
		if (++visits < HARVEST_VISITS && kvb_now_ns() - harvested_ns < HARVEST_NS)
			continue;
		harvest(group, 0);
		harvested_ns = kvb_now_ns();
		visits = 0;
	}
}

static void *worker_main(void *arg)
{
	struct kvb_worker *worker = arg;
	struct kvb_server *server = worker->group->server;

	if (server->numa.n_nodes > 1 && kvb_numa_pin_self(&server->numa, worker->group->node) < 0)
		kvb_log(&server->log, KVB_LOG_WARN, "%s cannot be pinned to node %d", worker->name,
			worker->group->node);
	kvb_watchdog_join(&server->watchdog, &worker->ringer, worker->name);
	work(worker);
	kvb_watchdog_leave(&server->watchdog, &worker->ringer);
	return NULL;
}

/* ---------------------------------------------------------------------------------- grace periods */

uint64_t kvb_group_grace_begin(struct kvb_group *group)
{
	uint64_t grace_id = kvb_load_relaxed(&group->grace_wanted) + 1;

	/* Orders EPOLL_CTL_DEL and all else control did before; pairs with quiescent_point(). */
	kvb_store_release(&group->grace_wanted, grace_id);
	group->pause_ns = GRACE_RAISED_NS;
	group->turn_ns = 0;
	return grace_id;
}

bool kvb_group_grace_passed(struct kvb_group *group, uint64_t grace_id)
{
	for (uint32_t i = 0; i < group->n_workers; i++)
		/* Pairs with the release store in quiescent_point(). */
		if (kvb_load_acquire(&group->workers[i].grace_seen) < grace_id)
			return false;
	return true;
}

static void raise_wake(struct kvb_group *group, bool raised)
{
	eventfd_t value;

	if (group->raised == raised)
		return;
	group->raised = raised;
	if (raised)
		(void)eventfd_write(group->quiesce_fd, 1);
	else
		(void)eventfd_read(group->quiesce_fd, &value);
}

/*
 * The wake is level-triggered, since an edge would reach one worker only. Workers that have passed
 * spin on it while one is busy, so it is lowered after a while and raised again later.
 */
uint64_t kvb_group_grace_turn(struct kvb_group *group, uint64_t now_ns)
{
	if (kvb_group_grace_passed(group, kvb_load_relaxed(&group->grace_wanted))) {
		raise_wake(group, false);
		return UINT64_MAX;
	}
	if (now_ns < group->turn_ns)
		return group->turn_ns;
	/* A grace period that has just begun raises it, or keeps it raised. */
	raise_wake(group, group->turn_ns == 0 || !group->raised);
	if (group->raised) {
		group->turn_ns = now_ns + GRACE_RAISED_NS;
	} else {
		group->turn_ns = now_ns + group->pause_ns;
		group->pause_ns = kvb_min_u64(2 * group->pause_ns, GRACE_PAUSE_MAX);
	}
	return group->turn_ns;
}

/* ---------------------------------------------------------------------------- wait sets and groups */

int kvb_group_watch(struct kvb_group *group, struct kvb_session *session)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLET};

	event.data.u64 = kvb_session_own_id(session);
	return epoll_ctl(group->epoll_fd, EPOLL_CTL_ADD, session->kick_fd, &event) < 0 ? -errno : 0;
}

void kvb_group_unwatch(struct kvb_group *group, struct kvb_session *session)
{
	(void)epoll_ctl(group->epoll_fd, EPOLL_CTL_DEL, session->kick_fd, NULL);
}

struct kvb_group *kvb_workers_group(struct kvb_workers *workers, int node)
{
	for (uint32_t i = 0; i < workers->n_groups; i++)
		if (workers->groups[i].node == node)
			return &workers->groups[i];
	return &workers->groups[0];
}

const struct kvb_worker *kvb_workers_find(struct kvb_workers *workers, uint64_t session_id)
{
	for (uint32_t g = 0; g < workers->n_groups; g++) {
		struct kvb_group *group = &workers->groups[g];
		for (uint32_t i = 0; i < group->n_workers; i++)
			if (kvb_load_relaxed(&group->workers[i].serving) == session_id)
				return &group->workers[i];
	}
	return NULL;
}

/* An eventfd that nobody else holds, level-triggered in the group's set. */
static int own_event(struct kvb_group *group, int flags, uint64_t data, int *ret_fd)
{
	struct epoll_event event = {.events = EPOLLIN};
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | flags);

	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	event.data.u64 = data;
	return epoll_ctl(group->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static int group_init(struct kvb_group *group, struct kvb_server *server, int node, uint32_t n)
{
	int r;

	*group = (struct kvb_group){
		.server = server, .node = node, .epoll_fd = -1, .wake_fd = -1, .quiesce_fd = -1};
	pthread_mutex_init(&group->lock, NULL);
	group->workers = calloc(n, sizeof(*group->workers));
	if (!group->workers)
		return -ENOMEM;
	group->n_workers = n;
	group->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (group->epoll_fd < 0)
		return -errno;
	r = own_event(group, EFD_SEMAPHORE, EVENT_WAKE, &group->wake_fd);
	if (r == 0)
		r = own_event(group, 0, EVENT_QUIESCE, &group->quiesce_fd);
	return r;
}

/* first: the number of the group's first worker. */
static int group_start(struct kvb_group *group, uint32_t first)
{
	for (uint32_t i = 0; i < group->n_workers; i++) {
		struct kvb_worker *worker = &group->workers[i];
		worker->group = group;
		snprintf(worker->name, sizeof(worker->name), "kvb-worker-%u", (first + i) % 1000);
		int r = kvb_thread_start(&worker->thread, worker->name, worker_main, worker);
		if (r < 0)
			return r;
		worker->started = true;
	}
	return 0;
}

int kvb_workers_start(struct kvb_workers *workers, struct kvb_server *server)
{
	uint32_t n_groups = (uint32_t)server->numa.n_nodes;
	uint32_t wanted = server->options.workers, started = 0;
	int r = 0;

	if (wanted < n_groups)
		kvb_log(&server->log, KVB_LOG_INFO,
			"%u workers are started and not %u: each of the NUMA nodes in use needs one",
			n_groups, wanted);

	workers->groups = calloc(n_groups, sizeof(*workers->groups));
	if (!workers->groups)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_groups && r == 0; i++) {
		/* The first nodes have what does not divide. */
		uint32_t n = wanted / n_groups + (i < wanted % n_groups);
		n = n > 0 ? n : 1;
		workers->n_groups = i + 1;
		r = group_init(&workers->groups[i], server, server->numa.nodes[i], n);
		if (r == 0)
			r = group_start(&workers->groups[i], started);
		started += n;
	}
	if (r < 0) {
		kvb_workers_stop(workers);
		kvb_workers_free(workers);
	}
	return r;
}

static void group_stop(struct kvb_group *group)
{
	/* Pairs with the acquire load in work(). Nobody takes the ring out of quiesce_fd any
	 * more, so it reaches every worker. */
	kvb_store_release(&group->stop, 1u);
	if (group->quiesce_fd >= 0)
		(void)eventfd_write(group->quiesce_fd, 1);
	for (uint32_t i = 0; i < group->n_workers; i++) {
		if (group->workers[i].started)
			pthread_join(group->workers[i].thread, NULL);
		group->workers[i].started = false;
	}
}

void kvb_workers_stop(struct kvb_workers *workers)
{
	for (uint32_t i = 0; i < workers->n_groups; i++)
		group_stop(&workers->groups[i]);
}

void kvb_workers_free(struct kvb_workers *workers)
{
	for (uint32_t i = 0; i < workers->n_groups; i++) {
		struct kvb_group *group = &workers->groups[i];
		kvb_fd_close(&group->quiesce_fd);
		kvb_fd_close(&group->wake_fd);
		kvb_fd_close(&group->epoll_fd);
		free(group->workers);
		pthread_mutex_destroy(&group->lock);
	}
	free(workers->groups);
	*workers = (struct kvb_workers){0};
}
