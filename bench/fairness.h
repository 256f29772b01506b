/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fairness.h - what a flood of large puts costs another client's small gets. Main thread, in a
 * process that has no other.
 */
#ifndef KVB_BENCH_FAIRNESS_H
#define KVB_BENCH_FAIRNESS_H

#include <stdint.h>

#include "bench/histogram.h"
#include "bench/placement.h"

#define KVB_FAIRNESS_GET   (4 * KVB_KIB)
#define KVB_FAIRNESS_FLOOD (64 * KVB_MIB)

struct kvb_fairness {
	struct kvb_histogram idle_ns, flooded_ns; /* gets, by what the neighbour did */
	struct kvb_histogram flood_ns;            /* puts of the neighbour */
	uint32_t fragment_bytes;
};

/* In rounds that alternate, `seconds` of each kind, with a server of `workers`. `flags`: of the client
 * that gets, as for kvb_open(). 0; -errno, and it has said why. */
int kvb_fairness_measure(const struct kvb_placement *placement, uint32_t workers, uint32_t flags,
	double seconds, struct kvb_fairness *ret_fairness);

#endif /* KVB_BENCH_FAIRNESS_H */
