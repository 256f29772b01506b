/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guest.h - a client with one connection, in plain memory and without threads or sockets, for targets
 * that play its server.
 */
#ifndef KVB_TESTS_FUZZ_GUEST_H
#define KVB_TESTS_FUZZ_GUEST_H

#include "client/client.h"
#include "client/connection.h"

#define KVB_FUZZ_CREDIT    8u
#define KVB_FUZZ_TRANSFERS 4u
#define KVB_FUZZ_STAGING   16384u
#define KVB_FUZZ_PIECE     4096u /* of payload in one descriptor */
#define KVB_FUZZ_OBJECT    (64u * 1024)

struct kvb_fuzz_guest {
	struct kvb_client client;
	struct kvb_conn *conn;
	void (*kicked)(
		struct kvb_fuzz_guest *guest); /* whenever the server would be woken; may be NULL */
};

/* Once. There is one in a process. */
struct kvb_fuzz_guest *kvb_fuzz_guest_new(void);
/* Makes the connection as new. */
void kvb_fuzz_guest_begin(struct kvb_fuzz_guest *guest);
/* Posts a completion as the server would, right or wrong. */
void kvb_fuzz_guest_post(struct kvb_fuzz_guest *guest, const struct kvb_cqe *cqe);

#endif /* KVB_TESTS_FUZZ_GUEST_H */
