/* SPDX-License-Identifier: Apache-2.0 */
/*
 * door.c - letting clients in, and noticing that they leave.
 *
 * Owns the listener, the connections that have not said HELLO, and the epoll set over these and the
 * doors of all sessions. Runs in the control thread. Who a client is, only the kernel says
 * (SO_PEERCRED); the session's door then stays open as the judge of who is alive, with a pidfd as
 * second witness, since a forked child may hold the socket.
 *
 * It must never accept a descriptor from a client, never wait for one, and never close a connection
 * with its HELLO unread: the client would lose the GOODBYE that says why.
 */
#include "server/door.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "server/drain.h"
#include "server/hello.h"
#include "server/server.h"
#include "shm/atomic.h"
#include "shm/fd.h"
#include "shm/util.h"

#define REVOKED_MAX 64u

/* Since Linux 6.5; the headers of Debian 12 lack it. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define EVENTS_MAX  64
#define ACCEPTS_MAX 64
#define RETRY_NS    (100 * KVB_NS_PER_MS)
#define GROUPS_MAX  1024

/* Event data: a session's id for its door, or one of these, whose slots do not exist. */
#define EVENT_LISTENER  ((uint64_t)UINT32_MAX)
#define EVENT_PENDING   ((uint64_t)0xfe000000u)
#define EVENT_PIDFD_BIT ((uint64_t)0x80000000u)

