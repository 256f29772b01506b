/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw.h - a client made of bare protocol, for tests that must say what libkvbell never would.
 * One thread at a time per struct; every wait has a deadline and fails loudly.
 */
#ifndef KVB_TESTS_RAW_H
#define KVB_TESTS_RAW_H

#include <stdbool.h>
#include <stdint.h>

#include "kvbell/protocol.h"
#include "shm/ring.h"
#include "shm/segment.h"

struct kvb_client;

struct raw_client {
	int door_fd;
	struct kvb_welcome welcome;
	int fds[KVB_WELCOME_READER_FDS]; /* those that came and are not mapped; -1 */
	struct kvb_segment session;
	struct kvb_segment life;
	struct kvb_segment leases; /* of a reader */
	struct kvb_sq_producer sq;
	struct kvb_cq_consumer cq;
	uint8_t *staging;
};

/* A connection to dir/door.sock. 0; -errno. */
int raw_connect(const char *dir, int *ret_fd);
void raw_hello(struct kvb_hello *ret_hello);
/* Receives the next record at the door within the deadline. 1 and its size; 0 hung up; -errno. */
int raw_door_recv(int fd, void *record, size_t size, size_t *ret_size, int *fds, unsigned n_fds);
/* Receives a GOODBYE. 0; -errno. */
int raw_goodbye(int fd, struct kvb_goodbye *ret_goodbye);

/* Connects, says HELLO, maps. 0; the goodbye's error; -errno. */
int raw_attach(struct raw_client *raw, const char *dir);
/* The same with the flags of HELLO: a reader gets the lease cells, mapped, and the descriptors of index
 * and pool. */
int raw_attach_as(struct raw_client *raw, const char *dir, uint32_t hello_flags);
/* Drops everything without a word, as a process that dies does. */
void raw_drop(struct raw_client *raw);

/* Submits and kicks if the server sleeps. 0; -EAGAIN. */
int raw_submit(struct raw_client *raw, const struct kvb_sqe *sqe, const void *key);
/* Rings the kick. */
void raw_kick(struct raw_client *raw);
/* Waits for the next completion. 0; -ETIMEDOUT; -EPROTO. */
int raw_complete(struct raw_client *raw, struct kvb_cqe *ret_cqe);
/* Both for one request: its result. */
int raw_call(struct raw_client *raw, struct kvb_sqe *sqe, const void *key, struct kvb_cqe *ret_cqe);

/* The fragment of a put at staging 0; flags OPEN when offset is 0. Returns the result. */
int raw_put(struct raw_client *raw, const char *key, uint32_t transfer, uint64_t offset,
	uint32_t length, uint64_t total);
int raw_get(struct raw_client *raw, const char *key, uint32_t transfer, uint64_t offset,
	uint32_t length, uint64_t capacity, struct kvb_cqe *ret_cqe);
/* Breaks the protocol in the name of libkvbell's client, so that the server ends its session; any thread.
 * False: it is not attached. */
bool raw_break_client(struct kvb_client *client);
/* One statistic of the server, by name. 0; -errno. */
int raw_stat(struct raw_client *raw, const char *name, uint64_t *ret_value);

#endif /* KVB_TESTS_RAW_H */
