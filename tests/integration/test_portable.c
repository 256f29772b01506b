/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_portable.c - requests by control message: what is accepted, what is refused, and that both
 * carriers end in one completion queue with one credit.
 *
 * A server in this process; a bare client with ring and DEALER in the test's thread.
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
#include <poll.h>

#include "server/hook.h"
#include "server/server.h"
#include "shm/atomic.h"
#include "shm/util.h"
#include "tests/dealer.h"
#include "tests/embedded.h"
#include "tests/raw.h"

#define CREDIT   16u
#define FRAGMENT 4096u

static struct embedded embedded;
static struct raw_client raw;
static struct dealer dealer;
static struct dealer_reply reply;
static msgpack_sbuffer body;
static msgpack_packer packer;

static uint32_t copies_wait; /* atomic: workers stop before they copy */
static uint32_t copies_in;   /* atomic: those that do */

static void wait_before_copy(enum kvb_hook_point point, uint32_t slot)
{
	(void)slot;
	if (point != KVB_HOOK_COPY || !kvb_load_acquire(&copies_wait))
		return;
	(void)kvb_fetch_add(&copies_in, 1u);
	while (kvb_load_acquire(&copies_wait))
		poll(NULL, 0, 1);
}

static bool one_copy_in(const void *unused)
{
	(void)unused;
	return kvb_load_acquire(&copies_in) == 1;
}

static int start(void **state)
{
	struct kvb_server_options config;

	(void)state;
	kvb_store_release(&copies_wait, 0u);
	kvb_store_release(&copies_in, 0u);
	kvb_hook_installed = wait_before_copy;
	embedded_config(&config);
	config.ring_entries = CREDIT;
	config.fragment_bytes = FRAGMENT;
	config.staging_bytes = 64 * KVB_KIB;
	config.transfer_timeout_ms = 1000;
	if (embedded_start(&embedded, &config) < 0 || raw_attach(&raw, embedded.dir) < 0 ||
		dealer_open(&dealer, embedded.dir, &raw.welcome, NULL) < 0)
		return -1;
	msgpack_sbuffer_init(&body);
	msgpack_packer_init(&packer, &body, msgpack_sbuffer_write);
	return dealer_attach(&dealer);
}

static int stop(void **state)
{
	int r;

	(void)state;
	kvb_store_release(&copies_wait, 0u);
	msgpack_sbuffer_destroy(&body);
	dealer_close(&dealer);
	raw_drop(&raw);
	r = embedded_stop(&embedded);
	kvb_hook_installed = NULL;
	return r;
}

/* ------------------------------------------------------------------------------------------- sending */

static void begin(size_t requests)
{
	msgpack_sbuffer_clear(&body);
	msgpack_pack_array(&packer, requests);
}

static void add(const struct kvb_sqe *sqe, const void *key)
{
	msgpack_pack_array(&packer, KVB_SUBMIT_FIELDS);
	msgpack_pack_uint8(&packer, sqe->op);
	msgpack_pack_uint8(&packer, sqe->flags);
	msgpack_pack_uint32(&packer, sqe->transfer);
	msgpack_pack_uint64(&packer, sqe->user_data);
	msgpack_pack_uint64(&packer, sqe->offset);
	msgpack_pack_uint64(&packer, sqe->total);
	msgpack_pack_uint64(&packer, sqe->staging);
	msgpack_pack_uint32(&packer, sqe->length);
	msgpack_pack_bin_with_body(&packer, key, sqe->key_len);
}

/* Sends what was added: the status. */
static int submit(void)
{
	struct kvb_msg_header header = dealer_header(&dealer, KVB_MSG_SUBMIT, 9);

	assert_int_equal(dealer_call(&dealer, &header, body.data, body.size, &reply), 0);
	return reply.header.status;
}

/* How many were accepted. */
static uint32_t accepted(void)
{
	uint32_t n;

	assert_int_equal(submit(), 0);
	/* {"accepted": a number in its shortest form} */
	assert_memory_equal(reply.body,
		"\x81\xa8"
		"accepted",
		10);
	n = reply.body[10] < 0x80        ? reply.body[10]
		: reply.body[10] == 0xcc ? reply.body[11]
					 : UINT32_MAX;
	return n;
}

