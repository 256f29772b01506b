/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.h - one run of the bench: what all its suites share. Main thread.
 */
#ifndef KVB_BENCH_RUN_H
#define KVB_BENCH_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/histogram.h"
#include "bench/placement.h"
#include "bench/results.h"
#include "bench/server.h"
#include "client/terminal.h"
#include "kvbell/kvbell.h"

struct kvb_run {
	struct kvb_placement placement;
	double seconds; /* of each measurement */
	bool quiet;     /* no lines; the results are shown at the end */
	struct kvb_results results;

	bool planning; /* nothing is measured, only counted */
	unsigned planned, begun;
	struct kvb_progress progress;
};

/* Say on stderr what failed, and return r: of kvbell, or of the machine. */
int kvb_run_fail(const char *what, int r);
int kvb_run_fail_machine(const char *what, int r);

/*
 * Before each measurement; false: there is none, only a plan. What is drawn here stays while it
 * lasts, since drawing would disturb it.
 */
bool kvb_run_begin(struct kvb_run *run, const char *name);
/* See kvb_results_add(). */
void kvb_run_add(struct kvb_run *run, const char *name, const struct kvb_histogram *took_ns,
	struct kvb_scale scale, const char *limit);

/* Starts a server where the run's servers belong. 0; -errno, and it has said why. */
int kvb_run_serve(struct kvb_run *run, const struct kvb_own_server_options *options,
	struct kvb_own_server *ret_server);
/* Opens a client with these options, but the server's directory; waits until the server has all of
 * its pool, and checks where everything runs. 0; -errno, and it has said why. */
int kvb_run_connect(struct kvb_run *run, const struct kvb_own_server *server,
	const struct kvb_options *options, struct kvb_client **ret_client);

#endif /* KVB_BENCH_RUN_H */
