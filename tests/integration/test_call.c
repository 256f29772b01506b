/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_call.c - kvb_call(): libkvbell's calls of a program's own handlers, alone and from many
 * threads.
 *
 * The server, with handlers that answer, fail, or wait for a gate, in this process. Up to 16
 * threads call through one client; they and the handlers record, the main thread asserts.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "client/connection.h"
#include "kvbell/kvbell.h"
#include "kvbell/server.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/gate.h"

enum {
	T_SYNC = KVB_MSG_USER, /* echoes in the control thread */
	T_BLOCKING,            /* echoes in a pool */
	T_GATE,                /* echoes when the gate is open; as many threads as callers */
	T_NARROW,              /* the same, with one thread and one place */
	T_NEVER,               /* the same, and the server waits 100 ms only */
	T_FAIL,                /* SYNC: -ENOENT and a text */
	T_FAIL_BLOCKING,
	T_FAIL_LONG,   /* -ENOANO and more text than there is room for */
	T_FAIL_SILENT, /* -EXDEV, no text of its own */
	T_FAIL_ACCESS, /* -EACCES, which is also the server's word on a token */
	T_NOBODY = 65535,
};

#define CALLERS_MAX   16
#define LONG_MS       20000u /* nobody waits that long */
#define NARROW_PLACES 1

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
	switch (kvb_call_type(call)) {
	case T_FAIL_LONG:
		return kvb_call_fail(call, -ENOANO, "%0500d", 7);
	case T_FAIL_SILENT:
		return -EXDEV;
	case T_FAIL_ACCESS:
		return kvb_call_fail(call, -EACCES, "not for you");
	default:
		return kvb_call_fail(call, -ENOENT, "no model \"%s\"", kvb_call_client_name(call));
	}
}

static int register_all(struct kvb_server *server)
{
	uint32_t normal, gate, narrow, never;

	if (kvb_server_add_pool(server, KVB_POOL_NORMAL, 2, 64, &normal) < 0 ||
		kvb_server_add_pool(server, KVB_POOL_NORMAL, CALLERS_MAX, 64, &gate) < 0 ||
		kvb_server_add_pool(server, KVB_POOL_NORMAL, 1, NARROW_PLACES, &narrow) < 0 ||
		kvb_server_add_pool(server, KVB_POOL_NORMAL, 1, 8, &never) < 0)
		return -1;
	if (kvb_server_handle_sync(server, T_SYNC, echo, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_BLOCKING, normal, 0, echo, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_GATE, gate, 0, echo_at_gate, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_NARROW, narrow, 0, echo_at_gate, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_NEVER, never, 100, echo_at_gate, NULL) < 0 ||
		kvb_server_handle_sync(server, T_FAIL, fail_on_order, NULL) < 0 ||
		kvb_server_handle_blocking(
			server, T_FAIL_BLOCKING, normal, 0, fail_on_order, NULL) < 0 ||
		kvb_server_handle_sync(server, T_FAIL_LONG, fail_on_order, NULL) < 0 ||
		kvb_server_handle_sync(server, T_FAIL_SILENT, fail_on_order, NULL) < 0 ||
		kvb_server_handle_sync(server, T_FAIL_ACCESS, fail_on_order, NULL) < 0)
		return -1;
	return 0;
}

/* -------------------------------------------------------------------------------------------- bodies */

#define EXTRA_MAX 2000
#define SMALL_MAX (13 + EXTRA_MAX)

