/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hostile_ring.c - what a client may write into the memory that it shares with the server, and do
 * with the descriptors that it has of it.
 *
 * Hostile clients are in the main thread, some with a second thread that changes memory under the
 * server's hands; server and honest client are processes of their own (scene.h). Each test ends with
 * scene_check().
 *
 *   KVB_TEST_OPERATIONS   requests of random_requests (10^6)
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/pattern.h"
#include "shm/atomic.h"
#include "shm/bell.h"
#include "shm/index.h"
#include "shm/threads.h"
#include "tests/hostile/hostile.h"
#include "tests/hostile/scene.h"
#include "tests/random.h"

#define OPERATIONS   1000000u
#define VALUES       40u /* per field */
#define BATCH        32u
#define CHANGED      (200000u / TEST_SLOWER)
#define STEPS        30000u
#define WORDS_ROUNDS 200u
#define STOPS        10u
#define BELLS        10u
#define THEFTS       4u

static struct hostile hostile;
static bool is_open;

/* Takes what is due; a session that has ended is replaced. */
static void go_on(int r)
{
	if (r == 0)
		r = hostile_drain(&hostile);
	if (r == -ECONNRESET || r == -EPROTO)
		r = hostile_again(&hostile);
	assert_int_equal(r, 0);
}

static void begin(uint32_t hello_flags, uint64_t seed)
{
	assert_int_equal(hostile_open(&hostile, scene_server.dir, hello_flags, seed), 0);
	is_open = true;
}

/* Also of a test that failed, so that the next ones are not judged by it. */
static int leave(void **state)
{
	(void)state;
	if (is_open)
		hostile_close(&hostile);
	is_open = false;
	return 0;
}

static void end(void)
{
	print_message("%llu operations, %llu sessions ended\n",
		(unsigned long long)hostile.operations, (unsigned long long)hostile.ends);
	assert_int_equal(hostile.wrong, 0);
	(void)leave(NULL);
	scene_check();
}

/* -------------------------------------------------------------------------------------- descriptors */

static void each_field_takes_any_value(void **state)
{
	(void)state;
	begin(0, 1);
	for (uint8_t op = 0; op <= KVB_OP_MAX; op++)
		for (unsigned field = 0; field < hostile_fields(); field++)
			for (unsigned i = 0; i < VALUES; i++) {
				struct kvb_sqe sqe;
				const char *key;
				hostile_valid(&hostile, &sqe, &key);
				sqe.op = op;
				hostile_set_field(&sqe, field, hostile_number(&hostile));
				go_on(hostile_submit(&hostile, &sqe, key));
			}
	/* Only a key's length can be so wrong that the session ends. */
	assert_true(hostile.ends > 0);
	assert_true(hostile.ends < (KVB_OP_MAX + 1) * VALUES);
	end();
}

static void submit_some(unsigned mutations)
{
	int r = 0;

	for (unsigned i = 0; i < BATCH && r == 0; i++) {
		struct kvb_sqe sqe;
		const char *key;
		hostile_valid(&hostile, &sqe, &key);
		for (unsigned m = next_random(&hostile.seed) % (mutations + 1); m > 0; m--)
			hostile_mutate(&hostile, &sqe);
		/* Rarely, since each such request costs a session. */
		if (sqe.key_len > KVB_KEY_MAX && next_random(&hostile.seed) % 512)
			sqe.key_len %= KVB_KEY_MAX + 1;
		r = hostile_submit(&hostile, &sqe, key);
	}
	go_on(r);
}

static void random_requests_do_no_harm(void **state)
{
	const char *text = getenv("KVB_TEST_OPERATIONS");
	uint64_t operations = text ? strtoull(text, NULL, 10) : OPERATIONS;

	(void)state;
	begin(0, 2);
	while (hostile.operations < operations)
		submit_some(3);
	assert_true(hostile.ends > 0);
	end();
}

/* ------------------------------------------------------------ memory that changes while it is read */

struct changer {
	pthread_t thread;
	uint32_t stop; /* atomic */
	uint64_t changes;
};

/* Everything but the client's own indices, which would end each session at once: descriptors, keys and
 * payload; by the library's stores, which do not tear, since the server reads them in the same way. */
