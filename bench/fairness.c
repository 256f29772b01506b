/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fairness.c - see fairness.h.
 *
 * Owns a server, and the neighbour: a client in a process of its own, which dies with this one;
 * main thread. It must never measure gets beside a flood that has not begun or has ended.
 */
#include "bench/fairness.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/server.h"
#include "client/full.h"
#include "kvbell/kvbell.h"
#include "shm/atomic.h"
#include "shm/util.h"

#define ROUNDS     10u
#define FULL_NS    (60 * KVB_NS_PER_S)
#define FLOOD_KEYS 2u /* replaced over and over: nothing is evicted */
#define GET_KEYS   16u

struct shared {
	uint32_t flooding;
	struct kvb_histogram flood_ns;
};

struct neighbour {
	pid_t pid;
	int fd; /* a byte each way starts a flood, and says that it runs or is over */
	struct shared *shared;
};

static int fail(const char *what, int r)
{
	fprintf(stderr, "kvbell-bench: fairness: %s: %s\n", what, kvb_strerror(r));
	return r;
}

/* ------------------------------------------------------------------------------------- the neighbour */

static int put_once(struct kvb_client *client, const uint8_t *payload, unsigned turn)
{
	char key[32];
	int n = snprintf(key, sizeof(key), "flood-%u", turn % FLOOD_KEYS);

	return kvb_put(client, key, (size_t)n, payload, KVB_FAIRNESS_FLOOD);
}

/* Says when the first put is done; gives up when nobody listens. */
static int flood(struct shared *shared, struct kvb_client *client, const uint8_t *payload, int fd)
{
	unsigned turn = 0;

	/* Pairs with the release store in set_flooding(). */
	while (kvb_load_acquire(&shared->flooding)) {
		uint64_t started_ns = kvb_now_ns();
		int r = put_once(client, payload, turn++);
		if (r < 0)
			return fail("a put of the flood", r);
		kvb_histogram_add(&shared->flood_ns, kvb_now_ns() - started_ns);
		if (turn == 1 && write(fd, "f", 1) != 1)
			return -EPIPE;
	}
	return write(fd, "i", 1) == 1 ? 0 : -EPIPE;
}

static int be_neighbour(struct shared *shared, const char *dir, int fd)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client;
	uint8_t *payload = mmap(NULL, KVB_FAIRNESS_FLOOD, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char byte;
	int r;

	if (payload == MAP_FAILED)
		return -ENOMEM;
	memset(payload, 0x5a, KVB_FAIRNESS_FLOOD);
	options.dir = dir;
	options.name = "kvbell-bench-flood";
	/* It only puts; and it maps no pool while the gets are measured. */
	options.flags = KVB_OPEN_RING_ONLY;
	r = kvb_open(&options, &client);
	if (r < 0)
		return fail("opening the neighbour", r);
	/* It is an idle neighbour from now on. */
	if (write(fd, "i", 1) != 1)
		r = -EPIPE;
	while (r == 0 && read(fd, &byte, 1) == 1)
		r = flood(shared, client, payload, fd);
	kvb_close(client);
	return r;
}

/* Waits for what the neighbour says. */
static int await(const struct neighbour *neighbour)
{
	char byte;

	return read(neighbour->fd, &byte, 1) == 1 ? 0 : -ECHILD;
}

