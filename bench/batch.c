/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c - see batch.h. Owns nothing; main thread. It must never leave a ticket behind that still
 * uses its items.
 */
#include "bench/batch.h"

#include <errno.h>

#include "shm/util.h"

int kvb_batch_once(const struct kvb_batch *batch)
{
	struct kvb_completion done = {0};
	uint64_t ticket;
	int r = batch->gets
		? kvb_submit_get(batch->client, batch->items, batch->n, NULL, &ticket)
		: kvb_submit_put(batch->client, batch->items, batch->n, 0, NULL, &ticket);

	if (r == 0)
		r = kvb_wait(batch->client, ticket, 0, &done);
	return r < 0 ? r : done.result;
}

int kvb_batch_measure(
	struct kvb_run *run, const struct kvb_batch *batch, const char *name, const char *limit)
{
	struct kvb_histogram took_ns = {0};
	uint64_t bytes = 0, begin_ns, now_ns;
	int r;

	for (size_t i = 0; i < batch->n; i++)
		bytes += batch->items[i].size;
	/* Finds pages and keys that are not there yet. */
	r = kvb_batch_once(batch);
	begin_ns = now_ns = kvb_now_ns();
	while (r == 0 && (double)(now_ns - begin_ns) < run->seconds * 1e9) {
		uint64_t started_ns = kvb_now_ns();
		r = kvb_leave_wanted() ? -EINTR : kvb_batch_once(batch);
		now_ns = kvb_now_ns();
		kvb_histogram_add(&took_ns, now_ns - started_ns);
	}
	if (r < 0)
		return kvb_run_fail(name, r);
	kvb_run_add(run, name, &took_ns, KVB_SCALE_GBPS(bytes), limit);
	return 0;
}
