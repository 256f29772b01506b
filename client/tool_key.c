/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool_key.c - keys between bytes and what a person or a JSON reader sees.
 *
 * Owns nothing; main thread. Must never lose a byte of a key: every form can be turned back, and
 * must never let a key's bytes reach a terminal as control characters.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/tool.h"

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)tolower((unsigned char)c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes in place, since the result is never longer. `arg` stays the key's memory.
 * 0; -EINVAL not hexadecimal. */
int kvb_key_parse(char *arg, bool hex, struct kvb_tool_key *ret_key)
{
	size_t len = strlen(arg);

	if (!hex) {
		*ret_key = (struct kvb_tool_key){arg, len};
		return 0;
	}
	if (len % 2 != 0)
		return -EINVAL;
	/* All first: the caller shows what it cannot take, and not what is half decoded. */
	for (size_t i = 0; i < len; i++)
		if (hex_digit(arg[i]) < 0)
			return -EINVAL;
	for (size_t i = 0; i < len; i += 2)
		arg[i / 2] =
			(char)((unsigned)hex_digit(arg[i]) << 4 | (unsigned)hex_digit(arg[i + 1]));
	*ret_key = (struct kvb_tool_key){arg, len / 2};
	return 0;
}

/* Hexadecimal, or the bytes with \xNN for what does not print and \\ for the backslash. The caller
 * frees it; NULL when memory is short. */
char *kvb_key_text(const struct kvb_tool_key *key, bool hex)
{
	static const char digits[] = "0123456789abcdef";
	const unsigned char *bytes = key->data;
	char *text = malloc(4 * key->len + 1);
	char *end = text;

	if (text == NULL)
		return NULL;
	for (size_t i = 0; i < key->len; i++) {
		bool plain = !hex && bytes[i] >= ' ' && bytes[i] <= '~';
		if (!plain) {
			if (!hex)
				end = stpcpy(end, "\\x");
			*end++ = digits[bytes[i] >> 4];
			*end++ = digits[bytes[i] & 15];
			continue;
		}
		if (bytes[i] == '\\')
			*end++ = '\\';
		*end++ = (char)bytes[i];
	}
	*end = '\0';
	return text;
}

/* {"key": text} when the bytes are UTF-8, else, or when asked for, {"key_hex": digits}. NULL when
 * memory is short. */
json_t *kvb_key_json(const struct kvb_tool_key *key, bool hex)
{
	json_t *object = json_object();
	json_t *value = hex ? NULL : json_stringn(key->data, key->len);
	char *text;

	if (value != NULL) {
		json_object_set_new(object, "key", value);
		return object;
	}
	text = kvb_key_text(key, true);
	if (text != NULL)
		json_object_set_new(object, "key_hex", json_string(text));
	free(text);
	return object;
}