static int watch(struct kvb_door *door, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = {.events = events};

	event.data.u64 = data;
	return epoll_ctl(door->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static void unwatch(struct kvb_door *door, int fd)
{
	if (fd >= 0)
		(void)epoll_ctl(door->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

/* ---------------------------------------------------------------------------------------- goodbye */

static int reason_errno(enum kvb_reason reason)
{
	switch (reason) {
	case KVB_REASON_NOT_ALLOWED:
		return -EACCES;
	case KVB_REASON_TOO_MANY:
		return -EUSERS;
	case KVB_REASON_ABI:
		return -EPROTONOSUPPORT;
	case KVB_REASON_NO_MEMORY:
		return -ENOMEM;
	case KVB_REASON_SERVER_DRAIN:
		return -ESHUTDOWN;
	case KVB_REASON_PROTOCOL:
	case KVB_REASON_BELL_BLOCKED:
		return -EPROTO;
	default:
		return -ECONNRESET;
	}
}

static void send_goodbye(int fd, enum kvb_reason reason, const char *text)
{
	struct kvb_goodbye goodbye = {.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = KVB_DOOR_GOODBYE,
		.reason = reason,
		.error = reason_errno(reason)};

	snprintf(goodbye.text, sizeof(goodbye.text), "%s", text ? text : kvb_reason_name(reason));
	/* A client that does not listen any more learns it from the closing door. */
	(void)kvb_record_send(fd, &goodbye, sizeof(goodbye), NULL, 0);
}

void kvb_door_say_goodbye(struct kvb_session *session, enum kvb_reason reason, const char *text)
{
	if (!session->peer_gone)
		send_goodbye(session->door_fd, reason, text);
}

/* ---------------------------------------------------------------------------------- who may come in */

static bool list_has(const struct kvb_id_list *list, uint32_t id)
{
	for (uint32_t i = 0; i < list->count; i++)
		if (list->ids[i] == id)
			return true;
	return false;
}

struct identity {
	struct ucred cred;
	gid_t groups[GROUPS_MAX];
	unsigned n_groups;
};

static int identify(int fd, struct identity *ret_identity)
{
	socklen_t size = sizeof(ret_identity->cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &ret_identity->cred, &size) < 0)
		return -errno;
	size = sizeof(ret_identity->groups);
	/* More groups than fit: the supplementary ones then do not count. */
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, ret_identity->groups, &size) < 0)
		size = 0;
	ret_identity->n_groups = size / sizeof(gid_t);
	return 0;
}

static bool has_group_of(const struct identity *identity, const struct kvb_id_list *gids)
{
	if (list_has(gids, identity->cred.gid))
		return true;
	for (unsigned i = 0; i < identity->n_groups; i++)
		if (list_has(gids, identity->groups[i]))
			return true;
	return false;
}

/* 0 and the kind; -EACCES. */
static int judge(const struct kvb_server_options *options, const struct identity *identity,
	enum kvb_client_kind *ret_kind)
{
	uid_t uid = identity->cred.uid;

	if (uid == geteuid())
		*ret_kind = KVB_KIND_OWN;
	else if (list_has(&options->trust_uids, uid) ||
		has_group_of(identity, &options->trust_gids))
		*ret_kind = KVB_KIND_TRUSTED;
	else if (list_has(&options->allow_uids, uid) ||
		has_group_of(identity, &options->allow_gids))
		*ret_kind = KVB_KIND_ISOLATED;
	else
		return -EACCES;
	return 0;
}

bool kvb_door_open_to_others(const struct kvb_server_options *options)
{
	return options->trust_uids.count || options->trust_gids.count ||
		options->allow_uids.count || options->allow_gids.count;
}

/* A descriptor for the process at the other end; -1 when the kernel has none to give, or the
 * process is in a pid namespace that is not visible here. */
static int open_pidfd(int fd, pid_t pid)
{
	int pidfd = -1;
	socklen_t size = sizeof(pidfd);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0)
		return pidfd;
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

/* ------------------------------------------------------------------------------------- letting in */

static void fill_welcome(const struct kvb_session *session, struct kvb_welcome *ret_welcome)
{
	const struct kvb_server *server = session->server;
	const struct kvb_server_options *options = &server->options;
	const struct kvb_layout *layout = &session->layout;

	*ret_welcome = (struct kvb_welcome){.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = KVB_DOOR_WELCOME,
		.session = session->header->session,
		.kind = session->kind,
		.flags = session->leases.base ? KVB_WELCOME_READER : 0,
		.session_bytes = session->segment.bytes,
		.life_bytes = KVB_LIFE_BYTES,
		.sq_entries = layout->sq_entries,
		.cq_entries = layout->cq_entries,
		.sq_offset = layout->sq_offset,
		.cq_offset = layout->cq_offset,
		.key_offset = layout->key_offset,
		.key_max = KVB_KEY_MAX,
		.staging_offset = layout->staging_offset,
		.staging_bytes = layout->staging_bytes,
		.fragment_bytes = options->fragment_bytes,
		.transfers = KVB_TRANSFERS,
		.lease_bytes = session->leases.bytes,
		.lease_cells = session->leases.base ? options->lease_cells : 0,
		.index_bytes = session->leases.base ? kvb_store_index(server->store)->bytes : 0,
		.payload_max = options->pool_bytes,
		.open_max = options->open_max,
		.transfer_timeout_ms = options->transfer_timeout_ms};
	memcpy(ret_welcome->boot_id, server->boot_id, KVB_ID_BYTES);
	memcpy(ret_welcome->token, session->token, KVB_ID_BYTES);
}

static int send_welcome(struct kvb_session *session)
{
	bool reader = session->leases.base;
	struct kvb_welcome welcome;
	int fds[KVB_WELCOME_READER_FDS] = {
		[KVB_FD_SESSION] = session->segment.fd,
		[KVB_FD_LIFE] = session->server->life.fd,
		[KVB_FD_KICK] = session->kick_fd,
		[KVB_FD_BELL] = session->bell_fd,
		[KVB_FD_INDEX] = kvb_store_index(session->server->store)->fd,
		[KVB_FD_POOL] = session->server->pool.segment.fd,
		[KVB_FD_LEASES] = session->leases.fd,
	};
	int r;

	fill_welcome(session, &welcome);
	r = kvb_record_send(session->door_fd, &welcome, sizeof(welcome), fds,
		reader ? KVB_WELCOME_READER_FDS : KVB_WELCOME_FDS);
	/* Mapped is mapped. */
	kvb_fd_close(&session->leases.fd);
	return r;
}

/* Puts the new session into all wait sets. Its door is watched from now on. */
static int activate(struct kvb_door *door, struct kvb_session *session)
{
	uint64_t id = kvb_session_own_id(session);
	int r;

	session->phase = KVB_PHASE_ACTIVE;
	r = watch(door, session->door_fd, EPOLLIN | EPOLLRDHUP, id);
	if (r == 0 && session->pidfd >= 0)
		r = watch(door, session->pidfd, EPOLLIN, id | EVENT_PIDFD_BIT);
	if (r == 0)
		r = kvb_group_watch(session->group, session);
	if (r == 0)
		r = send_welcome(session);
	return r;
}

/* Sessions that the server has ended and whose clients hold on to their end, and to their leases, take
 * slots from others: of one uid so many are too many. */
static bool holds_on_to_too_many(struct kvb_server *server, uid_t uid)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < server->sessions.count; i++) {
		const struct kvb_session *session = &server->sessions.slots[i];
		n += session->phase == KVB_PHASE_REVOKED && session->uid == uid;
	}
	return n >= REVOKED_MAX;
}

