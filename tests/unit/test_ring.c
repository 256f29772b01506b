/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ring.c - the two queues of a session: around the end of their indices, against a hostile
 * peer, and between two threads that sleep and ring each other with no deadline, so that a lost
 * wake hangs.
 *
 * One mapping for both sides, since ThreadSanitizer does not see that two mappings are one memory.
 * The threads assert nothing; they leave what they found to the main thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "bench/pattern.h"
#include "shm/atomic.h"
#include "shm/bell.h"
#include "shm/ring.h"
#include "shm/threads.h"
#include "shm/util.h"

static const uint32_t capacities[] = {2, 4, 8};
static const uint32_t starts[] = {0, 1, 0x7ffffffeu, UINT32_MAX - 8, UINT32_MAX - 7, UINT32_MAX - 3,
	UINT32_MAX - 2, UINT32_MAX - 1, UINT32_MAX};

struct rings {
	struct kvb_layout layout;
	uint8_t *base;
	struct kvb_session_header *header;
	struct kvb_sq_producer sq_client;
	struct kvb_sq_consumer sq_server;
	struct kvb_cq_producer cq_server;
	struct kvb_cq_consumer cq_client;
};

/* Both queues empty, all indices at `start`. */
static void rings_new(struct rings *rings, uint32_t entries, uint32_t start)
{
	kvb_layout_compute(&rings->layout, entries, entries, 4096);
	assert_int_equal(kvb_layout_verify(&rings->layout), 0);
	rings->base = aligned_alloc(4096, rings->layout.total_bytes);
	assert_non_null(rings->base);
	memset(rings->base, 0, rings->layout.total_bytes);
	rings->header = (struct kvb_session_header *)rings->base;
	kvb_sq_producer_init(&rings->sq_client, rings->base, &rings->layout);
	kvb_sq_consumer_init(&rings->sq_server, rings->base, &rings->layout);
	kvb_cq_producer_init(&rings->cq_server, rings->base, &rings->layout);
	kvb_cq_consumer_init(&rings->cq_client, rings->base, &rings->layout);
	rings->header->sq_tail = rings->header->sq_head = start;
	rings->header->cq_tail = rings->header->cq_head = start;
	rings->sq_client.tail = rings->sq_server.head = start;
	rings->cq_server.tail = rings->cq_server.seen_head = rings->cq_client.head = start;
}

static void rings_free(struct rings *rings)
{
	free(rings->base);
}

/* ---------------------------------------------------------------------------------------------- layout */

static void the_layout_is_exact(void **state)
{
	struct kvb_layout layout;

	(void)state;
	kvb_layout_compute(&layout, 8, 4, 5000);
	assert_int_equal(layout.sq_entries, 8);
	assert_int_equal(layout.cq_entries, 4);
	assert_int_equal(layout.sq_offset, 896);
	assert_int_equal(layout.cq_offset, 896 + 8 * 64);
	assert_int_equal(layout.key_offset, 1408 + 4 * 32);
	assert_int_equal(layout.staging_offset, 12288); /* 1536 + 8 * 1024, in whole pages */
	assert_int_equal(layout.staging_bytes, 8192);
	assert_int_equal(layout.total_bytes, 20480);
	assert_int_equal(kvb_layout_verify(&layout), 0);
}

/* Words of different writers never share a pair of cache lines. */
static void shared_words_lie_apart(void **state)
{
	static const size_t offsets[] = {
		offsetof(struct kvb_session_header, state),
		offsetof(struct kvb_session_header, sq_tail),
		offsetof(struct kvb_session_header, sq_head),
		offsetof(struct kvb_session_header, sq_sleeping),
		offsetof(struct kvb_session_header, cq_tail),
		offsetof(struct kvb_session_header, cq_head),
		offsetof(struct kvb_session_header, cq_sleeping),
	};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(offsets); i++)
		assert_int_equal(offsets[i] / KVB_LINE, i);
}

static void refuse_layout(struct kvb_layout *layout, size_t member, uint64_t value)
{
	struct kvb_layout bad = *layout;

	memcpy((char *)&bad + member, &value, sizeof(value));
	assert_int_equal(kvb_layout_verify(&bad), -EPROTO);
}

