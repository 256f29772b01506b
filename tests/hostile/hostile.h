/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostile.h - a client that says whatever it likes, and comes again when it was thrown out.
 * One thread at a time per struct, but for what a test does to its memory on purpose.
 */
#ifndef KVB_TESTS_HOSTILE_HOSTILE_H
#define KVB_TESTS_HOSTILE_HOSTILE_H

#include "tests/raw.h"

struct hostile {
	struct raw_client raw;
	const char *dir;
	uint32_t hello_flags;
	uint64_t seed;
	uint64_t sent, taken; /* requests and completions of this session */
	uint64_t operations;  /* completions of all sessions */
	uint64_t ends;        /* sessions that the server has ended */
	uint64_t wrong;       /* completions that cannot be */
};

/* Attaches. 0; -errno. */
int hostile_open(struct hostile *hostile, const char *dir, uint32_t hello_flags, uint64_t seed);
void hostile_close(struct hostile *hostile);
/* A new session in place of the old one; waits for a free slot. 0; -errno. */
int hostile_again(struct hostile *hostile);

/* Submits, with user_data set to the number of the request. 0; -EAGAIN the queue is full. */
int hostile_submit(struct hostile *hostile, struct kvb_sqe *sqe, const void *key);
/* The next completion. 0; -ECONNRESET the session has ended; -ETIMEDOUT the server hangs. */
int hostile_complete(struct hostile *hostile, struct kvb_cqe *ret_cqe);
/* Takes all that is due. 0; as above. */
int hostile_drain(struct hostile *hostile);
/* One request and its result, or one of the above. */
int hostile_call(
	struct hostile *hostile, struct kvb_sqe *sqe, const void *key, struct kvb_cqe *ret_cqe);

/* A request that makes sense, under one of a few keys; *ret_key lives as long as the program. */
void hostile_valid(struct hostile *hostile, struct kvb_sqe *ret_sqe, const char **ret_key);
/* A number of the kind that breaks arithmetic. */
uint64_t hostile_number(struct hostile *hostile);
/* Puts such a number into one of the request's fields. */
void hostile_mutate(struct hostile *hostile, struct kvb_sqe *sqe);
/* How many fields there are, and setting the n-th. */
unsigned hostile_fields(void);
void hostile_set_field(struct kvb_sqe *sqe, unsigned field, uint64_t value);

#endif /* KVB_TESTS_HOSTILE_HOSTILE_H */
