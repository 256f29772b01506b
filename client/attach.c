/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attach.c - HELLO, WELCOME, GOODBYE: being let in at the door, and told to go.
 *
 * Owns what it has received until the caller takes it. Runs in the thread that calls kvb_open() for
 * the first time, and in the internal thread after that. It must never map what it has not verified
 * (a memfd whose size can change is a SIGBUS), never keep a descriptor on an error path, and never
 * block past its deadline.
 */
#include "client/attach.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/client.h"
#include "client/records.h"
#include "shm/atomic.h"
#include "shm/fd.h"
#include "shm/numa.h"
#include "shm/util.h"

/* A full backlog cannot be polled for. */
#define CONNECT_PAUSE_MS 5

/* What came over the door in answer to HELLO. */
struct answer {
	union {
		struct kvb_welcome welcome;
		struct kvb_goodbye goodbye;
	} record;
	size_t size;
	int fds[KVB_WELCOME_READER_FDS];
};

int kvb_socket_path(const char *dir, const char *name, char *ret_path, size_t size)
{
	int n = snprintf(ret_path, size, "%s/%s", dir, name);

	return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

/* Waits for the socket (or for nothing: -1). 0 it is ready; -ECANCELED; -ETIMEDOUT. */
static int wait_ready(int fd, int cancel_fd, uint64_t deadline_ns)
{
	struct pollfd fds[] = {{.fd = fd, .events = POLLIN}, {.fd = cancel_fd, .events = POLLIN}};

	for (;;) {
		uint64_t now = kvb_now_ns();
		uint64_t left_ms = now < deadline_ns ? (deadline_ns - now) / KVB_NS_PER_MS + 1 : 0;
		int n = poll(fds, KVB_ARRAY_SIZE(fds), (int)kvb_min_u64(left_ms, 60000));

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0 && fds[1].revents)
			return -ECANCELED;
		if (n > 0)
			return 0;
		if (kvb_now_ns() >= deadline_ns)
			return -ETIMEDOUT;
	}
}

static int connect_error(int error)
{
	switch (error) {
	case ENOENT:
	case ENOTDIR:
	case ECONNREFUSED:
		return -ECONNREFUSED;
	case EPROTOTYPE:
		return -EPROTO;
	default:
		return -error;
	}
}

static int connect_door(
	const struct sockaddr_un *address, int fd, int cancel_fd, uint64_t deadline_ns)
{
	while (connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0) {
		uint64_t pause_ns = kvb_now_ns() + CONNECT_PAUSE_MS * KVB_NS_PER_MS;
		int r;

		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return connect_error(errno);
		r = wait_ready(-1, cancel_fd, kvb_min_u64(pause_ns, deadline_ns));
		if (r == -ECANCELED || kvb_now_ns() >= deadline_ns)
			return r;
	}
	return 0;
}

