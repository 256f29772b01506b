/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.h - how fast a batch of items goes through as one ticket. Main thread.
 */
#ifndef KVB_BENCH_BATCH_H
#define KVB_BENCH_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/run.h"

struct kvb_batch {
	struct kvb_client *client;
	struct kvb_item *items;
	size_t n;
	bool gets; /* and not puts */
};

/* Submits it, and waits for its end. 0; -errno of the ticket, or its first item that failed. */
int kvb_batch_once(const struct kvb_batch *batch);
/* The same over and over: GB/s of all items together, of whole batches. 0; -errno, and it has said
 * why. */
int kvb_batch_measure(
	struct kvb_run *run, const struct kvb_batch *batch, const char *name, const char *limit);

#endif /* KVB_BENCH_BATCH_H */
