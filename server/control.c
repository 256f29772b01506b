/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - the thread "kvb-control" and the ROUTER it alone may touch.
 *
 * The thread sleeps in zmq_poll over the ROUTER, the door's epoll set and the output eventfd by which
 * other threads call it; then it serves each, and lets drain.c move sessions along. A ROUTER may drop
 * or block silently, so every send is MANDATORY and DONTWAIT and each failure is counted. libzmq cannot be
 * defended against a hostile peer, hence the socket's mode 0600 and the look at each message's uid.
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

#include "server/drain.h"
#include "server/handler.h"
#include "server/server.h"
#include "shm/atomic.h"
#include "shm/fd.h"
#include "shm/util.h"

#define BATCH            64
#define HWM              1000
#define HANDSHAKE_MS     1000
#define POLL_TIMEOUT_MAX 3600000

enum { FRAME_PEER, FRAME_HEADER, FRAME_BODY, FRAMES };

struct message {
	zmq_msg_t frames[FRAMES];
	unsigned n_frames; /* may exceed FRAMES; the rest was dropped */
	struct kvb_peer peer;
	struct kvb_msg_header header;
};

static void *router_of(struct kvb_server *server)
{
	assert(pthread_equal(server->control.owner, pthread_self()));
	return server->control.router;
}

/* ------------------------------------------------------------------------------------- receiving */

