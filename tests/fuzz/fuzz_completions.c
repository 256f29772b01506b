/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_completions.c - the client's end of its rings: completions, and what puts, gets and statistics
 * make of them. The input is the server, honest or not; the segment changes while it is read.
 *
 * An input: how the segment changes (u8, enum kvb_fuzz_how), the changes, then steps (enum step).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/stream.h"
#include "shm/atomic.h"
#include "shm/util.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/guest.h"

#define STREAMS 3u

enum step {
	STEP_BEGIN, /* an operation (u8), its size in 256 bytes (u8) */
	STEP_ADVANCE,
	STEP_POST, /* the completion of a request: see post() */
	STEP_RAW,  /* 32 bytes as they are */
	STEP_GIVE_UP,
	STEP_POKE,
	STEPS,
};

struct slot {
	struct kvb_stream stream;
	void *memory;
	bool runs;
};

static struct kvb_fuzz_guest *guest;
static struct slot slots[STREAMS];
static uint64_t window;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	guest = kvb_fuzz_guest_new();
	kvb_fuzz_page(guest->conn->header, guest->conn->attached.layout.total_bytes);
	return 0;
}

static void end(struct slot *slot, int r)
{
	if (!slot->runs)
		return;
	(void)kvb_stream_end_locked(&slot->stream, r);
	kvb_fuzz_require(
		slot->stream.done <= slot->stream.task.size || slot->stream.task.op == KVB_OP_NOP,
		"more bytes have come than there is room for");
	free(slot->memory);
	slot->runs = false;
}

static void begin(struct slot *slot, struct kvb_fuzz_input *input)
{
	static const uint8_t ops[] = {
		KVB_OP_GET, KVB_OP_PUT, KVB_OP_STATS, KVB_OP_EXISTS, KVB_OP_NOP};
	struct kvb_task task = {
		.op = ops[kvb_fuzz_u8(input) % KVB_ARRAY_SIZE(ops)], .key = "key", .key_len = 3};

	task.size = kvb_fuzz_u8(input) * 256u;
	if (slot->runs)
		return;
	slot->memory = malloc(task.size);
	if (task.op == KVB_OP_PUT && slot->memory)
		memset(slot->memory, 1, task.size);
	task.data = task.buffer = slot->memory;
	if (kvb_stream_init(&slot->stream, guest->conn, &task, &window) == 0)
		slot->runs = true;
	else
		free(slot->memory);
}

static void advance(struct slot *slot)
{
	bool moved;
	int r;

	if (!slot->runs)
		return;
	r = kvb_stream_advance_locked(&slot->stream, &moved);
	if (r != 0)
		end(slot, r);
}

/* Of the request with a number (u8), of its generation plus one (u8 & 3); result 0 or an error. */
static void post(struct kvb_fuzz_input *input)
{
	uint8_t index = kvb_fuzz_u8(input), older = kvb_fuzz_u8(input);
	const struct kvb_request *request = &guest->conn->requests[index % KVB_FUZZ_CREDIT];
	struct kvb_cqe cqe = {.result = -(int32_t)kvb_fuzz_u8(input)};

	cqe.user_data =
		(uint64_t)(request->generation - (older & 3)) << 32 | index % (KVB_FUZZ_CREDIT + 1);
	cqe.value = kvb_fuzz_u8(input) * 256u;
	cqe.length = kvb_fuzz_u8(input) * 256u;
	kvb_fuzz_guest_post(guest, &cqe);
	kvb_fuzz_decoded(1);
}

static void take_step(struct kvb_fuzz_input *input)
{
	uint8_t step = kvb_fuzz_u8(input);
	struct slot *slot = &slots[step / STEPS % STREAMS];
	uint32_t *words = guest->conn->attached.session.base;
	struct kvb_cqe cqe;
	uint16_t word;

	switch (step % STEPS) {
	case STEP_BEGIN:
		begin(slot, input);
		break;
	case STEP_ADVANCE:
		advance(slot);
		break;
	case STEP_POST:
		post(input);
		break;
	case STEP_RAW:
		kvb_fuzz_copy(input, &cqe, sizeof(cqe));
		kvb_fuzz_guest_post(guest, &cqe);
		kvb_fuzz_decoded(1);
		break;
	case STEP_GIVE_UP:
		end(slot, -ETIMEDOUT);
		break;
	default:
		word = kvb_fuzz_u16(input);
		kvb_store_relaxed(
			&words[word % (guest->conn->attached.session.bytes / sizeof(*words))],
			kvb_fuzz_u32(input));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvb_fuzz_input input = {data, size};
	unsigned how = kvb_fuzz_u8(&input);

	kvb_fuzz_guest_begin(guest);
	window = 0;
	kvb_fuzz_change(&input, how);
	pthread_mutex_lock(&guest->conn->lock);
	while (input.left > 0)
		take_step(&input);
	for (unsigned i = 0; i < STREAMS; i++) {
		advance(&slots[i]);
		end(&slots[i], -ETIMEDOUT);
	}
	kvb_fuzz_still();
	pthread_mutex_unlock(&guest->conn->lock);
	kvb_fuzz_require(window == 0, "a stream has left bytes in the window");
	return 0;
}
