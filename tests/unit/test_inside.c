/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_inside.c - who waits for those inside comes to an end, however many threads there are and however
 * busy; and fork(2) leaves a child nothing that it would wait for.
 *
 * pthread_mutex_unlock() is replaced, so that one thread can be kept in it. Threads assert nothing.
 */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "client/inside.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/gate.h"
#include "tests/process.h"

static struct kvb_inside inside;
static uint32_t go_home; /* atomic: to the runners */

/* ------------------------------------------------------------------------------- without a word of their own */

static pthread_mutex_t house = PTHREAD_MUTEX_INITIALIZER; /* the test's while all are to stay */

/* Takes one of the words, and keeps it. */
static void *sit(void *arg)
{
	(void)kvb_inside_thread();
	(void)kvb_fetch_add((uint32_t *)arg, 1u);
	pthread_mutex_lock(&house);
	pthread_mutex_unlock(&house);
	return NULL;
}

/* Two threads that hand the stay inside over: one comes before the other leaves. */
struct relay {
	uint32_t turn; /* atomic: its lowest bit says who is to come in */
	uint32_t shared;
};

struct runner {
	struct relay *relay;
	uint32_t number;
	pthread_t thread;
};

static void *run_relay(void *arg)
{
	struct runner *runner = arg;
	struct relay *relay = runner->relay;

	(void)kvb_fetch_add(&relay->shared, kvb_inside_thread() == KVB_INSIDE_WORDS ? 1u : 0u);
	for (;;) {
		uint32_t turn = kvb_load_acquire(&relay->turn);
		if (kvb_load_acquire(&go_home))
			return NULL;
		if (turn % 2 != runner->number) {
			kvb_cpu_relax();
			continue;
		}
		kvb_inside_enter(&inside);
		kvb_store_release(&relay->turn, turn + 1);
		/* The other one is inside, too, before this one leaves. */
		while (kvb_load_acquire(&relay->turn) == turn + 1 && !kvb_load_acquire(&go_home))
			kvb_cpu_relax();
		kvb_inside_leave(&inside);
	}
}

static void *wait_once(void *arg)
{
	kvb_inside_wait(&inside);
	kvb_store_release((uint32_t *)arg, 1u);
	return NULL;
}

static bool is_set(const void *arg)
{
	return kvb_load_acquire((const uint32_t *)arg) == 1;
}

static void waiting_ends_although_others_follow(void **state)
{
	static pthread_t seats[KVB_INSIDE_WORDS];
	struct relay relay = {0};
	struct runner runners[2];
	uint32_t seated = 0, done = 0;
	pthread_t waiter;
	bool ended;

	(void)state;
	pthread_mutex_lock(&house);
	for (uint32_t i = 0; i < KVB_INSIDE_WORDS; i++)
		assert_int_equal(kvb_thread_start(&seats[i], "seat", sit, &seated), 0);
	while (kvb_load_acquire(&seated) < KVB_INSIDE_WORDS)
		(void)poll(NULL, 0, 1);
	for (uint32_t i = 0; i < 2; i++) {
		runners[i] = (struct runner){.relay = &relay, .number = i};
		assert_int_equal(
			kvb_thread_start(&runners[i].thread, "runner", run_relay, &runners[i]), 0);
	}
	while (kvb_load_acquire(&relay.turn) < 10)
		(void)poll(NULL, 0, 1);
	assert_int_equal(kvb_thread_start(&waiter, "waiter", wait_once, &done), 0);
	ended = embedded_wait(is_set, &done);
	kvb_store_release(&go_home, 1u);
	pthread_mutex_unlock(&house);
	pthread_join(waiter, NULL);
	for (uint32_t i = 0; i < 2; i++)
		pthread_join(runners[i].thread, NULL);
	for (uint32_t i = 0; i < KVB_INSIDE_WORDS; i++)
		pthread_join(seats[i], NULL);
	assert_int_equal(relay.shared, 2);
	assert_true(ended);
}

/* ---------------------------------------------------------------------------------------------- a fork */

static __thread bool stays_in_unlock;

int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	if (stays_in_unlock) {
		stays_in_unlock = false;
		gate_pass();
	}
	return __real_pthread_mutex_unlock(mutex);
}

static void *take_slowly(void *arg)
{
	stays_in_unlock = true;
	*(uint32_t *)arg = kvb_inside_thread();
	return NULL;
}

/* The child's only thread has not asked for a number yet, and the first is free. */
static int take_in_child(void *arg)
{
	(void)arg;
	if (kvb_inside_thread() != 0)
		return 1;
	kvb_inside_enter(&inside);
	kvb_inside_leave(&inside);
	kvb_inside_wait(&inside);
	return 0;
}

static void a_child_waits_for_no_thread_of_its_parent(void **state)
{
	uint32_t number = KVB_INSIDE_WORDS;
	pthread_t taker;
	pid_t child;

	(void)state;
	kvb_inside_prepare();
	gate_close();
	assert_int_equal(kvb_thread_start(&taker, "taker", take_slowly, &number), 0);
	assert_true(gate_wait_inside(1));
	child = process_fork(take_in_child, NULL);
	assert_int_equal(process_wait(child, 20000), 0);
	gate_open();
	pthread_join(taker, NULL);
	assert_int_equal(number, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_child_waits_for_no_thread_of_its_parent),
		cmocka_unit_test(waiting_ends_although_others_follow),
	};

	return cmocka_run_group_tests_name("inside", tests, NULL, NULL) ? 1 : 0;
}
