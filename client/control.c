/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - requests over the ZMQ control socket: ping, list, calls of the server's own handlers.
 *
 * Owns the connection's ZMQ context and DEALER, under dealer->lock, in whatever threads call. Many
 * may wait for their answers at once: one of them at a time sleeps on the socket's descriptor,
 * without the lock, receives what came for anybody, and wakes the others. Whoever uses the socket
 * also receives, since ZMQ's descriptor tells of each arrival only once, and wakes the sleeper if
 * that has what it sleeps for. It must never touch the socket without the lock, wait past a
 * caller's deadline, or for a server that is known to be gone.
 */
#include "client/control.h"

#include <errno.h>
#include <msgpack.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include "client/attach.h"
#include "client/client.h"
#include "client/connection.h"
#include "shm/fd.h"
#include "shm/pack.h"
#include "shm/threads.h"
#include "shm/util.h"

/* How often a sleeper looks at the life word. */
#define RECHECK_MS 200
#define HWM        1000
#define LIST_PAGE  4096

/* One request and its answer; lives on its caller's stack. */
struct kvb_exchange {
	struct kvb_conn *conn;
	uint64_t deadline_ns;
	uint16_t type;
	const void *request_body;
	size_t request_size;
	uint64_t request; /* its number */
	TAILQ_ENTRY(kvb_exchange) link;

	bool done;
	bool refused; /* no handler has seen it */
	int status;   /* 0, and a body; or the server's error, and perhaps a body; or our own */
	void *body;   /* from malloc */
	size_t size;
};

/* -------------------------------------------------------------------------------------- the socket */

int kvb_dealer_init(struct kvb_dealer *dealer)
{
	*dealer = (struct kvb_dealer){.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	if (dealer->wake_fd < 0)
		return -errno;
	pthread_mutex_init(&dealer->lock, NULL);
	kvb_cond_init(&dealer->changed);
	TAILQ_INIT(&dealer->exchanges);
	return 0;
}

void kvb_dealer_done(struct kvb_dealer *dealer)
{
	if (dealer->socket)
		zmq_close(dealer->socket);
	if (dealer->context)
		zmq_ctx_term(dealer->context);
	pthread_cond_destroy(&dealer->changed);
	pthread_mutex_destroy(&dealer->lock);
	kvb_fd_close(&dealer->wake_fd);
}

void kvb_dealer_done_in_child(struct kvb_dealer *dealer)
{
	kvb_fd_close(&dealer->wake_fd);
}

void kvb_dealer_wake(struct kvb_dealer *dealer)
{
	(void)eventfd_write(dealer->wake_fd, 1);
}

static int make_socket(struct kvb_dealer *dealer, const char *dir)
{
	static const struct {
		int option;
		int value;
	} options[] = {{ZMQ_LINGER, 0}, {ZMQ_IMMEDIATE, 1}, {ZMQ_SNDHWM, HWM}, {ZMQ_RCVHWM, HWM}};
	char path[sizeof(((struct kvb_client *)0)->dir) + 32], endpoint[sizeof(path) + 8];
	size_t size = sizeof(dealer->socket_fd);
	int r = kvb_socket_path(dir, KVB_CONTROL_SOCKET, path, sizeof(path));

	if (r < 0)
		return r;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(options); i++)
		if (zmq_setsockopt(
			    dealer->socket, options[i].option, &options[i].value, sizeof(int)) < 0)
			return -errno;
	snprintf(endpoint, sizeof(endpoint), "ipc://%s", path);
	if (zmq_getsockopt(dealer->socket, ZMQ_FD, &dealer->socket_fd, &size) < 0 ||
		zmq_connect(dealer->socket, endpoint) < 0)
		return -errno;
	return 0;
}

static int open_socket(struct kvb_dealer *dealer, const char *dir)
{
	int r;

	if (dealer->socket)
		return 0;
	if (!dealer->context)
		dealer->context = zmq_ctx_new();
	if (!dealer->context)
		return -errno;
	dealer->socket = zmq_socket(dealer->context, ZMQ_DEALER);
	if (!dealer->socket)
		return -errno;
	r = make_socket(dealer, dir);
	if (r < 0) {
		zmq_close(dealer->socket);
		dealer->socket = NULL;
	}
	return r;
}

/* --------------------------------------------------------------------------------------- receiving */

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

