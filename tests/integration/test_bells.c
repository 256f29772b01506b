/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bells.c - two processes that sleep and ring each other without a re-check, and a session
 * that kicks beside three which flood.
 *
 * The server is a forked child in the first tests, embedded in the last one. The client is the main
 * thread and made of bare protocol; it sleeps in poll with no timeout, so a wake that is lost hangs
 * it, and the alarm fails the test. A wake that the server loses is found by its tick and counted.
 *
 *   KVB_TEST_ITEMS   requests in each of the first tests (./dev stress: 10^8)
 *   KVB_TEST_KICKS, KVB_TEST_PAUSE_MS   kicks of the last test, and the pause between them
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "server/server.h"
#include "shm/atomic.h"
#include "shm/bell.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/process.h"
#include "tests/random.h"
#include "tests/raw.h"

#define ITEMS        (400000 / TEST_SLOWER)
#define WINDOW       16u /* most requests in flight */
#define HANG_S       (30 * TEST_SLOWER)
#define ALARM_ITEMS  4096u /* between two looks at the clock */
#define PARTS        64u
#define NAP_NS       20000
#define KICKS        50u
#define PAUSE_MS     100u
#define KICK_NS      (10 * KVB_NS_PER_MS * TEST_SLOWER) /* within which it is served */
#define FLOODS       3u
#define FLOOD_LENGTH (64 * KVB_KIB)

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : otherwise;
}

static void hangs(int signal)
{
	static const char text[] = "nothing moves: a wake was lost\n";

	(void)signal;
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(1);
}

/* --------------------------------------------------------------------------- a server of its own */

struct service {
	pid_t pid;
	uint32_t spin_us;
	bool jolts;
	int up[2];   /* the child's directory, once its door is open */
	int down[2]; /* its end: the child stops */
	char dir[64];
};

/* What the scheduler does to a worker now and then: it stops wherever it is. */
static void nap(int signal)
{
	const struct timespec pause = {.tv_nsec = NAP_NS};
	int saved = errno;

	(void)signal;
	nanosleep(&pause, NULL);
	errno = saved;
}

struct jolter {
	struct kvb_server *server;
	pthread_t thread;
	uint32_t stop; /* atomic */
};

/* Sends workers that serve to a nap, by the watchdog's signal, the only one that they take. */
static void *jolt(void *arg)
{
	struct jolter *jolter = arg;
	const struct kvb_workers *workers = &jolter->server->workers;
	uint64_t seed = 1;

	while (!kvb_load_acquire(&jolter->stop)) {
		const struct kvb_group *group =
			&workers->groups[next_random(&seed) % workers->n_groups];
		const struct kvb_worker *worker =
			&group->workers[next_random(&seed) % group->n_workers];
		usleep(next_random(&seed) % 64);
		if (kvb_load_relaxed(&worker->serving))
			pthread_kill(worker->thread, jolter->server->watchdog.signal);
	}
	return NULL;
}

static int jolt_start(struct jolter *jolter, struct kvb_server *server)
{
	const struct sigaction action = {.sa_handler = nap};

	jolter->server = server;
	if (sigaction(server->watchdog.signal, &action, NULL) < 0)
		return -errno;
	return kvb_thread_start(&jolter->thread, "jolter", jolt, jolter);
}

static void jolt_stop(struct jolter *jolter)
{
	kvb_store_release(&jolter->stop, 1u);
	pthread_join(jolter->thread, NULL);
}

/* The child, which must not assert. */
static int serve(void *arg)
{
	struct service *service = arg;
	struct kvb_server_options config;
	struct jolter jolter = {0};
	static struct embedded embedded;
	char byte;

	close(service->up[0]);
	close(service->down[1]);
	embedded_config(&config);
	config.spin_us = service->spin_us;
	config.log.level = KVB_LOG_WARN;
	if (embedded_make(&embedded, &config) < 0)
		return 1;
	/* One request a visit: the session goes through the run queue, and may change its worker,
	 * after each. */
	embedded.server->visit_requests = 1;
	if (kvb_server_start(embedded.server) < 0 ||
		(service->jolts && jolt_start(&jolter, embedded.server) < 0) ||
		write(service->up[1], embedded.dir, sizeof(embedded.dir)) != sizeof(embedded.dir))
		return 1;
	(void)!read(service->down[0], &byte, 1);
	if (service->jolts)
		jolt_stop(&jolter);
	return embedded_stop(&embedded) < 0 ? 1 : 0;
}

