/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results.h - what the bench measured: each figure beside the limit of the machine that it is to be
 * judged by.
 */
#ifndef KVB_BENCH_RESULTS_H
#define KVB_BENCH_RESULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/histogram.h"
#include "bench/placement.h"

#define KVB_RESULTS_MAX  256u
#define KVB_LEFT_OUT_MAX 32u

enum kvb_unit {
	KVB_UNIT_US,      /* microseconds of one operation; less is better */
	KVB_UNIT_NS,      /* nanoseconds of one operation */
	KVB_UNIT_NS_KEY,  /* nanoseconds per key of one operation on many */
	KVB_UNIT_GBPS,    /* 10^9 bytes per second of one operation; more is better */
	KVB_UNIT_PERCENT, /* of one core; a single figure */
};

/* How nanoseconds become a figure. */
struct kvb_scale {
	enum kvb_unit unit;
	uint64_t per; /* GBPS: bytes of one operation; NS_KEY: its keys */
};
#define KVB_SCALE_US           ((struct kvb_scale){KVB_UNIT_US, 0})
#define KVB_SCALE_NS           ((struct kvb_scale){KVB_UNIT_NS, 0})
#define KVB_SCALE_NS_KEY(keys) ((struct kvb_scale){KVB_UNIT_NS_KEY, keys})
#define KVB_SCALE_GBPS(bytes)  ((struct kvb_scale){KVB_UNIT_GBPS, bytes})

struct kvb_result {
	char name[48];
	enum kvb_unit unit;
	uint64_t n;
	/* Of the operations by the time they took: with GB/s, p99 is what the slowest hundredth
	 * stays below. */
	double p50, p99, p999, max;
	char limit_name[48]; /* "" it is a limit itself */
	bool tail;           /* p99 is judged, and not p50 */
	double limit, ratio; /* ours to the limit: of times, or of bandwidths */
};

/* What was asked for, and could not be measured. */
struct kvb_left_out {
	char name[48], why[96];
};

struct kvb_results {
	struct kvb_result of[KVB_RESULTS_MAX];
	unsigned count;
	struct kvb_left_out left_out[KVB_LEFT_OUT_MAX];
	unsigned n_left_out;
};

/*
 * Adds what a histogram of nanoseconds says. `limit`: the name of a result that was added before, in
 * a unit of the same size; NULL: none. Prints the line, unless `quiet`.
 */
void kvb_results_add(struct kvb_results *results, const char *name,
	const struct kvb_histogram *took_ns, struct kvb_scale scale, const char *limit, bool quiet);
/* The same, of microseconds, with a limit that is a figure of its own: what p99 is to stay below. */
void kvb_results_add_tail(struct kvb_results *results, const char *name,
	const struct kvb_histogram *took_ns, const char *limit_name, double limit, bool quiet);
/* A single figure, found while the client did something n times. */
void kvb_results_add_percent(
	struct kvb_results *results, const char *name, uint64_t n, double percent, bool quiet);
/* Nothing is missing from the results without a word. */
void kvb_results_leave_out(
	struct kvb_results *results, const char *name, const char *why, bool quiet);
/* NULL when it was not measured. */
const struct kvb_result *kvb_results_find(const struct kvb_results *results, const char *name);
void kvb_results_print_head(void);
/* The whole as JSON on stdout, with where it was measured. 0; -errno. */
int kvb_results_print_json(const struct kvb_results *results, const char *suite,
	const struct kvb_placement *placement);

#endif /* KVB_BENCH_RESULTS_H */
