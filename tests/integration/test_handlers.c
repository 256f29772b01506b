/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_handlers.c - a program that embeds the server and registers handlers of all kinds.
 *
 * The server, with handlers that misbehave on order, in this process; bare clients in the test's
 * thread.
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
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "kvbell/kvbell.h"
#include "kvbell/server.h"
#include "shm/atomic.h"
#include "shm/index.h"
#include "shm/segment.h"
#include "shm/util.h"
#include "tests/dealer.h"
#include "tests/embedded.h"
#include "tests/gate.h"
#include "tests/raw.h"

enum {
	T_SYNC = KVB_MSG_USER,
	T_BLOCKING,
	T_AFFINITY,
	T_GATE,  /* a pool of 4 threads and 8 places: waits until the gate opens */
	T_WIDE,  /* a pool of 8 threads and many places: echoes */
	T_NEVER, /* answers when the gate opens, after its timeout */
	T_ACT,   /* SYNC: does what its body says */
	T_ACT_BLOCKING,
	T_NAP,    /* sleeps for 2 s */
	T_CLIENT, /* waits for the gate, then puts an object into this very server */
	T_NOBODY = 65535,
};
/* What T_ACT does: its body is one of these as a MessagePack integer. */
enum act {
	CUT,
	FAIL,
	FAIL_WITHOUT_TEXT,
	TWICE,
	TWICE_AND_FAIL,
	NOTHING,
	POSITIVE,
	HUGE_ERRNO,
	GARBAGE,
	LONG,
	LONGEST
};

#define GATE_THREADS     4
#define GATE_PLACES      8
#define WIDE_THREADS     8
#define AFFINITY_THREADS 3
#define FLOOD            5000

static struct embedded embedded;
static struct raw_client raw;
static struct dealer dealer;
static struct dealer_reply reply;

static uint32_t seen_abandoned; /* atomic */

static void wait_for_gate(const struct kvb_call *call)
{
	gate_pass();
	if (kvb_call_abandoned(call))
		(void)kvb_fetch_add(&seen_abandoned, 1u);
}

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
	wait_for_gate(call);
	return echo(call, user);
}

static struct kvb_client *own_client; /* of T_CLIENT */

/* Replies with the negated result of the put, a number below 128. */
static int put_here(struct kvb_call *call, void *user)
{
	uint8_t body;

	(void)user;
	wait_for_gate(call);
	body = (uint8_t)-kvb_put(own_client, "own", 3, "payload", 7);
	return kvb_call_reply(call, &body, 1);
}

static int nap(struct kvb_call *call, void *user)
{
	poll(NULL, 0, 2000);
	return echo(call, user);
}

/* Replies with the thread's id and the count of calls that this thread has served. */
static int who(struct kvb_call *call, void *user)
{
	static _Thread_local uint16_t served;
	uint32_t tid = (uint32_t)syscall(SYS_gettid);
	uint8_t body[] = {0x92, 0xce, (uint8_t)(tid >> 24), (uint8_t)(tid >> 16),
		(uint8_t)(tid >> 8), (uint8_t)tid, 0xcd, (uint8_t)(served >> 8), (uint8_t)served};

	(void)user;
	served++;
	return kvb_call_reply(call, body, sizeof(body));
}

static int reply_long(struct kvb_call *call, size_t size)
{
	uint8_t *body = calloc(1, size);
	int r;

	/* bin 32 */
	body[0] = 0xc6;
	body[2] = (uint8_t)((size - 5) >> 16);
	body[3] = (uint8_t)((size - 5) >> 8);
	body[4] = (uint8_t)(size - 5);
	r = kvb_call_reply(call, body, size);
	free(body);
	return r;
}

static int act(struct kvb_call *call, void *user)
{
	size_t size;
	const uint8_t *body = kvb_call_body(call, &size);

	(void)user;
	switch ((enum act)body[0]) {
	case CUT:
		/* 190 bytes, then a character of three. */
		return kvb_call_fail(call, -ENOENT, "%0190d\xe2\x82\xac", 0);
	case FAIL:
		return kvb_call_fail(
			call, -ENOENT, "no model \"%s\" for %s", "m", kvb_call_client_name(call));
	case FAIL_WITHOUT_TEXT:
		return -EXDEV;
	case TWICE:
		if (kvb_call_reply(call, "\x01", 1) < 0 ||
			kvb_call_reply(call, "\x02", 1) != -EALREADY)
			return -EDOM;
		return 0;
	case TWICE_AND_FAIL:
		(void)kvb_call_reply(call, "\x01", 1);
		(void)kvb_call_reply(call, "\x02", 1);
		return kvb_call_fail(call, -ENOANO, "%0500d", 7);
	case NOTHING:
		return 0;
	case POSITIVE:
		return kvb_call_reply(call, "\x01", 1) + 1;
	case HUGE_ERRNO:
		return -5000;
	case GARBAGE:
		if (kvb_call_reply(call, "\xc1", 1) != -EPROTO ||
			kvb_call_reply(call, "\x01\x02", 2) != -EPROTO ||
			kvb_call_reply(call, "", 0) != -EPROTO)
			return -EDOM;
		return kvb_call_reply(call, "\xa7replied", 8);
	case LONG:
		if (reply_long(call, KVB_MSG_BODY_MAX + 1) != -EMSGSIZE)
			return -EDOM;
		return kvb_call_reply(call, "\xa7replied", 8);
	case LONGEST:
		return reply_long(call, KVB_MSG_BODY_MAX);
	}
	return -EDOM;
}

/* ---------------------------------------------------------------------------------- server and client */