static void *change(void *arg)
{
	struct changer *changer = arg;
	const struct kvb_welcome *welcome = &hostile.raw.welcome;
	uint8_t *base = hostile.raw.session.base;
	uint64_t seed = 7;

	while (!kvb_load_acquire(&changer->stop)) {
		uint64_t sqe = next_random(&seed) % welcome->sq_entries;
		uint64_t word = next_random(&seed) % (sizeof(struct kvb_sqe) / 8);
		uint64_t *at = (uint64_t *)(base + welcome->sq_offset + sqe * 64) + word;
		uint64_t value = kvb_load_relaxed(at);
		/* A bit, or all of it; lengths of keys mostly stay possible. */
		if (word == 0)
			value ^= 1ull << next_random(&seed) % 24;
		else
			value = next_random(&seed) % 2 ? value ^ 1ull << next_random(&seed) % 64
						       : (uint64_t)next_random(&seed) << 33;
		kvb_store_relaxed(at, value);
		at = (uint64_t *)(base + welcome->key_offset + sqe * KVB_KEY_MAX);
		kvb_store_relaxed(at, kvb_load_relaxed(at) ^ 0x0100);
		changer->changes++;
	}
	return NULL;
}

/* One session's worth; the thread is gone before its memory is. */
static void change_beside(struct changer *changer)
{
	unsigned batches = 2000;
	int r = 0;

	changer->stop = 0;
	assert_int_equal(kvb_thread_start(&changer->thread, "changer", change, changer), 0);
	while (r == 0 && batches-- > 0) {
		for (unsigned i = 0; i < BATCH && r == 0; i++) {
			struct kvb_sqe sqe;
			const char *key;
			hostile_valid(&hostile, &sqe, &key);
			r = hostile_submit(&hostile, &sqe, key);
		}
		/* Which request an answer is for cannot be told: user_data changes as well. */
		if (r == 0)
			r = hostile_drain(&hostile);
	}
	kvb_store_release(&changer->stop, 1u);
	pthread_join(changer->thread, NULL);
	go_on(r);
}

static void requests_may_change_while_they_are_read(void **state)
{
	static struct changer changer;

	(void)state;
	begin(0, 3);
	while (hostile.operations < CHANGED)
		change_beside(&changer);
	assert_true(changer.changes > 0);
	hostile.wrong = 0;
	end();
}

/* -------------------------------------------------------------------------------- words of the header */

static void expect_end(uint32_t reason)
{
	struct kvb_goodbye goodbye;

	assert_int_equal(raw_goodbye(hostile.raw.door_fd, &goodbye), 0);
	assert_int_equal(goodbye.reason, reason);
	assert_true(goodbye.text[0] != '\0');
	hostile.ends++;
	assert_int_equal(hostile_again(&hostile), 0);
}

static void nop(unsigned n)
{
	struct kvb_sqe sqe = {.op = KVB_OP_NOP};

	while (n-- > 0)
		assert_int_equal(hostile_submit(&hostile, &sqe, NULL), 0);
}

static void tails_that_cannot_be_end_the_session(void **state)
{
	static const uint32_t ahead[] = {
		SCENE_RING + 1, 2 * SCENE_RING, 1u << 31, UINT32_MAX, UINT32_MAX - SCENE_RING};

	(void)state;
	begin(0, 4);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(ahead); i++)
		for (unsigned used = 0; used < 3; used++) {
			uint64_t served = scene_stat("ops.nops");
			nop(used);
			assert_int_equal(hostile_drain(&hostile), 0);
			kvb_store_release(
				&hostile.raw.sq.header->sq_tail, hostile.raw.sq.tail + ahead[i]);
			raw_kick(&hostile.raw);
			expect_end(KVB_REASON_PROTOCOL);
			/* Nothing of what such a tail claims is looked at. */
			assert_int_equal(scene_stat("ops.nops"), served + used);
		}
	end();
}

static void heads_that_cannot_be_end_the_session(void **state)
{
	/* One that is a little ahead takes the client's own completions from it, and nothing else. */
	static const uint32_t ahead[] = {SCENE_RING, 1u << 31, UINT32_MAX - 2 * SCENE_RING};

	(void)state;
	begin(0, 5);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(ahead); i++) {
		nop(3);
		assert_int_equal(hostile_drain(&hostile), 0);
		/* Looked at when the server knows of no more room. */
		kvb_store_release(&hostile.raw.sq.header->cq_head, hostile.raw.cq.head + ahead[i]);
		nop(SCENE_RING);
		expect_end(KVB_REASON_PROTOCOL);
	}
	end();
}

