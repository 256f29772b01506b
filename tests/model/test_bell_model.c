/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bell_model.c - every interleaving of a bell: one producer, one consumer, one sleeping word.
 *
 * The model is shm/bell.h, step by atomic step, with a store buffer on each side as x86 has it.
 * Each part of the protocol is then left out once, and the model must find the consumer asleep over
 * an item; otherwise it proves nothing. Main thread; it must never prune: the numbers of states are
 * exact.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "kvbell/protocol.h"
#include "tests/model/explore.h"

#define ITEMS 4

enum mutant {
	SOUND,
	NO_PRODUCER_FENCE, /* between publishing and the look at the sleeping word */
	NO_CONSUMER_FENCE, /* between the sleeping word and the second look */
	NO_SECOND_LOOK,    /* the consumer sleeps at once */
	CLEAR_LAST,        /* the consumer clears the bell after its second look */
};

struct setting {
	enum mutant mutant;
	uint8_t asleep; /* KVB_SLEEPING or KVB_SLEEPING_ALWAYS */
};

enum producer_at { P_PUBLISH, P_FENCE, P_LOOK, P_TAKE, P_RING, P_END };
enum consumer_at { C_LOOK, C_ARM, C_FENCE, C_LOOK_AGAIN, C_DISARM, C_CLEAR, C_SLEEP };

struct state {
	uint8_t producer, consumer;
	uint8_t published; /* the tail as the producer sees it */
	uint8_t tail;      /* as everybody sees it */
	uint8_t taken;
	uint8_t sleeping;
	uint8_t buffer
		[2]; /* the consumer's stores to it that nobody sees yet, oldest first: value + 1 */
	uint8_t rings; /* in the eventfd: 0 or more than 0 */
};

static void store_sleeping(struct state *state, uint8_t value)
{
	state->buffer[state->buffer[0] != 0] = (uint8_t)(value + 1);
}

static void next_item(struct state *state)
{
	state->producer = state->published < ITEMS ? P_PUBLISH : P_END;
}

static bool produce(const struct setting *setting, struct state *state)
{
	bool visible = state->published == state->tail;

	switch ((enum producer_at)state->producer) {
	case P_PUBLISH:
		state->published++;
		state->producer = setting->mutant == NO_PRODUCER_FENCE ? P_LOOK : P_FENCE;
		return true;
	case P_FENCE:
		state->producer = P_LOOK;
		return visible;
	case P_LOOK:
		if (state->sleeping == KVB_AWAKE)
			next_item(state);
		else
			state->producer = state->sleeping == KVB_SLEEPING ? P_TAKE : P_RING;
		return true;
	case P_TAKE:
		state->producer = P_RING;
		if (state->sleeping == KVB_AWAKE)
			next_item(state);
		state->sleeping = KVB_AWAKE;
		return visible;
	case P_RING:
		state->rings = 1;
		next_item(state);
		return visible;
	case P_END:
		return false;
	}
	return false;
}

static void step_producer(
	struct explore *explore, const struct setting *setting, const struct state *state)
{
	struct state next = *state;

	if (state->published != state->tail) {
		next.tail++;
		explore_emit(explore, &next);
		next = *state;
	}
	if (produce(setting, &next))
		explore_emit(explore, &next);
}

/* False: it cannot move now. */
static bool consume(const struct setting *setting, struct state *state)
{
	switch ((enum consumer_at)state->consumer) {
	case C_LOOK:
		if (state->taken < state->tail)
			state->taken++;
		else
			state->consumer = C_ARM;
		return true;
	case C_ARM:
		store_sleeping(state, setting->asleep);
		state->consumer = setting->mutant == NO_CONSUMER_FENCE ? C_LOOK_AGAIN : C_FENCE;
		return true;
	case C_FENCE:
		state->consumer = C_LOOK_AGAIN;
		return true;
	case C_LOOK_AGAIN:
		if (state->taken < state->tail && setting->mutant != NO_SECOND_LOOK)
			state->consumer = C_DISARM;
		else
			state->consumer = setting->mutant == CLEAR_LAST ? C_CLEAR : C_SLEEP;
		return true;
	case C_CLEAR:
		state->rings = 0;
		state->consumer = C_SLEEP;
		return true;
	case C_SLEEP:
		if (!state->rings)
			return false;
		state->rings = 0;
		state->consumer = C_DISARM;
		return true;
	case C_DISARM:
		store_sleeping(state, KVB_AWAKE);
		state->consumer = C_LOOK;
		return true;
	}
	return false;
}

