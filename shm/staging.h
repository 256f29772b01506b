/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.h - the client's allocator for its staging area: a ring of bytes, allocated in order,
 * given back in any order, reclaimed in order. Not locked; the books lie in private memory.
 */
#ifndef KVB_SHM_STAGING_H
#define KVB_SHM_STAGING_H

#include <stdbool.h>
#include <stdint.h>

struct kvb_staging_block {
	uint64_t end; /* free-running position after the block, padding before it included */
	bool in_use;
};

struct kvb_staging {
	uint64_t bytes;
	uint64_t start; /* free-running: oldest byte in use */
	uint64_t end;   /* free-running: next byte to hand out */
	struct kvb_staging_block *blocks;
	uint32_t mask;
	uint32_t first; /* free-running: oldest block */
	uint32_t next;  /* free-running: next block */
};

/* blocks_max (power of two) blocks may be out at once. 0; -ENOMEM. */
int kvb_staging_init(struct kvb_staging *staging, uint64_t bytes, uint32_t blocks_max);
void kvb_staging_done(struct kvb_staging *staging);

/* Takes `length` contiguous bytes; the offset is a multiple of KVB_LINE. 0; -EAGAIN not now. */
int kvb_staging_take(
	struct kvb_staging *staging, uint64_t length, uint64_t *ret_offset, uint32_t *ret_block);
void kvb_staging_give(struct kvb_staging *staging, uint32_t block);

#endif /* KVB_SHM_STAGING_H */
