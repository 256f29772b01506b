/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - the server as a whole: its configuration, its parts, its start and its stop.
 */
#ifndef KVB_SERVER_SERVER_H
#define KVB_SERVER_SERVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/bells.h"
#include "server/control.h"
#include "server/door.h"
#include "server/drain.h"
#include "server/life.h"
#include "server/log.h"
#include "server/pool.h"
#include "server/rundir.h"
#include "server/session.h"
#include "server/store.h"
#include "server/watchdog.h"
#include "server/worker.h"
#include "shm/numa.h"

#define KVB_IDS_MAX 64u

#define KVB_TEXT_OF(number)  #number
#define KVB_TEXT_FOR(number) KVB_TEXT_OF(number)
#define KVB_SERVER_VERSION              \
	KVB_TEXT_FOR(KVB_VERSION_MAJOR) \
	"." KVB_TEXT_FOR(KVB_VERSION_MINOR) "." KVB_TEXT_FOR(KVB_VERSION_PATCH)

/* Uids or gids named by one option. */
struct kvb_id_list {
	uint32_t ids[KVB_IDS_MAX];
	uint32_t count;
};

struct kvb_server_config {
	const char *dir; /* NULL: the default directory */
	uint64_t pool_bytes;
	uint64_t staging_bytes;
	uint32_t fragment_bytes;
	uint32_t ring_entries; /* power of two; SQ and CQ, hence the credit */
	uint32_t sessions_max;
	uint32_t objects_max; /* 0: by the pool's size */
	uint64_t open_max;    /* bytes in open PUTs of one session; 0: half the pool */
	uint32_t workers;     /* 0: by the number of CPUs */
	uint32_t low_percent, high_percent;
	uint32_t transfer_timeout_ms;
	uint32_t drain_timeout_ms;
	uint32_t start_wait_ms;
	bool populate_require;
	struct kvb_id_list trust_uids, trust_gids, allow_uids, allow_gids;
	int watchdog_signal; /* 0: SIGRTMIN + 7 */
	int cancel_fd;       /* readable: give the start up; -1: none */
	struct kvb_log log;
};

void kvb_server_config_init(struct kvb_server_config *config);
/* 0; -EINVAL, logged with the remedy. */
int kvb_server_config_check(struct kvb_server_config *config);

/* Counters that only grow; written with kvb_count() by any thread. */
struct kvb_counters {
	uint64_t puts, put_bytes, put_aborts;
	uint64_t gets, get_bytes, get_misses;
	uint64_t exists, exists_hits, deletes, nops;
	uint64_t transfers_expired;
	uint64_t bells_rung, bells_suppressed, bells_full, bells_blocked;
	uint64_t kicks, visits, missed_wakes;
	uint64_t sessions_total, sessions_refused, sessions_failed;
	uint64_t control_requests, control_replies, control_dropped;
};

/* Gauges; written by the control thread, read by any. */
struct kvb_gauges {
	uint64_t sessions_active, sessions_ending, sessions_quarantined;
	uint64_t session_bytes; /* shared memory of all sessions */
};

struct kvb_server {
	struct kvb_server_config config;
	struct kvb_log log;
	uint8_t boot_id[KVB_ID_BYTES];
	uint64_t start_ns;
	struct kvb_numa numa;

	struct kvb_rundir rundir;
	struct kvb_life life;
	struct kvb_pool pool;
	struct kvb_store *store;
	struct kvb_sessions sessions;
	struct kvb_workers workers;
	struct kvb_watchdog watchdog;
	struct kvb_control control;
	struct kvb_door door;
	struct kvb_drain drain;
	struct kvb_ringer control_ringer;

	struct kvb_counters counters;
	struct kvb_gauges gauges;

	int output_fd;     /* eventfd: any thread wakes the control thread with it */
	uint32_t draining; /* atomic: requests that open new work get -ESHUTDOWN */
	uint32_t stop;     /* atomic: somebody asked for the drain */

	pthread_t control_thread;
	bool control_started;
	pthread_mutex_t state_lock; /* guards the two below, with state_changed */
	pthread_cond_t state_changed;
	int start_result; /* 1 while the control thread has not said */
	int stop_result;  /* 1 while it runs; 0 stopped; -ETIMEDOUT stuck at the deadline */
	int stop_fd;      /* eventfd: readable once there is a stop_result */
	int fault;        /* atomic: -errno that made the server stop by itself; 0 */
};

/*
 * Starts all threads and returns when the door is open. All signals are blocked in the threads it
 * makes. 0; -errno, logged.
 */
int kvb_server_start(const struct kvb_server_config *config, struct kvb_server **ret_server);

/* Begins the drain; returns at once. Any thread. */
void kvb_server_stop_begin(struct kvb_server *server);
/*
 * Waits until the server has stopped. 0; -ETIMEDOUT work was still in flight at the drain deadline: its
 * descriptors stay open and the culprit is in the log; may be called again.
 */
int kvb_server_stop_wait(struct kvb_server *server);
/* Readable when kvb_server_stop_wait() would return at once. The server keeps it. */
int kvb_server_stop_fd(struct kvb_server *server);
/* Only after kvb_server_stop_wait() returned 0. */
void kvb_server_free(struct kvb_server *server);

/* Drains the server, since it cannot go on: `error` is why. Any thread. */
void kvb_server_fail(struct kvb_server *server, int error);
/* Control thread, once. */
void kvb_server_set_start_result(struct kvb_server *server, int result);
/* Wakes the control thread. Any thread. */
void kvb_server_notify(struct kvb_server *server);
bool kvb_server_is_draining(struct kvb_server *server);
/* Tells kvb_server_stop_wait() how it ended, or that it is stuck. Control thread. */
void kvb_server_set_stop_result(struct kvb_server *server, int result);

#endif /* KVB_SERVER_SERVER_H */
