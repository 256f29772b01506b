/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostile.c - see hostile.h.
 *
 * Owns a session of bare protocol; the test's thread. It must never take an answer on trust: a completion
 * that comes twice, out of order or with a result that is no errno is counted as wrong.
 */
#include "tests/hostile/hostile.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "shm/bell.h"
#include "shm/util.h"
#include "tests/hostile/scene.h"
#include "tests/random.h"

#define HANG_MS    20000
#define KEYS       16u
#define KEY_CELL   65536u /* a request may claim that much */
#define LENGTH_MAX (2 * SCENE_FRAGMENT)
#define ERRNO_MAX  4095

static const char *key_of(uint32_t number)
{
	static char keys[KEYS][KEY_CELL];
	char *key = keys[number % KEYS];

	snprintf(key, KEY_CELL, "h%u", number % KEYS);
	return key;
}

int hostile_open(struct hostile *hostile, const char *dir, uint32_t hello_flags, uint64_t seed)
{
	*hostile = (struct hostile){.dir = dir, .hello_flags = hello_flags, .seed = seed};
	return raw_attach_as(&hostile->raw, dir, hello_flags);
}

void hostile_close(struct hostile *hostile)
{
	raw_drop(&hostile->raw);
}

int hostile_again(struct hostile *hostile)
{
	const struct timespec pause = {.tv_nsec = 2000000};
	uint64_t end_ns = kvb_now_ns() + HANG_MS * KVB_NS_PER_MS;
	int r;

	raw_drop(&hostile->raw);
	hostile->sent = hostile->taken = 0;
	while ((r = raw_attach_as(&hostile->raw, hostile->dir, hostile->hello_flags)) == -EUSERS &&
		kvb_now_ns() < end_ns)
		nanosleep(&pause, NULL);
	return r;
}

int hostile_submit(struct hostile *hostile, struct kvb_sqe *sqe, const void *key)
{
	int r;

	sqe->user_data = hostile->sent;
	r = raw_submit(&hostile->raw, sqe, key);
	hostile->sent += r == 0;
	return r;
}

static bool is_possible(const struct hostile *hostile, const struct kvb_cqe *cqe)
{
	return cqe->user_data == hostile->taken && hostile->taken < hostile->sent &&
		cqe->result <= 0 && cqe->result >= -ERRNO_MAX && cqe->flags == 0 &&
		cqe->reserved == 0 && cqe->length <= SCENE_FRAGMENT;
}

static void note(struct hostile *hostile, const struct kvb_cqe *cqe)
{
	hostile->wrong += !is_possible(hostile, cqe);
	hostile->taken++;
	hostile->operations++;
}

/* Sleeps until the bell or the door says something. True: the door, by which sessions end. */
static bool doze(struct hostile *hostile, int *ret_n)
{
	struct pollfd pfds[] = {{.fd = hostile->raw.fds[KVB_FD_BELL], .events = POLLIN},
		{.fd = hostile->raw.door_fd, .events = POLLIN}};

	*ret_n = poll(pfds, 2, HANG_MS);
	if (pfds[0].revents)
		(void)kvb_bell_clear(pfds[0].fd);
	return pfds[1].revents != 0;
}

int hostile_complete(struct hostile *hostile, struct kvb_cqe *ret_cqe)
{
	bool ended = false;
	int n = 1;

	for (;;) {
		int r = kvb_cq_take(&hostile->raw.cq, ret_cqe);
		if (r > 0)
			note(hostile, ret_cqe);
		if (r != 0)
			return r > 0 ? 0 : r;
		/* Completions that were posted before the end have been taken. */
		if (ended) {
			hostile->ends++;
			return -ECONNRESET;
		}
		if (n <= 0)
			return -ETIMEDOUT;
		kvb_bell_arm(&hostile->raw.cq.header->cq_sleeping);
		if (kvb_cq_empty(&hostile->raw.cq))
			ended = doze(hostile, &n);
	}
}

