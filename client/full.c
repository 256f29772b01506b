/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full.c - see full.h.
 *
 * Owns nothing; main thread. It must never call a pool full that is not: a range that could not be
 * populated is a failure, not a longer wait.
 */
#include "client/full.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "shm/parse.h"
#include "shm/util.h"

#define POLL_MS 50

struct pool_state {
	uint64_t bytes;
	uint64_t ready;
	uint64_t failed;
};

static int see_pool(void *user, const struct kvb_stat *stat)
{
	struct pool_state *pool = user;

	if (strcmp(stat->name, "pool.bytes") == 0)
		pool->bytes = stat->value;
	else if (strcmp(stat->name, "pool.ready_bytes") == 0)
		pool->ready = stat->value;
	else if (strcmp(stat->name, "pool.failed_bytes") == 0)
		pool->failed = stat->value;
	return 0;
}

static void show_pool(struct kvb_progress *progress, const struct pool_state *pool)
{
	char ready[24], all[24], detail[64];

	if (!kvb_progress_due(progress))
		return;
	snprintf(detail, sizeof(detail), "%s of %s",
		kvb_format_size(ready, sizeof(ready), pool->ready),
		kvb_format_size(all, sizeof(all), pool->bytes));
	kvb_progress_draw(progress, pool->ready, pool->bytes, detail);
}

int kvb_wait_full(struct kvb_client *client, uint64_t deadline_ns, struct kvb_progress *progress)
{
	struct pool_state pool = {0};
	int r = kvb_stats(client, see_pool, &pool);

	while (r == 0 && pool.ready < pool.bytes && pool.failed == 0) {
		if (kvb_now_ns() >= deadline_ns)
			return -ETIMEDOUT;
		show_pool(progress, &pool);
		poll(NULL, 0, POLL_MS);
		r = kvb_stats(client, see_pool, &pool);
	}
	kvb_progress_clear(progress);
	return r == 0 && pool.failed > 0 ? -ENOMEM : r;
}
