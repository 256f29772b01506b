/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handler.c - see handler.h, and the public functions that register handlers.
 *
 * Owns the table. Filled by the thread that sets the server up, read by the control thread; it must
 * never change once that thread exists.
 */
#include "server/handler.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/server.h"

#define TIMEOUT_MS 30000u

/* Index of the first handler whose type is not below `type`. */
static uint32_t lower_bound(const struct kvb_handlers *handlers, uint16_t type)
{
	uint32_t low = 0, high = handlers->count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (handlers->table[middle]->type < type)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct kvb_handler *kvb_handlers_find(const struct kvb_handlers *handlers, uint16_t type)
{
	uint32_t at = lower_bound(handlers, type);

	return at < handlers->count && handlers->table[at]->type == type ? handlers->table[at]
									 : NULL;
}

int kvb_handlers_add(struct kvb_handlers *handlers, const struct kvb_handler *handler)
{
	uint32_t at = lower_bound(handlers, handler->type);
	struct kvb_handler **table, *mine;

	if (kvb_handlers_find(handlers, handler->type))
		return -EEXIST;
	table = realloc(handlers->table, (handlers->count + 1) * sizeof(struct kvb_handler *));
	if (!table)
		return -ENOMEM;
	handlers->table = table;
	mine = malloc(sizeof(*mine));
	if (!mine)
		return -ENOMEM;
	*mine = *handler;
	TAILQ_INIT(&mine->waiting);
	memmove(table + at + 1, table + at, (handlers->count - at) * sizeof(struct kvb_handler *));
	table[at] = mine;
	handlers->count++;
	return 0;
}

void kvb_handlers_free(struct kvb_handlers *handlers)
{
	for (uint32_t i = 0; i < handlers->count; i++)
		free(handlers->table[i]);
	free(handlers->table);
	*handlers = (struct kvb_handlers){0};
}

/* ---------------------------------------------------------------------------------- the public side */

static int add_for_user(struct kvb_server *server, const struct kvb_handler *handler)
{
	if (server->started)
		return -EBUSY;
	if (handler->type < KVB_MSG_USER || !handler->fn)
		return -EINVAL;
	return kvb_handlers_add(&server->handlers, handler);
}

int kvb_server_handle_sync(struct kvb_server *server, uint16_t type, kvb_handler_fn *fn, void *user)
{
	return add_for_user(server, &(struct kvb_handler){.type = type, .fn = fn, .user = user});
}

int kvb_server_handle_blocking(struct kvb_server *server, uint16_t type, uint32_t pool,
	uint32_t timeout_ms, kvb_handler_fn *fn, void *user)
{
	struct kvb_handler_pool *found = kvb_handler_pools_find(&server->handler_pools, pool);

	if (server->started)
		return -EBUSY;
	if (!found)
		return -ENOENT;
	return add_for_user(server,
		&(struct kvb_handler){.type = type,
			.pool = found,
			.timeout_ms = timeout_ms ? timeout_ms : TIMEOUT_MS,
			.fn = fn,
			.user = user});
}

int kvb_server_add_pool(struct kvb_server *server, enum kvb_pool_kind kind, uint32_t threads,
	uint32_t queue_max, uint32_t *ret_pool)
{
	if (server->started)
		return -EBUSY;
	return kvb_handler_pools_add(&server->handler_pools, kind, threads, queue_max, ret_pool);
}
