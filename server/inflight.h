/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inflight.h - calls of BLOCKING handlers between request and answer, their deadlines, and the
 * output queue by which they come back to the control thread.
 */
#ifndef KVB_SERVER_INFLIGHT_H
#define KVB_SERVER_INFLIGHT_H

#include <pthread.h>
#include <stdint.h>

#include "server/call.h"

struct kvb_server;
struct kvb_session;

struct kvb_inflight {
	uint64_t count; /* control: calls that exist, answered or not */

	pthread_mutex_t lock; /* guards what follows */
	struct kvb_call_list output;
};

void kvb_inflight_init(struct kvb_inflight *inflight);
/* No call may exist. */
void kvb_inflight_free(struct kvb_inflight *inflight);

/*
 * Control: sends the request of `call` on its way. 0, and the call will be answered later; -EAGAIN,
 * -ENOMEM, -ECONNRESET: answer it now. On success takes `frame`, which holds the body.
 */
int kvb_inflight_begin(const struct kvb_call *call, zmq_msg_t *frame);
/* Hands a call back to control, which sends the answer. Any thread; the caller's last touch of it. */
void kvb_inflight_give_back(struct kvb_server *server, struct kvb_call *call);

/* Control: sends what has come back, ends what is overdue. Returns when it wants to be called
 * next, or UINT64_MAX. */
uint64_t kvb_inflight_turn(struct kvb_server *server, uint64_t now_ns);
/* Control: the session has ended; its callers get -ECONNRESET and what waits for a thread is
 * dropped. */
void kvb_inflight_abandon_session(struct kvb_session *session);
/* Control, at the drain deadline: what no thread has taken yet gets -ESHUTDOWN. */
void kvb_inflight_end_queued(struct kvb_server *server);
/* Control: names the handlers that run, for one session or (NULL) for any, in the log. */
void kvb_inflight_name_running(struct kvb_server *server, const struct kvb_session *session);

#endif /* KVB_SERVER_INFLIGHT_H */
