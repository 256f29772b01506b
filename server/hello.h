/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hello.h - what a client says of itself at the door, apart from the socket that it came through.
 */
#ifndef KVB_SERVER_HELLO_H
#define KVB_SERVER_HELLO_H

#include "kvbell/protocol.h"

/* What is wrong with it, for its sender to read, and the reason to give; NULL: nothing. */
const char *kvb_hello_fault(const struct kvb_hello *hello, enum kvb_reason *ret_reason);

/* The client's name as it may go to logs and terminals: only what prints, zero-padded. */
void kvb_hello_name(const struct kvb_hello *hello, char ret_name[KVB_NAME_BYTES]);

#endif /* KVB_SERVER_HELLO_H */
