/* SPDX-License-Identifier: Apache-2.0 */
/*
 * execute.h - what a worker does in a session: orders, requests, transfers.
 */
#ifndef KVB_SERVER_EXECUTE_H
#define KVB_SERVER_EXECUTE_H

#include <stdbool.h>

struct kvb_session;
struct kvb_worker;

/*
 * One bounded visit. True: there may be more, come again. False: nothing is left, and the client's next
 * submission will kick; or the session is closed for workers.
 */
bool kvb_execute(struct kvb_worker *worker, struct kvb_session *session);

#endif /* KVB_SERVER_EXECUTE_H */
