/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_control.c - the control socket: every message is answered exactly once, whatever is wrong
 * with it.
 *
 * A server in this process; a bare DEALER in the test's thread.
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
#include <msgpack.h>
#include <zmq.h>

#include "server/server.h"
#include "shm/atomic.h"
#include "shm/util.h"
#include "tests/dealer.h"
#include "tests/embedded.h"
#include "tests/raw.h"

#define DRAIN_MS 20000
#define FEW      2
#define UNREAD   4000

static struct embedded embedded;
static struct raw_client raw;
static struct dealer dealer;
static struct dealer_reply reply;

static int start(void **state)
{
	struct kvb_server_options config;

	(void)state;
	embedded_config(&config);
	config.objects_max = 20000;
	config.drain_timeout_ms = DRAIN_MS;
	if (embedded_start(&embedded, &config) < 0 || raw_attach(&raw, embedded.dir) < 0)
		return -1;
	return dealer_open(&dealer, embedded.dir, &raw.welcome, NULL);
}

static int stop(void **state)
{
	(void)state;
	dealer_close(&dealer);
	raw_drop(&raw);
	return embedded_stop(&embedded);
}

static int call(const struct kvb_msg_header *header, const void *body, size_t size)
{
	assert_int_equal(dealer_call(&dealer, header, body, size, &reply), 0);
	return reply.header.status;
}

static void a_token_opens_the_control_socket(void **state)
{
	uint8_t wrong[KVB_ID_BYTES];
	struct kvb_msg_header header;

	(void)state;
	assert_int_equal(dealer_ping(&dealer, 7), -EACCES);
	memcpy(wrong, raw.welcome.token, sizeof(wrong));
	wrong[15] ^= 1;
	assert_int_equal(dealer_attach_with(&dealer, wrong), -EACCES);
	assert_int_equal(dealer_ping(&dealer, 8), -EACCES);
	assert_int_equal(dealer_attach(&dealer), 0);
	header = dealer_header(&dealer, KVB_MSG_PING, UINT64_MAX);
	assert_int_equal(call(&header, "\x80", 1), 0);
	assert_int_equal(reply.size, 1);
	assert_int_equal(reply.body[0], 0x80);
}

static void a_copied_routing_id_gains_nothing(void **state)
{
	struct dealer first, second;
	struct kvb_msg_header header = dealer_header(&dealer, KVB_MSG_PING, 3);

	(void)state;
	assert_int_equal(dealer_open(&first, embedded.dir, &raw.welcome, "same"), 0);
	assert_int_equal(dealer_attach(&first), 0);
	assert_int_equal(dealer_open(&second, embedded.dir, &raw.welcome, "same"), 0);
	assert_int_equal(dealer_send(&second, &header, "\x80", 1), 0);
	/* The first one is undisturbed; the impostor is not heard. */
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(dealer_ping(&first, i), 0);
	assert_int_equal(dealer_receive_in(&second, 0, &reply), -ETIMEDOUT);
	dealer_close(&first);
	dealer_close(&second);
}

static void each_fault_has_its_answer(void **state)
{
	struct kvb_msg_header header;

	(void)state;
	assert_int_equal(dealer_attach(&dealer), 0);
	header = dealer_header(&dealer, KVB_MSG_PING, 1);
	header.boot_id[0] ^= 1;
	assert_int_equal(call(&header, "\x80", 1), -ESTALE);
	header = dealer_header(&dealer, 999, 2);
	assert_int_equal(call(&header, "\x80", 1), -EOPNOTSUPP);
	header = dealer_header(&dealer, KVB_MSG_PING, 3);
	header.session += (uint64_t)1 << 32;
	assert_int_equal(call(&header, "\x80", 1), -EACCES);
	header = dealer_header(&dealer, KVB_MSG_PING, 4);
	header.session = UINT64_MAX;
	assert_int_equal(call(&header, "\x80", 1), -EACCES);
	header = dealer_header(&dealer, KVB_MSG_PING, 5);
	assert_int_equal(call(&header, "\xc1", 1), -EPROTO);
	assert_int_equal(call(&header, "\x80\x80", 2), -EPROTO);
	assert_int_equal(call(&header, "", 0), -EPROTO);
	header = dealer_header(&dealer, KVB_MSG_LIST, 6);
	assert_int_equal(call(&header, "\x81\xa5limit\x00", 8), -EINVAL);
	assert_int_equal(call(&header,
				 "\x81\xa6"
				 "cursor\xff",
				 9),
		-EINVAL);
	header = dealer_header(&dealer, KVB_MSG_DELETE, 7);
	assert_int_equal(call(&header, "\x80", 1), -EINVAL);
	assert_int_equal(call(&header, "\x81\xa3key\xc4\x01k", 8), -ENOENT);
	assert_int_equal(dealer_ping(&dealer, 8), 0);
}

