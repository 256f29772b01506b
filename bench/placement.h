/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placement.h - on which CPUs and which memory node the bench, its servers and the sides of its
 * limits run, and whether the kernel made it so. Failures say on stderr what was asked and what
 * came. Main thread.
 */
#ifndef KVB_BENCH_PLACEMENT_H
#define KVB_BENCH_PLACEMENT_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define KVB_NODE_ANY  (-1)
#define KVB_NODES_MAX 1024

struct kvb_placement {
	const cpu_set_t *server_cpus, *client_cpus; /* NULL: anywhere */
	cpu_set_t anywhere;                         /* where this process could run before */
	int node;                                   /* KVB_NODE_ANY */
};

/* "0,2-3" */
bool kvb_parse_cpus(const char *text, cpu_set_t *ret_set);
/* The other way round. */
const char *kvb_format_cpus(const cpu_set_t *set, char *text, size_t size);

/* Pins this process and binds its memory; processes that it forks have both until they are placed. 0;
 * -errno. */
int kvb_place_self(struct kvb_placement *placement);
/* Where a server is to run. */
const cpu_set_t *kvb_server_cpus(const struct kvb_placement *placement);

/* Every thread of a process has just these CPUs; NULL: any will do. 0; -errno. */
int kvb_check_cpus(const char *who, pid_t pid, const cpu_set_t *asked);
/* Every page of touched memory lies on the node. 0; -errno. */
int kvb_check_pages(const char *what, const void *data, size_t size, int node);
/* This process and a server, all threads, and the memory that the server shares, unless it may not
 * look. When all of them are there. 0; -errno. */
int kvb_check_placement(const struct kvb_placement *placement, pid_t server);

#endif /* KVB_BENCH_PLACEMENT_H */