/* [number, `extra` bytes]. Returns its size. */
static size_t make_body(uint8_t *body, uint64_t number, size_t extra)
{
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

/* Bytes to fill a body of `size`. */
static uint8_t *new_large_body(uint64_t number, size_t size)
{
	uint8_t *body = malloc(size);

	for (size_t i = 0; i < size; i++)
		body[i] = (uint8_t)(number * 7 + i / 3);
	/* bin 32 */
	body[0] = 0xc6;
	for (unsigned i = 0; i < 4; i++)
		body[1 + i] = (uint8_t)((size - 5) >> 8 * (3 - i));
	return body;
}

/* What it is not, when it is not the call's own answer. */
static int check_echo(const struct kvb_reply *reply, const void *body, size_t size)
{
	return reply->body && reply->size == size && memcmp(reply->body, body, size) == 0 &&
			reply->text[0] == '\0'
		? 0
		: -EBADMSG;
}

/* ------------------------------------------------------------------------------------------- callers */

/* A thread that calls. What it records is read after its end, but for `done`. */
struct caller {
	pthread_t thread;
	bool running; /* the main thread's */
	uint32_t number;
	uint16_t type;
	uint32_t calls; /* how many, one after the other */
	uint32_t timeout_ms;
	uint32_t done; /* atomic: calls that came back */

	uint32_t answered; /* with their own bytes */
	uint32_t wrong;    /* with others, or a success without any */
	uint32_t failed;
	int error; /* the first */
	char text[sizeof(((struct kvb_reply *)0)->text)];
	int other_error;        /* of calls that are not kvb_call() */
	uint32_t other_control; /* how many of these went through the control socket */
};

/* Not on a stack, which a failed assertion leaves while they run. */
static struct caller callers[CALLERS_MAX];

static void record(struct caller *caller, int r, int echo_error, const char *text)
{
	if (r == 0 && echo_error == 0) {
		caller->answered++;
	} else if (r == 0) {
		caller->wrong++;
	} else {
		if (caller->failed == 0) {
			caller->error = r;
			snprintf(caller->text, sizeof(caller->text), "%s", text);
		}
		caller->failed++;
	}
	(void)kvb_fetch_add(&caller->done, 1u);
}

static void call_with(struct caller *caller, const void *body, size_t size)
{
	struct kvb_reply reply;
	int r;

	memset(&reply, 0xee, sizeof(reply));
	r = kvb_call(client, caller->type, body, size, caller->timeout_ms, &reply);
	record(caller, r, r == 0 ? check_echo(&reply, body, size) : 0, reply.text);
	kvb_reply_free(&reply);
}

static void call_numbered(struct caller *caller, uint32_t i)
{
	uint8_t body[SMALL_MAX];
	uint64_t number = (uint64_t)caller->number << 32 | i;

	call_with(caller, body, make_body(body, number, number * 37 % EXTRA_MAX));
}

static void *call_many(void *arg)
{
	struct caller *caller = arg;

	for (uint32_t i = 0; i < caller->calls; i++)
		call_numbered(caller, i);
	return NULL;
}

static void start_caller(
	uint32_t index, void *(*run)(void *arg), uint16_t type, uint32_t calls, uint32_t timeout_ms)
{
	struct caller *caller = &callers[index];

	*caller = (struct caller){
		.number = index + 1, .type = type, .calls = calls, .timeout_ms = timeout_ms};
	assert_int_equal(kvb_thread_start(&caller->thread, "caller", run, caller), 0);
	caller->running = true;
}

static void join_callers(void)
{
	for (size_t i = 0; i < CALLERS_MAX; i++) {
		if (callers[i].running)
			pthread_join(callers[i].thread, NULL);
		callers[i].running = false;
	}
}

/* ---------------------------------------------------------------------------------- server and client */

static struct kvb_client *open_client(uint32_t timeout_ms)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *opened = NULL;

	options.dir = embedded.dir;
	options.name = "caller";
	options.timeout_ms = timeout_ms;
	return kvb_open(&options, &opened) == 0 ? opened : NULL;
}

static int start_with(uint32_t drain_timeout_ms)
{
	struct kvb_server_options config;

	gate_close();
	embedded_config(&config);
	config.drain_timeout_ms = drain_timeout_ms;
	if (embedded_make(&embedded, &config) < 0 || register_all(embedded.server) < 0 ||
		kvb_server_start(embedded.server) < 0)
		return -1;
	client = open_client(0);
	return client ? 0 : -1;
}

static int start(void **state)
{
	(void)state;
	return start_with(10000);
}

static int start_impatient(void **state)
{
	(void)state;
	return start_with(300);
}

static int stop(void **state)
{
	(void)state;
	gate_open();
	join_callers();
	kvb_close(client);
	client = NULL;
	return embedded_stop(&embedded);
}

/* ------------------------------------------------------------------------------------------ one thread */

/* Calls in the main thread and checks that the bytes come back. */
static void assert_echo(uint16_t type, const void *body, size_t size)
{
	struct kvb_reply reply;

	memset(&reply, 0xee, sizeof(reply));
	assert_int_equal(kvb_call(client, type, body, size, 0, &reply), 0);
	assert_int_equal(reply.size, size);
	assert_memory_equal(reply.body, body, size);
	assert_string_equal(reply.text, "");
	kvb_reply_free(&reply);
}