static void step_consumer(
	struct explore *explore, const struct setting *setting, const struct state *state)
{
	struct state next = *state;
	enum consumer_at at = state->consumer;

	if (state->buffer[0]) {
		next.sleeping = (uint8_t)(state->buffer[0] - 1);
		next.buffer[0] = state->buffer[1];
		next.buffer[1] = 0;
		explore_emit(explore, &next);
		/* Fences and system calls wait for the buffer; so does a third store, for want
		 * of room. */
		if (at == C_FENCE || at == C_SLEEP || at == C_CLEAR || state->buffer[1])
			return;
		next = *state;
	}
	if (consume(setting, &next))
		explore_emit(explore, &next);
}

static void step(struct explore *explore, const void *arg, const void *of)
{
	step_producer(explore, arg, of);
	step_consumer(explore, arg, of);
}

static bool done(const void *arg, const void *of)
{
	const struct state *state = of;

	(void)arg;
	return state->producer == P_END && state->taken == ITEMS && state->consumer == C_SLEEP &&
		!state->rings && !state->buffer[0];
}

static bool wrong(const void *arg, const void *of)
{
	const struct state *state = of;

	(void)arg;
	return state->taken > state->published;
}

static struct explore_result explore(enum mutant mutant, uint8_t asleep)
{
	const struct state first = {0};
	const struct setting setting = {mutant, asleep};
	const struct explore_model model = {.state_size = sizeof(first),
		.first = &first,
		.arg = &setting,
		.step = step,
		.done = done,
		.wrong = wrong};
	struct explore_result result = {0};

	assert_int_equal(explore_run(&model, &result), 0);
	print_message("%llu states, %llu stuck, %llu hopeless, %llu wrong\n",
		(unsigned long long)result.states, (unsigned long long)result.stuck,
		(unsigned long long)result.hopeless, (unsigned long long)result.wrong);
	return result;
}

static void assert_sound(const struct explore_result *result, uint64_t states)
{
	assert_int_equal(result->wrong, 0);
	assert_int_equal(result->stuck, 0);
	assert_int_equal(result->hopeless, 0);
	assert_int_equal(result->states, states);
}

static void a_sleeper_is_always_rung(void **state)
{
	struct explore_result result = explore(SOUND, KVB_SLEEPING);

	(void)state;
	assert_sound(&result, 1560);
}

static void one_that_is_rung_always_too(void **state)
{
	struct explore_result result = explore(SOUND, KVB_SLEEPING_ALWAYS);

	(void)state;
	assert_sound(&result, 1052);
}

static void each_part_is_needed(void **state)
{
	static const enum mutant mutants[] = {
		NO_PRODUCER_FENCE, NO_CONSUMER_FENCE, NO_SECOND_LOOK, CLEAR_LAST};

	(void)state;
	for (size_t i = 0; i < sizeof(mutants) / sizeof(mutants[0]); i++) {
		struct explore_result result = explore(mutants[i], KVB_SLEEPING);
		assert_true(result.stuck > 0);
		assert_int_equal(result.wrong, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sleeper_is_always_rung),
		cmocka_unit_test(one_that_is_rung_always_too),
		cmocka_unit_test(each_part_is_needed),
	};

	return cmocka_run_group_tests_name("bell_model", tests, NULL, NULL) ? 1 : 0;
}
