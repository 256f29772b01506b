/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dealer.h - a bare ZMQ client of the control socket, for tests that must say what libkvbell never
 * would. One thread at a time per struct.
 */
#ifndef KVB_TESTS_DEALER_H
#define KVB_TESTS_DEALER_H

#include <stddef.h>
#include <stdint.h>

#include "kvbell/protocol.h"

struct dealer {
	void *context;
	void *socket;
	const struct kvb_welcome *welcome; /* whose session it speaks for */
};

struct dealer_reply {
	struct kvb_msg_header header;
	size_t size;
	uint8_t body[KVB_MSG_BODY_MAX];
};

/* Connects; `identity`: a routing id, or NULL. 0; -errno. */
int dealer_open(struct dealer *dealer, const char *dir, const struct kvb_welcome *welcome,
	const char *identity);
/* The same, and it holds at most 8 replies that the test has not read. */
int dealer_open_small(struct dealer *dealer, const char *dir, const struct kvb_welcome *welcome);
void dealer_close(struct dealer *dealer);

struct kvb_msg_header dealer_header(const struct dealer *dealer, uint16_t type, uint64_t request);
/* Header and body; waits while ZMQ is full. 0; -errno. */
int dealer_send(
	struct dealer *dealer, const struct kvb_msg_header *header, const void *body, size_t size);
/* The next reply: exactly a header of ours and a body. 0; -ETIMEDOUT after `timeout_ms`; -EPROTO. */
int dealer_receive_in(struct dealer *dealer, int timeout_ms, struct dealer_reply *ret_reply);
/* The same, within 20 s. */
int dealer_receive(struct dealer *dealer, struct dealer_reply *ret_reply);
/* Both, for one request: 0 and ret_reply answers it; -EBADMSG it answers another. */
int dealer_call(struct dealer *dealer, const struct kvb_msg_header *header, const void *body,
	size_t size, struct dealer_reply *ret_reply);

/* ATTACH with a token: its status. */
int dealer_attach_with(struct dealer *dealer, const uint8_t token[KVB_ID_BYTES]);
/* With the session's own. */
int dealer_attach(struct dealer *dealer);
/* PING: its status. */
int dealer_ping(struct dealer *dealer, uint64_t request);

#endif /* KVB_TESTS_DEALER_H */