static void assert_error_of(struct kvb_client *of, uint16_t type, const void *body, size_t size,
	uint32_t timeout_ms, int error, const char *text)
{
	struct kvb_reply reply;

	memset(&reply, 0xee, sizeof(reply));
	assert_int_equal(kvb_call(of, type, body, size, timeout_ms, &reply), error);
	assert_null(reply.body);
	assert_int_equal(reply.size, 0);
	assert_string_equal(reply.text, text);
	/* Nothing to free, and allowed. */
	kvb_reply_free(&reply);
	/* The same without anybody who wants to know. */
	assert_int_equal(kvb_call(of, type, body, size, timeout_ms, NULL), error);
}

static void assert_error(uint16_t type, int error, const char *text)
{
	assert_error_of(client, type, "\x2a", 1, 0, error, text);
}

static void answers_come_back_byte_for_byte(void **state)
{
	static const uint16_t types[] = {T_SYNC, T_BLOCKING, T_GATE};
	static const struct {
		const char *bytes;
		size_t size;
	} bodies[] = {{"\xc0", 1}, {"\x80", 1}, {"\x00", 1}, {"\xff", 1}, {"\xc4\x00", 2},
		{"\x92\xa3"
		 "abc\xcb\x40\x09\x21\xfb\x54\x44\x2d\x18",
			14},
		{"\xdd\x00\x00\x00\x01\xdf\x00\x00\x00\x00", 10}};
	uint8_t body[SMALL_MAX];

	(void)state;
	gate_open();
	for (size_t t = 0; t < KVB_ARRAY_SIZE(types); t++) {
		for (size_t i = 0; i < KVB_ARRAY_SIZE(bodies); i++)
			assert_echo(types[t], bodies[i].bytes, bodies[i].size);
		for (uint64_t i = 0; i < 100; i++)
			assert_echo(types[t], body, make_body(body, i, i * 20));
	}
}

/* No limit of ours to what a handler's bodies nest; that is msgpack-c's. */
static void deep_bodies_go_there_and_back(void **state)
{
	uint8_t body[100000];

	(void)state;
	memset(body, 0x91, sizeof(body));
	body[sizeof(body) - 1] = 0xc0;
	assert_echo(T_SYNC, body, sizeof(body));
	assert_echo(T_BLOCKING, body, sizeof(body));
}

static void a_failing_handler_gives_its_error_and_text(void **state)
{
	char zeroes[192] = {0};

	(void)state;
	memset(zeroes, '0', sizeof(zeroes) - 1);
	for (int i = 0; i < 3; i++) {
		assert_error(T_FAIL, -ENOENT, "no model \"caller\"");
		assert_error(T_FAIL_BLOCKING, -ENOENT, "no model \"caller\"");
		assert_error(T_FAIL_SILENT, -EXDEV, "Invalid cross-device link");
		assert_error(T_FAIL_LONG, -ENOANO, zeroes);
		assert_error(T_FAIL_ACCESS, -EACCES, "not for you");
		assert_echo(T_SYNC, "\x2a", 1);
	}
}

static void a_type_without_handler_has_its_error(void **state)
{
	(void)state;
	assert_error(T_NOBODY, -EOPNOTSUPP, "there is no handler for this message type");
	assert_error(T_FAIL_ACCESS + 1, -EOPNOTSUPP, "there is no handler for this message type");
}

/* They do not reach the server. */
static void what_cannot_be_sent_is_refused_here(void **state)
{
	static const uint16_t types[] = {
		0, 1, KVB_MSG_ATTACH, KVB_MSG_PING, KVB_MSG_LIST, KVB_MSG_USER - 1};
	static const struct {
		const char *bytes;
		size_t size;
	} bodies[] = {{NULL, 0}, {"", 0}, {"\xc1", 1}, {"\x01\x02", 2}, {"\x91", 1}, {"\xa5wow", 4},
		{"\x80\x80", 2}, {"\xdd\xff\xff\xff\xff", 5}, {"\xdf\xff\xff\xff\xff", 5},
		{"\xc6\xff\xff\xff\xff", 5}, {"\xcf\x01\x02\x03", 4}};
	uint64_t requests;

	(void)state;
	assert_echo(T_SYNC, "\x2a", 1);
	requests = kvb_load_relaxed(&embedded.server->counters.control_requests);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(types); i++)
		assert_error(types[i], -EINVAL, "");
	for (size_t i = 0; i < KVB_ARRAY_SIZE(bodies); i++) {
		assert_error_of(client, T_SYNC, bodies[i].bytes, bodies[i].size, 0, -EINVAL, "");
		assert_error_of(client, T_NOBODY, bodies[i].bytes, bodies[i].size, 0, -EINVAL, "");
	}
	assert_int_equal(kvb_load_relaxed(&embedded.server->counters.control_requests), requests);
	assert_echo(T_SYNC, "\x2a", 1);
}

