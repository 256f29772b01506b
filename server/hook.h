/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hook.h - points where an in-process test may stop a server thread or get ahead of it. NULL in every program.
 */
#ifndef KVB_SERVER_HOOK_H
#define KVB_SERVER_HOOK_H

#include <stdint.h>

#include "shm/atomic.h"

enum kvb_hook_point {
	KVB_HOOK_EVENT_TAKEN, /* a worker left epoll_wait and has not looked its event up */
	KVB_HOOK_COPY,        /* a worker is about to copy a fragment */
	KVB_HOOK_SPIN,        /* a worker found no request and is about to look for a moment */
};

typedef void kvb_hook_fn(enum kvb_hook_point point, uint32_t slot);

/* Set before the server starts, cleared after it stopped. */
extern kvb_hook_fn *kvb_hook_installed;

static inline void kvb_hook(enum kvb_hook_point point, uint32_t slot)
{
	/* Relaxed: thread creation orders it against the test's store. */
	kvb_hook_fn *fn = kvb_load_relaxed(&kvb_hook_installed);
	if (__builtin_expect(fn != NULL, 0))
		fn(point, slot);
}

#endif /* KVB_SERVER_HOOK_H */
