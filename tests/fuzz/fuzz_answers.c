/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_answers.c - what the client makes of the server's answers: frames and bodies on the control
 * socket (attach, ping, list, calls), and the map of statistics that comes through the ring. The input
 * is what libzmq, or staging, would bring.
 *
 * An input: which call (u8, enum call), then answers: flags (u8, enum answer_flag), a header, the
 * body's length (u16), the body. Statistics: result (u8), length minus what there is (u8), the map.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "kvbell/kvbell.h"
#include "shm/util.h"
#include "tests/fuzz/frame.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/guest.h"

enum call { CALL_PING, CALL_LIST, CALL_USER, CALL_STATS, CALLS };

enum answer_flag {
	ANSWER_STRANGE = 1u << 0, /* not of the request that was sent last */
	ANSWER_FRAMES = 3u << 1,  /* see frame_count() */
	ANSWER_RAW_HEADER = 1u << 3,
	ANSWER_REFUSED = 1u << 4,
	ANSWER_OTHER_BOOT = 1u << 5,
	ANSWER_UNASKED = 1u << 6, /* does not wait for a request */
};

static struct kvb_fuzz_guest *guest;
static struct kvb_fuzz_input input;

/* The answer on its way, frame by frame, and the request that it may be for. */
static uint8_t flags;
static struct kvb_msg_header header, sent;
static const uint8_t *body;
static size_t body_size;
static unsigned frame, n_frames, n_sent, n_answered;

/* ------------------------------------------------------------------------------------- instead of ZMQ */

static unsigned frame_count(void)
{
	static const unsigned counts[] = {2, 1, 4, 2};

	return counts[(flags & ANSWER_FRAMES) >> 1];
}

static bool begin_answer(void)
{
	if (input.left == 0 || (n_answered >= n_sent && !(*input.at & ANSWER_UNASKED)))
		return false;
	flags = kvb_fuzz_u8(&input);
	n_answered++;
	header = sent;
	if (flags & ANSWER_RAW_HEADER) {
		kvb_fuzz_copy(&input, &header, sizeof(header));
	} else {
		header.request += !!(flags & ANSWER_STRANGE);
		header.boot_id[0] ^= !!(flags & ANSWER_OTHER_BOOT);
		header.status = -(int32_t)kvb_fuzz_u8(&input);
		header.flags = flags & ANSWER_REFUSED ? KVB_MSG_REFUSED : 0;
	}
	body = kvb_fuzz_bytes(&input, kvb_fuzz_u16(&input), &body_size);
	frame = 0;
	n_frames = frame_count();
	kvb_fuzz_decoded(1);
	return true;
}

int __wrap_zmq_msg_recv(zmq_msg_t *msg, void *socket, int how);
int __wrap_zmq_msg_recv(zmq_msg_t *msg, void *socket, int how)
{
	const void *data;
	size_t size;

	(void)socket;
	(void)how;
	if (frame == n_frames && !begin_answer()) {
		errno = EAGAIN;
		return -1;
	}
	data = frame == 0 ? (const void *)&header : body;
	size = frame == 0 ? sizeof(header) : body_size;
	frame++;
	return kvb_fuzz_frame(msg, data, size);
}

int __wrap_zmq_msg_more(const zmq_msg_t *msg);
int __wrap_zmq_msg_more(const zmq_msg_t *msg)
{
	(void)msg;
	return frame < n_frames;
}

int __wrap_zmq_msg_send(zmq_msg_t *msg, void *socket, int how);
int __wrap_zmq_msg_send(zmq_msg_t *msg, void *socket, int how)
{
	(void)socket;
	if (how & ZMQ_SNDMORE) {
		memcpy(&sent, zmq_msg_data(msg), sizeof(sent));
		n_sent++;
	}
	return (int)zmq_msg_size(msg);
}

int __wrap_zmq_getsockopt(void *socket, int option, void *value, size_t *size);
int __wrap_zmq_getsockopt(void *socket, int option, void *value, size_t *size)
{
	int events = input.left > 0 ? ZMQ_POLLIN | ZMQ_POLLOUT : 0;

	(void)socket;
	(void)option;
	(void)size;
	memcpy(value, &events, sizeof(events));
	return 0;
}

/* ----------------------------------------------------------------------------------- instead of a worker */

/* Answers the STATS request that has just been published; it is alone in the ring. */
static void answer_stats(struct kvb_fuzz_guest *unused)
{
	const struct kvb_conn *conn = guest->conn;
	const struct kvb_sqe *sqe = &conn->sq.entries[(conn->sq.tail - 1) & conn->sq.mask];
	struct kvb_cqe cqe = {.user_data = sqe->user_data, .result = -(int32_t)kvb_fuzz_u8(&input)};
	uint8_t more = kvb_fuzz_u8(&input);
	const uint8_t *map;
	size_t size;

	(void)unused;
	map = kvb_fuzz_bytes(&input, sqe->length, &size);
	if (size > 0)
		memcpy(conn->staging_base + sqe->staging, map, size);
	cqe.value = size + more * 64u;
	kvb_fuzz_guest_post(guest, &cqe);
	kvb_fuzz_decoded(1);
}

/* ------------------------------------------------------------------------------------------ the target */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	guest = kvb_fuzz_guest_new();
	guest->kicked = answer_stats;
	guest->conn->dealer.socket = guest;
	return 0;
}

static uint64_t seen;

static int see_entry(void *user, const struct kvb_entry *entry)
{
	const uint8_t *key = entry->key;

	(void)user;
	for (size_t i = 0; i < entry->key_len; i++)
		seen += key[i];
	return 0;
}

static int see_stat(void *user, const struct kvb_stat *stat)
{
	(void)user;
	seen += strlen(stat->name) + (stat->text ? strlen(stat->text) : stat->value);
	return 0;
}

static void call_user(void)
{
	static const char nothing[] = {'\xc0'};
	struct kvb_reply reply = {0};
	int r = kvb_call(&guest->client, KVB_MSG_USER, nothing, sizeof(nothing), 0, &reply);

	kvb_fuzz_require(r == 0 || reply.body == NULL, "a call that failed has a body");
	seen += strlen(reply.text);
	kvb_reply_free(&reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	input = (struct kvb_fuzz_input){data, size};
	frame = n_frames = n_sent = n_answered = 0;
	kvb_fuzz_guest_begin(guest);
	switch (kvb_fuzz_u8(&input) % CALLS) {
	case CALL_PING:
		(void)kvb_ping_control(&guest->client);
		break;
	case CALL_LIST:
		(void)kvb_list(&guest->client, see_entry, NULL);
		break;
	case CALL_USER:
		call_user();
		break;
	default:
		(void)kvb_stats(&guest->client, see_stat, NULL);
	}
	kvb_fuzz_require(
		guest->client.inside == 0 && guest->conn->refs == 1, "a call has not ended");
	return 0;
}
