/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pack.c - the scan that tells one whole MessagePack object from anything else: by the
 * specification, and beside msgpack-c.
 *
 * Main thread. What is scanned lies in memory of exactly its size, so that the sanitizer sees a
 * byte read too many. msgpack-c reserves memory by the count that it reads, so it never gets what
 * the scan has refused and what may hold a count of 32 bits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/pack.h"
#include "shm/util.h"

#define NIL 0xc0

/* Not inlined, since gcc then sees sizes that no caller has. */
static __attribute__((noinline)) bool is_one(const void *bytes, size_t size)
{
	/* No byte more than there is, so that ASan sees a look beyond. */
	uint8_t *exact = calloc(1, size);
	bool one;

	if (size > 0)
		memcpy(exact, bytes, size);
	one = kvb_pack_is_one_object(exact, size);
	free(exact);
	return one;
}

static void put_number(uint8_t *bytes, unsigned width, uint64_t value)
{
	for (unsigned i = 0; i < width; i++)
		bytes[i] = (uint8_t)(value >> 8 * (width - 1 - i));
}

/* ------------------------------------------------------------------------------------ the specification */

/* The table of the specification: after a first byte come a number of `width` bytes, `fixed`
 * bytes, and as many bytes or objects as the number says, `per` for each. Without a number its
 * value is in the first byte, under `mask`. */
static const struct form {
	uint8_t from, to;
	uint8_t width, fixed, mask, per;
} forms[] = {
	{.from = 0x00, .to = 0x7f},                         /* positive fixint */
	{.from = 0x80, .to = 0x8f, .mask = 0x0f, .per = 2}, /* fixmap */
	{.from = 0x90, .to = 0x9f, .mask = 0x0f, .per = 1}, /* fixarray */
	{.from = 0xa0, .to = 0xbf, .mask = 0x1f, .per = 1}, /* fixstr */
	{.from = 0xc0, .to = 0xc0},                         /* nil */
	{.from = 0xc2, .to = 0xc3},                         /* false, true */
	{.from = 0xc4, .to = 0xc4, .width = 1, .per = 1},   /* bin 8, 16, 32 */
	{.from = 0xc5, .to = 0xc5, .width = 2, .per = 1},
	{.from = 0xc6, .to = 0xc6, .width = 4, .per = 1},
	{.from = 0xc7, .to = 0xc7, .width = 1, .fixed = 1, .per = 1}, /* ext 8, 16, 32 */
	{.from = 0xc8, .to = 0xc8, .width = 2, .fixed = 1, .per = 1},
	{.from = 0xc9, .to = 0xc9, .width = 4, .fixed = 1, .per = 1},
	{.from = 0xca, .to = 0xca, .fixed = 4}, /* float 32, 64 */
	{.from = 0xcb, .to = 0xcb, .fixed = 8},
	{.from = 0xcc, .to = 0xcc, .fixed = 1}, /* uint 8, 16, 32, 64 */
	{.from = 0xcd, .to = 0xcd, .fixed = 2}, {.from = 0xce, .to = 0xce, .fixed = 4},
	{.from = 0xcf, .to = 0xcf, .fixed = 8},
	{.from = 0xd0, .to = 0xd0, .fixed = 1}, /* int 8, 16, 32, 64 */
	{.from = 0xd1, .to = 0xd1, .fixed = 2}, {.from = 0xd2, .to = 0xd2, .fixed = 4},
	{.from = 0xd3, .to = 0xd3, .fixed = 8},
	{.from = 0xd4, .to = 0xd4, .fixed = 1 + 1}, /* fixext 1, 2, 4, 8, 16 */
	{.from = 0xd5, .to = 0xd5, .fixed = 1 + 2}, {.from = 0xd6, .to = 0xd6, .fixed = 1 + 4},
	{.from = 0xd7, .to = 0xd7, .fixed = 1 + 8}, {.from = 0xd8, .to = 0xd8, .fixed = 1 + 16},
	{.from = 0xd9, .to = 0xd9, .width = 1, .per = 1}, /* str 8, 16, 32 */
	{.from = 0xda, .to = 0xda, .width = 2, .per = 1},
	{.from = 0xdb, .to = 0xdb, .width = 4, .per = 1},
	{.from = 0xdc, .to = 0xdc, .width = 2, .per = 1}, /* array 16, 32 */
	{.from = 0xdd, .to = 0xdd, .width = 4, .per = 1},
	{.from = 0xde, .to = 0xde, .width = 2, .per = 2}, /* map 16, 32 */
	{.from = 0xdf, .to = 0xdf, .width = 4, .per = 2},
	{.from = 0xe0, .to = 0xff}, /* negative fixint */
};