static int register_all(struct kvb_server *server)
{
	uint32_t normal, affinity, gate, wide;

	if (kvb_server_add_pool(server, KVB_POOL_NORMAL, 2, 64, &normal) < 0 ||
		kvb_server_add_pool(server, KVB_POOL_AFFINITY, AFFINITY_THREADS, 1024, &affinity) <
			0 ||
		kvb_server_add_pool(server, KVB_POOL_NORMAL, GATE_THREADS, GATE_PLACES, &gate) <
			0 ||
		kvb_server_add_pool(server, KVB_POOL_NORMAL, WIDE_THREADS, FLOOD, &wide) < 0)
		return -1;
	if (kvb_server_handle_sync(server, T_SYNC, echo, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_BLOCKING, normal, 0, echo, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_AFFINITY, affinity, 0, who, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_GATE, gate, 0, echo_at_gate, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_WIDE, wide, 0, echo, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_NEVER, normal, 100, echo_at_gate, NULL) < 0 ||
		kvb_server_handle_sync(server, T_ACT, act, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_ACT_BLOCKING, normal, 0, act, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_NAP, gate, 0, nap, NULL) < 0 ||
		kvb_server_handle_blocking(server, T_CLIENT, gate, 0, put_here, NULL) < 0)
		return -1;
	return 0;
}

static int start_with(uint32_t drain_timeout_ms)
{
	struct kvb_server_options config;

	gate_close();
	kvb_store_release(&seen_abandoned, 0u);
	embedded_config(&config);
	config.drain_timeout_ms = drain_timeout_ms;
	if (embedded_make(&embedded, &config) < 0 || register_all(embedded.server) < 0 ||
		kvb_server_start(embedded.server) < 0)
		return -1;
	if (raw_attach(&raw, embedded.dir) < 0 ||
		dealer_open(&dealer, embedded.dir, &raw.welcome, NULL) < 0)
		return -1;
	return dealer_attach(&dealer);
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
	dealer_close(&dealer);
	raw_drop(&raw);
	return embedded_stop(&embedded);
}

static void send_call(struct dealer *from, uint16_t type, uint64_t request)
{
	struct kvb_msg_header header = dealer_header(from, type, request);

	assert_int_equal(dealer_send(from, &header, "\x2a", 1), 0);
}

/* Fills the gate's threads, then its queue; all of them are in when this returns. */
static void fill_gate(struct dealer *from)
{

	for (uint64_t i = 0; i < GATE_THREADS; i++)
		send_call(from, T_GATE, i);
	assert_true(gate_wait_inside(GATE_THREADS));
	for (uint64_t i = 0; i < GATE_PLACES; i++)
		send_call(from, T_GATE, GATE_THREADS + i);
	assert_int_equal(dealer_ping(from, 1), 0);
}

static int call(uint16_t type, const void *body, size_t size)
{
	struct kvb_msg_header header = dealer_header(&dealer, type, 77);

	assert_int_equal(dealer_call(&dealer, &header, body, size, &reply), 0);
	return reply.header.status;
}

/* The reply at hand is {"error": text}. */
static void assert_error_text(const char *text)
{
	size_t len = strlen(text);

	assert_memory_equal(reply.body,
		"\x81\xa5"
		"error",
		7);
	if (len < 32) {
		assert_int_equal(reply.body[7], 0xa0 + len);
		assert_memory_equal(reply.body + 8, text, len);
		assert_int_equal(reply.size, 8 + len);
	} else {
		assert_int_equal(reply.body[7], 0xd9);
		assert_int_equal(reply.body[8], len);
		assert_memory_equal(reply.body + 9, text, len);
		assert_int_equal(reply.size, 9 + len);
	}
}

/* Nothing is on its way but the answer to this ping. */
static void assert_no_more_replies(void)
{
	for (uint64_t i = 1000; i < 1010; i++)
		assert_int_equal(dealer_ping(&dealer, i), 0);
}

static uint64_t stat_of(const char *name)
{
	uint64_t value = UINT64_MAX;

	assert_int_equal(raw_stat(&raw, name, &value), 0);
	return value;
}

/* ------------------------------------------------------------------------------------------- tests */

static void handlers_of_each_kind_answer(void **state)
{
	static const uint16_t echoes[] = {T_SYNC, T_BLOCKING, T_WIDE};
	static const char body[] = "\x92\xa3"
				   "abc\xcb\x40\x09\x21\xfb\x54\x44\x2d\x18";

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(echoes); i++) {
		assert_int_equal(call(echoes[i], body, sizeof(body) - 1), 0);
		assert_int_equal(reply.size, sizeof(body) - 1);
		assert_memory_equal(reply.body, body, sizeof(body) - 1);
	}
	assert_int_equal(call(T_AFFINITY, "\x80", 1), 0);
	assert_int_equal(reply.size, 9);
	assert_no_more_replies();
}

static void whatever_a_handler_does_there_is_one_answer(void **state)
{
	static const uint16_t types[] = {T_ACT, T_ACT_BLOCKING};
	static const struct {
		enum act act;
		int status;
		const char *text;
	} cases[] = {
		{FAIL, -ENOENT, "no model \"m\" for raw"},
		{FAIL_WITHOUT_TEXT, -EXDEV, "Invalid cross-device link"},
		{TWICE, -EBADMSG, "the handler gave more than one reply"},
		{NOTHING, -ENODATA, "the handler gave no reply"},
		{POSITIVE, -EIO, "the handler returned an impossible status"},
		{HUGE_ERRNO, -EIO, "the handler returned an impossible status"},
	};
	char long_text[KVB_TEXT_BYTES] = {0};

	(void)state;
	for (size_t t = 0; t < KVB_ARRAY_SIZE(types); t++) {
		for (size_t i = 0; i < KVB_ARRAY_SIZE(cases); i++) {
			uint8_t body = (uint8_t)cases[i].act;
			assert_int_equal(call(types[t], &body, 1), cases[i].status);
			assert_error_text(cases[i].text);
			assert_no_more_replies();
		}
		memset(long_text, '0', sizeof(long_text) - 1);
		assert_int_equal(call(types[t], &(uint8_t){TWICE_AND_FAIL}, 1), -ENOANO);
		assert_error_text(long_text);
		/* The text ends before the character that does not fit. */
		long_text[190] = '\0';
		memset(long_text, '0', 190);
		assert_int_equal(call(types[t], &(uint8_t){CUT}, 1), -ENOENT);
		assert_error_text(long_text);
		/* A reply that cannot be sent is the handler's to mend. */
		for (enum act act = GARBAGE; act <= LONG; act++) {
			assert_int_equal(call(types[t], &(uint8_t){(uint8_t)act}, 1), 0);
			assert_int_equal(reply.size, 8);
			assert_memory_equal(reply.body, "\xa7replied", 8);
		}
		assert_int_equal(call(types[t], &(uint8_t){LONGEST}, 1), 0);
		assert_int_equal(reply.size, KVB_MSG_BODY_MAX);
		assert_no_more_replies();
	}
}

