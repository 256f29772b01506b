/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arguments.c - kvbelld's command line.
 *
 * Owns nothing; main thread. It must never take a value that it does not understand for another one:
 * each is an error that names the option.
 */
#include "server/arguments.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/server.h"
#include "shm/parse.h"
#include "shm/util.h"

enum option_key {
	OPT_DIR = 'd',
	OPT_POOL = 'p',
	OPT_WORKERS = 'w',
	OPT_LOG_LEVEL = 'l',
	OPT_STAGING = 256,
	OPT_SPIN,
	OPT_FRAGMENT,
	OPT_RING_ENTRIES,
	OPT_MAX_SESSIONS,
	OPT_MAX_OBJECTS,
	OPT_LEASE_CELLS,
	OPT_MAX_OPEN,
	OPT_LOW_WATERMARK,
	OPT_HIGH_WATERMARK,
	OPT_POPULATE,
	OPT_START_WAIT,
	OPT_TRANSFER_TIMEOUT,
	OPT_DRAIN_TIMEOUT,
	OPT_TRUST_UID,
	OPT_TRUST_GID,
	OPT_ALLOW_UID,
	OPT_ALLOW_GID,
	OPT_READY_FD,
};

static const struct argp_option option_table[] = {
	{"dir", OPT_DIR, "DIR", 0,
		"Runtime directory for the sockets ($KVBELL_DIR, else $XDG_RUNTIME_DIR/kvbell, else "
		"/run/kvbell)",
		0},
	{"pool", OPT_POOL, "SIZE", 0, "Payload memory, such as 64GiB (1GiB)", 0},
	{"workers", OPT_WORKERS, "N", 0, "Worker threads (by the number of CPUs)", 0},
	{"spin-us", OPT_SPIN, "N", 0,
		"After a request, look for the next one for N microseconds before sleeping; costs "
		"a CPU meanwhile (0)",
		0},
	{"log-level", OPT_LOG_LEVEL, "LEVEL", 0, "error, warning, info or debug (info)", 0},

	{NULL, 0, NULL, 0, "Who is let in besides the server's own uid:", 1},
	{"trust-uid", OPT_TRUST_UID, "UID", 0, "May use the ring; repeatable", 1},
	{"trust-gid", OPT_TRUST_GID, "GID", 0, "The same for a group", 1},
	{"allow-uid", OPT_ALLOW_UID, "UID", 0,
		"May use the ring, and sees payload in its own staging only; repeatable", 1},
	{"allow-gid", OPT_ALLOW_GID, "GID", 0, "The same for a group", 1},

	{NULL, 0, NULL, 0, "Start and stop:", 2},
	{"populate", OPT_POPULATE, "require|try", 0,
		"Whether memory that cannot be had ends the server (try)", 2},
	{"start-wait", OPT_START_WAIT, "TIME", 0,
		"How long to wait for memory and lock of a server that has just died (30s)", 2},
	{"drain-timeout", OPT_DRAIN_TIMEOUT, "TIME", 0,
		"How long work in flight may take after SIGTERM (10s)", 2},
	{"ready-fd", OPT_READY_FD, "FD", 0, "Write a line to FD when the door is open", 2},

	{NULL, 0, NULL, 0, "Limits:", 3},
	{"staging", OPT_STAGING, "SIZE", 0, "Payload area of each session (8MiB)", 3},
	{"fragment", OPT_FRAGMENT, "SIZE", 0, "Most payload in one request (512KiB)", 3},
	{"ring-entries", OPT_RING_ENTRIES, "N", 0, "Requests in flight per session (256)", 3},
	{"max-sessions", OPT_MAX_SESSIONS, "N", 0, "Sessions at a time (256)", 3},
	{"max-objects", OPT_MAX_OBJECTS, "N", 0, "Stored objects (one per 64KiB of pool)", 3},
	{"lease-cells", OPT_LEASE_CELLS, "N", 0,
		"Objects that one client may hold for reading (1024)", 3},
	{"max-open", OPT_MAX_OPEN, "SIZE", 0,
		"Bytes in unfinished puts of one session (half the pool)", 3},
	{"transfer-timeout", OPT_TRANSFER_TIMEOUT, "TIME", 0,
		"A transfer without progress is ended after this (30s)", 3},
	{"high-watermark", OPT_HIGH_WATERMARK, "PERCENT", 0,
		"Evict ahead once the pool is this full (95)", 3},
	{"low-watermark", OPT_LOW_WATERMARK, "PERCENT", 0, "... until it is this full (90)", 3},
	{NULL, 0, NULL, 0, NULL, 0},
};

