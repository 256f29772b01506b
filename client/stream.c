/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - see stream.h.
 *
 * Owns the requests and the transfer of one operation; runs in whatever thread drives it. Several
 * fragments are on their way at once, so that the worker copies one while this thread copies the
 * next. It must never leave a request behind without saying so: what is given up becomes an orphan,
 * which its completion cleans up; and never touch the caller's memory after its end.
 *
 * A GET asks for fragments before it knows how long the object is, as far as there is room: the
 * first answer tells the length, and the ones beyond it find the transfer ended (-ESTALE).
 */
#include "client/stream.h"

#include <errno.h>
#include <string.h>

#include "client/client.h"
#include "shm/copy.h"
#include "shm/util.h"

/* A payload is cut in about so many parts, so that two copies of a short one overlap as well; but
 * into none that is too small to be worth a descriptor. */
#define PARTS        16u
#define PART_MIN     (64u * 1024)
#define LANDINGS_MAX 8u

static bool moves_payload(const struct kvb_stream *stream)
{
	return stream->task.op == KVB_OP_PUT || stream->task.op == KVB_OP_GET;
}

static uint32_t fragment_for(const struct kvb_conn *conn, uint64_t total)
{
	uint64_t part = kvb_max_u64(kvb_round_up(total / PARTS, 4096), PART_MIN);

	return (uint32_t)kvb_min_u64(part, conn->attached.welcome.fragment_bytes);
}

static int check_task(const struct kvb_task *task)
{
	if (task->op == KVB_OP_NOP || task->op == KVB_OP_STATS)
		return 0;
	if (!task->key || task->key_len == 0)
		return -EINVAL;
	if (task->key_len > KVB_KEY_MAX)
		return -ENAMETOOLONG;
	if (task->op == KVB_OP_PUT)
		return !task->data && task->size > 0 ? -EINVAL : 0;
	return task->op == KVB_OP_GET && !task->buffer && task->size > 0 ? -EINVAL : 0;
}

int kvb_stream_init(struct kvb_stream *stream, struct kvb_conn *conn, const struct kvb_task *task,
	uint64_t *window)
{
	const struct kvb_welcome *welcome = &conn->attached.welcome;
	int r = check_task(task);

	if (r < 0)
		return r;
	if (task->op == KVB_OP_PUT && task->size > welcome->payload_max)
		return -EFBIG;
	memset(stream, 0, offsetof(struct kvb_stream, flights));
	stream->first = stream->n_flights = 0;
	stream->conn = conn;
	stream->task = *task;
	stream->window = window;
	if (moves_payload(stream))
		stream->length = task->size;
	/* No object is longer than the pool, so a longer buffer needs no transfer for it. */
	if (task->op == KVB_OP_GET)
		stream->length = kvb_min_u64(task->size, welcome->payload_max);
	stream->fragment = task->op == KVB_OP_STATS ? (uint32_t)task->size
						    : fragment_for(conn, stream->length);
	stream->length_known = task->op != KVB_OP_GET;
	return 0;
}

/* ------------------------------------------------------------------------------------------- sending */

static bool needs_transfer(const struct kvb_stream *stream)
{
	return stream->length > stream->fragment;
}

static bool may_send(const struct kvb_stream *stream)
{
	if (stream->error || stream->n_flights == KVB_FLIGHTS_MAX)
		return false;
	return !stream->opened || stream->sent < stream->length;
}

/* `total`: of a payload that goes into cold memory; 0: `to` is in cache and stays there. */
static void unlocked_copy(
	struct kvb_conn *conn, void *to, const void *from, size_t n, uint64_t total)
{
	pthread_mutex_unlock(&conn->lock);
	kvb_copy_cold(to, from, n, total);
	pthread_mutex_lock(&conn->lock);
}