static void impossible_layouts_are_refused(void **state)
{
	static const size_t offsets[] = {offsetof(struct kvb_layout, sq_offset),
		offsetof(struct kvb_layout, cq_offset), offsetof(struct kvb_layout, key_offset),
		offsetof(struct kvb_layout, staging_offset)};
	struct kvb_layout layout, bad;

	(void)state;
	kvb_layout_compute(&layout, 8, 4, 8192);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(offsets); i++) {
		refuse_layout(&layout, offsets[i], 0);         /* on the header */
		refuse_layout(&layout, offsets[i], 1024 + 64); /* misaligned */
		refuse_layout(&layout, offsets[i], layout.total_bytes);
		refuse_layout(&layout, offsets[i], UINT64_MAX - 127);
	}
	refuse_layout(&layout, offsetof(struct kvb_layout, staging_bytes), 8193);
	refuse_layout(&layout, offsetof(struct kvb_layout, staging_bytes), UINT64_MAX);
	refuse_layout(&layout, offsetof(struct kvb_layout, total_bytes), layout.total_bytes - 1);
	bad = layout;
	bad.sq_entries = 6;
	assert_int_equal(kvb_layout_verify(&bad), -EPROTO);
	bad.sq_entries = 0;
	assert_int_equal(kvb_layout_verify(&bad), -EPROTO);
	bad.sq_entries = 0x80000000u;
	assert_int_equal(kvb_layout_verify(&bad), -EPROTO);
	bad = layout;
	bad.cq_entries = 0;
	assert_int_equal(kvb_layout_verify(&bad), -EPROTO);
	/* More credit than submission slots. */
	bad.cq_entries = 16;
	assert_int_equal(kvb_layout_verify(&bad), -EPROTO);
}

/* ------------------------------------------------------------------------------------- around the end */

static struct kvb_sqe sqe_of(uint64_t number)
{
	return (struct kvb_sqe){.op = KVB_OP_PUT,
		.key_len = (uint16_t)(1 + number % 9),
		.transfer = (uint32_t)number,
		.user_data = kvb_pattern_word(2, number),
		.offset = number + 1,
		.length = 77};
}

static void key_of(uint64_t number, uint8_t key[KVB_KEY_MAX])
{
	kvb_pattern_fill(key, KVB_KEY_MAX, number);
}

static int push(struct rings *rings, uint64_t number)
{
	struct kvb_sqe sqe = sqe_of(number);
	uint8_t key[KVB_KEY_MAX];

	key_of(number, key);
	return kvb_sq_push(&rings->sq_client, &sqe, key);
}

static void pop(struct rings *rings, uint64_t number)
{
	struct kvb_sqe expected = sqe_of(number), sqe;
	uint8_t expected_key[KVB_KEY_MAX], key[KVB_KEY_MAX];

	key_of(number, expected_key);
	assert_int_equal(kvb_sq_pop(&rings->sq_server, &sqe, key), 1);
	assert_memory_equal(&sqe, &expected, sizeof(sqe));
	assert_memory_equal(key, expected_key, sqe.key_len);
}

/* Full and empty again, `fill` requests in it beforehand. */
static void sq_around(struct rings *rings, uint32_t fill, uint64_t *number)
{
	uint32_t entries = rings->layout.sq_entries;
	uint64_t first = *number;
	struct kvb_sqe sqe;
	uint8_t key[KVB_KEY_MAX];

	for (uint32_t i = 0; i < fill; i++)
		assert_int_equal(push(rings, (*number)++), 0);
	for (uint32_t i = 0; i < fill; i++)
		pop(rings, first++);
	for (uint32_t i = 0; i < entries; i++)
		assert_int_equal(push(rings, (*number)++), 0);
	assert_int_equal(push(rings, 0), -EAGAIN);
	assert_false(kvb_sq_empty(&rings->sq_server));
	pop(rings, first++);
	assert_int_equal(push(rings, (*number)++), 0);
	assert_int_equal(push(rings, 0), -EAGAIN);
	while (first < *number)
		pop(rings, first++);
	assert_true(kvb_sq_empty(&rings->sq_server));
	assert_int_equal(kvb_sq_pop(&rings->sq_server, &sqe, key), 0);
}

static void post(struct rings *rings, uint64_t number)
{
	struct kvb_cqe cqe = {
		.user_data = number, .result = -(int32_t)(number % 100), .value = ~number};

	assert_int_equal(kvb_cq_room(&rings->cq_server), 0);
	kvb_cq_post(&rings->cq_server, &cqe);
}

