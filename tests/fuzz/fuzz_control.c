/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_control.c - the server's side of the control socket: frames, header, MessagePack, every built-in
 * handler, and the requests that the portable carrier brings, which are then served. The input is what
 * libzmq would deliver.
 *
 * An input: flags (u8, enum start), then messages: flags (u8, enum message_flag), a header, the body's
 * length (u16), the body.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "shm/atomic.h"
#include "shm/util.h"
#include "tests/fuzz/frame.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/host.h"

enum start {
	START_ATTACHED = 1u << 0,
	START_DRAINING = 1u << 1,
	START_RECOUNT = 1u << 3, /* the store, in the end */
	START_STUCK = 1u << 2,   /* answers that find no room have waited for too long */
};

enum message_flag {
	MESSAGE_FRAMES = 3u << 0, /* one less or more than there should be; see frame_count() */
	MESSAGE_FOREIGN = 1u << 2,
	MESSAGE_OTHER_PEER = 1u << 3,
	MESSAGE_RAW_HEADER = 1u << 4,
	MESSAGE_OTHER_SESSION = 1u << 5,
	MESSAGE_FULL = 1u << 6,  /* the answer finds no room */
	MESSAGE_SERVE = 1u << 7, /* nothing more has come, and a worker takes what was submitted */
};

static struct kvb_fuzz_host *host;
static char own_address[32];

/* The message on its way, frame by frame. */
static struct kvb_fuzz_input input;
static uint8_t flags;
static struct kvb_msg_header header;
static const uint8_t *body;
static size_t body_size;
static unsigned frame, n_frames;
static bool pausing;

/* ------------------------------------------------------------------------------------- instead of ZMQ */

static unsigned frame_count(void)
{
	static const unsigned counts[] = {3, 2, 1, 5};

	return counts[flags & MESSAGE_FRAMES];
}

static bool begin_message(void)
{
	if (input.left == 0 || pausing)
		return false;
	flags = kvb_fuzz_u8(&input);
	pausing = flags & MESSAGE_SERVE;
	header = (struct kvb_msg_header){.magic = KVB_MAGIC, .abi = KVB_ABI_VERSION, .request = 7};
	if (flags & MESSAGE_RAW_HEADER) {
		kvb_fuzz_copy(&input, &header, sizeof(header));
	} else {
		header.type = kvb_fuzz_u8(&input);
		header.session =
			kvb_session_own_id(host->session) + !!(flags & MESSAGE_OTHER_SESSION);
		memcpy(header.boot_id, host->server.boot_id, sizeof(header.boot_id));
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
	uint8_t peer;
	const void *data;
	size_t size;

	(void)socket;
	(void)how;
	if (frame == n_frames && !begin_message()) {
		errno = EAGAIN;
		return -1;
	}
	data = body;
	size = body_size;
	if (frame == 0) {
		peer = flags & MESSAGE_OTHER_PEER ? 2 : 1;
		data = &peer;
		size = sizeof(peer);
	} else if (frame == 1) {
		data = &header;
		/* Wrong by one where the number of frames is. */
		size = sizeof(header) - (n_frames == 5);
	}
	frame++;
	return kvb_fuzz_frame(msg, data, size);
}

int __wrap_zmq_msg_more(const zmq_msg_t *msg);
int __wrap_zmq_msg_more(const zmq_msg_t *msg)
{
	(void)msg;
	return frame < n_frames;
}

const char *__wrap_zmq_msg_gets(const zmq_msg_t *msg, const char *property);
const char *__wrap_zmq_msg_gets(const zmq_msg_t *msg, const char *property)
{
	(void)msg;
	(void)property;
	return flags & MESSAGE_FOREIGN ? "localhost:12345:0:1" : own_address;
}

int __wrap_zmq_msg_send(zmq_msg_t *msg, void *socket, int how);
int __wrap_zmq_msg_send(zmq_msg_t *msg, void *socket, int how)
{
	(void)socket;
	(void)how;
	if (flags & MESSAGE_FULL) {
		errno = EAGAIN;
		return -1;
	}
	return (int)zmq_msg_size(msg);
}

/* ------------------------------------------------------------------------------------------ the target */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	host = kvb_fuzz_host_new();
	host->server.control.owner = pthread_self();
	snprintf(own_address, sizeof(own_address), "localhost:%u:0:1", (unsigned)geteuid());
	return 0;
}

static void serve(void)
{
	(void)kvb_fuzz_host_serve(host);
	kvb_fuzz_host_reap(host);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t start;

	input = (struct kvb_fuzz_input){data, size};
	start = kvb_fuzz_u8(&input);
	frame = n_frames = 0;
	flags = 0;
	pausing = false;
	kvb_fuzz_host_begin(host);
	kvb_store_relaxed(&host->server.draining, (uint32_t) !!(start & START_DRAINING));
	if (start & START_ATTACHED)
		host->session->control_peer = (struct kvb_peer){.routing_id = {1}, .len = 1};
	while (input.left > 0) {
		kvb_control_serve(&host->server);
		pausing = false;
		serve();
		(void)kvb_reply_turn(
			&host->server, start & START_STUCK ? UINT64_MAX / 2 : kvb_now_ns());
	}
	serve();
	kvb_fuzz_host_end(host, start & START_RECOUNT);
	return 0;
}