/* NULL for 0xc1, which is never used. */
static const struct form *form_of(unsigned first)
{
	for (size_t i = 0; i < KVB_ARRAY_SIZE(forms); i++)
		if (first >= forms[i].from && first <= forms[i].to)
			return &forms[i];
	return NULL;
}

/* Writes the object that begins with `first` and holds `number`, where it holds any; all else is
 * nils. Returns its size. */
static size_t make_object(uint8_t *bytes, unsigned first, uint32_t number)
{
	const struct form *form = form_of(first);
	uint32_t count = form->width > 0 ? number : first & form->mask;
	size_t rest = form->fixed + (size_t)count * form->per;

	bytes[0] = (uint8_t)first;
	put_number(bytes + 1, form->width, number);
	memset(bytes + 1 + form->width, NIL, rest);
	return 1 + form->width + rest;
}

static void every_first_byte_has_its_size(void **state)
{
	static const uint32_t numbers[] = {0, 1, 2, 3, 127, 128, 255, 256, 65535, 65536, 70000};
	uint8_t *bytes = malloc(150000);

	(void)state;
	for (unsigned first = 0; first < 256; first++) {
		const struct form *form = form_of(first);
		for (size_t i = 0; form && i < KVB_ARRAY_SIZE(numbers); i++) {
			size_t size;
			if (form->width < 4 && numbers[i] >> 8 * form->width > 0 && i > 0)
				continue;
			size = make_object(bytes, first, numbers[i]);
			bytes[size] = NIL;
			assert_true(is_one(bytes, size));
			assert_false(is_one(bytes, size - 1));
			assert_false(is_one(bytes, size + 1));
		}
	}
	free(bytes);
}

static void the_byte_that_is_never_used_begins_nothing(void **state)
{
	uint8_t bytes[64];

	(void)state;
	for (size_t size = 1; size <= sizeof(bytes); size++) {
		memset(bytes, NIL, sizeof(bytes));
		bytes[0] = 0xc1;
		assert_false(is_one(bytes, size));
	}
	/* Nor is it anything within another, unless as payload. */
	assert_false(is_one("\x91\xc1", 2));
	assert_false(is_one("\x81\xc0\xc1", 3));
	assert_true(is_one("\xc4\x01\xc1", 3));
	assert_true(is_one("\xa1\xc1", 2));
	assert_true(is_one("\xcc\xc1", 2));
	assert_true(is_one("\xd4\xc1\xc1", 3));
}

static void nothing_is_no_object(void **state)
{
	(void)state;
	assert_false(kvb_pack_is_one_object(NULL, 0));
	assert_false(kvb_pack_is_one_object("\xc0", 0));
	assert_false(is_one("", 0));
}

/* --------------------------------------------------------------------------------------------- nesting */

static void containers_hold_what_they_say(void **state)
{
	(void)state;
	assert_true(is_one("\x93\x01\x92\x02\x03\x81\xa1z\x90", 9));
	assert_true(is_one("\x82\x90\x80\x80\x90", 5));
	/* One missing in the innermost, in the middle one, at the end. */
	assert_false(is_one("\x93\x01\x93\x02\x03\x81\xa1z\x90", 9));
	assert_false(is_one("\x94\x01\x92\x02\x03\x81\xa1z\x90", 9));
	assert_false(is_one("\x93\x01\x92\x02\x03\x82\xa1z\x90", 9));
	/* One too many. */
	assert_false(is_one("\x92\x01\x92\x02\x03\x81\xa1z\x90", 9));
	/* A map has a value for each key. */
	assert_false(is_one("\x81\x01", 2));
	assert_false(is_one("\x82\x01\x02\x03", 4));
	/* Two objects, the first of them whole. */
	assert_false(is_one("\x01\x02", 2));
	assert_false(is_one("\x90\x90", 2));
	assert_false(is_one("\xa1z\xa1z", 4));
}

