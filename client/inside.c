/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inside.c - see inside.h.
 *
 * Owns the numbers of the process's threads. A thread takes one at its first operation and gives it
 * back when it ends. The fast side is two plain stores: membarrier(2) in the thread that unmaps makes
 * up for the fence that is missing between the first store and the load of what is to be used. It must
 * never be held over a wait for another thread.
 */
#include "client/inside.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/atomic.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_end;
static bool have_membarrier;
static pthread_mutex_t numbers_lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t numbers[KVB_INSIDE_WORDS]; /* taken */

/* One more than the number; 0: none was asked for yet. */
static __thread uint32_t own_number __attribute__((tls_model("initial-exec")));
/* Where this thread is counted while it is inside without a word of its own. */
static __thread uint32_t shared_word __attribute__((tls_model("initial-exec")));

static void give_back(void *number)
{
	pthread_mutex_lock(&numbers_lock);
	numbers[(uintptr_t)number - 1] = 0;
	pthread_mutex_unlock(&numbers_lock);
	own_number = 0;
}

static long membarrier(int command)
{
	return syscall(SYS_membarrier, command, 0, 0);
}

/* The others did not come along, whatever they held and had. */
static void be_alone(void)
{
	pthread_mutex_init(&numbers_lock, NULL);
	memset(numbers, 0, sizeof(numbers));
	if (own_number > 0 && own_number <= KVB_INSIDE_WORDS)
		numbers[own_number - 1] = 1;
}

static void prepare(void)
{
	(void)pthread_atfork(NULL, NULL, be_alone);
	(void)pthread_key_create(&thread_end, give_back);
	have_membarrier = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

void kvb_inside_prepare(void)
{
	pthread_once(&once, prepare);
}

static uint32_t take_number(void)
{
	uint32_t number = KVB_INSIDE_WORDS;

	pthread_mutex_lock(&numbers_lock);
	for (uint32_t i = 0; i < KVB_INSIDE_WORDS; i++) {
		if (numbers[i])
			continue;
		numbers[i] = 1;
		number = i;
		break;
	}
	pthread_mutex_unlock(&numbers_lock);
	/* Without the notice at its end the number would never come back. */
	if (number < KVB_INSIDE_WORDS &&
		pthread_setspecific(thread_end, (void *)(uintptr_t)(number + 1)) != 0) {
		pthread_mutex_lock(&numbers_lock);
		numbers[number] = 0;
		pthread_mutex_unlock(&numbers_lock);
		number = KVB_INSIDE_WORDS;
	}
	own_number = number + 1;
	return number;
}

uint32_t kvb_inside_thread(void)
{
	return own_number ? own_number - 1 : take_number();
}

void kvb_inside_fence(void)
{
	if (__builtin_expect(have_membarrier, 1))
		__asm__ volatile("" : : : "memory");
	else
		kvb_fence_full();
}

static void enter_shared(struct kvb_inside *inside)
{
	shared_word = KVB_INSIDE_WORDS + (kvb_load_relaxed(&inside->turn) & 1);
	(void)kvb_fetch_add(&inside->words[shared_word].inside, 1u);
}

void kvb_inside_enter(struct kvb_inside *inside)
{
	uint32_t number = kvb_inside_thread();

	if (__builtin_expect(number < KVB_INSIDE_WORDS, 1))
		kvb_store_relaxed(&inside->words[number].inside, 1u);
	else
		enter_shared(inside);
	/* Pairs with kvb_inside_barrier() in kvb_inside_wait(). */
	kvb_inside_fence();
}

void kvb_inside_leave(struct kvb_inside *inside)
{
	uint32_t number = kvb_inside_thread();

	/* Pairs with the acquire loads in wait_for_word(): all this thread did is done. */
	if (__builtin_expect(number < KVB_INSIDE_WORDS, 1))
		kvb_store_release(&inside->words[number].inside, 0u);
	else
		(void)kvb_fetch_sub(&inside->words[shared_word].inside, 1u);
}

void kvb_inside_barrier(void)
{
	if (have_membarrier)
		(void)membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
	kvb_fence_full();
}

static void wait_for_word(struct kvb_inside *inside, uint32_t number)
{
	const struct timespec moment = {.tv_nsec = 20000};

	/* Pairs with the release store in kvb_inside_leave(). */
	while (kvb_load_acquire(&inside->words[number].inside))
		(void)nanosleep(&moment, NULL);
}

void kvb_inside_wait(struct kvb_inside *inside)
{
	uint32_t turn;

	kvb_inside_barrier();
	for (uint32_t i = 0; i < KVB_INSIDE_WORDS; i++)
		wait_for_word(inside, i);
	/* Who read the turn before it changes, and counts himself only afterwards, has not yet loaded
	 * what was taken out of sight. */
	turn = kvb_load_relaxed(&inside->turn);
	wait_for_word(inside, KVB_INSIDE_WORDS + (~turn & 1));
	(void)kvb_fetch_add(&inside->turn, 1u);
	wait_for_word(inside, KVB_INSIDE_WORDS + (turn & 1));
}
