/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits.c - see limits.h.
 *
 * Owns a child process per round trip, which dies with this one; main thread. It must do nothing
 * that kvbell would not have to do as well, or the limit would be none.
 */
#include "bench/limits.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "bench/pattern.h"
#include "bench/server.h"
#include "bench/timer.h"
#include "shm/atomic.h"
#include "shm/copy.h"
#include "shm/util.h"

#define MESSAGE 64u
#define LINE    64u
/* Both sides of a copy. */
#define COLD_BYTES (2 * KVB_COLD_BYTES)
/* The other side has died, or never was there. */
#define SILENT_MS 5000
#define LOOK_UP   1024u /* loads between two looks whether the user wants to leave */

/* Shared by both sides: nothing here lies on a line with something of the other side. */
struct shared {
	_Alignas(128) uint32_t request;
	_Alignas(128) uint32_t reply;
	_Alignas(128) char dir[32]; /* where the one of ZMQ listens */
	int request_fd, reply_fd;
	size_t size;
};

/* What runs in the process of the other side. */
struct side {
	int (*prepare)(
		struct shared *shared); /* 0; -errno, and has said what is wrong; NULL: nothing */
	void (*serve)(struct shared *shared);
};

static struct shared *shared_new(void)
{
	struct shared *shared = mmap(
		NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (shared == MAP_FAILED)
		return NULL;
	shared->request_fd = eventfd(0, EFD_CLOEXEC);
	shared->reply_fd = eventfd(0, EFD_CLOEXEC);
	return shared;
}

static void shared_free(struct shared *shared)
{
	close(shared->request_fd);
	close(shared->reply_fd);
	munmap(shared, sizeof(*shared));
}

static int prepare_side(const cpu_set_t *cpus, const struct side *side, struct shared *shared)
{
	if (sched_setaffinity(0, sizeof(*cpus), cpus) < 0) {
		int r = -errno;
		fprintf(stderr, "kvbell-bench: a limit's server cannot be pinned\n");
		return r;
	}
	return side->prepare ? side->prepare(shared) : 0;
}

/* Forks the other side, which says on reply_fd whether it is ready. 0; -errno. */
static int start_side(
	const cpu_set_t *cpus, const struct side *side, struct shared *shared, pid_t *ret_pid)
{
	eventfd_t errno_plus_1;
	pid_t pid = fork();

	if (pid < 0)
		return -errno;
	if (pid == 0) {
		int r;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		r = prepare_side(cpus, side, shared);
		(void)eventfd_write(shared->reply_fd, (eventfd_t)(1 - r));
		if (r == 0)
			side->serve(shared);
		_exit(r < 0);
	}
	*ret_pid = pid;
	if (eventfd_read(shared->reply_fd, &errno_plus_1) < 0)
		return -errno;
	return 1 - (int)errno_plus_1;
}

/* Goes there and back with `once` for `seconds`. */
static int round_trips(const struct kvb_placement *placement, struct shared *shared,
	const struct side *server, int (*once)(void *arg), void *arg, double seconds,
	struct kvb_histogram *took_ns)
{
	pid_t pid = -1;
	int r = start_side(kvb_server_cpus(placement), server, shared, &pid);
	uint64_t begin_ns, now_ns;

	if (r == 0)
		r = once(arg);
	/* Now its threads are there, if it has any. */
	if (r == 0)
		r = kvb_check_cpus("limit's server", pid, placement->server_cpus);
	begin_ns = now_ns = kvb_now_ns();

