/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wakes.c - no wake-up is ever lost: many sessions, two workers, clients that sleep all the
 * time.
 *
 * A server in this process and clients of bare protocol in a few threads. A client waits for its
 * bell without a re-check, so a lost wake is a hang, which its deadline turns into a failure.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kvbell/kvbell.h"
#include "server/server.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/random.h"
#include "tests/raw.h"

#define THREADS  4
#define SESSIONS 8 /* per thread */
#define ROUNDS   10000
#define BURST    5
#define PINGS    4000
/* client/connection.c */
#define RECHECK_NS (200 * KVB_NS_PER_MS)
#define SLOW_MAX   40

static struct embedded embedded;

struct crowd {
	pthread_t thread;
	uint64_t seed;
	uint64_t served;
	int error;
};

/* A burst into each of some sessions, then everything is awaited: while one is served, the kicks
 * of the others come in at every moment of a visit. */
static int one_round(struct crowd *crowd, struct raw_client *clients)
{
	unsigned sent[SESSIONS];
	struct kvb_cqe cqe;

	for (unsigned i = 0; i < SESSIONS; i++) {
		sent[i] = next_random(&crowd->seed) % (BURST + 1);
		for (unsigned n = 0; n < sent[i]; n++) {
			struct kvb_sqe nop = {.op = KVB_OP_NOP, .user_data = n};
			int r = raw_submit(&clients[i], &nop, NULL);
			if (r < 0)
				return r;
		}
	}
	for (unsigned i = 0; i < SESSIONS; i++)
		for (unsigned n = 0; n < sent[i]; n++) {
			int r = raw_complete(&clients[i], &cqe);
			if (r < 0)
				return r;
			if (cqe.user_data != n)
				return -1;
			crowd->served++;
		}
	return 0;
}

static void *run_crowd(void *arg)
{
	struct crowd *crowd = arg;
	struct raw_client clients[SESSIONS];

	for (unsigned i = 0; i < SESSIONS && crowd->error == 0; i++)
		crowd->error = raw_attach(&clients[i], embedded.dir);
	for (unsigned i = 0; i < ROUNDS && crowd->error == 0; i++)
		crowd->error = one_round(crowd, clients);
	for (unsigned i = 0; i < SESSIONS; i++)
		raw_drop(&clients[i]);
	return NULL;
}

static void check_crowds(uint32_t spin_us)
{
	struct crowd crowds[THREADS] = {0};
	struct kvb_server_options config;
	uint64_t served = 0;

	embedded_config(&config);
	config.spin_us = spin_us;
	config.staging_bytes = 64 * KVB_KIB;
	config.fragment_bytes = 4096;
	config.sessions_max = THREADS * SESSIONS;
	assert_int_equal(embedded_start(&embedded, &config), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		crowds[i].seed = i + 1;
		assert_int_equal(
			kvb_thread_start(&crowds[i].thread, "crowd", run_crowd, &crowds[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(crowds[i].thread, NULL);
		served += crowds[i].served;
	}
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(crowds[i].error, 0);
	assert_int_equal(kvb_load_relaxed(&embedded.server->counters.missed_wakes), 0);
	assert_int_equal(kvb_load_relaxed(&embedded.server->counters.nops), served);
	/* The test must have slept and been woken, or it proves nothing. */
	assert_true(kvb_load_relaxed(&embedded.server->counters.bells_rung) > ROUNDS);
	if (spin_us == 0)
		assert_true(kvb_load_relaxed(&embedded.server->counters.kicks) > ROUNDS);
	else
		assert_true(kvb_load_relaxed(&embedded.server->counters.spins) > ROUNDS);
	assert_int_equal(embedded_stop(&embedded), 0);
}

static void no_wake_is_lost(void **state)
{
	(void)state;
	check_crowds(0);
}

/* Sessions fall asleep at every moment: while requests come, and while others keep the worker
 * awake. */
static void no_wake_is_lost_while_workers_spin(void **state)
{
	(void)state;
	check_crowds(3);
	check_crowds(50);
}

/* Two threads of one client that ping in step: none has anybody after it whose answer would wake
 * it. */
struct pair {
	struct kvb_client *client;
	pthread_barrier_t both;
	uint32_t slow; /* atomic: pings that took as long as a re-check of a sleeper */
	uint32_t stop; /* atomic, looked at between two meetings of both */
};

struct pinger {
	struct pair *pair;
	pthread_t thread;
	int error;
};

static void *ping_in_step(void *arg)
{
	struct pinger *pinger = arg;
	struct pair *pair = pinger->pair;

	for (unsigned i = 0; i < PINGS && !kvb_load_acquire(&pair->stop); i++) {
		uint64_t begin_ns = kvb_now_ns();
		int r = kvb_ping(pair->client);
		if (r < 0)
			pinger->error = r;
		if (kvb_now_ns() - begin_ns > RECHECK_NS * 3 / 4)
			(void)kvb_fetch_add(&pair->slow, 1u);
		pthread_barrier_wait(&pair->both);
		if (kvb_load_acquire(&pair->slow) > SLOW_MAX)
			kvb_store_release(&pair->stop, 1u);
		pthread_barrier_wait(&pair->both);
	}
	return NULL;
}

/* Threads of one client take each other's answers while one spins. Who then sleeps, though its
 * answer is there, wakes at the re-check only; a busy machine may delay a few as long, but not
 * one in a hundred. */
static void threads_of_a_spinning_client_do_not_miss_their_answers(void **state)
{
	struct pair pair = {0};
	struct pinger pingers[2] = {{.pair = &pair}, {.pair = &pair}};
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_server_options config;
	struct kvb_info info;

	(void)state;
	embedded_config(&config);
	config.spin_us = 20;
	assert_int_equal(embedded_start(&embedded, &config), 0);
	options.dir = embedded.dir;
	options.spin_us = 10;
	assert_int_equal(kvb_open(&options, &pair.client), 0);
	pthread_barrier_init(&pair.both, NULL, 2);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(
			kvb_thread_start(&pingers[i].thread, "pinger", ping_in_step, &pingers[i]),
			0);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(pingers[i].thread, NULL);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pingers[i].error, 0);
	assert_in_range(kvb_load_acquire(&pair.slow), 0, SLOW_MAX);
	assert_int_equal(kvb_get_info(pair.client, &info), 0);
	assert_int_equal(info.missed_wakes, 0);
	kvb_close(pair.client);
	pthread_barrier_destroy(&pair.both);
	assert_int_equal(kvb_load_relaxed(&embedded.server->counters.nops), 2 * PINGS);
	assert_int_equal(kvb_load_relaxed(&embedded.server->counters.missed_wakes), 0);
	assert_int_equal(embedded_stop(&embedded), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_wake_is_lost),
		cmocka_unit_test(no_wake_is_lost_while_workers_spin),
		cmocka_unit_test(threads_of_a_spinning_client_do_not_miss_their_answers),
	};

	return cmocka_run_group_tests_name("wakes", tests, NULL, NULL) ? 1 : 0;
}
