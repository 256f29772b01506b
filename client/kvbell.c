/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbell.c - the command line tool: commands, options, exit status.
 *
 * Runs in the main thread. It must never leave with 0 after something failed, and never print an
 * error without the thing it is about.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/tool.h"
#include "shm/parse.h"
#include "shm/util.h"

#define EXIT_USAGE     2
#define EXIT_NO_SERVER 69 /* EX_UNAVAILABLE of sysexits.h */

enum { OPT_DIR = 'd', OPT_TIMEOUT = 't', OPT_JSON = 'j', OPT_HEX = 'x' };

static const struct kvb_command commands[] = {
	{"put", "KEY [FILE]", "Store FILE (- or none: stdin) under KEY.", NULL, NULL, 1, 2, 1, true,
		kvb_tool_put},
	{"get", "KEY [FILE]", "Write the object to FILE (- or none: stdout, but not with --json).",
		NULL, NULL, 1, 2, 1, true, kvb_tool_get},
	{"exists", "KEY...", "Say for each KEY whether it is there; 1 if one is not.", NULL, NULL,
		1, SIZE_MAX, SIZE_MAX, true, kvb_tool_exists},
	{"rm", "KEY...", "Remove objects; 1 if one was not there.", NULL, NULL, 1, SIZE_MAX,
		SIZE_MAX, true, kvb_tool_rm},
	{"ls", "", "List the objects with their lengths.", NULL, NULL, 0, 0, 0, true, kvb_tool_ls},
	{"stat", "[PREFIX]", "Show the server's statistics.", NULL, NULL, 0, 1, 0, true,
		kvb_tool_stat},
	{"ping", "", "Ask whether the server answers, and how fast.", kvb_ping_options,
		kvb_ping_parse, 0, 0, 0, false, kvb_tool_ping},
};

static const struct argp_option options[] = {
	{"dir", OPT_DIR, "DIR", 0,
		"The server's runtime directory ($KVBELL_DIR, else $XDG_RUNTIME_DIR/kvbell, else "
		"/run/kvbell)",
		0},
	{"timeout", OPT_TIMEOUT, "TIME", 0, "Deadline of each call, such as 500ms or 10s (30s)", 0},
	{"json", OPT_JSON, NULL, 0, "Answer in JSON", 0},
	{"hex", OPT_HEX, NULL, 0, "Keys are given and shown in hexadecimal", 0},
	{NULL, 0, NULL, 0, NULL, 0},
};

static const char doc[] =
	"kvbell - store and fetch objects of a kvbell server, and look at it.\v"
	"Commands:\n"
	"  put KEY [FILE]   store FILE (- or none: stdin) under KEY\n"
	"  get KEY [FILE]   write the object to FILE (- or none: stdout)\n"
	"  exists KEY...    say whether it is there\n"
	"  rm KEY...        remove\n"
	"  ls               list objects and their lengths\n"
	"  stat [PREFIX]    statistics\n"
	"  ping             does the server answer, and how fast; --wait=door|full\n\n"
	"Keys have 1 to 1024 bytes. Exit status: 0 done; 1 failed, or the key is not there; 2 usage; "
	"69 no server.";

const char *argp_program_version;

/* ---------------------------------------------------------------------------------------------- errors */