/* As hostile_submit(), but that the header is not asked for room. */
static void nop_unasked(void)
{
	struct kvb_sq_producer *sq = &hostile.raw.sq;

	sq->entries[sq->tail & sq->mask] =
		(struct kvb_sqe){.op = KVB_OP_NOP, .user_data = hostile.sent++};
	kvb_store_release(&sq->header->sq_tail, ++sq->tail);
	raw_kick(&hostile.raw);
}

/* What the server writes and keeps a copy of its own of, and what it never reads. */
static void words_of_the_server_may_be_overwritten(void **state)
{
	(void)state;
	begin(0, 6);
	for (unsigned round = 0; round < WORDS_ROUNDS; round++) {
		struct kvb_session_header *header = hostile.raw.sq.header;
		uint32_t value = (uint32_t)hostile_number(&hostile);
		uint32_t *words[] = {&header->sq_head, &header->cq_tail, &header->state,
			&header->reason, &header->magic, &header->abi, &header->sq_sleeping};
		uint32_t tail = kvb_load_relaxed(&header->cq_tail);
		kvb_store_relaxed(words[round % KVB_ARRAY_SIZE(words)], value);
		memset(header->pad0, (int)value, sizeof(header->pad0));
		/* Ours again, or the answer would not be found. */
		kvb_store_relaxed(&header->cq_tail, tail);
		nop_unasked();
		assert_int_equal(hostile_drain(&hostile), 0);
	}
	assert_int_equal(hostile.ends, 0);
	end();
}

/* A client that reads no completion has spent its credit and gets nothing more; one that goes on ends. */
static void answers_need_not_be_read(void **state)
{
	struct kvb_sqe sqe = {.op = KVB_OP_NOP};
	uint64_t served = scene_stat("ops.nops");

	(void)state;
	begin(0, 7);
	for (unsigned i = 0; i < SCENE_RING; i++)
		assert_int_equal(hostile_submit(&hostile, &sqe, NULL), 0);
	while (scene_stat("ops.nops") < served + SCENE_RING)
		;
	assert_int_equal(hostile_submit(&hostile, &sqe, NULL), 0);
	expect_end(KVB_REASON_PROTOCOL);
	assert_int_equal(scene_stat("ops.nops"), served + SCENE_RING);
	end();
}

/* -------------------------------------------------------------------------------------- transfers */

/* What the protocol says of puts and gets, once more and much simpler: no time, no other clients. */
#define MODEL_KEYS     3u
#define MODEL_SLOTS    3u
#define MODEL_USES     3u
#define MODEL_PAYLOAD  3000u
#define MODEL_FRAGMENT 1500u

struct model_object {
	bool there;
	uint64_t length;
	uint64_t seed;
};

struct model_transfer {
	uint32_t id; /* 0: none */
	bool is_put;
	unsigned key;
	uint64_t next;
	struct model_object object;
};

static struct model_object objects[MODEL_KEYS];
static struct model_transfer transfers[MODEL_SLOTS];
static const char *const model_keys[MODEL_KEYS] = {"model-0", "model-1", "model-2"};
static uint8_t bytes[MODEL_PAYLOAD + 8];

static struct model_transfer *model_find(uint32_t id, bool is_put)
{
	struct model_transfer *transfer = &transfers[KVB_TRANSFER_SLOT(id)];

	return transfer->id == id && transfer->is_put == is_put ? transfer : NULL;
}

static void model_close(struct model_transfer *transfer)
{
	*transfer = (struct model_transfer){0};
}

static int model_put(const struct kvb_sqe *sqe, unsigned key, uint64_t seed)
{
	struct model_transfer *transfer = &transfers[KVB_TRANSFER_SLOT(sqe->transfer)];
	struct model_object object = {true, sqe->total, seed};

	if (sqe->flags & KVB_SQE_OPEN) {
		if (sqe->offset != 0 || sqe->length > sqe->total ||
			(sqe->length == 0 && sqe->total > 0))
			return -EINVAL;
		if (sqe->length == sqe->total) {
			objects[key] = object;
			return 0;
		}
		if (transfer->id)
			return -EBUSY;
		*transfer = (struct model_transfer){sqe->transfer, true, key, sqe->length, object};
		return 0;
	}
	transfer = model_find(sqe->transfer, true);
	if (!transfer)
		return -ESTALE;
	if (sqe->offset != transfer->next || sqe->length == 0 ||
		sqe->length > transfer->object.length - transfer->next) {
		model_close(transfer);
		return -EINVAL;
	}
	transfer->next += sqe->length;
	if (transfer->next == transfer->object.length) {
		objects[transfer->key] = transfer->object;
		model_close(transfer);
	}
	return 0;
}

