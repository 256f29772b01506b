/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - the submission and the completion queue of a session: single producer, single consumer,
 * in shared memory, with the peer not trusted.
 *
 * Each side keeps its own index, the mask and every address in private memory and only mirrors its
 * index to the shared header. The peer's index is loaded once per visit and its distance checked.
 * An element is copied to private memory before anything in it is looked at.
 */
#ifndef KVB_SHM_RING_H
#define KVB_SHM_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvbell/protocol.h"

/* Where the parts of a session segment lie; computed once by the server, verified by the client. */
struct kvb_layout {
	uint32_t sq_entries;
	uint32_t cq_entries;
	uint64_t sq_offset;
	uint64_t cq_offset;
	uint64_t key_offset;
	uint64_t staging_offset;
	uint64_t staging_bytes;
	uint64_t total_bytes;
};

/* entries are powers of two. */
void kvb_layout_compute(struct kvb_layout *ret_layout, uint32_t sq_entries, uint32_t cq_entries,
	uint64_t staging_bytes);
/* 0; -EPROTO a part is misaligned, overlaps the header or lies outside the segment. */
int kvb_layout_verify(const struct kvb_layout *layout);

/* The client's end of the submission queue. One thread at a time. */
struct kvb_sq_producer {
	struct kvb_session_header *header;
	struct kvb_sqe *entries;
	uint8_t *keys;
	uint32_t mask;
	uint32_t tail;
};

/* The server's end. */
struct kvb_sq_consumer {
	struct kvb_session_header *header;
	const struct kvb_sqe *entries;
	const uint8_t *keys;
	uint32_t mask;
	uint32_t head;
};

/* The server's end of the completion queue. */
struct kvb_cq_producer {
	struct kvb_session_header *header;
	struct kvb_cqe *entries;
	uint32_t mask;
	uint32_t tail;
	uint32_t seen_head; /* the client's index as of the last look */
};

/* The client's end. */
struct kvb_cq_consumer {
	struct kvb_session_header *header;
	const struct kvb_cqe *entries;
	uint32_t mask;
	uint32_t head;
};

void kvb_sq_producer_init(struct kvb_sq_producer *sq, void *base, const struct kvb_layout *layout);
void kvb_sq_consumer_init(struct kvb_sq_consumer *sq, void *base, const struct kvb_layout *layout);
void kvb_cq_producer_init(struct kvb_cq_producer *cq, void *base, const struct kvb_layout *layout);
void kvb_cq_consumer_init(struct kvb_cq_consumer *cq, void *base, const struct kvb_layout *layout);

/* Writes descriptor and key into the next slot and publishes it. 0; -EAGAIN the queue is full (a
 * client that keeps to its credit never sees that when sq_entries >= cq_entries). */
int kvb_sq_push(struct kvb_sq_producer *sq, const struct kvb_sqe *sqe, const void *key);

/* Copies the next descriptor and its key to private memory, then gives the slot back.
 * 1; 0 empty; -EPROTO the client's index is impossible or the key's length is. */
int kvb_sq_pop(struct kvb_sq_consumer *sq, struct kvb_sqe *ret_sqe, uint8_t ret_key[KVB_KEY_MAX]);
bool kvb_sq_empty(const struct kvb_sq_consumer *sq);

/* 0 there is room for one completion; -EPROTO the client took more credit than it has, or its index
 * is impossible. */
int kvb_cq_room(struct kvb_cq_producer *cq);
/* Publishes one completion; only after kvb_cq_room() said 0. */
void kvb_cq_post(struct kvb_cq_producer *cq, const struct kvb_cqe *cqe);

/* 1; 0 empty; -EPROTO the server's index is impossible. */
int kvb_cq_take(struct kvb_cq_consumer *cq, struct kvb_cqe *ret_cqe);
bool kvb_cq_empty(const struct kvb_cq_consumer *cq);

#endif /* KVB_SHM_RING_H */
