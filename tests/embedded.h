/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embedded.h - a server inside the test's process, where hooks and sanitizers can see it.
 */
#ifndef KVB_TESTS_EMBEDDED_H
#define KVB_TESTS_EMBEDDED_H

#include "server/server.h"

struct embedded {
	struct kvb_server *server;
	char dir[64];
	char *log; /* all lines since the start; guarded by the server being stopped or idle */
	size_t log_len;
	pthread_mutex_t log_lock;
};

/* Defaults that suit tests: a pool of 64 MiB, 2 workers, short deadlines, everything logged. */
void embedded_config(struct kvb_server_options *config);
/* Makes it, to be started in a fresh directory, which replaces config->dir. 0; -errno. */
int embedded_make(struct embedded *embedded, struct kvb_server_options *config);
/* Makes and starts it. 0; -errno. */
int embedded_start(struct embedded *embedded, struct kvb_server_options *config);
/* Drains and frees it, removes the directory. The result of kvb_server_stop_wait(). */
int embedded_stop(struct embedded *embedded);
/* The log so far, to be freed. */
char *embedded_log(struct embedded *embedded);
/* Position of `text` in the log at or after `from`; -1. */
long embedded_log_find(struct embedded *embedded, const char *text, long from);

/* Waits until the drain has begun. False: the deadline of embedded_wait() passed. */
bool embedded_wait_draining(struct embedded *embedded);

/* Polls a condition until it is true. False: the deadline (20 s) passed. */
bool embedded_wait(bool (*condition)(const void *arg), const void *arg);

#endif /* KVB_TESTS_EMBEDDED_H */