	while (r == 0 && (double)(now_ns - begin_ns) < seconds * 1e9) {
		uint64_t sent_ns = kvb_now_ns();
		r = kvb_leave_wanted() ? -EINTR : once(arg);
		now_ns = kvb_now_ns();
		kvb_histogram_add(took_ns, now_ns - sent_ns);
	}
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	return r;
}

/* The same where both sides need nothing but what they share. */
static int shared_round_trips(const struct kvb_placement *placement, const struct side *server,
	int (*once)(void *arg), double seconds, struct kvb_histogram *took_ns)
{
	struct shared *shared = shared_new();
	int r;

	if (!shared)
		return -ENOMEM;
	r = round_trips(placement, shared, server, once, shared, seconds, took_ns);
	shared_free(shared);
	return r;
}

/* ------------------------------------------------------------------------------------------ eventfd */

static void eventfd_server(struct shared *shared)
{
	eventfd_t value;

	while (eventfd_read(shared->request_fd, &value) == 0)
		(void)eventfd_write(shared->reply_fd, 1);
}

static int eventfd_once(void *arg)
{
	const struct shared *shared = arg;
	eventfd_t value;

	return eventfd_write(shared->request_fd, 1) < 0 ||
			eventfd_read(shared->reply_fd, &value) < 0
		? -errno
		: 0;
}

static const struct side eventfd_side = {.serve = eventfd_server};

int kvb_limit_eventfd(
	const struct kvb_placement *placement, double seconds, struct kvb_histogram *ret_took_ns)
{
	return shared_round_trips(placement, &eventfd_side, eventfd_once, seconds, ret_took_ns);
}

/* --------------------------------------------------------------------------------------- cache line */

static void cacheline_server(struct shared *shared)
{
	for (uint32_t number = 1;; number++) {
		while (kvb_load_acquire(&shared->request) != number)
			kvb_cpu_relax();
		kvb_store_release(&shared->reply, number);
	}
}

static int cacheline_once(void *arg)
{
	struct shared *shared = arg;
	uint32_t number = shared->request + 1;

	kvb_store_release(&shared->request, number);
	while (kvb_load_acquire(&shared->reply) != number)
		kvb_cpu_relax();
	return 0;
}

static const struct side cacheline_side = {.serve = cacheline_server};

int kvb_limit_cacheline(
	const struct kvb_placement *placement, double seconds, struct kvb_histogram *ret_took_ns)
{
	return shared_round_trips(placement, &cacheline_side, cacheline_once, seconds, ret_took_ns);
}

/* ---------------------------------------------------------------------------------------------- ZMQ */

static const char *endpoint(const struct shared *shared)
{
	static char text[64];

	snprintf(text, sizeof(text), "ipc://%s/zmq", shared->dir);
	return text;
}

/* Of the other side's process. */
static void *router;
static uint8_t *pool;

static int zmq_prepare(struct shared *shared)
{
	int r = 0;

	router = zmq_socket(zmq_ctx_new(), ZMQ_ROUTER);
	pool = malloc(shared->size);
	if (!pool || !router || zmq_bind(router, endpoint(shared)) < 0)
		r = pool && router ? -errno : -ENOMEM;
	if (r < 0)
		fprintf(stderr, "kvbell-bench: a limit's server cannot listen at %s: %s\n",
			endpoint(shared), strerror(-r));
	return r;
}

/* Copies what comes to where payload would lie, and answers with a word. */
static void zmq_serve(struct shared *shared)
{
	zmq_msg_t peer, payload;

	(void)shared;
	for (;;) {
		zmq_msg_init(&peer);
		zmq_msg_init(&payload);
		zmq_msg_recv(&peer, router, 0);
		zmq_msg_recv(&payload, router, 0);
		memcpy(pool, zmq_msg_data(&payload), zmq_msg_size(&payload));
		zmq_msg_close(&payload);
		zmq_msg_send(&peer, router, ZMQ_SNDMORE);
		zmq_send(router, pool, MESSAGE, 0);
	}
}

struct zmq_client {
	const char *endpoint;
	void *context, *dealer; /* NULL until used */
	uint8_t *payload;
	size_t size;
};

static const struct side zmq_side = {zmq_prepare, zmq_serve};

static int zmq_client_open(struct zmq_client *client)
{
	int zero = 0, silent_ms = SILENT_MS;

	client->context = zmq_ctx_new();
	client->dealer = zmq_socket(client->context, ZMQ_DEALER);
	zmq_setsockopt(client->dealer, ZMQ_LINGER, &zero, sizeof(zero));
	zmq_setsockopt(client->dealer, ZMQ_RCVTIMEO, &silent_ms, sizeof(silent_ms));
	zmq_setsockopt(client->dealer, ZMQ_SNDTIMEO, &silent_ms, sizeof(silent_ms));
	return zmq_connect(client->dealer, client->endpoint) < 0 ? -errno : 0;
}

static void zmq_client_close(struct zmq_client *client)
{
	if (client->dealer)
		zmq_close(client->dealer);
	if (client->context)
		zmq_ctx_term(client->context);
}

static int zmq_once(void *arg)
{
	struct zmq_client *client = arg;
	uint8_t reply[MESSAGE];
	/* Not before the other side was forked: ZMQ's threads may hold locks that a child would
	 * find held for ever. */
	int r = client->dealer ? 0 : zmq_client_open(client);

	if (r < 0)
		return r;
	return zmq_send(client->dealer, client->payload, client->size, 0) < 0 ||
			zmq_recv(client->dealer, reply, sizeof(reply), 0) < 0
		? -errno
		: 0;
}

static int zmq_round_trips(const struct kvb_placement *placement, struct shared *shared,
	struct zmq_client *client, double seconds, struct kvb_histogram *took_ns)
{
	int r;

