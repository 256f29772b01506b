/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_call_tickets.c - kvb_submit_call(): thousands of calls in flight from one thread; and what the
 * client's control socket owes to everybody when its connection is cut or signals strike.
 *
 * The server, with handlers that answer, fail, or wait for a gate, in this process. The linker puts
 * functions of this file in the place of some of ZMQ's and of poll(), which watch, or fail as the real ones
 * may. Other threads record, the main thread asserts.
 */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "client/client.h"
#include "client/connection.h"
#include "kvbell/kvbell.h"
#include "kvbell/server.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/gate.h"
#include "tests/process.h"

enum {
	T_SYNC = KVB_MSG_USER, /* echoes in the control thread */
	T_BLOCKING,            /* echoes in a pool */
	T_GATE,                /* echoes when the gate is open */
	T_NEVER,               /* the same, and the server waits 200 ms only */
	T_FAIL,                /* SYNC: -ENOENT and a text */
	T_FAIL_ACCESS,         /* -EACCES, which is also the server's word on a token */
	T_NOBODY = 65535,
};

#define FLIGHTS_MAX 2000u
#define EXTRA_MAX   600u
#define BODY_MAX    (13 + EXTRA_MAX)
#define LARGE_BYTES (200u * 1024)
#define WAIT_MS     20000 /* nothing here takes that long */
#define CALLERS     8u

static struct embedded embedded;
static struct kvb_client *client;

/* ---------------------------------------------------------------------------------------- handlers */

static int echo(struct kvb_call *call, void *user)
{
	size_t size;
	const void *body = kvb_call_body(call, &size);

	(void)user;
	return kvb_call_reply(call, body, size);
}

static int echo_at_gate(struct kvb_call *call, void *user)
{
	gate_pass();
	return echo(call, user);
}

static int fail_on_order(struct kvb_call *call, void *user)
{
	(void)user;
	if (kvb_call_type(call) == T_FAIL_ACCESS)
		return kvb_call_fail(call, -EACCES, "not for you");
	return kvb_call_fail(call, -ENOENT, "no model \"%s\"", kvb_call_client_name(call));
}

static int register_all(struct kvb_server *server)
{
	uint32_t normal, gate, never;

	if (kvb_server_add_pool(server, KVB_POOL_NORMAL, 2, 2 * FLIGHTS_MAX, &normal) < 0 ||
		kvb_server_add_pool(server, KVB_POOL_NORMAL, 4, 2 * FLIGHTS_MAX, &gate) < 0 ||
		kvb_server_add_pool(server, KVB_POOL_NORMAL, 1, 8, &never) < 0)
		return -1;
	if (kvb_server_handle_sync(server, T_SYNC, echo, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_BLOCKING, normal, 0, echo, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_GATE, gate, 0, echo_at_gate, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_NEVER, never, 200, echo_at_gate, NULL) < 0 ||
		kvb_server_handle_sync(server, T_FAIL, fail_on_order, NULL) < 0 ||
		kvb_server_handle_sync(server, T_FAIL_ACCESS, fail_on_order, NULL) < 0)
		return -1;
	return 0;
}

/* -------------------------------------------------------------------------------------------- bodies */

/* [number, bytes that depend on it]. Returns its size. */
static size_t make_body(uint8_t *body, uint64_t number)
{
	size_t extra = number * 37 % EXTRA_MAX;

	body[0] = 0x92;
	body[1] = 0xcf;
	for (unsigned i = 0; i < 8; i++)
		body[2 + i] = (uint8_t)(number >> 8 * (7 - i));
	body[10] = 0xc5;
	body[11] = (uint8_t)(extra >> 8);
	body[12] = (uint8_t)extra;
	for (size_t i = 0; i < extra; i++)
		body[13 + i] = (uint8_t)(number * 31 + i);
	return 13 + extra;
}

/* bin 32 */
static void make_large_body(uint8_t body[LARGE_BYTES], uint64_t number)
{
	for (size_t i = 0; i < LARGE_BYTES; i++)
		body[i] = (uint8_t)(number * 7 + i / 3);
	body[0] = 0xc6;
	for (unsigned i = 0; i < 4; i++)
		body[1 + i] = (uint8_t)((LARGE_BYTES - 5) >> 8 * (3 - i));
}

static bool is_answer(const struct kvb_reply *reply, const void *body, size_t size)
{
	return reply->body && reply->size == size && memcmp(reply->body, body, size) == 0 &&
		reply->text[0] == '\0';
}

static bool is_all(const void *memory, size_t size, uint8_t byte)
{
	for (size_t i = 0; i < size; i++)
		if (((const uint8_t *)memory)[i] != byte)
			return false;
	return true;
}

/* ------------------------------------------------------------------------------------------- flights */

/* One submitted call. */
struct flight {
	uint64_t number; /* of its body */
	uint64_t ticket;
	struct kvb_reply reply;
	unsigned completions;
	int result;
};

static struct flight flights[FLIGHTS_MAX];

/* The body is overwritten at once: it is copied. */
static int submit_flight(struct flight *flight, uint64_t number, uint16_t type, uint32_t timeout_ms)
{
	uint8_t body[BODY_MAX];
	size_t size = make_body(body, number);
	int r;

	*flight = (struct flight){.number = number};
	memset(&flight->reply, 0xee, sizeof(flight->reply));
	r = kvb_submit_call(
		client, type, body, size, timeout_ms, &flight->reply, flight, &flight->ticket);
	memset(body, 0xc1, sizeof(body));
	return r;
}

static void submit_flights(size_t n, uint64_t first_number, const uint16_t *types, size_t n_types)
{
	for (size_t i = 0; i < n; i++)
		assert_int_equal(
			submit_flight(&flights[i], first_number + i, types[i % n_types], 0), 0);
}

/* False: it is not what was submitted. */
static bool take_completion(const struct kvb_completion *completion)
{
	struct flight *flight = completion->user;

	flight->completions++;
	flight->result = completion->result;
	return completion->ticket == flight->ticket &&
		completion->failed == (completion->result != 0);
}