static void describe(const struct kvb_stream *stream, uint32_t length, struct kvb_sqe *ret_sqe)
{
	const struct kvb_task *task = &stream->task;

	*ret_sqe = (struct kvb_sqe){.op = task->op, .length = length};
	if (!stream->opened)
		ret_sqe->key_len = (uint16_t)task->key_len;
	if (!moves_payload(stream))
		return;
	ret_sqe->transfer = stream->transfer;
	ret_sqe->offset = stream->sent;
	ret_sqe->total = stream->length;
	if (!stream->opened)
		ret_sqe->flags = (uint8_t)(KVB_SQE_OPEN | task->flags);
}

/* Sends the next fragment. 0; -EAGAIN no credit, staging or share of the window now; the
 * connection's error. */
static int send_fragment(struct kvb_stream *stream)
{
	struct kvb_conn *conn = stream->conn;
	const struct kvb_task *task = &stream->task;
	uint32_t length = stream->fragment;
	struct kvb_sqe sqe;
	uint32_t index;
	int r;

	if (task->op != KVB_OP_STATS)
		length = (uint32_t)kvb_min_u64(length, stream->length - stream->sent);
	/* One is always allowed, whatever its size. */
	if (*stream->window > 0 && *stream->window + length > KVB_WINDOW_BYTES)
		return -EAGAIN;
	r = kvb_conn_take_locked(conn, length, &index);
	if (r < 0)
		return r;
	describe(stream, length, &sqe);
	*stream->window += length;
	if (task->op == KVB_OP_PUT && length > 0)
		unlocked_copy(conn, conn->staging_base + conn->requests[index].staging,
			(const uint8_t *)task->data + stream->sent, length, 0);
	kvb_conn_submit_locked(conn, index, &sqe, task->key);
	stream->flights[(stream->first + stream->n_flights++) % KVB_FLIGHTS_MAX] =
		(struct kvb_flight){.index = index, .length = length, .offset = stream->sent};
	stream->opened = true;
	if (moves_payload(stream))
		stream->sent += length;
	return 0;
}

static int send_all(struct kvb_stream *stream, bool *ret_moved)
{
	int r = 0;

	if (needs_transfer(stream) && !stream->transfer) {
		r = kvb_conn_slot_take_locked(stream->conn, &stream->transfer);
		if (r < 0)
			return r == -EAGAIN ? 0 : r;
	}
	while (may_send(stream) && (r = send_fragment(stream)) == 0)
		*ret_moved = true;
	return r == -EAGAIN ? 0 : r;
}

/* ------------------------------------------------------------------------------------------- landing */

/* A GET's first completion tells the length; what came with it may be all. -EPROTO. */
static int learn_length(struct kvb_stream *stream, const struct kvb_cqe *cqe)
{
	if (stream->length_known)
		return 0;
	if (cqe->value > stream->length)
		return -EPROTO;
	stream->length_known = true;
	stream->length = cqe->value;
	return 0;
}

static int land_get(struct kvb_stream *stream, const struct kvb_flight *flight)
{
	struct kvb_conn *conn = stream->conn;
	struct kvb_request *request = &conn->requests[flight->index];
	uint64_t expected;

	if (learn_length(stream, &request->cqe) < 0 || flight->offset > stream->length)
		return -EPROTO;
	expected = kvb_min_u64(flight->length, stream->length - flight->offset);
	if (request->cqe.length != expected)
		return -EPROTO;
	if (expected > 0)
		unlocked_copy(conn, (uint8_t *)stream->task.buffer + flight->offset,
			conn->staging_base + request->staging, expected, stream->length);
	stream->done += expected;
	return 0;
}

static int land_stats(struct kvb_stream *stream, const struct kvb_flight *flight)
{
	struct kvb_request *request = &stream->conn->requests[flight->index];

	if (request->cqe.value > flight->length)
		return -EPROTO;
	memcpy(stream->task.buffer, stream->conn->staging_base + request->staging,
		request->cqe.value);
	return 0;
}

static int land_success(struct kvb_stream *stream, const struct kvb_flight *flight)
{
	if (stream->task.op == KVB_OP_GET)
		return land_get(stream, flight);
	if (stream->task.op == KVB_OP_STATS)
		return land_stats(stream, flight);
	stream->done += flight->length;
	return 0;
}