/* Bodies that end too early, say more than is there, or go on after their end; for each kind of
 * handler. */
static void malformed_bodies_get_one_error(void **state)
{
	static const uint16_t types[] = {T_SYNC, T_BLOCKING, T_AFFINITY, KVB_MSG_PING};
	static const uint8_t whole[] = "\x82\xa1"
				       "a\xc4\x05"
				       "12345\xa1"
				       "b\x93\x01\x02\xcd\x03\x04";
	static const struct {
		const char *bytes;
		size_t size;
	} lies[] = {{"\xdd\xff\xff\xff\xff", 5}, {"\xdf\xff\xff\xff\xff", 5},
		{"\xc6\xff\xff\xff\xff", 5}, {"\xdb\xff\xff\xff\xff", 5}, {"\xc1", 1},
		{"\xdc\xff\xff\xdc\xff\xff\xdc\xff\xff", 9}};
	uint8_t deep[1000];

	(void)state;
	memset(deep, 0x91, sizeof(deep));
	for (size_t t = 0; t < KVB_ARRAY_SIZE(types); t++) {
		for (size_t size = 0; size < sizeof(whole) - 1; size++) {
			assert_int_equal(call(types[t], whole, size), -EPROTO);
			assert_error_text("the body is not one MessagePack object");
		}
		assert_int_equal(call(types[t], whole, sizeof(whole)), -EPROTO);
		for (size_t i = 0; i < KVB_ARRAY_SIZE(lies); i++)
			assert_int_equal(call(types[t], lies[i].bytes, lies[i].size), -EPROTO);
		assert_int_equal(call(types[t], deep, sizeof(deep)), -EPROTO);
		assert_int_equal(call(types[t], whole, sizeof(whole) - 1), 0);
		assert_no_more_replies();
	}
}

static void oversize_bodies_get_one_error(void **state)
{
	static const uint16_t types[] = {T_SYNC, T_BLOCKING, T_AFFINITY, KVB_MSG_PING, T_NOBODY};
	static const size_t sizes[] = {
		KVB_MSG_BODY_MAX + 1, KVB_MSG_BODY_MAX + 4096, KVB_MSG_FRAME_MAX};
	uint8_t *body = calloc(1, KVB_MSG_FRAME_MAX);

	(void)state;
	for (size_t t = 0; t < KVB_ARRAY_SIZE(types); t++) {
		for (size_t i = 0; i < KVB_ARRAY_SIZE(sizes); i++)
			assert_int_equal(call(types[t], body, sizes[i]),
				types[t] == T_NOBODY ? -EOPNOTSUPP : -EMSGSIZE);
		assert_no_more_replies();
	}
	/* The longest body that may be goes there and back. */
	body[0] = 0xc6;
	body[2] = (uint8_t)((KVB_MSG_BODY_MAX - 5) >> 16);
	body[3] = (uint8_t)((KVB_MSG_BODY_MAX - 5) >> 8);
	body[4] = (uint8_t)(KVB_MSG_BODY_MAX - 5);
	body[KVB_MSG_BODY_MAX - 1] = 0x5a;
	for (size_t t = 0; t < 2; t++) {
		assert_int_equal(call(types[t], body, KVB_MSG_BODY_MAX), 0);
		assert_int_equal(reply.size, KVB_MSG_BODY_MAX);
		assert_memory_equal(reply.body, body, KVB_MSG_BODY_MAX);
	}
	free(body);
}

static void an_unknown_type_gets_one_error(void **state)
{
	(void)state;
	assert_int_equal(call(T_NOBODY, "\x80", 1), -EOPNOTSUPP);
	assert_error_text("there is no handler for this message type");
	/* The server's word, not a handler's. */
	assert_int_equal(reply.header.flags, KVB_MSG_REFUSED);
	assert_int_equal(call(T_ACT, &(uint8_t){FAIL}, 1), -ENOENT);
	assert_int_equal(reply.header.flags, 0);
	assert_int_equal(call(0, "\x80", 1), -EOPNOTSUPP);
	assert_int_equal(call(KVB_MSG_USER - 1, "\x80", 1), -EOPNOTSUPP);
	assert_no_more_replies();
}

static void a_full_queue_is_an_error_at_once(void **state)
{
	bool answered[GATE_THREADS + GATE_PLACES] = {false};

	(void)state;
	fill_gate(&dealer);
	for (uint64_t i = 0; i < 3; i++)
		send_call(&dealer, T_GATE, GATE_THREADS + GATE_PLACES + i);
	/* The gate is closed, so these are the answers to the last three. */
	for (uint64_t i = 0; i < 3; i++) {
		assert_int_equal(dealer_receive(&dealer, &reply), 0);
		assert_int_equal(reply.header.status, -EAGAIN);
		assert_int_equal(reply.header.request, GATE_THREADS + GATE_PLACES + i);
		assert_error_text("all threads are busy and the queue is full");
	}
	assert_no_more_replies();
	gate_open();
	for (size_t i = 0; i < KVB_ARRAY_SIZE(answered); i++) {
		assert_int_equal(dealer_receive(&dealer, &reply), 0);
		assert_int_equal(reply.header.status, 0);
		assert_in_range(reply.header.request, 0, KVB_ARRAY_SIZE(answered) - 1);
		assert_false(answered[reply.header.request]);
		answered[reply.header.request] = true;
	}
	assert_no_more_replies();
	assert_int_equal(stat_of("calls.refused"), 3);
	assert_int_equal(stat_of("calls.total"), GATE_THREADS + GATE_PLACES);
	assert_int_equal(stat_of("calls.in_flight"), 0);
}

/* Pings by control and small puts, one after the other; returns the nanoseconds they took. */
static uint64_t work_for(unsigned rounds)
{
	uint64_t begin_ns = kvb_now_ns();

	for (uint64_t i = 0; i < rounds; i++) {
		assert_int_equal(dealer_ping(&dealer, 5000 + i), 0);
		assert_int_equal(raw_put(&raw, "key", 0, 0, 4096, 4096), 0);
	}
	return kvb_now_ns() - begin_ns;
}

