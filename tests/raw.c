/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw.c - see raw.h.
 *
 * Owns what it mapped and received; runs in the test's thread. It must never hide a fault of the
 * server: what is not as the protocol says is an error here.
 */
#include "tests/raw.h"

#include <errno.h>
#include <msgpack.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/client.h"
#include "client/connection.h"
#include "client/records.h"
#include "shm/atomic.h"
#include "shm/bell.h"
#include "shm/fd.h"
#include "shm/pack.h"
#include "shm/util.h"

#define DEADLINE_MS 20000

int raw_connect(const char *dir, int *ret_fd)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return -errno;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", dir, KVB_DOOR_SOCKET);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		r = -errno;
		close(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

void raw_hello(struct kvb_hello *ret_hello)
{
	*ret_hello = (struct kvb_hello){.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = KVB_DOOR_HELLO,
		.node = -1,
		.name = "raw"};
}

int raw_door_recv(int fd, void *record, size_t size, size_t *ret_size, int *fds, unsigned n_fds)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};

	if (poll(&pfd, 1, DEADLINE_MS) <= 0)
		return -ETIMEDOUT;
	return kvb_record_recv(fd, record, size, ret_size, fds, n_fds);
}

int raw_goodbye(int fd, struct kvb_goodbye *ret_goodbye)
{
	size_t size = 0;
	int r = raw_door_recv(fd, ret_goodbye, sizeof(*ret_goodbye), &size, NULL, 0);

	if (r < 0)
		return r;
	if (r == 0)
		return -EPIPE;
	return size == sizeof(*ret_goodbye) && ret_goodbye->type == KVB_DOOR_GOODBYE ? 0 : -EPROTO;
}

static int map_all(struct raw_client *raw)
{
	const struct kvb_welcome *welcome = &raw->welcome;
	struct kvb_layout layout;
	int r = kvb_welcome_verify(welcome, sizeof(*welcome), &layout);

	if (r == 0)
		r = kvb_segment_map(raw->fds[KVB_FD_SESSION], welcome->session_bytes,
			KVB_SEALS_FIXED_SIZE, true, &raw->session);
	if (r == 0)
		r = kvb_segment_map(raw->fds[KVB_FD_LIFE], welcome->life_bytes,
			KVB_SEALS_FIXED_SIZE | KVB_SEAL_FUTURE_WRITE, false, &raw->life);
	if (r == 0 && (welcome->flags & KVB_WELCOME_READER))
		r = kvb_segment_map(raw->fds[KVB_FD_LEASES], welcome->lease_bytes,
			KVB_SEALS_FIXED_SIZE, true, &raw->leases);
	if (r < 0)
		return r;
	/* The segments own these now. */
	raw->fds[KVB_FD_SESSION] = raw->fds[KVB_FD_LIFE] = raw->fds[KVB_FD_LEASES] = -1;
	kvb_sq_producer_init(&raw->sq, raw->session.base, &layout);
	kvb_cq_consumer_init(&raw->cq, raw->session.base, &layout);
	raw->staging = (uint8_t *)raw->session.base + layout.staging_offset;
	return 0;
}

/* Takes WELCOME, or the goodbye that came instead. */
static int take_welcome(struct raw_client *raw)
{
	union {
		struct kvb_welcome welcome;
		struct kvb_goodbye goodbye;
	} record;
	size_t size = 0;
	int r = raw_door_recv(
		raw->door_fd, &record, sizeof(record), &size, raw->fds, KVB_WELCOME_READER_FDS);

	if (r <= 0)
		return r < 0 ? r : -EPIPE;
	if (size == sizeof(record.goodbye) && record.goodbye.type == KVB_DOOR_GOODBYE)
		return record.goodbye.error;
	if (size != sizeof(record.welcome) || record.welcome.type != KVB_DOOR_WELCOME)
		return -EPROTO;
	raw->welcome = record.welcome;
	return map_all(raw);
}

int raw_attach_as(struct raw_client *raw, const char *dir, uint32_t hello_flags)
{
	struct kvb_hello hello;
	int r;

	*raw = (struct raw_client){.door_fd = -1,
		.fds = {-1, -1, -1, -1, -1, -1, -1},
		.session = KVB_SEGMENT_NONE,
		.life = KVB_SEGMENT_NONE,
		.leases = KVB_SEGMENT_NONE};
	r = raw_connect(dir, &raw->door_fd);
	if (r < 0)
		return r;
	raw_hello(&hello);
	hello.flags = hello_flags;
	r = kvb_record_send(raw->door_fd, &hello, sizeof(hello), NULL, 0);
	if (r == 0)
		r = take_welcome(raw);
	if (r < 0)
		raw_drop(raw);
	return r;
}

int raw_attach(struct raw_client *raw, const char *dir)
{
	return raw_attach_as(raw, dir, 0);
}