static bool has_own_answer(const struct flight *flight)
{
	uint8_t body[BODY_MAX];

	return is_answer(&flight->reply, body, make_body(body, flight->number));
}

static void assert_answered(struct flight *flight)
{
	assert_int_equal(flight->completions, 1);
	assert_int_equal(flight->result, 0);
	assert_true(has_own_answer(flight));
	kvb_reply_free(&flight->reply);
}

static void assert_failed(struct flight *flight, int error, const char *text)
{
	assert_int_equal(flight->completions, 1);
	assert_int_equal(flight->result, error);
	assert_null(flight->reply.body);
	assert_int_equal(flight->reply.size, 0);
	assert_string_equal(flight->reply.text, text);
	/* Nothing to free, and allowed. */
	kvb_reply_free(&flight->reply);
}

/* How many were taken; -errno. */
static int poll_and_reap(int event_fd)
{
	struct kvb_completion completions[32];
	struct pollfd fd = {.fd = event_fd, .events = POLLIN};
	int n = poll(&fd, 1, WAIT_MS) == 1 ? kvb_reap(client, completions, 32) : -ETIMEDOUT;

	for (int i = 0; i < n; i++)
		if (!take_completion(&completions[i]))
			return -EBADMSG;
	return n;
}

static void reap_flights(size_t n)
{
	struct kvb_completion completion;
	int event_fd = kvb_event_fd(client);

	for (size_t reaped = 0; reaped < n;) {
		int r = poll_and_reap(event_fd);
		assert_true(r >= 0);
		reaped += (size_t)r;
	}
	assert_int_equal(kvb_reap(client, &completion, 1), 0);
}

static void wait_for_flight(struct flight *flight)
{
	struct kvb_completion completion;

	assert_int_equal(kvb_wait(client, flight->ticket, WAIT_MS, &completion), 0);
	assert_ptr_equal(completion.user, flight);
	assert_true(take_completion(&completion));
}

static void wait_in_random_order(size_t n)
{
	static size_t order[FLIGHTS_MAX];

	for (size_t i = 0; i < n; i++)
		order[i] = i;
	for (size_t i = n - 1; i > 0; i--) {
		size_t other = (size_t)rand() % (i + 1), kept = order[i];
		order[i] = order[other];
		order[other] = kept;
	}
	for (size_t i = 0; i < n; i++)
		wait_for_flight(&flights[order[i]]);
}

/* Submits one and waits for it. */
static struct flight *fly(uint16_t type, uint32_t timeout_ms)
{
	static struct flight flight;
	static uint64_t number = 7000000;

	assert_int_equal(submit_flight(&flight, number++, type, timeout_ms), 0);
	wait_for_flight(&flight);
	return &flight;
}

/* ------------------------------------------------------------------------------- in the place of others */

/* Of the thread that calls. */
static _Thread_local bool poll_watched;
static _Thread_local uint32_t sleeps_in_vain;
static _Thread_local bool send_blindly;
static _Thread_local bool interrupt_zmq;
static _Thread_local bool hold_me;      /* before it sleeps */
static _Thread_local bool news_at_send; /* the gate's answers arrive when it sends */
static _Thread_local uint32_t interruptions;

static uint32_t held;             /* atomic: it is there */
static uint32_t let_go;           /* atomic */
static uint32_t interrupt_ends;   /* atomic: how many zmq_ctx_term() are to be interrupted */
static uint32_t contexts;         /* atomic: made and not ended */
static uint32_t tokens_sent;      /* atomic */
static uint32_t cut_at_tokens;    /* atomic: after how many of them the connection is cut */
static uint32_t cut_before_calls; /* atomic: before how many more of them it is */

static unsigned cut_connection(void);

int __real_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __real_zmq_msg_send(zmq_msg_t *msg, void *socket, int flags);
int __wrap_zmq_msg_send(zmq_msg_t *msg, void *socket, int flags);
int __real_zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags);
int __wrap_zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags);
int __real_zmq_connect(void *socket, const char *endpoint);
int __wrap_zmq_connect(void *socket, const char *endpoint);
int __real_zmq_getsockopt(void *socket, int option, void *value, size_t *size);
int __wrap_zmq_getsockopt(void *socket, int option, void *value, size_t *size);
void *__real_zmq_ctx_new(void);
void *__wrap_zmq_ctx_new(void);
int __real_zmq_ctx_term(void *context);
int __wrap_zmq_ctx_term(void *context);

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	int r;

	if (hold_me) {
		hold_me = false;
		kvb_store_release(&held, 1u);
		while (!kvb_load_acquire(&let_go))
			(void)__real_poll(NULL, 0, 1);
		/* Without the time after which it would look by itself. */
		timeout_ms = -1;
	}
	r = __real_poll(fds, n, timeout_ms);
	if (poll_watched && r == 0 && timeout_ms >= 100)
		sleeps_in_vain++;
	return r;
}

/* Two of three fail as they do when a signal comes. */
static bool interrupted(void)
{
	if (!interrupt_zmq || interruptions++ % 3 == 2)
		return false;
	errno = EINTR;
	return true;
}

/* Something has happened that ZMQ has not looked at. */
static bool has_news(void *socket)
{
	struct pollfd fd = {.events = POLLIN};
	size_t size = sizeof(fd.fd);

	return __real_zmq_getsockopt(socket, ZMQ_FD, &fd.fd, &size) == 0 &&
		__real_poll(&fd, 1, 0) == 1;
}

/* Of the client's messages alone; 0 for all else. */
static uint16_t type_of_request(zmq_msg_t *msg, void *socket, int flags)
{
	struct kvb_msg_header header;
	int type = 0;
	size_t size = sizeof(type);

	if (!(flags & ZMQ_SNDMORE) || zmq_msg_size(msg) != sizeof(header) ||
		__real_zmq_getsockopt(socket, ZMQ_TYPE, &type, &size) < 0 || type != ZMQ_DEALER)
		return 0;
	memcpy(&header, zmq_msg_data(msg), sizeof(header));
	return header.type;
}

