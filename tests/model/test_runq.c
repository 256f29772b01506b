/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_runq.c - the run queue, the bell and the last look, in every interleaving.
 *
 * Two workers, one session, a client that submits three requests; a visit serves one. Each step
 * below is one atomic step of worker.c, execute.c or kvb_bell_wanted(). A missing fence is modelled
 * by what it allows: the load that comes after the store in the program happens before it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/model/explore.h"

#define ITEMS   3
#define WORKERS 2

enum client_step { C_SUBMIT, C_LOOK, C_EXCHANGE, C_RING, C_LOOK_EARLY, C_SUBMIT_LATE };
enum run { IDLE, QUEUED, RUNNING, AGAIN };
enum worker_step {
	W_TOP,
	W_WAIT,  /* in epoll_wait, counted as idle */
	W_EVENT, /* has a kick in hand */
	W_PUSH,
	W_TAKEN,
	W_VISIT,
	W_MORE,
	W_ARM,
	W_LOOK,
	W_DISARM,
	W_LEAVE,
	W_LOOK_EARLY, /* mutant: the last look before the arming is seen */
	W_ARM_LATE,
};

struct state {
	uint8_t client, tail, head;
	uint8_t sleeping, kick;
	uint8_t run, queued;
	uint8_t idle, waked;
	uint8_t saw; /* mutants: what was loaded too early */
	uint8_t worker[WORKERS];
};

struct rules {
	bool no_again;
	bool no_last_look;
	bool no_client_fence;
	bool no_server_fence;
};

static void next_item(struct state *next)
{
	next->client = C_SUBMIT;
}

static void client_steps(struct explore *explore, const struct rules *rules, struct state next)
{
	switch (next.client) {
	case C_SUBMIT:
		if (next.tail == ITEMS)
			return;
		if (rules->no_client_fence) {
			next.saw = next.sleeping;
			next.client = C_SUBMIT_LATE;
			break;
		}
		next.tail++;
		next.client = C_LOOK;
		break;
	case C_SUBMIT_LATE:
		next.tail++;
		next.client = next.saw ? C_EXCHANGE : C_SUBMIT;
		next.saw = 0;
		break;
	case C_LOOK:
		next.client = next.sleeping ? C_EXCHANGE : C_SUBMIT;
		break;
	case C_EXCHANGE:
		next.client = next.sleeping ? C_RING : C_SUBMIT;
		next.sleeping = 0;
		break;
	default:
		next.kick = 1;
		next_item(&next);
	}
	explore_emit(explore, &next);
}

static void take_event(struct explore *explore, struct state next, unsigned w, bool was_idle)
{
	next.kick = 0;
	next.idle -= was_idle;
	next.worker[w] = W_EVENT;
	explore_emit(explore, &next);
}

static void take_wake(struct explore *explore, struct state next, unsigned w)
{
	next.waked--;
	next.idle--;
	next.worker[w] = W_TOP;
	explore_emit(explore, &next);
}

static void worker_top(struct explore *explore, struct state next, unsigned w)
{
	/* Between visits a worker may also harvest without waiting. */
	if (next.kick)
		take_event(explore, next, w, false);
	if (next.queued) {
		next.queued--;
		next.worker[w] = W_TAKEN;
	} else {
		next.idle++;
		next.worker[w] = W_WAIT;
	}
	explore_emit(explore, &next);
}

static void handle_kick(struct state *next, const struct rules *rules, unsigned w)
{
	next->worker[w] = W_TOP;
	if (next->run == IDLE) {
		next->run = QUEUED;
		next->worker[w] = W_PUSH;
	} else if (next->run == RUNNING && !rules->no_again) {
		next->run = AGAIN;
	}
}

static void leave(struct state *next, unsigned w)
{
	if (next->run == RUNNING) {
		next->run = IDLE;
		next->worker[w] = W_TOP;
	} else {
		next->worker[w] = W_MORE;
	}
}

