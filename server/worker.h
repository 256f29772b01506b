/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.h - the threads that execute requests and ring bells, in groups per NUMA node.
 */
#ifndef KVB_SERVER_WORKER_H
#define KVB_SERVER_WORKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/bells.h"
#include "shm/numa.h"

struct kvb_server;
struct kvb_session;

#define KVB_WORKERS_MAX 256u

struct kvb_worker {
	struct kvb_group *group;
	pthread_t thread;
	bool started;
	char name[16];
	struct kvb_ringer ringer;
	uint64_t grace_seen; /* atomic: the last grace period it has passed a quiescent point of */
	uint64_t serving;    /* atomic: id of the session it is in; 0: none */
	uint64_t serving_ns; /* atomic: since when */
};

struct kvb_group {
	struct kvb_server *server;
	int node;
	int epoll_fd;
	int wake_fd; /* counts workers to be woken, one each */
	struct kvb_worker *workers;
	uint32_t n_workers;
	uint32_t stop; /* atomic */

	/* Grace periods; control asks, workers pass. */
	int quiesce_fd;        /* readable while control wants every worker to pass */
	uint64_t grace_wanted; /* atomic */
	bool raised;           /* control */
	uint64_t turn_ns;      /* control: when to raise or lower next */
	uint64_t pause_ns;     /* control: how long it stays lowered */

	pthread_mutex_t lock;           /* guards what follows */
	struct kvb_session *queue_head; /* also read without the lock, as a hint */
	struct kvb_session *queue_tail;
	uint32_t n_idle;  /* workers that found the queue empty */
	uint32_t n_waked; /* rings in wake_fd that nobody has taken yet */
};

struct kvb_workers {
	struct kvb_group *groups;
	uint32_t n_groups;
};

/* Starts all workers. 0; -errno, and none is running. */
int kvb_workers_start(struct kvb_workers *workers, struct kvb_server *server);
/* Joins all workers; the run queues must be empty. */
void kvb_workers_stop(struct kvb_workers *workers);
void kvb_workers_free(struct kvb_workers *workers);

/* The group of a NUMA node, or any if it has none. */
struct kvb_group *kvb_workers_group(struct kvb_workers *workers, int node);

/* Control: puts a session's kick into its group's wait set, and takes it out. */
int kvb_group_watch(struct kvb_group *group, struct kvb_session *session);
void kvb_group_unwatch(struct kvb_group *group, struct kvb_session *session);

/* Says that there may be work in a session; nothing happens when its slot has been given up.
 * Control. */
void kvb_session_wake(struct kvb_session *session);

/*
 * Control: begins a grace period and returns its number. It has passed once every worker of the
 * group has been at a point where it holds nothing it learned before.
 */
uint64_t kvb_group_grace_begin(struct kvb_group *group);
bool kvb_group_grace_passed(struct kvb_group *group, uint64_t grace_id);
/* Control, at every turn of its loop: raises and lowers the workers' wake. Returns when it wants
 * to be called next, or UINT64_MAX. */
uint64_t kvb_group_grace_turn(struct kvb_group *group, uint64_t now_ns);

/* Whether sessions wait for a worker. A hint, for one that is in a session. */
bool kvb_group_others_wait(const struct kvb_group *group);

/* The worker that is in this session, or NULL. A hint for the log. */
const struct kvb_worker *kvb_workers_find(struct kvb_workers *workers, uint64_t session_id);

#endif /* KVB_SERVER_WORKER_H */