static void service_start(struct service *service)
{
	assert_int_equal(pipe(service->up), 0);
	assert_int_equal(pipe(service->down), 0);
	service->pid = process_fork(serve, service);
	assert_true(service->pid > 0);
	close(service->up[1]);
	close(service->down[0]);
	assert_int_equal(
		read(service->up[0], service->dir, sizeof(service->dir)), sizeof(service->dir));
}

static void service_stop(struct service *service)
{
	close(service->down[1]);
	close(service->up[0]);
	assert_int_equal(process_wait(service->pid, 20000), 0);
}

/* ---------------------------------------------------------------------------- one bell each way */

struct client {
	struct raw_client raw;
	uint64_t seed;
	uint64_t sent, done;
	uint64_t slept;
};

/* Any moment between two steps, so that the other side falls asleep at any moment of ours. */
static void dawdle(struct client *client)
{
	uint32_t random = next_random(&client->seed);
	uint32_t loops = random >> 8;

	if (random % 16384 == 0)
		usleep(loops % 64);
	else if (random % 256 == 0)
		sched_yield();
	else if (random % 4 == 0)
		for (uint32_t i = loops % (random % 64 < 4 ? 8192 : 256); i > 0; i--)
			__asm__ volatile("");
}

static int submit(struct client *client, uint32_t n)
{
	while (n-- > 0) {
		const struct kvb_sqe nop = {.op = KVB_OP_NOP, .user_data = client->sent};
		int r = raw_submit(&client->raw, &nop, NULL);
		if (r < 0)
			return r;
		client->sent++;
		dawdle(client);
	}
	return 0;
}

/* Sleeps until it is rung, unless something came meanwhile. */
static int sleep_on_bell(struct client *client)
{
	struct pollfd pfd = {.fd = client->raw.fds[KVB_FD_BELL], .events = POLLIN};
	uint32_t *sleeping = &client->raw.sq.header->cq_sleeping;

	kvb_bell_arm(sleeping);
	if (kvb_cq_empty(&client->raw.cq)) {
		client->slept++;
		if (poll(&pfd, 1, -1) != 1)
			return -errno;
		(void)kvb_bell_clear(pfd.fd);
	}
	kvb_bell_disarm(sleeping);
	return 0;
}

static int complete(struct client *client, uint32_t n)
{
	struct kvb_cqe cqe;

	while (n > 0) {
		int r = kvb_cq_take(&client->raw.cq, &cqe);
		if (r == 0)
			r = sleep_on_bell(client);
		else if (r > 0 && (cqe.user_data != client->done || cqe.result != 0))
			r = -EBADMSG;
		else if (r > 0)
			client->done++, n--;
		if (r < 0)
			return r;
		dawdle(client);
	}
	return 0;
}

/* Some more are sent, some of those in flight awaited. */
static int run(struct client *client, uint64_t items)
{
	uint64_t alarm_at = 0;
	int r = 0;

	while (client->done < items && r == 0) {
		uint64_t flying = client->sent - client->done;
		uint64_t more = kvb_min_u64(WINDOW - flying, items - client->sent);
		if (client->done >= alarm_at) {
			alarm(HANG_S);
			alarm_at = client->done + ALARM_ITEMS;
		}
		r = submit(client, next_random(&client->seed) % (uint32_t)(more + 1));
		flying = client->sent - client->done;
		if (r == 0)
			r = complete(client, next_random(&client->seed) % (uint32_t)(flying + 1));
	}
	return r;
}

static uint64_t stat_of(struct raw_client *raw, const char *name)
{
	uint64_t value = 0;

	assert_int_equal(raw_stat(raw, name, &value), 0);
	return value;
}

