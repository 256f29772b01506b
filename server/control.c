/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - the thread "kvb-control" and the ROUTER it alone may touch.
 *
 * The thread sleeps in zmq_poll over the ROUTER, the door's epoll set and the output eventfd by
 * which other threads call it; then it serves each, and lets drain.c move sessions along. libzmq
 * cannot be defended against a hostile peer, hence the socket's mode 0600 and the look at each
 * message's uid.
 *
 * It must never block outside zmq_poll, never show a routing id, and never act on a message before
 * its uid, frame sizes, boot id and session are checked.
 */
#include "server/control.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "server/call.h"
#include "server/drain.h"
#include "server/server.h"
#include "shm/atomic.h"
#include "shm/fd.h"
#include "shm/pack.h"
#include "shm/util.h"

#define BATCH            64
#define SEND_HWM         128
#define RECEIVE_HWM      256
#define SLOW_NS          (100 * KVB_NS_PER_MS)
#define LINGER_MS        200
#define HANDSHAKE_MS     1000
#define POLL_TIMEOUT_MAX 3600000

enum { FRAME_PEER, FRAME_HEADER, FRAME_BODY, FRAMES };

struct message {
	zmq_msg_t frames[FRAMES];
	unsigned n_frames; /* may exceed FRAMES; the rest was dropped */
};

void *kvb_control_router(struct kvb_server *server)
{
	assert(pthread_equal(server->control.owner, pthread_self()));
	return server->control.router;
}

/* ------------------------------------------------------------------------------------- receiving */

