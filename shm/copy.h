/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h - copying payload into memory that nobody will read soon. Owns nothing; any thread.
 */
#ifndef KVB_SHM_COPY_H
#define KVB_SHM_COPY_H

#include <stddef.h>
#include <stdint.h>

/*
 * Copies n bytes of a payload of `total` bytes into cold memory. Past a size that caches cannot
 * hold, the stores go around them, so that staging stays in cache; they are complete when it
 * returns (R9).
 */
void kvb_copy_cold(void *to, const void *from, size_t n, uint64_t total);

#endif /* KVB_SHM_COPY_H */
