/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_control.c - the control socket: every message is answered exactly once, whatever is wrong with it.
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
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/raw.h"

#define DEADLINE_MS 20000

static struct embedded embedded;
static struct raw_client raw;
static void *context;
static void *dealer;

static void *dealer_new(const char *identity)
{
	char endpoint[128];
	void *socket = zmq_socket(context, ZMQ_DEALER);
	int zero = 0;

	zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
	if (identity)
		zmq_setsockopt(socket, ZMQ_ROUTING_ID, identity, strlen(identity));
	snprintf(endpoint, sizeof(endpoint), "ipc://%s/%s", embedded.dir, KVB_CONTROL_SOCKET);
	return zmq_connect(socket, endpoint) == 0 ? socket : NULL;
}

static int start(void **state)
{
	struct kvb_server_options config;

	(void)state;
	embedded_config(&config);
	config.objects_max = 20000;
	if (embedded_start(&embedded, &config) < 0 || raw_attach(&raw, embedded.dir) < 0)
		return -1;
	context = zmq_ctx_new();
	dealer = dealer_new(NULL);
	return dealer ? 0 : -1;
}

static int stop(void **state)
{
	(void)state;
	zmq_close(dealer);
	zmq_ctx_term(context);
	raw_drop(&raw);
	return embedded_stop(&embedded);
}

static struct kvb_msg_header header_of(uint16_t type, uint64_t request)
{
	struct kvb_msg_header header = {.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = type,
		.request = request,
		.session = raw.welcome.session};

	memcpy(header.boot_id, raw.welcome.boot_id, KVB_ID_BYTES);
	return header;
}

static void send_two(
	void *socket, const struct kvb_msg_header *header, const void *body, size_t size)
{
	assert_int_equal(zmq_send(socket, header, sizeof(*header), ZMQ_SNDMORE), sizeof(*header));
	assert_int_equal(zmq_send(socket, body, size, 0), size);
}

struct reply {
	struct kvb_msg_header header;
	uint8_t body[KVB_MSG_BODY_MAX];
	size_t size;
};
static struct reply reply;

/* The next reply: exactly a header and a body. */
static void receive(void *socket)
{
	zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
	int more;
	size_t size = sizeof(more);
	int n;

	assert_int_equal(zmq_poll(&item, 1, DEADLINE_MS), 1);
	assert_int_equal(
		zmq_recv(socket, &reply.header, sizeof(reply.header), 0), sizeof(reply.header));
	n = zmq_recv(socket, reply.body, sizeof(reply.body), 0);
	assert_in_range(n, 1, sizeof(reply.body));
	reply.size = (size_t)n;
	assert_int_equal(zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size), 0);
	assert_int_equal(more, 0);
	assert_int_equal(reply.header.magic, KVB_MAGIC);
	assert_memory_equal(reply.header.boot_id, raw.welcome.boot_id, KVB_ID_BYTES);
}

static int call(void *socket, const struct kvb_msg_header *header, const void *body, size_t size)
{
	send_two(socket, header, body, size);
	receive(socket);
	assert_int_equal(reply.header.request, header->request);
	assert_int_equal(reply.header.type, header->type);
	return reply.header.status;
}

static int attach(void *socket, const uint8_t *token)
{
	struct kvb_msg_header header = header_of(KVB_MSG_ATTACH, 1);
	uint8_t body[9 + KVB_ID_BYTES] = "\x81\xa5token\xc4\x10";

	memcpy(body + 9, token, KVB_ID_BYTES);
	return call(socket, &header, body, sizeof(body));
}

static int ping(void *socket, uint64_t request)
{
	struct kvb_msg_header header = header_of(KVB_MSG_PING, request);

	return call(socket, &header, "\x80", 1);
}

static void a_token_opens_the_control_socket(void **state)
{
	uint8_t wrong[KVB_ID_BYTES];

	(void)state;
	assert_int_equal(ping(dealer, 7), -EACCES);
	memcpy(wrong, raw.welcome.token, sizeof(wrong));
	wrong[15] ^= 1;
	assert_int_equal(attach(dealer, wrong), -EACCES);
	assert_int_equal(ping(dealer, 8), -EACCES);
	assert_int_equal(attach(dealer, raw.welcome.token), 0);
	assert_int_equal(ping(dealer, UINT64_MAX), 0);
	assert_int_equal(reply.size, 1);
	assert_int_equal(reply.body[0], 0x80);
}

static void a_copied_routing_id_gains_nothing(void **state)
{
	void *first = dealer_new("same");
	void *second;
	struct kvb_msg_header header = header_of(KVB_MSG_PING, 3);
	zmq_pollitem_t item;

	(void)state;
	assert_int_equal(attach(first, raw.welcome.token), 0);
	second = dealer_new("same");
	send_two(second, &header, "\x80", 1);
	/* The first one is undisturbed; the impostor is not heard. */
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(ping(first, i), 0);
	item = (zmq_pollitem_t){.socket = second, .events = ZMQ_POLLIN};
	assert_int_equal(zmq_poll(&item, 1, 0), 0);
	zmq_close(first);
	zmq_close(second);
}