/* Any number of frames but two, or a header of another size, is -EPROTO, and the next one is
 * served. */
static void odd_messages_are_answered_once(void **state)
{
	struct kvb_msg_header header = dealer_header(&dealer, KVB_MSG_PING, 11);

	(void)state;
	assert_int_equal(dealer_attach(&dealer), 0);
	for (int frames = 1; frames <= 20; frames++) {
		if (frames == 2)
			continue;
		for (int i = 0; i < frames; i++)
			assert_true(zmq_send(dealer.socket, &header, sizeof(header),
					    i + 1 < frames ? ZMQ_SNDMORE : 0) >= 0);
		assert_int_equal(dealer_receive(&dealer, &reply), 0);
		assert_int_equal(reply.header.status, -EPROTO);
		assert_int_equal(dealer_ping(&dealer, (uint64_t)frames), 0);
	}
	for (size_t size = 0; size < 128; size++) {
		uint8_t bytes[128] = {0};
		memcpy(bytes, &header, sizeof(header));
		if (size == sizeof(header))
			continue;
		assert_int_equal(zmq_send(dealer.socket, bytes, size, ZMQ_SNDMORE), size);
		assert_int_equal(zmq_send(dealer.socket, "\x80", 1, 0), 1);
		assert_int_equal(dealer_receive(&dealer, &reply), 0);
		assert_int_equal(reply.header.status, -EPROTO);
	}
	header.magic++;
	assert_int_equal(dealer_send(&dealer, &header, "\x80", 1), 0);
	assert_int_equal(dealer_receive(&dealer, &reply), 0);
	assert_int_equal(reply.header.status, -EPROTONOSUPPORT);
	assert_int_equal(dealer_ping(&dealer, 12), 0);
}

static void many_requests_in_flight_get_as_many_replies(void **state)
{
	enum { COUNT = 500 };
	bool seen[COUNT] = {false};

	(void)state;
	assert_int_equal(dealer_attach(&dealer), 0);
	for (uint64_t i = 0; i < COUNT; i++) {
		struct kvb_msg_header header =
			dealer_header(&dealer, i % 2 ? KVB_MSG_PING : 999, i);
		assert_int_equal(dealer_send(&dealer, &header, "\x80", 1), 0);
	}
	for (uint64_t i = 0; i < COUNT; i++) {
		assert_int_equal(dealer_receive(&dealer, &reply), 0);
		assert_in_range(reply.header.request, 0, COUNT - 1);
		assert_false(seen[reply.header.request]);
		seen[reply.header.request] = true;
	}
	assert_int_equal(dealer_ping(&dealer, 1), 0);
}

