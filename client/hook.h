/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hook.h - points where an in-process test may stop a thread of the client. NULL in every program.
 */
#ifndef KVB_CLIENT_HOOK_H
#define KVB_CLIENT_HOOK_H

#include <stddef.h>

#include "shm/atomic.h"

enum kvb_client_hook_point {
	KVB_CLIENT_HOOK_MOVE,  /* a lane is about to look for items */
	KVB_CLIENT_HOOK_ASK,   /* what could not be read locally is about to go through the ring */
	KVB_CLIENT_HOOK_LEAVE, /* a driver has left the bell armed and is still the driver */
	KVB_CLIENT_HOOK_SUBMIT, /* a server was there when it was asked for, and items are about to be queued */
	KVB_CLIENT_HOOK_NUDGE, /* the client is attached again and about to wake its lanes */
};

typedef void kvb_client_hook_fn(enum kvb_client_hook_point point);

/* Set before the client is opened, cleared after it was closed. */
extern kvb_client_hook_fn *kvb_client_hook_installed;

static inline void kvb_client_hook(enum kvb_client_hook_point point)
{
	/* Relaxed: thread creation orders it against the test's store. */
	kvb_client_hook_fn *fn = kvb_load_relaxed(&kvb_client_hook_installed);
	if (__builtin_expect(fn != NULL, 0))
		fn(point);
}

#endif /* KVB_CLIENT_HOOK_H */