static void each_fault_has_its_answer(void **state)
{
	struct kvb_msg_header header;

	(void)state;
	assert_int_equal(attach(dealer, raw.welcome.token), 0);
	header = header_of(KVB_MSG_PING, 1);
	header.boot_id[0] ^= 1;
	assert_int_equal(call(dealer, &header, "\x80", 1), -ESTALE);
	header = header_of(999, 2);
	assert_int_equal(call(dealer, &header, "\x80", 1), -EOPNOTSUPP);
	header = header_of(KVB_MSG_PING, 3);
	header.session += (uint64_t)1 << 32;
	assert_int_equal(call(dealer, &header, "\x80", 1), -EACCES);
	header = header_of(KVB_MSG_PING, 4);
	header.session = UINT64_MAX;
	assert_int_equal(call(dealer, &header, "\x80", 1), -EACCES);
	header = header_of(KVB_MSG_PING, 5);
	assert_int_equal(call(dealer, &header, "\xc1", 1), -EPROTO);
	assert_int_equal(call(dealer, &header, "\x80\x80", 2), -EPROTO);
	assert_int_equal(call(dealer, &header, "", 0), -EPROTO);
	header = header_of(KVB_MSG_LIST, 6);
	assert_int_equal(call(dealer, &header, "\x81\xa5limit\x00", 8), -EINVAL);
	assert_int_equal(call(dealer, &header,
				 "\x81\xa6"
				 "cursor\xff",
				 9),
		-EINVAL);
	header = header_of(KVB_MSG_DELETE, 7);
	assert_int_equal(call(dealer, &header, "\x80", 1), -EINVAL);
	assert_int_equal(call(dealer, &header, "\x81\xa3key\xc4\x01k", 8), -ENOENT);
	assert_int_equal(ping(dealer, 8), 0);
}

/* Any number of frames but two, or a header of another size, is -EPROTO, and the next one is served. */
static void odd_messages_are_answered_once(void **state)
{
	struct kvb_msg_header header = header_of(KVB_MSG_PING, 11);

	(void)state;
	assert_int_equal(attach(dealer, raw.welcome.token), 0);
	for (int frames = 1; frames <= 20; frames++) {
		if (frames == 2)
			continue;
		for (int i = 0; i < frames; i++)
			assert_true(zmq_send(dealer, &header, sizeof(header),
					    i + 1 < frames ? ZMQ_SNDMORE : 0) >= 0);
		receive(dealer);
		assert_int_equal(reply.header.status, -EPROTO);
		assert_int_equal(ping(dealer, (uint64_t)frames), 0);
	}
	for (size_t size = 0; size < 128; size++) {
		uint8_t bytes[128] = {0};
		memcpy(bytes, &header, sizeof(header));
		if (size == sizeof(header))
			continue;
		assert_int_equal(zmq_send(dealer, bytes, size, ZMQ_SNDMORE), size);
		assert_int_equal(zmq_send(dealer, "\x80", 1, 0), 1);
		receive(dealer);
		assert_int_equal(reply.header.status, -EPROTO);
	}
	header.magic++;
	send_two(dealer, &header, "\x80", 1);
	receive(dealer);
	assert_int_equal(reply.header.status, -EPROTONOSUPPORT);
	assert_int_equal(ping(dealer, 12), 0);
}

static void many_requests_in_flight_get_as_many_replies(void **state)
{
	enum { COUNT = 500 };
	bool seen[COUNT] = {false};

	(void)state;
	assert_int_equal(attach(dealer, raw.welcome.token), 0);
	for (uint64_t i = 0; i < COUNT; i++) {
		struct kvb_msg_header header = header_of(i % 2 ? KVB_MSG_PING : 999, i);
		send_two(dealer, &header, "\x80", 1);
	}
	for (uint64_t i = 0; i < COUNT; i++) {
		receive(dealer);
		assert_in_range(reply.header.request, 0, COUNT - 1);
		assert_false(seen[reply.header.request]);
		seen[reply.header.request] = true;
	}
	assert_int_equal(ping(dealer, 1), 0);
}

/* One page into `seen`; returns the next cursor. */
static uint64_t take_page(uint64_t cursor, uint64_t limit, uint8_t *seen, unsigned count)
{
	struct kvb_msg_header header = header_of(KVB_MSG_LIST, cursor);
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
	assert_int_equal(call(dealer, &header, body.data, body.size), 0);
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
	assert_int_equal(attach(dealer, raw.welcome.token), 0);
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
	header = header_of(KVB_MSG_PING, 5);
	header.session = other.welcome.session;
	assert_int_equal(attach(dealer, raw.welcome.token), 0);
	/* The token of one session does not open another. */
	assert_int_equal(call(dealer, &header, "\x80", 1), -EACCES);
	raw_drop(&other);
	assert_true(embedded_wait(session_is_back, NULL));
	assert_int_equal(call(dealer, &header, "\x80", 1), -EACCES);
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
	};

	return cmocka_run_group_tests_name("control", tests, NULL, NULL) ? 1 : 0;
}