/* With blocked handlers, everything else goes on: each ping's own answer comes next, none waits
 * for the gate. */
static void blocked_handlers_delay_nobody(void **state)
{

	(void)state;
	for (uint64_t i = 0; i < GATE_THREADS; i++)
		send_call(&dealer, T_GATE, i);
	assert_true(gate_wait_inside(GATE_THREADS));
	(void)work_for(500);
	assert_int_equal(call(T_SYNC, "\x80", 1), 0);
	assert_int_equal(call(T_BLOCKING, "\x80", 1), 0);
	gate_open();
	for (uint64_t i = 0; i < GATE_THREADS; i++) {
		assert_int_equal(dealer_receive(&dealer, &reply), 0);
		assert_int_equal(reply.header.type, T_GATE);
		assert_int_equal(reply.header.status, 0);
	}
}

/* The same with handlers that sleep for 2 s; the times are for the reader. */
static void sleeping_handlers_delay_nobody(void **state)
{
	uint64_t begin_ns, before_ns = work_for(200), while_ns;

	(void)state;
	begin_ns = kvb_now_ns();
	for (uint64_t i = 0; i < GATE_THREADS; i++)
		send_call(&dealer, T_NAP, i);
	while_ns = work_for(200);
	printf("200 pings and puts: %llu us with nobody, %llu us while 4 handlers sleep\n",
		(unsigned long long)(before_ns / 1000), (unsigned long long)(while_ns / 1000));
	for (uint64_t i = 0; i < GATE_THREADS; i++) {
		assert_int_equal(dealer_receive(&dealer, &reply), 0);
		assert_int_equal(reply.header.type, T_NAP);
		assert_int_equal(reply.header.status, 0);
	}
	assert_true(kvb_now_ns() - begin_ns >= 2 * KVB_NS_PER_S);
}

static uint32_t tid_of_reply(void)
{
	return (uint32_t)reply.body[2] << 24 | (uint32_t)reply.body[3] << 16 |
		(uint32_t)reply.body[4] << 8 | reply.body[5];
}

static uint32_t served_of_reply(void)
{
	return (uint32_t)reply.body[7] << 8 | reply.body[8];
}

static void a_sessions_affinity_calls_run_on_one_thread_in_order(void **state)
{
	enum { CLIENTS = AFFINITY_THREADS, CALLS = 300 };
	struct raw_client raws[CLIENTS];
	struct dealer dealers[CLIENTS];
	uint32_t tids[CLIENTS];

	(void)state;
	for (unsigned c = 0; c < CLIENTS; c++) {
		assert_int_equal(raw_attach(&raws[c], embedded.dir), 0);
		assert_int_equal(dealer_open(&dealers[c], embedded.dir, &raws[c].welcome, NULL), 0);
		assert_int_equal(dealer_attach(&dealers[c]), 0);
	}
	for (uint64_t i = 0; i < CALLS; i++)
		for (unsigned c = 0; c < CLIENTS; c++)
			send_call(&dealers[c], T_AFFINITY, i);
	for (unsigned c = 0; c < CLIENTS; c++)
		for (uint32_t i = 0; i < CALLS; i++) {
			assert_int_equal(dealer_receive(&dealers[c], &reply), 0);
			assert_int_equal(reply.header.status, 0);
			if (i == 0)
				tids[c] = tid_of_reply();
			/* In their order, and nobody else's calls between them. */
			assert_int_equal(reply.header.request, i);
			assert_int_equal(tid_of_reply(), tids[c]);
			assert_int_equal(served_of_reply(), i);
		}
	/* Sessions in consecutive slots lie on different threads. */
	for (unsigned c = 0; c < CLIENTS; c++) {
		assert_int_not_equal(tids[c], tids[(c + 1) % CLIENTS]);
		dealer_close(&dealers[c]);
		raw_drop(&raws[c]);
	}
}

static bool none_in_flight(const void *unused)
{
	uint64_t in_flight;

	(void)unused;
	return raw_stat(&raw, "calls.in_flight", &in_flight) == 0 && in_flight == 0;
}

static void a_handler_that_takes_too_long_is_answered_for_it(void **state)
{
	(void)state;
	/* Two run into their timeout, two never get a thread. */
	for (uint64_t i = 0; i < 4; i++)
		send_call(&dealer, T_NEVER, i);
	for (uint64_t i = 0; i < 4; i++) {
		assert_int_equal(dealer_receive(&dealer, &reply), 0);
		assert_int_equal(reply.header.status, -ETIMEDOUT);
		assert_int_equal(reply.header.request, i);
		assert_error_text(
			i < 2 ? "the handler took too long" : "no thread was free in time");
	}
	assert_int_equal(stat_of("calls.in_flight"), 2);
	assert_no_more_replies();
	gate_open();
	assert_true(embedded_wait(none_in_flight, NULL));
	assert_no_more_replies();
	assert_int_equal(stat_of("calls.timed_out"), 4);
	assert_int_equal(stat_of("calls.late"), 2);
	assert_int_equal(kvb_load_acquire(&seen_abandoned), 2);
	/* The threads are free again. */
	assert_int_equal(call(T_BLOCKING, "\x80", 1), 0);
}

static bool one_ending(const void *unused)
{
	uint64_t ending;

	(void)unused;
	return raw_stat(&raw, "sessions.ending", &ending) == 0 && ending == 1;
}

/* Its bell is closed, and its slot free. The log first: a session that ends may be quarantined before, and two
 * figures read one after the other could miss it in both. */
static bool other_is_gone(const void *unused)
{
	uint64_t ending, active;

	(void)unused;
	return embedded_log_find(&embedded, "step: close bell", 0) > 0 &&
		raw_stat(&raw, "sessions.ending", &ending) == 0 && ending == 0 &&
		raw_stat(&raw, "sessions.active", &active) == 0 && active == 1;
}

