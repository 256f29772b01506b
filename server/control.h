/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the ZMQ ROUTER. Everything here belongs to the control thread.
 */
#ifndef KVB_SERVER_CONTROL_H
#define KVB_SERVER_CONTROL_H

#include <pthread.h>
#include <stdbool.h>

struct kvb_server;

struct kvb_control {
	void *context;
	void *router;
	pthread_t owner;
};

/* Binds control.sock and makes the ROUTER. 0; -errno, logged. */
int kvb_control_open(struct kvb_server *server);
/* Answers what has arrived, up to a bound, so that other sources get their turn; the rest comes
 * up again. */
void kvb_control_serve(struct kvb_server *server);
void kvb_control_close(struct kvb_server *server);
/* The socket. Asserts that the control thread asks. */
void *kvb_control_router(struct kvb_server *server);

/* The control thread's main; arg is the server. Its first act is to say how the start went. */
void *kvb_control_main(void *arg);

#endif /* KVB_SERVER_CONTROL_H */