static void submit_nops(uint64_t first, size_t count)
{
	begin(count);
	for (uint64_t i = 0; i < count; i++)
		add(&(struct kvb_sqe){.op = KVB_OP_NOP, .user_data = first + i}, "");
}

static struct kvb_cqe next_completion(void)
{
	struct kvb_cqe cqe;

	assert_int_equal(raw_complete(&raw, &cqe), 0);
	return cqe;
}

/* One request by message, and its completion. */
static int one(const struct kvb_sqe *sqe, const char *key, struct kvb_cqe *ret_cqe)
{
	struct kvb_cqe cqe;

	begin(1);
	add(sqe, key);
	assert_int_equal(accepted(), 1);
	cqe = next_completion();
	assert_int_equal(cqe.user_data, sqe->user_data);
	if (ret_cqe)
		*ret_cqe = cqe;
	return cqe.result;
}

static struct kvb_sqe put_of(uint32_t transfer, uint64_t offset, uint32_t length, uint64_t total)
{
	return (struct kvb_sqe){.op = KVB_OP_PUT,
		.flags = offset == 0 ? KVB_SQE_OPEN : 0,
		.key_len = offset == 0 ? 3 : 0,
		.transfer = transfer,
		.user_data = offset + 1,
		.offset = offset,
		.total = total,
		.length = length};
}

static struct kvb_sqe get_of(uint32_t transfer, uint64_t offset, uint32_t length, uint64_t total)
{
	struct kvb_sqe sqe = put_of(transfer, offset, length, total);

	sqe.op = KVB_OP_GET;
	return sqe;
}

static bool no_completion_is_there(void)
{
	struct kvb_cqe cqe;

	return kvb_cq_take(&raw.cq, &cqe) == 0;
}

/* --------------------------------------------------------------------------------------------- tests */

static void every_operation_works_by_message(void **state)
{
	struct kvb_sqe sqe;
	struct kvb_cqe cqe;

	(void)state;
	memcpy(raw.staging, "payload", 7);
	sqe = put_of(0, 0, 7, 7);
	assert_int_equal(one(&sqe, "key", NULL), 0);
	sqe.flags |= KVB_SQE_IF_ABSENT;
	assert_int_equal(one(&sqe, "key", NULL), -EEXIST);
	sqe = (struct kvb_sqe){.op = KVB_OP_EXISTS, .key_len = 3, .user_data = UINT64_MAX};
	assert_int_equal(one(&sqe, "key", &cqe), 0);
	assert_int_equal(cqe.value, 7);
	sqe = get_of(0, 0, 100, 100);
	sqe.staging = 1000;
	assert_int_equal(one(&sqe, "key", &cqe), 0);
	assert_int_equal(cqe.value, 7);
	assert_int_equal(cqe.length, 7);
	assert_memory_equal(raw.staging + 1000, "payload", 7);
	sqe = (struct kvb_sqe){.op = KVB_OP_STATS, .length = 16384};
	assert_int_equal(one(&sqe, "", &cqe), 0);
	sqe = (struct kvb_sqe){.op = KVB_OP_DELETE, .key_len = 3};
	assert_int_equal(one(&sqe, "key", NULL), 0);
	assert_int_equal(one(&sqe, "key", NULL), -ENOENT);
	sqe = (struct kvb_sqe){.op = KVB_OP_MAX};
	assert_int_equal(one(&sqe, "", NULL), -EOPNOTSUPP);
	sqe = (struct kvb_sqe){.op = KVB_OP_EXISTS};
	assert_int_equal(one(&sqe, "", NULL), -EINVAL);
	sqe = put_of(0, 0, FRAGMENT + 1, FRAGMENT + 1);
	assert_int_equal(one(&sqe, "key", NULL), -EINVAL);
	sqe.flags = 0x80;
	assert_int_equal(one(&sqe, "key", NULL), -EINVAL);
}

