/* SPDX-License-Identifier: Apache-2.0 */
/*
 * builtin.h - the control messages that every server answers.
 */
#ifndef KVB_SERVER_BUILTIN_H
#define KVB_SERVER_BUILTIN_H

struct kvb_server;

/* 0; -ENOMEM. */
int kvb_builtins_register(struct kvb_server *server);

#endif /* KVB_SERVER_BUILTIN_H */
