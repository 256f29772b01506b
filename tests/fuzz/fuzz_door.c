/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_door.c - the records of the door: HELLO as the server judges it, WELCOME and GOODBYE as the
 * client does, and the rings that it makes of a WELCOME.
 *
 * An input: which (u8, enum record), then the record.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/records.h"
#include "server/hello.h"
#include "shm/staging.h"
#include "shm/util.h"
#include "tests/fuzz/fuzz.h"

/* A larger segment takes longer to make than it can teach. */
#define SEGMENT_MAX (128 * KVB_KIB)

enum record { RECORD_HELLO, RECORD_WELCOME, RECORD_GOODBYE, RECORDS };

static void hello(struct kvb_fuzz_input *input)
{
	struct kvb_hello hello;
	char name[KVB_NAME_BYTES];
	enum kvb_reason reason;
	const char *fault;

	kvb_fuzz_copy(input, &hello, sizeof(hello));
	fault = kvb_hello_fault(&hello, &reason);
	kvb_fuzz_require(fault || (hello.magic == KVB_MAGIC && hello.type == KVB_DOOR_HELLO),
		"a HELLO that is none");
	kvb_hello_name(&hello, name);
	kvb_fuzz_require(name[KVB_NAME_BYTES - 1] == '\0', "a name without an end");
	for (const char *c = name; *c; c++)
		kvb_fuzz_require(*c > ' ' && *c <= '~', "a name that does not print");
}

static void goodbye(struct kvb_fuzz_input *input)
{
	struct kvb_goodbye goodbye;
	size_t size = input->left;
	int error;

	kvb_fuzz_copy(input, &goodbye, sizeof(goodbye));
	if (!kvb_is_goodbye(&goodbye, size))
		return;
	error = kvb_goodbye_error(&goodbye);
	kvb_fuzz_require(error < 0 && error > -4096, "an error that is none");
	kvb_goodbye_clean(&goodbye);
	kvb_fuzz_require(strlen(goodbye.text) < sizeof(goodbye.text), "a text without an end");
}

/* The first and the last element of each queue, and the last byte of each area. */
static void use(const struct kvb_welcome *welcome, const struct kvb_layout *layout)
{
	uint8_t *base = kvb_fuzz_alloc(layout->total_bytes), key[KVB_KEY_MAX] = {0};
	struct kvb_session_header *header = (struct kvb_session_header *)base;
	struct kvb_sqe sqe = {.key_len = KVB_KEY_MAX};
	struct kvb_sq_producer sq;
	struct kvb_cq_consumer cq;
	struct kvb_cqe cqe;
	struct kvb_staging staging;
	uint64_t offset;
	uint32_t block;

	kvb_sq_producer_init(&sq, base, layout);
	kvb_cq_consumer_init(&cq, base, layout);
	(void)kvb_sq_push(&sq, &sqe, key);
	sq.tail = header->sq_head = sq.mask;
	(void)kvb_sq_push(&sq, &sqe, key);
	cq.head = cq.mask;
	header->cq_tail = cq.head + 1;
	(void)kvb_cq_take(&cq, &cqe);
	if (kvb_staging_init(&staging, welcome->staging_bytes, welcome->cq_entries) == 0 &&
		kvb_staging_take(&staging, welcome->fragment_bytes, &offset, &block) == 0) {
		base[layout->staging_offset + offset] = 1;
		base[layout->staging_offset + offset + welcome->fragment_bytes - 1] = 1;
	}
	kvb_staging_done(&staging);
	base[layout->staging_offset + layout->staging_bytes - 1] = 1;
	free(base);
}

static void welcome(struct kvb_fuzz_input *input)
{
	struct kvb_welcome welcome;
	struct kvb_layout layout;
	size_t size = input->left;

	kvb_fuzz_copy(input, &welcome, sizeof(welcome));
	if (kvb_welcome_verify(&welcome, size, &layout) == 0 && layout.total_bytes <= SEGMENT_MAX)
		use(&welcome, &layout);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvb_fuzz_input input = {data, size};

	switch (kvb_fuzz_u8(&input) % RECORDS) {
	case RECORD_HELLO:
		hello(&input);
		break;
	case RECORD_WELCOME:
		welcome(&input);
		break;
	default:
		goodbye(&input);
	}
	kvb_fuzz_decoded(1);
	return 0;
}
