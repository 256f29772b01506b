/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - the client as a whole: its options, its current connection, its internal thread.
 */
#ifndef KVB_CLIENT_CLIENT_H
#define KVB_CLIENT_CLIENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/inside.h"
#include "client/tickets.h"
#include "kvbell/kvbell.h"
#include "kvbell/protocol.h"

struct kvb_conn;
struct kvb_lane;
struct kvb_local;

struct kvb_client {
	/* --- constant after kvb_open() --- */
	char dir[108]; /* fits a socket address together with the longest socket name */
	char name[KVB_NAME_BYTES];
	uint32_t timeout_ms;
	uint32_t spin_us;
	uint32_t n_movers; /* 0: callers move */
	uint32_t flags;    /* KVB_OPEN_... */
	kvb_log_fn *log;
	void *log_user;
	kvb_progress_fn *progress;
	void *progress_user;
	uint32_t process; /* number of the one that opened it */
	int wake_fd;      /* eventfd: wakes the internal thread */
	pthread_t thread;

	/* --- under the lock --- */
	pthread_mutex_t lock;
	pthread_cond_t left; /* `inside` became 0 */
	struct kvb_conn
		*conn; /* holds a reference; NULL while detached. Changed by the internal thread */
	uint32_t inside; /* calls that have entered and not left */
	uint64_t attaches;
	bool closing;

	struct kvb_tickets tickets; /* with a lock of its own */
	struct kvb_lane *lanes;     /* constant between open and close, as is their number */
	unsigned n_lanes;

	/* --- reading without asking --- */
	struct kvb_local
		*local;       /* atomic; NULL while detached, and for those who may not. Changed by
				    the internal thread */
	struct kvb_inside in; /* who may be using it */

	/* --- words of their own --- */
	uint64_t missed_wakes; /* counted by whoever waits on a ring */
};

/* Begins a public call: a reference on the current connection and the call's deadline. 0; -ECHILD;
 * -ENOTCONN; -ECONNRESET the client is being closed. */
int kvb_client_enter(
	struct kvb_client *client, struct kvb_conn **ret_conn, uint64_t *ret_deadline_ns);
/* Ends it and gives the reference back. */
void kvb_client_leave(struct kvb_client *client, struct kvb_conn *conn);

/* The same where a connection is not needed. 0; -ECHILD; -ECONNRESET the client is being closed. */
int kvb_client_enter_any(struct kvb_client *client);
void kvb_client_leave_any(struct kvb_client *client);
/* Whether a call could be made now. 0; -ENOTCONN. Between enter and leave. */
int kvb_client_check(struct kvb_client *client);

/* Takes a new connection into use, and owns it, on success only. 0; -errno. */
typedef int kvb_install_fn(void *user, struct kvb_conn *conn);

/* Knocks once, and installs what it gets. `reader`: to read without asking. `wake_fd` ends the wait early
 * when it becomes readable, and wakes whoever watches the connection's door. 0; -ECANCELED; as kvb_open();
 * the error of `install`. */
int kvb_client_attach(struct kvb_client *client, bool reader, int wake_fd, uint64_t deadline_ns,
	kvb_install_fn *install, void *user);
/* The same with growing pauses, until it works. False: the client is being closed. `wake_fd` ends a
 * pause. */
bool kvb_client_attach_again(
	struct kvb_client *client, bool reader, int wake_fd, kvb_install_fn *install, void *user);
bool kvb_client_is_forked_child(const struct kvb_client *client);

void kvb_client_log(const struct kvb_client *client, enum kvb_log_level level, const char *format,
	...) __attribute__((format(printf, 3, 4)));

#endif /* KVB_CLIENT_CLIENT_H */
