/* SPDX-License-Identifier: Apache-2.0 */
/*
 * records.h - what a server says at the door, apart from the socket that it came through.
 */
#ifndef KVB_CLIENT_RECORDS_H
#define KVB_CLIENT_RECORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "kvbell/protocol.h"
#include "shm/ring.h"

bool kvb_is_goodbye(const struct kvb_goodbye *goodbye, size_t size);
/* The server's word, if it is one that kvb_open() documents. */
int kvb_goodbye_error(const struct kvb_goodbye *goodbye);
/* Somebody else's bytes, on their way to a terminal: ends the text, and takes control characters out. */
void kvb_goodbye_clean(struct kvb_goodbye *goodbye);

/* 0, and where the parts of the session segment lie, all within session_bytes; -EPROTONOSUPPORT;
 * -EPROTO. */
int kvb_welcome_verify(
	const struct kvb_welcome *welcome, size_t size, struct kvb_layout *ret_layout);

#endif /* KVB_CLIENT_RECORDS_H */