/* The connection is the session's from here on. */
static void let_in(struct kvb_door *door, int fd, const struct kvb_hello *hello,
	const struct identity *identity, enum kvb_client_kind kind)
{
	struct kvb_server *server = door->server;
	/* Who sees payload in its own staging only gets no more than that. */
	bool reader = (hello->flags & KVB_HELLO_READER) && kind != KVB_KIND_ISOLATED;
	struct kvb_session *session;
	int r = kvb_session_create(server, &session);

	if (r == 0 && reader) {
		r = kvb_session_make_leases(session);
		if (r < 0)
			kvb_session_discard(session);
	}
	if (r < 0) {
		kvb_log(&server->log, KVB_LOG_WARN, "a client of uid %u is turned away: %s",
			identity->cred.uid,
			r == -EUSERS ? "all sessions are taken (--max-sessions)" : strerror(-r));
		kvb_count(&server->counters.sessions_refused, 1);
		send_goodbye(fd, r == -EUSERS ? KVB_REASON_TOO_MANY : KVB_REASON_NO_MEMORY, NULL);
		close(fd);
		return;
	}
	session->door_fd = fd;
	session->pidfd = open_pidfd(fd, identity->cred.pid);
	session->kind = kind;
	session->uid = identity->cred.uid;
	session->gid = identity->cred.gid;
	session->pid = identity->cred.pid;
	session->group = kvb_workers_group(&server->workers, hello->node);
	kvb_hello_name(hello, session->name);
	kvb_count(&server->counters.sessions_total, 1);
	r = activate(door, session);
	if (r < 0) {
		kvb_log(&server->log, KVB_LOG_INFO,
			"session %u: the client did not take WELCOME: %s", session->slot,
			strerror(-r));
		kvb_drain_peer_gone(session, KVB_REASON_CLIENT_LEFT);
		return;
	}
	kvb_log(&server->log, KVB_LOG_INFO, "session %u: %s client \"%s\", pid %d, uid %u",
		session->slot, kvb_kind_name(kind), session->name, session->pid, session->uid);
}

static void refuse(struct kvb_door *door, int fd, const struct identity *identity,
	enum kvb_reason reason, const char *text)
{
	kvb_count(&door->server->counters.sessions_refused, 1);
	kvb_log(&door->server->log, KVB_LOG_WARN, "a client of uid %u, pid %d is turned away: %s",
		identity->cred.uid, identity->cred.pid, text ? text : kvb_reason_name(reason));
	send_goodbye(fd, reason, text);
	close(fd);
}

/* The connection is decided here and is no longer pending. */
static void take_hello(struct kvb_door *door, int fd, const struct kvb_hello *hello)
{
	struct identity identity = {0};
	enum kvb_client_kind kind;
	enum kvb_reason reason;
	const char *fault = kvb_hello_fault(hello, &reason);

	if (identify(fd, &identity) < 0) {
		close(fd);
		return;
	}
	if (fault)
		refuse(door, fd, &identity, reason, fault);
	else if (kvb_server_is_draining(door->server))
		refuse(door, fd, &identity, KVB_REASON_SERVER_DRAIN, NULL);
	else if (judge(&door->server->options, &identity, &kind) < 0)
		refuse(door, fd, &identity, KVB_REASON_NOT_ALLOWED, NULL);
	else if (holds_on_to_too_many(door->server, identity.cred.uid))
		refuse(door, fd, &identity, KVB_REASON_TOO_MANY,
			"clients of this uid keep too many ended sessions open");
	else
		let_in(door, fd, hello, &identity, kind);
}