static const char doc[] =
	"kvbelld - keeps KV-cache chunks in shared memory for the processes of this host.\v"
	"Sizes take B, KiB, MiB, GiB, TiB; times ms, s, m. SIGTERM and SIGINT drain; a second one leaves "
	"at once.\n\nExit status: 0 stopped in order; 1 failure; 2 usage; 3 work was stuck at the drain "
	"deadline; 4 left at once.";

static void bad_argument(
	struct argp_state *state, const char *name, const char *arg, const char *want)
{
	argp_error(state, "--%s: \"%s\" is not %s", name, arg, want);
}

static const char *option_name(int key)
{
	for (size_t i = 0; i < KVB_ARRAY_SIZE(option_table); i++)
		if (option_table[i].key == key && option_table[i].name)
			return option_table[i].name;
	return "?";
}

static void parse_size(struct argp_state *state, int key, const char *arg, uint64_t *ret_bytes)
{
	if (kvb_parse_size(arg, ret_bytes) < 0)
		bad_argument(state, option_name(key), arg, "a size such as 512MiB");
}

static void parse_time(struct argp_state *state, int key, const char *arg, uint32_t *ret_ms)
{
	if (kvb_parse_duration(arg, ret_ms) < 0)
		bad_argument(state, option_name(key), arg, "a time such as 250ms or 30s");
}

static void parse_count(
	struct argp_state *state, int key, const char *arg, uint64_t max, uint32_t *ret_count)
{
	uint64_t number = 0;

	if (kvb_parse_number(arg, 1, max, &number) < 0) {
		char want[64];
		snprintf(want, sizeof(want), "a number from 1 to %llu", (unsigned long long)max);
		bad_argument(state, option_name(key), arg, want);
	}
	*ret_count = (uint32_t)number;
}

static void parse_spin(struct argp_state *state, const char *arg, uint32_t *ret_us)
{
	uint64_t number = 0;

	if (kvb_parse_number(arg, 0, KVB_SPIN_US_MAX, &number) < 0)
		bad_argument(state, "spin-us", arg, "a number from 0 to 1000000");
	*ret_us = (uint32_t)number;
}

static void parse_id(struct argp_state *state, int key, const char *arg, struct kvb_id_list *list)
{
	uint64_t id = 0;

	if (kvb_parse_number(arg, 0, UINT32_MAX - 1, &id) < 0)
		bad_argument(state, option_name(key), arg, "a numeric id");
	if (list->count == KVB_IDS_MAX)
		argp_error(state, "--%s: at most %u may be given", option_name(key), KVB_IDS_MAX);
	else
		list->ids[list->count++] = (uint32_t)id;
}

static void parse_level(struct argp_state *state, const char *arg, enum kvb_log_level *ret_level)
{
	static const char *const names[] = {"error", "warning", "info", "debug"};

	for (unsigned i = 0; i < KVB_ARRAY_SIZE(names); i++)
		if (strcmp(arg, names[i]) == 0) {
			*ret_level = (enum kvb_log_level)i;
			return;
		}
	bad_argument(state, "log-level", arg, "error, warning, info or debug");
}

