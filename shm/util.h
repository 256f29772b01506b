/* SPDX-License-Identifier: Apache-2.0 */
/*
 * util.h - small macros and the clock. Owns nothing; any thread.
 */
#ifndef KVB_SHM_UTIL_H
#define KVB_SHM_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define KVB_ARRAY_SIZE(array)               (sizeof(array) / sizeof((array)[0]))
#define KVB_CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#define KVB_KIB 1024ull
#define KVB_MIB (1024ull * KVB_KIB)
#define KVB_GIB (1024ull * KVB_MIB)

#define KVB_NS_PER_US 1000ull
#define KVB_NS_PER_MS 1000000ull
#define KVB_NS_PER_S  1000000000ull

static inline uint64_t kvb_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t kvb_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* `unit` is a power of two. */
static inline uint64_t kvb_round_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) & ~(unit - 1);
}

static inline bool kvb_is_power_of_two(uint64_t value)
{
	return value != 0 && (value & (value - 1)) == 0;
}

/* True when [offset, offset + length) lies within `size` bytes; no sum, so no overflow. */
static inline bool kvb_range_fits(uint64_t offset, uint64_t length, uint64_t size)
{
	return length <= size && offset <= size - length;
}

/* Monotonic nanoseconds; through the vDSO, so no system call. */
static inline uint64_t kvb_now_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * KVB_NS_PER_S + (uint64_t)ts.tv_nsec;
}

#endif /* KVB_SHM_UTIL_H */
