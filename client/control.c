/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - requests over the ZMQ control socket: ping, list.
 *
 * Owns the client's ZMQ context and DEALER, under dealer->lock, in whatever thread calls. A DEALER would
 * reconnect by itself and hand old requests to a new server, so it lives for one attachment only, and
 * every message carries the boot id. It must never wait past the caller's deadline, or for a server
 * that is known to be gone.
 */
#include "client/control.h"

#include <errno.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "client/attach.h"
#include "client/client.h"
#include "client/connection.h"
#include "shm/pack.h"
#include "shm/util.h"

#define POLL_MS   200
#define HWM       16
#define LIST_PAGE 4096

void kvb_dealer_init(struct kvb_dealer *dealer)
{
	pthread_mutex_init(&dealer->lock, NULL);
}

static void close_socket(struct kvb_dealer *dealer)
{
	if (dealer->socket)
		zmq_close(dealer->socket);
	dealer->socket = NULL;
}

void kvb_dealer_done(struct kvb_dealer *dealer)
{
	close_socket(dealer);
	if (dealer->context)
		zmq_ctx_term(dealer->context);
	pthread_mutex_destroy(&dealer->lock);
}

/* ------------------------------------------------------------------------------------ one exchange */

/* msgpack's objects point into the bytes they were unpacked from, so these stay along. */
struct reply {
	char *bytes;
	msgpack_unpacked unpacked;
};

static void reply_free(struct reply *reply)
{
	msgpack_unpacked_destroy(&reply->unpacked);
	free(reply->bytes);
}

static int reply_unpack(struct reply *reply, const void *data, size_t size)
{
	size_t offset = 0;

	reply->bytes = malloc(size + 1);
	if (!reply->bytes)
		return -ENOMEM;
	memcpy(reply->bytes, data, size);
	msgpack_unpacked_init(&reply->unpacked);
	if (msgpack_unpack_next(&reply->unpacked, reply->bytes, size, &offset) ==
		MSGPACK_UNPACK_SUCCESS)
		return 0;
	reply_free(reply);
	return -EPROTO;
}

struct exchange {
	struct kvb_client *client;
	struct kvb_conn *conn;
	uint64_t deadline_ns;
};

static int wait_for(const struct exchange *exchange, short events)
{
	zmq_pollitem_t item = {.socket = exchange->client->dealer.socket, .events = events};

	for (;;) {
		uint64_t now_ns = kvb_now_ns();
		uint64_t left_ms;
		int r = kvb_conn_check(exchange->conn);
		if (r < 0)
			return r;
		if (now_ns >= exchange->deadline_ns)
			return -ETIMEDOUT;
		left_ms = (exchange->deadline_ns - now_ns) / KVB_NS_PER_MS + 1;
		r = zmq_poll(&item, 1, (long)kvb_min_u64(left_ms, POLL_MS));
		if (r > 0)
			return 0;
		if (r < 0 && errno != EINTR)
			return -errno;
	}
}

static int send_request(const struct exchange *exchange, uint16_t type, const msgpack_sbuffer *body)
{
	struct kvb_dealer *dealer = &exchange->client->dealer;
	const struct kvb_welcome *welcome = &exchange->conn->attached.welcome;
	struct kvb_msg_header header = {.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = type,
		.request = ++dealer->request,
		.session = welcome->session};
	int r = wait_for(exchange, ZMQ_POLLOUT);

	if (r < 0)
		return r;
	memcpy(header.boot_id, welcome->boot_id, KVB_ID_BYTES);
	if (zmq_send(dealer->socket, &header, sizeof(header), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
		zmq_send(dealer->socket, body->data, body->size, ZMQ_DONTWAIT) < 0)
		return -errno;
	return 0;
}

/* One message: exactly two frames, else -EPROTO with everything read. */
static int receive_frames(void *socket, zmq_msg_t frames[2])
{
	unsigned n = 0;
	int more = 1;

	while (more) {
		zmq_msg_t extra, *frame = n < 2 ? &frames[n] : &extra;
		zmq_msg_init(frame);
		if (zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) < 0)
			return -errno;
		more = zmq_msg_more(frame);
		if (frame == &extra)
			zmq_msg_close(&extra);
		n++;
	}
	return n == 2 && zmq_msg_size(&frames[0]) == sizeof(struct kvb_msg_header) ? 0 : -EPROTO;
}

/* The server's word on the request, or -EAGAIN when the message answers an older one. */
static int read_reply(const struct exchange *exchange, uint16_t type, zmq_msg_t frames[2],
	struct reply *ret_reply)
{
	struct kvb_msg_header header;

	memcpy(&header, zmq_msg_data(&frames[0]), sizeof(header));
	if (header.magic != KVB_MAGIC || header.abi != KVB_ABI_VERSION)
		return -EPROTO;
	if (header.request != exchange->client->dealer.request || header.type != type)
		return -EAGAIN;
	if (header.status < 0)
		/* An earlier server's message, or one of a session that has ended meanwhile. */
		return header.status == -ESTALE ? -ECONNRESET : header.status;
	return reply_unpack(ret_reply, zmq_msg_data(&frames[1]), zmq_msg_size(&frames[1]));
}

static int receive_reply(const struct exchange *exchange, uint16_t type, struct reply *ret_reply)
{
	zmq_msg_t frames[2];
	int r;

	do {
		r = wait_for(exchange, ZMQ_POLLIN);
		if (r < 0)
			return r;
		zmq_msg_init(&frames[0]);
		zmq_msg_init(&frames[1]);
		r = receive_frames(exchange->client->dealer.socket, frames);
		if (r == 0)
			r = read_reply(exchange, type, frames, ret_reply);
		zmq_msg_close(&frames[0]);
		zmq_msg_close(&frames[1]);
	} while (r == -EAGAIN);
	return r;
}