/* Also which bytes of which object come. */
static int model_get(const struct kvb_sqe *sqe, unsigned key, struct model_object *ret_object,
	uint64_t *ret_at, uint64_t *ret_length)
{
	struct model_transfer *transfer = &transfers[KVB_TRANSFER_SLOT(sqe->transfer)];

	*ret_at = *ret_length = 0;
	if (sqe->flags & KVB_SQE_OPEN) {
		if (sqe->offset != 0)
			return -EINVAL;
		if (!objects[key].there)
			return -ENOENT;
		*ret_object = objects[key];
		if (ret_object->length > sqe->total)
			return -EMSGSIZE;
		*ret_length = kvb_min_u64(ret_object->length, sqe->length);
		if (*ret_length == ret_object->length)
			return 0;
		if (*ret_length == 0)
			return -EINVAL;
		if (transfer->id) {
			*ret_length = 0;
			return -EBUSY;
		}
		*transfer = (struct model_transfer){
			sqe->transfer, false, key, *ret_length, *ret_object};
		return 0;
	}
	transfer = model_find(sqe->transfer, false);
	if (!transfer)
		return -ESTALE;
	if (sqe->offset != transfer->next || sqe->length == 0) {
		model_close(transfer);
		return -EINVAL;
	}
	*ret_object = transfer->object;
	*ret_at = transfer->next;
	*ret_length = kvb_min_u64(sqe->length, ret_object->length - transfer->next);
	transfer->next += *ret_length;
	if (transfer->next == ret_object->length)
		model_close(transfer);
	return 0;
}

static int model_abort(const struct kvb_sqe *sqe)
{
	struct model_transfer *transfer = &transfers[KVB_TRANSFER_SLOT(sqe->transfer)];

	if (transfer->id != sqe->transfer)
		return -ESTALE;
	model_close(transfer);
	return 0;
}

static uint32_t below(uint32_t n)
{
	return next_random(&hostile.seed) % n;
}

/* Mostly what goes on with an open transfer, and then often at the wrong place. */
static void choose(struct kvb_sqe *ret_sqe, unsigned *ret_key)
{
	static const uint8_t ops[] = {
		KVB_OP_PUT, KVB_OP_PUT, KVB_OP_GET, KVB_OP_GET, KVB_OP_ABORT, KVB_OP_DELETE};
	struct kvb_sqe sqe = {.op = ops[below(KVB_ARRAY_SIZE(ops))],
		.transfer = KVB_TRANSFER_ID(below(MODEL_SLOTS), 1 + below(MODEL_USES)),
		.length = below(MODEL_FRAGMENT),
		.total = below(MODEL_PAYLOAD)};
	const struct model_transfer *transfer = &transfers[KVB_TRANSFER_SLOT(sqe.transfer)];

	if (sqe.op == KVB_OP_ABORT && below(4))
		sqe.op = KVB_OP_NOP;
	if (sqe.op == KVB_OP_GET)
		sqe.total = MODEL_PAYLOAD - below(2) * below(MODEL_PAYLOAD);
	if (sqe.op == KVB_OP_PUT || sqe.op == KVB_OP_GET)
		sqe.flags = transfer->id && below(4) ? 0 : KVB_SQE_OPEN;
	if (!sqe.flags && transfer->id && below(8))
		sqe.transfer = transfer->id;
	if (!sqe.flags)
		sqe.offset = transfer->next + (below(8) ? 0 : below(3) - 1ull);
	if (!sqe.flags && transfer->is_put && below(2))
		sqe.length = (uint32_t)(transfer->object.length - transfer->next);
	*ret_key = below(MODEL_KEYS);
	if (sqe.flags || sqe.op == KVB_OP_DELETE)
		sqe.key_len = (uint16_t)strlen(model_keys[*ret_key]);
	*ret_sqe = sqe;
}

