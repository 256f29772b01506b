/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - the server's log: one line per event, through a callback. Any thread.
 */
#ifndef KVB_SERVER_LOG_H
#define KVB_SERVER_LOG_H

#include "kvbell/server.h"

void kvb_log(const struct kvb_log *log, enum kvb_log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* A kvb_log_fn for programs: "kvbelld: text" on stderr in one write; user is the program's name. */
void kvb_log_to_stderr(void *user, enum kvb_log_level level, const char *text);

#endif /* KVB_SERVER_LOG_H */