static void take(struct rings *rings, uint64_t number)
{
	struct kvb_cqe cqe;

	assert_int_equal(kvb_cq_take(&rings->cq_client, &cqe), 1);
	assert_int_equal(cqe.user_data, number);
	assert_int_equal(cqe.result, -(int32_t)(number % 100));
	assert_int_equal(cqe.value, ~number);
}

static void cq_around(struct rings *rings, uint32_t fill, uint64_t *number)
{
	uint64_t first = *number;
	struct kvb_cqe cqe;

	for (uint32_t i = 0; i < fill; i++)
		post(rings, (*number)++);
	for (uint32_t i = 0; i < fill; i++)
		take(rings, first++);
	for (uint32_t i = 0; i < rings->layout.cq_entries; i++)
		post(rings, (*number)++);
	assert_int_equal(kvb_cq_room(&rings->cq_server), -EPROTO);
	take(rings, first++);
	post(rings, (*number)++);
	assert_int_equal(kvb_cq_room(&rings->cq_server), -EPROTO);
	while (first < *number)
		take(rings, first++);
	assert_true(kvb_cq_empty(&rings->cq_client));
	assert_int_equal(kvb_cq_take(&rings->cq_client, &cqe), 0);
}

static void around_the_end_at(uint32_t entries, uint32_t start)
{
	struct rings rings;
	uint64_t sq_number = 0, cq_number = 0;

	rings_new(&rings, entries, start);
	for (uint32_t fill = 0; fill <= entries; fill++) {
		sq_around(&rings, fill, &sq_number);
		cq_around(&rings, fill, &cq_number);
	}
	assert_int_equal(rings.header->sq_tail, (uint32_t)(start + sq_number));
	assert_int_equal(rings.header->sq_head, (uint32_t)(start + sq_number));
	assert_int_equal(rings.header->cq_tail, (uint32_t)(start + cq_number));
	assert_int_equal(rings.header->cq_head, (uint32_t)(start + cq_number));
	rings_free(&rings);
}

static void indices_run_freely(void **state)
{
	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(capacities); i++)
		for (size_t n = 0; n < KVB_ARRAY_SIZE(starts); n++)
			around_the_end_at(capacities[i], starts[n]);
}

/* -------------------------------------------------------------------------------------------- key cells */

static void each_slot_has_a_key_cell(void **state)
{
	static const uint8_t zeros[KVB_KEY_MAX];
	struct kvb_sqe sqe = {.op = KVB_OP_EXISTS, .key_len = KVB_KEY_MAX};
	uint8_t key[KVB_KEY_MAX], got[KVB_KEY_MAX];
	struct rings rings;
	uint8_t *cells;

	(void)state;
	rings_new(&rings, 4, UINT32_MAX - 1);
	cells = rings.base + rings.layout.key_offset;
	memset(key, 0xab, sizeof(key));
	/* The index is UINT32_MAX - 1, so the slot is 2. */
	assert_int_equal(kvb_sq_push(&rings.sq_client, &sqe, key), 0);
	assert_memory_equal(cells, zeros, KVB_KEY_MAX);
	assert_memory_equal(cells + KVB_KEY_MAX, zeros, KVB_KEY_MAX);
	assert_memory_equal(cells + (size_t)2 * KVB_KEY_MAX, key, KVB_KEY_MAX);
	assert_memory_equal(cells + (size_t)3 * KVB_KEY_MAX, zeros, KVB_KEY_MAX);
	assert_int_equal(kvb_sq_pop(&rings.sq_server, &sqe, got), 1);
	assert_memory_equal(got, key, KVB_KEY_MAX);
	/* Without a key the cell stays as it is, and so does the reader's buffer. */
	sqe = (struct kvb_sqe){.op = KVB_OP_NOP};
	assert_int_equal(kvb_sq_push(&rings.sq_client, &sqe, NULL), 0);
	assert_int_equal(kvb_sq_pop(&rings.sq_server, &sqe, got), 1);
	assert_memory_equal(got, key, KVB_KEY_MAX);
	assert_memory_equal(cells + (size_t)3 * KVB_KEY_MAX, zeros, KVB_KEY_MAX);
	rings_free(&rings);
}