/* A call holds its session: what the handler might touch stays until it has returned. */
static void a_session_outlives_its_running_calls(void **state)
{
	struct raw_client other_raw;
	struct dealer other;

	(void)state;
	assert_int_equal(raw_attach(&other_raw, embedded.dir), 0);
	assert_int_equal(dealer_open(&other, embedded.dir, &other_raw.welcome, NULL), 0);
	assert_int_equal(dealer_attach(&other), 0);
	fill_gate(&other);
	/* The connection stays, so the end of the session is told. */
	raw_drop(&other_raw);
	for (uint64_t i = 0; i < GATE_THREADS + GATE_PLACES; i++) {
		assert_int_equal(dealer_receive(&other, &reply), 0);
		assert_int_equal(reply.header.status, -ECONNRESET);
	}
	assert_true(embedded_wait(one_ending, NULL));
	assert_int_equal(embedded_log_find(&embedded, "step: close bell", 0), -1);
	/* Those that waited for a thread are gone at once; those that run hold the session. */
	assert_int_equal(stat_of("calls.in_flight"), GATE_THREADS);
	gate_open();
	assert_true(embedded_wait(other_is_gone, NULL));
	assert_int_equal(kvb_load_acquire(&seen_abandoned), GATE_THREADS);
	assert_int_equal(stat_of("calls.late"), GATE_THREADS);
	dealer_close(&other);
	assert_no_more_replies();
}

/* Leases an object as the library does. */
static void lease_object(struct raw_client *reader, const char *object)
{
	struct kvb_segment index_map = KVB_SEGMENT_NONE;
	struct kvb_leases leases;
	struct kvb_index index;
	struct kvb_found found;
	size_t len = strlen(object);

	assert_int_equal(kvb_segment_map(reader->fds[KVB_FD_INDEX], reader->welcome.index_bytes,
				 KVB_SEALS_FIXED_SIZE | KVB_SEAL_FUTURE_WRITE, false, &index_map),
		0);
	reader->fds[KVB_FD_INDEX] = -1;
	assert_int_equal(kvb_index_open(&index, index_map.base, index_map.bytes), 0);
	assert_int_equal(kvb_leases_open(&leases, reader->leases.base, reader->leases.bytes), 0);
	kvb_store_relaxed(&leases.header->cells_used, 1u);
	assert_int_equal(kvb_index_lease(&index, &leases.cells[0],
				 kvb_index_hash(&index, object, len), object, len, &found),
		0);
	kvb_segment_free(&index_map);
}

static bool no_limbo(const void *unused)
{
	uint64_t limbo;

	(void)unused;
	return raw_stat(&raw, "leases.limbo", &limbo) == 0 && limbo == 0;
}

/* Nobody reads under the leases of one who has gone, however long his call runs. */
static void leases_go_with_their_client_not_with_its_calls(void **state)
{
	struct kvb_sqe sqe = {.op = KVB_OP_DELETE, .key_len = 3};
	struct raw_client reader;
	struct kvb_cqe cqe;
	struct dealer other;

	(void)state;
	assert_int_equal(raw_put(&raw, "key", 1, 0, 64, 64), 0);
	assert_int_equal(raw_attach_as(&reader, embedded.dir, KVB_HELLO_READER), 0);
	assert_true(reader.welcome.flags & KVB_WELCOME_READER);
	assert_int_equal(dealer_open(&other, embedded.dir, &reader.welcome, NULL), 0);
	assert_int_equal(dealer_attach(&other), 0);
	lease_object(&reader, "key");
	send_call(&other, T_GATE, 1);
	assert_true(gate_wait_inside(1));
	assert_int_equal(raw_call(&raw, &sqe, "key", &cqe), 0);
	assert_int_equal(stat_of("leases.limbo"), 1);
	dealer_close(&other);
	raw_drop(&reader);
	assert_true(embedded_wait(no_limbo, NULL));
	/* The session is still there, for the call's sake. */
	assert_int_equal(stat_of("calls.in_flight"), 1);
	assert_int_equal(embedded_log_find(&embedded, "step: close bell", 0), -1);
	gate_open();
	assert_true(embedded_wait(other_is_gone, NULL));
}

static bool one_quarantined(const void *unused)
{
	uint64_t quarantined;

	(void)unused;
	return raw_stat(&raw, "sessions.quarantined", &quarantined) == 0 && quarantined == 1;
}

/* A client that has gone while its call does not return: named, and nothing of it is taken back. */
static void a_stuck_call_quarantines_its_session(void **state)
{
	struct raw_client other_raw;
	struct dealer other;

	(void)state;
	assert_int_equal(raw_attach(&other_raw, embedded.dir), 0);
	assert_int_equal(dealer_open(&other, embedded.dir, &other_raw.welcome, NULL), 0);
	assert_int_equal(dealer_attach(&other), 0);
	send_call(&other, T_GATE, 1);
	assert_true(gate_wait_inside(1));
	dealer_close(&other);
	raw_drop(&other_raw);
	assert_true(embedded_wait(one_quarantined, NULL));
	assert_true(embedded_log_find(&embedded,
			    "is stuck: the handler of message type 1027 has run", 0) > 0);
	assert_int_equal(embedded_log_find(&embedded, "step: close bell", 0), -1);
	gate_open();
	assert_true(embedded_wait(other_is_gone, NULL));
}

static void a_stuck_handler_is_named_and_waited_for_again(void **state)
{
	struct pollfd stop_fd;

	(void)state;
	send_call(&dealer, T_GATE, 1);
	assert_true(gate_wait_inside(1));
	kvb_server_stop_begin(embedded.server);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(kvb_server_stop_wait(embedded.server), -ETIMEDOUT);
		assert_true(embedded_log_find(&embedded,
				    "is stuck: the handler of message type 1027 has run", 0) > 0);
	}
	/* Nothing was taken from under it. */
	assert_int_equal(embedded_log_find(&embedded, "step: close", 0), -1);
	gate_open();
	stop_fd = (struct pollfd){.fd = kvb_server_stop_fd(embedded.server), .events = POLLIN};
	assert_int_equal(poll(&stop_fd, 1, 20000), 1);
	while (kvb_server_stop_wait(embedded.server) == -ETIMEDOUT)
		;
	/* The answer came before the goodbye. */
	assert_int_equal(dealer_receive(&dealer, &reply), 0);
	assert_int_equal(reply.header.type, T_GATE);
	assert_int_equal(reply.header.status, 0);
}