static int keep_body(struct kvb_exchange *exchange, zmq_msg_t *frame)
{
	size_t size = zmq_msg_size(frame);

	if (!kvb_pack_is_one_object(zmq_msg_data(frame), size))
		return -EPROTO;
	exchange->body = malloc(size);
	if (!exchange->body)
		return -ENOMEM;
	memcpy(exchange->body, zmq_msg_data(frame), size);
	exchange->size = size;
	return 0;
}

/* Gives the message to the one who waits for it; an answer that nobody waits for any more is
 * dropped. */
static void deliver(struct kvb_dealer *dealer, zmq_msg_t frames[2])
{
	struct kvb_msg_header header;
	struct kvb_exchange *exchange;

	memcpy(&header, zmq_msg_data(&frames[0]), sizeof(header));
	TAILQ_FOREACH(exchange, &dealer->exchanges, link)
	if (exchange->request == header.request && exchange->type == header.type)
		break;
	if (!exchange || exchange->done || header.magic != KVB_MAGIC ||
		header.abi != KVB_ABI_VERSION)
		return;
	exchange->status = keep_body(exchange, &frames[1]);
	/* Another server's word on a request that was meant for ours. */
	if (memcmp(header.boot_id, exchange->conn->attached.welcome.boot_id, KVB_ID_BYTES) != 0)
		exchange->status = -ECONNRESET;
	else if (header.status < 0)
		exchange->status = header.status;
	exchange->refused = (header.flags & KVB_MSG_REFUSED) != 0;
	exchange->done = true;
	/* Another thread took it: the descriptor, which that has cleared, may never have woken
	 * the sleeper. */
	if (exchange == dealer->sleeper)
		kvb_dealer_wake(dealer);
}

/* Everything that is there. */
static void receive_all_locked(struct kvb_dealer *dealer)
{
	zmq_msg_t frames[2];
	bool any = false;
	int r;

	if (!dealer->socket)
		return;
	do {
		zmq_msg_init(&frames[0]);
		zmq_msg_init(&frames[1]);
		r = receive_frames(dealer->socket, frames);
		if (r == 0)
			deliver(dealer, frames);
		any = any || r == 0;
		zmq_msg_close(&frames[0]);
		zmq_msg_close(&frames[1]);
	} while (r == 0 || r == -EPROTO || r == -EINTR);
	/* Whoever looks takes the descriptor's word, of room to send as well. */
	if (any || dealer->want_room > 0)
		pthread_cond_broadcast(&dealer->changed);
	if (dealer->want_room > 0 && dealer->sleeper)
		kvb_dealer_wake(dealer);
}

/* ----------------------------------------------------------------------------------------- waiting */

static void sleep_on_socket(const struct kvb_exchange *exchange, uint64_t left_ns)
{
	struct kvb_dealer *dealer = &exchange->conn->dealer;
	struct pollfd fds[] = {
		{.fd = dealer->socket ? dealer->socket_fd : -1, .events = POLLIN},
		{.fd = dealer->wake_fd, .events = POLLIN},
	};
	eventfd_t wakes;

	dealer->sleeper = exchange;
	pthread_mutex_unlock(&dealer->lock);
	(void)poll(fds, KVB_ARRAY_SIZE(fds),
		(int)kvb_min_u64(left_ns / KVB_NS_PER_MS + 1, RECHECK_MS));
	pthread_mutex_lock(&dealer->lock);
	dealer->sleeper = NULL;
	if (fds[1].revents)
		(void)eventfd_read(dealer->wake_fd, &wakes);
	receive_all_locked(dealer);
	/* Somebody else must sleep if this thread has what it wants. */
	pthread_cond_broadcast(&dealer->changed);
}

/* Waits until something may have changed. 0; -ETIMEDOUT; the connection's error. */
static int wait_locked(const struct kvb_exchange *exchange)
{
	struct kvb_dealer *dealer = &exchange->conn->dealer;
	uint64_t now_ns = kvb_now_ns();
	int r = kvb_conn_check(exchange->conn);

	if (r < 0)
		return r;
	if (now_ns >= exchange->deadline_ns)
		return -ETIMEDOUT;
	if (dealer->sleeper)
		(void)kvb_cond_wait_until(&dealer->changed, &dealer->lock, exchange->deadline_ns);
	else
		sleep_on_socket(exchange, exchange->deadline_ns - now_ns);
	return 0;
}