static void ring_each_other(uint32_t spin_us, bool jolts, uint64_t items)
{
	struct service service = {.spin_us = spin_us, .jolts = jolts};
	struct client client = {.seed = spin_us + 1};
	uint64_t begin_ns, rung, kicks;

	service_start(&service);
	assert_int_equal(raw_attach(&client.raw, service.dir), 0);
	begin_ns = kvb_now_ns();
	for (uint64_t part = 1; part <= PARTS; part++) {
		int r = run(&client, items * part / PARTS);
		alarm(0);
		assert_int_equal(r, 0);
		/* Early, since each costs a second. */
		assert_int_equal(stat_of(&client.raw, "bells.missed_wakes"), 0);
	}
	rung = stat_of(&client.raw, "bells.rung");
	kicks = stat_of(&client.raw, "workers.kicks");
	print_message("spin %u us: %llu items in %.1f s, %llu sleeps, %llu rings, %llu kicks\n",
		spin_us, (unsigned long long)items, (double)(kvb_now_ns() - begin_ns) / 1e9,
		(unsigned long long)client.slept, (unsigned long long)rung,
		(unsigned long long)kicks);
	assert_int_equal(client.sent, items);
	assert_int_equal(stat_of(&client.raw, "ops.nops"), items);
	/* Both must have slept and been woken, or it proves nothing. */
	assert_true(rung > items / 100);
	assert_true(kicks > items / 1000);
	raw_drop(&client.raw);
	service_stop(&service);
}

static void two_processes_never_miss_each_other(void **state)
{
	(void)state;
	ring_each_other(0, false, setting("KVB_TEST_ITEMS", ITEMS));
}

static void nor_when_the_server_spins(void **state)
{
	(void)state;
	ring_each_other(3, false, setting("KVB_TEST_ITEMS", ITEMS));
}

/* Kicks come, and are taken by the other worker, while one is between its last look and leaving
 * the session. */
static void nor_when_workers_stop_anywhere(void **state)
{
	(void)state;
	ring_each_other(0, true, setting("KVB_TEST_ITEMS", ITEMS) / 4);
}

/* ------------------------------------------------------------------------ one kick beside floods */

/* What may be served between a kick and its request: each worker's visits between two harvests
 * (server/worker.c), then the visits queued before, and those that were under way. */
#define WORKERS            2u
#define HARVEST_VISITS     8u
#define FOREIGN_MAX(visit) ((WORKERS * HARVEST_VISITS + FLOODS + WORKERS) * (visit))

struct flooder {
	pthread_t thread;
	struct raw_client raw;
	struct kvb_sqe sqe;
	char key[8];
	const uint32_t *stop; /* atomic */
	int error;
};

/* Keeps its queue full. */
static void *flood(void *arg)
{
	struct flooder *flooder = arg;
	struct kvb_cqe cqe;
	uint32_t flying = 0;
	int r = 0;

	while (r == 0 && !kvb_load_acquire(flooder->stop)) {
		for (; r == 0 && flying < flooder->raw.welcome.cq_entries; flying++)
			r = raw_submit(&flooder->raw, &flooder->sqe, flooder->key);
		if (r == 0)
			r = raw_complete(&flooder->raw, &cqe);
		if (r == 0)
			r = cqe.result;
		for (flying--; kvb_cq_take(&flooder->raw.cq, &cqe) == 1;)
			flying--;
	}
	flooder->error = r;
	return NULL;
}

static int compare(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return (left > right) - (left < right);
}

/* Kicks now and then, and notes the time until the answer is seen. How many requests of the others
 * were served before it, the answer itself tells: it is the server's statistics at that moment. */
static void kick_beside(const struct embedded *embedded, const uint64_t *served, const char *name,
	uint64_t *times_ns, uint64_t *foreign, uint64_t kicks)
{
	uint64_t pause_ms = setting("KVB_TEST_PAUSE_MS", PAUSE_MS);
	struct raw_client raw;

	assert_int_equal(raw_attach(&raw, embedded->dir), 0);
	for (uint64_t i = 0; i < kicks; i++) {
		uint64_t begin_ns, before;
		poll(NULL, 0, (int)pause_ms);
		begin_ns = kvb_now_ns();
		before = kvb_load_relaxed(served);
		foreign[i] = stat_of(&raw, name) - before;
		times_ns[i] = kvb_now_ns() - begin_ns;
	}
	raw_drop(&raw);
	qsort(times_ns, kicks, sizeof(*times_ns), compare);
	qsort(foreign, kicks, sizeof(*foreign), compare);
}