static int open_door(const char *dir, int cancel_fd, uint64_t deadline_ns, int *ret_fd)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd;
	int r = kvb_socket_path(dir, KVB_DOOR_SOCKET, address.sun_path, sizeof(address.sun_path));

	if (r < 0)
		return r;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	r = connect_door(&address, fd, cancel_fd, deadline_ns);
	if (r < 0) {
		kvb_fd_close(&fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

static int send_hello(const struct kvb_client *client, bool reader, int fd)
{
	struct kvb_hello hello = {.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = KVB_DOOR_HELLO,
		.flags = reader ? KVB_HELLO_READER : 0,
		.node = kvb_numa_current_node()};
	int r;

	memcpy(hello.name, client->name, sizeof(hello.name));
	r = kvb_record_send(fd, &hello, sizeof(hello), NULL, 0);
	/* Whoever hangs up without listening may have said why. */
	return r == -EPIPE || r == -ECONNRESET ? 0 : r;
}

static int receive_answer(int fd, int cancel_fd, uint64_t deadline_ns, struct answer *ret_answer)
{
	bool was_reset = false;
	int r;

	for (;;) {
		r = kvb_record_recv(fd, &ret_answer->record, sizeof(ret_answer->record),
			&ret_answer->size, ret_answer->fds, KVB_WELCOME_READER_FDS);
		if (r > 0)
			return 0;
		if (r == -EAGAIN) {
			r = wait_ready(fd, cancel_fd, deadline_ns);
			if (r < 0)
				return r;
			continue;
		}
		/* The kernel reports the reset before it delivers what was sent ahead of it. */
		if (r == -ECONNRESET && !was_reset) {
			was_reset = true;
			continue;
		}
		if (r == 0 || r == -ECONNRESET)
			return -ECONNREFUSED;
		return r == -EMSGSIZE ? -EPROTO : r;
	}
}

/* ------------------------------------------------------------------------------------- the answers */

static void log_goodbye(
	const struct kvb_client *client, enum kvb_log_level level, struct kvb_goodbye *goodbye)
{
	kvb_goodbye_clean(goodbye);
	kvb_client_log(client, level, "the server says goodbye: %s (reason %u)", goodbye->text,
		goodbye->reason);
}

static int map_session(struct kvb_attached *attached, int *fd)
{
	const struct kvb_welcome *welcome = &attached->welcome;
	const struct kvb_session_header *header;
	int r = kvb_segment_map(
		*fd, welcome->session_bytes, KVB_SEALS_FIXED_SIZE, true, &attached->session);

	if (r < 0)
		return r;
	*fd = -1;
	/* Now, so that the first use meets no page fault. */
	r = kvb_segment_populate(&attached->session, 0, welcome->session_bytes, true);
	if (r < 0)
		return r;
	header = attached->session.base;
	if (header->magic != KVB_MAGIC || header->abi != KVB_ABI_VERSION ||
		header->session != welcome->session ||
		memcmp(header->boot_id, welcome->boot_id, KVB_ID_BYTES) != 0)
		return -EPROTO;
	/* Mapped is mapped; one descriptor less for the process. */
	kvb_fd_close(&attached->session.fd);
	return 0;
}

static int map_life(struct kvb_attached *attached, int *fd)
{
	const struct kvb_welcome *welcome = &attached->welcome;
	const struct kvb_life_page *page;
	uint32_t life;
	int r = kvb_segment_map(*fd, welcome->life_bytes,
		KVB_SEALS_FIXED_SIZE | KVB_SEAL_FUTURE_WRITE, false, &attached->life);

	if (r < 0)
		return r;
	*fd = -1;
	r = kvb_segment_populate(&attached->life, 0, welcome->life_bytes, false);
	/* Before Linux 5.14 there is no such advice; one page will be read soon anyway. */
	if (r < 0 && r != -EINVAL)
		return r;
	page = attached->life.base;
	/* Pairs with the release store in the server's kvb_life_begin(): the page is complete. */
	life = kvb_load_acquire(&page->life);
	if (life == 0 || (life & KVB_LIFE_OWNER_DIED))
		return -ECONNREFUSED;
	if (page->magic != KVB_MAGIC || page->abi != KVB_ABI_VERSION ||
		memcmp(page->boot_id, welcome->boot_id, KVB_ID_BYTES) != 0)
		return -EPROTO;
	kvb_fd_close(&attached->life.fd);
	return 0;
}

/* Mapped is mapped; a descriptor less for the process. */
static int map_and_close(
	int *fd, uint64_t bytes, int seals, bool writable, struct kvb_segment *ret_segment)
{
	int r = kvb_segment_map(*fd, bytes, seals, writable, ret_segment);

	if (r < 0)
		return r;
	*fd = -1;
	kvb_fd_close(&ret_segment->fd);
	return 0;
}

static int map_reader(struct kvb_attached *attached, int fds[KVB_WELCOME_READER_FDS])
{
	const struct kvb_welcome *welcome = &attached->welcome;
	int read_only = KVB_SEALS_FIXED_SIZE | KVB_SEAL_FUTURE_WRITE;
	int r = map_and_close(
		&fds[KVB_FD_INDEX], welcome->index_bytes, read_only, false, &attached->index);

	if (r == 0)
		r = map_and_close(
			&fds[KVB_FD_POOL], welcome->payload_max, read_only, false, &attached->pool);
	if (r == 0)
		r = map_and_close(&fds[KVB_FD_LEASES], welcome->lease_bytes, KVB_SEALS_FIXED_SIZE,
			true, &attached->leases);
	return r;
}

static void move_fd(int *to, int *from)
{
	*to = *from;
	*from = -1;
}

static int take_welcome(struct kvb_attached *attached, struct answer *answer)
{
	const struct kvb_welcome *welcome = &answer->record.welcome;
	int r = kvb_welcome_verify(welcome, answer->size, &attached->layout);

	if (r < 0)
		return r;
	for (unsigned i = 0; i <
		(welcome->flags & KVB_WELCOME_READER ? KVB_WELCOME_READER_FDS : KVB_WELCOME_FDS);
		i++)
		if (answer->fds[i] < 0)
			return -EPROTO;
	attached->welcome = *welcome;
	r = map_session(attached, &answer->fds[KVB_FD_SESSION]);
	if (r == 0)
		r = map_life(attached, &answer->fds[KVB_FD_LIFE]);
	if (r == 0 && (welcome->flags & KVB_WELCOME_READER))
		r = map_reader(attached, answer->fds);
	if (r < 0)
		return r;
	move_fd(&attached->kick_fd, &answer->fds[KVB_FD_KICK]);
	move_fd(&attached->bell_fd, &answer->fds[KVB_FD_BELL]);
	return 0;
}

static int take_answer(
	const struct kvb_client *client, struct kvb_attached *attached, struct answer *answer)
{
	int r;

	if (kvb_is_goodbye(&answer->record.goodbye, answer->size)) {
		log_goodbye(client, KVB_LOG_INFO, &answer->record.goodbye);
		r = kvb_goodbye_error(&answer->record.goodbye);
	} else {
		r = take_welcome(attached, answer);
	}
	kvb_fds_close(answer->fds, KVB_WELCOME_READER_FDS);
	return r;
}

int kvb_attach(const struct kvb_client *client, bool reader, int cancel_fd, uint64_t deadline_ns,
	struct kvb_attached *ret_attached)
{
	struct kvb_attached attached = {.door_fd = -1,
		.kick_fd = -1,
		.bell_fd = -1,
		.session = KVB_SEGMENT_NONE,
		.life = KVB_SEGMENT_NONE,
		.index = KVB_SEGMENT_NONE,
		.pool = KVB_SEGMENT_NONE,
		.leases = KVB_SEGMENT_NONE};
	struct answer answer;
	int r = open_door(client->dir, cancel_fd, deadline_ns, &attached.door_fd);

	if (r == 0)
		r = send_hello(client, reader, attached.door_fd);
	if (r == 0)
		r = receive_answer(attached.door_fd, cancel_fd, deadline_ns, &answer);
	if (r == 0)
		r = take_answer(client, &attached, &answer);
	if (r < 0) {
		kvb_attached_free(&attached);
		return r;
	}
	*ret_attached = attached;
	return 0;
}

void kvb_attached_free(struct kvb_attached *attached)
{
	kvb_segment_free(&attached->session);
	kvb_segment_free(&attached->life);
	kvb_segment_free(&attached->index);
	kvb_segment_free(&attached->pool);
	kvb_segment_free(&attached->leases);
	kvb_fd_close(&attached->kick_fd);
	kvb_fd_close(&attached->bell_fd);
	/* A forked child may hold a copy of the door, and closing ours would not be seen then. */
	if (attached->door_fd >= 0)
		(void)shutdown(attached->door_fd, SHUT_RDWR);
	kvb_fd_close(&attached->door_fd);
}

bool kvb_door_ended(const struct kvb_client *client, int door_fd)
{
	struct kvb_goodbye goodbye;
	size_t size;
	int r = kvb_record_recv(door_fd, &goodbye, sizeof(goodbye), &size, NULL, 0);

	if (r == -ECONNRESET)
		r = kvb_record_recv(door_fd, &goodbye, sizeof(goodbye), &size, NULL, 0);
	if (r == -EAGAIN)
		return false;
	if (r > 0 && kvb_is_goodbye(&goodbye, size))
		log_goodbye(client, KVB_LOG_WARN, &goodbye);
	else if (r > 0)
		kvb_client_log(client, KVB_LOG_ERR, "the server sent a record that makes no sense");
	else
		kvb_client_log(client, KVB_LOG_WARN, "the server has closed the door");
	return true;
}
