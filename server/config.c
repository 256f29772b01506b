/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.c - defaults and limits of what an operator may ask for.
 *
 * Owns nothing; runs in the thread that starts the server. It must never change a value silently:
 * what does not fit is an error that names the option.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "server/server.h"
#include "shm/parse.h"
#include "shm/util.h"

#define POOL_MIN      KVB_MIB
#define FRAGMENT_MIN  4096u
#define FRAGMENT_MAX  (64u * 1024u * 1024u)
#define STAGING_MAX   (4 * KVB_GIB)
#define RING_MIN      8u
#define RING_MAX      4096u
#define SESSIONS_MAX  16384u
#define OBJECTS_MIN   1024u
#define OBJECTS_MAX   (64u * 1024u * 1024u)
#define OBJECT_GUESS  (64 * KVB_KIB)
#define WORKERS_GUESS 8u

void kvb_server_config_init(struct kvb_server_config *config)
{
	*config = (struct kvb_server_config){
		.pool_bytes = KVB_GIB,
		.staging_bytes = 8 * KVB_MIB,
		.fragment_bytes = 256 * 1024,
		.ring_entries = 256,
		.sessions_max = 256,
		.low_percent = 90,
		.high_percent = 95,
		.transfer_timeout_ms = 30000,
		.drain_timeout_ms = 10000,
		.start_wait_ms = 30000,
		.cancel_fd = -1,
	};
}

static uint32_t default_workers(void)
{
	cpu_set_t set;
	uint32_t cpus = 2;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		cpus = (uint32_t)CPU_COUNT(&set);
	/* A copy is bound by memory, so more threads than this bring little. */
	return (uint32_t)kvb_min_u64(kvb_max_u64(cpus / 2, 2), WORKERS_GUESS);
}

static void fill_defaults(struct kvb_server_config *config)
{
	if (config->workers == 0)
		config->workers = default_workers();
	if (config->objects_max == 0)
		config->objects_max = (uint32_t)kvb_min_u64(
			kvb_max_u64(config->pool_bytes / OBJECT_GUESS, OBJECTS_MIN), OBJECTS_MAX);
	if (config->open_max == 0)
		config->open_max = config->pool_bytes / 2;
	if (config->watchdog_signal == 0)
		config->watchdog_signal = SIGRTMIN + 7;
}

static int refuse(const struct kvb_server_config *config, const char *text)
{
	kvb_log(&config->log, KVB_LOG_ERR, "%s", text);
	return -EINVAL;
}

static int check_memory(struct kvb_server_config *config)
{
	config->pool_bytes = kvb_round_up(config->pool_bytes, 4096);
	config->staging_bytes = kvb_round_up(config->staging_bytes, 4096);
	if (config->pool_bytes < POOL_MIN)
		return refuse(config, "--pool must be at least 1 MiB");
	if (config->fragment_bytes < FRAGMENT_MIN || config->fragment_bytes > FRAGMENT_MAX ||
		config->fragment_bytes % KVB_LINE != 0)
		return refuse(config,
			"--fragment must be from 4 KiB to 64 MiB and a multiple of 128 bytes");
	if (config->staging_bytes < 2ull * config->fragment_bytes ||
		config->staging_bytes > STAGING_MAX)
		return refuse(config, "--staging must be from two fragments to 4 GiB");
	return 0;
}

static int check_counts(const struct kvb_server_config *config)
{
	if (config->ring_entries < RING_MIN || config->ring_entries > RING_MAX ||
		!kvb_is_power_of_two(config->ring_entries))
		return refuse(config, "--ring-entries must be a power of two from 8 to 4096");
	if (config->sessions_max < 1 || config->sessions_max > SESSIONS_MAX)
		return refuse(config, "--max-sessions must be from 1 to 16384");
	if (config->objects_max < 1 || config->objects_max > OBJECTS_MAX)
		return refuse(config, "--max-objects must be from 1 to 67108864");
	if (config->workers > KVB_WORKERS_MAX)
		return refuse(config, "--workers must be from 1 to 256");
	if (config->low_percent < 1 || config->low_percent > config->high_percent ||
		config->high_percent > 100)
		return refuse(config,
			"the watermarks must be 1 <= --low-watermark <= --high-watermark <= 100");
	if (config->transfer_timeout_ms < 100)
		return refuse(config, "--transfer-timeout must be at least 100ms");
	return 0;
}

int kvb_server_config_check(struct kvb_server_config *config)
{
	int r;

	if (!config->dir)
		return refuse(config, "a server needs a runtime directory");
	fill_defaults(config);
	r = check_memory(config);
	return r < 0 ? r : check_counts(config);
}