/* Repeats `level` and then has one nil; as it is, without the nil, and with two. */
static void check_depth(const char *level, size_t level_size, size_t levels)
{
	size_t size = level_size * levels + 1;
	uint8_t *bytes = malloc(size + 1);

	for (size_t i = 0; i < levels; i++)
		memcpy(bytes + i * level_size, level, level_size);
	bytes[size - 1] = bytes[size] = NIL;
	assert_true(is_one(bytes, size));
	assert_false(is_one(bytes, size - 1));
	assert_false(is_one(bytes, size + 1));
	free(bytes);
}

/* The last of them would need more stack than there is, at any size of a frame. */
static void depth_costs_nothing(void **state)
{
	static const size_t levels[] = {1, 31, 32, 33, 100000, 10000000};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(levels); i++) {
		check_depth("\x91", 1, levels[i]);
		check_depth("\x81\xc0", 2, levels[i]);
		check_depth("\xdc\x00\x01", 3, levels[i] / 3 + 1);
		check_depth("\xdd\x00\x00\x00\x01", 5, levels[i] / 5 + 1);
		check_depth("\xde\x00\x01\xc0", 4, levels[i] / 4 + 1);
		check_depth("\xdf\x00\x00\x00\x01\xa1k", 7, levels[i] / 7 + 1);
		check_depth("\x92\xc0", 2, levels[i]);
	}
}

/* -------------------------------------------------------------------------------------------------- lies */

static void counts_that_lie_are_refused(void **state)
{
	/* The last ones become 0, or little, where a sum or product loses its high bits. */
	static const uint32_t counts[] = {
		0xffffffff, 0xfffffffe, 0xfffffff0, 0x80000000, 0x80000001, 0x7fffffff, 0x10000};
	static const uint8_t firsts[] = {0xc6, 0xc9, 0xdb, 0xdd, 0xdf};
	uint8_t bytes[300];

	(void)state;
	for (size_t f = 0; f < KVB_ARRAY_SIZE(firsts); f++) {
		for (size_t c = 0; c < KVB_ARRAY_SIZE(counts); c++) {
			memset(bytes, NIL, sizeof(bytes));
			bytes[0] = firsts[f];
			put_number(bytes + 1, 4, counts[c]);
			for (size_t size = 1; size <= sizeof(bytes); size++)
				assert_false(is_one(bytes, size));
		}
	}
	assert_false(is_one("\xdc\xff\xff\xdc\xff\xff\xdc\xff\xff", 9));
	assert_false(is_one("\xc5\xff\xff", 3));
	assert_false(is_one("\xc8\xff\xff\x01", 4));
	assert_false(is_one("\xda\xff\xff", 3));
	assert_false(is_one("\xde\xff\xff\xc0\xc0", 5));
}

/* Each adds to what is missing, so that a sum would come round in the end. */
static void lies_within_lies_are_refused(void **state)
{
	size_t levels = 100000;
	uint8_t *bytes = malloc(5 * levels);

	(void)state;
	for (unsigned first = 0xdd; first <= 0xdf; first += 2) {
		for (uint64_t count = 0xffffffff; count > 0; count >>= 1) {
			for (size_t i = 0; i < levels; i++) {
				bytes[5 * i] = (uint8_t)first;
				put_number(bytes + 5 * i + 1, 4, count);
			}
			assert_false(is_one(bytes, 5 * levels));
		}
	}
	free(bytes);
}

/* An object of each kind, in an array in a map. Returns its size. */
static size_t make_rich(uint8_t *bytes)
{
	size_t size = 8;

	/* {"k": [255 objects]} */
	memcpy(bytes, "\xde\x00\x01\xa1k\xdc\x00\xff", size);
	for (unsigned first = 0; first < 256; first++)
		if (form_of(first))
			size += make_object(bytes + size, first, 5);
	return size;
}