static void start_floods(struct flooder *flooders, const struct embedded *embedded,
	const struct kvb_sqe *sqe, const uint32_t *stop)
{
	for (unsigned i = 0; i < FLOODS; i++) {
		struct flooder *flooder = &flooders[i];
		*flooder = (struct flooder){.sqe = *sqe, .stop = stop};
		snprintf(flooder->key, sizeof(flooder->key), "flood-%u", i);
		assert_int_equal(raw_attach(&flooder->raw, embedded->dir), 0);
		assert_int_equal(kvb_thread_start(&flooder->thread, "flooder", flood, flooder), 0);
	}
}

static void stop_floods(struct flooder *flooders, uint32_t *stop)
{
	kvb_store_release(stop, 1u);
	for (unsigned i = 0; i < FLOODS; i++)
		pthread_join(flooders[i].thread, NULL);
	for (unsigned i = 0; i < FLOODS; i++) {
		assert_int_equal(flooders[i].error, 0);
		raw_drop(&flooders[i].raw);
	}
}

static void check_kicks(const struct kvb_sqe *sqe, size_t counter, const char *name)
{
	uint64_t kicks = setting("KVB_TEST_KICKS", KICKS);
	uint64_t *times_ns = calloc(kicks, sizeof(*times_ns));
	uint64_t *foreign = calloc(kicks, sizeof(*foreign));
	const uint64_t *served;
	struct kvb_server_options config;
	/* Not on the stack, which a failed assertion leaves while threads go on. */
	static struct flooder flooders[FLOODS];
	static struct embedded embedded;
	static uint32_t stop;

	stop = 0;
	assert_true(kicks > 0 && times_ns && foreign);
	embedded_config(&config);
	config.workers = WORKERS;
	assert_int_equal(embedded_start(&embedded, &config), 0);
	start_floods(flooders, &embedded, sqe, &stop);
	served = (const uint64_t *)((const char *)&embedded.server->counters + counter);
	kick_beside(&embedded, served, name, times_ns, foreign, kicks);
	stop_floods(flooders, &stop);
	print_message("%llu kicks beside %s: median %llu us, worst %llu us; "
		      "requests before it: median %llu, most %llu\n",
		(unsigned long long)kicks, name, (unsigned long long)times_ns[kicks / 2] / 1000,
		(unsigned long long)times_ns[kicks - 1] / 1000,
		(unsigned long long)foreign[kicks / 2], (unsigned long long)foreign[kicks - 1]);
	/* Not of each kick: the scheduler may take a worker's core away just when it has one in
	 * hand. */
	assert_in_range(times_ns[3 * kicks / 4], 0, KICK_NS);
	assert_in_range(foreign[kicks / 2], 0, FOREIGN_MAX(embedded.server->visit_requests));
	/* Nor does a flood that trickles prove anything. */
	assert_true(kvb_load_relaxed(served) > 100 * kicks);
	assert_int_equal(kvb_load_relaxed(&embedded.server->counters.missed_wakes), 0);
	assert_int_equal(embedded_stop(&embedded), 0);
	free(times_ns);
	free(foreign);
}

static void floods_do_not_hide_a_kick(void **state)
{
	const struct kvb_sqe nop = {.op = KVB_OP_NOP};
	const struct kvb_sqe put = {.op = KVB_OP_PUT,
		.flags = KVB_SQE_OPEN,
		.key_len = sizeof("flood-0") - 1,
		.total = FLOOD_LENGTH,
		.length = FLOOD_LENGTH};

	(void)state;
	check_kicks(&nop, offsetof(struct kvb_counters, nops), "ops.nops");
	check_kicks(&put, offsetof(struct kvb_counters, puts), "ops.puts");
}

int main(void)
{
	const struct sigaction action = {.sa_handler = hangs};
	const struct CMUnitTest tests[] = {
		/* First those that fork, while this process has no threads. */
		cmocka_unit_test(two_processes_never_miss_each_other),
		cmocka_unit_test(nor_when_the_server_spins),
		cmocka_unit_test(nor_when_workers_stop_anywhere),
		cmocka_unit_test(floods_do_not_hide_a_kick),
	};

	sigaction(SIGALRM, &action, NULL);
	return cmocka_run_group_tests_name("bells", tests, NULL, NULL) ? 1 : 0;
}
