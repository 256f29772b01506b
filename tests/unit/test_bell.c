/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bell.c - who is rung, how often, and what a bell answers. tests/model/test_bell_model.c has
 * the interleavings, test_ring.c the threads.
 *
 * Helper threads block in a ring on purpose, or race for the sleeping word; they assert nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "kvbell/protocol.h"
#include "shm/atomic.h"
#include "shm/bell.h"
#include "shm/threads.h"

#define FULL (UINT64_MAX - 1)

static void nobody_rings_one_who_is_awake(void **state)
{
	uint32_t word = KVB_AWAKE;

	(void)state;
	assert_false(kvb_bell_wanted(&word));
	assert_int_equal(word, KVB_AWAKE);
}

static void a_sleep_is_rung_once(void **state)
{
	uint32_t word = KVB_AWAKE;

	(void)state;
	kvb_bell_arm(&word);
	assert_int_equal(word, KVB_SLEEPING);
	assert_true(kvb_bell_wanted(&word));
	assert_int_equal(word, KVB_AWAKE);
	assert_false(kvb_bell_wanted(&word));
	kvb_bell_arm(&word);
	assert_true(kvb_bell_wanted(&word));
}

static void a_sleeper_can_think_better_of_it(void **state)
{
	uint32_t word = KVB_AWAKE;

	(void)state;
	kvb_bell_arm(&word);
	kvb_bell_disarm(&word);
	assert_int_equal(word, KVB_AWAKE);
	assert_false(kvb_bell_wanted(&word));
}

static void always_is_rung_each_time_and_stays(void **state)
{
	uint32_t word = KVB_SLEEPING_ALWAYS;

	(void)state;
	for (int i = 0; i < 3; i++) {
		assert_true(kvb_bell_wanted(&word));
		assert_int_equal(word, KVB_SLEEPING_ALWAYS);
	}
}

static void an_unknown_word_is_rung_and_left_alone(void **state)
{
	uint32_t word = 77;

	(void)state;
	assert_true(kvb_bell_wanted(&word));
	assert_int_equal(word, 77);
}

static void rings_add_up_and_are_taken_together(void **state)
{
	int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	eventfd_t rings = 0;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(kvb_bell_clear(fd), -EAGAIN);
	for (int i = 0; i < 3; i++)
		assert_int_equal(kvb_bell_ring(fd), 0);
	assert_int_equal(eventfd_read(fd, &rings), 0);
	assert_int_equal(rings, 3);
	assert_int_equal(kvb_bell_ring(fd), 0);
	assert_int_equal(kvb_bell_clear(fd), 0);
	assert_int_equal(kvb_bell_clear(fd), -EAGAIN);
	close(fd);
}

static void a_full_bell_counts_as_rung(void **state)
{
	int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	eventfd_t rings = 0;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(eventfd_write(fd, FULL), 0);
	assert_int_equal(kvb_bell_ring(fd), 1);
	assert_int_equal(eventfd_read(fd, &rings), 0);
	assert_true(rings == FULL);
	assert_int_equal(kvb_bell_ring(fd), 0);
	close(fd);
}

static void a_closed_bell_says_so(void **state)
{
	int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(kvb_bell_ring(fd), -EBADF);
	assert_int_equal(kvb_bell_clear(fd), -EBADF);
}

/* ------------------------------------------------------------------------ a peer that makes it block */

struct ringer {
	int fd;
	int result;
	uint32_t done; /* atomic */
};

static void ignore(int signal)
{
	(void)signal;
}

static void *ring(void *arg)
{
	struct ringer *ringer = arg;

	ringer->result = kvb_bell_ring(ringer->fd);
	kvb_store_release(&ringer->done, 1u);
	return NULL;
}

/* The peer has cleared O_NONBLOCK and filled the counter; the watchdog's signal frees the ringer. */
static void a_signal_frees_a_blocked_ringer(void **state)
{
	const struct sigaction action = {.sa_handler = ignore};
	struct ringer ringer = {.fd = eventfd(0, EFD_CLOEXEC)};
	struct sigaction before;
	eventfd_t rings = 0;
	pthread_t thread;

	(void)state;
	assert_true(ringer.fd >= 0);
	assert_int_equal(eventfd_write(ringer.fd, FULL), 0);
	assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
	assert_int_equal(pthread_create(&thread, NULL, ring, &ringer), 0);
	/* Again until it works: the first ones may come before the write. */
	while (!kvb_load_acquire(&ringer.done)) {
		pthread_kill(thread, SIGUSR1);
		sched_yield();
	}
	pthread_join(thread, NULL);
	assert_int_equal(ringer.result, -EINTR);
	/* Nothing was added. */
	assert_int_equal(eventfd_read(ringer.fd, &rings), 0);
	assert_true(rings == FULL);
	assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
	close(ringer.fd);
}