static void a_rich_document_is_one_object_whole_only(void **state)
{
	uint8_t bytes[4096];
	size_t size = make_rich(bytes);

	(void)state;
	assert_true(is_one(bytes, size));
	for (size_t part = 0; part < size; part++)
		assert_false(is_one(bytes, part));
	for (unsigned last = 0; last < 256; last++) {
		bytes[size] = (uint8_t)last;
		assert_false(is_one(bytes, size + 1));
	}
}

/* --------------------------------------------------------------------------------------- beside msgpack-c */

#define DOCUMENTS 20000
#define MUTATIONS 12
/* msgpack-c nests 32 deep. */
#define NESTED_MAX 30

static uint64_t random_state;

/* splitmix64 */
static uint64_t next_random(void)
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static uint32_t below(uint32_t bound)
{
	return (uint32_t)(next_random() % bound);
}

/* Letters, so that text read as objects is small numbers, and does not nest. */
static uint32_t random_bytes(char *bytes, uint32_t max, bool text)
{
	uint32_t size = below(10) == 0 ? below(max) : below(20);

	for (uint32_t i = 0; i < size; i++)
		bytes[i] = (char)(text ? 'a' + below(26) : below(256));
	return size;
}

static void pack_scalar(msgpack_packer *packer)
{
	char bytes[400];
	uint32_t size;

	switch (below(8)) {
	case 0:
		msgpack_pack_nil(packer);
		break;
	case 1:
		if (below(2))
			msgpack_pack_true(packer);
		else
			msgpack_pack_false(packer);
		break;
	case 2:
		msgpack_pack_uint64(packer, next_random() >> below(64));
		break;
	case 3:
		msgpack_pack_int64(packer, -(int64_t)(next_random() >> 1 >> below(63)));
		break;
	case 4:
		if (below(2))
			msgpack_pack_double(packer, (double)next_random() / 3);
		else
			msgpack_pack_float(packer, (float)below(1000) / 3);
		break;
	case 5:
		size = random_bytes(bytes, sizeof(bytes), true);
		msgpack_pack_str_with_body(packer, bytes, size);
		break;
	case 6:
		size = random_bytes(bytes, sizeof(bytes), below(4) > 0);
		msgpack_pack_bin_with_body(packer, bytes, size);
		break;
	default:
		size = below(3) ? 1u << below(5) : random_bytes(bytes, sizeof(bytes), true);
		memset(bytes, 'e', size);
		msgpack_pack_ext_with_body(packer, bytes, size, (int8_t)below(256));
	}
}

static uint32_t random_count(void)
{
	return below(20) == 0 ? 16 + below(10) : below(5);
}

static void pack_random(msgpack_packer *packer, unsigned depth)
{
	uint32_t kind = depth > 0 ? below(4) : 0, count = random_count();

	if (kind < 2) {
		pack_scalar(packer);
		return;
	}
	if (kind == 2)
		msgpack_pack_array(packer, count);
	else
		msgpack_pack_map(packer, count);
	for (uint32_t i = 0; i < count * (kind - 1); i++)
		pack_random(packer, depth - 1);
}

/* True when msgpack-c finds one object there, and nothing else. */
static bool unpacks_whole(const uint8_t *bytes, size_t size)
{
	uint8_t *exact = malloc(size);
	msgpack_unpacked unpacked;
	size_t offset = 0;
	bool whole;

	memcpy(exact, bytes, size);
	msgpack_unpacked_init(&unpacked);
	whole = msgpack_unpack_next(&unpacked, (const char *)exact, size, &offset) ==
			MSGPACK_UNPACK_SUCCESS &&
		offset == size;
	msgpack_unpacked_destroy(&unpacked);
	free(exact);
	return whole;
}

/* At most this many containers lie within each other. */
static unsigned nested_at_most(const uint8_t *bytes, size_t size)
{
	unsigned n = 0;

	for (size_t i = 0; i < size; i++)
		n += (bytes[i] >= 0x80 && bytes[i] < 0xa0) || (bytes[i] >= 0xdc && bytes[i] < 0xe0);
	return n;
}

