/* SPDX-License-Identifier: Apache-2.0 */
/*
 * builtin.c - the built-in control messages, registered like any other.
 *
 * Owns nothing; runs in the control thread, so it must never block and never answer at a length
 * that KVB_MSG_BODY_MAX does not allow: what may be long pages by cursor.
 */
#include "server/builtin.h"

#include <errno.h>
#include <string.h>

#include "server/portable.h"
#include "server/server.h"
#include "server/stats.h"
#include "shm/atomic.h"
#include "shm/pack.h"
#include "shm/util.h"

/* Room for what stands around the entries of one page. */
#define LIST_OVERHEAD  64u
#define LIST_LIMIT_MAX 65536u
#define ENTRY_OVERHEAD 24u

/* A number, or `fallback` when the map has none of this name. 0; -EINVAL it is no such number. */
static int map_number(
	const msgpack_object *map, const char *name, uint64_t fallback, uint64_t *ret_number)
{
	const msgpack_object *value = kvb_pack_find(map, name);

	if (value && value->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
		return -EINVAL;
	*ret_number = value ? value->via.u64 : fallback;
	return 0;
}

/* In constant time, so that answers tell nothing about how much of a guess was right. */
static bool token_equal(const struct kvb_session *session, const msgpack_object *token)
{
	uint8_t differences = 0;

	if (!token || token->type != MSGPACK_OBJECT_BIN || token->via.bin.size != KVB_ID_BYTES)
		return false;
	for (uint32_t i = 0; i < KVB_ID_BYTES; i++)
		differences |= session->token[i] ^ (uint8_t)token->via.bin.ptr[i];
	return differences == 0;
}

/* Binds the connection to the session whose token it presents. A later ATTACH moves it: only the
 * session's owner knows the token. */
static int handle_attach(struct kvb_call *call, void *unused)
{
	struct kvb_session *session =
		kvb_session_find(&call->server->sessions, call->header.session);

	(void)unused;
	if (!session || !kvb_session_is_served(session) ||
		!token_equal(session, kvb_pack_find(call->object, "token"))) {
		return kvb_call_fail(call, -EACCES, "no active session has this id and token");
	}
	if (session->kind != KVB_KIND_OWN) {
		return kvb_call_fail(
			call, -EPERM, "only the server's own uid may use the control socket");
	}
	session->control_peer = call->peer;
	msgpack_pack_map(&call->packer, 0);
	return 0;
}

static int handle_ping(struct kvb_call *call, void *unused)
{
	(void)unused;
	msgpack_pack_map(&call->packer, 0);
	return 0;
}

static int handle_stats(struct kvb_call *call, void *unused)
{
	(void)unused;
	kvb_stats_pack(call->server, &call->packer);
	return 0;
}

struct page {
	msgpack_sbuffer buffer;
	msgpack_packer packer;
	uint64_t limit;
	uint32_t count;
};

static int add_entry(void *user, const void *key, size_t key_len, uint64_t length)
{
	struct page *page = user;

	if (page->count >= page->limit ||
		page->buffer.size + key_len + ENTRY_OVERHEAD > KVB_MSG_BODY_MAX - LIST_OVERHEAD)
		return 1;
	msgpack_pack_array(&page->packer, 2);
	msgpack_pack_bin_with_body(&page->packer, key, key_len);
	msgpack_pack_uint64(&page->packer, length);
	page->count++;
	return 0;
}

static int handle_list(struct kvb_call *call, void *unused)
{
	struct page page = {0};
	uint64_t cursor;

	(void)unused;
	if (map_number(call->object, "cursor", 0, &cursor) < 0 ||
		map_number(call->object, "limit", LIST_LIMIT_MAX, &page.limit) < 0 ||
		page.limit == 0) {
		return kvb_call_fail(call, -EINVAL,
			"the body must be {\"cursor\": number, \"limit\": number > 0}");
	}
	msgpack_sbuffer_init(&page.buffer);
	msgpack_packer_init(&page.packer, &page.buffer, msgpack_sbuffer_write);
	cursor = kvb_store_list(call->server->store, cursor, add_entry, &page);
	msgpack_pack_map(&call->packer, 2);
	msgpack_pack_str_with_body(&call->packer, "cursor", 6);
	msgpack_pack_uint64(&call->packer, cursor);
	msgpack_pack_str_with_body(&call->packer, "entries", 7);
	msgpack_pack_array(&call->packer, page.count);
	/* The entries are packed already. */
	if (page.buffer.size > 0)
		call->packer.callback(call->packer.data, page.buffer.data, page.buffer.size);
	msgpack_sbuffer_destroy(&page.buffer);
	return 0;
}

static int handle_delete(struct kvb_call *call, void *unused)
{
	const msgpack_object *key = kvb_pack_find(call->object, "key");
	int r;

	(void)unused;
	if (!key || key->type != MSGPACK_OBJECT_BIN || key->via.bin.size == 0 ||
		key->via.bin.size > KVB_KEY_MAX) {
		return kvb_call_fail(call, -EINVAL, "the body must be {\"key\": 1 to 1024 bytes}");
	}
	r = kvb_store_delete(call->server->store, key->via.bin.ptr, key->via.bin.size);
	if (r < 0)
		return r;
	kvb_count(&call->server->counters.deletes, 1);
	msgpack_pack_map(&call->packer, 0);
	return 0;
}

int kvb_builtins_register(struct kvb_server *server)
{
	static const struct kvb_handler builtins[] = {
		{.type = KVB_MSG_ATTACH, .unattached = true, .unpacks = true, .fn = handle_attach},
		{.type = KVB_MSG_PING, .fn = handle_ping},
		{.type = KVB_MSG_STATS, .fn = handle_stats},
		{.type = KVB_MSG_LIST, .unpacks = true, .fn = handle_list},
		{.type = KVB_MSG_DELETE, .unpacks = true, .fn = handle_delete},
		{.type = KVB_MSG_SUBMIT, .unpacks = true, .fn = kvb_portable_handle_submit},
	};

	for (size_t i = 0; i < KVB_ARRAY_SIZE(builtins); i++) {
		struct kvb_handler handler = builtins[i];
		int r;
		/* What was accepted goes on while the server drains, and these serve it. */
		handler.in_drain = true;
		r = kvb_handlers_add(&server->handlers, &handler);
		if (r < 0)
			return r;
	}
	return 0;
}