int hostile_drain(struct hostile *hostile)
{
	struct kvb_cqe cqe;
	int r = 0;

	while (r == 0 && hostile->taken < hostile->sent)
		r = hostile_complete(hostile, &cqe);
	return r;
}

int hostile_call(
	struct hostile *hostile, struct kvb_sqe *sqe, const void *key, struct kvb_cqe *ret_cqe)
{
	int r = hostile_submit(hostile, sqe, key);

	if (r == 0)
		r = hostile_complete(hostile, ret_cqe);
	return r < 0 ? r : ret_cqe->result;
}

/* ----------------------------------------------------------------------------------------- requests */

void hostile_valid(struct hostile *hostile, struct kvb_sqe *ret_sqe, const char **ret_key)
{
	static const uint8_t ops[] = {KVB_OP_NOP, KVB_OP_PUT, KVB_OP_PUT, KVB_OP_PUT, KVB_OP_GET,
		KVB_OP_GET, KVB_OP_GET, KVB_OP_EXISTS, KVB_OP_DELETE, KVB_OP_ABORT};
	uint32_t random = next_random(&hostile->seed);
	uint32_t length = next_random(&hostile->seed) % LENGTH_MAX;
	struct kvb_sqe sqe = {.op = ops[random % KVB_ARRAY_SIZE(ops)]};

	random /= KVB_ARRAY_SIZE(ops);
	*ret_key = key_of(random);
	sqe.transfer = KVB_TRANSFER_ID(random % 4, 1 + random / 4 % 3);
	if (sqe.op == KVB_OP_PUT || sqe.op == KVB_OP_GET) {
		sqe.flags = random % 8 ? KVB_SQE_OPEN : 0;
		sqe.total = length;
		sqe.length = (uint32_t)kvb_min_u64(length, SCENE_FRAGMENT);
		sqe.offset = sqe.flags ? 0 : SCENE_FRAGMENT;
		sqe.staging = random % (SCENE_STAGING - SCENE_FRAGMENT);
	}
	if (sqe.flags || sqe.op == KVB_OP_EXISTS || sqe.op == KVB_OP_DELETE)
		sqe.key_len = (uint16_t)strlen(*ret_key);
	*ret_sqe = sqe;
}

uint64_t hostile_number(struct hostile *hostile)
{
	static const uint64_t bases[] = {0, 64, 256, KVB_KEY_MAX, SCENE_FRAGMENT, SCENE_STAGING,
		SCENE_POOL, UINT16_MAX, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
	uint32_t random = next_random(&hostile->seed);
	uint64_t base = bases[random % KVB_ARRAY_SIZE(bases)];

	switch (random / 16 % 4) {
	case 0:
		return base + random / 64 % 3 - 1;
	case 1:
		return base - random / 64 % 128;
	case 2:
		return 1ull << random / 64 % 64;
	default:
		return (uint64_t)next_random(&hostile->seed) << 32 | next_random(&hostile->seed);
	}
}

unsigned hostile_fields(void)
{
	return 11;
}

void hostile_set_field(struct kvb_sqe *sqe, unsigned field, uint64_t value)
{
	switch (field) {
	case 0:
		sqe->op = (uint8_t)value;
		break;
	case 1:
		sqe->flags = (uint8_t)value;
		break;
	case 2:
		sqe->key_len = (uint16_t)value;
		break;
	case 3:
		sqe->transfer = (uint32_t)value;
		break;
	case 4:
		sqe->offset = value;
		break;
	case 5:
		sqe->total = value;
		break;
	case 6:
		sqe->staging = value;
		break;
	case 7:
		sqe->length = (uint32_t)value;
		break;
	case 8:
		sqe->reserved0 = (uint32_t)value;
		break;
	default:
		sqe->reserved[field % 2] = value;
		break;
	}
}

void hostile_mutate(struct hostile *hostile, struct kvb_sqe *sqe)
{
	unsigned field = next_random(&hostile->seed) % hostile_fields();

	hostile_set_field(sqe, field, hostile_number(hostile));
}
