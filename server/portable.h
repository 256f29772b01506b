/* SPDX-License-Identifier: Apache-2.0 */
/*
 * portable.h - requests that came by control message: the session's private queue.
 *
 * The control thread appends; whoever serves the session pops, one worker at a time. Private
 * memory, made at the first use, since most clients never use it.
 */
#ifndef KVB_SERVER_PORTABLE_H
#define KVB_SERVER_PORTABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "kvbell/protocol.h"

struct kvb_call;
struct kvb_portable_entry;

struct kvb_portable {
	struct kvb_portable_entry *entries; /* control; published with the first tail */
	uint32_t mask;                      /* control */
	uint32_t tail;                      /* atomic, written by control */
	uint32_t head;                      /* atomic, written by the serving worker */
};

/* Control, when no worker can reach the session. */
void kvb_portable_reset(struct kvb_portable *portable);

/* Worker: copies the next request out. False: nothing is there. */
bool kvb_portable_pop(
	struct kvb_portable *portable, struct kvb_sqe *ret_sqe, uint8_t ret_key[KVB_KEY_MAX]);
bool kvb_portable_empty(const struct kvb_portable *portable);

/* The handler of KVB_MSG_SUBMIT. */
int kvb_portable_handle_submit(struct kvb_call *call, void *unused);

#endif /* KVB_SERVER_PORTABLE_H */
