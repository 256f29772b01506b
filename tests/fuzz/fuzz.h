/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - what the fuzz targets share: reading the input, the page that changes while it is read, and
 * the count of what was decoded.
 *
 * A target defines LLVMFuzzerTestOneInput(), and LLVMFuzzerInitialize() if it has something to make.
 * Linked with libFuzzer it is a fuzzer, linked with replay.c a test that runs its corpus once.
 */
#ifndef KVB_TESTS_FUZZ_H
#define KVB_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* What is left of an input. Reading beyond its end gives zeros. */
struct kvb_fuzz_input {
	const uint8_t *at;
	size_t left;
};

/* Numbers, the lowest byte first. */
uint8_t kvb_fuzz_u8(struct kvb_fuzz_input *input);
uint16_t kvb_fuzz_u16(struct kvb_fuzz_input *input);
uint32_t kvb_fuzz_u32(struct kvb_fuzz_input *input);
uint64_t kvb_fuzz_u64(struct kvb_fuzz_input *input);
/* Takes at most `max` bytes; *ret_size is how many there were. */
const uint8_t *kvb_fuzz_bytes(struct kvb_fuzz_input *input, size_t max, size_t *ret_size);
/* The same into memory; zeros where there are none. */
void kvb_fuzz_copy(struct kvb_fuzz_input *input, void *to, size_t size);

/* Memory of exactly this size, with nothing usable after it. */
void *kvb_fuzz_alloc(size_t size);

/* With AddressSanitizer any access to it is an error from now on, and not any more. */
void kvb_fuzz_hide(void *base, size_t size);
void kvb_fuzz_show(void *base, size_t size);

/* Ends the process with a message: what the target asserts does not hold. */
void kvb_fuzz_require(bool holds, const char *what);

/* Counts records, messages, requests or look-ups that were decoded, of which one input may have several; in
 * the file that KVB_FUZZ_DECODED names, as one number of 64 bits. */
void kvb_fuzz_decoded(uint64_t n);

/* ------------------------------------------------------------------------------- the page that changes */

/*
 * Shared memory that somebody else writes while the code under test reads it. Changes come from the
 * input, 8 bytes each: loads until it happens (u8), how (u8), offset in words of 4 bytes (u16), value
 * (u32). In a build by clang they happen between two loads of the page by this thread, so that the same
 * input does the same each time, and each pair of loads of one word can be told apart; besides, a second
 * thread makes all of them over and over.
 */
#define KVB_FUZZ_CHANGES 16u

enum kvb_fuzz_how {
	KVB_FUZZ_AT_LOADS = 1u << 0,
	KVB_FUZZ_IN_THREAD = 1u << 1,
};

/* Once: which memory. */
void kvb_fuzz_page(void *base, size_t bytes);
/* From now on, `how` of enum kvb_fuzz_how: takes a count (u8) and changes from the input. */
void kvb_fuzz_change(struct kvb_fuzz_input *input, unsigned how);
/* From now on not any more. The thread may make one more change. */
void kvb_fuzz_still(void);

#endif /* KVB_TESTS_FUZZ_H */
