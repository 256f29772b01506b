/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.c - see fuzz.h.
 *
 * Owns the page's changes and the thread that makes them; all else belongs to the thread that runs the
 * target. It must never make a system call for an input, and never let its own loads count as loads of
 * the code under test: only that is built with their tracing.
 */
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "shm/atomic.h"
#include "shm/util.h"

/* How often the thread goes through the changes before it lets others have the core. */
#define ROUNDS 64u

/* ------------------------------------------------------------------------------------------ the input */

const uint8_t *kvb_fuzz_bytes(struct kvb_fuzz_input *input, size_t max, size_t *ret_size)
{
	const uint8_t *at = input->at;

	*ret_size = kvb_min_u64(max, input->left);
	input->at += *ret_size;
	input->left -= *ret_size;
	return at;
}

void kvb_fuzz_copy(struct kvb_fuzz_input *input, void *to, size_t size)
{
	size_t n;
	const uint8_t *from = kvb_fuzz_bytes(input, size, &n);

	memset(to, 0, size);
	if (n > 0)
		memcpy(to, from, n);
}

static uint64_t take_number(struct kvb_fuzz_input *input, size_t size)
{
	uint8_t bytes[sizeof(uint64_t)];
	uint64_t value = 0;

	kvb_fuzz_copy(input, bytes, size);
	while (size-- > 0)
		value = value << 8 | bytes[size];
	return value;
}

uint8_t kvb_fuzz_u8(struct kvb_fuzz_input *input)
{
	return (uint8_t)take_number(input, 1);
}

uint16_t kvb_fuzz_u16(struct kvb_fuzz_input *input)
{
	return (uint16_t)take_number(input, 2);
}

uint32_t kvb_fuzz_u32(struct kvb_fuzz_input *input)
{
	return (uint32_t)take_number(input, 4);
}

uint64_t kvb_fuzz_u64(struct kvb_fuzz_input *input)
{
	return take_number(input, 8);
}

/* ---------------------------------------------------------------------------------------- small things */

void kvb_fuzz_require(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "ERROR: %s\n", what);
	abort();
}

void *kvb_fuzz_alloc(size_t size)
{
	void *memory = NULL;

	kvb_fuzz_require(posix_memalign(&memory, 4096, size) == 0, "no memory");
	memset(memory, 0, size);
	return memory;
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

/* Its own header is in a package that only fuzzing needs. */
#ifdef __SANITIZE_ADDRESS__
void __asan_poison_memory_region(const volatile void *base, size_t size);
void __asan_unpoison_memory_region(const volatile void *base, size_t size);
#else
#define __asan_poison_memory_region(base, size)   ((void)(base), (void)(size))
#define __asan_unpoison_memory_region(base, size) ((void)(base), (void)(size))
#endif

void kvb_fuzz_hide(void *base, size_t size)
{
	__asan_poison_memory_region(base, size);
}

void kvb_fuzz_show(void *base, size_t size)
{
	__asan_unpoison_memory_region(base, size);
}

/* In a file, if there is one: libFuzzer leaves without a word in several ways. */
static uint64_t *open_count(void)
{
	static uint64_t nowhere;
	const char *path = getenv("KVB_FUZZ_DECODED");
	int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
	void *count = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, sizeof(nowhere)) == 0)
		count = mmap(NULL, sizeof(nowhere), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	return count == MAP_FAILED ? &nowhere : count;
}

void kvb_fuzz_decoded(uint64_t n)
{
	static uint64_t *count;

	if (!count)
		count = open_count();
	*count += n;
}

/* ------------------------------------------------------------------------------- the page that changes */

enum { HOW_SET, HOW_ADD, HOW_XOR, HOWS };

static uint8_t *page;
static size_t page_bytes;
static uint64_t changes[KVB_FUZZ_CHANGES]; /* atomic */
static uint32_t thread_count;              /* atomic: of changes that the thread makes */
static uint32_t load_next, load_count;     /* of changes at loads */
static uint32_t load_wait;                 /* loads until the next one */

/* The thread may make one when the next input has hidden its place already. */
__attribute__((no_sanitize_address)) static void make_change(uint64_t change)
{
	uint32_t *word = (uint32_t *)page + (uint16_t)(change >> 16) % (page_bytes / 4);
	uint32_t value = (uint32_t)(change >> 32), before = kvb_load_relaxed(word);

	switch ((uint8_t)(change >> 8) % HOWS) {
	case HOW_SET:
		kvb_store_relaxed(word, value);
		break;
	case HOW_ADD:
		kvb_store_relaxed(word, before + value);
		break;
	default:
		kvb_store_relaxed(word, before ^ value);
	}
}

static void *change_main(void *unused)
{
	/* Longer where nothing is to be done: waking costs the other one more than it costs this. */
	const struct timespec moment = {.tv_nsec = 20000}, rest = {.tv_nsec = 500000};
	uint32_t n = 0;

	(void)unused;
	for (;;) {
		for (unsigned round = 0; round < ROUNDS; round++) {
			n = kvb_load_acquire(&thread_count);
			for (uint32_t i = 0; i < n; i++)
				make_change(kvb_load_relaxed(&changes[i]));
			if (n == 0)
				break;
		}
		(void)nanosleep(n == 0 ? &rest : &moment, NULL);
	}
	return NULL;
}

void kvb_fuzz_page(void *base, size_t bytes)
{
	pthread_t thread;

	page = base;
	page_bytes = bytes;
	kvb_fuzz_require(pthread_create(&thread, NULL, change_main, NULL) == 0, "no thread");
	(void)pthread_detach(thread);
}

static void next_load_change(void)
{
	load_wait = load_next < load_count ? (uint8_t)changes[load_next] : 0;
}

void kvb_fuzz_change(struct kvb_fuzz_input *input, unsigned how)
{
	uint32_t n = kvb_fuzz_u8(input) % (KVB_FUZZ_CHANGES + 1);

	for (uint32_t i = 0; i < n; i++)
		kvb_store_relaxed(&changes[i], kvb_fuzz_u64(input));
	load_next = 0;
	load_count = how & KVB_FUZZ_AT_LOADS ? n : 0;
	next_load_change();
	kvb_store_release(&thread_count, how & KVB_FUZZ_IN_THREAD ? n : 0u);
}

void kvb_fuzz_still(void)
{
	load_count = 0;
	kvb_store_release(&thread_count, 0u);
}

/* clang calls these ahead of each load of the code under test (-fsanitize-coverage=trace-loads). */
static inline void before_load(const void *address)
{
	if (load_next >= load_count || (uintptr_t)address - (uintptr_t)page >= page_bytes)
		return;
	if (load_wait-- > 0)
		return;
	make_change(changes[load_next++]);
	next_load_change();
}

#define BEFORE_LOAD(bytes)                                     \
	void __sanitizer_cov_load##bytes(const void *address); \
	void __sanitizer_cov_load##bytes(const void *address)  \
	{                                                      \
		before_load(address);                          \
	}
BEFORE_LOAD(1)
BEFORE_LOAD(2)
BEFORE_LOAD(4)
BEFORE_LOAD(8)
BEFORE_LOAD(16)