static bool may_count_in_32_bits(const uint8_t *bytes, size_t size)
{
	return memchr(bytes, 0xdd, size) || memchr(bytes, 0xdf, size);
}

struct agreement {
	unsigned whole; /* both say so */
	unsigned refused;
	unsigned untold; /* msgpack-c was not asked */
};

static void compare(const uint8_t *bytes, size_t size, struct agreement *agreement)
{
	bool one = is_one(bytes, size);

	if (one ? nested_at_most(bytes, size) >= NESTED_MAX : may_count_in_32_bits(bytes, size)) {
		agreement->untold++;
		return;
	}
	assert_int_equal(unpacks_whole(bytes, size), one);
	if (one)
		agreement->whole++;
	else
		agreement->refused++;
}

static void print_agreement(const char *what, const struct agreement *agreement)
{
	printf("%s: %u whole, %u refused, %u not told to msgpack-c\n", what, agreement->whole,
		agreement->refused, agreement->untold);
}

static void mutate(const msgpack_sbuffer *document, struct agreement *agreement)
{
	uint8_t *bytes = malloc(document->size);

	for (unsigned i = 0; i < MUTATIONS; i++) {
		size_t at = next_random() % document->size;
		memcpy(bytes, document->data, document->size);
		/* Never by 0. */
		bytes[at] = (uint8_t)(bytes[at] + 1 + below(255));
		compare(bytes, document->size, agreement);
	}
	free(bytes);
}

static void documents_of_msgpack_c_and_their_mutations_are_judged_alike(void **state)
{
	struct agreement agreement = {0};

	(void)state;
	random_state = 20240501;
	for (unsigned i = 0; i < DOCUMENTS; i++) {
		msgpack_sbuffer document;
		msgpack_packer packer;
		msgpack_sbuffer_init(&document);
		msgpack_packer_init(&packer, &document, msgpack_sbuffer_write);
		pack_random(&packer, 6);
		assert_true(is_one(document.data, document.size));
		assert_false(is_one(document.data, document.size - 1));
		mutate(&document, &agreement);
		msgpack_sbuffer_destroy(&document);
	}
	print_agreement("mutations", &agreement);
	assert_true(agreement.whole > DOCUMENTS);
	assert_true(agreement.refused > DOCUMENTS);
	assert_true(agreement.untold < DOCUMENTS * MUTATIONS / 4);
}

static void short_strings_of_bytes_are_judged_alike(void **state)
{
	struct agreement agreement = {0};
	uint8_t bytes[12];

	(void)state;
	for (unsigned value = 0; value < 0x10000; value++) {
		put_number(bytes, 2, value);
		if (value < 256)
			compare(bytes + 1, 1, &agreement);
		compare(bytes, 2, &agreement);
	}
	random_state = 20240502;
	for (unsigned i = 0; i < 200000; i++) {
		size_t size = 1 + below(sizeof(bytes));
		for (size_t at = 0; at < size; at++)
			bytes[at] = (uint8_t)(below(2) ? 0x80 + below(0x60) : below(256));
		compare(bytes, size, &agreement);
	}
	print_agreement("short strings", &agreement);
	assert_true(agreement.whole > 1000);
	assert_true(agreement.refused > 100000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_first_byte_has_its_size),
		cmocka_unit_test(the_byte_that_is_never_used_begins_nothing),
		cmocka_unit_test(nothing_is_no_object),
		cmocka_unit_test(containers_hold_what_they_say),
		cmocka_unit_test(depth_costs_nothing),
		cmocka_unit_test(counts_that_lie_are_refused),
		cmocka_unit_test(lies_within_lies_are_refused),
		cmocka_unit_test(a_rich_document_is_one_object_whole_only),
		cmocka_unit_test(documents_of_msgpack_c_and_their_mutations_are_judged_alike),
		cmocka_unit_test(short_strings_of_bytes_are_judged_alike),
	};

	return cmocka_run_group_tests_name("pack", tests, NULL, NULL) ? 1 : 0;
}
