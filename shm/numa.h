/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numa.h - which memory nodes there are, and threads pinned to them. Any thread.
 */
#ifndef KVB_SHM_NUMA_H
#define KVB_SHM_NUMA_H

#include <stdbool.h>

#define KVB_NUMA_NODES_MAX 64

struct kvb_numa {
	int n_nodes;                   /* nodes with CPUs this process may use; at least 1 */
	int nodes[KVB_NUMA_NODES_MAX]; /* their numbers; {0} where placement is not available */
	bool available;                /* the kernel takes memory policies from this process */
	const char *why;               /* static text: why not, or "ok" */
};

/* Asks the kernel with a real mbind(2): numa_available() says yes where containers forbid it. */
void kvb_numa_probe(struct kvb_numa *ret_numa);

/* Pins the calling thread to the CPUs of a node that it may use. 0; -errno, the thread is as it
 * was. */
int kvb_numa_pin_self(const struct kvb_numa *numa, int node);

/* Node of the CPU this thread runs on; -1 unknown. */
int kvb_numa_current_node(void);

#endif /* KVB_SHM_NUMA_H */
