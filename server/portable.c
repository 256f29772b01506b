/* SPDX-License-Identifier: Apache-2.0 */
/*
 * portable.c - the portable carrier.
 *
 * Owns the private queues: the control thread their tails and memory, the serving worker their
 * heads. A message is taken whole or, if any of its requests is malformed, not at all; what fits is
 * appended, and the reply says how much. It must never append to a session that no worker will
 * serve again.
 */
#include "server/portable.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/server.h"
#include "shm/atomic.h"
#include "shm/pack.h"
#include "shm/util.h"

struct kvb_portable_entry {
	struct kvb_sqe sqe;
	uint8_t key[KVB_KEY_MAX];
};

void kvb_portable_reset(struct kvb_portable *portable)
{
	free(portable->entries);
	*portable = (struct kvb_portable){0};
}

bool kvb_portable_empty(const struct kvb_portable *portable)
{
	/* Pairs with the release store in append(). */
	return kvb_load_acquire(&portable->tail) == kvb_load_relaxed(&portable->head);
}

bool kvb_portable_pop(
	struct kvb_portable *portable, struct kvb_sqe *ret_sqe, uint8_t ret_key[KVB_KEY_MAX])
{
	const struct kvb_portable_entry *entry;
	uint32_t head = kvb_load_relaxed(&portable->head);

	if (kvb_portable_empty(portable))
		return false;
	entry = &portable->entries[head & portable->mask];
	*ret_sqe = entry->sqe;
	memcpy(ret_key, entry->key, entry->sqe.key_len);
	/* Gives the entry back; pairs with the acquire load in room(). */
	kvb_store_release(&portable->head, head + 1);
	return true;
}

/* -------------------------------------------------------------------------------------- appending */

static int make_entries(struct kvb_portable *portable, uint32_t entries)
{
	if (portable->entries)
		return 0;
	portable->entries = malloc(entries * sizeof(*portable->entries));
	if (!portable->entries)
		return -ENOMEM;
	portable->mask = entries - 1;
	return 0;
}

static uint32_t room(const struct kvb_portable *portable)
{
	/* Pairs with the release store in kvb_portable_pop(). */
	return portable->mask + 1 - (portable->tail - kvb_load_acquire(&portable->head));
}

static bool get_number(const msgpack_object *value, uint64_t max, uint64_t *ret_number)
{
	if (value->type != MSGPACK_OBJECT_POSITIVE_INTEGER || value->via.u64 > max)
		return false;
	*ret_number = value->via.u64;
	return true;
}

/* Fields have the ranges of struct kvb_sqe; whether they make sense is the executor's to say. */
static bool unpack_request(
	const msgpack_object *request, struct kvb_sqe *ret_sqe, const void **ret_key)
{
	static const uint64_t max[KVB_SUBMIT_KEY] = {
		[KVB_SUBMIT_OP] = UINT8_MAX,
		[KVB_SUBMIT_FLAGS] = UINT8_MAX,
		[KVB_SUBMIT_TRANSFER] = UINT32_MAX,
		[KVB_SUBMIT_USER_DATA] = UINT64_MAX,
		[KVB_SUBMIT_OFFSET] = UINT64_MAX,
		[KVB_SUBMIT_TOTAL] = UINT64_MAX,
		[KVB_SUBMIT_STAGING] = UINT64_MAX,
		[KVB_SUBMIT_LENGTH] = UINT32_MAX,
	};
	const msgpack_object *fields = request->via.array.ptr, *key;
	uint64_t numbers[KVB_SUBMIT_KEY];

	if (request->type != MSGPACK_OBJECT_ARRAY || request->via.array.size != KVB_SUBMIT_FIELDS)
		return false;
	for (unsigned i = 0; i < KVB_SUBMIT_KEY; i++)
		if (!get_number(&fields[i], max[i], &numbers[i]))
			return false;
	key = &fields[KVB_SUBMIT_KEY];
	if (key->type != MSGPACK_OBJECT_BIN || key->via.bin.size > KVB_KEY_MAX)
		return false;
	*ret_key = key->via.bin.ptr;
	*ret_sqe = (struct kvb_sqe){.op = (uint8_t)numbers[KVB_SUBMIT_OP],
		.flags = (uint8_t)numbers[KVB_SUBMIT_FLAGS],
		.key_len = (uint16_t)key->via.bin.size,
		.transfer = (uint32_t)numbers[KVB_SUBMIT_TRANSFER],
		.user_data = numbers[KVB_SUBMIT_USER_DATA],
		.offset = numbers[KVB_SUBMIT_OFFSET],
		.total = numbers[KVB_SUBMIT_TOTAL],
		.staging = numbers[KVB_SUBMIT_STAGING],
		.length = (uint32_t)numbers[KVB_SUBMIT_LENGTH]};
	return true;
}

/* All of them are well-formed and there are at most `max`. */
static int check_requests(struct kvb_call *call, uint32_t max)
{
	const msgpack_object *body = call->object;
	struct kvb_sqe sqe;
	const void *key;

	if (body->type != MSGPACK_OBJECT_ARRAY || body->via.array.size < 1 ||
		body->via.array.size > max)
		return kvb_call_fail(
			call, -EINVAL, "the body must be an array of 1 to %u requests", max);
	for (uint32_t i = 0; i < body->via.array.size; i++)
		if (!unpack_request(&body->via.array.ptr[i], &sqe, &key))
			return kvb_call_fail(call, -EINVAL,
				"request %u is not [op, flags, transfer, user_data, offset, total, "
				"staging, length, key bin of at most %u bytes]",
				i, KVB_KEY_MAX);
	return 0;
}

static uint32_t append(struct kvb_portable *portable, const msgpack_object_array *requests)
{
	uint32_t n = (uint32_t)kvb_min_u64(room(portable), requests->size);

	for (uint32_t i = 0; i < n; i++) {
		struct kvb_portable_entry *entry =
			&portable->entries[(portable->tail + i) & portable->mask];
		const void *key;
		/* It was checked before, so it is well-formed. */
		if (unpack_request(&requests->ptr[i], &entry->sqe, &key) && entry->sqe.key_len > 0)
			memcpy(entry->key, key, entry->sqe.key_len);
	}
	/* Publishes the entries, and at first the array; pairs with the acquire load in
	 * kvb_portable_empty(). */
	kvb_store_release(&portable->tail, portable->tail + n);
	return n;
}

int kvb_portable_handle_submit(struct kvb_call *call, void *unused)
{
	struct kvb_session *session = call->session;
	uint32_t accepted;
	int r;

	(void)unused;
	/* Pairs with the release store in execute.c. */
	if (kvb_load_acquire(&session->closed))
		return kvb_call_fail(call, -ESHUTDOWN, "the session has ended");
	r = check_requests(call, session->layout.cq_entries);
	if (r == 0)
		r = make_entries(&session->portable, session->layout.cq_entries);
	if (r < 0)
		return r;
	accepted = append(&session->portable, &call->object->via.array);
	kvb_count(&call->server->counters.control_submitted, accepted);
	kvb_session_wake(session);
	msgpack_pack_map(&call->packer, 1);
	msgpack_pack_str_with_body(&call->packer, "accepted", 8);
	msgpack_pack_uint32(&call->packer, accepted);
	return 0;
}
