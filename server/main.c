/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvbelld: the command line, the signals, the exit status.
 *
 * Runs in the main thread, which blocks the signals before any other exists and reads them from a
 * descriptor. It must never close or free anything when the server is stuck: threads may still use
 * it, and the kernel clears up after _exit().
 */
#include <argp.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "server/server.h"
#include "shm/atomic.h"
#include "shm/parse.h"
#include "shm/util.h"

enum exit_status {
	EXIT_USAGE = 2,
	EXIT_STUCK = 3,
	EXIT_AT_ONCE = 4,
};

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

struct arguments {
	struct kvb_server_options options;
	int ready_fd;
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

const char *argp_program_version = "kvbelld " KVB_SERVER_VERSION;

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
	struct arguments *arguments = state->input;
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

/* The hard limit is what the operator allows; whether it suffices is the server's check. */
static int raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return -errno;
	limit.rlim_cur = limit.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? -errno : 0;
}

static void protect_memory(void)
{
	/* The leak checker attaches to its own process. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(KVB_TSAN)
	/* Seals keep clients from writing into the pool; /proc/pid/mem and ptrace go around seals. */
	prctl(PR_SET_DUMPABLE, 0);
#endif
}

static int open_signals(int *ret_fd)
{
	sigset_t set;
	int fd;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	signal(SIGPIPE, SIG_IGN);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

static void say_ready(const struct arguments *arguments, const char *dir)
{
	static const char ready[] = "ready\n";
	int fd = arguments->ready_fd;

	kvb_log(&arguments->options.log, KVB_LOG_INFO, "ready in %s", dir);
	if (fd < 0)
		return;
	if (write(fd, ready, strlen(ready)) != (ssize_t)strlen(ready))
		kvb_log(&arguments->options.log, KVB_LOG_WARN, "cannot write to --ready-fd %d: %s",
			fd, strerror(errno));
	close(fd);
}

/* The first signal drains; a second one leaves at once. */
static void take_signal(struct kvb_server *server, int signal_fd, bool *draining)
{
	struct signalfd_siginfo info;

	if (read(signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
		return;
	if (*draining) {
		kvb_log(&server->log, KVB_LOG_WARN, "second signal: leaving at once");
		_exit(EXIT_AT_ONCE);
	}
	*draining = true;
	kvb_log(&server->log, KVB_LOG_INFO, "%s: stopping",
		info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
	kvb_server_stop_begin(server);
}

static int run(struct kvb_server *server, int signal_fd)
{
	struct pollfd fds[] = {
		{.fd = signal_fd, .events = POLLIN},
		{.fd = kvb_server_stop_fd(server), .events = POLLIN},
	};
	bool draining = false;
	int fault;

	while (poll(fds, KVB_ARRAY_SIZE(fds), -1) >= 0 || errno == EINTR) {
		if (fds[1].revents)
			break;
		if (fds[0].revents)
			take_signal(server, signal_fd, &draining);
	}
	if (kvb_server_stop_wait(server) < 0) {
		kvb_log(&server->log, KVB_LOG_ERR,
			"work is stuck at the drain deadline: leaving with its descriptors open");
		_exit(EXIT_STUCK);
	}
	fault = kvb_load_relaxed(&server->fault);
	kvb_log(&server->log, KVB_LOG_INFO, "stopped");
	kvb_server_free(server);
	return fault ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	static const struct argp argp = {option_table, parse_option, NULL, doc, NULL, NULL, NULL};
	struct arguments arguments = {.ready_fd = -1};
	struct kvb_server_options *options = &arguments.options;
	struct kvb_server *server;
	int signal_fd = -1, status;
	int r;

	kvb_server_options_init(options, sizeof(*options));
	options->log = (struct kvb_log){
		.level = KVB_LOG_INFO, .fn = kvb_log_to_stderr, .user = (void *)"kvbelld"};
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &arguments);
	protect_memory();
	r = raise_file_limit();
	if (r == 0)
		r = open_signals(&signal_fd);
	if (r < 0) {
		kvb_log(&options->log, KVB_LOG_ERR, "cannot set up the process: %s", strerror(-r));
		return EXIT_FAILURE;
	}
	options->cancel_fd = signal_fd;
	r = kvb_server_new(options, &server);
	if (r < 0)
		return r == -EINVAL ? EXIT_USAGE : EXIT_FAILURE;
	r = kvb_server_start(server);
	if (r < 0) {
		kvb_server_free(server);
		if (r == -EINTR)
			kvb_log(&options->log, KVB_LOG_INFO, "stopped before it was ready");
		return r == -EINTR ? EXIT_SUCCESS : EXIT_FAILURE;
	}
	say_ready(&arguments, server->dir);
	status = run(server, signal_fd);
	close(signal_fd);
	return status;
}
