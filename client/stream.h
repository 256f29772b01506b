/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.h - one operation on its way through the ring: a payload in fragments, or a request alone.
 *
 * A stream never waits. Whoever drives it (the thread inside a blocking call, a mover) advances it
 * until it has come to its end, and waits in between as it pleases. All functions want conn->lock
 * held, and let go of it while payload is copied.
 */
#ifndef KVB_CLIENT_STREAM_H
#define KVB_CLIENT_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/connection.h"

/* Most payload on its way at once. More would not be faster: staging would fall out of cache. */
#define KVB_WINDOW_BYTES (4u * 1024 * 1024)
#define KVB_FLIGHTS_MAX  16u

/* What to do; the caller's memory stays his until the stream has ended. */
struct kvb_task {
	uint8_t op;    /* enum kvb_op */
	uint8_t flags; /* KVB_SQE_IF_ABSENT */
	const void *key;
	size_t key_len;
	const void *data; /* PUT: what to store */
	void *buffer;     /* GET, STATS: where to copy */
	size_t size;      /* bytes of data, or room in buffer */
};

struct kvb_flight {
	uint32_t index;  /* of the request */
	uint32_t length; /* put: bytes sent; get: room asked for */
	uint64_t offset;
};

struct kvb_stream {
	struct kvb_conn *conn;
	struct kvb_task task;
	uint64_t *window;  /* bytes on their way, of all streams that share it */
	uint64_t length;   /* of the payload; of a GET: room, until the server has told */
	uint64_t sent;     /* where the next fragment begins */
	uint64_t done;     /* bytes that have arrived */
	uint64_t value;    /* what the server told: the object's length */
	uint32_t fragment; /* most bytes of one descriptor */
	uint32_t transfer; /* 0: none needed, or not yet taken */
	bool length_known; /* always, but of a GET without an answer */
	bool opened;       /* the first descriptor is on its way */
	bool reports;      /* to the client's progress callback */
	int error;         /* the first one that a completion brought */
	struct kvb_flight flights[KVB_FLIGHTS_MAX];
	unsigned first;
	unsigned n_flights;
};

/* 0; -EINVAL, -ENAMETOOLONG a key that cannot be, or no memory to a size; -EFBIG. */
int kvb_stream_init(struct kvb_stream *stream, struct kvb_conn *conn, const struct kvb_task *task,
	uint64_t *window);

/* Takes what has completed and sends what may be sent, for a bounded time. 1 it has come to its
 * end; 0 it goes on: wait with kvb_stream_wait_locked() if *ret_moved is false; negative: the
 * connection's error. */
int kvb_stream_advance_locked(struct kvb_stream *stream, bool *ret_moved);

/* Waits until it may be advanced. 0; -ETIMEDOUT; the connection's error. */
int kvb_stream_wait_locked(struct kvb_stream *stream, uint64_t deadline_ns);

/* Once, at its end or before: leaves behind what is on its way, which its completions clean up.
 * `r`: 1 or why it is given up. The operation's result. */
int kvb_stream_end_locked(struct kvb_stream *stream, int r);

#endif /* KVB_CLIENT_STREAM_H */