/* Each of them is refused whole: the good requests beside it are not carried out either. */
static void a_malformed_message_is_refused_whole(void **state)
{
	struct kvb_sqe nop = {.op = KVB_OP_NOP};

	(void)state;
	for (unsigned wrong = 0; wrong < KVB_SUBMIT_FIELDS; wrong++) {
		begin(3);
		add(&nop, "");
		msgpack_pack_array(&packer, KVB_SUBMIT_FIELDS);
		for (unsigned field = 0; field < KVB_SUBMIT_FIELDS; field++) {
			if (field == wrong)
				msgpack_pack_nil(&packer);
			else if (field == KVB_SUBMIT_KEY)
				msgpack_pack_bin_with_body(&packer, "k", 1);
			else
				msgpack_pack_uint8(&packer, 0);
		}
		add(&nop, "");
		assert_int_equal(submit(), -EINVAL);
		assert_non_null(memmem(reply.body, reply.size, "request 1 is not [", 18));
	}
	for (unsigned fields = 0; fields < 20; fields++) {
		if (fields == KVB_SUBMIT_FIELDS)
			continue;
		begin(1);
		msgpack_pack_array(&packer, fields);
		for (unsigned i = 0; i < fields; i++)
			msgpack_pack_uint8(&packer, 0);
		assert_int_equal(submit(), -EINVAL);
	}
	/* Numbers that no descriptor could hold. */
	for (unsigned field = 0; field < KVB_SUBMIT_KEY; field++) {
		if (field >= KVB_SUBMIT_USER_DATA && field <= KVB_SUBMIT_STAGING)
			continue;
		begin(1);
		msgpack_pack_array(&packer, KVB_SUBMIT_FIELDS);
		for (unsigned i = 0; i < KVB_SUBMIT_KEY; i++)
			msgpack_pack_uint64(&packer, i == field ? (uint64_t)UINT32_MAX + 1 : 0);
		msgpack_pack_bin_with_body(&packer, "", 0);
		assert_int_equal(submit(), -EINVAL);
	}
	begin(1);
	{
		char key[KVB_KEY_MAX + 1] = {0};
		struct kvb_sqe exists = {.op = KVB_OP_EXISTS, .key_len = KVB_KEY_MAX + 1};
		add(&exists, key);
		assert_int_equal(submit(), -EINVAL);
		exists.key_len = KVB_KEY_MAX;
		assert_int_equal(one(&exists, key, NULL), -ENOENT);
	}
	begin(0);
	assert_int_equal(submit(), -EINVAL);
	submit_nops(0, CREDIT + 1);
	assert_int_equal(submit(), -EINVAL);
	msgpack_sbuffer_clear(&body);
	msgpack_pack_map(&packer, 0);
	assert_int_equal(submit(), -EINVAL);
	assert_true(no_completion_is_there());
	assert_int_equal(one(&nop, "", NULL), 0);
}

static void what_is_accepted_completes_once_and_in_order(void **state)
{
	(void)state;
	for (uint64_t round = 0; round < 1000; round++) {
		size_t count = 1 + round % CREDIT;
		submit_nops(round * 100, count);
		assert_int_equal(accepted(), count);
		for (uint64_t i = 0; i < count; i++)
			assert_int_equal(next_completion().user_data, round * 100 + i);
		assert_true(no_completion_is_there());
	}
}

/* While the worker is held in a copy, no more is taken than the session's queue holds, which is
 * its credit. */
static void more_than_the_queue_holds_is_not_accepted(void **state)
{
	struct kvb_sqe put = put_of(0, 0, 100, 100);

	(void)state;
	kvb_store_release(&copies_wait, 1u);
	begin(1);
	add(&put, "key");
	assert_int_equal(accepted(), 1);
	assert_true(embedded_wait(one_copy_in, NULL));
	submit_nops(100, CREDIT - 1);
	assert_int_equal(accepted(), CREDIT - 1);
	assert_true(no_completion_is_there());
	kvb_store_release(&copies_wait, 0u);
	assert_int_equal(next_completion().user_data, 1);
	for (uint64_t i = 0; i < CREDIT - 1; i++)
		assert_int_equal(next_completion().user_data, 100 + i);

	/* A client that goes beyond its credit: the queue is full, and says so. */
	kvb_store_release(&copies_in, 0u);
	kvb_store_release(&copies_wait, 1u);
	begin(1);
	add(&put, "key");
	assert_int_equal(accepted(), 1);
	assert_true(embedded_wait(one_copy_in, NULL));
	submit_nops(100, CREDIT - 3);
	assert_int_equal(accepted(), CREDIT - 3);
	submit_nops(200, 5);
	assert_int_equal(accepted(), 3);
	submit_nops(300, 2);
	assert_int_equal(accepted(), 0);
}

