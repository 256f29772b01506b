/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bell.c - see bell.h.
 *
 * Owns nothing; called by whichever thread produces or consumes. The server must never call
 * kvb_bell_clear() on a descriptor that a client holds: the client can clear O_NONBLOCK on the
 * shared description and drain it, and the read would block.
 */
#include "shm/bell.h"

#include <errno.h>
#include <unistd.h>

#include "kvbell/protocol.h"
#include "shm/atomic.h"

bool kvb_bell_wanted(uint32_t *sleeping)
{
	uint32_t seen;

	/* Orders the caller's store of the index before the load below; pairs with the fence in
	 * kvb_bell_arm(). */
	kvb_fence_full();
	seen = kvb_load_relaxed(sleeping);
	if (seen == KVB_AWAKE)
		return false;
	if (seen != KVB_SLEEPING)
		return true;
	/* One sleep, one ring: of several producers, or several completions, one wins. */
	return kvb_compare_exchange(sleeping, &seen, (uint32_t)KVB_AWAKE) || seen != KVB_AWAKE;
}

void kvb_bell_arm(uint32_t *sleeping)
{
	kvb_store_relaxed(sleeping, (uint32_t)KVB_SLEEPING);
	/* Orders the store above before the caller's second look at the index; pairs with the fence
	 * in kvb_bell_wanted(). */
	kvb_fence_full();
}

void kvb_bell_disarm(uint32_t *sleeping)
{
	kvb_store_relaxed(sleeping, (uint32_t)KVB_AWAKE);
}

int kvb_bell_ring(int fd)
{
	const uint64_t one = 1;

	if (write(fd, &one, sizeof(one)) == sizeof(one))
		return 0;
	return errno == EAGAIN ? 1 : -errno;
}

int kvb_bell_clear(int fd)
{
	uint64_t rings;
	ssize_t n;

	do {
		n = read(fd, &rings, sizeof(rings));
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}
