/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - requests over the ZMQ control socket: ping, list, calls of the server's own handlers.
 *
 * Owns nothing beyond the call, or beyond the ticket of kvb_submit_call(). Runs in the caller's
 * thread; a ticket is finished by whoever receives its answer (dealer.c). It must never keep a
 * caller's memory but the reply of a ticket.
 */
#include <errno.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/connection.h"
#include "client/dealer.h"
#include "kvbell/kvbell.h"
#include "shm/pack.h"
#include "shm/util.h"

#define LIST_PAGE 4096

/* 0 and a body; the server's error, perhaps with a body; our own. The body is the caller's to free. */
static int exchange_run(struct kvb_conn *conn, struct kvb_exchange *exchange)
{
	return conn->attached.welcome.kind == KVB_KIND_OWN ? kvb_dealer_run(conn, exchange)
							   : -EPERM;
}

/* ------------------------------------------------------------------------------------ public calls */

/* {} */
static const char empty_map[] = {'\x80'};

int kvb_ping_control(struct kvb_client *client)
{
	struct kvb_exchange exchange = {
		.type = KVB_MSG_PING, .request_body = empty_map, .request_size = sizeof(empty_map)};
	struct kvb_conn *conn;
	int r = kvb_client_enter(client, &conn, &exchange.deadline_ns);

	if (r < 0)
		return r;
	r = exchange_run(conn, &exchange);
	free(exchange.body);
	kvb_client_leave(client, conn);
	return r;
}

/* The text of {"error": text}; "" when there is none. */
static void copy_error(const struct kvb_exchange *exchange, char *text, size_t text_size)
{
	msgpack_unpacked unpacked;
	size_t offset = 0;
	const msgpack_object *error = NULL;

	if (!exchange->body)
		return;
	msgpack_unpacked_init(&unpacked);
	if (msgpack_unpack_next(&unpacked, exchange->body, exchange->size, &offset) ==
		MSGPACK_UNPACK_SUCCESS)
		error = kvb_pack_find(&unpacked.data, "error");
	if (error && error->type == MSGPACK_OBJECT_STR)
		snprintf(text, text_size, "%.*s", (int)kvb_min_u64(error->via.str.size, text_size),
			error->via.str.ptr);
	msgpack_unpacked_destroy(&unpacked);
}

/* Moves what the exchange brought into the reply. */
static void fill_reply(struct kvb_exchange *exchange, int status, struct kvb_reply *reply)
{
	if (status < 0) {
		copy_error(exchange, reply->text, sizeof(reply->text));
		free(exchange->body);
	} else {
		reply->body = exchange->body;
		reply->size = exchange->size;
	}
}

static int check_call(uint16_t type, const void *body, size_t size)
{
	if (size > KVB_MSG_BODY_MAX)
		return -EMSGSIZE;
	return type >= KVB_MSG_USER && kvb_pack_is_one_object(body, size) ? 0 : -EINVAL;
}

static int call(struct kvb_client *client, struct kvb_exchange *exchange, uint32_t timeout_ms,
	struct kvb_reply *reply)
{
	struct kvb_conn *conn;
	int r = kvb_client_enter(client, &conn, &exchange->deadline_ns);

	if (r < 0)
		return r;
	if (timeout_ms > 0)
		exchange->deadline_ns = kvb_now_ns() + timeout_ms * KVB_NS_PER_MS;
	r = exchange_run(conn, exchange);
	kvb_client_leave(client, conn);
	fill_reply(exchange, r, reply);
	return r;
}

int kvb_call(struct kvb_client *client, uint16_t type, const void *body, size_t size,
	uint32_t timeout_ms, struct kvb_reply *ret_reply)
{
	struct kvb_exchange exchange = {.type = type, .request_body = body, .request_size = size};
	struct kvb_reply reply = {0};
	int r = check_call(type, body, size);

	if (r == 0)
		r = call(client, &exchange, timeout_ms, &reply);
	if (ret_reply)
		*ret_reply = reply;
	else
		kvb_reply_free(&reply);
	return r;
}

/* A call that nobody waits for. */
struct submitted {
	struct kvb_exchange exchange;
	struct kvb_client *client;
	struct kvb_ticket *ticket;
	struct kvb_reply *reply; /* the caller's */
	uint8_t body[];
};

static void finish_submitted(struct submitted *submitted, int status)
{
	fill_reply(&submitted->exchange, status, submitted->reply);
	kvb_tickets_finish_call(&submitted->client->tickets, submitted->ticket, status);
	free(submitted);
}

static void take_answer(struct kvb_exchange *exchange)
{
	finish_submitted(KVB_CONTAINER_OF(exchange, struct submitted, exchange), exchange->status);
}

static void begin_call(struct submitted *submitted, uint32_t timeout_ms)
{
	struct kvb_client *client = submitted->client;
	struct kvb_conn *conn;
	int r = kvb_client_enter(client, &conn, &submitted->exchange.deadline_ns);

	if (r < 0) {
		finish_submitted(submitted, r);
		return;
	}
	if (timeout_ms > 0)
		submitted->exchange.deadline_ns = kvb_now_ns() + timeout_ms * KVB_NS_PER_MS;
	if (conn->attached.welcome.kind != KVB_KIND_OWN)
		finish_submitted(submitted, -EPERM);
	else if (!kvb_dealer_add(conn, &submitted->exchange))
		finish_submitted(submitted, -ECONNRESET);
	kvb_client_leave(client, conn);
}

