/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numa.c - topology by libnuma, placement by the kernel's own word.
 *
 * Owns nothing; any thread. It must never take numa_available() for an answer: up to libnuma 2.0.16
 * it says yes under the EPERM of a container's seccomp filter, and then prints to stderr on every
 * call.
 */
#include "shm/numa.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

/* 0 when a preferred-node policy can be put on a scratch page; -errno otherwise. */
static int probe_mbind(void)
{
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	unsigned long mask = 1;
	int r = 0;
	void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return -errno;
	if (mbind(page, bytes, MPOL_PREFERRED, &mask, sizeof(mask) * 8, 0) < 0)
		r = -errno;
	munmap(page, bytes);
	return r;
}

/* Intersects the node's CPUs with those the process may use; returns how many are left. */
static int usable_cpus(int node, cpu_set_t *ret_set)
{
	struct bitmask *cpus = numa_allocate_cpumask();
	cpu_set_t allowed;

	CPU_ZERO(ret_set);
	if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0 &&
		numa_node_to_cpus(node, cpus) == 0)
		for (unsigned cpu = 0; cpu < cpus->size && cpu < CPU_SETSIZE; cpu++)
			if (numa_bitmask_isbitset(cpus, cpu) && CPU_ISSET(cpu, &allowed))
				CPU_SET(cpu, ret_set);
	numa_free_cpumask(cpus);
	return CPU_COUNT(ret_set);
}

void kvb_numa_probe(struct kvb_numa *ret_numa)
{
	struct kvb_numa numa = {.n_nodes = 1, .why = "ok"};
	int found = 0;
	int r = probe_mbind();

	if (r < 0) {
		numa.why = r == -EPERM ? "mbind is forbidden here (a container's seccomp filter?)"
				       : "mbind does not work on this kernel";
		*ret_numa = numa;
		return;
	}
	if (numa_available() < 0) {
		numa.why = "libnuma says NUMA is not available";
		*ret_numa = numa;
		return;
	}
	numa.available = true;
	for (int node = 0; node <= numa_max_node() && found < KVB_NUMA_NODES_MAX; node++) {
		cpu_set_t set;
		if (numa_bitmask_isbitset(numa_all_nodes_ptr, (unsigned)node) &&
			usable_cpus(node, &set) > 0)
			numa.nodes[found++] = node;
	}
	if (found > 0)
		numa.n_nodes = found;
	*ret_numa = numa;
}

int kvb_numa_pin_self(const struct kvb_numa *numa, int node)
{
	cpu_set_t set;

	if (!numa->available)
		return -EOPNOTSUPP;
	if (usable_cpus(node, &set) == 0)
		return -EINVAL;
	return sched_setaffinity(0, sizeof(set), &set) < 0 ? -errno : 0;
}

int kvb_numa_current_node(void)
{
	unsigned cpu, node;

	return getcpu(&cpu, &node) < 0 ? -1 : (int)node;
}