static void put_whole(const char *key, uint64_t total)
{
	for (uint64_t at = 0; at < total; at += FRAGMENT) {
		struct kvb_sqe put = put_of(KVB_TRANSFER_ID(2, 5), at,
			(uint32_t)kvb_min_u64(FRAGMENT, total - at), total);
		assert_int_equal(one(&put, key, NULL), 0);
	}
}

static void a_transfer_stays_on_the_carrier_that_opened_it(void **state)
{
	uint32_t id = KVB_TRANSFER_ID(1, 7);
	struct kvb_sqe put, get, abort_it = {.op = KVB_OP_ABORT, .transfer = id};
	uint64_t length;

	(void)state;
	/* Opened by message: the ring finds nothing open, and does no harm. */
	put = put_of(id, 0, FRAGMENT, 2 * FRAGMENT);
	assert_int_equal(one(&put, "key", NULL), 0);
	assert_int_equal(raw_put(&raw, "key", id, FRAGMENT, FRAGMENT, 2 * FRAGMENT), -ESTALE);
	assert_int_equal(raw_call(&raw, &abort_it, NULL, NULL), -ESTALE);
	assert_int_equal(raw_put(&raw, "key", id, 0, FRAGMENT, 2 * FRAGMENT), -EBUSY);
	put = put_of(id, FRAGMENT, FRAGMENT, 2 * FRAGMENT);
	assert_int_equal(one(&put, "", NULL), 0);
	assert_int_equal(raw_stat(&raw, "store.objects", &length), 0);
	assert_int_equal(length, 1);
	/* Opened on the ring: the message finds nothing open. */
	assert_int_equal(raw_get(&raw, "key", id, 0, FRAGMENT, 2 * FRAGMENT, NULL), 0);
	get = get_of(id, FRAGMENT, FRAGMENT, 0);
	assert_int_equal(one(&get, "", NULL), -ESTALE);
	assert_int_equal(one(&abort_it, "", NULL), -ESTALE);
	assert_int_equal(raw_get(&raw, "key", id, FRAGMENT, FRAGMENT, 0, NULL), 0);
	put_whole("big", 5 * FRAGMENT + 1);
}

/* A client that floods one carrier does not keep its own other one waiting: they are served in
 * turn. */
static void the_carriers_take_turns(void **state)
{
	struct kvb_sqe put = put_of(0, 0, 100, 100);
	unsigned ring_seen = 0, message_at = UINT32_MAX, ring_at = UINT32_MAX;

	(void)state;
	kvb_store_release(&copies_wait, 1u);
	assert_int_equal(raw_submit(&raw, &put, "key"), 0);
	assert_true(embedded_wait(one_copy_in, NULL));
	for (uint64_t i = 0; i < 7; i++) {
		struct kvb_sqe nop = {.op = KVB_OP_NOP, .user_data = 1000 + i};
		assert_int_equal(raw_submit(&raw, &nop, NULL), 0);
	}
	submit_nops(2000, 7);
	assert_int_equal(accepted(), 7);
	kvb_store_release(&copies_wait, 0u);
	assert_int_equal(next_completion().user_data, 1);
	for (unsigned i = 0; i < 14; i++) {
		uint64_t user_data = next_completion().user_data;
		ring_seen += user_data < 2000;
		/* Never more than one ahead. */
		assert_in_range(2 * ring_seen, i, i + 2);
		if (user_data == 2000)
			message_at = i;
		if (user_data == 1000)
			ring_at = i;
	}
	assert_int_equal(ring_seen, 7);
	assert_true(message_at < 2 && ring_at < 2);
}

