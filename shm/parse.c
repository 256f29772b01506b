/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parse.c - see parse.h. Pure functions; must never accept trailing rubbish or guess a unit.
 */
#include "shm/parse.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "shm/util.h"

struct kvb_unit {
	const char *name;
	uint64_t factor;
};

static const struct kvb_unit size_units[] = {
	{"", 1},
	{"B", 1},
	{"K", KVB_KIB},
	{"KiB", KVB_KIB},
	{"M", KVB_MIB},
	{"MiB", KVB_MIB},
	{"G", KVB_GIB},
	{"GiB", KVB_GIB},
	{"T", 1024 * KVB_GIB},
	{"TiB", 1024 * KVB_GIB},
};

static const struct kvb_unit duration_units[] = {
	{"", 1000},
	{"ms", 1},
	{"s", 1000},
	{"m", 60000},
};

static int parse_with_unit(const char *text, const struct kvb_unit *units, size_t n_units,
	uint64_t max, uint64_t *ret_value)
{
	char *end;
	double value;

	/* strtod alone would also take signs, blanks, "inf", "nan" and hexadecimal. */
	if (!isdigit((unsigned char)text[0]) || strpbrk(text, "xXpPeE") != NULL)
		return -EINVAL;
	errno = 0;
	value = strtod(text, &end);
	if (errno == ERANGE)
		return -ERANGE;
	for (size_t i = 0; i < n_units; i++) {
		if (strcasecmp(end, units[i].name) != 0)
			continue;
		value *= (double)units[i].factor;
		if (!(value <= (double)max) || value >= 18446744073709551616.0)
			return -ERANGE;
		*ret_value = (uint64_t)value;
		return 0;
	}
	return -EINVAL;
}

int kvb_parse_size(const char *text, uint64_t *ret_bytes)
{
	return parse_with_unit(text, size_units, KVB_ARRAY_SIZE(size_units), UINT64_MAX, ret_bytes);
}

int kvb_parse_duration(const char *text, uint32_t *ret_ms)
{
	uint64_t ms;
	int r = parse_with_unit(
		text, duration_units, KVB_ARRAY_SIZE(duration_units), UINT32_MAX, &ms);
	if (r < 0)
		return r;
	*ret_ms = (uint32_t)ms;
	return 0;
}

int kvb_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret_number)
{
	char *end;
	unsigned long long value;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (*end != '\0')
		return -EINVAL;
	if (errno == ERANGE || value < min || value > max)
		return -ERANGE;
	*ret_number = value;
	return 0;
}

char *kvb_format_size(char *buffer, size_t size, uint64_t bytes)
{
	static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)bytes;
	size_t unit = 0;

	while (value >= 1024.0 && unit + 1 < KVB_ARRAY_SIZE(names)) {
		value /= 1024.0;
		unit++;
	}
	snprintf(buffer, size, value == floor(value) ? "%.0f %s" : "%.2f %s", value, names[unit]);
	return buffer;
}