/* A put's bytes lie where the whole payload has them. */
static void stage(const struct kvb_sqe *sqe, uint64_t seed)
{
	const struct model_transfer *transfer = model_find(sqe->transfer, true);
	uint64_t at = 0;

	if (!(sqe->flags & KVB_SQE_OPEN)) {
		if (!transfer)
			return;
		seed = transfer->object.seed;
		at = transfer->next;
	}
	kvb_pattern_fill(bytes, MODEL_PAYLOAD, seed);
	memcpy(hostile.raw.staging, bytes + at, kvb_min_u64(sqe->length, MODEL_PAYLOAD - at));
}

static void step(uint64_t seed)
{
	struct model_object object = {0};
	uint64_t at = 0, length = 0;
	struct kvb_sqe sqe;
	struct kvb_cqe cqe;
	unsigned key;
	int expected = 0;

	choose(&sqe, &key);
	if (sqe.op == KVB_OP_PUT) {
		stage(&sqe, seed);
		expected = model_put(&sqe, key, seed);
	} else if (sqe.op == KVB_OP_GET) {
		expected = model_get(&sqe, key, &object, &at, &length);
	} else if (sqe.op == KVB_OP_ABORT) {
		expected = model_abort(&sqe);
	} else if (sqe.op == KVB_OP_DELETE) {
		expected = objects[key].there ? 0 : -ENOENT;
		objects[key].there = false;
	}
	assert_int_equal(hostile_call(&hostile, &sqe, model_keys[key], &cqe), expected);
	assert_int_equal(cqe.length, length);
	if (length == 0)
		return;
	kvb_pattern_fill(bytes, MODEL_PAYLOAD, object.seed);
	assert_memory_equal(hostile.raw.staging, bytes + at, length);
}

static void transfers_do_what_the_protocol_says(void **state)
{
	(void)state;
	begin(0, 8);
	for (uint64_t i = 1; i <= STEPS; i++)
		step(i);
	end();
}

/* A transfer belongs to its session, whatever others call it. */
static void transfers_of_others_are_out_of_reach(void **state)
{
	static struct hostile other;
	struct kvb_sqe sqe;
	struct kvb_cqe cqe;

	(void)state;
	begin(0, 9);
	assert_int_equal(hostile_open(&other, scene_server.dir, 0, 10), 0);
	memset(hostile.raw.staging, 'a', 200);
	memset(other.raw.staging, 'b', 200);
	sqe = (struct kvb_sqe){.op = KVB_OP_PUT,
		.flags = KVB_SQE_OPEN,
		.key_len = 3,
		.transfer = KVB_TRANSFER_ID(1, 1),
		.length = 100,
		.total = 200};
	assert_int_equal(hostile_call(&hostile, &sqe, "mix", &cqe), 0);
	sqe.flags = 0;
	sqe.key_len = 0;
	sqe.offset = 100;
	assert_int_equal(hostile_call(&other, &sqe, NULL, &cqe), -ESTALE);
	sqe.op = KVB_OP_ABORT;
	assert_int_equal(hostile_call(&other, &sqe, NULL, &cqe), -ESTALE);
	sqe.op = KVB_OP_PUT;
	assert_int_equal(hostile_call(&hostile, &sqe, NULL, &cqe), 0);
	assert_int_equal(raw_get(&other.raw, "mix", 0, 0, 200, 200, &cqe), 0);
	for (unsigned i = 0; i < 200; i++)
		assert_int_equal(other.raw.staging[i], 'a');
	hostile_close(&other);
	end();
}

/* ------------------------------------------------------------------------------------------- leases */

/* All words of the lease memory, as a client may write them, while objects come and go. */
static void scribble(struct hostile *reader, struct kvb_leases *leases)
{
	for (unsigned i = 0; i < 32; i++) {
		uint64_t value = hostile_number(reader);
		/* Of slots that exist, in early generations. */
		if (next_random(&reader->seed) % 2)
			value = (uint64_t)(next_random(&reader->seed) % 64) << 32 |
				(next_random(&reader->seed) % 256 + 1);
		kvb_store_relaxed(
			&leases->cells[next_random(&reader->seed) % leases->n_cells], value);
		kvb_store_relaxed(&leases->touches[next_random(&reader->seed) & leases->touch_mask],
			hostile_number(reader));
	}
	kvb_store_relaxed(&leases->header->cells_used, (uint32_t)hostile_number(reader));
	kvb_store_relaxed(&leases->header->touch_tail, (uint32_t)hostile_number(reader));
	kvb_store_relaxed(&leases->header->cells, (uint32_t)hostile_number(reader));
	kvb_store_relaxed(&leases->header->touches, (uint32_t)hostile_number(reader));
}

