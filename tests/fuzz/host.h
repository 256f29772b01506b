/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.h - a server with one session, in plain memory and without threads or descriptors, for targets
 * that play its client.
 */
#ifndef KVB_TESTS_FUZZ_HOST_H
#define KVB_TESTS_FUZZ_HOST_H

#include "server/server.h"

#define KVB_FUZZ_FRAGMENT 1024u
#define KVB_FUZZ_POOL     (32u * 1024)

struct kvb_fuzz_host {
	struct kvb_server server;
	struct kvb_session *session;
	struct kvb_worker worker;
};

/* Once. */
struct kvb_fuzz_host *kvb_fuzz_host_new(void);
/* Makes the session as new. */
void kvb_fuzz_host_begin(struct kvb_fuzz_host *host);
/* Ends the session, and demands that nothing of it is left. `recount`: and that the store's books are
 * right, which takes longer than most inputs. */
void kvb_fuzz_host_end(struct kvb_fuzz_host *host, bool recount);
/* As a worker would: visits, until there is nothing more to be done. Returns how many requests were
 * completed. */
uint32_t kvb_fuzz_host_serve(struct kvb_fuzz_host *host);
/* Takes the completions that are there, as an honest client would. */
void kvb_fuzz_host_reap(struct kvb_fuzz_host *host);

#endif /* KVB_TESTS_FUZZ_HOST_H */