static void the_longest_body_goes_and_one_byte_more_does_not(void **state)
{
	static const uint16_t types[] = {T_SYNC, T_BLOCKING};

	(void)state;
	assert_int_equal(KVB_MSG_BODY_MAX, 262144);
	for (size_t t = 0; t < KVB_ARRAY_SIZE(types); t++) {
		for (size_t size = 262144 - 1; size <= 262144; size++) {
			uint8_t *body = new_large_body(size, size);
			assert_echo(types[t], body, size);
			free(body);
		}
		for (size_t size = 262144 + 1; size < 600000; size *= 2) {
			uint8_t *body = new_large_body(size, size);
			assert_error_of(client, types[t], body, size, 0, -EMSGSIZE, "");
			free(body);
		}
	}
	assert_echo(T_SYNC, "\x2a", 1);
}

static void a_reply_can_be_freed_again_or_not_wanted(void **state)
{
	struct kvb_reply reply = {0};

	(void)state;
	kvb_reply_free(&reply);
	assert_int_equal(kvb_call(client, T_SYNC, "\x2a", 1, 0, &reply), 0);
	assert_int_equal(reply.size, 1);
	for (int i = 0; i < 3; i++) {
		kvb_reply_free(&reply);
		assert_null(reply.body);
		assert_int_equal(reply.size, 0);
	}
	/* It is dropped, and the sanitizer sees that it is freed. */
	for (int i = 0; i < 10; i++)
		assert_int_equal(kvb_call(client, T_BLOCKING, "\x2a", 1, 0, NULL), 0);
}

/* ------------------------------------------------------------------------------------------- deadlines */

static void the_servers_deadline_comes_with_its_text(void **state)
{
	(void)state;
	assert_int_equal(kvb_call(client, T_NEVER, "\x2a", 1, LONG_MS, NULL), -ETIMEDOUT);
	/* Its thread is taken. */
	assert_true(gate_wait_inside(1));
	assert_error_of(
		client, T_NEVER, "\x2a", 1, LONG_MS, -ETIMEDOUT, "no thread was free in time");
	gate_open();
	assert_true(gate_wait_inside(0));
	assert_echo(T_NEVER, "\x2a", 1);
}

static void a_handler_that_takes_too_long_is_named(void **state)
{
	struct kvb_reply reply;

	(void)state;
	assert_int_equal(kvb_call(client, T_NEVER, "\x2a", 1, LONG_MS, &reply), -ETIMEDOUT);
	assert_string_equal(reply.text, "the handler took too long");
	assert_null(reply.body);
	gate_open();
	assert_true(gate_wait_inside(0));
	assert_echo(T_NEVER, "\x2a", 1);
}

/* Of the same type, so that only their numbers tell them apart. */
static void late_answers_are_nobodys(void **state)
{
	struct kvb_client *hasty = open_client(50);
	uint8_t body[SMALL_MAX];

	(void)state;
	assert_non_null(hasty);
	/* So that what times out below has been sent. */
	assert_echo(T_SYNC, "\x2a", 1);
	for (uint32_t i = 0; i < 8; i++)
		start_caller(i, call_many, T_GATE, 1, 50);
	join_callers();
	assert_true(gate_wait_inside(8));
	for (uint32_t i = 0; i < 8; i++) {
		assert_int_equal(callers[i].error, -ETIMEDOUT);
		assert_int_equal(callers[i].failed, 1);
		assert_string_equal(callers[i].text, "");
	}
	/* Without one of its own, the call has the client's. */
	assert_error_of(hasty, T_GATE, "\x2a", 1, 0, -ETIMEDOUT, "");
	gate_open();
	for (uint64_t i = 0; i < 1000; i++)
		assert_echo(T_GATE, body, make_body(body, 0xab0000 + i, i));
	assert_true(gate_wait_inside(0));
	/* It may have sent its token late, but it is not stuck. */
	assert_int_equal(kvb_call(hasty, T_SYNC, "\x2a", 1, LONG_MS, NULL), 0);
	kvb_close(hasty);
}

