/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_trace.c - the bench's reading of traces. The input is the file.
 */
#include <stdio.h>

#include "bench/workload.h"
#include "tests/fuzz/fuzz.h"

#define REQUESTS_MAX 64u

static uint64_t seen;

static void read_all(const struct kvb_workload *workload)
{
	kvb_fuzz_require(workload->n_requests <= REQUESTS_MAX, "more requests than were asked for");
	for (size_t i = 0; i < workload->n_requests; i++) {
		size_t n;
		const uint64_t *chunks = kvb_workload_request(workload, i, &n);
		for (size_t j = 0; j < n; j++)
			seen += chunks[j];
	}
	kvb_fuzz_decoded(workload->n_requests);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvb_workload workload;
	size_t line = 0;
	FILE *file;
	int r;

	if (size == 0)
		return 0;
	file = fmemopen((void *)data, size, "r");
	kvb_fuzz_require(file != NULL, "no memory");
	r = kvb_workload_read_lines(file, REQUESTS_MAX, &workload, &line);
	fclose(file);
	if (r == 0) {
		read_all(&workload);
		kvb_workload_free(&workload);
	} else {
		kvb_fuzz_require(line > 0, "an error without a line");
		kvb_fuzz_decoded(1);
	}
	return 0;
}
