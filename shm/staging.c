/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.c - see staging.h.
 *
 * Owned by one connection and used under its lock. A block must never be given back while the
 * server may still read or write its bytes: only its completion, or the end of the session, gives
 * it back.
 */
#include "shm/staging.h"

#include <errno.h>
#include <stdlib.h>

#include "kvbell/protocol.h"
#include "shm/util.h"

int kvb_staging_init(struct kvb_staging *staging, uint64_t bytes, uint32_t blocks_max)
{
	struct kvb_staging_block *blocks = calloc(blocks_max, sizeof(*blocks));

	if (!blocks)
		return -ENOMEM;
	*staging = (struct kvb_staging){.bytes = bytes, .blocks = blocks, .mask = blocks_max - 1};
	return 0;
}

void kvb_staging_done(struct kvb_staging *staging)
{
	free(staging->blocks);
	staging->blocks = NULL;
}

int kvb_staging_take(
	struct kvb_staging *staging, uint64_t length, uint64_t *ret_offset, uint32_t *ret_block)
{
	uint64_t room = kvb_round_up(kvb_max_u64(length, 1), KVB_LINE);
	uint64_t offset = staging->end % staging->bytes;
	uint64_t padding = offset + room > staging->bytes ? staging->bytes - offset : 0;
	struct kvb_staging_block *block;

	if (staging->first == staging->next) {
		/* Nothing is out: begin at offset 0, so that any block up to the whole area fits. */
		if (offset > 0)
			staging->end += staging->bytes - offset;
		staging->start = staging->end;
		offset = padding = 0;
	}
	if (staging->next - staging->first > staging->mask ||
		staging->end - staging->start + padding + room > staging->bytes)
		return -EAGAIN;
	block = &staging->blocks[staging->next & staging->mask];
	staging->end += padding + room;
	*block = (struct kvb_staging_block){.end = staging->end, .in_use = true};
	*ret_offset = padding ? 0 : offset;
	*ret_block = staging->next++;
	return 0;
}

void kvb_staging_give(struct kvb_staging *staging, uint32_t block)
{
	staging->blocks[block & staging->mask].in_use = false;
	while (staging->first != staging->next) {
		const struct kvb_staging_block *oldest =
			&staging->blocks[staging->first & staging->mask];
		if (oldest->in_use)
			break;
		staging->start = oldest->end;
		staging->first++;
	}
}
