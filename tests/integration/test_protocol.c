/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_protocol.c - what the server answers to every kind of descriptor and record, byte for byte.
 *
 * A server in this process, clients of bare protocol in the test's thread.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/hook.h"
#include "server/server.h"
#include "shm/atomic.h"
#include "shm/fd.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/raw.h"

#define FRAGMENT 4096u
#define T1       KVB_TRANSFER_ID(0, 1)
#define T2       KVB_TRANSFER_ID(1, 1)

static struct embedded embedded;
static struct raw_client raw;

static int start_with(struct kvb_server_options *config)
{
	if (embedded_start(&embedded, config) < 0)
		return -1;
	return raw_attach(&raw, embedded.dir);
}

static int start(void **state)
{
	struct kvb_server_options config;

	(void)state;
	embedded_config(&config);
	config.fragment_bytes = FRAGMENT;
	config.ring_entries = 8;
	config.open_max = 64 * KVB_KIB;
	config.transfer_timeout_ms = 100;
	config.sessions_max = 3;
	return start_with(&config);
}

static int stop(void **state)
{
	(void)state;
	raw_drop(&raw);
	return embedded_stop(&embedded);
}

static uint64_t stat_of(const char *name)
{
	uint64_t value = 0;

	assert_int_equal(raw_stat(&raw, name, &value), 0);
	return value;
}

static void fill(uint8_t seed)
{
	for (unsigned i = 0; i < FRAGMENT; i++)
		raw.staging[i] = (uint8_t)(seed + i * 7);
}

static void check(uint8_t seed, uint32_t length)
{
	for (unsigned i = 0; i < length; i++)
		assert_int_equal(raw.staging[i], (uint8_t)(seed + i * 7));
}

/* ------------------------------------------------------------------------------------- requests */

static void a_nop_completes_with_zero(void **state)
{
	struct kvb_sqe sqe = {.op = KVB_OP_NOP, .user_data = 0x1122334455667788u};
	struct kvb_cqe cqe;

	(void)state;
	assert_int_equal(raw_call(&raw, &sqe, NULL, &cqe), 0);
	assert_int_equal(cqe.user_data, 0x1122334455667788u);
	assert_int_equal(cqe.value, 0);
	assert_int_equal(cqe.length, 0);
}