/* Lets ZMQ find out that the connection is gone, and make a new one. */
static void wait_for_connection(void *socket)
{
	int events = 0;
	size_t size = sizeof(events);

	for (unsigned i = 0; i < 10 || !(events & ZMQ_POLLOUT); i++) {
		(void)__real_poll(NULL, 0, 10);
		(void)__real_zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size);
	}
}

/* Lets a handler answer, and ZMQ take in that the answer is there. */
static void bring_news(void *socket)
{
	int events;
	size_t size = sizeof(events);

	gate_open();
	(void)gate_wait_inside(0);
	gate_close();
	while (!has_news(socket))
		(void)__real_poll(NULL, 0, 1);
	(void)__real_zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size);
}

static bool take_one(uint32_t *left)
{
	return kvb_load_acquire(left) > 0 && kvb_fetch_sub(left, 1u) > 0;
}

int __wrap_zmq_msg_send(zmq_msg_t *msg, void *socket, int flags)
{
	uint16_t type = type_of_request(msg, socket, flags);
	int r;

	if (interrupted())
		return -1;
	/* When it sends, ZMQ looks for news once in a millisecond: here never. */
	if (send_blindly && type != 0 && has_news(socket)) {
		errno = EAGAIN;
		return -1;
	}
	if (type >= KVB_MSG_USER && take_one(&cut_before_calls) && cut_connection() > 0)
		wait_for_connection(socket);
	if (type >= KVB_MSG_USER && news_at_send) {
		news_at_send = false;
		bring_news(socket);
	}
	r = __real_zmq_msg_send(msg, socket, flags);
	if (r >= 0 && type == KVB_MSG_ATTACH) {
		(void)kvb_fetch_add(&tokens_sent, 1u);
		if (take_one(&cut_at_tokens))
			(void)cut_connection();
	}
	return r;
}

int __wrap_zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags)
{
	return interrupted() ? -1 : __real_zmq_msg_recv(msg, socket, flags);
}

int __wrap_zmq_connect(void *socket, const char *endpoint)
{
	return interrupted() ? -1 : __real_zmq_connect(socket, endpoint);
}

int __wrap_zmq_getsockopt(void *socket, int option, void *value, size_t *size)
{
	if (option == ZMQ_EVENTS && interrupted())
		return -1;
	return __real_zmq_getsockopt(socket, option, value, size);
}

void *__wrap_zmq_ctx_new(void)
{
	void *context = __real_zmq_ctx_new();

	(void)kvb_fetch_add(&contexts, context ? 1u : 0u);
	return context;
}

int __wrap_zmq_ctx_term(void *context)
{
	int r;

	if (take_one(&interrupt_ends)) {
		errno = EINTR;
		return -1;
	}
	r = __real_zmq_ctx_term(context);
	(void)kvb_fetch_sub(&contexts, r == 0 ? 1u : 0u);
	return r;
}

/* When a connection ends between two frames of a message, libzmq loses the first of them. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libzmq.so";
}

/* ---------------------------------------------------------------------------------- server and client */

static struct kvb_client *open_client(uint32_t movers, uint32_t timeout_ms)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *opened = NULL;

	options.dir = embedded.dir;
	options.name = "caller";
	options.movers = movers;
	options.timeout_ms = timeout_ms;
	return process_client_open(&options, &opened) == 0 ? opened : NULL;
}

static void change_client(uint32_t movers, uint32_t timeout_ms)
{
	kvb_close(client);
	client = open_client(movers, timeout_ms);
	assert_non_null(client);
}

static int start(void **state)
{
	struct kvb_server_options config;

	(void)state;
	gate_close();
	embedded_config(&config);
	config.drain_timeout_ms = 10000;
	if (embedded_make(&embedded, &config) < 0 || register_all(embedded.server) < 0 ||
		kvb_server_start(embedded.server) < 0)
		return -1;
	client = open_client(0, 0);
	return client ? 0 : -1;
}

/* ------------------------------------------------------------------------------------- blocking callers */

/* A thread that calls until it is told to stop. What it records is read after its end, but for `answered`. */
struct caller {
	pthread_t thread;
	bool running; /* the main thread's */
	uint32_t number;
	uint32_t timeout_ms;
	uint32_t answered; /* atomic: with their own bytes */
	uint32_t timed_out;
	uint32_t wrong;
	int error; /* the first that is none of these */
};

/* Not on a stack, which a failed assertion leaves while they run. */
static struct caller callers[CALLERS];
static uint32_t stop_calling; /* atomic */

static void *call_until_told(void *arg)
{
	struct caller *caller = arg;
	uint8_t body[BODY_MAX];

	for (uint64_t i = 0; !kvb_load_acquire(&stop_calling); i++) {
		size_t size = make_body(body, (uint64_t)caller->number << 32 | i);
		struct kvb_reply reply;
		int r = kvb_call(client, i % 2 ? T_SYNC : T_BLOCKING, body, size,
			caller->timeout_ms, &reply);
		if (r == -ETIMEDOUT)
			caller->timed_out++;
		else if (r < 0)
			caller->error = caller->error ? caller->error : r;
		else if (!is_answer(&reply, body, size))
			caller->wrong++;
		else
			(void)kvb_fetch_add(&caller->answered, 1u);
		kvb_reply_free(&reply);
	}
	return NULL;
}

static void start_callers(uint32_t n, uint32_t timeout_ms)
{
	kvb_store_release(&stop_calling, 0u);
	for (uint32_t i = 0; i < n; i++) {
		callers[i] = (struct caller){.number = i + 1, .timeout_ms = timeout_ms};
		assert_int_equal(kvb_thread_start(&callers[i].thread, "caller", call_until_told,
					 &callers[i]),
			0);
		callers[i].running = true;
	}
}

static void stop_callers(void)
{
	kvb_store_release(&stop_calling, 1u);
	for (uint32_t i = 0; i < CALLERS; i++) {
		if (callers[i].running)
			pthread_join(callers[i].thread, NULL);
		callers[i].running = false;
	}
}

