/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.c - see gate.h.
 *
 * Owns two atomic words. It must never let a handler through before it was opened.
 */
#include "tests/gate.h"

#include <poll.h>
#include <stddef.h>

#include "shm/atomic.h"
#include "tests/embedded.h"

static uint32_t is_open; /* atomic */
static uint32_t inside;  /* atomic */

void gate_close(void)
{
	kvb_store_release(&is_open, 0u);
}

void gate_open(void)
{
	/* Pairs with the acquire load in gate_pass(). */
	kvb_store_release(&is_open, 1u);
}

void gate_pass(void)
{
	(void)kvb_fetch_add(&inside, 1u);
	while (!kvb_load_acquire(&is_open))
		poll(NULL, 0, 1);
	(void)kvb_fetch_sub(&inside, 1u);
}

uint32_t gate_inside(void)
{
	return kvb_load_acquire(&inside);
}

static bool as_many_inside(const void *count)
{
	return gate_inside() == *(const uint32_t *)count;
}

bool gate_wait_inside(uint32_t count)
{
	return embedded_wait(as_many_inside, &count);
}