static int submit_call(struct kvb_client *client, const struct submitted *model, const void *body,
	uint32_t timeout_ms, void *user, uint64_t *ret_ticket)
{
	size_t size = model->exchange.request_size;
	struct submitted *submitted = malloc(sizeof(*submitted) + size);

	if (!submitted)
		return -ENOMEM;
	*submitted = *model;
	memcpy(submitted->body, body, size);
	submitted->exchange.request_body = submitted->body;
	submitted->ticket = kvb_tickets_add_call(&client->tickets, user, ret_ticket);
	if (!submitted->ticket) {
		free(submitted);
		return -ENOMEM;
	}
	*submitted->reply = (struct kvb_reply){0};
	begin_call(submitted, timeout_ms);
	return 0;
}

int kvb_submit_call(struct kvb_client *client, uint16_t type, const void *body, size_t size,
	uint32_t timeout_ms, struct kvb_reply *reply, void *user, uint64_t *ret_ticket)
{
	struct submitted model = {
		.exchange = {.type = type, .request_size = size, .done = take_answer},
		.client = client,
		.reply = reply,
	};
	int r = reply ? check_call(type, body, size) : -EINVAL;

	if (r == 0)
		r = kvb_client_enter_any(client);
	if (r < 0)
		return r;
	r = submit_call(client, &model, body, timeout_ms, user, ret_ticket);
	kvb_client_leave_any(client);
	return r;
}

void kvb_reply_free(struct kvb_reply *reply)
{
	free(reply->body);
	reply->body = NULL;
	reply->size = 0;
}

static int request_page(struct kvb_conn *conn, struct kvb_exchange *exchange, uint64_t cursor)
{
	msgpack_sbuffer body;
	msgpack_packer packer;
	int r;

	msgpack_sbuffer_init(&body);
	msgpack_packer_init(&packer, &body, msgpack_sbuffer_write);
	msgpack_pack_map(&packer, 2);
	msgpack_pack_str_with_body(&packer, "cursor", 6);
	msgpack_pack_uint64(&packer, cursor);
	msgpack_pack_str_with_body(&packer, "limit", 5);
	msgpack_pack_uint64(&packer, LIST_PAGE);
	exchange->request_body = body.data;
	exchange->request_size = body.size;
	r = exchange_run(conn, exchange);
	msgpack_sbuffer_destroy(&body);
	return r;
}

static int pass_entry(const msgpack_object *pair, kvb_entry_fn *fn, void *user)
{
	const msgpack_object *parts = pair->via.array.ptr;
	struct kvb_entry entry;

	if (pair->type != MSGPACK_OBJECT_ARRAY || pair->via.array.size != 2 ||
		parts[0].type != MSGPACK_OBJECT_BIN ||
		parts[1].type != MSGPACK_OBJECT_POSITIVE_INTEGER)
		return -EPROTO;
	entry = (struct kvb_entry){.key = parts[0].via.bin.ptr,
		.key_len = parts[0].via.bin.size,
		.length = parts[1].via.u64};
	return fn(user, &entry);
}

static int pass_entries(
	const msgpack_object *page, kvb_entry_fn *fn, void *user, uint64_t *ret_cursor)
{
	const msgpack_object *cursor = kvb_pack_find(page, "cursor");
	const msgpack_object *entries = kvb_pack_find(page, "entries");

	if (!cursor || cursor->type != MSGPACK_OBJECT_POSITIVE_INTEGER || !entries ||
		entries->type != MSGPACK_OBJECT_ARRAY)
		return -EPROTO;
	for (uint32_t i = 0; i < entries->via.array.size; i++) {
		int r = pass_entry(&entries->via.array.ptr[i], fn, user);
		if (r < 0)
			return r;
	}
	*ret_cursor = cursor->via.u64;
	return 0;
}

static int pass_page(
	const struct kvb_exchange *exchange, kvb_entry_fn *fn, void *user, uint64_t *ret_cursor)
{
	msgpack_unpacked unpacked;
	size_t offset = 0;
	int r = -EPROTO;

	msgpack_unpacked_init(&unpacked);
	if (msgpack_unpack_next(&unpacked, exchange->body, exchange->size, &offset) ==
		MSGPACK_UNPACK_SUCCESS)
		r = pass_entries(&unpacked.data, fn, user, ret_cursor);
	msgpack_unpacked_destroy(&unpacked);
	return r;
}

int kvb_list(struct kvb_client *client, kvb_entry_fn *fn, void *user)
{
	struct kvb_conn *conn;
	uint64_t cursor = 0, deadline_ns;
	int r = kvb_client_enter(client, &conn, &deadline_ns);

	if (r < 0)
		return r;
	do {
		/* The deadline is for the server, not for the caller's function. */
		struct kvb_exchange exchange = {.type = KVB_MSG_LIST,
			.deadline_ns = kvb_now_ns() + client->timeout_ms * KVB_NS_PER_MS};
		r = request_page(conn, &exchange, cursor);
		if (r == 0)
			r = pass_page(&exchange, fn, user, &cursor);
		free(exchange.body);
	} while (r == 0 && cursor != 0);
	kvb_client_leave(client, conn);
	return r;
}
