/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life.c - two words on the control thread's robust-futex list.
 *
 * When a thread dies, the kernel walks the list it registered with set_robust_list(2) and sets
 * FUTEX_OWNER_DIED in each listed word that holds the thread's id: before it tears down the address
 * space, hence long before it closes the sockets and drops the locks of a process with a large
 * pool. One word lies in the life page, which every client maps read-only; the other lies in the
 * lock file, where a successor finds it. Nobody ever waits on them; they are no locks.
 *
 * The list's nodes must not lie in memory that others can see or write. The kernel finds a word at
 * one fixed distance from its node, so both pages are mapped at that distance from two private
 * pages:
 *
 *     area: [ node page ][ node page ][ life page ][ lock file's page ]
 *
 * Runs in the thread that starts the server, except begin and end, which the control thread calls.
 * It must never leave the list registered when the area is unmapped.
 */
#include "server/life.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/atomic.h"
#include "shm/fd.h"
#include "shm/segment.h"

_Static_assert(KVB_LIFE_OWNER_DIED == FUTEX_OWNER_DIED, "the kernel's bit");

#define WORD_DISTANCE ((long)(2 * KVB_LIFE_BYTES))
#define WORD_OFFSET   offsetof(struct kvb_life_page, life)
_Static_assert(WORD_OFFSET % sizeof(void *) == 0, "the node at the same offset is aligned");

/* The kernel reads this when the thread dies, so it must outlive the registration. */
static _Thread_local struct robust_list_head list_head;
static _Thread_local struct robust_list_head *saved_head;
static _Thread_local size_t saved_size;

static struct robust_list *node_of(struct kvb_life *life, unsigned index)
{
	return (struct robust_list *)(life->area + index * KVB_LIFE_BYTES + WORD_OFFSET);
}

static int map_at(uint8_t *address, int fd)
{
	void *page = mmap(
		address, KVB_LIFE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);

	return page == MAP_FAILED ? -errno : 0;
}

static int map_pages(struct kvb_life *life, int lock_fd)
{
	int r = map_at(life->area + 2 * KVB_LIFE_BYTES, life->fd);

	if (r < 0)
		return r;
	/* With its block, so that a full file system is an error here and no SIGBUS later. */
	r = -posix_fallocate(lock_fd, 0, KVB_LIFE_BYTES);
	if (r < 0)
		return r;
	r = map_at(life->area + 3 * KVB_LIFE_BYTES, lock_fd);
	if (r < 0)
		return r;
	(void)madvise(life->area, 4 * KVB_LIFE_BYTES, MADV_DONTFORK);
	return kvb_memfd_seal(life->fd, KVB_SEALS_FIXED_SIZE | KVB_SEAL_FUTURE_WRITE);
}

int kvb_life_new(struct kvb_life *life, const uint8_t boot_id[KVB_ID_BYTES], int lock_fd)
{
	void *area;
	int r;

	*life = (struct kvb_life){.fd = -1};
	area = mmap(NULL, 4 * KVB_LIFE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		-1, 0);
	if (area == MAP_FAILED)
		return -errno;
	life->area = area;
	r = kvb_memfd_new("kvbell-life", KVB_LIFE_BYTES, &life->fd);
	if (r == 0)
		r = map_pages(life, lock_fd);
	if (r < 0) {
		kvb_life_free(life);
		return r;
	}
	life->page = (struct kvb_life_page *)(life->area + 2 * KVB_LIFE_BYTES);
	life->lock_word = (uint32_t *)(life->area + 3 * KVB_LIFE_BYTES + WORD_OFFSET);
	life->page->magic = KVB_MAGIC;
	life->page->abi = KVB_ABI_VERSION;
	memcpy(life->page->boot_id, boot_id, KVB_ID_BYTES);
	return 0;
}

int kvb_life_begin(struct kvb_life *life)
{
	uint32_t tid = (uint32_t)syscall(SYS_gettid);
	struct robust_list *first = node_of(life, 0);
	struct robust_list *second = node_of(life, 1);

	/* glibc's own list serves robust pthread mutexes, which this thread never takes. */
	if (syscall(SYS_get_robust_list, 0, &saved_head, &saved_size) < 0)
		return -errno;
	first->next = second;
	second->next = &list_head.list;
	list_head.list.next = first;
	list_head.futex_offset = WORD_DISTANCE;
	list_head.list_op_pending = NULL;
	if (syscall(SYS_set_robust_list, &list_head, sizeof(list_head)) < 0)
		return -errno;
	/* Pairs with the acquire loads of clients: a word that lives says that the page is
	 * complete. */
	kvb_store_release(&life->page->life, tid);
	kvb_store_release(life->lock_word, tid);
	return 0;
}

void kvb_life_end(struct kvb_life *life)
{
	kvb_store_release(&life->page->life, 0u);
	kvb_store_release(life->lock_word, 0u);
	syscall(SYS_set_robust_list, saved_head, saved_size);
}

void kvb_life_free(struct kvb_life *life)
{
	if (life->area)
		munmap(life->area, 4 * KVB_LIFE_BYTES);
	life->area = NULL;
	kvb_fd_close(&life->fd);
}

bool kvb_life_lock_owner_gone(int lock_fd)
{
	uint32_t word = 0;

	if (pread(lock_fd, &word, sizeof(word), WORD_OFFSET) != (ssize_t)sizeof(word))
		return false;
	return word == 0 || (word & KVB_LIFE_OWNER_DIED) != 0;
}