/* One page into `seen`; returns the next cursor. */
static uint64_t take_page(uint64_t cursor, uint64_t limit, uint8_t *seen, unsigned count)
{
	struct kvb_msg_header header = dealer_header(&dealer, KVB_MSG_LIST, cursor);
	msgpack_sbuffer body;
	msgpack_packer packer;
	msgpack_unpacked unpacked;
	size_t offset = 0;
	const msgpack_object *entries;
	uint64_t next;

	msgpack_sbuffer_init(&body);
	msgpack_packer_init(&packer, &body, msgpack_sbuffer_write);
	msgpack_pack_map(&packer, 2);
	msgpack_pack_str_with_body(&packer, "cursor", 6);
	msgpack_pack_uint64(&packer, cursor);
	msgpack_pack_str_with_body(&packer, "limit", 5);
	msgpack_pack_uint64(&packer, limit);
	assert_int_equal(call(&header, body.data, body.size), 0);
	msgpack_sbuffer_destroy(&body);

	msgpack_unpacked_init(&unpacked);
	assert_int_equal(
		msgpack_unpack_next(&unpacked, (const char *)reply.body, reply.size, &offset),
		MSGPACK_UNPACK_SUCCESS);
	assert_int_equal(unpacked.data.via.map.size, 2);
	next = unpacked.data.via.map.ptr[0].val.via.u64;
	entries = &unpacked.data.via.map.ptr[1].val;
	assert_true(entries->via.array.size <= limit);
	for (uint32_t i = 0; i < entries->via.array.size; i++) {
		const msgpack_object *entry = &entries->via.array.ptr[i];
		unsigned number;
		assert_int_equal(entry->via.array.size, 2);
		assert_int_equal(
			sscanf(entry->via.array.ptr[0].via.bin.ptr, "key-%8u", &number), 1);
		assert_in_range(number, 0, count - 1);
		assert_int_equal(entry->via.array.ptr[1].via.u64, number % 50);
		seen[number]++;
	}
	msgpack_unpacked_destroy(&unpacked);
	return next;
}

static void check_list(unsigned count, uint64_t limit, unsigned pages_min)
{
	uint8_t *seen = calloc(count, 1);
	uint64_t cursor = 0;
	unsigned pages = 0;

	do {
		cursor = take_page(cursor, limit, seen, count);
		pages++;
	} while (cursor != 0);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(seen[i], 1);
	assert_in_range(pages, pages_min, count);
	free(seen);
}

static void lists_page_by_cursor_and_see_each_object_once(void **state)
{
	enum { COUNT = 16000 };
	char key[KVB_KEY_MAX + 1];

	(void)state;
	assert_int_equal(dealer_attach(&dealer), 0);
	memset(key, '.', sizeof(key));
	for (unsigned i = 0; i < COUNT; i++) {
		struct kvb_sqe put = {.op = KVB_OP_PUT,
			.flags = KVB_SQE_OPEN,
			.key_len = (uint16_t)(12 + i % 90),
			.total = i % 50,
			.length = i % 50};
		snprintf(key, sizeof(key), "key-%08u", i);
		key[12] = '.';
		assert_int_equal(raw_call(&raw, &put, key, NULL), 0);
	}
	/* More than one message's worth, then by the limit. */
	check_list(COUNT, UINT32_MAX, 3);
	check_list(COUNT, 1000, COUNT / 1000);
}

static bool session_is_back(const void *arg)
{
	uint64_t active;

	(void)arg;
	return raw_stat(&raw, "sessions.active", &active) == 0 && active == 1;
}

static void a_token_dies_with_its_session(void **state)
{
	struct raw_client other;
	struct kvb_msg_header header;

	(void)state;
	assert_int_equal(raw_attach(&other, embedded.dir), 0);
	header = dealer_header(&dealer, KVB_MSG_PING, 5);
	header.session = other.welcome.session;
	assert_int_equal(dealer_attach(&dealer), 0);
	/* The token of one session does not open another. */
	assert_int_equal(call(&header, "\x80", 1), -EACCES);
	raw_drop(&other);
	assert_true(embedded_wait(session_is_back, NULL));
	assert_int_equal(call(&header, "\x80", 1), -EACCES);
}

static bool no_session_is_left(const void *arg)
{
	const struct kvb_gauges *gauges = &embedded.server->gauges;

	(void)arg;
	return kvb_load_relaxed(&gauges->sessions_active) == 0 &&
		kvb_load_relaxed(&gauges->sessions_ending) == 0;
}

static uint64_t replies_not_taken(void)
{
	return kvb_load_relaxed(&embedded.server->gauges.replies_waiting) +
		kvb_load_relaxed(&embedded.server->counters.control_dropped);
}

