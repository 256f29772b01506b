/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool.h - what the parts of the command line tool share. Not part of the library.
 * Everything runs in the main thread.
 */
#ifndef KVB_CLIENT_TOOL_H
#define KVB_CLIENT_TOOL_H

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/terminal.h"
#include "kvbell/kvbell.h"

/* The version of every JSON output of the tool; grows when a field changes its meaning. */
#define KVB_TOOL_SCHEMA 1

struct kvb_tool;

struct kvb_command {
	const char *name;
	const char *args_doc;
	const char *doc;
	const struct argp_option *options; /* NULL: none of its own */
	error_t (*parse)(int key, char *arg, struct argp_state *state);
	size_t min_args;
	size_t max_args;
	size_t n_keys;                     /* so many leading arguments are keys */
	bool opens;                        /* main() opens the client before it calls run() */
	int (*run)(struct kvb_tool *tool); /* returns the exit status */
};

struct kvb_tool_key {
	const void *data;
	size_t len;
};

enum kvb_wait {
	KVB_WAIT_NONE,
	KVB_WAIT_DOOR,
	KVB_WAIT_FULL,
};

struct kvb_tool {
	const char *dir;
	uint32_t timeout_ms;
	bool json;
	bool hex;
	struct {
		uint64_t count;
		bool control;
		enum kvb_wait wait;
		uint32_t wait_timeout_ms;
	} ping;
	const struct kvb_command *command;
	char **args; /* keys among them are decoded in `keys` */
	struct kvb_tool_key *keys;
	size_t n_args;
	struct kvb_client *client;
	struct kvb_progress progress;
};

/* kvbell.c */
int kvb_tool_open(struct kvb_tool *tool, uint32_t timeout_ms);
int kvb_tool_status(int error);
int kvb_tool_open_failed(const struct kvb_tool *tool, int error);
int kvb_tool_failed(const struct kvb_tool *tool, int error);
int kvb_tool_key_failed(const struct kvb_tool *tool, const struct kvb_tool_key *key, int error);
void kvb_tool_error(const struct kvb_tool *tool, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* tool_key.c */
int kvb_key_parse(char *arg, bool hex, struct kvb_tool_key *ret_key);
char *kvb_key_text(const struct kvb_tool_key *key, bool hex);
json_t *kvb_key_json(const struct kvb_tool_key *key, bool hex);

/* tool_io.c */
struct kvb_input {
	const void *data;
	size_t len;
	void *map;
	size_t map_len;
	void *buffer;
};
int kvb_input_read(const char *path, uint64_t max, struct kvb_input *ret_input);
void kvb_input_free(struct kvb_input *input);
int kvb_output_write(const char *path, const void *data, size_t len);
int kvb_output_json(json_t *json);
int kvb_output_check(void);

/* The commands: tool_object.c, tool_server.c, tool_ping.c */
int kvb_tool_put(struct kvb_tool *tool);
int kvb_tool_get(struct kvb_tool *tool);
int kvb_tool_exists(struct kvb_tool *tool);
int kvb_tool_rm(struct kvb_tool *tool);
int kvb_tool_ls(struct kvb_tool *tool);
int kvb_tool_stat(struct kvb_tool *tool);
int kvb_tool_ping(struct kvb_tool *tool);
extern const struct argp_option kvb_ping_options[];
error_t kvb_ping_parse(int key, char *arg, struct argp_state *state);

#endif /* KVB_CLIENT_TOOL_H */