struct progress {
	uint32_t n;
	uint32_t answered[CALLERS];
};

static bool all_went_on(const void *arg)
{
	const struct progress *since = arg;

	for (uint32_t i = 0; i < since->n; i++)
		if (kvb_load_acquire(&callers[i].answered) < since->answered[i] + 20)
			return false;
	return true;
}

/* Every one of them has answers again. */
static void wait_for_progress(uint32_t n)
{
	struct progress since = {.n = n};

	for (uint32_t i = 0; i < n; i++)
		since.answered[i] = kvb_load_acquire(&callers[i].answered);
	assert_true(embedded_wait(all_went_on, &since));
}

static int stop(void **state)
{
	(void)state;
	gate_open();
	stop_callers();
	kvb_close(client);
	client = NULL;
	return embedded_stop(&embedded);
}

/* ------------------------------------------------------------------------------------------ many in flight */

static const uint16_t both_types[] = {T_SYNC, T_BLOCKING};

static void fly_and_reap(size_t n)
{
	submit_flights(n, 1000000, both_types, 2);
	reap_flights(n);
	for (size_t i = 0; i < n; i++)
		assert_answered(&flights[i]);
}

static void fly_and_wait(size_t n)
{
	submit_flights(n, 2000000, both_types, 2);
	wait_in_random_order(n);
	for (size_t i = 0; i < n; i++)
		assert_answered(&flights[i]);
}

static void thousands_in_flight_come_back_to_their_own(void **state)
{
	(void)state;
	for (uint32_t movers = 0; movers < 3; movers += 2) {
		change_client(movers, 0);
		fly_and_reap(FLIGHTS_MAX);
		fly_and_wait(FLIGHTS_MAX);
	}
	assert_int_equal(kvb_load_relaxed(&embedded.server->counters.control_dropped), 0);
}

/* So that all of them wait at the server at once. */
static void thousands_come_back_when_the_gate_opens(void **state)
{
	static const uint16_t types[] = {T_GATE};

	(void)state;
	submit_flights(FLIGHTS_MAX, 3000000, types, 1);
	assert_true(gate_wait_inside(4));
	/* Others do not wait for them. */
	assert_answered(fly(T_SYNC, 0));
	gate_open();
	reap_flights(FLIGHTS_MAX);
	for (size_t i = 0; i < FLIGHTS_MAX; i++)
		assert_answered(&flights[i]);
}

static void flights_and_blocking_calls_go_side_by_side(void **state)
{
	(void)state;
	start_callers(4, 0);
	fly_and_reap(FLIGHTS_MAX);
	fly_and_wait(FLIGHTS_MAX);
	wait_for_progress(4);
	fly_and_reap(FLIGHTS_MAX);
	stop_callers();
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(callers[i].error, 0);
		assert_int_equal(callers[i].wrong, 0);
		assert_int_equal(callers[i].timed_out, 0);
	}
	/* Nobody waits any more: only the client's own thread can bring these. */
	fly_and_reap(100);
}

/* --------------------------------------------------------------------------------------------- errors */

static void errors_come_with_the_completion(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		assert_failed(fly(T_FAIL, 0), -ENOENT, "no model \"caller\"");
		assert_failed(fly(T_FAIL_ACCESS, 0), -EACCES, "not for you");
		assert_failed(
			fly(T_NOBODY, 0), -EOPNOTSUPP, "there is no handler for this message type");
		assert_answered(fly(T_SYNC, 0));
	}
	/* Reaped, not waited for. */
	assert_int_equal(submit_flight(&flights[0], 1, T_FAIL, 0), 0);
	reap_flights(1);
	assert_failed(&flights[0], -ENOENT, "no model \"caller\"");
}

static void assert_not_submitted(
	uint16_t type, const void *body, size_t size, struct kvb_reply *reply, int error)
{
	uint64_t ticket = 77;

	assert_int_equal(kvb_submit_call(client, type, body, size, 0, reply, NULL, &ticket), error);
	assert_int_equal(ticket, 77);
}

static void what_cannot_be_sent_is_no_ticket(void **state)
{
	static const uint16_t types[] = {
		0, 1, KVB_MSG_ATTACH, KVB_MSG_PING, KVB_MSG_LIST, KVB_MSG_USER - 1};
	static const struct {
		const char *bytes;
		size_t size;
	} bodies[] = {{NULL, 0}, {"", 0}, {"\xc1", 1}, {"\x01\x02", 2}, {"\x91", 1}, {"\xa5wow", 4},
		{"\x80\x80", 2}, {"\xdd\xff\xff\xff\xff", 5}, {"\xcf\x01\x02\x03", 4}};
	uint8_t *large = test_calloc(1, KVB_MSG_BODY_MAX + 1);
	struct kvb_completion completion;
	struct kvb_reply reply;

	(void)state;
	memset(&reply, 0xee, sizeof(reply));
	for (size_t i = 0; i < KVB_ARRAY_SIZE(types); i++)
		assert_not_submitted(types[i], "\x2a", 1, &reply, -EINVAL);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(bodies); i++)
		assert_not_submitted(T_SYNC, bodies[i].bytes, bodies[i].size, &reply, -EINVAL);
	assert_not_submitted(T_SYNC, large, KVB_MSG_BODY_MAX + 1, &reply, -EMSGSIZE);
	assert_not_submitted(T_SYNC, "\x2a", 1, NULL, -EINVAL);
	assert_true(is_all(&reply, sizeof(reply), 0xee));
	assert_int_equal(kvb_reap(client, &completion, 1), 0);
	assert_int_equal(kvb_load_relaxed(&embedded.server->counters.control_requests), 0);
	test_free(large);
}

static void a_client_of_another_kind_may_not(void **state)
{
	(void)state;
	/* As if another uid had been let in; with real ones, test_users.c. */
	client->conn->attached.welcome.kind = KVB_KIND_TRUSTED;
	assert_failed(fly(T_SYNC, 0), -EPERM, "");
	client->conn->attached.welcome.kind = KVB_KIND_OWN;
	assert_answered(fly(T_SYNC, 0));
}