/* One thread sleeps for all; when it gives up, another must. */
static void the_one_who_gives_up_leaves_nobody_asleep(void **state)
{
	(void)state;
	assert_echo(T_SYNC, "\x2a", 1);
	for (uint32_t round = 0; round < 5; round++) {
		gate_close();
		start_caller(0, call_many, T_GATE, 1, 200);
		assert_true(gate_wait_inside(1));
		for (uint32_t i = 1; i < 4; i++)
			start_caller(i, call_many, T_GATE, 1, LONG_MS);
		assert_true(gate_wait_inside(4));
		pthread_join(callers[0].thread, NULL);
		callers[0].running = false;
		gate_open();
		join_callers();
		assert_int_equal(callers[0].error, -ETIMEDOUT);
		for (uint32_t i = 1; i < 4; i++)
			assert_int_equal(callers[i].answered, 1);
		assert_true(gate_wait_inside(0));
	}
}

static bool two_in_flight(const void *unused)
{
	(void)unused;
	return kvb_load_relaxed(&embedded.server->gauges.calls_in_flight) == 2;
}

static void a_full_queue_is_an_error_at_once(void **state)
{
	(void)state;
	start_caller(0, call_many, T_NARROW, 1, LONG_MS);
	assert_true(gate_wait_inside(1));
	start_caller(1, call_many, T_NARROW, 1, LONG_MS);
	assert_true(embedded_wait(two_in_flight, NULL));
	assert_error(T_NARROW, -EAGAIN, "all threads are busy and the queue is full");
	gate_open();
	join_callers();
	assert_int_equal(callers[0].answered, 1);
	assert_int_equal(callers[1].answered, 1);
	assert_echo(T_NARROW, "\x2a", 1);
}

/* -------------------------------------------------------------------------------------------- threads */

#define CALLS_EACH 300

/* An own key, and one that is always there. */
struct listed {
	char key[16];
	uint32_t own;
	uint32_t stable;
};

static int look_at_entry(void *user, const struct kvb_entry *entry)
{
	struct listed *listed = user;

	listed->own += entry->key_len == strlen(listed->key) &&
		memcmp(entry->key, listed->key, entry->key_len) == 0;
	listed->stable += entry->key_len == 6 && memcmp(entry->key, "stable", 6) == 0;
	return 0;
}

static int put_and_list(const struct caller *caller, uint32_t i)
{
	static const uint8_t data[CALLS_EACH];
	struct listed listed = {0};
	int r;

	snprintf(listed.key, sizeof(listed.key), "own%u", caller->number);
	r = kvb_put(client, listed.key, strlen(listed.key), data, i);
	if (r == 0)
		r = kvb_list(client, look_at_entry, &listed);
	return r < 0 ? r : listed.own == 1 && listed.stable == 1 ? 0 : -EBADMSG;
}

static void call_large(struct caller *caller, uint32_t i)
{
	uint8_t *body = new_large_body(caller->number * 1000 + i, KVB_MSG_BODY_MAX);

	call_with(caller, body, KVB_MSG_BODY_MAX);
	free(body);
}

static void *call_and_do_other_things(void *arg)
{
	struct caller *caller = arg;

	for (uint32_t i = 0; i < caller->calls; i++) {
		int r = 0;
		if (i % 100 == 50)
			call_large(caller, i);
		else
			call_numbered(caller, i);
		if (i % 10 == caller->number % 10) {
			r = kvb_ping_control(client);
			caller->other_control++;
		}
		if (i % 30 == caller->number && r == 0) {
			r = put_and_list(caller, i);
			caller->other_control++;
		}
		if (i % 50 == caller->number && r == 0)
			r = kvb_ping(client);
		if (caller->other_error == 0)
			caller->other_error = r;
	}
	return NULL;
}

/* The client is new, so they also race to present its token. */
static void each_of_many_threads_gets_its_own_answers(void **state)
{
	static const uint16_t types[] = {T_SYNC, T_BLOCKING, T_GATE, T_BLOCKING};
	uint64_t requests = 0;

	(void)state;
	gate_open();
	assert_int_equal(kvb_put(client, "stable", 6, "x", 1), 0);
	for (uint32_t i = 0; i < CALLERS_MAX; i++)
		start_caller(i, call_and_do_other_things, types[i % KVB_ARRAY_SIZE(types)],
			CALLS_EACH, LONG_MS);
	join_callers();
	for (uint32_t i = 0; i < CALLERS_MAX; i++) {
		assert_int_equal(callers[i].error, 0);
		assert_int_equal(callers[i].wrong, 0);
		assert_int_equal(callers[i].other_error, 0);
		assert_int_equal(callers[i].answered, CALLS_EACH);
		requests += CALLS_EACH + callers[i].other_control;
	}
	/* And the token, once for all. */
	assert_int_equal(
		kvb_load_relaxed(&embedded.server->counters.control_requests), requests + 1);
	assert_int_equal(kvb_load_relaxed(&embedded.server->counters.control_dropped), 0);
}

