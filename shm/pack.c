/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack.c - see pack.h. Owns nothing; any thread.
 *
 * msgpack-c reserves memory for as many elements as an array says it has, 128 GiB for five bytes
 * that lie. So nothing is unpacked that this scan has not seen to be all there. It must never read
 * beyond the bytes it was given, and needs neither recursion nor memory, however deep they nest.
 */
#include "shm/pack.h"

#include <stdint.h>

#include "shm/util.h"

/* What follows a first byte: a big-endian number of `width` bytes, which counts bytes or
 * elements, and fixed bytes beside. */
struct shape {
	uint8_t width;
	uint8_t fixed;
	uint8_t elements; /* per count: 1 array, 2 map, 0 the count is of bytes */
};

/* By first byte from 0xc0 to 0xdf; specification at msgpack.org. 0xc1 is never used. */
static const struct shape shapes[32] = {
	[0xc4 - 0xc0] = {.width = 1},
	[0xc5 - 0xc0] = {.width = 2},
	[0xc6 - 0xc0] = {.width = 4},
	[0xc7 - 0xc0] = {.width = 1, .fixed = 1},
	[0xc8 - 0xc0] = {.width = 2, .fixed = 1},
	[0xc9 - 0xc0] = {.width = 4, .fixed = 1},
	[0xca - 0xc0] = {.fixed = 4},
	[0xcb - 0xc0] = {.fixed = 8},
	[0xcc - 0xc0] = {.fixed = 1},
	[0xcd - 0xc0] = {.fixed = 2},
	[0xce - 0xc0] = {.fixed = 4},
	[0xcf - 0xc0] = {.fixed = 8},
	[0xd0 - 0xc0] = {.fixed = 1},
	[0xd1 - 0xc0] = {.fixed = 2},
	[0xd2 - 0xc0] = {.fixed = 4},
	[0xd3 - 0xc0] = {.fixed = 8},
	[0xd4 - 0xc0] = {.fixed = 2},
	[0xd5 - 0xc0] = {.fixed = 3},
	[0xd6 - 0xc0] = {.fixed = 5},
	[0xd7 - 0xc0] = {.fixed = 9},
	[0xd8 - 0xc0] = {.fixed = 17},
	[0xd9 - 0xc0] = {.width = 1},
	[0xda - 0xc0] = {.width = 2},
	[0xdb - 0xc0] = {.width = 4},
	[0xdc - 0xc0] = {.width = 2, .elements = 1},
	[0xdd - 0xc0] = {.width = 4, .elements = 1},
	[0xde - 0xc0] = {.width = 2, .elements = 2},
	[0xdf - 0xc0] = {.width = 4, .elements = 2},
};

struct scan {
	const uint8_t *at;
	size_t left;      /* bytes */
	uint64_t missing; /* objects that must still come */
};

static bool skip(struct scan *scan, uint64_t bytes)
{
	if (bytes > scan->left)
		return false;
	scan->at += bytes;
	scan->left -= bytes;
	return true;
}

/* The first byte holds the count. */
static bool skip_short(struct scan *scan, uint8_t first)
{
	if (first >= 0xa0 && first < 0xc0)
		return skip(scan, first & 0x1fu);
	if (first >= 0x80 && first < 0xa0)
		scan->missing += (first & 0x0fu) * (first < 0x90 ? 2u : 1u);
	return true;
}

static bool skip_shaped(struct scan *scan, uint8_t first)
{
	struct shape shape = shapes[first - 0xc0];
	uint64_t count = 0;

	if (first == 0xc1 || shape.width > scan->left)
		return false;
	for (uint8_t i = 0; i < shape.width; i++)
		count = count << 8 | scan->at[i];
	(void)skip(scan, shape.width);
	if (shape.elements == 0)
		return skip(scan, count + shape.fixed);
	scan->missing += count * shape.elements;
	return true;
}

bool kvb_pack_is_one_object(const void *data, size_t size)
{
	struct scan scan = {.at = data, .left = size, .missing = 1};

	/* Each object has at least one byte, so more missing ones than bytes cannot be. */
	while (scan.missing > 0 && scan.missing <= scan.left) {
		uint8_t first = *scan.at;
		bool whole;
		(void)skip(&scan, 1);
		scan.missing--;
		whole = first >= 0xc0 && first < 0xe0 ? skip_shaped(&scan, first)
						      : skip_short(&scan, first);
		if (!whole)
			return false;
	}
	return scan.missing == 0 && scan.left == 0;
}
