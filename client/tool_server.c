/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool_server.c - ls and stat: what the server holds and how it fares.
 *
 * Owns the answer while it is being printed; main thread. Must never let a key's bytes reach a
 * terminal as control characters.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/tool.h"
#include "shm/parse.h"

struct printer {
	const struct kvb_tool *tool;
	json_t *json; /* NULL: text */
	const char *prefix;
};

static int print_schema(const struct kvb_tool *tool, const char *name, json_t *value)
{
	int r = kvb_output_json(json_pack("{s:o, s:i}", name, value, "schema", KVB_TOOL_SCHEMA));

	return r < 0 ? kvb_tool_failed(tool, r) : EXIT_SUCCESS;
}

static int finish(struct printer *printer, const char *name, int r)
{
	if (r < 0) {
		json_decref(printer->json);
		return kvb_tool_failed(printer->tool, r);
	}
	return printer->json ? print_schema(printer->tool, name, printer->json) : EXIT_SUCCESS;
}

static int print_entry(void *user, const struct kvb_entry *entry)
{
	struct printer *printer = user;
	struct kvb_tool_key key = {entry->key, entry->key_len};
	char *text;

	if (printer->json) {
		json_t *object = kvb_key_json(&key, printer->tool->hex);
		json_object_set_new(object, "length", json_integer((json_int_t)entry->length));
		return json_array_append_new(printer->json, object) < 0 ? -ENOMEM : 0;
	}
	text = kvb_key_text(&key, printer->tool->hex);
	if (!text)
		return -ENOMEM;
	printf("%12" PRIu64 "  %s\n", entry->length, text);
	free(text);
	return kvb_output_check();
}

int kvb_tool_ls(struct kvb_tool *tool)
{
	struct printer printer = {.tool = tool, .json = tool->json ? json_array() : NULL};

	return finish(&printer, "objects", kvb_list(tool->client, print_entry, &printer));
}

static bool is_bytes(const char *name)
{
	size_t n = strlen(name);

	return n > 5 && strcmp(name + n - 5, "bytes") == 0;
}

static int print_stat(void *user, const struct kvb_stat *stat)
{
	struct printer *printer = user;
	char size[24];

	if (strncmp(stat->name, printer->prefix, strlen(printer->prefix)) != 0)
		return 0;
	if (printer->json)
		return json_object_set_new(printer->json, stat->name,
			       stat->text ? json_string(stat->text)
					  : json_integer((json_int_t)stat->value)) < 0
			? -ENOMEM
			: 0;
	if (stat->text)
		printf("%-26s %s\n", stat->name, stat->text);
	else if (is_bytes(stat->name) && stat->value >= 1024)
		printf("%-26s %" PRIu64 " (%s)\n", stat->name, stat->value,
			kvb_format_size(size, sizeof(size), stat->value));
	else
		printf("%-26s %" PRIu64 "\n", stat->name, stat->value);
	return kvb_output_check();
}

int kvb_tool_stat(struct kvb_tool *tool)
{
	struct printer printer = {.tool = tool,
		.json = tool->json ? json_object() : NULL,
		.prefix = tool->n_args > 0 ? tool->args[0] : ""};

	return finish(&printer, "stats", kvb_stats(tool->client, print_stat, &printer));
}