/* Receives all frames of one message, keeps the first few. 1; 0 none is there; -errno. */
static int receive(struct kvb_server *server, struct message *message)
{
	void *router = router_of(server);
	int more = 1;

	message->n_frames = 0;
	while (more) {
		zmq_msg_t extra, *frame = &extra;
		if (message->n_frames < FRAMES)
			frame = &message->frames[message->n_frames];
		zmq_msg_init(frame);
		/* The frames of a message arrive together, so only the first one can be missing. */
		if (zmq_msg_recv(frame, router, ZMQ_DONTWAIT) < 0) {
			zmq_msg_close(frame);
			return message->n_frames == 0 && errno == EAGAIN ? 0 : -errno;
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

/* The kernel's word for who sent it, "localhost:UID:GID:PID". libzmq 4.3.4 leaves it out of the first
 * frame, so it is read from the header's; a missing one means no. */
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

/* The only way out of the ROUTER. Never blocks; what cannot be delivered is counted. */
static void send_reply(struct kvb_server *server, const struct kvb_peer *peer,
	const struct kvb_msg_header *header, const msgpack_sbuffer *body)
{
	void *router = router_of(server);
	int flags = ZMQ_DONTWAIT | ZMQ_SNDMORE;

	/* EAGAIN: the peer does not read; EHOSTUNREACH: it is gone. Both are decided at the first
	 * frame. */
	if (zmq_send(router, peer->routing_id, peer->len, flags) < 0 ||
		zmq_send(router, header, sizeof(*header), flags) < 0 ||
		zmq_send(router, body->data, body->size, ZMQ_DONTWAIT) < 0)
		kvb_count(&server->counters.control_dropped, 1);
	else
		kvb_count(&server->counters.control_replies, 1);
}

static void pack_error(msgpack_packer *packer, int status, const char *text)
{
	if (!text)
		text = strerrordesc_np(-status);
	msgpack_pack_map(packer, 1);
	msgpack_pack_str_with_body(packer, "error", 5);
	msgpack_pack_str_with_body(packer, text, strlen(text));
}

/* Unpacks the body and calls the handler. */
static int call_handler(
	struct kvb_call *call, const struct kvb_handler *handler, const void *data, size_t size)
{
	msgpack_unpacked unpacked;
	size_t offset = 0;
	int r;

	msgpack_unpacked_init(&unpacked);
	if (msgpack_unpack_next(&unpacked, data, size, &offset) == MSGPACK_UNPACK_SUCCESS &&
		offset == size) {
		call->body = &unpacked.data;
		r = handler->fn(call);
	} else {
		call->error_text = "the body is not one MessagePack object";
		r = -EPROTO;
	}
	msgpack_unpacked_destroy(&unpacked);
	return r;
}

static int check_frames(struct message *message, const char **ret_text)
{
	if (message->n_frames != FRAMES ||
		zmq_msg_size(&message->frames[FRAME_HEADER]) != sizeof(message->header)) {
		*ret_text = "a message is one header of 64 bytes and one body";
		return -EPROTO;
	}
	memcpy(&message->header, zmq_msg_data(&message->frames[FRAME_HEADER]),
		sizeof(message->header));
	if (message->header.magic != KVB_MAGIC || message->header.abi != KVB_ABI_VERSION) {
		*ret_text = "the header has another magic number or ABI version";
		return -EPROTONOSUPPORT;
	}
	return 0;
}

static bool peer_equal(const struct kvb_peer *a, const struct kvb_peer *b)
{
	return a->len == b->len && memcmp(a->routing_id, b->routing_id, a->len) == 0;
}

static int dispatch(struct kvb_call *call, struct message *message)
{
	const struct kvb_handler *handler = kvb_handler_find(message->header.type);
	zmq_msg_t *body = &message->frames[FRAME_BODY];
	struct kvb_session *session;

	/* A DEALER delivers what it queued for a dead server to the next one. */
	if (memcmp(message->header.boot_id, call->server->boot_id, KVB_ID_BYTES) != 0) {
		call->error_text = "the message is meant for an earlier server; attach again";
		return -ESTALE;
	}
	if (!handler) {
		call->error_text = "there is no handler for this message type";
		return -EOPNOTSUPP;
	}
	session = kvb_session_find(&call->server->sessions, message->header.session);
	if (session && !peer_equal(&session->control_peer, call->peer))
		session = NULL;
	if (!session && !handler->unattached) {
		call->error_text = "this connection has not attached to the session";
		return -EACCES;
	}
	call->session = session;
	return call_handler(call, handler, zmq_msg_data(body), zmq_msg_size(body));
}

/* Exactly one reply for each message of our own uid, whatever is wrong with it. */
static void answer(struct kvb_server *server, struct message *message)
{
	msgpack_sbuffer body;
	msgpack_packer packer;
	struct kvb_call call = {.server = server, .peer = &message->peer, .reply = &packer};
	struct kvb_msg_header header;
	int r;

	memset(&message->header, 0, sizeof(message->header));
	msgpack_sbuffer_init(&body);
	msgpack_packer_init(&packer, &body, msgpack_sbuffer_write);
	r = check_frames(message, &call.error_text);
	call.session_id = message->header.session;
	if (r == 0)
		r = dispatch(&call, message);
	if (r < 0) {
		msgpack_sbuffer_clear(&body);
		pack_error(&packer, r, call.error_text);
	}
	header = (struct kvb_msg_header){.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = message->header.type,
		.request = message->header.request,
		.session = message->header.session,
		.status = r};
	memcpy(header.boot_id, server->boot_id, KVB_ID_BYTES);
	send_reply(server, &message->peer, &header, &body);
	msgpack_sbuffer_destroy(&body);
}

static void take_message(struct kvb_server *server, struct message *message)
{
	zmq_msg_t *peer = &message->frames[FRAME_PEER];

	kvb_count(&server->counters.control_requests, 1);
	if (!sender_is_own(message)) {
		/* Not our uid, or a lone frame, which has no credentials: there is nobody to answer. */
		kvb_count(&server->counters.control_dropped, 1);
		return;
	}
	message->peer.len = (uint8_t)zmq_msg_size(peer);
	memcpy(message->peer.routing_id, zmq_msg_data(peer), message->peer.len);
	answer(server, message);
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

/* The first routing id comes from rand(), which libzmq 4.3.4 never seeds; a peer that forges the next
 * one would abort the process. */
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
		{ZMQ_SNDHWM, HWM},
		{ZMQ_RCVHWM, HWM},
		{ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS},
	};
	int64_t max = KVB_MSG_BODY_MAX;

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
		kvb_log(&server->log, KVB_LOG_DEBUG, "step: close control socket");
		zmq_close(router_of(server));
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

static void loop(struct kvb_server *server)
{
	zmq_pollitem_t items[] = {
		{.socket = router_of(server), .events = ZMQ_POLLIN},
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
		wake_ns = kvb_min_u64(kvb_drain_turn(server), kvb_door_turn(&server->door));
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