/* ------------------------------------------------------------------------- connections without HELLO */

static void pending_drop(struct kvb_door *door, struct kvb_door_pending *pending)
{
	kvb_count(&door->server->counters.sessions_refused, 1);
	unwatch(door, pending->fd);
	kvb_fd_close(&pending->fd);
}

static void pending_readable(struct kvb_door *door, struct kvb_door_pending *pending)
{
	struct kvb_hello hello;
	size_t size;
	int fd = pending->fd;
	/* Without room for descriptors: the kernel then drops any, and says so. */
	int r = kvb_record_recv(fd, &hello, sizeof(hello), &size, NULL, 0);

	if (r == -EAGAIN)
		return;
	unwatch(door, fd);
	pending->fd = -1;
	if (r == 1 && size == sizeof(hello)) {
		take_hello(door, fd, &hello);
		return;
	}
	if (r != 0) {
		struct identity identity = {0};
		(void)identify(fd, &identity);
		refuse(door, fd, &identity, KVB_REASON_PROTOCOL,
			r == -EPROTO ? "descriptors are not taken from clients"
				     : "HELLO must be one record of 64 bytes");
		return;
	}
	kvb_count(&door->server->counters.sessions_refused, 1);
	close(fd);
}

/* What it said in time counts, however late this thread comes to it. */
static void pending_drop_if_silent(struct kvb_door *door, struct kvb_door_pending *pending)
{
	pending_readable(door, pending);
	if (pending->fd >= 0)
		pending_drop(door, pending);
}

/* A free place; when all are taken, the one that has been silent for longest gives way. */
static struct kvb_door_pending *pending_place(struct kvb_door *door)
{
	struct kvb_door_pending *oldest = &door->pending[0];

	for (unsigned i = 0; i < KVB_DOOR_PENDING; i++) {
		struct kvb_door_pending *pending = &door->pending[i];
		if (pending->fd < 0)
			return pending;
		if (pending->deadline_ns < oldest->deadline_ns)
			oldest = pending;
	}
	pending_drop_if_silent(door, oldest);
	return oldest;
}

static void stop_listening(struct kvb_door *door)
{
	if (door->listening)
		unwatch(door, door->listen_fd);
	door->listening = false;
}

static void out_of_descriptors(struct kvb_door *door, int error)
{
	kvb_log(&door->server->log, KVB_LOG_WARN,
		"cannot accept a client: %s; raise the limit of open files", strerror(error));
	/* The backlog keeps the listener readable; without a pause the loop would spin on it. */
	stop_listening(door);
	door->retry_ns = kvb_now_ns() + RETRY_NS;
}

static void accept_clients(struct kvb_door *door)
{
	for (int i = 0; i < ACCEPTS_MAX && door->listening; i++) {
		struct kvb_door_pending *pending;
		int fd = accept4(door->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
				errno == ENOBUFS)
				out_of_descriptors(door, errno);
			if (errno == EINTR || errno == ECONNABORTED)
				continue;
			return;
		}
		pending = pending_place(door);
		pending->fd = fd;
		pending->deadline_ns = kvb_now_ns() + KVB_HELLO_TIMEOUT_MS * KVB_NS_PER_MS;
		if (watch(door, fd, EPOLLIN | EPOLLRDHUP,
			    EVENT_PENDING | (uint64_t)(pending - door->pending)) < 0)
			pending_drop(door, pending);
	}
}

/* -------------------------------------------------------------------------------- doors of sessions */

void kvb_door_forget(struct kvb_door *door, struct kvb_session *session)
{
	unwatch(door, session->door_fd);
	unwatch(door, session->pidfd);
}

