/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - a kvbelld of one's own, in a directory of its own. Main thread.
 */
#ifndef KVB_BENCH_SERVER_H
#define KVB_BENCH_SERVER_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct kvb_own_server {
	pid_t pid;
	char dir[64];
};

/* True when SIGINT or SIGTERM, which the caller has blocked, is waiting for it. */
bool kvb_leave_wanted(void);

struct kvb_own_server_options {
	const char *program;   /* NULL: the kvbelld of this build */
	const char *pool;      /* as for --pool */
	uint32_t spin_us;      /* as for --spin-us */
	uint32_t workers;      /* as for --workers; 0: its own choice */
	uint64_t max_objects;  /* as for --max-objects; 0: its own choice */
	const cpu_set_t *cpus; /* where it may run; NULL: as the caller */
};

/* Starts it and waits for its door. It dies with the caller. 0; -errno; -ECHILD it ended instead and has said why;
 * -EINTR kvb_leave_wanted(). */
int kvb_own_server_start(
	struct kvb_own_server *server, const struct kvb_own_server_options *options);
/* Drains it and removes its directory. Its exit status; 128 + signal; 0 it never started. */
int kvb_own_server_stop(struct kvb_own_server *server);

#endif /* KVB_BENCH_SERVER_H */
