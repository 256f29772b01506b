/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parse.h - sizes and durations as people write them, for every program of the project.
 * Owns nothing; any thread.
 */
#ifndef KVB_SHM_PARSE_H
#define KVB_SHM_PARSE_H

#include <stddef.h>
#include <stdint.h>

/* "4096", "64KiB", "1.5GiB", "8M": digits, an optional fraction, and B, K, KiB, M, MiB, G, GiB,
 * T or TiB (all binary, any case). 0; -EINVAL not of this form; -ERANGE does not fit 64 bits. */
int kvb_parse_size(const char *text, uint64_t *ret_bytes);

/* "250ms", "30s", "2m", "1.5" (seconds). 0; -EINVAL; -ERANGE beyond 2^32-1 ms. */
int kvb_parse_duration(const char *text, uint32_t *ret_ms);

/* A whole decimal number from min to max. 0; -EINVAL; -ERANGE. */
int kvb_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret_number);

/* "1.50 GiB", "64 KiB", "17 B" into buffer; returns buffer. 16 bytes are enough. */
char *kvb_format_size(char *buffer, size_t size, uint64_t bytes);

#endif /* KVB_SHM_PARSE_H */
