/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explore.c - see explore.h.
 *
 * Owns the states and edges of one exploration while it runs; the test's main thread. It must never
 * drop a state: running out of memory fails the whole exploration.
 */
#include "tests/model/explore.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_STATES 1024u /* power of two */

struct edge {
	uint32_t from, to;
};

struct explore {
	const struct explore_model *model;
	uint8_t *states;
	uint32_t n_states, room;
	uint32_t *table; /* number of the state + 1; 0: free; twice as large as room */
	struct edge *edges;
	size_t n_edges, edges_room;
	uint32_t current;
	bool failed;
};

static uint8_t *state_at(const struct explore *explore, uint32_t number)
{
	return explore->states + (size_t)number * explore->model->state_size;
}

static uint32_t hash(const uint8_t *state, size_t size)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < size; i++)
		h = (h ^ state[i]) * 0x100000001b3ull;
	return (uint32_t)(h ^ h >> 32);
}

/* The place in the table where the state is, or where it belongs. */
static uint32_t *place_of(const struct explore *explore, const void *state)
{
	size_t size = explore->model->state_size;
	uint32_t mask = 2 * explore->room - 1;
	uint32_t i = hash(state, size) & mask;

	while (explore->table[i] &&
		memcmp(state_at(explore, explore->table[i] - 1), state, size) != 0)
		i = (i + 1) & mask;
	return &explore->table[i];
}

static bool grow_states(struct explore *explore)
{
	uint32_t room = explore->room ? 2 * explore->room : FIRST_STATES;
	uint8_t *states = realloc(explore->states, room * explore->model->state_size);
	uint32_t *table;

	if (!states)
		return false;
	explore->states = states;
	table = calloc((size_t)2 * room, sizeof(*table));
	if (!table)
		return false;
	free(explore->table);
	explore->table = table;
	explore->room = room;
	for (uint32_t i = 0; i < explore->n_states; i++)
		*place_of(explore, state_at(explore, i)) = i + 1;
	return true;
}

static bool grow_edges(struct explore *explore)
{
	size_t room = explore->edges_room ? 2 * explore->edges_room : FIRST_STATES;
	struct edge *edges = realloc(explore->edges, room * sizeof(*edges));

	if (!edges)
		return false;
	explore->edges = edges;
	explore->edges_room = room;
	return true;
}

/* The state's number, new or known. */
static bool intern(struct explore *explore, const void *state, uint32_t *ret_number)
{
	uint32_t *place;

	if (explore->n_states == explore->room && !grow_states(explore))
		return false;
	place = place_of(explore, state);
	if (!*place) {
		memcpy(state_at(explore, explore->n_states), state, explore->model->state_size);
		*place = ++explore->n_states;
	}
	*ret_number = *place - 1;
	return true;
}

void explore_emit(struct explore *explore, const void *next)
{
	uint32_t to;

	if (explore->failed)
		return;
	if ((explore->n_edges == explore->edges_room && !grow_edges(explore)) ||
		!intern(explore, next, &to)) {
		explore->failed = true;
		return;
	}
	explore->edges[explore->n_edges++] = (struct edge){explore->current, to};
}

/* Marks the states from which done can be reached, against the direction of the edges. */
static void count_hopeless(
	const struct explore *explore, uint8_t *hopeful, struct explore_result *result)
{
	const struct explore_model *model = explore->model;
	bool changed = true;

	for (uint32_t i = 0; i < explore->n_states; i++)
		hopeful[i] = model->done(model->arg, state_at(explore, i));
	while (changed) {
		changed = false;
		/* Backwards, since edges were found from the first state on. */
		for (size_t i = explore->n_edges; i-- > 0;) {
			const struct edge *edge = &explore->edges[i];
			if (!hopeful[edge->to] || hopeful[edge->from])
				continue;
			hopeful[edge->from] = 1;
			changed = true;
		}
	}
	for (uint32_t i = 0; i < explore->n_states; i++)
		result->hopeless += !hopeful[i];
}

static void explore_all(struct explore *explore, struct explore_result *result)
{
	const struct explore_model *model = explore->model;
	uint8_t state[256];
	uint32_t number;

	explore->failed =
		model->state_size > sizeof(state) || !intern(explore, model->first, &number);
	for (; !explore->failed && explore->current < explore->n_states; explore->current++) {
		size_t edges_before = explore->n_edges;
		/* A copy, since emitting moves the states. */
		memcpy(state, state_at(explore, explore->current), model->state_size);
		model->step(explore, model->arg, state);
		result->wrong += model->wrong(model->arg, state);
		if (explore->n_edges == edges_before && !model->done(model->arg, state))
			result->stuck++;
	}
	result->states = explore->n_states;
}

int explore_run(const struct explore_model *model, struct explore_result *ret_result)
{
	struct explore explore = {.model = model};
	struct explore_result result = {0};
	uint8_t *hopeful = NULL;

	explore_all(&explore, &result);
	if (!explore.failed)
		hopeful = malloc(explore.n_states);
	if (hopeful) {
		count_hopeless(&explore, hopeful, &result);
		*ret_result = result;
	}
	free(explore.states);
	free(explore.table);
	free(explore.edges);
	if (!hopeful)
		return -ENOMEM;
	free(hopeful);
	return 0;
}