static void report_progress(struct kvb_stream *stream)
{
	struct kvb_client *client = stream->conn->client;

	if (!stream->reports || !client->progress)
		return;
	pthread_mutex_unlock(&stream->conn->lock);
	client->progress(client->progress_user, stream->done, stream->length);
	pthread_mutex_lock(&stream->conn->lock);
}

/* Asked for in vain, since the object ended before it. */
static bool is_beyond_end(const struct kvb_stream *stream, const struct kvb_flight *flight)
{
	return stream->length_known && flight->offset > 0 && flight->offset >= stream->length;
}

/* Takes the completion of the oldest fragment. -EPROTO the server says what cannot be. */
static int land_oldest(struct kvb_stream *stream)
{
	struct kvb_conn *conn = stream->conn;
	struct kvb_flight flight = stream->flights[stream->first % KVB_FLIGHTS_MAX];
	const struct kvb_cqe *cqe = &conn->requests[flight.index].cqe;
	int result = cqe->result, r = 0;

	if (flight.offset == 0)
		stream->value = cqe->value;
	if (result == 0 && !stream->error)
		r = land_success(stream, &flight);
	else if (!stream->error && !is_beyond_end(stream, &flight))
		stream->error = result;
	stream->first++;
	stream->n_flights--;
	*stream->window -= flight.length;
	kvb_conn_finish_locked(conn, flight.index);
	if (r == 0 && result == 0)
		report_progress(stream);
	return r;
}

static bool oldest_is_done(const struct kvb_stream *stream)
{
	return stream->n_flights > 0 &&
		stream->conn->requests[stream->flights[stream->first % KVB_FLIGHTS_MAX].index].done;
}

int kvb_stream_advance_locked(struct kvb_stream *stream, bool *ret_moved)
{
	int r = 0;

	*ret_moved = false;
	for (unsigned i = 0; i < LANDINGS_MAX; i++) {
		r = send_all(stream, ret_moved);
		if (r < 0)
			return r;
		/* What is done counts, whatever happened since. */
		if (!oldest_is_done(stream)) {
			uint32_t head = stream->conn->cq.head;
			r = kvb_conn_reap_locked(stream->conn);
			/* What was taken for others may be room for this one, or let them go on:
			 * nobody rings for it again. */
			*ret_moved = *ret_moved || head != stream->conn->cq.head;
			if (!oldest_is_done(stream))
				break;
		}
		r = land_oldest(stream);
		if (r < 0)
			return r;
		*ret_moved = true;
	}
	if (stream->n_flights == 0 && !may_send(stream))
		return 1;
	return r;
}

/* ---------------------------------------------------------------------------------- waiting and ending */

int kvb_stream_wait_locked(struct kvb_stream *stream, uint64_t deadline_ns)
{
	if (stream->n_flights == 0)
		return kvb_conn_wait_room_locked(stream->conn, deadline_ns);
	return kvb_conn_wait_done_locked(
		stream->conn, stream->flights[stream->first % KVB_FLIGHTS_MAX].index, deadline_ns);
}

static void leave_flights(struct kvb_stream *stream)
{
	while (stream->n_flights > 0) {
		const struct kvb_flight *flight =
			&stream->flights[stream->first++ % KVB_FLIGHTS_MAX];
		*stream->window -= flight->length;
		kvb_conn_orphan_locked(stream->conn, flight->index);
		stream->n_flights--;
	}
}

int kvb_stream_end_locked(struct kvb_stream *stream, int r)
{
	leave_flights(stream);
	if (stream->transfer)
		kvb_conn_slot_give_locked(stream->conn, stream->transfer, r < 0 && stream->opened);
	if (r < 0)
		return r;
	/* The server ends a transfer that rests for too long; what rested was this side. */
	return stream->error == -ESTALE ? -ETIMEDOUT : stream->error;
}