static void unknown_operations_and_flags_are_refused(void **state)
{
	struct kvb_sqe bad_op = {.op = KVB_OP_MAX};
	struct kvb_sqe bad_flag = {.op = KVB_OP_NOP, .flags = 4};
	struct kvb_sqe reserved0 = {.op = KVB_OP_NOP, .reserved0 = 1};
	struct kvb_sqe reserved1 = {.op = KVB_OP_NOP, .reserved = {0, 1}};

	(void)state;
	assert_int_equal(raw_call(&raw, &bad_op, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(raw_call(&raw, &bad_flag, NULL, NULL), -EINVAL);
	assert_int_equal(raw_call(&raw, &reserved0, NULL, NULL), -EINVAL);
	assert_int_equal(raw_call(&raw, &reserved1, NULL, NULL), -EINVAL);
}

static void small_objects_travel_in_one_descriptor(void **state)
{
	struct kvb_cqe cqe;

	(void)state;
	fill(3);
	assert_int_equal(raw_put(&raw, "one", 0, 0, FRAGMENT, FRAGMENT), 0);
	fill(99);
	assert_int_equal(raw_get(&raw, "one", 0, 0, FRAGMENT, FRAGMENT, &cqe), 0);
	assert_int_equal(cqe.value, FRAGMENT);
	assert_int_equal(cqe.length, FRAGMENT);
	check(3, FRAGMENT);
	assert_int_equal(raw_put(&raw, "none", 0, 0, 0, 0), 0);
	assert_int_equal(raw_get(&raw, "none", 0, 0, 0, 0, &cqe), 0);
	assert_int_equal(cqe.value, 0);
	assert_int_equal(stat_of("store.objects"), 2);
	assert_int_equal(stat_of("store.pending"), 0);
}

static void fragments_must_be_in_order(void **state)
{
	struct kvb_cqe cqe;

	(void)state;
	fill(1);
	assert_int_equal(raw_put(&raw, "k", T1, 0, 4096, 10000), 0);
	assert_int_equal(raw_get(&raw, "k", 0, 0, FRAGMENT, 1 << 20, &cqe), -ENOENT);
	assert_int_equal(raw_put(&raw, "", T1, 4096, 4096, 0), 0);
	assert_int_equal(raw_put(&raw, "", T1, 8192, 1808, 0), 0);
	assert_int_equal(raw_put(&raw, "", T1, 10000, 1, 0), -ESTALE);
	fill(77);
	assert_int_equal(raw_get(&raw, "k", T2, 0, 4096, 10000, &cqe), 0);
	assert_int_equal(cqe.value, 10000);
	check(1, 4096);
	assert_int_equal(raw_get(&raw, "", T2, 4096, 4096, 0, &cqe), 0);
	check(1, 4096);
	assert_int_equal(raw_get(&raw, "", T2, 8192, 4096, 0, &cqe), 0);
	assert_int_equal(cqe.length, 1808);
	check(1, 1808);
	assert_int_equal(raw_get(&raw, "", T2, 10000, 1, 0, &cqe), -ESTALE);
	assert_int_equal(stat_of("store.held"), 0);
}

static void a_gap_ends_the_transfer(void **state)
{
	struct kvb_cqe cqe;

	(void)state;
	assert_int_equal(raw_put(&raw, "k", T1, 0, 4096, 12288), 0);
	assert_int_equal(raw_put(&raw, "", T1, 8192, 4096, 0), -EINVAL);
	assert_int_equal(raw_put(&raw, "", T1, 4096, 4096, 0), -ESTALE);
	assert_int_equal(raw_put(&raw, "k", T1, 0, 4096, 12288), 0);
	assert_int_equal(raw_put(&raw, "", T1, 4096, 4096, 0), 0);
	/* Beyond the end. */
	assert_int_equal(raw_put(&raw, "", T1, 8192, 4097, 0), -EINVAL);
	assert_int_equal(raw_put(&raw, "", T1, 8192, 4096, 0), 0);
	assert_int_equal(raw_get(&raw, "k", T1, 0, 4096, 12288, &cqe), 0);
	assert_int_equal(raw_get(&raw, "", T1, 4097, 4096, 0, &cqe), -EINVAL);
	assert_int_equal(raw_get(&raw, "", T1, 4096, 4096, 0, &cqe), -ESTALE);
	assert_int_equal(stat_of("store.held"), 0);
	assert_int_equal(stat_of("store.pending"), 0);
}

static void malformed_openings_are_refused(void **state)
{
	struct kvb_cqe cqe;

	(void)state;
	assert_int_equal(raw_put(&raw, "", 0, 0, 16, 16), -EINVAL);
	assert_int_equal(raw_put(&raw, "k", 0, 0, 17, 16), -EINVAL);
	assert_int_equal(raw_put(&raw, "k", 0, 0, 16, 32), -EINVAL);
	assert_int_equal(raw_put(&raw, "k", T1, 0, 0, 32), -EINVAL);
	assert_int_equal(raw_put(&raw, "k", KVB_TRANSFER_ID(KVB_TRANSFERS, 1), 0, 16, 32), -EINVAL);
	assert_int_equal(raw_put(&raw, "k", T1, 0, FRAGMENT + 1, 1 << 20), -EINVAL);
	assert_int_equal(raw_get(&raw, "", 0, 0, 16, 16, &cqe), -EINVAL);
	assert_int_equal(raw_get(&raw, "nothing", 0, 0, 16, 16, &cqe), -ENOENT);
	assert_int_equal(raw_put(&raw, "k", T1, 0, 4096, 8192), 0);
	assert_int_equal(raw_put(&raw, "l", T1, 0, 4096, 8192), -EBUSY);
	assert_int_equal(raw_put(&raw, "", T1, 4096, 4096, 0), 0);
	assert_int_equal(raw_get(&raw, "k", 0, 0, 4096, 8192, &cqe), -EINVAL);
	assert_int_equal(stat_of("store.held"), 0);
}

static void staging_beyond_its_end_is_refused(void **state)
{
	static const uint64_t outside[] = {UINT64_MAX, UINT64_MAX - 4095, 1ull << 63};
	struct kvb_sqe sqe = {.op = KVB_OP_PUT,
		.flags = KVB_SQE_OPEN,
		.key_len = 1,
		.total = 4096,
		.length = 4096};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(outside); i++) {
		sqe.staging = outside[i];
		assert_int_equal(raw_call(&raw, &sqe, "k", NULL), -EINVAL);
	}
	sqe.staging = raw.welcome.staging_bytes - 4095;
	assert_int_equal(raw_call(&raw, &sqe, "k", NULL), -EINVAL);
	sqe.staging = raw.welcome.staging_bytes - 4096;
	assert_int_equal(raw_call(&raw, &sqe, "k", NULL), 0);
	sqe = (struct kvb_sqe){
		.op = KVB_OP_STATS, .staging = raw.welcome.staging_bytes - 1, .length = 2};
	assert_int_equal(raw_call(&raw, &sqe, NULL, NULL), -EINVAL);
}

static void sizes_that_cannot_be(void **state)
{
	struct kvb_cqe cqe;

	(void)state;
	assert_int_equal(raw_put(&raw, "k", T1, 0, 4096, 64 * KVB_MIB + 1), -EFBIG);
	assert_int_equal(raw_put(&raw, "k", T1, 0, 4096, UINT64_MAX), -EFBIG);
	assert_int_equal(raw_put(&raw, "k", 0, 0, 100, 100), 0);
	assert_int_equal(raw_get(&raw, "k", 0, 0, 99, 99, &cqe), -EMSGSIZE);
	assert_int_equal(cqe.value, 100);
	assert_int_equal(cqe.length, 0);
	assert_int_equal(stat_of("store.held"), 0);
}

static int put_absent(struct raw_client *client, uint32_t transfer, uint32_t length, uint64_t total)
{
	struct kvb_sqe sqe = {.op = KVB_OP_PUT,
		.flags = KVB_SQE_OPEN | KVB_SQE_IF_ABSENT,
		.key_len = 1,
		.transfer = transfer,
		.user_data = 5,
		.total = total,
		.length = length};

	return raw_call(client, &sqe, "k", NULL);
}

static void expect_object(uint8_t seed, uint32_t length)
{
	struct kvb_cqe cqe;

	fill((uint8_t)(seed + 100));
	assert_int_equal(raw_get(&raw, "k", 0, 0, FRAGMENT, FRAGMENT, &cqe), 0);
	assert_int_equal(cqe.value, length);
	check(seed, length);
}

static void if_absent_stores_what_is_absent(void **state)
{
	struct kvb_cqe cqe;

	(void)state;
	fill(1);
	assert_int_equal(put_absent(&raw, 0, 100, 100), 0);
	expect_object(1, 100);
	assert_int_equal(
		raw_call(&raw, &(struct kvb_sqe){.op = KVB_OP_DELETE, .key_len = 1}, "k", NULL), 0);
	assert_int_equal(put_absent(&raw, T1, 4096, 8192), 0);
	assert_int_equal(raw_put(&raw, "", T1, 4096, 4096, 0), 0);
	assert_int_equal(raw_get(&raw, "k", T2, 0, 4096, 8192, &cqe), 0);
	assert_int_equal(cqe.value, 8192);
	assert_int_equal(stat_of("ops.puts"), 2);
	assert_int_equal(stat_of("ops.puts_present"), 0);
}

static void if_absent_copies_nothing_over_what_is_there(void **state)
{
	(void)state;
	fill(1);
	assert_int_equal(raw_put(&raw, "k", 0, 0, 100, 100), 0);
	fill(2);
	assert_int_equal(put_absent(&raw, 0, 200, 200), -EEXIST);
	assert_int_equal(put_absent(&raw, 0, 0, 0), -EEXIST);
	/* Never opened, so there is nothing to go on with, and the slot is free. */
	assert_int_equal(put_absent(&raw, T1, 4096, 8192), -EEXIST);
	assert_int_equal(raw_put(&raw, "", T1, 4096, 4096, 0), -ESTALE);
	assert_int_equal(raw_put(&raw, "l", T1, 0, 4096, 8192), 0);
	/* It needs no room: neither the session's nor the pool's. */
	assert_int_equal(put_absent(&raw, T2, 4096, 65 * KVB_KIB), -EEXIST);
	assert_int_equal(put_absent(&raw, T2, 4096, UINT64_MAX), -EEXIST);
	assert_int_equal(put_absent(&raw, T1, 4096, 8192), -EBUSY);
	assert_int_equal(stat_of("ops.puts_present"), 5);
	assert_int_equal(stat_of("ops.put_bytes"), 100 + 4096);
	assert_int_equal(stat_of("store.pending"), 1);
	expect_object(1, 100);
}

static void if_absent_loses_to_whoever_was_first(void **state)
{
	struct raw_client other;

	(void)state;
	assert_int_equal(raw_attach(&other, embedded.dir), 0);
	assert_int_equal(put_absent(&other, T1, 4096, 8192), 0);
	fill(3);
	assert_int_equal(put_absent(&raw, 0, 50, 50), 0);
	assert_int_equal(raw_put(&other, "", T1, 4096, 4096, 0), -EEXIST);
	assert_int_equal(raw_put(&other, "", T1, 4096, 4096, 0), -ESTALE);
	expect_object(3, 50);
	assert_int_equal(stat_of("ops.puts"), 1);
	assert_int_equal(stat_of("ops.puts_present"), 1);
	assert_int_equal(stat_of("ops.put_aborts"), 0);
	assert_int_equal(stat_of("store.pending"), 0);
	assert_int_equal(stat_of("store.replaced"), 0);
	assert_int_equal(stat_of("pool.used_bytes"), 4096);
	/* Without the flag the last one wins, as ever. */
	assert_int_equal(raw_put(&other, "k", 0, 0, 4096, 4096), 0);
	assert_int_equal(stat_of("store.replaced"), 1);
	raw_drop(&other);
}

static void if_absent_belongs_to_an_opening_put(void **state)
{
	struct kvb_sqe more = {.op = KVB_OP_PUT,
		.flags = KVB_SQE_IF_ABSENT,
		.transfer = T1,
		.offset = 4096,
		.length = 4096};

	(void)state;
	for (uint8_t op = 0; op < KVB_OP_MAX; op++) {
		struct kvb_sqe sqe = {
			.op = op, .flags = KVB_SQE_OPEN | KVB_SQE_IF_ABSENT, .key_len = 1};
		if (op != KVB_OP_PUT)
			assert_int_equal(raw_call(&raw, &sqe, "k", NULL), -EINVAL);
	}
	assert_int_equal(put_absent(&raw, T1, 4096, 8192), 0);
	assert_int_equal(raw_call(&raw, &more, NULL, NULL), -EINVAL);
	/* The transfer has not noticed. */
	more.flags = 0;
	assert_int_equal(raw_call(&raw, &more, NULL, NULL), 0);
}

static void open_bytes_are_capped_but_one_transfer_is_always_allowed(void **state)
{
	(void)state;
	assert_int_equal(raw_put(&raw, "big", T1, 0, 4096, 65 * KVB_KIB), 0);
	assert_int_equal(raw_put(&raw, "more", T2, 0, 4096, 8192), -EDQUOT);
	assert_int_equal(raw_put(&raw, "small", 0, 0, 4096, 4096), 0);
	struct kvb_sqe abort = {.op = KVB_OP_ABORT, .transfer = T1};
	assert_int_equal(raw_call(&raw, &abort, NULL, NULL), 0);
	assert_int_equal(raw_call(&raw, &abort, NULL, NULL), -ESTALE);
	assert_int_equal(raw_put(&raw, "a", T1, 0, 4096, 32 * KVB_KIB), 0);
	assert_int_equal(raw_put(&raw, "b", T2, 0, 4096, 32 * KVB_KIB), 0);
	assert_int_equal(raw_put(&raw, "c", KVB_TRANSFER_ID(2, 1), 0, 4096, 8192), -EDQUOT);
	assert_int_equal(stat_of("store.pending"), 2);
}

static bool nothing_pending(const void *arg)
{
	(void)arg;
	return stat_of("store.pending") == 0 && stat_of("store.held") == 0;
}

static void a_transfer_without_progress_expires(void **state)
{
	struct kvb_cqe cqe;

	(void)state;
	assert_int_equal(raw_put(&raw, "k", 0, 0, 4096, 4096), 0);
	assert_int_equal(raw_put(&raw, "p", T1, 0, 4096, 8192), 0);
	assert_int_equal(raw_get(&raw, "k", T2, 0, 100, 4096, &cqe), 0);
	assert_true(embedded_wait(nothing_pending, NULL));
	assert_int_equal(raw_put(&raw, "", T1, 4096, 4096, 0), -ESTALE);
	assert_int_equal(raw_get(&raw, "", T2, 100, 100, 0, &cqe), -ESTALE);
	assert_int_equal(stat_of("ops.transfers_expired"), 2);
}

static void statistics_need_room(void **state)
{
	struct kvb_sqe sqe = {.op = KVB_OP_STATS, .length = 10};
	struct kvb_cqe cqe;

	(void)state;
	assert_int_equal(raw_call(&raw, &sqe, NULL, &cqe), -EMSGSIZE);
	sqe.length = (uint32_t)cqe.value;
	assert_int_equal(raw_call(&raw, &sqe, NULL, &cqe), 0);
	assert_in_range(cqe.value, 500, 10000);
}

static void a_full_queue_is_served_in_order(void **state)
{
	struct kvb_cqe cqe;

	(void)state;
	for (int round = 0; round < 1000; round++) {
		for (uint64_t i = 0; i < 8; i++)
			assert_int_equal(
				raw_submit(&raw,
					&(struct kvb_sqe){.op = KVB_OP_NOP, .user_data = i}, NULL),
				0);
		for (uint64_t i = 0; i < 8; i++) {
			assert_int_equal(raw_complete(&raw, &cqe), 0);
			assert_int_equal(cqe.user_data, i);
		}
	}
}

/* -------------------------------------------------------------------------- broken clients and the door */

static void expect_goodbye(int fd, enum kvb_reason reason, int error)
{
	struct kvb_goodbye goodbye;

	assert_int_equal(raw_goodbye(fd, &goodbye), 0);
	assert_int_equal(goodbye.reason, reason);
	assert_int_equal(goodbye.error, error);
	assert_true(strnlen(goodbye.text, sizeof(goodbye.text)) > 0);
}

static void credit_beyond_the_queue_ends_the_session(void **state)
{
	struct kvb_sqe nop = {.op = KVB_OP_NOP};

	(void)state;
	/* Completions are never read, so the ninth request has no room. */
	for (int i = 0; i < 9; i++) {
		while (raw_submit(&raw, &nop, NULL) == -EAGAIN)
			raw_kick(&raw);
	}
	expect_goodbye(raw.door_fd, KVB_REASON_PROTOCOL, -EPROTO);
	assert_int_equal(kvb_load_acquire(&raw.sq.header->state), KVB_SESSION_REVOKED);
	assert_int_equal(kvb_load_acquire(&raw.sq.header->reason), KVB_REASON_PROTOCOL);
}

static void an_impossible_index_ends_the_session(void **state)
{
	(void)state;
	kvb_store_release(&raw.sq.header->sq_tail, raw.sq.tail + 9);
	raw_kick(&raw);
	expect_goodbye(raw.door_fd, KVB_REASON_PROTOCOL, -EPROTO);
}

static void an_impossible_key_length_ends_the_session(void **state)
{
	(void)state;
	raw.sq.entries[0] = (struct kvb_sqe){.op = KVB_OP_EXISTS, .key_len = KVB_KEY_MAX + 1};
	kvb_store_release(&raw.sq.header->sq_tail, 1u);
	raw_kick(&raw);
	expect_goodbye(raw.door_fd, KVB_REASON_PROTOCOL, -EPROTO);
}

static void records_after_hello_end_the_session(void **state)
{
	struct kvb_hello hello;

	(void)state;
	raw_hello(&hello);
	assert_int_equal(kvb_record_send(raw.door_fd, &hello, sizeof(hello), NULL, 0), 0);
	expect_goodbye(raw.door_fd, KVB_REASON_PROTOCOL, -EPROTO);
}

static void descriptors_are_not_taken(void **state)
{
	struct kvb_hello hello;
	int fd;

	(void)state;
	raw_hello(&hello);
	assert_int_equal(raw_connect(embedded.dir, &fd), 0);
	assert_int_equal(kvb_record_send(fd, &hello, sizeof(hello), &raw.fds[KVB_FD_BELL], 1), 0);
	expect_goodbye(fd, KVB_REASON_PROTOCOL, -EPROTO);
	close(fd);
	/* And in a session. */
	assert_int_equal(kvb_record_send(raw.door_fd, &hello, sizeof(hello), &fd, 0), 0);
	expect_goodbye(raw.door_fd, KVB_REASON_PROTOCOL, -EPROTO);
}

static void try_hello(const struct kvb_hello *hello, size_t size, enum kvb_reason reason, int error)
{
	uint8_t record[128] = {0};
	int fd;

	memcpy(record, hello, sizeof(*hello));
	assert_int_equal(raw_connect(embedded.dir, &fd), 0);
	assert_int_equal(kvb_record_send(fd, record, size, NULL, 0), 0);
	expect_goodbye(fd, reason, error);
	close(fd);
}

static void bad_hellos_get_a_goodbye(void **state)
{
	struct kvb_hello hello;

	(void)state;
	raw_hello(&hello);
	hello.magic++;
	try_hello(&hello, sizeof(hello), KVB_REASON_ABI, -EPROTONOSUPPORT);
	raw_hello(&hello);
	hello.abi++;
	try_hello(&hello, sizeof(hello), KVB_REASON_ABI, -EPROTONOSUPPORT);
	raw_hello(&hello);
	hello.type = KVB_DOOR_WELCOME;
	try_hello(&hello, sizeof(hello), KVB_REASON_PROTOCOL, -EPROTO);
	raw_hello(&hello);
	hello.flags = 2;
	try_hello(&hello, sizeof(hello), KVB_REASON_PROTOCOL, -EPROTO);
	raw_hello(&hello);
	hello.reserved[15] = 1;
	try_hello(&hello, sizeof(hello), KVB_REASON_PROTOCOL, -EPROTO);
	raw_hello(&hello);
	try_hello(&hello, sizeof(hello) - 1, KVB_REASON_PROTOCOL, -EPROTO);
	try_hello(&hello, sizeof(hello) + 1, KVB_REASON_PROTOCOL, -EPROTO);
	assert_int_equal(stat_of("sessions.active"), 1);
}

static void sessions_are_limited_and_come_back(void **state)
{
	struct raw_client others[3];

	(void)state;
	assert_int_equal(raw_attach(&others[0], embedded.dir), 0);
	assert_int_equal(raw_attach(&others[1], embedded.dir), 0);
	assert_int_equal(raw_attach(&others[2], embedded.dir), -EUSERS);
	assert_int_equal(stat_of("sessions.refused"), 1);
	raw_drop(&others[0]);
	int r;
	do {
		r = raw_attach(&others[2], embedded.dir);
	} while (r == -EUSERS);
	assert_int_equal(r, 0);
	/* The slot is the same, the session is not. */
	assert_int_equal((uint32_t)others[2].welcome.session, 1);
	assert_int_equal(others[2].welcome.session >> 32, 2);
	raw_drop(&others[1]);
	raw_drop(&others[2]);
}

static void silent_connections_are_capped_and_time_out(void **state)
{
	int fds[KVB_DOOR_PENDING + 1];
	struct raw_client late;
	size_t size;
	char byte;

	(void)state;
	for (unsigned i = 0; i < KVB_ARRAY_SIZE(fds); i++)
		assert_int_equal(raw_connect(embedded.dir, &fds[i]), 0);
	/* The oldest gave way to the last one, and a client that speaks still gets in. */
	assert_int_equal(raw_door_recv(fds[0], &byte, 1, &size, NULL, 0), 0);
	assert_int_equal(raw_attach(&late, embedded.dir), 0);
	for (unsigned i = 1; i < KVB_ARRAY_SIZE(fds); i++)
		assert_int_equal(raw_door_recv(fds[i], &byte, 1, &size, NULL, 0), 0);
	for (unsigned i = 0; i < KVB_ARRAY_SIZE(fds); i++)
		close(fds[i]);
	raw_drop(&late);
}

/* ------------------------------------------------------------------------------------- spinning */

/* While a session spins its client gets ahead of the worker: the hook submits, in the worker's
 * thread, and the test's thread only waits. */
static struct {
	enum game { GAME_NONE, GAME_BURSTS, GAME_REPAIR } game; /* atomic */
	uint64_t visit;  /* the current one, by the server's count */
	uint64_t before; /* requests served when it looked again for the first time */
	uint64_t most;   /* served after that, in any visit */
	uint32_t rounds; /* atomic: bursts so far */
} spinner;

#define BURST  7
#define ROUNDS 100

static void note_visit(void)
{
	uint64_t visit = kvb_load_relaxed(&embedded.server->counters.visits);
	uint64_t served = kvb_load_relaxed(&embedded.server->counters.nops);

	if (visit != spinner.visit)
		spinner.before = served;
	spinner.visit = visit;
	spinner.most = kvb_max_u64(spinner.most, served - spinner.before);
}

static void submit_burst(void)
{
	struct kvb_sqe nop = {.op = KVB_OP_NOP};
	struct kvb_cqe cqe;

	while (kvb_cq_take(&raw.cq, &cqe) == 1)
		;
	for (int i = 0; i < BURST; i++)
		(void)kvb_sq_push(&raw.sq, &nop, NULL);
}

static void get_ahead(enum kvb_hook_point point, uint32_t slot)
{
	const struct kvb_session *session = &embedded.server->sessions.slots[slot];
	struct kvb_sqe nop = {.op = KVB_OP_NOP};
	enum game game = kvb_load_acquire(&spinner.game);

	if (point != KVB_HOOK_SPIN)
		return;
	/* Publishes the honest tail as well. */
	if (game == GAME_REPAIR && kvb_load_acquire(&session->failure) != KVB_REASON_NONE)
		(void)kvb_sq_push(&raw.sq, &nop, NULL);
	if (game == GAME_BURSTS && kvb_load_relaxed(&spinner.rounds) < ROUNDS) {
		note_visit();
		submit_burst();
		(void)kvb_fetch_add(&spinner.rounds, 1u);
	}
}

static int start_spinning(void **state)
{
	struct kvb_server_options config;

	(void)state;
	memset(&spinner, 0, sizeof(spinner));
	kvb_store_relaxed(&kvb_hook_installed, get_ahead);
	embedded_config(&config);
	config.ring_entries = 8;
	config.workers = 1;
	config.spin_us = KVB_SPIN_US_MAX;
	return start_with(&config);
}

static int stop_spinning(void **state)
{
	int r = stop(state);

	kvb_store_relaxed(&kvb_hook_installed, (kvb_hook_fn *)NULL);
	return r;
}

static bool all_rounds_done(const void *arg)
{
	(void)arg;
	return kvb_load_acquire(&spinner.rounds) == ROUNDS;
}

static void a_visit_is_bounded_however_often_it_looks_again(void **state)
{
	struct kvb_sqe nop = {.op = KVB_OP_NOP};

	(void)state;
	assert_int_equal(raw_submit(&raw, &nop, NULL), 0);
	/* From here on the rings are the worker's; pairs with the load in get_ahead(). */
	kvb_store_release(&spinner.game, GAME_BURSTS);
	assert_true(embedded_wait(all_rounds_done, NULL));
	assert_in_range(spinner.most, BURST, embedded.server->visit_requests - 1);
}

/* The client takes its fault back before the worker has turned away. */
static void a_session_that_failed_is_not_served_again(void **state)
{
	struct kvb_sqe nop = {.op = KVB_OP_NOP};
	uint32_t tail;

	(void)state;
	assert_int_equal(raw_call(&raw, &nop, NULL, NULL), 0);
	tail = raw.sq.tail + 9;
	/* As above. */
	kvb_store_release(&spinner.game, GAME_REPAIR);
	kvb_store_release(&raw.sq.header->sq_tail, tail);
	raw_kick(&raw);
	expect_goodbye(raw.door_fd, KVB_REASON_PROTOCOL, -EPROTO);
	assert_int_equal(kvb_load_relaxed(&embedded.server->counters.nops), 1);
	assert_true(kvb_cq_empty(&raw.cq));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_nop_completes_with_zero, start, stop),
		cmocka_unit_test_setup_teardown(
			unknown_operations_and_flags_are_refused, start, stop),
		cmocka_unit_test_setup_teardown(
			small_objects_travel_in_one_descriptor, start, stop),
		cmocka_unit_test_setup_teardown(fragments_must_be_in_order, start, stop),
		cmocka_unit_test_setup_teardown(a_gap_ends_the_transfer, start, stop),
		cmocka_unit_test_setup_teardown(malformed_openings_are_refused, start, stop),
		cmocka_unit_test_setup_teardown(staging_beyond_its_end_is_refused, start, stop),
		cmocka_unit_test_setup_teardown(sizes_that_cannot_be, start, stop),
		cmocka_unit_test_setup_teardown(if_absent_stores_what_is_absent, start, stop),
		cmocka_unit_test_setup_teardown(
			if_absent_copies_nothing_over_what_is_there, start, stop),
		cmocka_unit_test_setup_teardown(if_absent_loses_to_whoever_was_first, start, stop),
		cmocka_unit_test_setup_teardown(if_absent_belongs_to_an_opening_put, start, stop),
		cmocka_unit_test_setup_teardown(
			open_bytes_are_capped_but_one_transfer_is_always_allowed, start, stop),
		cmocka_unit_test_setup_teardown(a_transfer_without_progress_expires, start, stop),
		cmocka_unit_test_setup_teardown(statistics_need_room, start, stop),
		cmocka_unit_test_setup_teardown(a_full_queue_is_served_in_order, start, stop),
		cmocka_unit_test_setup_teardown(
			credit_beyond_the_queue_ends_the_session, start, stop),
		cmocka_unit_test_setup_teardown(an_impossible_index_ends_the_session, start, stop),
		cmocka_unit_test_setup_teardown(
			an_impossible_key_length_ends_the_session, start, stop),
		cmocka_unit_test_setup_teardown(records_after_hello_end_the_session, start, stop),
		cmocka_unit_test_setup_teardown(descriptors_are_not_taken, start, stop),
		cmocka_unit_test_setup_teardown(bad_hellos_get_a_goodbye, start, stop),
		cmocka_unit_test_setup_teardown(sessions_are_limited_and_come_back, start, stop),
		cmocka_unit_test_setup_teardown(
			silent_connections_are_capped_and_time_out, start, stop),
		cmocka_unit_test_setup_teardown(a_visit_is_bounded_however_often_it_looks_again,
			start_spinning, stop_spinning),
		cmocka_unit_test_setup_teardown(
			a_session_that_failed_is_not_served_again, start_spinning, stop_spinning),
	};

	return cmocka_run_group_tests_name("protocol", tests, NULL, NULL) ? 1 : 0;
}
