/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits.h - what the machine can do at all, measured with the CPUs that server and client are
 * pinned to.
 */
#ifndef KVB_BENCH_LIMITS_H
#define KVB_BENCH_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#include "bench/histogram.h"
#include "bench/placement.h"
#include "shm/util.h"

/* Round trips between this process and one placed like a server. Each
 * fills in a histogram of nanoseconds for `seconds`. 0; -errno. */
typedef int kvb_limit_fn(
	const struct kvb_placement *placement, double seconds, struct kvb_histogram *ret_took_ns);

/* A blocking write and read of eventfds, there and back between two processes. */
kvb_limit_fn kvb_limit_eventfd;
/* A word that two spinning processes hand to and fro. */
kvb_limit_fn kvb_limit_cacheline;
/* 64 bytes by ZMQ, DEALER to ROUTER and back, over ipc. */
kvb_limit_fn kvb_limit_zmq;
/* No round trip: one load from a random line of memory that lies in no cache, in pages of 4 KiB such
 * as the index has, timed as a lookup is. */
kvb_limit_fn kvb_limit_dram;

/* `size` bytes between buffers that lie in no cache: memcpy of libc, or non-temporal stores. */
/* Far more than any cache holds. So many bytes of buffers are used by turns, on either side of a copy, that none is in
 * a cache when its turn comes again. */
#define KVB_COLD_BYTES (256 * KVB_MIB)

typedef int kvb_limit_copy_fn(const struct kvb_placement *placement, size_t size, double seconds,
	struct kvb_histogram *ret_took_ns);
kvb_limit_copy_fn kvb_limit_memcpy, kvb_limit_ntcopy;
/* `size` bytes of payload in a ZMQ message, copied out on the other side, and a word back. */
int kvb_limit_zmq_put(const struct kvb_placement *placement, size_t size, double seconds,
	struct kvb_histogram *ret_took_ns);

#endif /* KVB_BENCH_LIMITS_H */
