/* SPDX-License-Identifier: Apache-2.0 */
/*
 * atomic.h - every memory order of the project.
 *
 * Owns nothing; any thread. No other file may name a memory_order or call a bare atomic operation:
 * `./dev lint` checks it. Each use of an acquire, a release or a fence elsewhere says in a comment
 * what it pairs with.
 *
 * The shared words of protocol.h are plain integers, so that the header serves C99, C++ and other
 * compilers; here they are accessed as atomics through the __atomic builtins, which take any
 * naturally aligned integer. Lock-free means address-free (C11 7.17.5), hence the assertions.
 */
#ifndef KVB_SHM_ATOMIC_H
#define KVB_SHM_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "32-bit atomics must be lock-free across processes");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free across processes");

#define kvb_load_relaxed(ptr)         __atomic_load_n((ptr), __ATOMIC_RELAXED)
#define kvb_load_acquire(ptr)         __atomic_load_n((ptr), __ATOMIC_ACQUIRE)
#define kvb_store_relaxed(ptr, value) __atomic_store_n((ptr), (value), __ATOMIC_RELAXED)
#define kvb_store_release(ptr, value) __atomic_store_n((ptr), (value), __ATOMIC_RELEASE)

/* Counters that only statistics read. */
#define kvb_count(ptr, n) ((void)__atomic_fetch_add((ptr), (n), __ATOMIC_RELAXED))

/* Read-modify-write with both orders: reference counts, state machines, the sleeping word. */
#define kvb_fetch_add(ptr, n)            __atomic_fetch_add((ptr), (n), __ATOMIC_ACQ_REL)
#define kvb_fetch_sub(ptr, n)            __atomic_fetch_sub((ptr), (n), __ATOMIC_ACQ_REL)
#define kvb_fetch_or(ptr, bits)          __atomic_fetch_or((ptr), (bits), __ATOMIC_ACQ_REL)
#define kvb_exchange(ptr, value)         __atomic_exchange_n((ptr), (value), __ATOMIC_ACQ_REL)
#define kvb_exchange_relaxed(ptr, value) __atomic_exchange_n((ptr), (value), __ATOMIC_RELAXED)
#define kvb_compare_exchange(ptr, expected, desired) \
	__atomic_compare_exchange_n(                 \
		(ptr), (expected), (desired), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)

/* Inside a loop that waits for another thread's store: leaves the core's other thread more of it. */
static inline void kvb_cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield" : : : "memory");
#else
	__asm__ volatile("" : : : "memory");
#endif
}

/*
 * Orders the loads before it ahead of the accesses after it, and the accesses before it ahead of the
 * stores after it. ThreadSanitizer does not model fences, and needs none where every access is atomic.
 */
static inline void kvb_fence_acquire_release(void)
{
#if defined(__SANITIZE_THREAD__) || defined(KVB_TSAN)
	__asm__ volatile("" : : : "memory");
#else
	__atomic_thread_fence(__ATOMIC_ACQ_REL);
#endif
}

/*
 * Store-load barrier. ThreadSanitizer does not model fences; there a locked operation on a private
 * word stands in, which orders the same accesses on every machine TSan runs on.
 */
static inline void kvb_fence_full(void)
{
#if defined(__SANITIZE_THREAD__) || defined(KVB_TSAN)
	uint32_t word = 0;
	(void)__atomic_fetch_add(&word, 1, __ATOMIC_SEQ_CST);
	__asm__ volatile("" : : "r"(&word) : "memory");
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

#endif /* KVB_SHM_ATOMIC_H */
