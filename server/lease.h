/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.h - the lease cells of all sessions, as the store scans them.
 *
 * Under the store's lock. A session's cells are in here from before its client can write them until
 * its client's end is gone, whatever becomes of the session meanwhile.
 */
#ifndef KVB_SERVER_LEASE_H
#define KVB_SERVER_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/index.h"

/* Most objects that one scan asks about. */
#define KVB_SCAN_MAX 64u

struct kvb_lease_table {
	struct kvb_lease_holder *holders;
	uint32_t n_holders;
	uint32_t room;
};

/* One object of a scan: the word that its leases have. */
struct kvb_scan {
	uint64_t words[KVB_SCAN_MAX];
	bool leased[KVB_SCAN_MAX]; /* the answers */
	uint32_t n;
};

/* Adds a session's cells under a number of the caller's choice. 0; -ENOMEM. */
int kvb_leases_add(struct kvb_lease_table *table, const struct kvb_leases *leases, uint64_t number);
void kvb_leases_remove(struct kvb_lease_table *table, uint64_t number);
void kvb_leases_free(struct kvb_lease_table *table);

/* Which of the objects are leased by anybody. The caller has put a full fence between retiring them
 * and this, or takes the answer as a hint. */
void kvb_leases_scan(const struct kvb_lease_table *table, struct kvb_scan *scan);
/* Calls fn for every lease there is, as kvb_leases_scan() finds them. The words are the clients', and may
 * be anything. */
void kvb_leases_each(
	const struct kvb_lease_table *table, void (*fn)(void *user, uint64_t word), void *user);
/* Calls fn for every object that clients say they have used since the last call, as far as they have
 * not said more than their rings hold. */
void kvb_leases_touched(
	struct kvb_lease_table *table, void (*fn)(void *user, uint64_t word), void *user);
/* How many cells a scan looks at now. */
uint64_t kvb_leases_used(const struct kvb_lease_table *table);
/* How many leases the index-th session of the table holds, and its number. False: there are fewer. */
bool kvb_leases_count(const struct kvb_lease_table *table, uint32_t index, uint64_t *ret_number,
	uint64_t *ret_leases);

#endif /* KVB_SERVER_LEASE_H */