/* A wake-up that gets lost would let this hang: sessions rest between rounds, on both carriers. */
static void no_wakeup_is_lost_between_the_carriers(void **state)
{
	uint64_t missed;

	(void)state;
	for (uint64_t i = 0; i < 3000; i++) {
		struct kvb_sqe nop = {.op = KVB_OP_NOP, .user_data = 1};
		submit_nops(2, 1);
		if (i % 3 != 0)
			assert_int_equal(raw_submit(&raw, &nop, NULL), 0);
		assert_int_equal(accepted(), 1);
		(void)next_completion();
		if (i % 3 != 0)
			(void)next_completion();
		assert_true(no_completion_is_there());
	}
	assert_int_equal(raw_stat(&raw, "bells.missed_wakes", &missed), 0);
	assert_int_equal(missed, 0);
}

/* Too many in flight on both carriers together: the session ends, the server does not. */
static void excess_credit_ends_the_session(void **state)
{
	struct kvb_goodbye goodbye;
	struct raw_client other;

	(void)state;
	for (unsigned i = 0; i < CREDIT; i++) {
		struct kvb_sqe nop = {.op = KVB_OP_NOP};
		assert_int_equal(raw_submit(&raw, &nop, NULL), 0);
	}
	submit_nops(100, 1);
	(void)submit();
	assert_int_equal(raw_goodbye(raw.door_fd, &goodbye), 0);
	assert_int_equal(goodbye.reason, KVB_REASON_PROTOCOL);
	assert_non_null(strstr(goodbye.text, "without reading their completions"));
	submit_nops(200, 1);
	assert_int_equal(submit(), -EACCES);
	assert_int_equal(raw_attach(&other, embedded.dir), 0);
	raw_drop(&other);
}

/* What was accepted completes; what is open may go on; nothing new is opened. */
static void a_drain_serves_what_was_accepted(void **state)
{
	uint32_t id = KVB_TRANSFER_ID(3, 9);
	struct kvb_sqe put = put_of(id, 0, FRAGMENT, 2 * FRAGMENT);
	struct kvb_sqe another = put_of(0, 0, 5, 5);

	(void)state;
	assert_int_equal(one(&put, "key", NULL), 0);
	kvb_server_stop_begin(embedded.server);
	assert_true(embedded_wait_draining(&embedded));
	assert_int_equal(one(&another, "new", NULL), -ESHUTDOWN);
	put = put_of(id, FRAGMENT, FRAGMENT, 2 * FRAGMENT);
	assert_int_equal(one(&put, "", NULL), 0);
	assert_int_equal(kvb_server_stop_wait(embedded.server), 0);
}

/* Its transfers are swept like those of the ring. */
static bool one_expired(const void *unused)
{
	uint64_t expired;

	(void)unused;
	return raw_stat(&raw, "ops.transfers_expired", &expired) == 0 && expired == 1;
}

static void an_idle_transfer_by_message_expires(void **state)
{
	uint32_t id = KVB_TRANSFER_ID(0, 1);
	struct kvb_sqe put = put_of(id, 0, FRAGMENT, 3 * FRAGMENT);

	(void)state;
	assert_int_equal(one(&put, "key", NULL), 0);
	assert_true(embedded_wait(one_expired, NULL));
	put = put_of(id, FRAGMENT, FRAGMENT, 3 * FRAGMENT);
	assert_int_equal(one(&put, "", NULL), -ESTALE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(every_operation_works_by_message, start, stop),
		cmocka_unit_test_setup_teardown(a_malformed_message_is_refused_whole, start, stop),
		cmocka_unit_test_setup_teardown(
			what_is_accepted_completes_once_and_in_order, start, stop),
		cmocka_unit_test_setup_teardown(
			more_than_the_queue_holds_is_not_accepted, start, stop),
		cmocka_unit_test_setup_teardown(
			a_transfer_stays_on_the_carrier_that_opened_it, start, stop),
		cmocka_unit_test_setup_teardown(the_carriers_take_turns, start, stop),
		cmocka_unit_test_setup_teardown(
			no_wakeup_is_lost_between_the_carriers, start, stop),
		cmocka_unit_test_setup_teardown(excess_credit_ends_the_session, start, stop),
		cmocka_unit_test_setup_teardown(a_drain_serves_what_was_accepted, start, stop),
		cmocka_unit_test_setup_teardown(an_idle_transfer_by_message_expires, start, stop),
	};

	return cmocka_run_group_tests_name("portable", tests, NULL, NULL) ? 1 : 0;
}
