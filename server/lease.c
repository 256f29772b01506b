/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - see lease.h.
 *
 * Owns the table of lease memfds' addresses, not the memory; any thread, under the store's lock. It
 * must never trust a client's number for more than what becomes of that client's own reads: every
 * index is bounded here, and a lie about its cells only takes leases away from the liar.
 */
#include "server/lease.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/atomic.h"
#include "shm/util.h"

#define FIRST_ROOM  16u
#define FILTER_BITS 1024u

struct kvb_lease_holder {
	struct kvb_leases leases;
	uint64_t number;
	uint32_t touch_head; /* how far its touch ring has been read */
};

int kvb_leases_add(struct kvb_lease_table *table, const struct kvb_leases *leases, uint64_t number)
{
	if (table->n_holders == table->room) {
		uint32_t room = table->room ? 2 * table->room : FIRST_ROOM;
		struct kvb_lease_holder *holders =
			realloc(table->holders, room * sizeof(*table->holders));
		if (!holders)
			return -ENOMEM;
		table->holders = holders;
		table->room = room;
	}
	table->holders[table->n_holders++] =
		(struct kvb_lease_holder){.leases = *leases, .number = number};
	return 0;
}

void kvb_leases_remove(struct kvb_lease_table *table, uint64_t number)
{
	for (uint32_t i = 0; i < table->n_holders; i++) {
		if (table->holders[i].number != number)
			continue;
		table->holders[i] = table->holders[--table->n_holders];
		return;
	}
}

void kvb_leases_free(struct kvb_lease_table *table)
{
	free(table->holders);
	*table = (struct kvb_lease_table){0};
}

/* How many of the holder's cells may be in use. */
static uint32_t cells_used(const struct kvb_lease_holder *holder)
{
	/* The client stores it before a cell beyond it, and both before its full fence. */
	uint32_t used = kvb_load_relaxed(&holder->leases.header->cells_used);

	return (uint32_t)kvb_min_u64(used, holder->leases.n_cells);
}

/* ---------------------------------------------------------------------------------------------- scans */

static uint32_t filter_bit(uint64_t word)
{
	return (uint32_t)(word * 0x9e3779b97f4a7c15ull >> 54);
}

static void mark(struct kvb_scan *scan, uint64_t word)
{
	for (uint32_t i = 0; i < scan->n; i++)
		if (scan->words[i] == word)
			scan->leased[i] = true;
}

void kvb_leases_scan(const struct kvb_lease_table *table, struct kvb_scan *scan)
{
	uint64_t filter[FILTER_BITS / 64] = {0};

	memset(scan->leased, 0, sizeof(scan->leased));
	/* Most cells are none of these, which one bit tells. */
	for (uint32_t i = 0; i < scan->n; i++)
		filter[filter_bit(scan->words[i]) / 64] |= 1ull << filter_bit(scan->words[i]) % 64;
	for (uint32_t h = 0; h < table->n_holders; h++) {
		const struct kvb_lease_holder *holder = &table->holders[h];
		uint32_t used = cells_used(holder);
		for (uint32_t c = 0; c < used; c++) {
			/* Pairs with the release store in kvb_lease_clear(): a cell that is seen
			 * empty has had its last read. */
			uint64_t word = kvb_load_acquire(&holder->leases.cells[c]);
			uint32_t bit = filter_bit(word);
			if (word != 0 && filter[bit / 64] >> bit % 64 & 1)
				mark(scan, word);
		}
	}
}

void kvb_leases_each(
	const struct kvb_lease_table *table, void (*fn)(void *user, uint64_t word), void *user)
{
	for (uint32_t h = 0; h < table->n_holders; h++) {
		const struct kvb_lease_holder *holder = &table->holders[h];
		uint32_t used = cells_used(holder);
		for (uint32_t c = 0; c < used; c++) {
			/* Pairs as in kvb_leases_scan(). */
			uint64_t word = kvb_load_acquire(&holder->leases.cells[c]);
			if (word != 0)
				fn(user, word);
		}
	}
}

void kvb_leases_touched(
	struct kvb_lease_table *table, void (*fn)(void *user, uint64_t word), void *user)
{
	for (uint32_t h = 0; h < table->n_holders; h++) {
		struct kvb_lease_holder *holder = &table->holders[h];
		const struct kvb_leases *leases = &holder->leases;
		uint32_t tail = kvb_load_relaxed(&leases->header->touch_tail);
		uint32_t n = (uint32_t)kvb_min_u64(
			tail - holder->touch_head, (uint64_t)leases->touch_mask + 1);
		for (uint32_t i = tail - n; i != tail; i++)
			fn(user, kvb_load_relaxed(&leases->touches[i & leases->touch_mask]));
		holder->touch_head = tail;
	}
}

uint64_t kvb_leases_used(const struct kvb_lease_table *table)
{
	uint64_t used = 0;

	for (uint32_t h = 0; h < table->n_holders; h++)
		used += cells_used(&table->holders[h]);
	return used;
}

bool kvb_leases_count(const struct kvb_lease_table *table, uint32_t index, uint64_t *ret_number,
	uint64_t *ret_leases)
{
	const struct kvb_lease_holder *holder = &table->holders[index];
	uint64_t leases = 0;
	uint32_t used;

	if (index >= table->n_holders)
		return false;
	used = cells_used(holder);
	for (uint32_t c = 0; c < used; c++)
		leases += kvb_load_relaxed(&holder->leases.cells[c]) != 0;
	*ret_number = holder->number;
	*ret_leases = leases;
	return true;
}
