/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reads.h - reading without asking: lookups among many objects, beside one load from memory; copies
 * out of the pool, beside the machine's own. Main thread.
 */
#ifndef KVB_BENCH_READS_H
#define KVB_BENCH_READS_H

#include <stdint.h>

#include "bench/run.h"

#define KVB_READS_OBJECTS_MIN 1000u /* the keys of one prefix */
#define KVB_READS_OBJECTS_MAX 10000000u

/* Lookups among each of these numbers of objects, as far as there is memory for so many; then the
 * copies. After the limits. 0; -errno, and it has said why. */
int kvb_reads_measure(struct kvb_run *run, const uint64_t *objects, unsigned n);

#endif /* KVB_BENCH_READS_H */