static void parse_fragment(struct argp_state *state, const char *arg, uint32_t *ret_bytes)
{
	uint64_t bytes = 0;

	parse_size(state, OPT_FRAGMENT, arg, &bytes);
	if (bytes > UINT32_MAX)
		bad_argument(state, "fragment", arg, "a size below 4GiB");
	*ret_bytes = (uint32_t)bytes;
}

static void parse_populate(struct argp_state *state, const char *arg, bool *ret_require)
{
	if (strcmp(arg, "require") != 0 && strcmp(arg, "try") != 0)
		bad_argument(state, "populate", arg, "require or try");
	*ret_require = strcmp(arg, "require") == 0;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct kvb_arguments *arguments = state->input;
	struct kvb_server_options *options = &arguments->options;
	uint32_t number = 0;

	switch (key) {
	case OPT_DIR:
		options->dir = arg;
		return 0;
	case OPT_POOL:
		parse_size(state, key, arg, &options->pool_bytes);
		return 0;
	case OPT_STAGING:
		parse_size(state, key, arg, &options->staging_bytes);
		return 0;
	case OPT_MAX_OPEN:
		parse_size(state, key, arg, &options->open_max);
		return 0;
	case OPT_FRAGMENT:
		parse_fragment(state, arg, &options->fragment_bytes);
		return 0;
	case OPT_WORKERS:
		parse_count(state, key, arg, KVB_WORKERS_MAX, &options->workers);
		return 0;
	case OPT_SPIN:
		parse_spin(state, arg, &options->spin_us);
		return 0;
	case OPT_RING_ENTRIES:
		parse_count(state, key, arg, UINT32_MAX, &options->ring_entries);
		return 0;
	case OPT_MAX_SESSIONS:
		parse_count(state, key, arg, UINT32_MAX, &options->sessions_max);
		return 0;
	case OPT_MAX_OBJECTS:
		parse_count(state, key, arg, UINT32_MAX, &options->objects_max);
		return 0;
	case OPT_LEASE_CELLS:
		parse_count(state, key, arg, UINT32_MAX, &options->lease_cells);
		return 0;
	case OPT_LOW_WATERMARK:
		parse_count(state, key, arg, 100, &options->low_percent);
		return 0;
	case OPT_HIGH_WATERMARK:
		parse_count(state, key, arg, 100, &options->high_percent);
		return 0;
	case OPT_TRANSFER_TIMEOUT:
		parse_time(state, key, arg, &options->transfer_timeout_ms);
		return 0;
	case OPT_DRAIN_TIMEOUT:
		parse_time(state, key, arg, &options->drain_timeout_ms);
		return 0;
	case OPT_START_WAIT:
		parse_time(state, key, arg, &options->start_wait_ms);
		return 0;
	case OPT_TRUST_UID:
		parse_id(state, key, arg, &options->trust_uids);
		return 0;
	case OPT_TRUST_GID:
		parse_id(state, key, arg, &options->trust_gids);
		return 0;
	case OPT_ALLOW_UID:
		parse_id(state, key, arg, &options->allow_uids);
		return 0;
	case OPT_ALLOW_GID:
		parse_id(state, key, arg, &options->allow_gids);
		return 0;
	case OPT_LOG_LEVEL:
		parse_level(state, arg, &options->log.level);
		return 0;
	case OPT_POPULATE:
		parse_populate(state, arg, &options->populate_require);
		return 0;
	case OPT_READY_FD:
		parse_count(state, key, arg, 1u << 20, &number);
		arguments->ready_fd = (int)number;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "\"%s\": kvbelld takes options only", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

const struct argp kvb_arguments_argp = {option_table, parse_option, NULL, doc, NULL, NULL, NULL};

void kvb_arguments_init(struct kvb_arguments *arguments)
{
	*arguments = (struct kvb_arguments){.ready_fd = -1};
	kvb_server_options_init(&arguments->options, sizeof(arguments->options));
}