#define BESIDE_CALLERS 5
#define BESIDE_CALLS   100

static bool all_beside_done(const void *unused)
{
	uint32_t done = 0;

	(void)unused;
	for (uint32_t i = 1; i <= BESIDE_CALLERS; i++)
		done += kvb_load_acquire(&callers[i].done);
	return done == BESIDE_CALLERS * BESIDE_CALLS;
}

static void calls_do_not_wait_for_one_another(void **state)
{
	(void)state;
	start_caller(0, call_many, T_GATE, 1, LONG_MS + 20000);
	assert_true(gate_wait_inside(1));
	for (uint32_t i = 1; i <= BESIDE_CALLERS; i++)
		start_caller(i, call_many, i % 2 ? T_SYNC : T_BLOCKING, BESIDE_CALLS, LONG_MS);
	assert_true(embedded_wait(all_beside_done, NULL));
	assert_int_equal(kvb_load_acquire(&callers[0].done), 0);
	assert_int_equal(gate_inside(), 1);
	gate_open();
	join_callers();
	assert_int_equal(callers[0].answered, 1);
	for (uint32_t i = 1; i <= BESIDE_CALLERS; i++)
		assert_int_equal(callers[i].answered, BESIDE_CALLS);
}

/* The linker puts this in the place of poll(): a thread may be held at the moment before it sleeps. */
int __real_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);

static _Thread_local bool hold_me;
static uint32_t held;   /* atomic: it is there */
static uint32_t let_go; /* atomic */

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	if (!hold_me)
		return __real_poll(fds, n, timeout_ms);
	hold_me = false;
	kvb_store_release(&held, 1u);
	while (!kvb_load_acquire(&let_go))
		(void)__real_poll(NULL, 0, 1);
	/* Without the time after which it would look by itself. */
	return __real_poll(fds, n, -1);
}

static void *call_held(void *arg)
{
	hold_me = true;
	return call_many(arg);
}

static bool is_held(const void *unused)
{
	(void)unused;
	return kvb_load_acquire(&held) == 1;
}

static bool first_is_done(const void *unused)
{
	(void)unused;
	return kvb_load_acquire(&callers[0].done) == 1;
}

static bool answer_has_arrived(const void *socket_fd)
{
	struct pollfd fd = {.fd = *(const int *)socket_fd, .events = POLLIN};

	return kvb_load_relaxed(&embedded.server->gauges.calls_in_flight) == 0 &&
		poll(&fd, 1, 0) == 1;
}

/* ZMQ's descriptor tells of an arrival once, and it is the other thread that was told. */
static void an_answer_that_another_thread_takes_wakes_its_owner(void **state)
{
	(void)state;
	assert_echo(T_SYNC, "\x2a", 1);
	kvb_store_release(&held, 0u);
	kvb_store_release(&let_go, 0u);
	start_caller(0, call_held, T_GATE, 1, LONG_MS);
	assert_true(embedded_wait(is_held, NULL));
	assert_true(gate_wait_inside(1));
	gate_open();
	assert_true(gate_wait_inside(0));
	assert_true(embedded_wait(answer_has_arrived, &client->conn->dealer.socket_fd));
	/* Takes it; and has no answer of its own, that would wake both. */
	gate_close();
	assert_int_equal(kvb_call(client, T_GATE, "\x2a", 1, 10, NULL), -ETIMEDOUT);
	kvb_store_release(&let_go, 1u);
	assert_true(embedded_wait(first_is_done, NULL));
	join_callers();
	assert_int_equal(callers[0].answered, 1);
}

static int stop_held(void **state)
{
	kvb_store_release(&let_go, 1u);
	return stop(state);
}

/* ---------------------------------------------------------------------------------------------- the end */

static bool is_end(int error)
{
	return error == -ESHUTDOWN || error == -ECONNRESET || error == -ENOTCONN;
}

