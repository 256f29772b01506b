/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - the two queues of a session.
 *
 * A queue's end is owned by one thread at a time; on the server that is the worker that took the
 * session from the run queue, in the client the holder of the connection's lock. Nothing here may
 * read a field of shared memory twice, or use one before it was copied and checked.
 */
#include "shm/ring.h"

#include <errno.h>
#include <string.h>

#include "shm/atomic.h"
#include "shm/util.h"

void kvb_layout_compute(struct kvb_layout *ret_layout, uint32_t sq_entries, uint32_t cq_entries,
	uint64_t staging_bytes)
{
	struct kvb_layout layout = {.sq_entries = sq_entries, .cq_entries = cq_entries};

	layout.sq_offset = kvb_round_up(sizeof(struct kvb_session_header), KVB_LINE);
	layout.cq_offset =
		kvb_round_up(layout.sq_offset + sq_entries * sizeof(struct kvb_sqe), KVB_LINE);
	layout.key_offset =
		kvb_round_up(layout.cq_offset + cq_entries * sizeof(struct kvb_cqe), KVB_LINE);
	layout.staging_offset =
		kvb_round_up(layout.key_offset + (uint64_t)sq_entries * KVB_KEY_MAX, 4096);
	layout.staging_bytes = kvb_round_up(staging_bytes, 4096);
	layout.total_bytes = layout.staging_offset + layout.staging_bytes;
	*ret_layout = layout;
}

static bool part_fits(
	const struct kvb_layout *layout, uint64_t offset, uint64_t count, uint64_t size)
{
	/* count is at most 2^32 and size at most 1024, or count is 1: the product cannot overflow. */
	return offset % KVB_LINE == 0 && offset >= sizeof(struct kvb_session_header) &&
		kvb_range_fits(offset, count * size, layout->total_bytes);
}

int kvb_layout_verify(const struct kvb_layout *layout)
{
	if (!kvb_is_power_of_two(layout->sq_entries) || !kvb_is_power_of_two(layout->cq_entries) ||
		layout->sq_entries < layout->cq_entries)
		return -EPROTO;
	if (!part_fits(layout, layout->sq_offset, layout->sq_entries, sizeof(struct kvb_sqe)) ||
		!part_fits(layout, layout->cq_offset, layout->cq_entries, sizeof(struct kvb_cqe)) ||
		!part_fits(layout, layout->key_offset, layout->sq_entries, KVB_KEY_MAX) ||
		!part_fits(layout, layout->staging_offset, 1, layout->staging_bytes))
		return -EPROTO;
	return 0;
}

static void *at(void *base, uint64_t offset)
{
	return (uint8_t *)base + offset;
}

void kvb_sq_producer_init(struct kvb_sq_producer *sq, void *base, const struct kvb_layout *layout)
{
	*sq = (struct kvb_sq_producer){.header = base,
		.entries = at(base, layout->sq_offset),
		.keys = at(base, layout->key_offset),
		.mask = layout->sq_entries - 1};
}

void kvb_sq_consumer_init(struct kvb_sq_consumer *sq, void *base, const struct kvb_layout *layout)
{
	*sq = (struct kvb_sq_consumer){.header = base,
		.entries = at(base, layout->sq_offset),
		.keys = at(base, layout->key_offset),
		.mask = layout->sq_entries - 1};
}

void kvb_cq_producer_init(struct kvb_cq_producer *cq, void *base, const struct kvb_layout *layout)
{
	*cq = (struct kvb_cq_producer){.header = base,
		.entries = at(base, layout->cq_offset),
		.mask = layout->cq_entries - 1};
}

void kvb_cq_consumer_init(struct kvb_cq_consumer *cq, void *base, const struct kvb_layout *layout)
{
	*cq = (struct kvb_cq_consumer){.header = base,
		.entries = at(base, layout->cq_offset),
		.mask = layout->cq_entries - 1};
}

int kvb_sq_push(struct kvb_sq_producer *sq, const struct kvb_sqe *sqe, const void *key)
{
	uint32_t slot = sq->tail & sq->mask;
	/* Pairs with the release store of head in kvb_sq_pop(): the server has read the slot. */
	uint32_t head = kvb_load_acquire(&sq->header->sq_head);

	if (sq->tail - head > sq->mask)
		return -EAGAIN;
	sq->entries[slot] = *sqe;
	if (sqe->key_len > 0)
		memcpy(sq->keys + (size_t)slot * KVB_KEY_MAX, key, sqe->key_len);
	sq->tail++;
	/* Publishes slot and key cell; pairs with the acquire load of tail in kvb_sq_pop(). */
	kvb_store_release(&sq->header->sq_tail, sq->tail);
	return 0;
}

bool kvb_sq_empty(const struct kvb_sq_consumer *sq)
{
	return kvb_load_acquire(&sq->header->sq_tail) == sq->head;
}

int kvb_sq_pop(struct kvb_sq_consumer *sq, struct kvb_sqe *ret_sqe, uint8_t ret_key[KVB_KEY_MAX])
{
	uint32_t slot = sq->head & sq->mask;
	/* Pairs with the release store of tail in kvb_sq_push(). */
	uint32_t ready = kvb_load_acquire(&sq->header->sq_tail) - sq->head;
	struct kvb_sqe sqe;

	if (ready == 0)
		return 0;
	if (ready > sq->mask + 1)
		return -EPROTO;
	/* Volatile, so that the compiler cannot read the client's memory again after the checks. */
	sqe = *(const volatile struct kvb_sqe *)&sq->entries[slot];
	if (sqe.key_len > KVB_KEY_MAX)
		return -EPROTO;
	memcpy(ret_key, sq->keys + (size_t)slot * KVB_KEY_MAX, sqe.key_len);
	*ret_sqe = sqe;
	sq->head++;
	/* Orders the copies above before the client's reuse of slot and key cell; pairs with the
	 * acquire load of head in kvb_sq_push(). */
	kvb_store_release(&sq->header->sq_head, sq->head);
	return 1;
}

int kvb_cq_room(struct kvb_cq_producer *cq)
{
	if (cq->tail - cq->seen_head <= cq->mask)
		return 0;
	/* Pairs with the release store of head in kvb_cq_take(). */
	cq->seen_head = kvb_load_acquire(&cq->header->cq_head);
	return cq->tail - cq->seen_head <= cq->mask ? 0 : -EPROTO;
}

void kvb_cq_post(struct kvb_cq_producer *cq, const struct kvb_cqe *cqe)
{
	cq->entries[cq->tail & cq->mask] = *cqe;
	cq->tail++;
	/* Publishes the completion, and the payload in staging that it speaks of; pairs with the
	 * acquire load of tail in kvb_cq_take(). */
	kvb_store_release(&cq->header->cq_tail, cq->tail);
}

bool kvb_cq_empty(const struct kvb_cq_consumer *cq)
{
	return kvb_load_acquire(&cq->header->cq_tail) == cq->head;
}

int kvb_cq_take(struct kvb_cq_consumer *cq, struct kvb_cqe *ret_cqe)
{
	/* Pairs with the release store of tail in kvb_cq_post(). */
	uint32_t ready = kvb_load_acquire(&cq->header->cq_tail) - cq->head;

	if (ready == 0)
		return 0;
	if (ready > cq->mask + 1)
		return -EPROTO;
	*ret_cqe = cq->entries[cq->head & cq->mask];
	cq->head++;
	/* Gives the slot back; pairs with the acquire load of head in kvb_cq_room(). */
	kvb_store_release(&cq->header->cq_head, cq->head);
	return 1;
}
