/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explore.h - every state that a small model can reach, and what is wrong with it.
 *
 * A model is a struct without padding and a function that emits each state one atomic step away.
 * The exploration is breadth first and complete: what it does not find cannot happen in the model.
 */
#ifndef KVB_TESTS_MODEL_EXPLORE_H
#define KVB_TESTS_MODEL_EXPLORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct explore;

struct explore_model {
	size_t state_size;
	const void *first;
	const void *arg; /* for the functions below */
	/* Calls explore_emit() for every state that is one step away. */
	void (*step)(struct explore *explore, const void *arg, const void *state);
	/* True when all there was to do is done. */
	bool (*done)(const void *arg, const void *state);
	/* True when the state must never be. */
	bool (*wrong)(const void *arg, const void *state);
};

struct explore_result {
	uint64_t states;
	uint64_t stuck;    /* no step is left and not all is done */
	uint64_t hopeless; /* no sequence of steps leads to done; stuck states are among them */
	uint64_t wrong;
};

void explore_emit(struct explore *explore, const void *next);
/* 0; -ENOMEM. */
int explore_run(const struct explore_model *model, struct explore_result *ret_result);

#endif /* KVB_TESTS_MODEL_EXPLORE_H */
