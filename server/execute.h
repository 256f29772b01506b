/* SPDX-License-Identifier: Apache-2.0 */
/*
 * execute.h - what a worker does in a session: orders, requests, transfers.
 */
#ifndef KVB_SERVER_EXECUTE_H
#define KVB_SERVER_EXECUTE_H

struct kvb_session;
struct kvb_worker;

enum kvb_visit {
	KVB_VISIT_DONE, /* nothing is left, and the client's next submission will kick; or it is closed */
	KVB_VISIT_MORE, /* there may be more, come again */
	KVB_VISIT_SPIN, /* nothing is left, but come again: the client is not to kick yet */
};

/* One bounded visit. */
enum kvb_visit kvb_execute(struct kvb_worker *worker, struct kvb_session *session);

#endif /* KVB_SERVER_EXECUTE_H */