static void a_drain_ends_every_call_inside(void **state)
{
	uint32_t answered = 0;

	(void)state;
	for (uint32_t i = 0; i < 8; i++)
		start_caller(i, call_many, T_GATE, 1, LONG_MS);
	assert_true(gate_wait_inside(8));
	kvb_server_stop_begin(embedded.server);
	assert_true(embedded_wait_draining(&embedded));
	/* New ones are not begun. */
	assert_error(T_SYNC, -ESHUTDOWN, "the server is shutting down");
	assert_error(T_BLOCKING, -ESHUTDOWN, "the server is shutting down");
	assert_int_equal(gate_inside(), 8);
	gate_open();
	assert_int_equal(kvb_server_stop_wait(embedded.server), 0);
	join_callers();
	for (uint32_t i = 0; i < 8; i++) {
		assert_int_equal(callers[i].wrong, 0);
		assert_true(callers[i].answered == 1 || is_end(callers[i].error));
		answered += callers[i].answered;
	}
	printf("%u of 8 calls were answered before the end\n", answered);
	assert_true(is_end(kvb_call(client, T_SYNC, "\x2a", 1, LONG_MS, NULL)));
}

/* What runs is waited for, what waits is refused at the drain's deadline. */
static void a_drains_deadline_refuses_what_waits(void **state)
{
	int r;

	(void)state;
	start_caller(0, call_many, T_NARROW, 1, LONG_MS);
	assert_true(gate_wait_inside(1));
	start_caller(1, call_many, T_NARROW, 1, LONG_MS);
	assert_true(embedded_wait(two_in_flight, NULL));
	kvb_server_stop_begin(embedded.server);
	assert_int_equal(kvb_server_stop_wait(embedded.server), -ETIMEDOUT);
	pthread_join(callers[1].thread, NULL);
	callers[1].running = false;
	assert_int_equal(callers[1].error, -ESHUTDOWN);
	assert_string_equal(callers[1].text, "the server is shutting down");
	gate_open();
	while ((r = kvb_server_stop_wait(embedded.server)) == -ETIMEDOUT)
		;
	assert_int_equal(r, 0);
	join_callers();
	assert_int_equal(callers[0].wrong, 0);
	assert_true(callers[0].answered == 1 || is_end(callers[0].error));
}

static void close_ends_the_calls_inside(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		start_caller(i, call_many, T_GATE, 1, LONG_MS);
	assert_true(gate_wait_inside(4));
	kvb_close(client);
	client = NULL;
	/* The gate is closed, so it is no answer that brought them back. */
	join_callers();
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(callers[i].failed, 1);
		assert_int_equal(callers[i].error, -ECONNRESET);
		assert_string_equal(callers[i].text, "");
	}
	client = open_client(0);
	assert_non_null(client);
	assert_echo(T_SYNC, "\x2a", 1);
	gate_open();
	assert_true(gate_wait_inside(0));
	assert_echo(T_GATE, "\x2a", 1);
}

static uint32_t stop_calling; /* atomic */

/* Goes on over errors, as a program would; keeps the first that a restart does not explain. */
static void *call_until_told(void *arg)
{
	struct caller *caller = arg;
	uint8_t body[SMALL_MAX];
	int strange = 0;

	for (uint64_t i = 0; !kvb_load_acquire(&stop_calling); i++) {
		size_t size = make_body(body, (uint64_t)caller->number << 32 | i, i % 100);
		struct kvb_reply reply;
		int r = kvb_call(client, caller->type, body, size, caller->timeout_ms, &reply);
		record(caller, r, r == 0 ? check_echo(&reply, body, size) : 0, reply.text);
		kvb_reply_free(&reply);
		if (r < 0 && !is_end(r) && strange == 0)
			strange = r;
		if (r == -ENOTCONN)
			poll(NULL, 0, 1);
	}
	caller->other_error = strange;
	return NULL;
}

static bool can_call(const void *unused)
{
	(void)unused;
	return kvb_call(client, T_BLOCKING, "\x2a", 1, 0, NULL) == 0;
}

struct progress {
	uint32_t done[4];
};

static bool all_went_on(const void *since)
{
	for (uint32_t i = 0; i < 4; i++)
		if (kvb_load_acquire(&callers[i].done) <
			((const struct progress *)since)->done[i] + 50)
			return false;
	return true;
}