/* ----------------------------------------------------------------------------------------- sending */

static int make_frames(const struct kvb_exchange *exchange, zmq_msg_t frames[2])
{
	const struct kvb_welcome *welcome = &exchange->conn->attached.welcome;
	struct kvb_msg_header header = {.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = exchange->type,
		.request = exchange->request,
		.session = welcome->session};

	memcpy(header.boot_id, welcome->boot_id, KVB_ID_BYTES);
	if (zmq_msg_init_size(&frames[0], sizeof(header)) < 0)
		return -errno;
	memcpy(zmq_msg_data(&frames[0]), &header, sizeof(header));
	if (zmq_msg_init_size(&frames[1], exchange->request_size) < 0) {
		zmq_msg_close(&frames[0]);
		return -errno;
	}
	memcpy(zmq_msg_data(&frames[1]), exchange->request_body, exchange->request_size);
	return 0;
}

/* Waits until the first frame is taken; the second one follows without fail, since it needs no
 * memory. */
static int send_frames_locked(struct kvb_exchange *exchange, zmq_msg_t frames[2])
{
	struct kvb_dealer *dealer = &exchange->conn->dealer;
	int r = 0;

	/* -EAGAIN until the connection stands, and while the server does not keep up. */
	while (r == 0 && zmq_msg_send(&frames[0], dealer->socket, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		dealer->want_room++;
		r = wait_locked(exchange);
		dealer->want_room--;
	}
	if (r == 0 && zmq_msg_send(&frames[1], dealer->socket, ZMQ_DONTWAIT) < 0)
		r = -errno;
	/* Also when there was no room: ZMQ has looked at what came, which its descriptor tells
	 * nobody else. */
	receive_all_locked(dealer);
	return r;
}

static int send_locked(struct kvb_exchange *exchange)
{
	zmq_msg_t frames[2];
	int r = make_frames(exchange, frames);

	if (r < 0)
		return r;
	r = send_frames_locked(exchange, frames);
	zmq_msg_close(&frames[0]);
	zmq_msg_close(&frames[1]);
	return r;
}

/* Status and body of the answer; or our own error. */
static int round_trip_locked(struct kvb_exchange *exchange)
{
	struct kvb_dealer *dealer = &exchange->conn->dealer;
	int r;

	exchange->request = ++dealer->request;
	exchange->done = exchange->refused = false;
	TAILQ_INSERT_TAIL(&dealer->exchanges, exchange, link);
	r = send_locked(exchange);
	while (r == 0 && !exchange->done)
		r = wait_locked(exchange);
	/* An answer that came with the deadline, or with the server's goodbye, is an answer. */
	if (!exchange->done)
		receive_all_locked(dealer);
	TAILQ_REMOVE(&dealer->exchanges, exchange, link);
	return exchange->done ? exchange->status : r;
}

/* An error's body goes to `waiting`, whose caller may want its text. */
static int present_token_locked(struct kvb_exchange *waiting)
{
	const struct kvb_welcome *welcome = &waiting->conn->attached.welcome;
	struct kvb_exchange exchange = {
		.conn = waiting->conn, .deadline_ns = waiting->deadline_ns, .type = KVB_MSG_ATTACH};
	msgpack_sbuffer body;
	msgpack_packer packer;
	int r;

	msgpack_sbuffer_init(&body);
	msgpack_packer_init(&packer, &body, msgpack_sbuffer_write);
	msgpack_pack_map(&packer, 1);
	msgpack_pack_str_with_body(&packer, "token", 5);
	msgpack_pack_bin_with_body(&packer, welcome->token, KVB_ID_BYTES);
	exchange.request_body = body.data;
	exchange.request_size = body.size;
	r = round_trip_locked(&exchange);
	msgpack_sbuffer_destroy(&body);
	if (r < 0) {
		waiting->body = exchange.body;
		waiting->size = exchange.size;
	} else {
		free(exchange.body);
	}
	return r;
}

/* A socket on which this attachment's token was presented. */
static int ensure_attached_locked(struct kvb_exchange *exchange)
{
	struct kvb_dealer *dealer = &exchange->conn->dealer;
	int r;

	while (dealer->state == KVB_DEALER_ATTACHING) {
		r = wait_locked(exchange);
		if (r < 0)
			return r;
	}
	if (dealer->state == KVB_DEALER_ATTACHED)
		return 0;
	dealer->state = KVB_DEALER_ATTACHING;
	r = open_socket(dealer, exchange->conn->client->dir);
	if (r == 0)
		r = present_token_locked(exchange);
	dealer->state = r == 0 ? KVB_DEALER_ATTACHED : KVB_DEALER_DETACHED;
	pthread_cond_broadcast(&dealer->changed);
	/* It may be one that waits for this. */
	if (dealer->sleeper)
		kvb_dealer_wake(dealer);
	return r;
}

static int attach_and_run_locked(struct kvb_exchange *exchange)
{
	int r = ensure_attached_locked(exchange);

	return r < 0 ? r : round_trip_locked(exchange);
}

/* 0 and a body; the server's error, perhaps with a body; our own. The body is the caller's to free. */
static int exchange_run(struct kvb_exchange *exchange)
{
	struct kvb_dealer *dealer = &exchange->conn->dealer;
	int r;

	if (exchange->conn->attached.welcome.kind != KVB_KIND_OWN)
		return -EPERM;
	pthread_mutex_lock(&dealer->lock);
	r = attach_and_run_locked(exchange);
	/* ZMQ has made a new connection, which the token was not presented on. Nothing was
	 * begun, so it is safe to ask again. */
	if (r == -EACCES && exchange->refused && dealer->state == KVB_DEALER_ATTACHED) {
		dealer->state = KVB_DEALER_DETACHED;
		free(exchange->body);
		exchange->body = NULL;
		r = attach_and_run_locked(exchange);
	}
	pthread_mutex_unlock(&dealer->lock);
	return r;
}

/* ------------------------------------------------------------------------------------ public calls */

/* {} */
static const char empty_map[] = {'\x80'};

int kvb_ping_control(struct kvb_client *client)
{
	struct kvb_exchange exchange = {
		.type = KVB_MSG_PING, .request_body = empty_map, .request_size = sizeof(empty_map)};
	int r = kvb_client_enter(client, &exchange.conn, &exchange.deadline_ns);

	if (r < 0)
		return r;
	r = exchange_run(&exchange);
	free(exchange.body);
	kvb_client_leave(client, exchange.conn);
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

static int call(struct kvb_client *client, struct kvb_exchange *exchange, uint32_t timeout_ms,
	struct kvb_reply *reply)
{
	int r = kvb_client_enter(client, &exchange->conn, &exchange->deadline_ns);

	if (r < 0)
		return r;
	if (timeout_ms > 0)
		exchange->deadline_ns = kvb_now_ns() + timeout_ms * KVB_NS_PER_MS;
	r = exchange_run(exchange);
	kvb_client_leave(client, exchange->conn);
	if (r < 0) {
		copy_error(exchange, reply->text, sizeof(reply->text));
		free(exchange->body);
		return r;
	}
	reply->body = exchange->body;
	reply->size = exchange->size;
	return 0;
}

int kvb_call(struct kvb_client *client, uint16_t type, const void *body, size_t size,
	uint32_t timeout_ms, struct kvb_reply *ret_reply)
{
	struct kvb_exchange exchange = {.type = type, .request_body = body, .request_size = size};
	struct kvb_reply reply = {0};
	int r = -EINVAL;

	if (size > KVB_MSG_BODY_MAX)
		r = -EMSGSIZE;
	else if (type >= KVB_MSG_USER && kvb_pack_is_one_object(body, size))
		r = call(client, &exchange, timeout_ms, &reply);
	if (ret_reply)
		*ret_reply = reply;
	else
		kvb_reply_free(&reply);
	return r;
}

void kvb_reply_free(struct kvb_reply *reply)
{
	free(reply->body);
	reply->body = NULL;
	reply->size = 0;
}

static int request_page(struct kvb_exchange *exchange, uint64_t cursor)
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
	r = exchange_run(exchange);
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
		struct kvb_exchange exchange = {.conn = conn,
			.type = KVB_MSG_LIST,
			.deadline_ns = kvb_now_ns() + client->timeout_ms * KVB_NS_PER_MS};
		r = request_page(&exchange, cursor);
		if (r == 0)
			r = pass_page(&exchange, fn, user, &cursor);
		free(exchange.body);
	} while (r == 0 && cursor != 0);
	kvb_client_leave(client, conn);
	return r;
}