static void a_key_is_no_longer_than_its_cell(void **state)
{
	static const uint16_t lengths[] = {KVB_KEY_MAX + 1, 2048, 0x8000, UINT16_MAX};
	uint8_t key[KVB_KEY_MAX];
	struct kvb_sqe sqe;
	struct rings rings;

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(lengths); i++) {
		rings_new(&rings, 2, 0);
		rings.sq_client.entries[0].key_len = lengths[i];
		rings.header->sq_tail = 1;
		sqe.user_data = 5;
		assert_int_equal(kvb_sq_pop(&rings.sq_server, &sqe, key), -EPROTO);
		assert_int_equal(sqe.user_data, 5);
		assert_int_equal(rings.header->sq_head, 0);
		rings_free(&rings);
	}
}

/* -------------------------------------------------------------------------------------- hostile indices */

/* Distances that no honest peer's index has. */
static uint32_t bad_distance(uint32_t entries, size_t which)
{
	const uint32_t distances[] = {entries + 1, entries + 2, 2 * entries, 0x80000000u,
		UINT32_MAX - entries, UINT32_MAX - 1, UINT32_MAX};

	return distances[which];
}
#define BAD_DISTANCES 7

static void hostile_indices_at(uint32_t entries, uint32_t start, uint32_t distance)
{
	struct kvb_sqe sqe;
	struct kvb_cqe cqe;
	uint8_t key[KVB_KEY_MAX];
	struct rings rings;

	rings_new(&rings, entries, start);
	rings.header->sq_tail = start + distance;
	assert_int_equal(kvb_sq_pop(&rings.sq_server, &sqe, key), -EPROTO);
	assert_int_equal(rings.sq_server.head, start);
	assert_int_equal(rings.header->sq_head, start);

	rings.header->cq_tail = start + distance;
	assert_int_equal(kvb_cq_take(&rings.cq_client, &cqe), -EPROTO);
	assert_int_equal(rings.cq_client.head, start);
	assert_int_equal(rings.header->cq_head, start);

	/* A server's head that makes the queue look more than full must not open a slot in use. */
	rings.header->sq_head = start - distance;
	assert_int_equal(push(&rings, 1), -EAGAIN);
	assert_int_equal(rings.sq_client.tail, start);

	/* A client that has read completions that were never posted, or none for longer than the
	 * queue is. */
	for (uint32_t i = 0; i < entries; i++)
		post(&rings, i);
	rings.header->cq_head = start + entries - distance;
	assert_int_equal(kvb_cq_room(&rings.cq_server), -EPROTO);
	rings.header->cq_head = start + entries;
	assert_int_equal(kvb_cq_room(&rings.cq_server), 0);
	rings_free(&rings);
}

static void hostile_indices_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(capacities); i++)
		for (size_t n = 0; n < KVB_ARRAY_SIZE(starts); n++)
			for (size_t d = 0; d < BAD_DISTANCES; d++)
				hostile_indices_at(
					capacities[i], starts[n], bad_distance(capacities[i], d));
}

/* Every index there is, against every state of fill: in bounds or refused, and never a crash. */
static void no_index_is_believed(void **state)
{
	struct rings rings;

	(void)state;
	rings_new(&rings, 4, UINT32_MAX - 1);
	for (uint64_t i = 0; i < 20000; i++) {
		uint32_t tail = (uint32_t)kvb_pattern_word(3, i) >> (i % 32);
		uint32_t ready = tail - rings.sq_server.head;
		struct kvb_sqe sqe;
		uint8_t key[KVB_KEY_MAX];
		rings.header->sq_tail = tail;
		assert_int_equal(kvb_sq_pop(&rings.sq_server, &sqe, key),
			ready == 0           ? 0
				: ready <= 4 ? 1
					     : -EPROTO);
	}
	rings_free(&rings);
}

static void more_than_the_credit_is_refused(void **state)
{
	struct rings rings;

	(void)state;
	rings_new(&rings, 4, UINT32_MAX);
	for (uint64_t i = 0; i < 4; i++)
		post(&rings, i);
	/* Asking again changes nothing; reading one completion does. */
	assert_int_equal(kvb_cq_room(&rings.cq_server), -EPROTO);
	assert_int_equal(kvb_cq_room(&rings.cq_server), -EPROTO);
	take(&rings, 0);
	assert_int_equal(kvb_cq_room(&rings.cq_server), 0);
	post(&rings, 4);
	assert_int_equal(kvb_cq_room(&rings.cq_server), -EPROTO);
	for (uint64_t i = 1; i < 5; i++)
		take(&rings, i);
	rings_free(&rings);
}

/* -------------------------------------------------------------------------- one queue, two threads */

#define ONE_WAY_ITEMS 20000u

