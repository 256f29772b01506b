/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pattern.h - payload whose bytes are a function of a seed and their position, for benches and
 * tests. Owns nothing; any thread.
 */
#ifndef KVB_BENCH_PATTERN_H
#define KVB_BENCH_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The 8 bytes at position 8 * i (splitmix64, https://prng.di.unimi.it/splitmix64.c). */
static inline uint64_t kvb_pattern_word(uint64_t seed, uint64_t i)
{
	uint64_t z = seed * 0x9e3779b97f4a7c15u + (i + 1) * 0xd1b54a32d192ed03u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static inline void kvb_pattern_fill(uint8_t *data, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = kvb_pattern_word(seed, i / 8);
		memcpy(data + i, &word, len - i < 8 ? len - i : 8);
	}
}

static inline bool kvb_pattern_check(const uint8_t *data, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = kvb_pattern_word(seed, i / 8);
		if (memcmp(data + i, &word, len - i < 8 ? len - i : 8) != 0)
			return false;
	}
	return true;
}

#endif /* KVB_BENCH_PATTERN_H */