/* Before this process has threads, which the child would lack while it holds their locks. */
static int start_neighbour(struct neighbour *neighbour, const char *dir)
{
	int fds[2];

	neighbour->shared = mmap(NULL, sizeof(*neighbour->shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (neighbour->shared == MAP_FAILED)
		return -errno;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		return -errno;
	neighbour->pid = fork();
	if (neighbour->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		_exit(be_neighbour(neighbour->shared, dir, fds[1]) < 0);
	}
	close(fds[1]);
	neighbour->fd = fds[0];
	return neighbour->pid < 0 ? -errno : await(neighbour);
}

static int set_flooding(const struct neighbour *neighbour, bool flooding)
{
	/* Pairs with the acquire load in flood(). */
	kvb_store_release(&neighbour->shared->flooding, (uint32_t)flooding);
	if (flooding && send(neighbour->fd, "f", 1, MSG_NOSIGNAL) != 1)
		return -ECHILD;
	return await(neighbour);
}

static void stop_neighbour(struct neighbour *neighbour)
{
	if (neighbour->shared != MAP_FAILED)
		munmap(neighbour->shared, sizeof(*neighbour->shared));
	if (neighbour->fd >= 0)
		close(neighbour->fd);
	if (neighbour->pid <= 0)
		return;
	kill(neighbour->pid, SIGKILL);
	waitpid(neighbour->pid, NULL, 0);
}

/* ------------------------------------------------------------------------------------------ the gets */

static int key_of(unsigned turn, char *key, size_t size)
{
	return snprintf(key, size, "small-%u", turn % GET_KEYS);
}

static int put_small(struct kvb_client *client)
{
	static const uint8_t payload[KVB_FAIRNESS_GET];
	char key[32];
	int r = 0;

	for (unsigned i = 0; i < GET_KEYS && r == 0; i++) {
		int n = key_of(i, key, sizeof(key));
		r = kvb_put(client, key, (size_t)n, payload, sizeof(payload));
	}
	return r;
}

static int gets(struct kvb_client *client, double seconds, struct kvb_histogram *took_ns)
{
	static uint8_t buffer[KVB_FAIRNESS_GET];
	uint64_t begin_ns = kvb_now_ns(), now_ns = begin_ns;
	char key[32];

	for (unsigned turn = 0; (double)(now_ns - begin_ns) < seconds * 1e9; turn++) {
		int n = key_of(turn, key, sizeof(key));
		uint64_t started_ns = kvb_now_ns();
		int r = kvb_get(client, key, (size_t)n, buffer, sizeof(buffer), NULL);
		now_ns = kvb_now_ns();
		if (r < 0)
			return r;
		kvb_histogram_add(took_ns, now_ns - started_ns);
		if (kvb_leave_wanted())
			return -EINTR;
	}
	return 0;
}

static int measure_rounds(struct kvb_client *client, const struct neighbour *neighbour,
	double seconds, struct kvb_fairness *fairness)
{
	int r = put_small(client);

	for (unsigned round = 0; round < ROUNDS && r == 0; round++) {
		r = gets(client, seconds / ROUNDS, &fairness->idle_ns);
		if (r == 0)
			r = set_flooding(neighbour, true);
		if (r == 0)
			r = gets(client, seconds / ROUNDS, &fairness->flooded_ns);
		if (r == 0)
			r = set_flooding(neighbour, false);
	}
	fairness->flood_ns = neighbour->shared->flood_ns;
	return r < 0 ? fail("beside the neighbour", r) : 0;
}

static int measure_beside(const struct kvb_own_server *server,
	const struct kvb_placement *placement, const struct neighbour *neighbour, uint32_t flags,
	double seconds, struct kvb_fairness *fairness)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_progress silent = {0};
	struct kvb_client *client;
	struct kvb_info info = {0};
	int r;

	options.dir = server->dir;
	options.name = "kvbell-bench";
	options.flags = flags;
	r = kvb_open(&options, &client);
	if (r < 0)
		return fail("opening a client", r);
	r = kvb_wait_full(client, kvb_now_ns() + FULL_NS, &silent);
	if (r == 0)
		r = kvb_get_info(client, &info);
	if (r < 0) {
		fail("opening a client", r);
	} else {
		fairness->fragment_bytes = info.fragment_bytes;
		r = kvb_check_placement(placement, server->pid);
	}
	if (r == 0)
		r = kvb_check_cpus("neighbour", neighbour->pid, placement->client_cpus);
	if (r == 0)
		r = measure_rounds(client, neighbour, seconds, fairness);
	kvb_close(client);
	return r;
}

int kvb_fairness_measure(const struct kvb_placement *placement, uint32_t workers, uint32_t flags,
	double seconds, struct kvb_fairness *ret_fairness)
{
	struct kvb_own_server_options options = {
		.pool = "1GiB", .workers = workers, .cpus = kvb_server_cpus(placement)};
	struct neighbour neighbour = {.fd = -1, .shared = MAP_FAILED};
	struct kvb_own_server server;
	int r = kvb_own_server_start(&server, &options);

	*ret_fairness = (struct kvb_fairness){0};
	if (r < 0)
		return fail("starting a server", r);
	r = start_neighbour(&neighbour, server.dir);
	if (r < 0)
		fail("starting the neighbour", r);
	else
		r = measure_beside(&server, placement, &neighbour, flags, seconds, ret_fairness);
	stop_neighbour(&neighbour);
	(void)kvb_own_server_stop(&server);
	return r;
}
