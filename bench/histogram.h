/* SPDX-License-Identifier: Apache-2.0 */
/*
 * histogram.h - how long things took: log-linear, so that every quantile is right within 1/32.
 * Plain memory without pointers, so it may lie in shared memory; one writer at a time.
 */
#ifndef KVB_BENCH_HISTOGRAM_H
#define KVB_BENCH_HISTOGRAM_H

#include <stdint.h>

#define KVB_HISTOGRAM_SUB 32u /* steps per power of two */

struct kvb_histogram {
	uint64_t count;
	uint64_t sum;
	uint64_t steps[60 * KVB_HISTOGRAM_SUB];
};

void kvb_histogram_add(struct kvb_histogram *histogram, uint64_t value);
void kvb_histogram_merge(struct kvb_histogram *into, const struct kvb_histogram *from);
/* The least value that at least `share` (0 to 1) of all values do not exceed, rounded up by 1/32 at
 * most; 0 when there are none. */
uint64_t kvb_histogram_quantile(const struct kvb_histogram *histogram, double share);

#endif /* KVB_BENCH_HISTOGRAM_H */