/* One queue alone, so that nothing but its own two indices orders what the threads do. */
struct one_way {
	struct rings rings;
	int consumer_error;
};

static void *push_all(void *arg)
{
	struct one_way *one_way = arg;

	for (uint64_t i = 0; i < ONE_WAY_ITEMS; i++)
		while (push(&one_way->rings, i) == -EAGAIN)
			sched_yield();
	return NULL;
}

static void pop_all(struct one_way *one_way)
{
	uint8_t key[KVB_KEY_MAX];
	uint64_t n = 0;

	while (n < ONE_WAY_ITEMS && one_way->consumer_error == 0) {
		struct kvb_sqe expected = sqe_of(n), sqe;
		int r = kvb_sq_pop(&one_way->rings.sq_server, &sqe, key);
		if (r == 0)
			sched_yield();
		else if (r < 0 || memcmp(&sqe, &expected, sizeof(sqe)) != 0)
			one_way->consumer_error = -EBADMSG;
		else
			n++;
	}
}

static void *post_all(void *arg)
{
	struct one_way *one_way = arg;

	for (uint64_t i = 0; i < ONE_WAY_ITEMS; i++) {
		const struct kvb_cqe cqe = {.user_data = i, .value = ~i};
		/* Without credit a full queue is nobody's fault. */
		while (kvb_cq_room(&one_way->rings.cq_server) != 0)
			sched_yield();
		kvb_cq_post(&one_way->rings.cq_server, &cqe);
	}
	return NULL;
}

static void take_all(struct one_way *one_way)
{
	struct kvb_cqe cqe;
	uint64_t n = 0;

	while (n < ONE_WAY_ITEMS && one_way->consumer_error == 0) {
		int r = kvb_cq_take(&one_way->rings.cq_client, &cqe);
		if (r == 0)
			sched_yield();
		else if (r < 0 || cqe.user_data != n || cqe.value != ~n)
			one_way->consumer_error = -EBADMSG;
		else
			n++;
	}
}

static void one_way_with(
	uint32_t entries, void *(*produce)(void *), void (*consume)(struct one_way *))
{
	static struct one_way one_way;
	pthread_t producer;

	one_way.consumer_error = 0;
	rings_new(&one_way.rings, entries, UINT32_MAX - ONE_WAY_ITEMS / 2);
	assert_int_equal(kvb_thread_start(&producer, "producer", produce, &one_way), 0);
	consume(&one_way);
	pthread_join(producer, NULL);
	assert_int_equal(one_way.consumer_error, 0);
	rings_free(&one_way.rings);
}

static void a_slot_is_never_written_while_it_is_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(capacities); i++) {
		one_way_with(capacities[i], push_all, pop_all);
		one_way_with(capacities[i], post_all, take_all);
	}
}

/* ------------------------------------------------------------------------ two threads that sleep */

#define STRESS_ENTRIES 8u
#define STRESS_ITEMS   1000000u

struct stress {
	struct rings rings;
	int kick, bell; /* eventfds that block */
	uint64_t kicks, bells;
	uint64_t served;
	int server_error;
	int client_error;
};

static void ring_sleeper(uint32_t *sleeping, int fd, uint64_t *count, int *error)
{
	if (!kvb_bell_wanted(sleeping))
		return;
	(*count)++;
	if (kvb_bell_ring(fd) != 0)
		*error = -EIO;
}

/* Sleeps, with no deadline, unless something came meanwhile. */
static void sleep_unless(bool ready, uint32_t *sleeping, int fd, int *error)
{
	if (!ready && kvb_bell_clear(fd) != 0)
		*error = -EIO;
	kvb_bell_disarm(sleeping);
}

static void serve_one(struct stress *stress, const struct kvb_sqe *sqe, const uint8_t *key)
{
	struct kvb_sqe expected = sqe_of(stress->served);
	struct kvb_cqe cqe = {.user_data = sqe->user_data, .value = stress->served};
	uint64_t word = kvb_pattern_word(stress->served, 0);

	if (memcmp(sqe, &expected, sizeof(expected)) != 0 ||
		memcmp(key, &word, kvb_min_u64(sqe->key_len, sizeof(word))) != 0)
		stress->server_error = -EBADMSG;
	if (kvb_cq_room(&stress->rings.cq_server) != 0)
		stress->server_error = -ENOBUFS;
	kvb_cq_post(&stress->rings.cq_server, &cqe);
	stress->served++;
	ring_sleeper(&stress->rings.header->cq_sleeping, stress->bell, &stress->bells,
		&stress->server_error);
}

