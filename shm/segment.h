/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.h - memfds: made, sealed, verified, mapped, populated.
 */
#ifndef KVB_SHM_SEGMENT_H
#define KVB_SHM_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

/* Seals that a client may rely on, so that no access can meet SIGBUS. */
#define KVB_SEALS_FIXED_SIZE (0x0001 | 0x0002 | 0x0004) /* SEAL, SHRINK, GROW */
/* Mappings made from now on are read-only; those that exist stay as they are. */
#define KVB_SEAL_FUTURE_WRITE 0x0010

/* A mapped memfd. Owned by whoever holds the struct. */
struct kvb_segment {
	int fd;
	void *base;
	uint64_t bytes;
};
#define KVB_SEGMENT_NONE    \
	{                   \
		-1, NULL, 0 \
	}

/* A memfd of `bytes` bytes, CLOEXEC, not yet sealed. 0; -errno. */
int kvb_memfd_new(const char *name, uint64_t bytes, int *ret_fd);
/* Adds seals. 0; -errno. */
int kvb_memfd_seal(int fd, int seals);

/* Makes, maps read-write (not dumped, not inherited by fork) and seals a segment. 0; -errno. */
int kvb_segment_new(const char *name, uint64_t bytes, int seals, struct kvb_segment *ret_segment);

/*
 * Maps a memfd that somebody else made, after verifying its seals and its size. Takes `fd` on
 * success only. 0; -EPROTO seals or size are not as promised; other -errno.
 */
int kvb_segment_map(
	int fd, uint64_t bytes, int seals, bool writable, struct kvb_segment *ret_segment);

/* Makes every page of the range present, for writing if the mapping is writable, so that later
 * accesses cannot fail. 0; -ENOMEM the host or the cgroup is full; other -errno. */
int kvb_segment_populate(
	const struct kvb_segment *segment, uint64_t offset, uint64_t length, bool writable);

void kvb_segment_unmap(struct kvb_segment *segment);
/* Unmaps and closes what is there. */
void kvb_segment_free(struct kvb_segment *segment);

#endif /* KVB_SHM_SEGMENT_H */
