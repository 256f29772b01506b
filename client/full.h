/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full.h - waiting until a server's pool is all there. For programs; not part of the library.
 */
#ifndef KVB_CLIENT_FULL_H
#define KVB_CLIENT_FULL_H

#include <stdint.h>

#include "client/terminal.h"
#include "kvbell/kvbell.h"

/* Shows how far it is. 0; -ENOMEM some of the pool could not be populated; -ETIMEDOUT; the
 * errors of kvb_stats(). */
int kvb_wait_full(struct kvb_client *client, uint64_t deadline_ns, struct kvb_progress *progress);

#endif /* KVB_CLIENT_FULL_H */
