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

#include "kvbell/server.h"
#include "server/bells.h"
#include "server/control.h"
#include "server/door.h"
#include "server/drain.h"
#include "server/handler.h"
#include "server/handler_pool.h"
#include "server/inflight.h"
#include "server/life.h"
#include "server/log.h"
#include "server/pool.h"
#include "server/reply.h"
#include "server/rundir.h"
#include "server/session.h"
#include "server/store.h"
#include "server/watchdog.h"
#include "server/worker.h"
#include "shm/numa.h"

#define KVB_TEXT_OF(number)  #number
#define KVB_TEXT_FOR(number) KVB_TEXT_OF(number)
#define KVB_SERVER_VERSION              \
	KVB_TEXT_FOR(KVB_VERSION_MAJOR) \
	"." KVB_TEXT_FOR(KVB_VERSION_MINOR) "." KVB_TEXT_FOR(KVB_VERSION_PATCH)

#define KVB_SPIN_US_MAX 1000000u

/* Fills in what follows from other options. 0; -EINVAL, logged with the remedy. */
int kvb_options_check(struct kvb_server_options *options);
/* 0; -EMFILE, logged with the remedy. */
int kvb_options_check_files(const struct kvb_server_options *options);

/* Counters that only grow; written with kvb_count() by any thread. */
struct kvb_counters {
	uint64_t puts, put_bytes, put_aborts, puts_present;
	uint64_t gets, get_bytes, get_misses;
	uint64_t exists, exists_hits, deletes, nops;
	uint64_t transfers_expired;
	uint64_t bells_rung, bells_suppressed, bells_full, bells_blocked;
	uint64_t kicks, visits, spins, missed_wakes;
	uint64_t sessions_total, sessions_refused, sessions_failed;
	uint64_t control_requests, control_replies, control_dropped, control_submitted;
	uint64_t calls, calls_refused, calls_timed_out, calls_late;
};

/* Gauges; written by the control thread, read by any. */
struct kvb_gauges {
	uint64_t sessions_active, sessions_ending, sessions_quarantined;
	uint64_t sessions_revoked; /* ended, and their clients may still hold leases */
	uint64_t session_bytes;    /* shared memory of all sessions */
	uint64_t calls_in_flight;  /* of BLOCKING handlers, those that have timed out included */
	uint64_t replies_waiting;  /* that ZMQ has not taken yet */
};

struct kvb_server {
	struct kvb_server_options options;
	char dir[256]; /* options.dir points here */
	struct kvb_log log;
	bool started; /* kvb_server_start() was called */
	uint8_t boot_id[KVB_ID_BYTES];
	uint64_t start_ns;
	struct kvb_numa numa;
	uint32_t visit_requests; /* most of one visit; a fragment's bytes end it as well */

	struct kvb_rundir rundir;
	struct kvb_life life;
	struct kvb_pool pool;
	struct kvb_store *store;
	struct kvb_sessions sessions;
	struct kvb_workers workers;
	struct kvb_watchdog watchdog;
	struct kvb_handlers handlers;
	struct kvb_handler_pools handler_pools;
	struct kvb_inflight inflight;
	struct kvb_outboxes outboxes;
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
