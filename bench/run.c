/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - see run.h.
 *
 * Owns the line of progress; main thread. It must never draw while something is measured.
 */
#include "bench/run.h"

#include <stdio.h>
#include <string.h>

#include "client/full.h"
#include "shm/util.h"

#define FULL_NS (60 * KVB_NS_PER_S)

int kvb_run_fail(const char *what, int r)
{
	fprintf(stderr, "kvbell-bench: %s: %s\n", what, kvb_strerror(r));
	return r;
}

int kvb_run_fail_machine(const char *what, int r)
{
	fprintf(stderr, "kvbell-bench: %s: %s\n", what, strerror(-r));
	return r;
}

bool kvb_run_begin(struct kvb_run *run, const char *name)
{
	if (run->planning) {
		run->planned++;
		return false;
	}
	if (run->progress.enabled)
		kvb_progress_draw(&run->progress, run->begun, run->planned, name);
	run->begun++;
	return true;
}

void kvb_run_add(struct kvb_run *run, const char *name, const struct kvb_histogram *took_ns,
	struct kvb_scale scale, const char *limit)
{
	kvb_progress_clear(&run->progress);
	kvb_results_add(&run->results, name, took_ns, scale, limit, run->quiet);
}

int kvb_run_serve(struct kvb_run *run, const struct kvb_own_server_options *options,
	struct kvb_own_server *ret_server)
{
	struct kvb_own_server_options placed = *options;
	int r;

	placed.cpus = kvb_server_cpus(&run->placement);
	r = kvb_own_server_start(ret_server, &placed);
	return r < 0 ? kvb_run_fail("starting a server", r) : 0;
}

int kvb_run_connect(struct kvb_run *run, const struct kvb_own_server *server,
	const struct kvb_options *options, struct kvb_client **ret_client)
{
	struct kvb_options all = *options;
	struct kvb_progress silent = {0};
	struct kvb_client *client;
	int r;

	all.dir = server->dir;
	all.name = "kvbell-bench";
	r = kvb_open(&all, &client);
	if (r < 0)
		return kvb_run_fail("opening a client", r);
	r = kvb_wait_full(client, kvb_now_ns() + FULL_NS, &silent);
	if (r < 0)
		kvb_run_fail("waiting for the server's pool", r);
	else
		r = kvb_check_placement(&run->placement, server->pid);
	if (r < 0)
		kvb_close(client);
	else
		*ret_client = client;
	return r;
}
