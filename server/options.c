/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - defaults and limits of what an operator, or an embedding program, may ask for.
 *
 * Owns nothing; runs in the thread that starts the server. It must never change a value silently:
 * what does not fit is an error that names the option.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
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
#define LEASES_MIN    8u
#define LEASES_MAX    65536u
#define OBJECTS_MIN   1024u
#define OBJECTS_MAX   (64u * 1024u * 1024u)
#define OBJECT_GUESS  (64 * KVB_KIB)
#define WORKERS_GUESS 8u

/* Door, pidfd, segment, kick and bell of each session; sockets, epoll sets, memfds and ZMQ's
 * own, the connections without HELLO and one control connection per session. */
#define FILES_PER_SESSION 6u
#define FILES_BASE        192u

void kvb_server_options_init(struct kvb_server_options *options, size_t size)
{
	const struct kvb_server_options defaults = {
		.size = size,
		.pool_bytes = KVB_GIB,
		.staging_bytes = 8 * KVB_MIB,
		.fragment_bytes = 512 * 1024,
		.ring_entries = 256,
		.sessions_max = 256,
		.low_percent = 90,
		.high_percent = 95,
		.transfer_timeout_ms = 30000,
		.drain_timeout_ms = 10000,
		.start_wait_ms = 30000,
		.lease_cells = 1024,
		.cancel_fd = -1,
		.log = {.level = KVB_LOG_INFO},
	};

	/* A program built with another header knows fewer members, or more. */
	memset(options, 0, size);
	memcpy(options, &defaults, kvb_min_u64(size, sizeof(defaults)));
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

static void fill_defaults(struct kvb_server_options *options)
{
	if (options->workers == 0)
		options->workers = default_workers();
	if (options->objects_max == 0)
		options->objects_max = (uint32_t)kvb_min_u64(
			kvb_max_u64(options->pool_bytes / OBJECT_GUESS, OBJECTS_MIN), OBJECTS_MAX);
	if (options->open_max == 0)
		options->open_max = options->pool_bytes / 2;
	if (options->watchdog_signal == 0)
		options->watchdog_signal = SIGRTMIN + 7;
}

static int refuse(const struct kvb_server_options *options, const char *text)
{
	kvb_log(&options->log, KVB_LOG_ERR, "%s", text);
	return -EINVAL;
}

static int check_memory(struct kvb_server_options *options)
{
	options->pool_bytes = kvb_round_up(options->pool_bytes, 4096);
	options->staging_bytes = kvb_round_up(options->staging_bytes, 4096);
	if (options->pool_bytes < POOL_MIN)
		return refuse(options, "pool_bytes (--pool) must be at least 1 MiB");
	if (options->fragment_bytes < FRAGMENT_MIN || options->fragment_bytes > FRAGMENT_MAX ||
		options->fragment_bytes % KVB_LINE != 0)
		return refuse(options,
			"fragment_bytes (--fragment) must be from 4 KiB to 64 MiB and a multiple of 128 bytes");
	if (options->staging_bytes < 2ull * options->fragment_bytes ||
		options->staging_bytes > STAGING_MAX)
		return refuse(
			options, "staging_bytes (--staging) must be from two fragments to 4 GiB");
	return 0;
}

static int check_counts(const struct kvb_server_options *options)
{
	if (options->ring_entries < RING_MIN || options->ring_entries > RING_MAX ||
		!kvb_is_power_of_two(options->ring_entries))
		return refuse(options,
			"ring_entries (--ring-entries) must be a power of two from 8 to 4096");
	if (options->sessions_max < 1 || options->sessions_max > SESSIONS_MAX)
		return refuse(options, "sessions_max (--max-sessions) must be from 1 to 16384");
	if (options->objects_max < 1 || options->objects_max > OBJECTS_MAX)
		return refuse(options, "objects_max (--max-objects) must be from 1 to 67108864");
	if (options->lease_cells < LEASES_MIN || options->lease_cells > LEASES_MAX)
		return refuse(options, "lease_cells (--lease-cells) must be from 8 to 65536");
	if (options->workers > KVB_WORKERS_MAX)
		return refuse(options, "workers (--workers) must be from 1 to 256");
	if (options->low_percent < 1 || options->low_percent > options->high_percent ||
		options->high_percent > 100)
		return refuse(options,
			"the watermarks must be 1 <= --low-watermark <= --high-watermark <= 100");
	if (options->drain_timeout_ms < 100)
		return refuse(options, "drain_timeout_ms (--drain-timeout) must be at least 100ms");
	if (options->spin_us > KVB_SPIN_US_MAX)
		return refuse(options, "spin_us (--spin-us) must be at most 1000000");
	if (options->transfer_timeout_ms < 100)
		return refuse(
			options, "transfer_timeout_ms (--transfer-timeout) must be at least 100ms");
	return 0;
}

/* libzmq aborts the process when it meets the limit of open files, so it must be out of reach. */
int kvb_options_check_files(const struct kvb_server_options *options)
{
	uint64_t need = FILES_BASE + (uint64_t)options->sessions_max * FILES_PER_SESSION;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return -errno;
	if (limit.rlim_cur >= need)
		return 0;
	kvb_log(&options->log, KVB_LOG_ERR,
		"%u sessions may need %llu open files and the limit is %llu; raise it (ulimit "
		"-n), or lower sessions_max (--max-sessions)",
		options->sessions_max, (unsigned long long)need,
		(unsigned long long)limit.rlim_cur);
	return -EMFILE;
}

int kvb_options_check(struct kvb_server_options *options)
{
	int r;

	fill_defaults(options);
	r = check_memory(options);
	return r < 0 ? r : check_counts(options);
}
