/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.h - numbers that are the same in each run, from a seed that the caller owns. Any thread.
 */
#ifndef KVB_TESTS_RANDOM_H
#define KVB_TESTS_RANDOM_H

#include <stdint.h>

/* A 64-bit linear congruential generator; the upper bits of it, which are the better ones. */
static inline uint32_t next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*seed >> 33);
}

#endif /* KVB_TESTS_RANDOM_H */
