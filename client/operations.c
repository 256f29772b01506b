/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operations.c - put, get, exists, delete, ping and statistics through the ring.
 *
 * Owns nothing beyond the call; runs in the caller's thread. Large payloads travel in fragments,
 * several in flight, so that the worker copies one while this thread copies the next. Payload is
 * copied without the connection's lock. It must never leave a request behind without saying so:
 * what the caller abandons becomes an orphan, which its completion cleans up.
 */
#include <errno.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/connection.h"
#include "kvbell/kvbell.h"
#include "shm/copy.h"
#include "shm/util.h"

#define WINDOW      8
#define STATS_BYTES 4096u /* fits any staging */

/* A call on its way. */
struct call {
	struct kvb_client *client;
	struct kvb_conn *conn;
	uint64_t deadline_ns;
};

static int call_begin(struct kvb_client *client, struct call *ret_call)
{
	int r;

	ret_call->client = client;
	r = kvb_client_enter(client, &ret_call->conn, &ret_call->deadline_ns);
	if (r == 0)
		pthread_mutex_lock(&ret_call->conn->lock);
	return r;
}

static void call_end(struct call *call)
{
	pthread_mutex_unlock(&call->conn->lock);
	kvb_client_leave(call->client, call->conn);
}

static int check_key(const void *key, size_t key_len)
{
	if (!key || key_len == 0)
		return -EINVAL;
	return key_len > KVB_KEY_MAX ? -ENAMETOOLONG : 0;
}

static int take_request(struct call *call, uint32_t length, uint32_t *ret_index)
{
	int r;

	while ((r = kvb_conn_take_locked(call->conn, length, ret_index)) == -EAGAIN) {
		r = kvb_conn_wait_room_locked(call->conn, call->deadline_ns);
		if (r < 0)
			return r;
	}
	return r;
}

/* One request without payload. Its result; *ret_cqe always when the request was answered. */
static int simple_call(
	struct kvb_client *client, struct kvb_sqe *sqe, const void *key, struct kvb_cqe *ret_cqe)
{
	struct call call;
	uint32_t index;
	int r = call_begin(client, &call);

	if (r < 0)
		return r;
	r = take_request(&call, 0, &index);
	if (r == 0) {
		kvb_conn_submit_locked(call.conn, index, sqe, key);
		r = kvb_conn_wait_done_locked(call.conn, index, call.deadline_ns);
		if (r == 0) {
			*ret_cqe = call.conn->requests[index].cqe;
			r = ret_cqe->result;
			kvb_conn_finish_locked(call.conn, index);
		} else {
			kvb_conn_orphan_locked(call.conn, index);
		}
	}
	call_end(&call);
	return r;
}

int kvb_exists(struct kvb_client *client, const void *key, size_t key_len, size_t *ret_len)
{
	struct kvb_sqe sqe = {.op = KVB_OP_EXISTS, .key_len = (uint16_t)key_len};
	struct kvb_cqe cqe;
	int r = check_key(key, key_len);

	if (r == 0)
		r = simple_call(client, &sqe, key, &cqe);
	if (r == 0 && ret_len)
		*ret_len = cqe.value;
	return r;
}

int kvb_delete(struct kvb_client *client, const void *key, size_t key_len)
{
	struct kvb_sqe sqe = {.op = KVB_OP_DELETE, .key_len = (uint16_t)key_len};
	struct kvb_cqe cqe;
	int r = check_key(key, key_len);

	return r < 0 ? r : simple_call(client, &sqe, key, &cqe);
}

int kvb_ping(struct kvb_client *client)
{
	struct kvb_sqe sqe = {.op = KVB_OP_NOP};
	struct kvb_cqe cqe;

	return simple_call(client, &sqe, NULL, &cqe);
}

/* --------------------------------------------------------------------------------- payload in fragments */

struct flight {
	uint32_t index;
	uint32_t length; /* put: bytes sent; get: room asked for */
	uint64_t offset;
};

