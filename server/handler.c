/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handler.c - the built-in control messages.
 *
 * Owns nothing; runs in the control thread, so it must never block and never answer at a length that
 * KVB_MSG_BODY_MAX does not allow: what may be long pages by cursor.
 */
#include "server/handler.h"

#include <errno.h>
#include <string.h>

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
static int handle_attach(struct kvb_call *call)
{
	struct kvb_session *session = kvb_session_find(&call->server->sessions, call->session_id);

	if (!session || session->phase != KVB_PHASE_ACTIVE ||
		!token_equal(session, kvb_pack_find(call->body, "token"))) {
		call->error_text = "no active session has this id and token";
		return -EACCES;
	}
	if (session->kind != KVB_KIND_OWN) {
		call->error_text = "only the server's own uid may use the control socket";
		return -EPERM;
	}
	session->control_peer = *call->peer;
	msgpack_pack_map(call->reply, 0);
	return 0;
}

static int handle_ping(struct kvb_call *call)
{
	msgpack_pack_map(call->reply, 0);
	return 0;
}

static int handle_stats(struct kvb_call *call)
{
	kvb_stats_pack(call->server, call->reply);
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

static int handle_list(struct kvb_call *call)
{
	struct page page = {0};
	uint64_t cursor;

	if (map_number(call->body, "cursor", 0, &cursor) < 0 ||
		map_number(call->body, "limit", LIST_LIMIT_MAX, &page.limit) < 0 ||
		page.limit == 0) {
		call->error_text = "the body must be {\"cursor\": number, \"limit\": number > 0}";
		return -EINVAL;
	}
	msgpack_sbuffer_init(&page.buffer);
	msgpack_packer_init(&page.packer, &page.buffer, msgpack_sbuffer_write);
	cursor = kvb_store_list(call->server->store, cursor, add_entry, &page);
	msgpack_pack_map(call->reply, 2);
	msgpack_pack_str_with_body(call->reply, "cursor", 6);
	msgpack_pack_uint64(call->reply, cursor);
	msgpack_pack_str_with_body(call->reply, "entries", 7);
	msgpack_pack_array(call->reply, page.count);
	/* The entries are packed already. */
	if (page.buffer.size > 0)
		call->reply->callback(call->reply->data, page.buffer.data, page.buffer.size);
	msgpack_sbuffer_destroy(&page.buffer);
	return 0;
}

static int handle_delete(struct kvb_call *call)
{
	const msgpack_object *key = kvb_pack_find(call->body, "key");
	int r;

	if (!key || key->type != MSGPACK_OBJECT_BIN || key->via.bin.size == 0 ||
		key->via.bin.size > KVB_KEY_MAX) {
		call->error_text = "the body must be {\"key\": 1 to 1024 bytes}";
		return -EINVAL;
	}
	r = kvb_store_delete(call->server->store, key->via.bin.ptr, key->via.bin.size);
	if (r < 0)
		return r;
	kvb_count(&call->server->counters.deletes, 1);
	msgpack_pack_map(call->reply, 0);
	return 0;
}

static const struct kvb_handler handlers[] = {
	{.type = KVB_MSG_ATTACH, .unattached = true, .fn = handle_attach},
	{.type = KVB_MSG_PING, .fn = handle_ping},
	{.type = KVB_MSG_STATS, .fn = handle_stats},
	{.type = KVB_MSG_LIST, .fn = handle_list},
	{.type = KVB_MSG_DELETE, .fn = handle_delete},
};

const struct kvb_handler *kvb_handler_find(uint16_t type)
{
	for (size_t i = 0; i < KVB_ARRAY_SIZE(handlers); i++)
		if (handlers[i].type == type)
			return &handlers[i];
	return NULL;
}
