/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handler.h - the functions registered for control message types, the built-in ones included.
 *
 * The table is filled before the server starts and constant from then on.
 */
#ifndef KVB_SERVER_HANDLER_H
#define KVB_SERVER_HANDLER_H

#include <stdbool.h>
#include <stdint.h>

#include "kvbell/server.h"
#include "server/call.h"

struct kvb_handler_pool;

struct kvb_handler {
	uint16_t type;
	bool unattached;               /* may come before ATTACH */
	bool in_drain;                 /* answers while the server drains */
	bool unpacks;                  /* wants the body as an object */
	struct kvb_handler_pool *pool; /* NULL: SYNC */
	uint32_t timeout_ms;           /* BLOCKING */
	kvb_handler_fn *fn;
	void *user;

	/* --- control thread --- */
	struct kvb_call_list waiting; /* BLOCKING calls without an answer, by deadline */
};

struct kvb_handlers {
	struct kvb_handler **table; /* ordered by type */
	uint32_t count;
};

/* Copies it into the table. 0; -EEXIST the type has one; -ENOMEM. */
int kvb_handlers_add(struct kvb_handlers *handlers, const struct kvb_handler *handler);
/* The handler of a message type; NULL when there is none. */
struct kvb_handler *kvb_handlers_find(const struct kvb_handlers *handlers, uint16_t type);
void kvb_handlers_free(struct kvb_handlers *handlers);

#endif /* KVB_SERVER_HANDLER_H */