static bool requests_are_answered(const void *count)
{
	return kvb_load_relaxed(&embedded.server->counters.control_requests) >=
		*(const uint64_t *)count;
}

/* Has more answered than ZMQ and the kernel hold: the rest waits in the server, or is dropped. */
static void send_unread(struct dealer *unread)
{
	struct kvb_msg_header header = dealer_header(unread, KVB_MSG_PING, 1);
	uint64_t before = replies_not_taken();
	uint64_t count = kvb_load_relaxed(&embedded.server->counters.control_requests) + UNREAD;

	for (int i = 0; i < UNREAD; i++)
		assert_int_equal(dealer_send(unread, &header, "\x80", 1), 0);
	assert_true(embedded_wait(requests_are_answered, &count));
	assert_true(replies_not_taken() > before + UNREAD / 4);
}

/* With neither a session nor a message nothing else would wake the server before its deadline. */
static void a_stop_ends_once_the_last_reply_is_read(void **state)
{
	struct dealer stranger;
	uint64_t received = 0, since_ns;

	(void)state;
	raw_drop(&raw);
	assert_true(embedded_wait(no_session_is_left, NULL));
	assert_int_equal(dealer_open_small(&stranger, embedded.dir, &raw.welcome), 0);
	send_unread(&stranger);
	kvb_server_stop_begin(embedded.server);
	assert_true(embedded_wait_draining(&embedded));
	since_ns = kvb_now_ns();
	/* The server drops what is not read half a second after all else is quiet. */
	while (received < UNREAD && dealer_receive_in(&stranger, 1000, &reply) == 0)
		received++;
	assert_int_equal(kvb_server_stop_wait(embedded.server), 0);
	assert_true(kvb_now_ns() - since_ns < DRAIN_MS / 2 * KVB_NS_PER_MS);
	dealer_close(&stranger);
}

static int start_for_few(void **state)
{
	struct kvb_server_options config;

	(void)state;
	embedded_config(&config);
	config.sessions_max = FEW;
	if (embedded_start(&embedded, &config) < 0 || raw_attach(&raw, embedded.dir) < 0)
		return -1;
	return dealer_open_small(&dealer, embedded.dir, &raw.welcome);
}

/* Each has answers that it does not read; the server keeps those of 64 strangers. */
static void strangers_do_not_take_the_places_of_clients(void **state)
{
	struct dealer strangers[64 + FEW + 1];

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(strangers); i++) {
		assert_int_equal(dealer_open_small(&strangers[i], embedded.dir, &raw.welcome), 0);
		send_unread(&strangers[i]);
	}
	assert_true(kvb_load_relaxed(&embedded.server->counters.control_dropped) > 0);
	assert_int_equal(dealer_attach(&dealer), 0);
	send_unread(&dealer);
	for (int i = 0; i < UNREAD; i++) {
		assert_int_equal(dealer_receive(&dealer, &reply), 0);
		assert_int_equal(reply.header.status, 0);
	}
	assert_int_equal(dealer_ping(&dealer, 1), 0);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(strangers); i++)
		dealer_close(&strangers[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_token_opens_the_control_socket, start, stop),
		cmocka_unit_test_setup_teardown(a_copied_routing_id_gains_nothing, start, stop),
		cmocka_unit_test_setup_teardown(each_fault_has_its_answer, start, stop),
		cmocka_unit_test_setup_teardown(odd_messages_are_answered_once, start, stop),
		cmocka_unit_test_setup_teardown(
			many_requests_in_flight_get_as_many_replies, start, stop),
		cmocka_unit_test_setup_teardown(
			lists_page_by_cursor_and_see_each_object_once, start, stop),
		cmocka_unit_test_setup_teardown(a_token_dies_with_its_session, start, stop),
		cmocka_unit_test_setup_teardown(
			a_stop_ends_once_the_last_reply_is_read, start, stop),
		cmocka_unit_test_setup_teardown(
			strangers_do_not_take_the_places_of_clients, start_for_few, stop),
	};

	return cmocka_run_group_tests_name("control", tests, NULL, NULL) ? 1 : 0;
}