static void the_servers_deadline_comes_with_its_text(void **state)
{
	const struct flight *first;

	(void)state;
	/* On a busy machine its thread may come too late even so. */
	do {
		first = fly(T_NEVER, 0);
		assert_int_equal(first->result, -ETIMEDOUT);
	} while (strcmp(first->reply.text, "no thread was free in time") == 0);
	assert_string_equal(first->reply.text, "the handler took too long");
	assert_failed(fly(T_NEVER, 0), -ETIMEDOUT, "no thread was free in time");
	gate_open();
	assert_true(gate_wait_inside(0));
	assert_answered(fly(T_NEVER, 0));
}

/* The reply is the caller's again: what the late answer would do to it is seen. */
static void overwrite_reply(struct flight *flight)
{
	memset(&flight->reply, 0xee, sizeof(flight->reply));
}

static void a_late_answer_touches_nothing(void **state)
{
	uint64_t begin_ns;

	(void)state;
	assert_answered(fly(T_SYNC, 0));
	begin_ns = kvb_now_ns();
	for (size_t i = 0; i < 100; i++)
		assert_int_equal(submit_flight(&flights[i], i, T_GATE, i % 2 ? 50 : 150), 0);
	for (size_t i = 0; i < 50; i++)
		wait_for_flight(&flights[i]);
	reap_flights(50);
	assert_true(kvb_now_ns() - begin_ns < 5 * KVB_NS_PER_S);
	for (size_t i = 0; i < 100; i++) {
		assert_failed(&flights[i], -ETIMEDOUT, "");
		overwrite_reply(&flights[i]);
	}
	/* One more, whose answer comes after the late ones. */
	assert_int_equal(submit_flight(&flights[100], 100, T_GATE, 0), 0);
	gate_open();
	wait_for_flight(&flights[100]);
	assert_answered(&flights[100]);
	assert_true(gate_wait_inside(0));
	fly_and_wait(100);
	submit_flights(100, 4000000, both_types, 2);
	reap_flights(100);
	for (size_t i = 0; i < 100; i++) {
		assert_answered(&flights[i]);
		assert_int_equal(flights[i].completions, 1);
	}
}

static void without_a_deadline_of_its_own_it_has_the_clients(void **state)
{
	(void)state;
	change_client(0, 50);
	assert_failed(fly(T_GATE, 0), -ETIMEDOUT, "");
	gate_open();
	assert_true(gate_wait_inside(0));
	assert_answered(fly(T_GATE, WAIT_MS));
}

/* ---------------------------------------------------------------------------------------------- the end */

static bool is_end(int error)
{
	return error == -ESHUTDOWN || error == -ECONNRESET || error == -ENOTCONN;
}

struct waiter {
	pthread_t thread;
	uint64_t ticket;
	int result;
};

static void *wait_for_ticket(void *arg)
{
	struct waiter *waiter = arg;
	struct kvb_completion completion;

	waiter->result = kvb_wait(client, waiter->ticket, 0, &completion);
	/* It may have been told of the call's end before that of the client. */
	if (waiter->result == 0)
		waiter->result = completion.result;
	return NULL;
}

static bool is_awaited(const void *unused)
{
	bool awaited = false;
	const struct kvb_ticket *ticket;

	(void)unused;
	pthread_mutex_lock(&client->tickets.lock);
	TAILQ_FOREACH(ticket, &client->tickets.open, link)
	awaited = awaited || ticket->awaited;
	pthread_mutex_unlock(&client->tickets.lock);
	return awaited;
}

static void close_returns_with_calls_in_flight(void **state)
{
	static const uint16_t types[] = {T_GATE, T_SYNC, T_GATE, T_BLOCKING};
	static struct waiter waiter;

	(void)state;
	submit_flights(1000, 5000000, types, 4);
	assert_true(gate_wait_inside(4));
	waiter = (struct waiter){.ticket = flights[998].ticket};
	assert_int_equal(kvb_thread_start(&waiter.thread, "waiter", wait_for_ticket, &waiter), 0);
	assert_true(embedded_wait(is_awaited, NULL));
	kvb_close(client);
	client = NULL;
	pthread_join(waiter.thread, NULL);
	assert_int_equal(waiter.result, -ECONNRESET);
	for (size_t i = 0; i < 1000; i++) {
		struct kvb_reply *reply = &flights[i].reply;
		if (reply->body)
			assert_true(has_own_answer(&flights[i]));
		else
			assert_true(is_all(reply, sizeof(*reply), 0));
		/* The gate was closed. */
		assert_true(i % 2 == 1 || !reply->body);
		kvb_reply_free(reply);
		overwrite_reply(&flights[i]);
	}
	gate_open();
	assert_true(gate_wait_inside(0));
	client = open_client(0, 0);
	assert_non_null(client);
	for (int i = 0; i < 100; i++)
		assert_answered(fly(T_GATE, 0));
	for (size_t i = 0; i < 1000; i++)
		assert_true(is_all(&flights[i].reply, sizeof(flights[i].reply), 0xee));
}

static void assert_answered_or_ended(struct flight *flight)
{
	if (flight->result == 0) {
		assert_answered(flight);
		return;
	}
	assert_int_equal(flight->completions, 1);
	assert_true(is_end(flight->result));
	assert_null(flight->reply.body);
}

static void a_drain_ends_all_that_fly(void **state)
{
	static const uint16_t types[] = {T_GATE};

	(void)state;
	submit_flights(300, 6000000, types, 1);
	assert_true(gate_wait_inside(4));
	kvb_server_stop_begin(embedded.server);
	assert_true(embedded_wait_draining(&embedded));
	/* New ones are not begun. */
	assert_failed(fly(T_SYNC, 0), -ESHUTDOWN, "the server is shutting down");
	gate_open();
	assert_int_equal(kvb_server_stop_wait(embedded.server), 0);
	reap_flights(300);
	for (size_t i = 0; i < 300; i++)
		assert_answered_or_ended(&flights[i]);
	assert_true(is_end(fly(T_SYNC, 0)->result));
}