static void a_drain_finishes_what_was_accepted(void **state)
{
	unsigned done = 0, refused = 0;

	(void)state;
	fill_gate(&dealer);
	kvb_server_stop_begin(embedded.server);
	assert_true(embedded_wait_draining(&embedded));
	assert_int_equal(call(T_SYNC, "\x80", 1), -ESHUTDOWN);
	assert_int_equal(call(T_BLOCKING, "\x80", 1), -ESHUTDOWN);
	assert_int_equal(call(KVB_MSG_PING, "\x80", 1), 0);
	gate_open();
	assert_int_equal(kvb_server_stop_wait(embedded.server), 0);
	while (dealer_receive_in(&dealer, 0, &reply) == 0) {
		assert_int_equal(reply.header.type, T_GATE);
		done += reply.header.status == 0;
		refused += reply.header.status != 0;
	}
	assert_int_equal(done, GATE_THREADS + GATE_PLACES);
	assert_int_equal(refused, 0);
}

/* A handler that is a client of its own server gets its answers while the server drains, and so
 * do all others. */
static void a_drain_serves_the_clients_of_its_handlers(void **state)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_sqe put = {
		.op = KVB_OP_PUT, .flags = KVB_SQE_OPEN, .key_len = 3, .total = 1, .length = 1};
	struct kvb_sqe nop = {.op = KVB_OP_NOP};
	struct dealer late;

	(void)state;
	options.dir = embedded.dir;
	assert_int_equal(kvb_open(&options, &own_client), 0);
	send_call(&dealer, T_CLIENT, 1);
	assert_true(gate_wait_inside(1));
	kvb_server_stop_begin(embedded.server);
	assert_true(embedded_wait_draining(&embedded));
	assert_int_equal(raw_call(&raw, &nop, NULL, NULL), 0);
	assert_int_equal(raw_call(&raw, &put, "key", NULL), -ESHUTDOWN);
	/* A connection may still attach, to hear the same. */
	assert_int_equal(dealer_open(&late, embedded.dir, &raw.welcome, NULL), 0);
	assert_int_equal(dealer_attach(&late), 0);
	dealer_close(&late);
	assert_int_equal(dealer_attach(&dealer), 0);
	gate_open();
	assert_int_equal(kvb_server_stop_wait(embedded.server), 0);
	assert_int_equal(dealer_receive(&dealer, &reply), 0);
	assert_int_equal(reply.header.status, 0);
	assert_int_equal(reply.body[0], ESHUTDOWN);
	kvb_close(own_client);
}

/* At the deadline, what no thread has taken is refused; what runs is waited for. */
static void a_deadline_refuses_what_waits(void **state)
{

	(void)state;
	fill_gate(&dealer);
	kvb_server_stop_begin(embedded.server);
	assert_int_equal(kvb_server_stop_wait(embedded.server), -ETIMEDOUT);
	for (uint64_t i = 0; i < GATE_PLACES; i++) {
		assert_int_equal(dealer_receive(&dealer, &reply), 0);
		assert_int_equal(reply.header.status, -ESHUTDOWN);
		assert_int_equal(reply.header.request, GATE_THREADS + i);
	}
	gate_open();
	while (kvb_server_stop_wait(embedded.server) == -ETIMEDOUT)
		;
	for (uint64_t i = 0; i < GATE_THREADS; i++) {
		assert_int_equal(dealer_receive(&dealer, &reply), 0);
		assert_int_equal(reply.header.status, 0);
	}
}

static void registering_has_rules(void **state)
{
	struct kvb_server *server;
	struct kvb_server_options options;
	uint32_t pool;

	(void)state;
	kvb_server_options_init(&options, sizeof(options));
	options.log.fn = NULL;
	options.pool_bytes = 5;
	assert_int_equal(kvb_server_new(&options, &server), -EINVAL);
	options.pool_bytes = KVB_MIB;
	options.drain_timeout_ms = 99;
	assert_int_equal(kvb_server_new(&options, &server), -EINVAL);
	options.drain_timeout_ms = 100;
	options.pool_bytes = KVB_MIB;
	assert_int_equal(kvb_server_new(&options, &server), 0);
	assert_int_equal(kvb_server_handle_sync(server, KVB_MSG_PING, echo, NULL), -EINVAL);
	assert_int_equal(kvb_server_handle_sync(server, KVB_MSG_USER - 1, echo, NULL), -EINVAL);
	assert_int_equal(kvb_server_handle_sync(server, T_SYNC, NULL, NULL), -EINVAL);
	assert_int_equal(kvb_server_handle_sync(server, T_SYNC, echo, NULL), 0);
	assert_int_equal(kvb_server_handle_sync(server, T_SYNC, echo, NULL), -EEXIST);
	assert_int_equal(kvb_server_handle_blocking(server, T_GATE, 0, 0, echo, NULL), -ENOENT);
	assert_int_equal(kvb_server_add_pool(server, KVB_POOL_NORMAL, 0, 1, &pool), -EINVAL);
	assert_int_equal(kvb_server_add_pool(server, KVB_POOL_NORMAL, 257, 1, &pool), -EINVAL);
	assert_int_equal(kvb_server_add_pool(server, KVB_POOL_NORMAL, 1, 0, &pool), -EINVAL);
	assert_int_equal(kvb_server_add_pool(server, KVB_POOL_NORMAL, 1, 65537, &pool), -EINVAL);
	assert_int_equal(kvb_server_add_pool(server, (enum kvb_pool_kind)2, 1, 1, &pool), -EINVAL);
	assert_int_equal(kvb_server_add_pool(server, KVB_POOL_AFFINITY, 256, 65536, &pool), 0);
	assert_int_equal(kvb_server_handle_blocking(server, T_GATE, pool, 0, echo, NULL), 0);
	assert_int_equal(kvb_server_handle_blocking(server, T_GATE, pool, 0, echo, NULL), -EEXIST);
	kvb_server_free(server);
	kvb_server_free(NULL);
	assert_int_equal(kvb_server_start(embedded.server), -EBUSY);
	assert_int_equal(kvb_server_handle_sync(embedded.server, T_NOBODY, echo, NULL), -EBUSY);
	assert_int_equal(
		kvb_server_add_pool(embedded.server, KVB_POOL_NORMAL, 1, 1, &pool), -EBUSY);
}

