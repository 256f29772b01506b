/* SPDX-License-Identifier: Apache-2.0 */
/*
 * histogram.c - see histogram.h. Owns nothing; whoever holds the histogram.
 */
#include "bench/histogram.h"

#include "shm/util.h"

/* Values below SUB have a step each; above, the step is 1/SUB of the value's power of two. */
static uint32_t step_of(uint64_t value)
{
	uint32_t shift;

	if (value < KVB_HISTOGRAM_SUB)
		return (uint32_t)value;
	shift = 63u - (uint32_t)__builtin_clzll(value) - 5u;
	return shift * KVB_HISTOGRAM_SUB + (uint32_t)(value >> shift);
}

/* The greatest value of a step. */
static uint64_t step_end(uint32_t step)
{
	uint32_t shift;

	if (step < 2 * KVB_HISTOGRAM_SUB)
		return step;
	shift = step / KVB_HISTOGRAM_SUB - 1;
	return (((uint64_t)(step % KVB_HISTOGRAM_SUB) + KVB_HISTOGRAM_SUB + 1) << shift) - 1;
}

void kvb_histogram_add(struct kvb_histogram *histogram, uint64_t value)
{
	histogram->steps[step_of(value)]++;
	histogram->count++;
	histogram->sum += value;
}

void kvb_histogram_merge(struct kvb_histogram *into, const struct kvb_histogram *from)
{
	into->count += from->count;
	into->sum += from->sum;
	for (uint32_t i = 0; i < KVB_ARRAY_SIZE(into->steps); i++)
		into->steps[i] += from->steps[i];
}

uint64_t kvb_histogram_quantile(const struct kvb_histogram *histogram, double share)
{
	uint64_t below = 0;

	for (uint32_t i = 0; i < KVB_ARRAY_SIZE(histogram->steps); i++) {
		below += histogram->steps[i];
		if (below > 0 && (double)below >= share * (double)histogram->count)
			return step_end(i);
	}
	return 0;
}