static void restart_server(void)
{
	struct kvb_server_options config;

	kvb_server_stop_begin(embedded.server);
	assert_int_equal(kvb_server_stop_wait(embedded.server), 0);
	kvb_server_free(embedded.server);
	embedded_config(&config);
	config.dir = embedded.dir;
	config.log = (struct kvb_log){0};
	assert_int_equal(kvb_server_new(&config, &embedded.server), 0);
	assert_int_equal(register_all(embedded.server), 0);
	assert_int_equal(kvb_server_start(embedded.server), 0);
}

#define WINDOW 32u

/* A thread that keeps WINDOW calls in flight, whatever becomes of the server. */
struct flyer {
	pthread_t thread;
	int event_fd;
	uint32_t answered; /* atomic */
	uint64_t submitted, completed, ended, wrong;
	int error; /* the first that a restart does not explain */
};

static void land(struct flyer *flyer, struct flight *flight)
{
	if (flight->result == 0 && has_own_answer(flight))
		(void)kvb_fetch_add(&flyer->answered, 1u);
	else if (flight->result == 0)
		flyer->wrong++;
	else if (is_end(flight->result))
		flyer->ended++;
	else if (flyer->error == 0)
		flyer->error = flight->result;
	if (flight->result == -ENOTCONN)
		poll(NULL, 0, 1);
	kvb_reply_free(&flight->reply);
}

static void launch(struct flyer *flyer, struct flight *flight)
{
	int r = submit_flight(
		flight, 8000000 + flyer->submitted, (uint16_t)(T_SYNC + flyer->submitted % 3), 0);

	flyer->submitted++;
	if (r < 0 && flyer->error == 0)
		flyer->error = r;
}

/* Takes some, lets each be followed by another. */
static void land_some(struct flyer *flyer)
{
	struct kvb_completion completions[8];
	struct pollfd fd = {.fd = flyer->event_fd, .events = POLLIN};
	int n = poll(&fd, 1, WAIT_MS) == 1 ? kvb_reap(client, completions, 8) : -ETIMEDOUT;

	if (n < 0)
		flyer->error = flyer->error ? flyer->error : n;
	for (int i = 0; i < n; i++) {
		struct flight *flight = completions[i].user;
		flyer->completed++;
		flyer->wrong += !take_completion(&completions[i]) || flight->completions != 1;
		land(flyer, flight);
		if (!kvb_load_acquire(&stop_calling))
			launch(flyer, flight);
	}
}

static void *fly_until_told(void *arg)
{
	struct flyer *flyer = arg;

	for (size_t i = 0; i < WINDOW; i++)
		launch(flyer, &flights[i]);
	while (flyer->completed < flyer->submitted && flyer->error == 0)
		land_some(flyer);
	return NULL;
}

struct flown {
	const struct flyer *flyer;
	uint32_t answered;
};

static bool flew_on(const void *arg)
{
	const struct flown *since = arg;

	return kvb_load_acquire(&since->flyer->answered) >= since->answered + 100;
}

static void wait_for_answers(const struct flyer *flyer)
{
	struct flown since = {.flyer = flyer, .answered = kvb_load_acquire(&flyer->answered)};

	assert_true(embedded_wait(flew_on, &since));
}

static void flights_go_on_over_new_servers(void **state)
{
	static struct flyer flyer;
	struct kvb_completion completion;

	(void)state;
	gate_open();
	kvb_store_release(&stop_calling, 0u);
	flyer = (struct flyer){.event_fd = kvb_event_fd(client)};
	assert_int_equal(kvb_thread_start(&flyer.thread, "flyer", fly_until_told, &flyer), 0);
	for (int round = 0; round < 3; round++) {
		wait_for_answers(&flyer);
		restart_server();
	}
	wait_for_answers(&flyer);
	kvb_store_release(&stop_calling, 1u);
	pthread_join(flyer.thread, NULL);
	printf("%u answered, %" PRIu64 " ended\n", flyer.answered, flyer.ended);
	assert_int_equal(flyer.error, 0);
	assert_int_equal(flyer.wrong, 0);
	assert_int_equal(flyer.completed, flyer.submitted);
	assert_int_equal(flyer.answered + flyer.ended, flyer.submitted);
	assert_int_equal(kvb_event_fd(client), flyer.event_fd);
	assert_int_equal(kvb_reap(client, &completion, 1), 0);
	fly_and_wait(100);
}

/* -------------------------------------------------------------------------------- a connection is cut */

static bool ends_in_control_socket(const struct sockaddr_un *address, socklen_t size)
{
	size_t len = size > offsetof(struct sockaddr_un, sun_path) ? strlen(address->sun_path) : 0;
	size_t end_len = strlen(KVB_CONTROL_SOCKET);

	return len >= end_len && strcmp(address->sun_path + len - end_len, KVB_CONTROL_SOCKET) == 0;
}

/* One of the two ends of a client's connection; not the server's socket that listens. */
static bool is_control_connection(int fd)
{
	struct sockaddr_un address = {0};
	int listens = 1;
	socklen_t size = sizeof(listens);

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) < 0 || listens)
		return false;
	size = sizeof(address) - 1;
	if (getsockname(fd, (struct sockaddr *)&address, &size) == 0 &&
		ends_in_control_socket(&address, size))
		return true;
	memset(&address, 0, sizeof(address));
	size = sizeof(address) - 1;
	return getpeername(fd, (struct sockaddr *)&address, &size) == 0 &&
		ends_in_control_socket(&address, size);
}

/* Of all clients in this process. How many ends there were. */
static unsigned cut_connection(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	unsigned n = 0;

	while (dir && (entry = readdir(dir))) {
		int fd = atoi(entry->d_name);
		if (is_control_connection(fd))
			n += shutdown(fd, SHUT_RDWR) == 0;
	}
	if (dir)
		closedir(dir);
	return n;
}

#define CUTS          8u
#define HASTY_CALL_MS 300u