/* Steps that cannot branch. */
static void worker_moves(struct state *next, const struct rules *rules, unsigned w)
{
	uint8_t *step = &next->worker[w];
	bool empty = next->tail == next->head;

	switch (*step) {
	case W_EVENT:
		handle_kick(next, rules, w);
		break;
	case W_PUSH:
		next->queued++;
		if (next->idle > next->waked)
			next->waked++;
		*step = W_TOP;
		break;
	case W_TAKEN:
		next->run = RUNNING;
		*step = W_VISIT;
		break;
	case W_VISIT:
		*step = !empty ? W_MORE : rules->no_server_fence ? W_LOOK_EARLY : W_ARM;
		next->head += !empty;
		break;
	case W_MORE:
		next->run = QUEUED;
		*step = W_PUSH;
		break;
	case W_ARM:
		next->sleeping = 1;
		*step = rules->no_last_look ? W_LEAVE : W_LOOK;
		break;
	case W_LOOK:
		*step = empty ? W_LEAVE : W_DISARM;
		break;
	case W_LOOK_EARLY:
		*step = empty ? W_ARM_LATE : W_MORE;
		break;
	case W_ARM_LATE:
		next->sleeping = 1;
		*step = W_LEAVE;
		break;
	case W_DISARM:
		next->sleeping = 0;
		*step = W_MORE;
		break;
	default:
		leave(next, w);
	}
}

static void step(struct explore *explore, const void *arg, const void *from)
{
	struct state state = *(const struct state *)from;

	client_steps(explore, arg, state);
	for (unsigned w = 0; w < WORKERS; w++) {
		struct state next = state;
		if (state.worker[w] == W_TOP) {
			worker_top(explore, next, w);
		} else if (state.worker[w] == W_WAIT) {
			if (state.kick)
				take_event(explore, next, w, true);
			if (state.waked)
				take_wake(explore, next, w);
		} else {
			worker_moves(&next, arg, w);
			explore_emit(explore, &next);
		}
	}
}

static bool done(const void *arg, const void *of)
{
	const struct state *state = of;

	(void)arg;
	return state->head == ITEMS && state->client == C_SUBMIT;
}

static bool is_inside(uint8_t step)
{
	return step >= W_VISIT && step != W_MORE;
}

static bool wrong(const void *arg, const void *of)
{
	const struct state *state = of;

	(void)arg;
	return (is_inside(state->worker[0]) && is_inside(state->worker[1])) ||
		state->head > state->tail || state->queued > 1;
}

static struct explore_result explore(struct rules rules)
{
	/* A new session: nobody has looked yet, so the first submission kicks. */
	const struct state first = {.sleeping = 1};
	const struct explore_model model = {.state_size = sizeof(first),
		.first = &first,
		.arg = &rules,
		.step = step,
		.done = done,
		.wrong = wrong};
	struct explore_result result = {0};

	assert_int_equal(explore_run(&model, &result), 0);
	return result;
}

static void no_state_is_stuck(void **state)
{
	struct explore_result result = explore((struct rules){0});

	(void)state;
	assert_int_equal(result.stuck, 0);
	assert_int_equal(result.hopeless, 0);
	assert_int_equal(result.wrong, 0);
	/* The whole space: a model that shrinks proves less. */
	assert_int_equal(result.states, 4043);
}

static void without_again_it_sticks(void **state)
{
	(void)state;
	assert_true(explore((struct rules){.no_again = true}).stuck > 0);
}

static void without_the_last_look_it_sticks(void **state)
{
	(void)state;
	assert_true(explore((struct rules){.no_last_look = true}).stuck > 0);
}

static void without_the_clients_fence_it_sticks(void **state)
{
	(void)state;
	assert_true(explore((struct rules){.no_client_fence = true}).stuck > 0);
}

static void without_the_servers_fence_it_sticks(void **state)
{
	(void)state;
	assert_true(explore((struct rules){.no_server_fence = true}).stuck > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_state_is_stuck),
		cmocka_unit_test(without_again_it_sticks),
		cmocka_unit_test(without_the_last_look_it_sticks),
		cmocka_unit_test(without_the_clients_fence_it_sticks),
		cmocka_unit_test(without_the_servers_fence_it_sticks),
	};

	return cmocka_run_group_tests_name("runq", tests, NULL, NULL) ? 1 : 0;
}