static bool limbo_is_empty(void)
{
	return scene_stat("leases.limbo") == 0 && scene_stat("leases.limbo_bytes") == 0;
}

static void lease_cells_may_hold_anything(void **state)
{
	static struct hostile reader;
	struct kvb_leases leases;
	bool held = false;

	(void)state;
	begin(0, 11);
	assert_int_equal(hostile_open(&reader, scene_server.dir, KVB_HELLO_READER, 12), 0);
	assert_int_equal(
		kvb_leases_open(&leases, reader.raw.leases.base, reader.raw.leases.bytes), 0);
	for (unsigned i = 0; i < 3000; i++) {
		scribble(&reader, &leases);
		submit_some(0);
		if (i % 50 == 0)
			held = held || !limbo_is_empty();
	}
	/* Some of it was taken for leases, or it proves little. */
	assert_true(held);
	hostile_close(&reader);
	for (unsigned i = 0; i < 1000 && !limbo_is_empty(); i++)
		usleep(10000);
	assert_true(limbo_is_empty());
	end();
}

/* ------------------------------------------------------------------------------------------- bells */

/* What others who hold the description may do to it. */
static void make_blocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	assert_true(flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0);
}

static void fill(int fd)
{
	assert_int_equal(eventfd_write(fd, UINT64_MAX - 1), 0);
}

static void a_bell_that_blocks_ends_the_session(void **state)
{
	struct kvb_sqe sqe = {.op = KVB_OP_NOP};

	(void)state;
	begin(0, 13);
	for (unsigned i = 0; i < BELLS; i++) {
		int bell = hostile.raw.fds[KVB_FD_BELL];
		make_blocking(bell);
		fill(bell);
		kvb_store_relaxed(&hostile.raw.sq.header->cq_sleeping, KVB_SLEEPING_ALWAYS);
		assert_int_equal(hostile_submit(&hostile, &sqe, NULL), 0);
		expect_end(KVB_REASON_BELL_BLOCKED);
	}
	assert_true(scene_stat("bells.blocked") >= BELLS);
	end();
}

/* The last ring of all is the control thread's. */
static void nor_does_it_block_the_final_ring(void **state)
{
	(void)state;
	begin(0, 14);
	for (unsigned i = 0; i < BELLS; i++) {
		make_blocking(hostile.raw.fds[KVB_FD_BELL]);
		fill(hostile.raw.fds[KVB_FD_BELL]);
		kvb_store_release(&hostile.raw.sq.header->sq_tail, 1u << 31);
		raw_kick(&hostile.raw);
		expect_end(KVB_REASON_PROTOCOL);
	}
	end();
}

struct drainer {
	pthread_t thread;
	int fd;
	uint32_t stop; /* atomic */
};

static void *drain_kick(void *arg)
{
	struct drainer *drainer = arg;
	uint64_t value;

	while (!kvb_load_acquire(&drainer->stop))
		(void)!read(drainer->fd, &value, sizeof(value));
	return NULL;
}

/* Kicks that a thief takes away: the client waits for the server's tick, and nobody else does. Kicks
 * that would block who reads them: the server reads none. */
static void kicks_may_be_drained_and_full(void **state)
{
	static struct drainer drainer;

	(void)state;
	begin(0, 15);
	drainer = (struct drainer){.fd = hostile.raw.fds[KVB_FD_KICK]};
	assert_int_equal(kvb_thread_start(&drainer.thread, "thief", drain_kick, &drainer), 0);
	for (unsigned i = 0; i < THEFTS; i++)
		submit_some(0);
	kvb_store_release(&drainer.stop, 1u);
	pthread_join(drainer.thread, NULL);
	assert_int_equal(hostile.ends, 0);
	scene_missed_wakes = scene_stat("bells.missed_wakes");
	make_blocking(hostile.raw.fds[KVB_FD_KICK]);
	for (unsigned i = 0; i < 200; i++) {
		uint64_t value;
		/* Room for one more ring, so that this thread does not block. */
		(void)!eventfd_write(hostile.raw.fds[KVB_FD_KICK], UINT64_MAX - 2 * BATCH);
		submit_some(0);
		assert_int_equal(read(hostile.raw.fds[KVB_FD_KICK], &value, 8), 8);
	}
	end();
}