	snprintf(shared->dir, sizeof(shared->dir), "/tmp/kvbell-bench-XXXXXX");
	if (!mkdtemp(shared->dir))
		return -errno;
	shared->size = client->size;
	client->endpoint = endpoint(shared);
	r = round_trips(placement, shared, &zmq_side, zmq_once, client, seconds, took_ns);
	zmq_client_close(client);
	unlink(client->endpoint + strlen("ipc://"));
	rmdir(shared->dir);
	return r;
}

int kvb_limit_zmq_put(const struct kvb_placement *placement, size_t size, double seconds,
	struct kvb_histogram *ret_took_ns)
{
	struct shared *shared = shared_new();
	struct zmq_client client = {.payload = malloc(size), .size = size};
	int r = -ENOMEM;

	if (client.payload) {
		memset(client.payload, 1, size);
		r = kvb_check_pages("a limit's memory", client.payload, size, placement->node);
	}
	if (!shared)
		r = -ENOMEM;
	if (r == 0)
		r = zmq_round_trips(placement, shared, &client, seconds, ret_took_ns);
	if (shared)
		shared_free(shared);
	free(client.payload);
	return r;
}

int kvb_limit_zmq(
	const struct kvb_placement *placement, double seconds, struct kvb_histogram *ret_took_ns)
{
	return kvb_limit_zmq_put(placement, MESSAGE, seconds, ret_took_ns);
}

/* ---------------------------------------------------------------------------------------------- loads */

static int load_lines(
	const uint64_t *words, uint64_t n_lines, double seconds, struct kvb_histogram *took_ns)
{
	uint64_t timer_ns = kvb_timer_cost_ns(), random = 1, word = 0;
	uint64_t begin_ns = kvb_now_ns(), now_ns = begin_ns;

	for (unsigned turn = 0; (double)(now_ns - begin_ns) < seconds * 1e9; turn++) {
		if (turn % LOOK_UP == 0 && kvb_leave_wanted())
			return -EINTR;
		const volatile uint64_t *line = &words[kvb_pattern_word(random, random) % n_lines *
			(LINE / sizeof(*words))];
		uint64_t started_ns = kvb_now_ns();
		/* All words are 0, which the processor cannot know: it waits for each. */
		word = line[word];
		now_ns = kvb_now_ns();
		random += 1 + word;
		kvb_histogram_add(took_ns, kvb_timer_net(now_ns - started_ns, timer_ns));
	}
	return 0;
}

int kvb_limit_dram(
	const struct kvb_placement *placement, double seconds, struct kvb_histogram *ret_took_ns)
{
	uint64_t *words =
		mmap(NULL, COLD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int r;

	if (words == MAP_FAILED)
		return -errno;
	/* A kernel without huge pages refuses, and need not be asked. */
	(void)madvise(words, COLD_BYTES, MADV_NOHUGEPAGE);
	memset(words, 0, COLD_BYTES);
	r = kvb_check_pages("a limit's memory", words, COLD_BYTES, placement->node);
	if (r == 0)
		r = load_lines(words, COLD_BYTES / LINE, seconds, ret_took_ns);
	munmap(words, COLD_BYTES);
	return r;
}

/* -------------------------------------------------------------------------------------------- copies */

static void plain_copy(void *to, const void *from, size_t size)
{
	memcpy(to, from, size);
}

static void streaming_copy(void *to, const void *from, size_t size)
{
	/* As part of something large. */
	kvb_copy_cold(to, from, size, UINT64_MAX);
}

static int copy_cold(const struct kvb_placement *placement,
	void (*copy)(void *to, const void *from, size_t size), size_t size, double seconds,
	struct kvb_histogram *took_ns)
{
	size_t count = kvb_max_u64(KVB_COLD_BYTES / size, 1);
	uint8_t *from = mmap(
		NULL, 2 * count * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *to = from + count * size;
	uint64_t begin_ns, now_ns;
	int r;

	if (from == MAP_FAILED)
		return -errno;
	memset(from, 1, 2 * count * size);
	r = kvb_check_pages("a limit's memory", from, 2 * count * size, placement->node);
	begin_ns = now_ns = kvb_now_ns();
	for (size_t i = 0; r == 0 && (double)(now_ns - begin_ns) < seconds * 1e9;
		i = (i + 1) % count) {
		uint64_t started_ns;
		if (kvb_leave_wanted())
			r = -EINTR;
		started_ns = kvb_now_ns();
		copy(to + i * size, from + i * size, size);
		now_ns = kvb_now_ns();
		kvb_histogram_add(took_ns, now_ns - started_ns);
	}
	munmap(from, 2 * count * size);
	return r;
}

int kvb_limit_memcpy(const struct kvb_placement *placement, size_t size, double seconds,
	struct kvb_histogram *ret_took_ns)
{
	return copy_cold(placement, plain_copy, size, seconds, ret_took_ns);
}

int kvb_limit_ntcopy(const struct kvb_placement *placement, size_t size, double seconds,
	struct kvb_histogram *ret_took_ns)
{
	return copy_cold(placement, streaming_copy, size, seconds, ret_took_ns);
}
