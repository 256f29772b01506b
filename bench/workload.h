/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workload.h - what engines ask for: per request, the chunks of its prompt from the front.
 * A chunk's number stands for all tokens up to its end, so equal numbers mean equal prefixes.
 */
#ifndef KVB_BENCH_WORKLOAD_H
#define KVB_BENCH_WORKLOAD_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct kvb_workload {
	uint64_t *chunks;
	size_t *ends; /* of each request in `chunks` */
	size_t n_requests;
};

/*
 * Reads requests of a trace, one JSON object per line with an array "hash_ids"; at most
 * max_requests. 0; -errno of open or read; -EBADMSG with the line's number in *ret_line; -ENOMEM.
 */
int kvb_workload_read(
	const char *path, size_t max_requests, struct kvb_workload *ret_workload, size_t *ret_line);

/* The same from an open file. */
int kvb_workload_read_lines(
	FILE *file, size_t max_requests, struct kvb_workload *ret_workload, size_t *ret_line);

/* Conversations of several turns that share system prompts, some far more popular than others; each
 * turn repeats the conversation so far. The same seed gives the same requests. 0; -ENOMEM. */
int kvb_workload_generate(uint64_t seed, size_t n_requests, struct kvb_workload *ret_workload);

void kvb_workload_free(struct kvb_workload *workload);

/* The chunks of one request; NULL when there are none. */
const uint64_t *kvb_workload_request(
	const struct kvb_workload *workload, size_t request, size_t *ret_count);

#endif /* KVB_BENCH_WORKLOAD_H */
