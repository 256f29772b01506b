/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dealer.c - see dealer.h.
 *
 * Owns the connection's ZMQ context and DEALER, under dealer->lock, in whatever threads call. ZMQ's
 * descriptor tells of each arrival only once, and to whoever touches the socket first: so whoever
 * does anything at the socket goes on until nothing more can be received or sent, for everybody, and
 * wakes the sleeper if that has what it sleeps for. It must never touch the socket without the lock,
 * wait past a caller's deadline, or for a server that is known to be gone.
 */
#include "client/dealer.h"

#include <errno.h>
#include <msgpack.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <zmq.h>

#include "client/attach.h"
#include "client/client.h"
#include "client/connection.h"
#include "shm/fd.h"
#include "shm/pack.h"
#include "shm/threads.h"
#include "shm/util.h"

/* How often a sleeper looks at the life word. */
#define RECHECK_MS 200
/* A token that was lost with its connection is presented again so soon, while others wait for it. */
#define PRESENT_NS (2 * KVB_NS_PER_S)
#define HWM        1000
/* A server that takes the token and refuses what follows would be asked for ever. */
#define REFUSALS_MAX 8

/* -------------------------------------------------------------------------------------- the socket */

int kvb_dealer_init(struct kvb_dealer *dealer)
{
	*dealer = (struct kvb_dealer){.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	if (dealer->wake_fd < 0)
		return -errno;
	pthread_mutex_init(&dealer->lock, NULL);
	kvb_cond_init(&dealer->changed);
	TAILQ_INIT(&dealer->exchanges);
	return 0;
}

void kvb_dealer_done(struct kvb_dealer *dealer)
{
	if (dealer->socket)
		zmq_close(dealer->socket);
	/* In a caller's thread, too, where signals strike: it is not ended then. */
	while (dealer->context && zmq_ctx_term(dealer->context) < 0 && errno == EINTR)
		;
	pthread_cond_destroy(&dealer->changed);
	pthread_mutex_destroy(&dealer->lock);
	kvb_fd_close(&dealer->wake_fd);
}

void kvb_dealer_done_in_child(struct kvb_dealer *dealer)
{
	kvb_fd_close(&dealer->wake_fd);
}

void kvb_dealer_wake(struct kvb_dealer *dealer)
{
	(void)eventfd_write(dealer->wake_fd, 1);
}

static int make_socket(struct kvb_dealer *dealer, const char *dir)
{
	static const struct {
		int option;
		int value;
	} options[] = {{ZMQ_LINGER, 0}, {ZMQ_IMMEDIATE, 1}, {ZMQ_SNDHWM, HWM}, {ZMQ_RCVHWM, HWM}};
	char path[sizeof(((struct kvb_client *)0)->dir) + 32], endpoint[sizeof(path) + 8];
	size_t size = sizeof(dealer->socket_fd);
	int r = kvb_socket_path(dir, KVB_CONTROL_SOCKET, path, sizeof(path));

	if (r < 0)
		return r;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(options); i++)
		if (zmq_setsockopt(
			    dealer->socket, options[i].option, &options[i].value, sizeof(int)) < 0)
			return -errno;
	snprintf(endpoint, sizeof(endpoint), "ipc://%s", path);
	if (zmq_getsockopt(dealer->socket, ZMQ_FD, &dealer->socket_fd, &size) < 0)
		return -errno;
	/* A signal may strike before it has begun. */
	do {
		r = zmq_connect(dealer->socket, endpoint);
	} while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

static int open_socket(struct kvb_dealer *dealer, const char *dir)
{
	int r;

	if (dealer->socket)
		return 0;
	if (!dealer->context)
		dealer->context = zmq_ctx_new();
	if (!dealer->context)
		return -errno;
	dealer->socket = zmq_socket(dealer->context, ZMQ_DEALER);
	if (!dealer->socket)
		return -errno;
	r = make_socket(dealer, dir);
	if (r < 0) {
		zmq_close(dealer->socket);
		dealer->socket = NULL;
	}
	return r;
}

/* ----------------------------------------------------------------------------- the end of an exchange */

static int keep_body(struct kvb_exchange *exchange, const void *data, size_t size)
{
	if (!kvb_pack_is_one_object(data, size))
		return -EPROTO;
	exchange->body = malloc(size);
	if (!exchange->body)
		return -ENOMEM;
	memcpy(exchange->body, data, size);
	exchange->size = size;
	return 0;
}

/* It is out of the dealer's hands after this. */
static void finish_locked(struct kvb_dealer *dealer, struct kvb_exchange *exchange, int status)
{
	TAILQ_REMOVE(&dealer->exchanges, exchange, link);
	exchange->status = status;
	exchange->state = KVB_EXCHANGE_DONE;
	if (exchange->done) {
		dealer->unattended--;
		exchange->done(exchange);
		return;
	}
	/* Another thread took it: the descriptor, which that has cleared, may never have woken
	 * the sleeper. */
	if (exchange == dealer->sleeper)
		kvb_dealer_wake(dealer);
	else
		pthread_cond_broadcast(&dealer->changed);
}

/* What the token's answer says is said of all that wait for it. */
static void finish_queued_locked(
	struct kvb_dealer *dealer, int status, const void *data, size_t size)
{
	struct kvb_exchange *exchange = TAILQ_FIRST(&dealer->exchanges), *next;

	for (; exchange; exchange = next) {
		next = TAILQ_NEXT(exchange, link);
		if (exchange->state != KVB_EXCHANGE_QUEUED)
			continue;
		if (size > 0)
			(void)keep_body(exchange, data, size);
		finish_locked(dealer, exchange, status);
	}
}

/* --------------------------------------------------------------------------------------- receiving */

static int receive_frame(void *socket, zmq_msg_t *frame)
{
	int r;

	/* In the middle of a message, too: the rest of it is there. */
	do {
		r = zmq_msg_recv(frame, socket, ZMQ_DONTWAIT);
	} while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

/* One message: exactly two frames, else -EPROTO with everything read. */
static int receive_frames(void *socket, zmq_msg_t frames[2])
{
	unsigned n = 0;
	int more = 1, r;

	while (more) {
		zmq_msg_t extra, *frame = n < 2 ? &frames[n] : &extra;
		zmq_msg_init(frame);
		r = receive_frame(socket, frame);
		if (r < 0)
			return r;
		more = zmq_msg_more(frame);
		if (frame == &extra)
			zmq_msg_close(&extra);
		n++;
	}
	return n == 2 && zmq_msg_size(&frames[0]) == sizeof(struct kvb_msg_header) ? 0 : -EPROTO;
}

static void take_attach_answer(struct kvb_dealer *dealer, int status, zmq_msg_t *body)
{
	dealer->attach.state = KVB_EXCHANGE_DONE;
	dealer->state = status == 0 ? KVB_DEALER_ATTACHED : KVB_DEALER_DETACHED;
	if (status == 0)
		dealer->attachments++;
	else
		finish_queued_locked(dealer, status, zmq_msg_data(body), zmq_msg_size(body));
}

/* ZMQ has made a new connection, which the token was not presented on. Nothing was begun, so it is
 * safe to ask again; also when that one is lost before the answer, but not for ever. True: it will
 * be. */
static bool ask_again(struct kvb_dealer *dealer, struct kvb_exchange *exchange)
{
	if (exchange->refusals == REFUSALS_MAX)
		return false;
	exchange->refusals++;
	exchange->state = KVB_EXCHANGE_QUEUED;
	/* Others may have found out before, and present it already. */
	if (dealer->state == KVB_DEALER_ATTACHED && exchange->attachment == dealer->attachments)
		dealer->state = KVB_DEALER_DETACHED;
	return true;
}

static struct kvb_exchange *find_sent(
	struct kvb_dealer *dealer, const struct kvb_msg_header *header)
{
	struct kvb_exchange *exchange;

	TAILQ_FOREACH(exchange, &dealer->exchanges, link)
	if (exchange->state == KVB_EXCHANGE_SENT && exchange->request == header->request &&
		exchange->type == header->type)
		return exchange;
	return NULL;
}

/* Gives the message to the one it is for; an answer that nobody waits for any more is dropped. */
static void deliver(struct kvb_conn *conn, zmq_msg_t frames[2])
{
	struct kvb_dealer *dealer = &conn->dealer;
	struct kvb_exchange *exchange;
	struct kvb_msg_header header;
	int status, kept;

	memcpy(&header, zmq_msg_data(&frames[0]), sizeof(header));
	if (header.magic != KVB_MAGIC || header.abi != KVB_ABI_VERSION)
		return;
	status = header.status < 0 ? header.status : 0;
	/* Another server's word on a request that was meant for ours. */
	if (memcmp(header.boot_id, conn->attached.welcome.boot_id, KVB_ID_BYTES) != 0)
		status = -ECONNRESET;
	/* To the server one ATTACH is as good as another. */
	if (dealer->state == KVB_DEALER_ATTACHING && header.type == KVB_MSG_ATTACH &&
		header.request >= dealer->attach_first) {
		take_attach_answer(dealer, status, &frames[1]);
		return;
	}
	exchange = find_sent(dealer, &header);
	if (!exchange)
		return;
	if (status == -EACCES && (header.flags & KVB_MSG_REFUSED) && ask_again(dealer, exchange))
		return;
	kept = keep_body(exchange, zmq_msg_data(&frames[1]), zmq_msg_size(&frames[1]));
	finish_locked(dealer, exchange, status < 0 ? status : kept);
}

/* Everything that is there. */
static void receive_all_locked(struct kvb_conn *conn)
{
	zmq_msg_t frames[2];
	int r;

	if (!conn->dealer.socket)
		return;
	do {
		zmq_msg_init(&frames[0]);
		zmq_msg_init(&frames[1]);
		r = receive_frames(conn->dealer.socket, frames);
		if (r == 0)
			deliver(conn, frames);
		zmq_msg_close(&frames[0]);
		zmq_msg_close(&frames[1]);
	} while (r == 0 || r == -EPROTO);
}

/* ----------------------------------------------------------------------------------------- sending */

static int make_frames(
	struct kvb_conn *conn, const struct kvb_exchange *exchange, zmq_msg_t frames[2])
{
	const struct kvb_welcome *welcome = &conn->attached.welcome;
	struct kvb_msg_header header = {.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = exchange->type,
		.request = exchange->request,
		.session = welcome->session};

	memcpy(header.boot_id, welcome->boot_id, KVB_ID_BYTES);
	if (zmq_msg_init_size(&frames[0], sizeof(header)) < 0)
		return -errno;
	memcpy(zmq_msg_data(&frames[0]), &header, sizeof(header));
	if (zmq_msg_init_size(&frames[1], exchange->request_size) < 0) {
		zmq_msg_close(&frames[0]);
		return -errno;
	}
	memcpy(zmq_msg_data(&frames[1]), exchange->request_body, exchange->request_size);
	return 0;
}

static int send_frame(void *socket, zmq_msg_t *frame, int flags)
{
	int r;

	do {
		r = zmq_msg_send(frame, socket, ZMQ_DONTWAIT | flags);
	} while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

/* 0; -EAGAIN until the connection stands, and while the server does not keep up; other -errno. */
static int send_locked(struct kvb_conn *conn, struct kvb_exchange *exchange)
{
	struct kvb_dealer *dealer = &conn->dealer;
	zmq_msg_t frames[2];
	int r;

	exchange->request = ++dealer->request;
	exchange->attachment = dealer->attachments;
	r = make_frames(conn, exchange, frames);
	if (r < 0)
		return r;
	r = send_frame(dealer->socket, &frames[0], ZMQ_SNDMORE);
	/* Once the first frame is taken the second one follows without fail. */
	if (r == 0)
		r = send_frame(dealer->socket, &frames[1], 0);
	if (r == 0)
		exchange->state = KVB_EXCHANGE_SENT;
	zmq_msg_close(&frames[0]);
	zmq_msg_close(&frames[1]);
	return r;
}

/* {"token": bin16} */
static void make_attach(struct kvb_conn *conn)
{
	struct kvb_dealer *dealer = &conn->dealer;
	msgpack_sbuffer body;
	msgpack_packer packer;

	msgpack_sbuffer_init(&body);
	msgpack_packer_init(&packer, &body, msgpack_sbuffer_write);
	msgpack_pack_map(&packer, 1);
	msgpack_pack_str_with_body(&packer, "token", 5);
	msgpack_pack_bin_with_body(&packer, conn->attached.welcome.token, KVB_ID_BYTES);
	memcpy(dealer->attach_body, body.data, kvb_min_u64(body.size, sizeof(dealer->attach_body)));
	dealer->attach = (struct kvb_exchange){.type = KVB_MSG_ATTACH,
		.request_body = dealer->attach_body,
		.request_size = body.size,
		.deadline_ns = kvb_now_ns() + PRESENT_NS};
	msgpack_sbuffer_destroy(&body);
}

/* Presents the token where it has to be. 0 it is on its way or accepted; -EAGAIN; other -errno. */
static int present_token_locked(struct kvb_conn *conn)
{
	struct kvb_dealer *dealer = &conn->dealer;
	int r = open_socket(dealer, conn->client->dir);

	if (r < 0 || dealer->state == KVB_DEALER_ATTACHED)
		return r;
	if (dealer->state == KVB_DEALER_DETACHED)
		dealer->attach_first = dealer->request + 1;
	/* An answer that got lost with its connection must not keep anybody out. */
	if (dealer->state == KVB_DEALER_DETACHED || kvb_now_ns() >= dealer->attach.deadline_ns)
		make_attach(conn);
	dealer->state = KVB_DEALER_ATTACHING;
	return dealer->attach.state == KVB_EXCHANGE_QUEUED ? send_locked(conn, &dealer->attach) : 0;
}

static struct kvb_exchange *first_queued(struct kvb_dealer *dealer)
{
	struct kvb_exchange *exchange;

	TAILQ_FOREACH(exchange, &dealer->exchanges, link)
	if (exchange->state == KVB_EXCHANGE_QUEUED)
		return exchange;
	return NULL;
}

/* Sends what can be sent. */
static void send_all_locked(struct kvb_conn *conn)
{
	struct kvb_dealer *dealer = &conn->dealer;
	struct kvb_exchange *exchange = first_queued(dealer);
	int r;

	if (!exchange)
		return;
	r = present_token_locked(conn);
	if (r < 0 && r != -EAGAIN) {
		dealer->state = KVB_DEALER_DETACHED;
		finish_queued_locked(dealer, r, NULL, 0);
	}
	if (r < 0 || dealer->state != KVB_DEALER_ATTACHED)
		return;
	for (; exchange && r != -EAGAIN; exchange = first_queued(dealer)) {
		r = send_locked(conn, exchange);
		if (r < 0 && r != -EAGAIN)
			finish_locked(dealer, exchange, r);
	}
}

static bool wants_to_send(struct kvb_dealer *dealer)
{
	/* All wait for the token's answer. */
	if (dealer->state == KVB_DEALER_ATTACHING && dealer->attach.state != KVB_EXCHANGE_QUEUED)
		return false;
	return first_queued(dealer) != NULL;
}

/* Receiving may have taken in that the connection stands, or has room again: the descriptor does
 * not tell of it any more. */
static bool can_go_on(const struct kvb_dealer *dealer)
{
	int r, events = 0;
	size_t size = sizeof(events);

	if (!dealer->socket)
		return false;
	do {
		r = zmq_getsockopt(dealer->socket, ZMQ_EVENTS, &events, &size);
	} while (r < 0 && errno == EINTR);
	return r == 0 && events != 0;
}

/* All that can be done without waiting. Receiving comes last: whoever sends also takes in what the
 * descriptor would have told the sleeper of. */
static void turn_locked(struct kvb_conn *conn)
{
	struct kvb_dealer *dealer = &conn->dealer;

	do {
		send_all_locked(conn);
		receive_all_locked(conn);
	} while (wants_to_send(dealer) && can_go_on(dealer));
}

/* ----------------------------------------------------------------------------------------- waiting */

static void sleep_on_socket(
	struct kvb_dealer *dealer, const struct kvb_exchange *exchange, uint64_t left_ns)
{
	struct pollfd fds[] = {
		{.fd = dealer->socket ? dealer->socket_fd : -1, .events = POLLIN},
		{.fd = dealer->wake_fd, .events = POLLIN},
	};
	eventfd_t wakes;

	dealer->sleeper = exchange;
	pthread_mutex_unlock(&dealer->lock);
	(void)poll(fds, KVB_ARRAY_SIZE(fds),
		(int)kvb_min_u64(left_ns / KVB_NS_PER_MS + 1, RECHECK_MS));
	pthread_mutex_lock(&dealer->lock);
	dealer->sleeper = NULL;
	if (fds[1].revents)
		(void)eventfd_read(dealer->wake_fd, &wakes);
}

/* Waits until something may have changed. 0; -ETIMEDOUT; the connection's error. */
static int wait_locked(struct kvb_conn *conn, const struct kvb_exchange *exchange)
{
	struct kvb_dealer *dealer = &conn->dealer;
	uint64_t now_ns = kvb_now_ns();
	int r = kvb_conn_check(conn);

	if (r < 0)
		return r;
	if (now_ns >= exchange->deadline_ns)
		return -ETIMEDOUT;
	if (dealer->sleeper)
		(void)kvb_cond_wait_until(&dealer->changed, &dealer->lock, exchange->deadline_ns);
	else
		sleep_on_socket(dealer, exchange, exchange->deadline_ns - now_ns);
	return 0;
}

int kvb_dealer_run(struct kvb_conn *conn, struct kvb_exchange *exchange)
{
	struct kvb_dealer *dealer = &conn->dealer;
	int r = 0;

	pthread_mutex_lock(&dealer->lock);
	TAILQ_INSERT_TAIL(&dealer->exchanges, exchange, link);
	turn_locked(conn);
	while (r == 0 && exchange->state != KVB_EXCHANGE_DONE) {
		r = wait_locked(conn, exchange);
		/* Also at the end: an answer that came with the deadline, or with the server's
		 * goodbye, is an answer. */
		turn_locked(conn);
	}
	if (exchange->state == KVB_EXCHANGE_DONE)
		r = exchange->status;
	else
		TAILQ_REMOVE(&dealer->exchanges, exchange, link);
	/* Somebody else must sleep on the socket now. */
	pthread_cond_broadcast(&dealer->changed);
	pthread_mutex_unlock(&dealer->lock);
	return r;
}

/* -------------------------------------------------------------------------- exchanges without a waiter */

bool kvb_dealer_add(struct kvb_conn *conn, struct kvb_exchange *exchange)
{
	struct kvb_dealer *dealer = &conn->dealer;
	bool added;

	pthread_mutex_lock(&dealer->lock);
	added = !dealer->ended;
	if (added) {
		dealer->unattended++;
		TAILQ_INSERT_TAIL(&dealer->exchanges, exchange, link);
		turn_locked(conn);
	}
	pthread_mutex_unlock(&dealer->lock);
	/* For its deadline, and because it may not poll the socket yet. */
	if (added)
		(void)eventfd_write(conn->owner_wake_fd, 1);
	return added;
}

static void finish_unattended_locked(struct kvb_dealer *dealer, int status, uint64_t until_ns)
{
	struct kvb_exchange *exchange = TAILQ_FIRST(&dealer->exchanges), *next;

	for (; exchange; exchange = next) {
		next = TAILQ_NEXT(exchange, link);
		if (exchange->done && exchange->deadline_ns <= until_ns)
			finish_locked(dealer, exchange, status);
	}
}

void kvb_dealer_end(struct kvb_conn *conn, int error)
{
	struct kvb_dealer *dealer = &conn->dealer;

	pthread_mutex_lock(&dealer->lock);
	receive_all_locked(conn);
	dealer->ended = true;
	finish_unattended_locked(dealer, error, UINT64_MAX);
	pthread_mutex_unlock(&dealer->lock);
}

void kvb_dealer_needs(struct kvb_dealer *dealer, int *ret_fd, uint64_t *ret_deadline_ns)
{
	const struct kvb_exchange *exchange;

	*ret_fd = -1;
	*ret_deadline_ns = UINT64_MAX;
	pthread_mutex_lock(&dealer->lock);
	if (dealer->unattended > 0 && dealer->socket)
		*ret_fd = dealer->socket_fd;
	TAILQ_FOREACH(exchange, &dealer->exchanges, link)
	if (exchange->done)
		*ret_deadline_ns = kvb_min_u64(*ret_deadline_ns, exchange->deadline_ns);
	if (*ret_deadline_ns != UINT64_MAX && dealer->state == KVB_DEALER_ATTACHING &&
		first_queued(dealer))
		*ret_deadline_ns = kvb_min_u64(*ret_deadline_ns, dealer->attach.deadline_ns);
	pthread_mutex_unlock(&dealer->lock);
}

void kvb_dealer_turn(struct kvb_conn *conn)
{
	struct kvb_dealer *dealer = &conn->dealer;

	pthread_mutex_lock(&dealer->lock);
	if (dealer->unattended > 0) {
		turn_locked(conn);
		finish_unattended_locked(dealer, -ETIMEDOUT, kvb_now_ns());
	}
	pthread_mutex_unlock(&dealer->lock);
}
