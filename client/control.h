/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the client's end of the ZMQ control socket: made at first use, one request at a time.
 */
#ifndef KVB_CLIENT_CONTROL_H
#define KVB_CLIENT_CONTROL_H

#include <pthread.h>
#include <stdint.h>

struct kvb_dealer {
	pthread_mutex_t lock; /* guards what follows; a ZMQ socket is not thread-safe */
	void *context;
	void *socket;     /* NULL until used */
	uint64_t session; /* the attachment that it has presented the token of */
	uint8_t boot_id[16];
	uint64_t request; /* the last one's number */
};

void kvb_dealer_init(struct kvb_dealer *dealer);
/* No call may be inside. */
void kvb_dealer_done(struct kvb_dealer *dealer);

#endif /* KVB_CLIENT_CONTROL_H */