struct stream {
	struct call call;
	uint8_t op;
	const void *key;
	size_t key_len;
	const uint8_t *from; /* put */
	uint8_t *to;         /* get */
	uint64_t total;      /* get: the capacity until the length is known */
	uint64_t sent;       /* where the next fragment begins */
	uint64_t done;
	bool opened;
	bool length_known;
	uint32_t transfer; /* 0: none needed */
	int error;         /* the first one that a completion brought */
	struct flight flights[WINDOW];
	unsigned first;
	unsigned n_flights;
};

static uint32_t fragment_of(const struct stream *stream)
{
	return (uint32_t)kvb_min_u64(
		stream->call.conn->attached.welcome.fragment_bytes, stream->total - stream->sent);
}

static bool may_send(const struct stream *stream)
{
	if (stream->error || stream->n_flights == WINDOW)
		return false;
	return !stream->opened || (stream->length_known && stream->sent < stream->total);
}

/* `total`: of a payload that goes into cold memory; 0: `to` is in cache and stays there. */
static void unlocked_copy(
	struct kvb_conn *conn, void *to, const void *from, size_t n, uint64_t total)
{
	if (n == 0)
		return;
	pthread_mutex_unlock(&conn->lock);
	kvb_copy_cold(to, from, n, total);
	pthread_mutex_lock(&conn->lock);
}

/* Sends the next fragment. 0; -EAGAIN no credit or staging now; the connection's error. */
static int send_fragment(struct stream *stream)
{
	struct kvb_conn *conn = stream->call.conn;
	uint32_t length = fragment_of(stream);
	struct kvb_sqe sqe = {.op = stream->op,
		.transfer = stream->transfer,
		.offset = stream->sent,
		.total = stream->total,
		.length = length};
	uint32_t index;
	int r = kvb_conn_take_locked(conn, length, &index);

	if (r < 0)
		return r;
	if (!stream->opened) {
		sqe.flags = KVB_SQE_OPEN;
		sqe.key_len = (uint16_t)stream->key_len;
	}
	if (stream->op == KVB_OP_PUT)
		unlocked_copy(conn, conn->staging_base + conn->requests[index].staging,
			stream->from + stream->sent, length, 0);
	kvb_conn_submit_locked(conn, index, &sqe, stream->key);
	stream->flights[(stream->first + stream->n_flights++) % WINDOW] =
		(struct flight){.index = index, .length = length, .offset = stream->sent};
	stream->opened = true;
	stream->sent += length;
	return 0;
}

/* A get's first completion tells the length; what came with it may be all. */
static int learn_length(struct stream *stream, const struct kvb_cqe *cqe)
{
	if (stream->length_known)
		return 0;
	/* Until now `total` is the capacity of the caller's buffer. */
	if (cqe->value > stream->total)
		return -EPROTO;
	stream->length_known = true;
	stream->total = cqe->value;
	stream->sent = cqe->length;
	return 0;
}

static void report_progress(struct stream *stream)
{
	struct kvb_client *client = stream->call.client;

	if (!client->progress)
		return;
	pthread_mutex_unlock(&stream->call.conn->lock);
	client->progress(client->progress_user, stream->done, stream->total);
	pthread_mutex_lock(&stream->call.conn->lock);
}

/* With a completion that says 0. -EPROTO the server says what cannot be. */
static int take_fragment(struct stream *stream, const struct flight *flight)
{
	struct kvb_conn *conn = stream->call.conn;
	struct kvb_request *request = &conn->requests[flight->index];
	uint32_t n = flight->length;

	if (stream->op == KVB_OP_GET) {
		if (learn_length(stream, &request->cqe) < 0)
			return -EPROTO;
		n = request->cqe.length;
		if (n > flight->length || !kvb_range_fits(flight->offset, n, stream->total) ||
			(n < flight->length && flight->offset + n != stream->total))
			return -EPROTO;
		unlocked_copy(conn, stream->to + flight->offset,
			conn->staging_base + request->staging, n, stream->total);
	}
	stream->done += n;
	report_progress(stream);
	return 0;
}