void raw_drop(struct raw_client *raw)
{
	kvb_fd_close(&raw->door_fd);
	kvb_fds_close(raw->fds, KVB_WELCOME_READER_FDS);
	kvb_segment_free(&raw->session);
	kvb_segment_free(&raw->life);
	kvb_segment_free(&raw->leases);
}

void raw_kick(struct raw_client *raw)
{
	(void)eventfd_write(raw->fds[KVB_FD_KICK], 1);
}

int raw_submit(struct raw_client *raw, const struct kvb_sqe *sqe, const void *key)
{
	int r = kvb_sq_push(&raw->sq, sqe, key);

	if (r == 0 && kvb_bell_wanted(&raw->sq.header->sq_sleeping))
		raw_kick(raw);
	return r;
}

int raw_complete(struct raw_client *raw, struct kvb_cqe *ret_cqe)
{
	struct pollfd pfd = {.fd = raw->fds[KVB_FD_BELL], .events = POLLIN};
	int r;

	for (;;) {
		r = kvb_cq_take(&raw->cq, ret_cqe);
		if (r != 0)
			return r < 0 ? r : 0;
		kvb_bell_arm(&raw->cq.header->cq_sleeping);
		if (!kvb_cq_empty(&raw->cq))
			continue;
		/* No shorter re-check: a wake that gets lost must fail the test. */
		if (poll(&pfd, 1, DEADLINE_MS) <= 0)
			return -ETIMEDOUT;
		(void)kvb_bell_clear(raw->fds[KVB_FD_BELL]);
	}
}

int raw_call(struct raw_client *raw, struct kvb_sqe *sqe, const void *key, struct kvb_cqe *ret_cqe)
{
	struct kvb_cqe cqe;
	int r = raw_submit(raw, sqe, key);

	if (r == 0)
		r = raw_complete(raw, &cqe);
	if (r < 0)
		return r;
	if (cqe.user_data != sqe->user_data)
		return -EBADMSG;
	if (ret_cqe)
		*ret_cqe = cqe;
	return cqe.result;
}

int raw_put(struct raw_client *raw, const char *key, uint32_t transfer, uint64_t offset,
	uint32_t length, uint64_t total)
{
	struct kvb_sqe sqe = {.op = KVB_OP_PUT,
		.flags = offset == 0 ? KVB_SQE_OPEN : 0,
		.key_len = offset == 0 ? (uint16_t)strlen(key) : 0,
		.transfer = transfer,
		.user_data = offset + 1,
		.offset = offset,
		.total = total,
		.length = length};

	return raw_call(raw, &sqe, key, NULL);
}

int raw_get(struct raw_client *raw, const char *key, uint32_t transfer, uint64_t offset,
	uint32_t length, uint64_t capacity, struct kvb_cqe *ret_cqe)
{
	struct kvb_sqe sqe = {.op = KVB_OP_GET,
		.flags = offset == 0 ? KVB_SQE_OPEN : 0,
		.key_len = offset == 0 ? (uint16_t)strlen(key) : 0,
		.transfer = transfer,
		.user_data = offset + 1,
		.offset = offset,
		.total = capacity,
		.length = length};

	return raw_call(raw, &sqe, key, ret_cqe);
}

static int find_stat(const void *data, size_t size, const char *name, uint64_t *ret_value)
{
	msgpack_unpacked unpacked;
	size_t offset = 0;
	const msgpack_object *value = NULL;
	int r = -EBADMSG;

	msgpack_unpacked_init(&unpacked);
	if (msgpack_unpack_next(&unpacked, data, size, &offset) == MSGPACK_UNPACK_SUCCESS) {
		value = kvb_pack_find(&unpacked.data, name);
		r = value ? 0 : -ENOENT;
	}
	if (value)
		*ret_value = value->via.u64;
	msgpack_unpacked_destroy(&unpacked);
	return r;
}

bool raw_break_client(struct kvb_client *client)
{
	struct kvb_conn *conn;

	pthread_mutex_lock(&client->lock);
	conn = client->conn;
	if (conn) {
		kvb_store_release(
			&conn->header->sq_tail, kvb_load_relaxed(&conn->header->sq_head) + 1000000);
		(void)kvb_bell_ring(conn->attached.kick_fd);
	}
	pthread_mutex_unlock(&client->lock);
	return conn;
}

int raw_stat(struct raw_client *raw, const char *name, uint64_t *ret_value)
{
	struct kvb_sqe sqe = {.op = KVB_OP_STATS, .user_data = 7, .length = 64 * 1024};
	struct kvb_cqe cqe;
	int r = raw_call(raw, &sqe, NULL, &cqe);

	return r < 0 ? r : find_stat(raw->staging, cqe.value, name, ret_value);
}
