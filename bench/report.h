/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h - what the demo found out, and showing it.
 */
#ifndef KVB_BENCH_REPORT_H
#define KVB_BENCH_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/histogram.h"

enum kvb_demo_op { KVB_DEMO_EXISTS, KVB_DEMO_GET, KVB_DEMO_PUT, KVB_DEMO_OPS };

/* Of one engine, or of all. In shared memory: no pointers. */
struct kvb_demo_result {
	uint64_t requests;
	uint64_t asked;    /* chunks */
	uint64_t found;    /* in the longest known prefix, and loaded */
	uint64_t lost;     /* evicted between lookup and load */
	uint64_t stored;   /* chunks */
	uint64_t present;  /* chunks found there when they were to be stored */
	uint64_t unstored; /* chunks for which there was no room just then */
	uint64_t moved_bytes;
	uint64_t mismatches;
	struct kvb_histogram took[KVB_DEMO_OPS]; /* ns */
};

struct kvb_demo_report {
	struct kvb_demo_result all;
	uint64_t evicted;
	uint64_t asked;    /* reads that came to the server */
	const char *reads; /* "local", "ring": as in struct kvb_info */
	uint64_t wall_ns;
	unsigned engines;
	bool ordered;
};

void kvb_demo_result_merge(struct kvb_demo_result *into, const struct kvb_demo_result *from);
/* To stdout. 0; -errno it could not be written. */
int kvb_demo_report_print(const struct kvb_demo_report *report);
int kvb_demo_report_json(const struct kvb_demo_report *report);

#endif /* KVB_BENCH_REPORT_H */