/* ---------------------------------------------------------------------------- both sides at once */

#define ROUNDS     400000u
#define SPINS      1000u
#define SWEEP      64u
#define WORDS_LINE 32 /* 32-bit words */

/* Words of different writers lie apart, as in a session's header. */
struct race {
	uint32_t tail[WORDS_LINE];
	uint32_t sleeping[WORDS_LINE];
	uint32_t round[2][WORDS_LINE]; /* atomic: how far each side is */
	uint32_t wanted[WORDS_LINE];   /* by the producer, before it says that its round is over */
	uint32_t seen, missed, rung;   /* by the consumer */
};

/* Waits for the other side to be as far, awake as long as that is soon. */
static void meet(struct race *race, int side, uint32_t round)
{
	unsigned spins = 0;

	kvb_store_release(&race->round[side][0], round);
	while ((int32_t)(kvb_load_acquire(&race->round[!side][0]) - round) < 0)
		if (++spins % SPINS == 0)
			sched_yield();
}

/* Brings the other's word into this core's cache, where the look finds its old value at once, while
 * the store must wait for the other core: without a fence that is when the two change places. */
static void touch(const uint32_t *word)
{
	(void)kvb_load_relaxed(word);
}

/* Sweeps over how far the two sides are apart when they look. */
static void wait_a_little(uint32_t loops)
{
	for (uint32_t i = 0; i < loops; i++)
		__asm__ volatile("");
}

/* Two on one core never run at the same time, and on a busy machine they may stay there. */
static void pin_self(unsigned number)
{
	cpu_set_t allowed, own;
	unsigned seen = 0;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0 || CPU_COUNT(&allowed) < 2)
		return;
	CPU_ZERO(&own);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &allowed) && seen++ == number)
			CPU_SET(cpu, &own);
	(void)sched_setaffinity(0, sizeof(own), &own);
}

static void *publish(void *arg)
{
	struct race *race = arg;

	pin_self(0);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		meet(race, 0, 2 * i + 1);
		touch(&race->sleeping[0]);
		wait_a_little(i % SWEEP);
		kvb_store_release(&race->tail[0], i + 1);
		kvb_store_relaxed(&race->wanted[0], (uint32_t)kvb_bell_wanted(&race->sleeping[0]));
		meet(race, 0, 2 * i + 2);
	}
	return NULL;
}

static void go_to_sleep(struct race *race)
{
	for (uint32_t i = 0; i < ROUNDS; i++) {
		bool seen, wanted;
		meet(race, 1, 2 * i + 1);
		touch(&race->tail[0]);
		wait_a_little(i / SWEEP % SWEEP);
		kvb_bell_arm(&race->sleeping[0]);
		seen = kvb_load_acquire(&race->tail[0]) == i + 1;
		meet(race, 1, 2 * i + 2);
		wanted = kvb_load_relaxed(&race->wanted[0]);
		race->missed += !seen && !wanted;
		race->seen += seen;
		race->rung += wanted;
		kvb_bell_disarm(&race->sleeping[0]);
	}
}

/* The store-buffer litmus test: each side stores its word and looks at the other's. Without
 * either fence both may look too early. */
static void one_of_the_two_always_notices(void **state)
{
	static struct race race;
	cpu_set_t before;
	pthread_t producer;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	assert_int_equal(kvb_thread_start(&producer, "producer", publish, &race), 0);
	pin_self(1);
	go_to_sleep(&race);
	pthread_join(producer, NULL);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
	assert_int_equal(race.missed, 0);
	assert_true(race.seen + race.rung >= ROUNDS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_rings_one_who_is_awake),
		cmocka_unit_test(a_sleep_is_rung_once),
		cmocka_unit_test(a_sleeper_can_think_better_of_it),
		cmocka_unit_test(always_is_rung_each_time_and_stays),
		cmocka_unit_test(an_unknown_word_is_rung_and_left_alone),
		cmocka_unit_test(rings_add_up_and_are_taken_together),
		cmocka_unit_test(a_full_bell_counts_as_rung),
		cmocka_unit_test(a_closed_bell_says_so),
		cmocka_unit_test(a_signal_frees_a_blocked_ringer),
		cmocka_unit_test(one_of_the_two_always_notices),
	};

	return cmocka_run_group_tests_name("bell", tests, NULL, NULL) ? 1 : 0;
}
