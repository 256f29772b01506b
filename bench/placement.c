/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placement.c - see placement.h.
 *
 * Owns nothing; main thread. It must never take the kernel's "yes" for an answer: a container may
 * narrow a set of CPUs without an error, and a policy says nothing about pages that were there
 * before it.
 */
#include "bench/placement.h"

#include <dirent.h>
#include <errno.h>
#include <numaif.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/util.h"

#define PAGES_AT_ONCE 1024u
#define WORD_BITS     (8 * sizeof(unsigned long))

/* ------------------------------------------------------------------------------------- lists of CPUs */

bool kvb_parse_cpus(const char *text, cpu_set_t *ret_set)
{
	CPU_ZERO(ret_set);
	while (*text) {
		char *end;
		long first = strtol(text, &end, 10), last = first;
		if (end == text)
			return false;
		if (*end == '-') {
			text = end + 1;
			last = strtol(text, &end, 10);
			if (end == text)
				return false;
		}
		if (first < 0 || last < first || last >= CPU_SETSIZE || (*end && *end != ','))
			return false;
		for (long cpu = first; cpu <= last; cpu++)
			CPU_SET((size_t)cpu, ret_set);
		text = *end ? end + 1 : end;
	}
	return CPU_COUNT(ret_set) > 0;
}

const char *kvb_format_cpus(const cpu_set_t *set, char *text, size_t size)
{
	size_t used = 0;

	text[0] = '\0';
	for (size_t first = 0, last; first < CPU_SETSIZE && used < size; first = last + 1) {
		last = first;
		if (!CPU_ISSET(first, set))
			continue;
		while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
			last++;
		used += (size_t)snprintf(text + used, size - used,
			last > first ? "%s%zu-%zu" : "%s%zu", used > 0 ? "," : "", first, last);
	}
	return text;
}

/* ------------------------------------------------------------------------------------------- placing */

static int bind_memory(int node)
{
	unsigned long mask[KVB_NODES_MAX / WORD_BITS] = {0};
	int r;

	mask[(unsigned)node / WORD_BITS] = 1ul << ((unsigned)node % WORD_BITS);
	/* The kernel reads one bit less than it is told. */
	if (set_mempolicy(MPOL_BIND, mask, KVB_NODES_MAX + 1) == 0)
		return 0;
	r = -errno;
	fprintf(stderr, "kvbell-bench: memory cannot be bound to node %d: %s\n", node,
		r == -EINVAL           ? "there is no such node with memory for this process"
			: r == -EPERM  ? "forbidden here (a container's seccomp filter?)"
			: r == -ENOSYS ? "this kernel knows no memory nodes"
				       : strerror(-r));
	return r;
}

/* -------------------------------------------------------------------------------------- reading back */

static int unreadable(const char *what)
{
	int r = -errno;

	fprintf(stderr, "kvbell-bench: reading back %s: %s\n", what, strerror(-r));
	return r;
}

static int check_thread(const char *who, pid_t tid, const cpu_set_t *asked)
{
	char asked_text[128], got_text[128];
	cpu_set_t got;

	if (sched_getaffinity(tid, sizeof(got), &got) < 0)
		/* A thread that has ended since it was listed runs nowhere wrong. */
		return errno == ESRCH ? 0 : unreadable("an affinity");
	if (CPU_EQUAL(&got, asked))
		return 0;
	fprintf(stderr, "kvbell-bench: the %s does not run on the CPUs asked for: %s, but %s\n",
		who, kvb_format_cpus(asked, asked_text, sizeof(asked_text)),
		kvb_format_cpus(&got, got_text, sizeof(got_text)));
	return -EINVAL;
}