void kvb_tool_error(const struct kvb_tool *tool, const char *format, ...)
{
	va_list args;

	/* "kvbell: put: text" */
	fprintf(stderr, "kvbell: %s: ", tool->command ? tool->command->name : "?");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

int kvb_tool_status(int error)
{
	return error == -ECONNREFUSED || error == -ENOTCONN ? EXIT_NO_SERVER : EXIT_FAILURE;
}

int kvb_tool_failed(const struct kvb_tool *tool, int error)
{
	kvb_tool_error(tool, "%s", kvb_strerror(error));
	return kvb_tool_status(error);
}

int kvb_tool_key_failed(const struct kvb_tool *tool, const struct kvb_tool_key *key, int error)
{
	char *text = kvb_key_text(key, tool->hex);

	/* A key that is too long says nothing by being shown. */
	kvb_tool_error(tool, "\"%.80s\"%s: %s", text ? text : "?",
		text && strlen(text) > 80 ? "..." : "", kvb_strerror(error));
	free(text);
	return kvb_tool_status(error);
}

int kvb_tool_open_failed(const struct kvb_tool *tool, int error)
{
	char dir[256] = "the default directory";

	if (tool->dir)
		snprintf(dir, sizeof(dir), "%s", tool->dir);
	else
		(void)kvb_default_dir(dir, sizeof(dir));
	kvb_tool_error(tool, "%s: %s", dir, kvb_strerror(error));
	return kvb_tool_status(error);
}

/* ------------------------------------------------------------------------------------------ the client */

static void show_progress(void *user, uint64_t done, uint64_t total)
{
	struct kvb_progress *progress = user;
	char moved[24], all[24], detail[64];

	if (!kvb_progress_due(progress))
		return;
	snprintf(detail, sizeof(detail), "%s of %s", kvb_format_size(moved, sizeof(moved), done),
		kvb_format_size(all, sizeof(all), total));
	kvb_progress_draw(progress, done, total, detail);
}

int kvb_tool_open(struct kvb_tool *tool, uint32_t timeout_ms)
{
	struct kvb_options all = KVB_OPTIONS_INIT;

	all.dir = tool->dir;
	all.name = "kvbell";
	all.timeout_ms = timeout_ms;
	all.progress = show_progress;
	all.progress_user = &tool->progress;
	return kvb_open(&all, &tool->client);
}

/* ---------------------------------------------------------------------------------------- command line */

static const struct kvb_command *find_command(const char *name)
{
	for (size_t i = 0; i < KVB_ARRAY_SIZE(commands); i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
	struct kvb_tool *tool = state->input;

	switch (key) {
	case OPT_DIR:
		tool->dir = arg;
		return 0;
	case OPT_TIMEOUT:
		if (kvb_parse_duration(arg, &tool->timeout_ms) < 0 || tool->timeout_ms == 0)
			argp_error(
				state, "--timeout: \"%s\" is not a time such as 500ms or 10s", arg);
		return 0;
	case OPT_JSON:
		tool->json = true;
		return 0;
	case OPT_HEX:
		tool->hex = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct kvb_tool *tool = state->input;

	switch (key) {
	case ARGP_KEY_ARG:
		tool->command = find_command(arg);
		if (!tool->command)
			argp_error(state, "there is no command \"%s\"; see --help", arg);
		/* The rest is the command's. */
		tool->args = state->argv + state->next - 1;
		tool->n_args = (size_t)state->argc - (size_t)state->next + 1;
		state->next = state->argc;
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_error(state, "a command is missing; see --help");
		return 0;
	default:
		return parse_common(key, arg, state);
	}
}

static error_t parse_command_option(int key, char *arg, struct argp_state *state)
{
	struct kvb_tool *tool = state->input;
	const struct kvb_command *command = tool->command;

	if (key == ARGP_KEY_INIT)
		state->child_inputs[0] = tool;
	if (key == ARGP_KEY_ARGS) {
		tool->args = state->argv + state->next;
		tool->n_args = (size_t)(state->argc - state->next);
		return 0;
	}
	if (key == ARGP_KEY_INIT)
		tool->n_args = 0;
	if (key == ARGP_KEY_END &&
		(tool->n_args < command->min_args || tool->n_args > command->max_args))
		argp_error(state, "%s takes %s", command->name,
			command->args_doc[0] ? command->args_doc : "no arguments");
	return command->parse ? command->parse(key, arg, state) : ARGP_ERR_UNKNOWN;
}

/* The options of one command are its own and the common ones. */
static void parse_command(struct kvb_tool *tool)
{
	/* argp knows whose option it is by the group, so each group needs its own parser. */
	struct argp common = {.options = options, .parser = parse_common};
	struct argp_child children[] = {{&common, 0, "For every command:", 1}, {0}};
	struct argp argp = {.options = tool->command->options,
		.parser = parse_command_option,
		.args_doc = tool->command->args_doc,
		.doc = tool->command->doc,
		.children = children};
	int argc = (int)tool->n_args;
	char **argv = tool->args;
	char name[32];

	snprintf(name, sizeof(name), "kvbell %s", tool->command->name);
	argv[0] = name;
	argp_parse(&argp, argc, argv, 0, NULL, tool);
}

static int decode_keys(struct kvb_tool *tool)
{
	size_t n = kvb_min_u64(tool->command->n_keys, tool->n_args);

	tool->keys = calloc(n + 1, sizeof(*tool->keys));
	if (!tool->keys)
		return kvb_tool_failed(tool, -ENOMEM);
	for (size_t i = 0; i < n; i++)
		if (kvb_key_parse(tool->args[i], tool->hex, &tool->keys[i]) < 0) {
			kvb_tool_error(
				tool, "\"%s\" is not a key in hexadecimal (--hex)", tool->args[i]);
			return EXIT_USAGE;
		}
	return EXIT_SUCCESS;
}

static int run_command(struct kvb_tool *tool)
{
	int status = decode_keys(tool);
	int r;

	if (status != EXIT_SUCCESS)
		return status;
	kvb_progress_init(&tool->progress, tool->command->name);
	if (tool->command->opens) {
		r = kvb_tool_open(tool, tool->timeout_ms);
		if (r < 0)
			return kvb_tool_open_failed(tool, r);
	}
	status = tool->command->run(tool);
	kvb_close(tool->client);
	/* What a full disk or a closed pipe took may show up only now. */
	if (fflush(stdout) != 0 && status == EXIT_SUCCESS) {
		kvb_tool_error(tool, "cannot write to stdout: %s", strerror(errno));
		status = EXIT_FAILURE;
	}
	return status;
}

int main(int argc, char **argv)
{
	static const struct argp argp = {
		options, parse_option, "COMMAND [ARGUMENT...]", doc, NULL, NULL, NULL};
	struct kvb_tool tool = {0};
	char version[32];
	int status;

	snprintf(version, sizeof(version), "kvbell %s", kvb_version());
	argp_program_version = version;
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &tool);
	parse_command(&tool);
	status = run_command(&tool);
	free(tool.keys);
	return status;
}