/* A signal must not make the rest of a message look like the next one. 0; -errno. */
static int receive_frame(void *router, zmq_msg_t *frame)
{
	int r;

	do
		r = zmq_msg_recv(frame, router, ZMQ_DONTWAIT);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

/* Receives all frames of one message, keeps the first few. 1; 0 none is there; -errno. */
static int receive(struct kvb_server *server, struct message *message)
{
	void *router = kvb_control_router(server);
	int more = 1, r;

	message->n_frames = 0;
	while (more) {
		zmq_msg_t extra, *frame = &extra;
		if (message->n_frames < FRAMES)
			frame = &message->frames[message->n_frames];
		zmq_msg_init(frame);
		/* The frames of a message arrive together, so only the first one can be missing. */
		r = receive_frame(router, frame);
		if (r < 0) {
			zmq_msg_close(frame);
			return message->n_frames == 0 && r == -EAGAIN ? 0 : r;
		}
		message->n_frames++;
		more = zmq_msg_more(frame);
		if (frame == &extra)
			zmq_msg_close(frame);
	}
	return 1;
}

static void message_free(struct message *message)
{
	for (unsigned i = 0; i < FRAMES && i < message->n_frames; i++)
		zmq_msg_close(&message->frames[i]);
}

/* The kernel's word for who sent it, "localhost:UID:GID:PID". libzmq 4.3.4 leaves it out of the
 * first frame, so it is read from the header's; a missing one means no. */
static bool sender_is_own(struct message *message)
{
	const char *address;
	unsigned uid;

	if (message->n_frames <= FRAME_HEADER)
		return false;
	address = zmq_msg_gets(&message->frames[FRAME_HEADER], "Peer-Address");
	return address && sscanf(address, "%*[^:]:%u:", &uid) == 1 && uid == geteuid();
}

/* -------------------------------------------------------------------------------------- answering */

/* 0; -EMSGSIZE; -EPROTO. */
static int check_body(struct kvb_call *call)
{
	if (call->body_size > KVB_MSG_BODY_MAX)
		return kvb_call_fail(call, -EMSGSIZE,
			"the body has %zu bytes, and at most %u may be", call->body_size,
			KVB_MSG_BODY_MAX);
	if (!kvb_pack_is_one_object(call->body, call->body_size))
		return kvb_call_fail(call, -EPROTO, "the body is not one MessagePack object");
	return 0;
}

static int check_frames(struct kvb_call *call, struct message *message)
{
	if (message->n_frames != FRAMES ||
		zmq_msg_size(&message->frames[FRAME_HEADER]) != sizeof(call->header))
		return kvb_call_fail(
			call, -EPROTO, "a message is one header of 64 bytes and one body");
	memcpy(&call->header, zmq_msg_data(&message->frames[FRAME_HEADER]), sizeof(call->header));
	if (call->header.magic != KVB_MAGIC || call->header.abi != KVB_ABI_VERSION)
		return kvb_call_fail(call, -EPROTONOSUPPORT,
			"the header has another magic number or ABI version");
	call->body = zmq_msg_data(&message->frames[FRAME_BODY]);
	call->body_size = zmq_msg_size(&message->frames[FRAME_BODY]);
	return 0;
}

/* Finds session and handler. 0; -errno. */
static int route(struct kvb_call *call)
{
	struct kvb_server *server = call->server;

	call->session =
		kvb_session_find_attached(&server->sessions, call->header.session, &call->peer);
	/* A DEALER delivers what it queued for a dead server to the next one. */
	if (memcmp(call->header.boot_id, server->boot_id, KVB_ID_BYTES) != 0)
		return kvb_call_fail(
			call, -ESTALE, "the message is meant for an earlier server; attach again");
	call->handler = kvb_handlers_find(&server->handlers, call->header.type);
	if (!call->handler)
		return kvb_call_fail(
			call, -EOPNOTSUPP, "there is no handler for this message type");
	if (!call->session && !call->handler->unattached)
		return kvb_call_fail(
			call, -EACCES, "this connection has not attached to the session");
	if (!call->handler->in_drain && kvb_server_is_draining(server))
		return kvb_call_fail(call, -ESHUTDOWN, "the server is shutting down");
	return 0;
}

/* Runs a handler in this thread. */
static void run_sync(struct kvb_call *call)
{
	uint64_t begin_ns = kvb_now_ns(), took_ns;

	kvb_call_run(call);
	took_ns = kvb_now_ns() - begin_ns;
	if (took_ns >= SLOW_NS)
		kvb_log(&call->server->log, KVB_LOG_WARN,
			"the handler of message type %u held the control thread for %llu ms",
			call->header.type, (unsigned long long)(took_ns / KVB_NS_PER_MS));
}

/* The same for one that wants its body unpacked. 0; -EPROTO. */
static int run_unpacked(struct kvb_call *call)
{
	msgpack_unpacked unpacked;
	int r = 0;

	msgpack_unpacked_init(&unpacked);
	if (msgpack_unpack_next(&unpacked, call->body, call->body_size, NULL) ==
		MSGPACK_UNPACK_SUCCESS) {
		call->object = &unpacked.data;
		run_sync(call);
	} else {
		r = kvb_call_fail(call, -EPROTO, "the body nests too deeply");
	}
	msgpack_unpacked_destroy(&unpacked);
	return r;
}

/* 0 the answer is there; 1 it comes later; -errno it was refused. */
static int dispatch(struct kvb_call *call, struct message *message)
{
	int r = check_frames(call, message);

	if (r == 0)
		r = route(call);
	if (r == 0)
		r = check_body(call);
	if (r < 0)
		return r;
	if (call->handler->unpacks)
		return run_unpacked(call);
	if (!call->handler->pool) {
		run_sync(call);
		return 0;
	}
	r = kvb_inflight_begin(call, &message->frames[FRAME_BODY]);
	if (r == -EAGAIN)
		return kvb_call_fail(call, r, "all threads are busy and the queue is full");
	return r == 0 ? 1 : r;
}

/* Exactly one reply for each message of our own uid, whatever is wrong with it. */
static void answer(struct kvb_call *call, struct message *message)
{
	int r;

	kvb_call_init_answer(call);
	r = dispatch(call, message);
	if (r < 0)
		kvb_call_set_error(call, r, call->text);
	if (r <= 0)
		kvb_send_reply(call->server, &call->peer, &call->header,
			r < 0 ? KVB_MSG_REFUSED : 0, call->status, &call->reply);
	kvb_call_free_answer(call);
}

static void take_message(struct kvb_server *server, struct message *message)
{
	zmq_msg_t *peer = &message->frames[FRAME_PEER];
	struct kvb_call call = {.server = server};

	kvb_count(&server->counters.control_requests, 1);
	if (!sender_is_own(message)) {
		/* Not our uid, or a lone frame, which has no credentials: there is nobody to
		 * answer. */
		kvb_count(&server->counters.control_dropped, 1);
		return;
	}
	call.peer.len = (uint8_t)zmq_msg_size(peer);
	memcpy(call.peer.routing_id, zmq_msg_data(peer), call.peer.len);
	answer(&call, message);
}

void kvb_control_serve(struct kvb_server *server)
{
	struct message message;

	for (int i = 0; i < BATCH; i++) {
		int r = receive(server, &message);
		if (r == 0)
			return;
		if (r > 0)
			take_message(server, &message);
		message_free(&message);
		if (r < 0)
			return;
	}
}

/* --------------------------------------------------------------------------------- open and close */

/* The first routing id comes from rand(), which libzmq 4.3.4 never seeds; a peer that forges the
 * next one would abort the process. */
static void seed_routing_ids(void)
{
	unsigned seed;

	if (getrandom(&seed, sizeof(seed), 0) == (ssize_t)sizeof(seed))
		srand(seed);
}

static int set_options(void *router, int listen_fd)
{
	static const struct {
		int option;
		int value;
	} options[] = {
		{ZMQ_LINGER, 0},
		{ZMQ_ROUTER_MANDATORY, 1},
		{ZMQ_SNDHWM, SEND_HWM},
		{ZMQ_RCVHWM, RECEIVE_HWM},
		{ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS},
	};
	int64_t max = KVB_MSG_FRAME_MAX;

	for (size_t i = 0; i < KVB_ARRAY_SIZE(options); i++)
		if (zmq_setsockopt(router, options[i].option, &options[i].value, sizeof(int)) < 0)
			return -errno;
	if (zmq_setsockopt(router, ZMQ_MAXMSGSIZE, &max, sizeof(max)) < 0)
		return -errno;
	return zmq_setsockopt(router, ZMQ_USE_FD, &listen_fd, sizeof(listen_fd)) < 0 ? -errno : 0;
}

/* libzmq takes the descriptor as soon as zmq_bind() succeeds, and closes it with the socket. */
static int open_router(struct kvb_server *server, int listen_fd)
{
	struct kvb_control *control = &server->control;
	char endpoint[sizeof(server->rundir.control.path) + 8];
	int r;

	control->context = zmq_ctx_new();
	if (!control->context)
		return -errno;
	control->router = zmq_socket(control->context, ZMQ_ROUTER);
	if (!control->router)
		return -errno;
	r = set_options(control->router, listen_fd);
	if (r < 0)
		return r;
	snprintf(endpoint, sizeof(endpoint), "ipc://%s", server->rundir.control.path);
	return zmq_bind(control->router, endpoint) < 0 ? -errno : 0;
}

int kvb_control_open(struct kvb_server *server)
{
	int fd = -1;
	int r = kvb_rundir_bind(&server->rundir, &server->rundir.control, SOCK_STREAM, 0600, &fd);

	if (r < 0)
		return r;
	server->control.owner = pthread_self();
	seed_routing_ids();
	r = open_router(server, fd);
	if (r < 0) {
		kvb_log(&server->log, KVB_LOG_ERR, "cannot make the control socket: %s",
			zmq_strerror(-r));
		kvb_control_close(server);
		kvb_fd_close(&fd);
	}
	return r;
}

void kvb_control_close(struct kvb_server *server)
{
	struct kvb_control *control = &server->control;

	if (control->router) {
		int linger_ms = LINGER_MS;
		kvb_log(&server->log, KVB_LOG_DEBUG, "step: close control socket");
		/* The last replies are on their way through ZMQ's own thread. */
		zmq_setsockopt(control->router, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
		zmq_close(kvb_control_router(server));
	}
	if (control->context)
		zmq_ctx_term(control->context);
	*control = (struct kvb_control){0};
}

/* ---------------------------------------------------------------------------------------- the loop */

static int start(struct kvb_server *server)
{
	int r = kvb_life_begin(&server->life);

	if (r < 0)
		return r;
	r = kvb_control_open(server);
	if (r == 0)
		r = kvb_door_open(&server->door, server);
	if (r < 0) {
		kvb_control_close(server);
		kvb_rundir_unlink(&server->rundir);
		kvb_life_end(&server->life);
	}
	return r;
}

static int poll_timeout(uint64_t wake_ns)
{
	uint64_t now_ns = kvb_now_ns();

	if (wake_ns == UINT64_MAX)
		return -1;
	if (wake_ns <= now_ns)
		return 0;
	/* Rounded up, so that it is never early and spins. */
	return (int)kvb_min_u64((wake_ns - now_ns) / KVB_NS_PER_MS + 1, POLL_TIMEOUT_MAX);
}

/* Lets everything move along. Returns when the next thing is due. */
static uint64_t turn(struct kvb_server *server)
{
	uint64_t wake_ns = kvb_inflight_turn(server, kvb_now_ns());
	bool replies_waited;

	/* Draining may end calls, whose replies go last; or close everything. */
	wake_ns = kvb_min_u64(wake_ns, kvb_drain_turn(server));
	if (kvb_drain_finished(server))
		return 0;
	replies_waited = server->outboxes.count > 0;
	wake_ns = kvb_min_u64(wake_ns, kvb_reply_turn(server, kvb_now_ns()));
	/* The drain may have waited for just that, and nothing else would wake it. */
	if (replies_waited && server->outboxes.count == 0 && kvb_server_is_draining(server))
		return 0;
	return kvb_min_u64(wake_ns, kvb_door_turn(&server->door));
}

static void loop(struct kvb_server *server)
{
	zmq_pollitem_t items[] = {
		{.socket = kvb_control_router(server), .events = ZMQ_POLLIN},
		{.fd = server->door.epoll_fd, .events = ZMQ_POLLIN},
		{.fd = server->output_fd, .events = ZMQ_POLLIN},
	};
	uint64_t wake_ns = 0;
	eventfd_t calls;

	while (!kvb_drain_finished(server)) {
		/* Level-triggered for all three, so what is left over comes up again. */
		if (zmq_poll(items, KVB_ARRAY_SIZE(items), poll_timeout(wake_ns)) < 0 &&
			errno != EINTR)
			kvb_log(&server->log, KVB_LOG_ERR, "zmq_poll: %s", zmq_strerror(errno));
		if (items[2].revents)
			(void)eventfd_read(server->output_fd, &calls);
		if (items[1].revents)
			kvb_door_serve(&server->door);
		if (items[0].revents)
			kvb_control_serve(server);
		wake_ns = turn(server);
	}
}

void *kvb_control_main(void *arg)
{
	struct kvb_server *server = arg;
	int r = start(server);

	kvb_server_set_start_result(server, r);
	if (r < 0)
		return NULL;
	kvb_watchdog_join(&server->watchdog, &server->control_ringer, "kvb-control");
	loop(server);
	kvb_watchdog_leave(&server->watchdog, &server->control_ringer);
	kvb_server_set_stop_result(server, 0);
	return NULL;
}
