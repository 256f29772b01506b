/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operations.c - put, get, exists, delete, ping and statistics through the ring, waiting for each.
 *
 * Owns nothing beyond the call; runs in the caller's thread, which drives its stream (stream.c) and
 * sleeps in between. It must never return while anything may still touch the caller's memory.
 */
#include <errno.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/connection.h"
#include "client/local.h"
#include "client/stream.h"
#include "kvbell/kvbell.h"
#include "shm/pack.h"
#include "shm/util.h"

#define STATS_BYTES 4096u /* fits any staging */

static int drive_locked(struct kvb_stream *stream, uint64_t deadline_ns)
{
	bool moved;
	int r;

	while ((r = kvb_stream_advance_locked(stream, &moved)) == 0) {
		if (!moved)
			r = kvb_stream_wait_locked(stream, deadline_ns);
		else if (kvb_now_ns() >= deadline_ns)
			r = -ETIMEDOUT;
		if (r < 0)
			break;
	}
	return kvb_stream_end_locked(stream, r);
}

/* Reads locally what can be. True: it is done, with *result; false: the caller is counted as one who
 * uses the ring, unless *result is an error. */
static bool read_or_enter(struct kvb_client *client, const struct kvb_task *task, int *ret_result,
	uint64_t *ret_value, struct kvb_conn **ret_conn, uint64_t *ret_deadline_ns)
{
	struct kvb_local *local;

	if (!kvb_local_is_ours(task)) {
		*ret_result = kvb_client_enter(client, ret_conn, ret_deadline_ns);
		return false;
	}
	local = kvb_local_enter(client);
	if (local && kvb_local_do(client, local, task, true, ret_result, ret_value)) {
		kvb_local_leave(client);
		return true;
	}
	*ret_value = 0;
	*ret_result = kvb_local_leave_for_ring(client, ret_conn, ret_deadline_ns);
	return false;
}

/* The operation's result. *ret_value is what the server told with it, also with most errors. */
static int run(struct kvb_client *client, const struct kvb_task *task, uint64_t *ret_value)
{
	struct kvb_stream stream;
	struct kvb_conn *conn;
	uint64_t deadline_ns, window = 0;
	int r;

	*ret_value = 0;
	if (read_or_enter(client, task, &r, ret_value, &conn, &deadline_ns) || r < 0)
		return r;
	r = kvb_stream_init(&stream, conn, task, &window);
	if (r == 0) {
		stream.reports = true;
		pthread_mutex_lock(&conn->lock);
		r = drive_locked(&stream, deadline_ns);
		pthread_mutex_unlock(&conn->lock);
		*ret_value = stream.value;
	}
	kvb_client_leave(client, conn);
	return r;
}

int kvb_put(
	struct kvb_client *client, const void *key, size_t key_len, const void *data, size_t len)
{
	struct kvb_task task = {
		.op = KVB_OP_PUT, .key = key, .key_len = key_len, .data = data, .size = len};
	uint64_t value;

	return run(client, &task, &value);
}

int kvb_put_if_absent(
	struct kvb_client *client, const void *key, size_t key_len, const void *data, size_t len)
{
	struct kvb_task task = {.op = KVB_OP_PUT,
		.flags = KVB_SQE_IF_ABSENT,
		.key = key,
		.key_len = key_len,
		.data = data,
		.size = len};
	uint64_t value;

	return run(client, &task, &value);
}

int kvb_get(struct kvb_client *client, const void *key, size_t key_len, void *buffer,
	size_t capacity, size_t *ret_len)
{
	struct kvb_task task = {.op = KVB_OP_GET,
		.key = key,
		.key_len = key_len,
		.buffer = buffer,
		.size = capacity};
	uint64_t value;
	int r = run(client, &task, &value);

	if (ret_len && (r == 0 || r == -EMSGSIZE))
		*ret_len = value;
	return r;
}

int kvb_exists(struct kvb_client *client, const void *key, size_t key_len, size_t *ret_len)
{
	struct kvb_task task = {.op = KVB_OP_EXISTS, .key = key, .key_len = key_len};
	uint64_t value;
	int r = run(client, &task, &value);

	if (r == 0 && ret_len)
		*ret_len = value;
	return r;
}

int kvb_delete(struct kvb_client *client, const void *key, size_t key_len)
{
	struct kvb_task task = {.op = KVB_OP_DELETE, .key = key, .key_len = key_len};
	uint64_t value;

	return run(client, &task, &value);
}

int kvb_ping(struct kvb_client *client)
{
	struct kvb_task task = {.op = KVB_OP_NOP};
	uint64_t value;

	return run(client, &task, &value);
}

/* ----------------------------------------------------------------------------------------- statistics */

/* The packed map in memory of its own, which the caller frees. *ret_size: bytes of it, or needed
 * with -EMSGSIZE. */
static int fetch_stats(
	struct kvb_client *client, uint32_t room, char **ret_data, uint64_t *ret_size)
{
	struct kvb_task task = {.op = KVB_OP_STATS, .size = room};
	char *data = malloc(room);
	int r;

	if (!data)
		return -ENOMEM;
	task.buffer = data;
	r = run(client, &task, ret_size);
	if (r < 0)
		free(data);
	else
		*ret_data = data;
	return r;
}

/* Ends it with a zero byte. False: it is no text, or a longer one. */
static bool copy_text(const msgpack_object *text, char *to, size_t size)
{
	if (text->type != MSGPACK_OBJECT_STR || text->via.str.size >= size)
		return false;
	/* An empty one lies nowhere, and memcpy() wants an address all the same. */
	if (text->via.str.size > 0)
		memcpy(to, text->via.str.ptr, text->via.str.size);
	to[text->via.str.size] = '\0';
	return true;
}

static int pass_stat(const msgpack_object_kv *kv, kvb_stat_fn *fn, void *user)
{
	char name[128], text[256];
	struct kvb_stat stat = {.name = name};

	if (!copy_text(&kv->key, name, sizeof(name)))
		return -EPROTO;
	if (kv->val.type == MSGPACK_OBJECT_POSITIVE_INTEGER)
		stat.value = kv->val.via.u64;
	else if (copy_text(&kv->val, text, sizeof(text)))
		stat.text = text;
	else
		return -EPROTO;
	return fn(user, &stat);
}

static int pass_stats(const char *data, size_t size, kvb_stat_fn *fn, void *user)
{
	msgpack_unpacked unpacked;
	size_t offset = 0;
	int r = -EPROTO;

	if (!kvb_pack_is_one_object(data, size))
		return -EPROTO;
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
	char *data = NULL;
	uint64_t size = 0;
	int r = fetch_stats(client, STATS_BYTES, &data, &size);

	/* A later server may know more than this library. */
	if (r == -EMSGSIZE && size < UINT32_MAX - STATS_BYTES)
		r = fetch_stats(client, (uint32_t)size + STATS_BYTES, &data, &size);
	if (r < 0)
		return r;
	r = pass_stats(data, size, fn, user);
	free(data);
	return r;
}