/* -------------------------------------------------------------------------------- processes that stop */

struct family {
	pid_t holder; /* of the door, after its parent has died */
	uint32_t ready;
};

/* The child: puts without end, and without reading more than it must. */
static int flood(void *arg)
{
	static struct hostile child;
	struct family *family = arg;
	int r = hostile_open(&child, scene_server.dir, 0, 20);

	kvb_store_release(&family->ready, 1u);
	while (r == 0) {
		struct kvb_sqe sqe;
		const char *key;
		for (unsigned i = 0; i < BATCH && r == 0; i++) {
			hostile_valid(&child, &sqe, &key);
			r = hostile_submit(&child, &sqe, key);
		}
		if (r == 0)
			r = hostile_drain(&child);
	}
	return 1;
}

static struct family *family_new(void)
{
	struct family *family = mmap(
		NULL, sizeof(*family), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(family, MAP_FAILED);
	return family;
}

static void clients_may_be_stopped_and_killed(void **state)
{
	struct family *family = family_new();
	uint64_t seed = 21;

	(void)state;
	for (unsigned i = 0; i < STOPS; i++) {
		pid_t pid;
		family->ready = 0;
		pid = process_fork(flood, family);
		assert_true(pid > 0);
		while (!kvb_load_acquire(&family->ready))
			usleep(100);
		usleep(next_random(&seed) % 20000);
		assert_int_equal(kill(pid, SIGSTOP), 0);
		/* Longer than a transfer may rest; the server is asked meanwhile. */
		for (unsigned n = 0; n < 10; n++) {
			usleep(60000);
			(void)scene_stat("sessions.active");
		}
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(process_wait(pid, 20000), 128 + SIGKILL);
	}
	munmap(family, sizeof(*family));
	scene_check();
}

/* Attaches, leaves a child behind that holds all its descriptors, and dies. */
static int leave_a_child(void *arg)
{
	static struct hostile child;
	struct family *family = arg;
	pid_t pid;

	if (hostile_open(&child, scene_server.dir, KVB_HELLO_READER, 22) < 0)
		return 1;
	pid = fork();
	if (pid == 0) {
		pause();
		_exit(0);
	}
	family->holder = pid;
	kvb_store_release(&family->ready, 1u);
	pause();
	return 1;
}

static void a_forked_child_does_not_keep_the_dead_alive(void **state)
{
	struct family *family = family_new();
	uint64_t sessions = scene_stat("sessions.active");
	pid_t pid = process_fork(leave_a_child, family);

	(void)state;
	assert_true(pid > 0);
	while (!kvb_load_acquire(&family->ready))
		usleep(100);
	assert_int_equal(scene_stat("sessions.active"), sessions + 1);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(process_wait(pid, 20000), 128 + SIGKILL);
	/* With the door still open in the child's child. */
	scene_check();
	assert_int_equal(kill(family->holder, SIGKILL), 0);
	munmap(family, sizeof(*family));
	scene_check();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(each_field_takes_any_value, leave),
		cmocka_unit_test_teardown(random_requests_do_no_harm, leave),
		cmocka_unit_test_teardown(requests_may_change_while_they_are_read, leave),
		cmocka_unit_test_teardown(tails_that_cannot_be_end_the_session, leave),
		cmocka_unit_test_teardown(heads_that_cannot_be_end_the_session, leave),
		cmocka_unit_test_teardown(words_of_the_server_may_be_overwritten, leave),
		cmocka_unit_test_teardown(answers_need_not_be_read, leave),
		cmocka_unit_test_teardown(transfers_do_what_the_protocol_says, leave),
		cmocka_unit_test_teardown(transfers_of_others_are_out_of_reach, leave),
		cmocka_unit_test_teardown(lease_cells_may_hold_anything, leave),
		cmocka_unit_test_teardown(a_bell_that_blocks_ends_the_session, leave),
		cmocka_unit_test_teardown(nor_does_it_block_the_final_ring, leave),
		cmocka_unit_test_teardown(kicks_may_be_drained_and_full, leave),
		cmocka_unit_test_teardown(clients_may_be_stopped_and_killed, leave),
		cmocka_unit_test_teardown(a_forked_child_does_not_keep_the_dead_alive, leave),
		cmocka_unit_test(scene_ends_well),
	};

	return cmocka_run_group_tests_name("hostile_ring", tests, scene_start, scene_stop) ? 1 : 0;
}
