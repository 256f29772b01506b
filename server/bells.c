/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bells.c - a bell is an open file description shared with the client, who can clear its O_NONBLOCK
 * and fill it, so that our write(2) blocks. There is no per-call escape for an eventfd; the
 * watchdog frees a thread that hangs with a signal, and the write returns -EINTR.
 *
 * Runs in workers while they serve the session, and in the control thread for the final ring, when
 * no worker can reach it any more. It must never be called without a reference or ownership that
 * keeps bell_fd open.
 */
#include "server/bells.h"

#include <errno.h>

#include "server/server.h"
#include "server/session.h"
#include "server/watchdog.h"
#include "shm/atomic.h"
#include "shm/bell.h"
#include "shm/util.h"

void kvb_session_ring_always(struct kvb_session *session, struct kvb_ringer *ringer)
{
	struct kvb_counters *counters = &session->server->counters;
	int r;

	/* Pairs with the watchdog's acquire load. */
	kvb_store_release(&ringer->since_ns, kvb_now_ns());
	r = kvb_bell_ring(session->bell_fd);
	kvb_store_release(&ringer->since_ns, (uint64_t)0);
	if (r == 0) {
		kvb_count(&counters->bells_rung, 1);
	} else if (r == 1) {
		kvb_count(&counters->bells_full, 1);
	} else {
		kvb_count(&counters->bells_blocked, 1);
		kvb_session_fail(session, KVB_REASON_BELL_BLOCKED,
			"ringing the bell blocked or failed (errno %d)", -r);
	}
}

void kvb_session_ring(struct kvb_session *session, struct kvb_ringer *ringer)
{
	if (kvb_bell_wanted(&session->header->cq_sleeping))
		kvb_session_ring_always(session, ringer);
	else
		kvb_count(&session->server->counters.bells_suppressed, 1);
}
