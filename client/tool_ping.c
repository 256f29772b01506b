/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool_ping.c - ping: does the server answer, how fast, and is it all there yet.
 *
 * Main thread. It must never wait beyond --wait-timeout.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/full.h"
#include "client/tool.h"
#include "shm/parse.h"
#include "shm/util.h"

#define WAIT_TIMEOUT_MS 60000
#define WAIT_POLL_MS    50
#define OPEN_TIMEOUT_MS 30000

enum { OPT_COUNT = 'c', OPT_CONTROL = 256, OPT_WAIT, OPT_WAIT_TIMEOUT };

const struct argp_option kvb_ping_options[] = {
	{"count", OPT_COUNT, "N", 0, "How many pings (1)", 0},
	{"control", OPT_CONTROL, NULL, 0, "Through the ZMQ control socket instead of the ring", 0},
	{"wait", OPT_WAIT, "door|full", 0,
		"First wait until the server lets clients in, or until all of its pool is there",
		0},
	{"wait-timeout", OPT_WAIT_TIMEOUT, "TIME", 0, "For how long (60s)", 0},
	{NULL, 0, NULL, 0, NULL, 0},
};

error_t kvb_ping_parse(int key, char *arg, struct argp_state *state)
{
	struct kvb_tool *tool = state->input;

	switch (key) {
	case OPT_COUNT:
		if (kvb_parse_number(arg, 1, 1000000000, &tool->ping.count) < 0)
			argp_error(state, "--count: \"%s\" is not a number from 1", arg);
		return 0;
	case OPT_CONTROL:
		tool->ping.control = true;
		return 0;
	case OPT_WAIT:
		if (strcmp(arg, "door") == 0)
			tool->ping.wait = KVB_WAIT_DOOR;
		else if (strcmp(arg, "full") == 0)
			tool->ping.wait = KVB_WAIT_FULL;
		else
			argp_error(state, "--wait: \"%s\" is neither door nor full", arg);
		return 0;
	case OPT_WAIT_TIMEOUT:
		if (kvb_parse_duration(arg, &tool->ping.wait_timeout_ms) < 0 ||
			tool->ping.wait_timeout_ms == 0)
			argp_error(state, "--wait-timeout: \"%s\" is not a time such as 10s", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* --timeout, cut to what is left of the wait: a server may listen and never answer. */
static uint32_t open_timeout(const struct kvb_tool *tool, uint64_t deadline_ns)
{
	uint64_t timeout_ms = tool->timeout_ms ? tool->timeout_ms : OPEN_TIMEOUT_MS;
	uint64_t now = kvb_now_ns();
	uint64_t left_ms = deadline_ns > now ? (deadline_ns - now) / KVB_NS_PER_MS : 0;

	/* 0 would mean the library's default. */
	return (uint32_t)kvb_max_u64(kvb_min_u64(timeout_ms, left_ms), 1);
}

static int open_by(struct kvb_tool *tool, uint64_t deadline_ns)
{
	int r;

	for (;;) {
		r = kvb_tool_open(tool, open_timeout(tool, deadline_ns));
		/* Only these get better by waiting. */
		if (r != -ECONNREFUSED && r != -ESHUTDOWN && r != -ETIMEDOUT)
			return r;
		if (kvb_now_ns() + WAIT_POLL_MS * KVB_NS_PER_MS >= deadline_ns)
			return r;
		poll(NULL, 0, WAIT_POLL_MS);
	}
}

struct times {
	uint64_t least, most, sum;
};

static int ping_all(struct kvb_tool *tool, uint64_t count, struct times *ret_times)
{
	struct times times = {.least = UINT64_MAX};

	for (uint64_t i = 0; i < count; i++) {
		uint64_t start = kvb_now_ns(), took;
		int r = tool->ping.control ? kvb_ping_control(tool->client)
					   : kvb_ping(tool->client);
		if (r < 0)
			return r;
		took = kvb_now_ns() - start;
		times.least = kvb_min_u64(times.least, took);
		times.most = kvb_max_u64(times.most, took);
		times.sum += took;
	}
	*ret_times = times;
	return 0;
}

static int print_times(const struct kvb_tool *tool, uint64_t count, const struct times *times)
{
	double least = (double)times->least / 1e3, most = (double)times->most / 1e3;
	double mean = (double)times->sum / 1e3 / (double)count;
	int r;

	if (tool->json) {
		r = kvb_output_json(json_pack("{s:i, s:I, s:f, s:f, s:f, s:s}", "schema",
			KVB_TOOL_SCHEMA, "count", (json_int_t)count, "min_us", least, "mean_us",
			mean, "max_us", most, "through", tool->ping.control ? "control" : "ring"));
		return r < 0 ? kvb_tool_failed(tool, r) : EXIT_SUCCESS;
	}
	printf("the server answers through the %s: %" PRIu64 " ping%s, %.1f us",
		tool->ping.control ? "control socket" : "ring", count, count == 1 ? "" : "s", mean);
	if (count > 1)
		printf(" on average, %.1f to %.1f us", least, most);
	putchar('\n');
	r = kvb_output_check();
	return r < 0 ? kvb_tool_failed(tool, r) : EXIT_SUCCESS;
}

int kvb_tool_ping(struct kvb_tool *tool)
{
	uint64_t count = tool->ping.count ? tool->ping.count : 1;
	uint32_t wait_ms =
		tool->ping.wait_timeout_ms ? tool->ping.wait_timeout_ms : WAIT_TIMEOUT_MS;
	uint64_t deadline_ns =
		tool->ping.wait == KVB_WAIT_NONE ? 0 : kvb_now_ns() + wait_ms * KVB_NS_PER_MS;
	struct times times = {0};
	int r = tool->ping.wait == KVB_WAIT_NONE ? kvb_tool_open(tool, tool->timeout_ms)
						 : open_by(tool, deadline_ns);

	if (r < 0)
		return kvb_tool_open_failed(tool, r);
	if (tool->ping.wait == KVB_WAIT_FULL)
		r = kvb_wait_full(tool->client, deadline_ns, &tool->progress);
	if (r == 0)
		r = ping_all(tool, count, &times);
	return r < 0 ? kvb_tool_failed(tool, r) : print_times(tool, count, &times);
}