/* Eight threads complete them, all replies come, each once. */
static void thousands_of_calls_in_flight_get_as_many_replies(void **state)
{
	bool *seen = calloc(FLOOD, sizeof(bool));
	uint64_t requests, replies;

	(void)state;
	for (uint64_t i = 0; i < FLOOD; i++)
		send_call(&dealer, T_WIDE, i);
	for (uint64_t i = 0; i < FLOOD; i++) {
		assert_int_equal(dealer_receive(&dealer, &reply), 0);
		assert_int_equal(reply.header.status, 0);
		assert_int_equal(reply.size, 1);
		assert_in_range(reply.header.request, 0, FLOOD - 1);
		assert_false(seen[reply.header.request]);
		seen[reply.header.request] = true;
	}
	free(seen);
	assert_no_more_replies();
	requests = stat_of("control.requests");
	replies = stat_of("control.replies");
	assert_int_equal(requests, replies);
	assert_int_equal(stat_of("control.dropped"), 0);
	assert_int_equal(stat_of("calls.total"), FLOOD);
}

/*
 * Messages that no session stands behind: their replies wait like any other while ZMQ's own thread
 * is behind. One header after the other is wrong in its own way.
 */
static void replies_without_a_session_are_not_lost(void **state)
{
	enum { COUNT = 900 };
	struct dealer stranger;

	(void)state;
	assert_int_equal(dealer_open(&stranger, embedded.dir, &raw.welcome, NULL), 0);
	for (unsigned way = 0; way < 4; way++) {
		struct dealer *from = way < 2 ? &dealer : &stranger;
		static const int statuses[] = {-EPROTONOSUPPORT, -ESTALE, -EACCES, -EPROTO};
		for (uint64_t i = 0; i < COUNT; i++) {
			struct kvb_msg_header header = dealer_header(from, KVB_MSG_PING, i);
			header.magic += way == 0;
			header.boot_id[0] ^= way == 1;
			if (way == 3)
				assert_true(zmq_send(from->socket, "short", 5, ZMQ_SNDMORE) == 5 &&
					zmq_send(from->socket, "\x80", 1, 0) == 1);
			else
				assert_int_equal(dealer_send(from, &header, "\x80", 1), 0);
		}
		for (uint64_t i = 0; i < COUNT; i++) {
			assert_int_equal(dealer_receive(from, &reply), 0);
			assert_int_equal(reply.header.status, statuses[way]);
			assert_int_equal(reply.header.request, way == 3 ? 0 : i);
		}
	}
	dealer_close(&stranger);
	assert_no_more_replies();
	assert_int_equal(stat_of("control.dropped"), 0);
}

/* ------------------------------------------------------------------------------ clients that do not read */

#define WINDOW 200

/* A client that sends as fast as ZMQ takes it and reads, or does not. */
struct flooder {
	struct raw_client raw;
	struct dealer dealer;
	pthread_t thread;
	bool reads;
	size_t body_size; /* 3 to 65538 */
	uint64_t send_max;
	uint32_t stop;     /* atomic */
	uint64_t sent;     /* read after the thread has ended */
	uint64_t received; /* the same */
};

static bool door_has_ended(const struct flooder *flooder)
{
	struct pollfd pfd = {.fd = flooder->raw.door_fd, .events = POLLIN};

	return poll(&pfd, 1, 0) > 0;
}

static void take_replies(struct flooder *flooder, int timeout_ms)
{
	static _Thread_local struct dealer_reply taken;

	while (dealer_receive_in(&flooder->dealer, timeout_ms, &taken) == 0)
		flooder->received++;
}

/* Until it is told to stop, or cut off. No assertion may stand here. */
static void *flood(void *arg)
{
	struct flooder *flooder = arg;
	uint8_t *body = calloc(1, flooder->body_size);

	/* bin 16 */
	body[0] = 0xc5;
	body[1] = (uint8_t)((flooder->body_size - 3) >> 8);
	body[2] = (uint8_t)(flooder->body_size - 3);
	while (flooder->sent < flooder->send_max && !kvb_load_acquire(&flooder->stop) &&
		!door_has_ended(flooder)) {
		struct kvb_msg_header header =
			dealer_header(&flooder->dealer, T_SYNC, flooder->sent);
		if (dealer_send(&flooder->dealer, &header, body, flooder->body_size) < 0)
			break;
		flooder->sent++;
		while (flooder->reads && flooder->sent - flooder->received >= WINDOW)
			take_replies(flooder, 0);
	}
	free(body);
	return NULL;
}

static void flooder_begin(struct flooder *flooder, bool reads, size_t body_size, uint64_t send_max)
{
	*flooder = (struct flooder){.reads = reads, .body_size = body_size, .send_max = send_max};
	assert_int_equal(raw_attach(&flooder->raw, embedded.dir), 0);
	assert_int_equal(
		dealer_open_small(&flooder->dealer, embedded.dir, &flooder->raw.welcome), 0);
	assert_int_equal(dealer_attach(&flooder->dealer), 0);
	assert_int_equal(pthread_create(&flooder->thread, NULL, flood, flooder), 0);
}

static void flooder_end(struct flooder *flooder)
{
	dealer_close(&flooder->dealer);
	raw_drop(&flooder->raw);
}

static int compare_ns(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return left < right ? -1 : left > right;
}

/* Pings until `until` says so, 100 times at least and PINGS_MAX at most; returns how many. */
#define PINGS_MAX 1000000
static size_t ping_and_tell(const char *beside, bool (*until)(const void *arg), const void *arg)
{
	uint64_t *took_ns = calloc(PINGS_MAX, sizeof(*took_ns));
	size_t n = 0;

	while (n < PINGS_MAX && (n < 100 || !until(arg))) {
		uint64_t begin_ns = kvb_now_ns();
		assert_int_equal(dealer_ping(&dealer, n), 0);
		took_ns[n++] = kvb_now_ns() - begin_ns;
	}
	qsort(took_ns, n, sizeof(*took_ns), compare_ns);
	printf("%zu pings beside %s: p50 %llu us, p99 %llu us\n", n, beside,
		(unsigned long long)(took_ns[n / 2] / 1000),
		(unsigned long long)(took_ns[n * 99 / 100] / 1000));
	free(took_ns);
	return n;
}