static void *run_server(void *arg)
{
	struct stress *stress = arg;
	struct rings *rings = &stress->rings;
	uint32_t *sleeping = &rings->header->sq_sleeping;
	uint8_t key[KVB_KEY_MAX];
	struct kvb_sqe sqe;

	while (stress->served < STRESS_ITEMS && stress->server_error == 0) {
		int r = kvb_sq_pop(&rings->sq_server, &sqe, key);
		if (r == 1) {
			serve_one(stress, &sqe, key);
		} else if (r == 0) {
			kvb_bell_arm(sleeping);
			sleep_unless(!kvb_sq_empty(&rings->sq_server), sleeping, stress->kick,
				&stress->server_error);
		} else {
			stress->server_error = r;
		}
	}
	return NULL;
}

static void submit_one(struct stress *stress, uint64_t number)
{
	struct kvb_sqe sqe = sqe_of(number);
	uint8_t key[16];

	kvb_pattern_fill(key, sizeof(key), number);
	if (kvb_sq_push(&stress->rings.sq_client, &sqe, key) != 0)
		stress->client_error = -EAGAIN;
	ring_sleeper(&stress->rings.header->sq_sleeping, stress->kick, &stress->kicks,
		&stress->client_error);
}

static void complete_one(struct stress *stress, uint64_t *done, const struct kvb_cqe *cqe)
{
	if (cqe->value != *done || cqe->user_data != kvb_pattern_word(2, *done))
		stress->client_error = -EBADMSG;
	(*done)++;
}

/* Keeps to its credit, and sleeps whenever it has none left or nothing more to submit. */
static void run_client(struct stress *stress)
{
	struct rings *rings = &stress->rings;
	uint32_t *sleeping = &rings->header->cq_sleeping;
	uint64_t sent = 0, done = 0;
	struct kvb_cqe cqe;

	while (done < STRESS_ITEMS && stress->client_error == 0) {
		int r;
		if (sent < STRESS_ITEMS && sent - done < STRESS_ENTRIES) {
			submit_one(stress, sent++);
			continue;
		}
		r = kvb_cq_take(&rings->cq_client, &cqe);
		if (r == 1) {
			complete_one(stress, &done, &cqe);
		} else if (r == 0) {
			kvb_bell_arm(sleeping);
			sleep_unless(!kvb_cq_empty(&rings->cq_client), sleeping, stress->bell,
				&stress->client_error);
		} else {
			stress->client_error = r;
		}
	}
}

static void two_threads_never_miss_each_other(void **state)
{
	static struct stress stress;
	pthread_t server;

	(void)state;
	rings_new(&stress.rings, STRESS_ENTRIES, UINT32_MAX - STRESS_ITEMS / 2);
	stress.kick = eventfd(0, EFD_CLOEXEC);
	stress.bell = eventfd(0, EFD_CLOEXEC);
	assert_true(stress.kick >= 0 && stress.bell >= 0);
	assert_int_equal(kvb_thread_start(&server, "server", run_server, &stress), 0);
	run_client(&stress);
	pthread_join(server, NULL);
	assert_int_equal(stress.client_error, 0);
	assert_int_equal(stress.server_error, 0);
	assert_int_equal(stress.served, STRESS_ITEMS);
	/* They must have slept and been woken, or it proves nothing. */
	assert_true(stress.kicks > 100);
	assert_true(stress.bells > 100);
	close(stress.kick);
	close(stress.bell);
	rings_free(&stress.rings);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_layout_is_exact),
		cmocka_unit_test(shared_words_lie_apart),
		cmocka_unit_test(impossible_layouts_are_refused),
		cmocka_unit_test(indices_run_freely),
		cmocka_unit_test(each_slot_has_a_key_cell),
		cmocka_unit_test(a_key_is_no_longer_than_its_cell),
		cmocka_unit_test(hostile_indices_are_refused),
		cmocka_unit_test(no_index_is_believed),
		cmocka_unit_test(more_than_the_credit_is_refused),
		cmocka_unit_test(a_slot_is_never_written_while_it_is_read),
		cmocka_unit_test(two_threads_never_miss_each_other),
	};

	return cmocka_run_group_tests_name("ring", tests, NULL, NULL) ? 1 : 0;
}
