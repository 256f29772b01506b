/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - see copy.h.
 *
 * Owns nothing; any thread. It must never return before its stores are ordered: streaming stores
 * are weakly ordered, and a release store of an index alone does not hold them back.
 */
#include "shm/copy.h"

#include <string.h>

#include "shm/util.h"

/* Payloads from here on stream; below, the reader may well be the next one to come. */
#define STREAM_TOTAL (4 * KVB_MIB)

#if defined(__x86_64__)
#include <immintrin.h>

#define WIDTH 128u

/* `to` is aligned to 32 bytes and n is a multiple of WIDTH. */
__attribute__((target("avx"))) static void stream_avx(uint8_t *to, const uint8_t *from, size_t n)
{
	for (size_t i = 0; i < n; i += WIDTH) {
		__m256i a = _mm256_loadu_si256((const __m256i *)(from + i));
		__m256i b = _mm256_loadu_si256((const __m256i *)(from + i + 32));
		__m256i c = _mm256_loadu_si256((const __m256i *)(from + i + 64));
		__m256i d = _mm256_loadu_si256((const __m256i *)(from + i + 96));
		_mm256_stream_si256((__m256i *)(to + i), a);
		_mm256_stream_si256((__m256i *)(to + i + 32), b);
		_mm256_stream_si256((__m256i *)(to + i + 64), c);
		_mm256_stream_si256((__m256i *)(to + i + 96), d);
	}
	_mm_sfence();
}

void kvb_copy_cold(void *to, const void *from, size_t n, uint64_t total)
{
	size_t lead = (size_t)(-(uintptr_t)to & 31u);
	size_t streamed;

	if (total < STREAM_TOTAL || n < lead + WIDTH || !__builtin_cpu_supports("avx")) {
		memcpy(to, from, n);
		return;
	}
	streamed = (n - lead) / WIDTH * WIDTH;
	memcpy(to, from, lead);
	stream_avx((uint8_t *)to + lead, (const uint8_t *)from + lead, streamed);
	memcpy((uint8_t *)to + lead + streamed, (const uint8_t *)from + lead + streamed,
		n - lead - streamed);
}
#else
void kvb_copy_cold(void *to, const void *from, size_t n, uint64_t total)
{
	(void)total;
	memcpy(to, from, n);
}
#endif