static bool second_has_passed(const void *since_ns)
{
	return kvb_now_ns() - *(const uint64_t *)since_ns > KVB_NS_PER_S;
}

static bool flooder_is_cut(const void *flooder)
{
	return door_has_ended(flooder);
}

static bool none_waiting(const void *unused)
{
	uint64_t waiting;

	(void)unused;
	return raw_stat(&raw, "control.replies_waiting", &waiting) == 0 && waiting == 0;
}

/* A client that asks, and never reads: the server ends its session, and accounts for each reply. */
static void check_silent(const char *how, size_t body_size, uint64_t send_max, const char *text)
{
	struct flooder silent;
	struct kvb_goodbye goodbye;
	uint64_t requests = stat_of("control.requests"), replies = stat_of("control.replies");
	uint64_t dropped = stat_of("control.dropped"), pings;

	flooder_begin(&silent, false, body_size, send_max);
	pings = ping_and_tell(how, flooder_is_cut, &silent);
	pthread_join(silent.thread, NULL);
	assert_int_equal(raw_goodbye(silent.raw.door_fd, &goodbye), 0);
	assert_int_equal(goodbye.reason, KVB_REASON_NOT_READING);
	assert_non_null(strstr(goodbye.text, text));
	/* It cannot begin anew on the same connection. */
	assert_true(embedded_wait(none_waiting, NULL));
	/* What ZMQ had taken can still be read; the rest was dropped, and counted. */
	take_replies(&silent, 1000);
	requests = stat_of("control.requests") - requests;
	replies = stat_of("control.replies") - replies;
	dropped = stat_of("control.dropped") - dropped;
	/* With its ATTACH. */
	assert_int_equal(requests, pings + 1 + silent.sent);
	assert_int_equal(replies, pings + 1 + silent.received);
	assert_int_equal(dropped, silent.sent - silent.received);
	assert_true(dropped > 0);
	printf("silent: %llu sent, %llu received at last, %llu dropped\n",
		(unsigned long long)silent.sent, (unsigned long long)silent.received,
		(unsigned long long)dropped);
	flooder_end(&silent);
}

/* The bound is bytes, then time; everybody else is served all the while. The times are for the
 * reader. */
static void a_client_that_does_not_read_is_bounded_then_cut(void **state)
{
	struct flooder honest;
	uint64_t since_ns = kvb_now_ns();

	(void)state;
	(void)ping_and_tell("nobody", second_has_passed, &since_ns);
	flooder_begin(&honest, true, 4096, UINT64_MAX);
	since_ns = kvb_now_ns();
	(void)ping_and_tell("one who floods and reads", second_has_passed, &since_ns);
	kvb_store_release(&honest.stop, 1u);
	pthread_join(honest.thread, NULL);
	while (honest.received < honest.sent && dealer_receive(&honest.dealer, &reply) == 0)
		honest.received++;
	assert_int_equal(honest.received, honest.sent);
	assert_int_equal(stat_of("control.dropped"), 0);
	flooder_end(&honest);

	check_silent("one who floods and does not read", 4096, UINT64_MAX,
		"does not read its control replies: ");
	check_silent("one who does not read 5000 replies", 3, 5000,
		"has read no control reply for 10 s: ");
}

#ifndef NDEBUG
/* The ROUTER's owner is asserted at each use; the thread that looks here is another one. */
static void only_the_control_thread_touches_the_router(void **state)
{
	int status = 0;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		struct rlimit none = {0, 0};
		setrlimit(RLIMIT_CORE, &none);
		signal(SIGABRT, SIG_DFL);
		close(STDERR_FILENO);
		kvb_control_serve(embedded.server);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGABRT);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
#ifndef NDEBUG
		cmocka_unit_test_setup_teardown(
			only_the_control_thread_touches_the_router, start, stop),
#endif
		cmocka_unit_test_setup_teardown(
			replies_without_a_session_are_not_lost, start, stop),
		cmocka_unit_test_setup_teardown(
			a_client_that_does_not_read_is_bounded_then_cut, start, stop),
		cmocka_unit_test_setup_teardown(handlers_of_each_kind_answer, start, stop),
		cmocka_unit_test_setup_teardown(
			whatever_a_handler_does_there_is_one_answer, start, stop),
		cmocka_unit_test_setup_teardown(malformed_bodies_get_one_error, start, stop),
		cmocka_unit_test_setup_teardown(oversize_bodies_get_one_error, start, stop),
		cmocka_unit_test_setup_teardown(an_unknown_type_gets_one_error, start, stop),
		cmocka_unit_test_setup_teardown(a_full_queue_is_an_error_at_once, start, stop),
		cmocka_unit_test_setup_teardown(blocked_handlers_delay_nobody, start, stop),
		cmocka_unit_test_setup_teardown(sleeping_handlers_delay_nobody, start, stop),
		cmocka_unit_test_setup_teardown(
			a_sessions_affinity_calls_run_on_one_thread_in_order, start, stop),
		cmocka_unit_test_setup_teardown(
			a_handler_that_takes_too_long_is_answered_for_it, start, stop),
		cmocka_unit_test_setup_teardown(a_session_outlives_its_running_calls, start, stop),
		cmocka_unit_test_setup_teardown(
			leases_go_with_their_client_not_with_its_calls, start, stop),
		cmocka_unit_test_setup_teardown(
			a_stuck_call_quarantines_its_session, start_impatient, stop),
		cmocka_unit_test_setup_teardown(
			a_stuck_handler_is_named_and_waited_for_again, start_impatient, stop),
		cmocka_unit_test_setup_teardown(a_drain_finishes_what_was_accepted, start, stop),
		cmocka_unit_test_setup_teardown(
			a_drain_serves_the_clients_of_its_handlers, start, stop),
		cmocka_unit_test_setup_teardown(
			a_deadline_refuses_what_waits, start_impatient, stop),
		cmocka_unit_test_setup_teardown(registering_has_rules, start, stop),
		cmocka_unit_test_setup_teardown(
			thousands_of_calls_in_flight_get_as_many_replies, start, stop),
	};

	return cmocka_run_group_tests_name("handlers", tests, NULL, NULL) ? 1 : 0;
}
