/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.c - see process.h.
 *
 * Owns one page for as long as the process lives, which fork(2) wipes; any thread. It must never make a
 * system call for the number: that is looked at by every call of the library.
 */
#include "client/process.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/atomic.h"

static uint32_t *number;   /* atomic pointer; atomic, 0 in a child at first */
static uint32_t last_used; /* atomic; a child goes on from its parent's */

static int make_page(void)
{
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	uint32_t *none = NULL;
	void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int r = 0;

	if (page == MAP_FAILED)
		return -errno;
	if (madvise(page, bytes, MADV_WIPEONFORK) < 0)
		r = -errno;
	/* Another thread may have been faster. */
	if (r < 0 || !kvb_compare_exchange(&number, &none, (uint32_t *)page))
		munmap(page, bytes);
	return r;
}

int kvb_process_prepare(void)
{
	uint32_t none = 0;
	int r = kvb_load_acquire(&number) ? 0 : make_page();

	if (r == 0 && kvb_load_relaxed(number) == 0)
		(void)kvb_compare_exchange(number, &none, kvb_fetch_add(&last_used, 1u) + 1);
	return r;
}

uint32_t kvb_process_number(void)
{
	const uint32_t *own = kvb_load_acquire(&number);

	return own ? kvb_load_relaxed(own) : 0;
}