/* Waits for the oldest fragment in flight and takes its completion. */
static int land_oldest(struct stream *stream)
{
	struct kvb_conn *conn = stream->call.conn;
	struct flight flight = stream->flights[stream->first % WINDOW];
	const struct kvb_cqe *cqe = &conn->requests[flight.index].cqe;
	int r = kvb_conn_wait_done_locked(conn, flight.index, stream->call.deadline_ns);

	if (r < 0)
		return r;
	stream->first++;
	stream->n_flights--;
	if (cqe->result == 0 && !stream->error)
		r = take_fragment(stream, &flight);
	else if (!stream->error)
		stream->error = cqe->result;
	if (stream->op == KVB_OP_GET && cqe->result == -EMSGSIZE)
		stream->total = cqe->value;
	kvb_conn_finish_locked(conn, flight.index);
	return r;
}

/* Until everything is there, or one fragment failed and the others have come back. Negative: the
 * caller has to abandon what is in flight. */
static int run_stream(struct stream *stream)
{
	int r = 0;

	while (r == 0) {
		while (r == 0 && may_send(stream))
			r = send_fragment(stream);
		if (r < 0 && r != -EAGAIN)
			return r;
		if (stream->n_flights > 0)
			r = land_oldest(stream);
		else if (may_send(stream))
			r = kvb_conn_wait_room_locked(stream->call.conn, stream->call.deadline_ns);
		else
			return 0;
	}
	return r;
}

static void abandon(struct stream *stream)
{
	while (stream->n_flights > 0) {
		kvb_conn_orphan_locked(
			stream->call.conn, stream->flights[stream->first++ % WINDOW].index);
		stream->n_flights--;
	}
}

static int take_slot(struct stream *stream)
{
	struct kvb_conn *conn = stream->call.conn;
	int r;

	if (stream->total <= conn->attached.welcome.fragment_bytes)
		return 0;
	while ((r = kvb_conn_slot_take_locked(conn, &stream->transfer)) == -EAGAIN) {
		r = kvb_conn_wait_room_locked(conn, stream->call.deadline_ns);
		if (r < 0)
			return r;
	}
	return r;
}

static int stream_payload(struct stream *stream)
{
	int r = take_slot(stream);

	if (r < 0)
		return r;
	r = run_stream(stream);
	if (r < 0)
		abandon(stream);
	if (stream->transfer)
		kvb_conn_slot_give_locked(stream->call.conn, stream->transfer, r < 0);
	if (r < 0)
		return r;
	/* The server ends a transfer that rests for too long; what rested was this side. */
	return stream->error == -ESTALE ? -ETIMEDOUT : stream->error;
}

int kvb_put(
	struct kvb_client *client, const void *key, size_t key_len, const void *data, size_t len)
{
	struct stream stream = {.op = KVB_OP_PUT,
		.key = key,
		.key_len = key_len,
		.from = data,
		.total = len,
		.length_known = true};
	int r = check_key(key, key_len);

	if (r < 0)
		return r;
	if (!data && len > 0)
		return -EINVAL;
	r = call_begin(client, &stream.call);
	if (r < 0)
		return r;
	r = len > stream.call.conn->attached.welcome.payload_max ? -EFBIG : stream_payload(&stream);
	call_end(&stream.call);
	return r;
}

int kvb_get(struct kvb_client *client, const void *key, size_t key_len, void *buffer,
	size_t capacity, size_t *ret_len)
{
	struct stream stream = {
		.op = KVB_OP_GET, .key = key, .key_len = key_len, .to = buffer, .total = capacity};
	int r = check_key(key, key_len);

	if (r < 0)
		return r;
	if (!buffer && capacity > 0)
		return -EINVAL;
	r = call_begin(client, &stream.call);
	if (r < 0)
		return r;
	r = stream_payload(&stream);
	if (ret_len && (r == 0 || r == -EMSGSIZE))
		*ret_len = stream.total;
	call_end(&stream.call);
	return r;
}