int kvb_check_cpus(const char *who, pid_t pid, const cpu_set_t *asked)
{
	char path[32];
	struct dirent *entry;
	DIR *tasks;
	int r = 0;

	if (!asked)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	tasks = opendir(path);
	if (!tasks)
		return unreadable(path);
	while (r == 0 && (entry = readdir(tasks)))
		if (entry->d_name[0] != '.')
			r = check_thread(who, (pid_t)strtol(entry->d_name, NULL, 10), asked);
	closedir(tasks);
	return r;
}

/* --------------------------------------------------------------------------------------- this process */

int kvb_place_self(struct kvb_placement *placement)
{
	const cpu_set_t *cpus = placement->client_cpus;
	int r = 0;

	if (sched_getaffinity(0, sizeof(placement->anywhere), &placement->anywhere) < 0)
		return unreadable("an affinity");
	if (cpus && sched_setaffinity(0, sizeof(*cpus), cpus) < 0) {
		r = -errno;
		fprintf(stderr, "kvbell-bench: pinning the client: %s\n", strerror(-r));
		return r;
	}
	/* Of CPUs of which some are not there the kernel takes the others. */
	if (cpus)
		r = check_thread("client", 0, cpus);
	return r < 0 || placement->node == KVB_NODE_ANY ? r : bind_memory(placement->node);
}

const cpu_set_t *kvb_server_cpus(const struct kvb_placement *placement)
{
	return placement->server_cpus ? placement->server_cpus : &placement->anywhere;
}

static int wrong_node(const char *what, int asked, int got)
{
	fprintf(stderr, "kvbell-bench: %s is not on the node asked for: %d, but on %d\n", what,
		asked, got);
	return -EINVAL;
}

int kvb_check_pages(const char *what, const void *data, size_t size, int node)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	/* Of the page that a buffer begins in, the rest may be a stranger's. */
	uintptr_t at = ((uintptr_t)data + page - 1) & ~(page - 1), end = (uintptr_t)data + size;

	while (node != KVB_NODE_ANY && at < end) {
		void *pages[PAGES_AT_ONCE];
		int nodes[PAGES_AT_ONCE];
		unsigned n = 0;
		for (; n < PAGES_AT_ONCE && at < end; at += page)
			pages[n++] = (void *)at;
		if (move_pages(0, n, pages, NULL, nodes, 0) < 0)
			return unreadable("the nodes of pages");
		for (unsigned i = 0; i < n; i++) {
			if (nodes[i] < 0) {
				errno = -nodes[i];
				return unreadable(what);
			}
			if (nodes[i] != node)
				return wrong_node(what, node, nodes[i]);
		}
	}
	return 0;
}

/* "... file=/memfd:... N0=262144 N1=3 ..." */
static int check_mapping(const char *line, int node)
{
	const char *word = strstr(line, "file=/memfd:");

	while (word && (word = strstr(word, " N"))) {
		char *end;
		long got = strtol(word + 2, &end, 10);
		if (end > word + 2 && *end == '=' && got != node)
			return wrong_node("the server's memory", node, (int)got);
		word += 2;
	}
	return 0;
}

static int check_server_pages(pid_t pid, int node)
{
	char path[32], *line = NULL;
	size_t size = 0;
	FILE *maps;
	int r = 0;

	if (node == KVB_NODE_ANY)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/numa_maps", (int)pid);
	maps = fopen(path, "re");
	if (!maps) {
		/* kvbelld is not dumpable, so only root may look; the policy it was born with stays. */
		r = unreadable("the nodes of the server's memory");
		return r == -EACCES || r == -ENOENT ? 0 : r;
	}
	while (r == 0 && getline(&line, &size, maps) >= 0)
		r = check_mapping(line, node);
	free(line);
	fclose(maps);
	return r;
}

int kvb_check_placement(const struct kvb_placement *placement, pid_t server)
{
	int r = kvb_check_cpus("server", server, placement->server_cpus);

	if (r == 0)
		r = kvb_check_cpus("client", getpid(), placement->client_cpus);
	return r < 0 ? r : check_server_pages(server, placement->node);
}