static void stop_and_check_callers(void)
{
	uint32_t timed_out = 0;

	stop_callers();
	for (uint32_t i = 0; i < CALLERS; i++) {
		assert_int_equal(callers[i].error, 0);
		assert_int_equal(callers[i].wrong, 0);
		timed_out += callers[i].timed_out;
	}
	printf("%u calls were lost with a connection\n", timed_out);
}

/* ZMQ connects again by itself; then the token must be presented again, once for all. */
static void calls_go_on_when_the_connection_is_cut(void **state)
{
	uint32_t tokens;

	(void)state;
	change_client(0, 2000);
	tokens = kvb_load_acquire(&tokens_sent);
	start_callers(CALLERS, HASTY_CALL_MS);
	wait_for_progress(CALLERS);
	assert_int_equal(kvb_load_acquire(&tokens_sent), tokens + 1);
	for (uint32_t round = 1; round <= CUTS; round++) {
		assert_in_range(cut_connection(), 1, 2);
		wait_for_progress(CALLERS);
		assert_int_equal(kvb_load_acquire(&tokens_sent), tokens + 1 + round);
	}
	stop_and_check_callers();
}

/* Until ZMQ has noticed, calls are lost; none fails otherwise. */
static void fly_until_answered(void)
{
	struct flight *flight;
	unsigned lost = 0;

	do {
		flight = fly(T_SYNC, HASTY_CALL_MS);
		assert_true(lost++ < WAIT_MS / HASTY_CALL_MS);
	} while (flight->result == -ETIMEDOUT);
	assert_answered(flight);
}

/* What was in flight is lost, or comes; what follows comes. */
static void flights_go_on_when_the_connection_is_cut(void **state)
{
	size_t lost = 0;

	(void)state;
	gate_open();
	change_client(0, 2000);
	assert_answered(fly(T_SYNC, 0));
	for (uint32_t round = 0; round < CUTS; round++) {
		static const uint16_t types[] = {T_SYNC, T_BLOCKING, T_GATE};
		submit_flights(500, 9000000 + 1000ull * round, types, 3);
		assert_in_range(cut_connection(), 1, 2);
		reap_flights(500);
		for (size_t i = 0; i < 500; i++) {
			lost += flights[i].result == -ETIMEDOUT;
			if (flights[i].result == -ETIMEDOUT)
				assert_failed(&flights[i], -ETIMEDOUT, "");
			else
				assert_answered(&flights[i]);
		}
		fly_until_answered();
		fly_and_wait(20);
	}
	printf("%zu calls were lost with a connection\n", lost);
}

/* The token gets lost with the second connection. */
static void a_lost_token_keeps_nobody_out(void **state)
{
	(void)state;
	change_client(0, 10 * WAIT_MS);
	start_callers(CALLERS, HASTY_CALL_MS);
	wait_for_progress(CALLERS);
	for (uint32_t round = 0; round < 3; round++) {
		kvb_store_release(&cut_at_tokens, 1u);
		assert_in_range(cut_connection(), 1, 2);
		wait_for_progress(CALLERS);
		assert_int_equal(kvb_load_acquire(&cut_at_tokens), 0);
	}
	stop_and_check_callers();
	/* Nor one that nobody waits for in a call. */
	kvb_store_release(&cut_at_tokens, 1u);
	kvb_store_release(&cut_before_calls, 1u);
	assert_answered(fly(T_SYNC, WAIT_MS));
	assert_int_equal(kvb_load_acquire(&cut_at_tokens), 0);
}

/* It is cut before the call is sent, and again when the new one has the token and the call is sent again. */
static void a_call_is_refused_by_two_connections(void **state)
{
	uint32_t tokens;

	(void)state;
	assert_answered(fly(T_SYNC, 0));
	tokens = kvb_load_acquire(&tokens_sent);
	kvb_store_release(&cut_before_calls, 2u);
	assert_answered(fly(T_SYNC, 0));
	assert_int_equal(kvb_load_acquire(&cut_before_calls), 0);
	assert_int_equal(kvb_load_acquire(&tokens_sent), tokens + 2);
}

static int stop_cutting(void **state)
{
	kvb_store_release(&cut_at_tokens, 0u);
	kvb_store_release(&cut_before_calls, 0u);
	return stop(state);
}

/* --------------------------------------------------------------------------------------- news and signals */

/* A thread that makes one call at the gate. */
struct guest {
	pthread_t thread;
	bool held;
	bool brings_news;
	uint32_t done; /* atomic */
	int result;
};

static void *call_at_gate(void *arg)
{
	struct guest *guest = arg;

	hold_me = guest->held;
	news_at_send = guest->brings_news;
	guest->result = kvb_call(client, T_GATE, "\x2a", 1, 0, NULL);
	kvb_store_release(&guest->done, 1u);
	return NULL;
}

static bool is_set(const void *word)
{
	return kvb_load_acquire((const uint32_t *)word) == 1;
}

/* The second one's call: the server has had the token, one call before, and both. */
static bool second_is_inside(const void *unused)
{
	(void)unused;
	return kvb_load_relaxed(&embedded.server->counters.control_requests) == 4 &&
		gate_inside() == 1;
}

/* Whoever sends may be who is told of an answer, which is another's. */
static void whoever_sends_takes_in_the_answer_of_the_sleeper(void **state)
{
	static struct guest first, second;

	(void)state;
	assert_answered(fly(T_SYNC, 0));
	kvb_store_release(&held, 0u);
	kvb_store_release(&let_go, 0u);
	first = (struct guest){.held = true};
	second = (struct guest){.brings_news = true};
	assert_int_equal(kvb_thread_start(&first.thread, "first", call_at_gate, &first), 0);
	assert_true(embedded_wait(is_set, &held));
	assert_true(gate_wait_inside(1));
	assert_int_equal(kvb_thread_start(&second.thread, "second", call_at_gate, &second), 0);
	/* It has sent, and has no answer of its own that would wake both. */
	assert_true(embedded_wait(second_is_inside, NULL));
	kvb_store_release(&let_go, 1u);
	assert_true(embedded_wait(is_set, &first.done));
	assert_false(is_set(&second.done));
	gate_open();
	pthread_join(first.thread, NULL);
	pthread_join(second.thread, NULL);
	assert_int_equal(first.result, 0);
	assert_int_equal(second.result, 0);
}

