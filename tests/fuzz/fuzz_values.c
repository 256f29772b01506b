/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_values.c - what people write: sizes, durations, numbers, keys, and kvbelld's command line.
 *
 * An input: which (u8, enum kind), then the text; of a command line, one argument a line.
 */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "client/tool.h"
#include "server/arguments.h"
#include "server/server.h"
#include "shm/parse.h"
#include "tests/fuzz/fuzz.h"

#define TEXT_MAX      2048u
#define ARGUMENTS_MAX 96

enum kind { KIND_SIZE, KIND_DURATION, KIND_NUMBER, KIND_KEY, KIND_HEX, KIND_ARGUMENTS, KINDS };

static void size(const char *text)
{
	uint64_t bytes;
	char formatted[16];

	if (kvb_parse_size(text, &bytes) < 0)
		return;
	kvb_format_size(formatted, sizeof(formatted), bytes);
	kvb_fuzz_require(strlen(formatted) < sizeof(formatted) - 1, "a size that needs more room");
}

static void number(const char *text)
{
	uint64_t value;

	kvb_fuzz_require(
		kvb_parse_number(text, 3, 1000, &value) < 0 || (value >= 3 && value <= 1000),
		"a number out of its range");
}

/* What is shown can be turned back, and does no harm to a terminal. */
static void key(char *text, size_t len, bool hex)
{
	struct kvb_tool_key key = {text, len};
	char *shown;

	if (hex && kvb_key_parse(text, true, &key) < 0)
		return;
	json_decref(kvb_key_json(&key, false));
	shown = kvb_key_text(&key, false);
	for (const char *c = shown; c && *c; c++)
		kvb_fuzz_require(*c >= ' ' && *c <= '~', "a key that does not print");
	free(shown);
	shown = kvb_key_text(&key, true);
	kvb_fuzz_require(shown && kvb_key_parse(shown, true, &(struct kvb_tool_key){0}) == 0 &&
			memcmp(shown, key.data, key.len) == 0,
		"a key that does not come back");
	free(shown);
}

static void arguments(char *text)
{
	char name[] = "kvbelld", *argv[ARGUMENTS_MAX + 2] = {name}, *rest = text, *line;
	struct kvb_arguments arguments;
	struct kvb_server_options *options = &arguments.options;
	int argc = 1;

	while (argc <= ARGUMENTS_MAX && (line = strsep(&rest, "\n")))
		argv[argc++] = line;
	kvb_arguments_init(&arguments);
	(void)argp_parse(&kvb_arguments_argp, argc, argv, ARGP_SILENT, NULL, &arguments);
	options->log.fn = NULL;
	if (kvb_options_check(options) < 0)
		return;
	/* What sums and products elsewhere rely on. */
	kvb_fuzz_require(options->fragment_bytes <= options->staging_bytes / 2 &&
			options->ring_entries <= 4096 && options->trust_uids.count <= KVB_IDS_MAX &&
			options->workers <= KVB_WORKERS_MAX,
		"options that the server does not work with");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_size)
{
	struct kvb_fuzz_input input = {data, data_size};
	unsigned kind = kvb_fuzz_u8(&input) % KINDS;
	char *text;
	size_t len;
	const uint8_t *from = kvb_fuzz_bytes(&input, TEXT_MAX, &len);

	text = malloc(len + 1);
	kvb_fuzz_require(text != NULL, "no memory");
	if (len > 0)
		memcpy(text, from, len);
	text[len] = '\0';
	switch (kind) {
	case KIND_SIZE:
		size(text);
		break;
	case KIND_DURATION:
		(void)kvb_parse_duration(text, &(uint32_t){0});
		break;
	case KIND_NUMBER:
		number(text);
		break;
	case KIND_KEY:
		key(text, len, false);
		break;
	case KIND_HEX:
		key(text, len, true);
		break;
	default:
		arguments(text);
	}
	free(text);
	kvb_fuzz_decoded(1);
	return 0;
}