/* ----------------------------------------------------------------------------------------- statistics */

/* The packed map in memory of its own, which the caller frees. *ret_needed with -EMSGSIZE. */
static int fetch_stats(struct kvb_client *client, uint32_t room, char **ret_data, size_t *ret_size,
	uint64_t *ret_needed)
{
	struct kvb_sqe sqe = {.op = KVB_OP_STATS, .length = room};
	struct call call;
	char *data = malloc(room);
	uint32_t index;
	int r;

	if (!data)
		return -ENOMEM;
	r = call_begin(client, &call);
	if (r < 0) {
		free(data);
		return r;
	}
	r = take_request(&call, room, &index);
	if (r == 0) {
		kvb_conn_submit_locked(call.conn, index, &sqe, NULL);
		r = kvb_conn_wait_done_locked(call.conn, index, call.deadline_ns);
		if (r < 0) {
			kvb_conn_orphan_locked(call.conn, index);
		} else {
			const struct kvb_request *request = &call.conn->requests[index];
			r = request->cqe.result;
			*ret_needed = request->cqe.value;
			*ret_size = kvb_min_u64(request->cqe.value, room);
			memcpy(data, call.conn->staging_base + request->staging, *ret_size);
			kvb_conn_finish_locked(call.conn, index);
		}
	}
	call_end(&call);
	if (r < 0)
		free(data);
	else
		*ret_data = data;
	return r;
}

static int pass_stat(const msgpack_object_kv *kv, kvb_stat_fn *fn, void *user)
{
	char name[128], text[256];
	struct kvb_stat stat = {.name = name};

	if (kv->key.type != MSGPACK_OBJECT_STR || kv->key.via.str.size >= sizeof(name))
		return -EPROTO;
	memcpy(name, kv->key.via.str.ptr, kv->key.via.str.size);
	name[kv->key.via.str.size] = '\0';
	if (kv->val.type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
		stat.value = kv->val.via.u64;
	} else if (kv->val.type == MSGPACK_OBJECT_STR && kv->val.via.str.size < sizeof(text)) {
		memcpy(text, kv->val.via.str.ptr, kv->val.via.str.size);
		text[kv->val.via.str.size] = '\0';
		stat.text = text;
	} else {
		return -EPROTO;
	}
	return fn(user, &stat);
}

static int pass_stats(const char *data, size_t size, kvb_stat_fn *fn, void *user)
{
	msgpack_unpacked unpacked;
	size_t offset = 0;
	int r = -EPROTO;

	msgpack_unpacked_init(&unpacked);
	if (msgpack_unpack_next(&unpacked, data, size, &offset) == MSGPACK_UNPACK_SUCCESS &&
		unpacked.data.type == MSGPACK_OBJECT_MAP) {
		r = 0;
		for (uint32_t i = 0; r >= 0 && i < unpacked.data.via.map.size; i++)
			r = pass_stat(&unpacked.data.via.map.ptr[i], fn, user);
	}
	msgpack_unpacked_destroy(&unpacked);
	return r < 0 ? r : 0;
}

int kvb_stats(struct kvb_client *client, kvb_stat_fn *fn, void *user)
{
	uint64_t needed = STATS_BYTES;
	char *data = NULL;
	size_t size = 0;
	int r = fetch_stats(client, STATS_BYTES, &data, &size, &needed);

	/* A later server may know more than this library. */
	if (r == -EMSGSIZE && needed < UINT32_MAX - STATS_BYTES)
		r = fetch_stats(client, (uint32_t)needed + STATS_BYTES, &data, &size, &needed);
	if (r < 0)
		return r;
	r = pass_stats(data, size, fn, user);
	free(data);
	return r;
}