#define NEW_CLIENTS 10u

/* ZMQ's descriptor tells of the connection once, and perhaps to someone who does not need it. */
static void the_first_call_does_not_sleep_over_the_connection(void **state)
{
	(void)state;
	sleeps_in_vain = 0;
	for (uint32_t i = 0; i < NEW_CLIENTS; i++) {
		change_client(0, 0);
		poll_watched = send_blindly = true;
		assert_int_equal(kvb_ping_control(client), 0);
		poll_watched = send_blindly = false;
	}
	/* It is 10 without care, and 0 with it unless the machine is busy elsewhere. */
	assert_in_range(sleeps_in_vain, 0, 2);
}

static void a_signal_ends_no_call_early(void **state)
{
	uint32_t before = kvb_load_acquire(&contexts);

	(void)state;
	for (uint32_t i = 0; i < NEW_CLIENTS; i++) {
		change_client(0, 0);
		interrupt_zmq = true;
		assert_answered(fly(T_SYNC, 0));
		assert_int_equal(kvb_ping_control(client), 0);
		interrupt_zmq = false;
		kvb_store_release(&interrupt_ends, 2u);
		kvb_close(client);
		client = NULL;
		kvb_store_release(&interrupt_ends, 0u);
		/* ZMQ's threads and sockets are gone with the client. */
		assert_int_equal(kvb_load_acquire(&contexts), before);
	}
	assert_true(interruptions > 20);
}

static int stop_interrupting(void **state)
{
	poll_watched = send_blindly = interrupt_zmq = false;
	kvb_store_release(&let_go, 1u);
	kvb_store_release(&interrupt_ends, 0u);
	return stop(state);
}

#define LARGE_CALLS 60u
#define STRIKE_NS   100000

/* A thread that signals strike while it calls. */
struct struck {
	pthread_t thread;
	uint32_t done; /* atomic */
	uint32_t answered;
	int error;
};

static uint32_t strikes; /* atomic */

static void count_strike(int signal)
{
	(void)signal;
	(void)kvb_fetch_add(&strikes, 1u);
}

static int call_large(struct kvb_client *with, uint64_t number)
{
	uint8_t *body = malloc(LARGE_BYTES);
	struct kvb_reply reply;
	int r;

	make_large_body(body, number);
	r = kvb_call(with, number % 2 ? T_SYNC : T_BLOCKING, body, LARGE_BYTES, 0, &reply);
	if (r == 0 && !is_answer(&reply, body, LARGE_BYTES))
		r = -EBADMSG;
	kvb_reply_free(&reply);
	free(body);
	return r;
}

/* Now and then with a client that is new. */
static void *call_under_signals(void *arg)
{
	struct struck *struck = arg;
	struct kvb_client *own = NULL;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	for (uint64_t i = 0; i < LARGE_CALLS && struck->error == 0; i++) {
		if (i % 6 == 0) {
			kvb_close(own);
			own = open_client(0, 0);
		}
		struck->error = own ? call_large(own, i) : -ENOTCONN;
		struck->answered += struck->error == 0;
	}
	kvb_close(own);
	kvb_store_release(&struck->done, 1u);
	return NULL;
}

static void signals_that_strike_change_no_answer(void **state)
{
	const struct timespec pause = {.tv_nsec = STRIKE_NS};
	struct sigaction action = {.sa_handler = count_strike}, before;
	static struct struck struck;

	(void)state;
	struck = (struct struck){0};
	assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
	assert_int_equal(
		kvb_thread_start(&struck.thread, "struck", call_under_signals, &struck), 0);
	/* The pause only spreads the moments. */
	while (!kvb_load_acquire(&struck.done)) {
		pthread_kill(struck.thread, SIGUSR1);
		nanosleep(&pause, NULL);
	}
	pthread_join(struck.thread, NULL);
	sigaction(SIGUSR1, &before, NULL);
	printf("%u signals during %u calls\n", kvb_load_acquire(&strikes), struck.answered);
	assert_int_equal(struck.error, 0);
	assert_int_equal(struck.answered, LARGE_CALLS);
	assert_true(kvb_load_acquire(&strikes) > 50);
}

#define TEST(name)       cmocka_unit_test_setup_teardown(name, start, stop)
#define TEST_CUT(name)   cmocka_unit_test_setup_teardown(name, start, stop_cutting)
#define TEST_BREAK(name) cmocka_unit_test_setup_teardown(name, start, stop_interrupting)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(thousands_in_flight_come_back_to_their_own),
		TEST(thousands_come_back_when_the_gate_opens),
		TEST(flights_and_blocking_calls_go_side_by_side),
		TEST(errors_come_with_the_completion),
		TEST(what_cannot_be_sent_is_no_ticket),
		TEST(a_client_of_another_kind_may_not),
		TEST(the_servers_deadline_comes_with_its_text),
		TEST(a_late_answer_touches_nothing),
		TEST(without_a_deadline_of_its_own_it_has_the_clients),
		TEST(close_returns_with_calls_in_flight),
		TEST(a_drain_ends_all_that_fly),
		TEST(flights_go_on_over_new_servers),
		TEST_CUT(calls_go_on_when_the_connection_is_cut),
		TEST_CUT(flights_go_on_when_the_connection_is_cut),
		TEST_CUT(a_lost_token_keeps_nobody_out),
		TEST_CUT(a_call_is_refused_by_two_connections),
		TEST_BREAK(whoever_sends_takes_in_the_answer_of_the_sleeper),
		TEST_BREAK(the_first_call_does_not_sleep_over_the_connection),
		TEST_BREAK(a_signal_ends_no_call_early),
		TEST(signals_that_strike_change_no_answer),
	};

	return cmocka_run_group_tests_name("call_tickets", tests, NULL, NULL) ? 1 : 0;
}
