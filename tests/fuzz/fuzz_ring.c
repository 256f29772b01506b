/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_ring.c - the server's end of a session's rings, and everything that a request then does: pop,
 * checks, transfers, the store. The input is the client, honest or not; the segment changes while it is
 * served.
 *
 * An input: how the segment changes, and whether the store is recounted in the end (u8, enum kvb_fuzz_how
 * and HOW_RECOUNT), the changes, then steps (enum step).
 */
#include <string.h>

#include "shm/atomic.h"
#include "shm/util.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/host.h"

#define HOW_RECOUNT 4u

enum step {
	STEP_REQUEST, /* a request that may make sense: see request() */
	STEP_RAW,     /* 64 bytes as they are */
	STEP_SERVE,
	STEP_REAP,
	STEP_POKE, /* a word of the segment: index (u16), value (u32) */
	STEP_ORDER,
	STEP_WRAP, /* both queues to the end of their indices, if they are empty */
	STEP_MORE, /* of an open transfer: see more() */
	STEPS,
};

static struct kvb_fuzz_host *host;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	host = kvb_fuzz_host_new();
	kvb_fuzz_page(host->session->segment.base, host->session->segment.bytes);
	return 0;
}

static void submit(const struct kvb_sqe *sqe, uint8_t key, bool fill)
{
	const struct kvb_session *session = host->session;
	struct kvb_session_header *header = session->header;
	uint32_t tail = kvb_load_relaxed(&header->sq_tail);
	uint32_t slot = tail & (session->layout.sq_entries - 1);
	uint8_t *base = (uint8_t *)header;

	memcpy(base + session->layout.sq_offset + slot * sizeof(*sqe), sqe, sizeof(*sqe));
	if (fill)
		memset(base + session->layout.key_offset + (size_t)slot * KVB_KEY_MAX, key,
			sqe->key_len);
	kvb_store_release(&header->sq_tail, tail + 1);
}

/* Numbers as small as they have to be to fit together. */
static void request(struct kvb_fuzz_input *input)
{
	struct kvb_sqe sqe = {.op = kvb_fuzz_u8(input), .flags = kvb_fuzz_u8(input)};
	uint8_t key = kvb_fuzz_u8(input), transfer = kvb_fuzz_u8(input);

	/* Some keys are as long as can be. */
	if (sqe.flags & KVB_SQE_OPEN || sqe.op == KVB_OP_EXISTS || sqe.op == KVB_OP_DELETE)
		sqe.key_len = (uint16_t)(key & 0x40 ? KVB_KEY_MAX : 1u + (key & 7u) * 30u);
	sqe.transfer = KVB_TRANSFER_ID(transfer & 31, transfer >> 5);
	sqe.user_data = key;
	sqe.offset = (uint64_t)kvb_fuzz_u8(input) * 256;
	sqe.total = (uint64_t)kvb_fuzz_u8(input) * 256;
	sqe.length = kvb_fuzz_u8(input) * 256u;
	sqe.staging = (uint64_t)kvb_fuzz_u8(input) * 256;
	submit(&sqe, key, true);
}

/* The next fragment of a transfer (u8), as its client would know it: length (u8), and how far off the
 * offset is (u8), both in 256 bytes. */
static void more(struct kvb_fuzz_input *input)
{
	const struct kvb_transfer *transfer =
		&host->session->transfers[kvb_fuzz_u8(input) % KVB_TRANSFERS];
	struct kvb_sqe sqe = {.op = transfer->is_put ? KVB_OP_PUT : KVB_OP_GET,
		.transfer = transfer->id,
		.length = kvb_fuzz_u8(input) * 256u,
		.total = transfer->total};

	sqe.offset = transfer->next + kvb_fuzz_u8(input) * 256u;
	submit(&sqe, 0, false);
}

static void poke(struct kvb_fuzz_input *input)
{
	uint32_t *words = host->session->segment.base;
	uint16_t word = kvb_fuzz_u16(input);

	kvb_store_relaxed(&words[word % (host->session->segment.bytes / sizeof(*words))],
		kvb_fuzz_u32(input));
}

static void wrap(void)
{
	struct kvb_session *session = host->session;
	struct kvb_session_header *header = session->header;
	uint32_t last = UINT32_MAX - 1;

	if (session->sq.head != header->sq_tail || session->cq.tail != header->cq_head)
		return;
	header->sq_head = header->sq_tail = session->sq.head = last;
	header->cq_head = header->cq_tail = session->cq.tail = session->cq.seen_head = last;
}

static void take_step(struct kvb_fuzz_input *input)
{
	struct kvb_sqe sqe;

	switch (kvb_fuzz_u8(input) % STEPS) {
	case STEP_REQUEST:
		request(input);
		break;
	case STEP_RAW:
		kvb_fuzz_copy(input, &sqe, sizeof(sqe));
		submit(&sqe, 0, false);
		break;
	case STEP_SERVE:
		kvb_fuzz_decoded(kvb_fuzz_host_serve(host));
		break;
	case STEP_REAP:
		kvb_fuzz_host_reap(host);
		break;
	case STEP_POKE:
		poke(input);
		break;
	case STEP_ORDER:
		host->session->orders |=
			kvb_fuzz_u8(input) & (KVB_ORDER_SWEEP | KVB_ORDER_DRAIN | KVB_ORDER_ABORT);
		break;
	case STEP_MORE:
		more(input);
		break;
	default:
		wrap();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvb_fuzz_input input = {data, size};
	unsigned how = kvb_fuzz_u8(&input);

	kvb_fuzz_host_begin(host);
	kvb_fuzz_change(&input, how);
	while (input.left > 0)
		take_step(&input);
	kvb_fuzz_decoded(kvb_fuzz_host_serve(host));
	kvb_fuzz_still();
	kvb_fuzz_host_end(host, how & HOW_RECOUNT);
	return 0;
}