static int round_trip(const struct exchange *exchange, uint16_t type, const msgpack_sbuffer *body,
	struct reply *ret_reply)
{
	int r = send_request(exchange, type, body);

	return r < 0 ? r : receive_reply(exchange, type, ret_reply);
}

/* ------------------------------------------------------------------------------------- the socket */

static int open_socket(struct kvb_client *client)
{
	struct kvb_dealer *dealer = &client->dealer;
	static const struct {
		int option;
		int value;
	} options[] = {{ZMQ_LINGER, 0}, {ZMQ_IMMEDIATE, 1}, {ZMQ_SNDHWM, HWM}, {ZMQ_RCVHWM, HWM}};
	char path[sizeof(client->dir) + 32], endpoint[sizeof(path) + 8];
	int r = kvb_socket_path(client->dir, KVB_CONTROL_SOCKET, path, sizeof(path));

	if (r < 0)
		return r;
	if (!dealer->context)
		dealer->context = zmq_ctx_new();
	if (!dealer->context)
		return -errno;
	dealer->socket = zmq_socket(dealer->context, ZMQ_DEALER);
	if (!dealer->socket)
		return -errno;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(options); i++)
		if (zmq_setsockopt(
			    dealer->socket, options[i].option, &options[i].value, sizeof(int)) < 0)
			return -errno;
	snprintf(endpoint, sizeof(endpoint), "ipc://%s", path);
	return zmq_connect(dealer->socket, endpoint) < 0 ? -errno : 0;
}

static int present_token(const struct exchange *exchange)
{
	const struct kvb_welcome *welcome = &exchange->conn->attached.welcome;
	struct kvb_dealer *dealer = &exchange->client->dealer;
	msgpack_sbuffer body;
	msgpack_packer packer;
	struct reply reply;
	int r;

	msgpack_sbuffer_init(&body);
	msgpack_packer_init(&packer, &body, msgpack_sbuffer_write);
	msgpack_pack_map(&packer, 1);
	msgpack_pack_str_with_body(&packer, "token", 5);
	msgpack_pack_bin_with_body(&packer, welcome->token, KVB_ID_BYTES);
	r = round_trip(exchange, KVB_MSG_ATTACH, &body, &reply);
	msgpack_sbuffer_destroy(&body);
	if (r == 0) {
		reply_free(&reply);
		dealer->session = welcome->session;
		memcpy(dealer->boot_id, welcome->boot_id, KVB_ID_BYTES);
	}
	return r;
}

/* A socket that this attachment's token was presented on. */
static int ensure_socket(const struct exchange *exchange)
{
	struct kvb_dealer *dealer = &exchange->client->dealer;
	const struct kvb_welcome *welcome = &exchange->conn->attached.welcome;
	int r;

	if (dealer->socket && dealer->session == welcome->session &&
		memcmp(dealer->boot_id, welcome->boot_id, KVB_ID_BYTES) == 0)
		return 0;
	close_socket(dealer);
	r = open_socket(exchange->client);
	return r < 0 ? r : present_token(exchange);
}

/* One request of this type. *ret_reply is the caller's to free. */
static int call(const struct exchange *exchange, uint16_t type, const msgpack_sbuffer *body,
	struct reply *ret_reply)
{
	struct kvb_dealer *dealer = &exchange->client->dealer;
	int r;

	if (exchange->conn->attached.welcome.kind != KVB_KIND_OWN)
		return -EPERM;
	pthread_mutex_lock(&dealer->lock);
	r = ensure_socket(exchange);
	if (r == 0)
		r = round_trip(exchange, type, body, ret_reply);
	/* A fresh socket has no late answers. */
	if (r < 0)
		close_socket(dealer);
	pthread_mutex_unlock(&dealer->lock);
	return r;
}

static int exchange_begin(struct kvb_client *client, struct exchange *ret_exchange)
{
	ret_exchange->client = client;
	return kvb_client_enter(client, &ret_exchange->conn, &ret_exchange->deadline_ns);
}

static void exchange_end(struct exchange *exchange)
{
	kvb_client_leave(exchange->client, exchange->conn);
}

/* ------------------------------------------------------------------------------------ public calls */

int kvb_ping_control(struct kvb_client *client)
{
	struct exchange exchange;
	struct reply reply;
	msgpack_sbuffer body = {.data = (char[]){'\x80'}, .size = 1, .alloc = 1};
	int r = exchange_begin(client, &exchange);

	if (r < 0)
		return r;
	r = call(&exchange, KVB_MSG_PING, &body, &reply);
	if (r == 0)
		reply_free(&reply);
	exchange_end(&exchange);
	return r;
}

static int request_page(const struct exchange *exchange, uint64_t cursor, struct reply *ret_reply)
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
	r = call(exchange, KVB_MSG_LIST, &body, ret_reply);
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

static int pass_page(const msgpack_object *page, kvb_entry_fn *fn, void *user, uint64_t *ret_cursor)
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

int kvb_list(struct kvb_client *client, kvb_entry_fn *fn, void *user)
{
	struct exchange exchange;
	uint64_t cursor = 0;
	int r = exchange_begin(client, &exchange);

	if (r < 0)
		return r;
	do {
		struct reply reply;
		/* The deadline is for the server, not for the caller's function. */
		exchange.deadline_ns = kvb_now_ns() + client->timeout_ms * KVB_NS_PER_MS;
		r = request_page(&exchange, cursor, &reply);
		if (r < 0)
			break;
		r = pass_page(&reply.unpacked.data, fn, user, &cursor);
		reply_free(&reply);
	} while (r == 0 && cursor != 0);
	exchange_end(&exchange);
	return r;
}