static void wait_for_progress(void)
{
	struct progress since;

	for (uint32_t i = 0; i < 4; i++)
		since.done[i] = kvb_load_acquire(&callers[i].done);
	assert_true(embedded_wait(all_went_on, &since));
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

static void calls_go_on_with_a_new_server(void **state)
{
	struct kvb_info info;

	(void)state;
	gate_open();
	assert_echo(T_BLOCKING, "\x2a", 1);
	restart_server();
	assert_true(embedded_wait(can_call, NULL));
	assert_echo(T_SYNC, "\x2a", 1);
	assert_echo(T_GATE, "\x2a", 1);
	assert_error(T_FAIL, -ENOENT, "no model \"caller\"");
	assert_int_equal(kvb_list(client, look_at_entry, &(struct listed){0}), 0);
	assert_int_equal(kvb_get_info(client, &info), 0);
	assert_int_equal(info.attaches, 2);
}

static void threads_call_on_over_new_servers(void **state)
{
	(void)state;
	gate_open();
	kvb_store_release(&stop_calling, 0u);
	for (uint32_t i = 0; i < 4; i++)
		start_caller(i, call_until_told, (uint16_t)(T_SYNC + i % 3), 0, LONG_MS);
	for (int round = 0; round < 3; round++) {
		wait_for_progress();
		restart_server();
		assert_true(embedded_wait(can_call, NULL));
	}
	wait_for_progress();
	kvb_store_release(&stop_calling, 1u);
	join_callers();
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(callers[i].wrong, 0);
		assert_int_equal(callers[i].other_error, 0);
		assert_true(callers[i].answered >= 50);
	}
}

static int stop_threads(void **state)
{
	kvb_store_release(&stop_calling, 1u);
	return stop(state);
}

/* Runs in the child; a bit for each thing that is wrong. */
static int call_in_child(void)
{
	struct kvb_reply reply;
	int faults;

	memset(&reply, 0xee, sizeof(reply));
	faults = kvb_call(client, T_SYNC, "\x2a", 1, LONG_MS, &reply) != -ECHILD;
	faults |= 2 * (reply.body || reply.size != 0 || reply.text[0] != '\0');
	faults |= 4 * (kvb_call(client, T_GATE, "\x2a", 1, 0, NULL) != -ECHILD);
	faults |= 8 * (kvb_list(client, look_at_entry, &(struct listed){0}) != -ECHILD);
	faults |= 16 * (kvb_ping_control(client) != -ECHILD);
	kvb_reply_free(&reply);
	kvb_close(client);
	return faults;
}

static void a_forked_child_gets_an_error_and_does_no_harm(void **state)
{
	pid_t pid;
	int status;

	(void)state;
	start_caller(0, call_many, T_GATE, 1, LONG_MS);
	assert_true(gate_wait_inside(1));
	pid = fork();
	if (pid == 0)
		_exit(call_in_child());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_echo(T_SYNC, "\x2a", 1);
	gate_open();
	join_callers();
	assert_int_equal(callers[0].answered, 1);
	assert_echo(T_GATE, "\x2a", 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(answers_come_back_byte_for_byte),
		TEST(deep_bodies_go_there_and_back),
		TEST(a_failing_handler_gives_its_error_and_text),
		TEST(a_type_without_handler_has_its_error),
		TEST(what_cannot_be_sent_is_refused_here),
		TEST(the_longest_body_goes_and_one_byte_more_does_not),
		TEST(a_reply_can_be_freed_again_or_not_wanted),
		TEST(the_servers_deadline_comes_with_its_text),
		TEST(a_handler_that_takes_too_long_is_named),
		TEST(late_answers_are_nobodys),
		TEST(the_one_who_gives_up_leaves_nobody_asleep),
		TEST(a_full_queue_is_an_error_at_once),
		TEST(each_of_many_threads_gets_its_own_answers),
		TEST(calls_do_not_wait_for_one_another),
		cmocka_unit_test_setup_teardown(
			an_answer_that_another_thread_takes_wakes_its_owner, start, stop_held),
		TEST(a_drain_ends_every_call_inside),
		cmocka_unit_test_setup_teardown(
			a_drains_deadline_refuses_what_waits, start_impatient, stop),
		TEST(close_ends_the_calls_inside),
		TEST(calls_go_on_with_a_new_server),
		cmocka_unit_test_setup_teardown(
			threads_call_on_over_new_servers, start, stop_threads),
		TEST(a_forked_child_gets_an_error_and_does_no_harm),
	};

	return cmocka_run_group_tests_name("call", tests, NULL, NULL) ? 1 : 0;
}
