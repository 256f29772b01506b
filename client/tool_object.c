/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool_object.c - put, get, exists and rm.
 *
 * Owns one payload at a time; main thread. Must never touch an output file before the object has
 * arrived, and must never take a partial payload for a whole one.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/tool.h"

static const char *file_name(const struct kvb_tool *tool, const char *standard)
{
	const char *path = tool->n_args > 1 ? tool->args[1] : NULL;

	return path == NULL || strcmp(path, "-") == 0 ? standard : path;
}

static const char *file_argument(const struct kvb_tool *tool)
{
	return tool->n_args > 1 ? tool->args[1] : NULL;
}

/* The JSON answer about one key; `name` and `value` say what happened. */
static json_t *key_answer(const struct kvb_tool *tool, const struct kvb_tool_key *key,
	const char *name, json_t *value, const size_t *len)
{
	json_t *object = kvb_key_json(key, tool->hex);

	json_object_set_new(object, name, value);
	if (len != NULL)
		json_object_set_new(object, "length", json_integer((json_int_t)*len));
	return object;
}

static int print_json(const struct kvb_tool *tool, json_t *json)
{
	int r;

	json_object_set_new(json, "schema", json_integer(KVB_TOOL_SCHEMA));
	r = kvb_output_json(json);
	return r < 0 ? kvb_tool_failed(tool, r) : EXIT_SUCCESS;
}

static int read_input(const struct kvb_tool *tool, struct kvb_input *ret_input)
{
	struct kvb_info info;
	uint64_t max = SIZE_MAX;

	/* Only a bound on what is read: should the server be gone, kvb_put() says so. */
	if (kvb_get_info(tool->client, &info) == 0)
		max = info.payload_max;
	return kvb_input_read(file_argument(tool), max, ret_input);
}

int kvb_tool_put(struct kvb_tool *tool)
{
	const struct kvb_tool_key *key = &tool->keys[0];
	struct kvb_input input;
	size_t len = 0;
	int r = read_input(tool, &input);

	if (r == -EFBIG)
		return kvb_tool_key_failed(tool, key, r);
	if (r < 0) {
		kvb_tool_error(
			tool, "cannot read \"%s\": %s", file_name(tool, "stdin"), strerror(-r));
		return EXIT_FAILURE;
	}
	r = kvb_put(tool->client, key->data, key->len, input.data, input.len);
	len = input.len;
	kvb_progress_clear(&tool->progress);
	kvb_input_free(&input);
	if (r < 0)
		return kvb_tool_key_failed(tool, key, r);
	if (!tool->json)
		return EXIT_SUCCESS;
	return print_json(tool, key_answer(tool, key, "stored", json_true(), &len));
}

/* Fetches an object whose length is not known beforehand. The caller frees *ret_data. */
static int get_whole(
	struct kvb_client *client, const struct kvb_tool_key *key, void **ret_data, size_t *ret_len)
{
	size_t capacity;
	size_t len = 0;
	void *data = NULL;
	int r = kvb_exists(client, key->data, key->len, &len);

	while (r == 0) {
		capacity = len;
		data = malloc(capacity == 0 ? 1 : capacity);
		if (data == NULL)
			return -ENOMEM;
		r = kvb_get(client, key->data, key->len, data, capacity, &len);
		if (r == 0) {
			*ret_data = data;
			*ret_len = len;
			return 0;
		}
		free(data);
		/* Replaced by a longer one since its length was asked; `len` is the new length. */
		if (r == -EMSGSIZE && len > capacity)
			r = 0;
	}
	return r;
}

int kvb_tool_get(struct kvb_tool *tool)
{
	const struct kvb_tool_key *key = &tool->keys[0];
	void *data = NULL;
	size_t len = 0;
	int r;

	if (tool->json && !file_name(tool, NULL)) {
		kvb_tool_error(
			tool, "--json needs a FILE: stdout cannot hold both payload and answer");
		return argp_err_exit_status;
	}
	r = get_whole(tool->client, key, &data, &len);
	kvb_progress_clear(&tool->progress);
	if (r < 0)
		return kvb_tool_key_failed(tool, key, r);
	r = kvb_output_write(file_argument(tool), data, len);
	free(data);
	if (r < 0) {
		kvb_tool_error(
			tool, "cannot write \"%s\": %s", file_name(tool, "stdout"), strerror(-r));
		return EXIT_FAILURE;
	}
	if (!tool->json)
		return EXIT_SUCCESS;
	return print_json(tool, key_answer(tool, key, "loaded", json_true(), &len));
}

/* Collects per-key answers and prints them together. */
static int print_answers(const struct kvb_tool *tool, json_t *answers, int status)
{
	int printed;

	if (!tool->json) {
		json_decref(answers);
		return status;
	}
	printed = print_json(tool, json_pack("{s:o}", "keys", answers));
	return status != EXIT_SUCCESS ? status : printed;
}

static int print_exists(
	const struct kvb_tool *tool, const struct kvb_tool_key *key, const size_t *len)
{
	char *text = kvb_key_text(key, tool->hex);

	if (text == NULL)
		return -ENOMEM;
	if (len != NULL)
		printf("%12zu  %s\n", *len, text);
	else
		printf("%12s  %s\n", "-", text);
	free(text);
	return kvb_output_check();
}

int kvb_tool_exists(struct kvb_tool *tool)
{
	json_t *answers = json_array();
	int status = EXIT_SUCCESS;

	for (size_t i = 0; i < tool->n_args; i++) {
		const struct kvb_tool_key *key = &tool->keys[i];
		size_t len;
		int r = kvb_exists(tool->client, key->data, key->len, &len);
		bool there = r == 0;
		if (r == -ENOENT)
			status = EXIT_FAILURE;
		else if (r < 0) {
			json_decref(answers);
			return kvb_tool_key_failed(tool, key, r);
		}
		if (tool->json)
			json_array_append_new(answers,
				key_answer(tool, key, "exists", json_boolean(there),
					there ? &len : NULL));
		else if ((r = print_exists(tool, key, there ? &len : NULL)) < 0) {
			json_decref(answers);
			return kvb_tool_failed(tool, r);
		}
	}
	return print_answers(tool, answers, status);
}

int kvb_tool_rm(struct kvb_tool *tool)
{
	json_t *answers = json_array();
	int status = EXIT_SUCCESS;

	for (size_t i = 0; i < tool->n_args; i++) {
		const struct kvb_tool_key *key = &tool->keys[i];
		int r = kvb_delete(tool->client, key->data, key->len);
		if (r < 0)
			status = kvb_tool_key_failed(tool, key, r);
		if (r < 0 && r != -ENOENT)
			break;
		json_array_append_new(
			answers, key_answer(tool, key, "removed", json_boolean(r == 0), NULL));
	}
	return print_answers(tool, answers, status);
}
