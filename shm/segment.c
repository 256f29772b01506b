/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.c - memfds.
 *
 * Owns nothing beyond the struct it fills; any thread. It must never map a foreign memfd whose size
 * can still change (an access past its end is SIGBUS), and never leave pages to be found missing by
 * a later access: populate reports a full host as an error here.
 */
#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/fd.h"

_Static_assert(KVB_SEALS_FIXED_SIZE == (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW), "seals");
_Static_assert(KVB_SEAL_FUTURE_WRITE == F_SEAL_FUTURE_WRITE, "seals");

/* Since Linux 6.3; the headers of Debian 12 lack it. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
/* Since Linux 5.14. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

int kvb_memfd_new(const char *name, uint64_t bytes, int *ret_fd)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) < 0) {
		int r = -errno;
		kvb_fd_close(&fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

int kvb_memfd_seal(int fd, int seals)
{
	return fcntl(fd, F_ADD_SEALS, seals) < 0 ? -errno : 0;
}

static int map_segment(int fd, uint64_t bytes, int prot, struct kvb_segment *ret_segment)
{
	void *base = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);

	if (base == MAP_FAILED)
		return -errno;
	/* Advice may fail on an unusual kernel without harm to correctness. */
	(void)madvise(base, bytes, MADV_DONTDUMP);
	(void)madvise(base, bytes, MADV_DONTFORK);
	*ret_segment = (struct kvb_segment){.fd = fd, .base = base, .bytes = bytes};
	return 0;
}

int kvb_segment_new(const char *name, uint64_t bytes, int seals, struct kvb_segment *ret_segment)
{
	struct kvb_segment segment = KVB_SEGMENT_NONE;
	int fd = -1;
	int r = kvb_memfd_new(name, bytes, &fd);

	if (r < 0)
		return r;
	r = map_segment(fd, bytes, PROT_READ | PROT_WRITE, &segment);
	if (r < 0) {
		kvb_fd_close(&fd);
		return r;
	}
	r = kvb_memfd_seal(fd, seals);
	if (r < 0) {
		kvb_segment_free(&segment);
		return r;
	}
	*ret_segment = segment;
	return 0;
}

int kvb_segment_map(
	int fd, uint64_t bytes, int seals, bool writable, struct kvb_segment *ret_segment)
{
	struct stat st;
	int have = fcntl(fd, F_GET_SEALS);

	/* Only memfds have seals, so this also proves the kind of descriptor. */
	if (have < 0 || (have & seals) != seals)
		return -EPROTO;
	if (fstat(fd, &st) < 0)
		return -errno;
	if ((uint64_t)st.st_size != bytes || bytes == 0)
		return -EPROTO;
	return map_segment(fd, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, ret_segment);
}

/* Kernels before 5.14: allocating the file's pages first makes the touches that follow safe. */
static int populate_by_hand(const struct kvb_segment *segment, uint64_t offset, uint64_t length)
{
	const volatile char *page = (const volatile char *)segment->base + offset;

	if (fallocate(segment->fd, 0, (off_t)offset, (off_t)length) < 0)
		return errno == ENOSPC ? -ENOMEM : -errno;
	for (uint64_t i = 0; i < length; i += 4096)
		(void)page[i];
	return 0;
}

int kvb_segment_populate(
	const struct kvb_segment *segment, uint64_t offset, uint64_t length, bool writable)
{
	int advice = writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	int r;

	do {
		r = madvise((char *)segment->base + offset, length, advice);
	} while (r < 0 && (errno == EINTR || errno == EAGAIN));
	if (r == 0)
		return 0;
	if (errno == EINVAL && writable)
		return populate_by_hand(segment, offset, length);
	/* EFAULT is what populate says where an access would have met SIGBUS. */
	return errno == EFAULT ? -ENOMEM : -errno;
}

void kvb_segment_unmap(struct kvb_segment *segment)
{
	if (segment->base)
		munmap(segment->base, segment->bytes);
	segment->base = NULL;
}

void kvb_segment_free(struct kvb_segment *segment)
{
	kvb_segment_unmap(segment);
	kvb_fd_close(&segment->fd);
	segment->bytes = 0;
}