/* A client may say GOODBYE; anything else breaks the protocol. */
static void session_readable(struct kvb_session *session)
{
	struct kvb_goodbye goodbye;
	size_t size = 0;
	int r = kvb_record_recv(session->door_fd, &goodbye, sizeof(goodbye), &size, NULL, 0);

	if (r == -EAGAIN)
		return;
	if (r == 0 || r == -ECONNRESET || r == -EPIPE)
		kvb_drain_peer_gone(session, KVB_REASON_CLIENT_LEFT);
	else if (r == 1 && size == sizeof(goodbye) && goodbye.magic == KVB_MAGIC &&
		goodbye.type == KVB_DOOR_GOODBYE)
		kvb_drain_session(session, KVB_REASON_CLIENT_LEFT);
	else
		kvb_session_fail(session, KVB_REASON_PROTOCOL,
			"after HELLO a client may send GOODBYE only, and no descriptors");
}

static void session_event(struct kvb_door *door, uint64_t id)
{
	bool process_died = (id & EVENT_PIDFD_BIT) != 0;
	struct kvb_session *session =
		kvb_session_find(&door->server->sessions, id & ~EVENT_PIDFD_BIT);

	/* An earlier event of the same batch may have ended it. */
	if (!session || session->peer_gone)
		return;
	if (process_died)
		kvb_drain_peer_gone(session, KVB_REASON_CLIENT_DIED);
	else
		session_readable(session);
}

/* ------------------------------------------------------------------------------------------ the door */

void kvb_door_serve(struct kvb_door *door)
{
	struct epoll_event events[EVENTS_MAX];
	int n = epoll_wait(door->epoll_fd, events, EVENTS_MAX, 0);

	for (int i = 0; i < n; i++) {
		uint64_t data = events[i].data.u64;
		if (data == EVENT_LISTENER)
			accept_clients(door);
		else if ((data & ~(uint64_t)0xff) == EVENT_PENDING) {
			struct kvb_door_pending *pending = &door->pending[data & 0xff];
			if (pending->fd >= 0)
				pending_readable(door, pending);
		} else
			session_event(door, data);
	}
}

uint64_t kvb_door_turn(struct kvb_door *door)
{
	uint64_t now_ns = kvb_now_ns();
	uint64_t next_ns = UINT64_MAX;

	for (unsigned i = 0; i < KVB_DOOR_PENDING; i++) {
		struct kvb_door_pending *pending = &door->pending[i];
		if (pending->fd >= 0 && pending->deadline_ns <= now_ns)
			pending_drop_if_silent(door, pending);
		if (pending->fd >= 0)
			next_ns = kvb_min_u64(next_ns, pending->deadline_ns);
	}
	if (door->retry_ns && door->retry_ns <= now_ns) {
		door->retry_ns = 0;
		door->listening = watch(door, door->listen_fd, EPOLLIN, EVENT_LISTENER) == 0;
	}
	return door->retry_ns ? kvb_min_u64(next_ns, door->retry_ns) : next_ns;
}

int kvb_door_open(struct kvb_door *door, struct kvb_server *server)
{
	mode_t mode = kvb_door_open_to_others(&server->options) ? 0666 : 0600;
	int r;

	*door = (struct kvb_door){.server = server, .listen_fd = -1, .epoll_fd = -1};
	for (unsigned i = 0; i < KVB_DOOR_PENDING; i++)
		door->pending[i].fd = -1;
	door->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (door->epoll_fd < 0)
		return -errno;
	r = kvb_rundir_bind(
		&server->rundir, &server->rundir.door, SOCK_SEQPACKET, mode, &door->listen_fd);
	if (r == 0)
		r = watch(door, door->listen_fd, EPOLLIN, EVENT_LISTENER);
	door->listening = r == 0;
	if (r < 0)
		kvb_door_close(door);
	return r;
}

void kvb_door_shut(struct kvb_door *door)
{
	stop_listening(door);
	door->retry_ns = 0;
}

void kvb_door_close(struct kvb_door *door)
{
	for (unsigned i = 0; i < KVB_DOOR_PENDING; i++) {
		if (door->pending[i].fd < 0)
			continue;
		send_goodbye(door->pending[i].fd, KVB_REASON_SERVER_DRAIN, NULL);
		kvb_fd_close(&door->pending[i].fd);
	}
	if (door->listen_fd >= 0)
		kvb_log(&door->server->log, KVB_LOG_DEBUG, "step: close door listener");
	kvb_fd_close(&door->listen_fd);
	kvb_fd_close(&door->epoll_fd);
}
