/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timer.h - timing what takes no longer than reading the clock. Owns nothing; any thread.
 *
 * Each operation is timed for itself, so that its quantiles are its own, and the clock's cost is
 * subtracted: the median of what two readings with nothing between them are apart. The clock waits
 * for all loads before it, so that operations do not overlap as they may in a loop without it, and
 * what remains is the time until the answer is there. Whatever is judged by another figure is timed in
 * the same way.
 */
#ifndef KVB_BENCH_TIMER_H
#define KVB_BENCH_TIMER_H

#include <stdint.h>

#include "bench/histogram.h"
#include "shm/util.h"

static inline uint64_t kvb_timer_cost_ns(void)
{
	struct kvb_histogram apart_ns = {0};

	for (unsigned i = 0; i < 100000; i++) {
		uint64_t before_ns = kvb_now_ns();
		kvb_histogram_add(&apart_ns, kvb_now_ns() - before_ns);
	}
	return kvb_histogram_quantile(&apart_ns, 0.5);
}

static inline uint64_t kvb_timer_net(uint64_t took_ns, uint64_t timer_ns)
{
	return took_ns > timer_ns ? took_ns - timer_ns : 0;
}

#endif /* KVB_BENCH_TIMER_H */
