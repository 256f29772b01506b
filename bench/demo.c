/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demo.c - the main job: engines that share KV-cache chunks through one server.
 *
 * The parent starts a server and the engines, shows how far they are, and reports. Each engine is a
 * process with a client of its own that replays requests: it looks up the longest known prefix,
 * loads and verifies its chunks, both without a message, and stores the missing ones. Which request
 * is next goes from engine to engine as a token in a pipe, so that a dead engine leaves the others
 * blocked and not wrong; the parent then ends them.
 *
 * It must never call a byte right that it has not compared, and never leave a process, a socket or
 * a directory behind.
 */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/pattern.h"
#include "bench/report.h"
#include "bench/server.h"
#include "bench/workload.h"
#include "client/full.h"
#include "client/terminal.h"
#include "kvbell/kvbell.h"
#include "shm/atomic.h"
#include "shm/parse.h"
#include "shm/util.h"

#define ENGINES_MAX 64u
#define EXIT_USAGE  2
#define PROGRESS_MS 100
#define SHOWN_MAX   10 /* mismatches of one engine that are named */
#define POOL_WAIT   (200 * KVB_NS_PER_MS)
#define CHUNK_MAX   (192 * KVB_MIB)

struct demo {
	const char *trace;
	const char *pool;
	const char *program;
	uint64_t chunk_bytes;
	uint64_t requests;
	uint64_t engines;
	uint64_t seed;
	bool ordered;
	bool json;
	struct kvb_workload workload;
	struct kvb_own_server server;
	struct shared *shared;
	int token[2]; /* pipe */
	pid_t pids[ENGINES_MAX];
};

/* What engines and parent see of each other. */
struct shared {
	uint64_t done; /* atomic: requests */
	struct kvb_demo_result results[ENGINES_MAX];
};

/* -------------------------------------------------------------------------------------------- an engine */

struct engine {
	const struct demo *demo;
	struct kvb_client *client;
	struct kvb_demo_result *result;
	uint8_t *data;
};

static size_t key_of(uint64_t chunk, char *key, size_t size)
{
	return (size_t)snprintf(key, size,
		"kvbell-demo@meta-llama/Llama-3.1-8B-Instruct@1@0@bfloat16@256@%016llx",
		(unsigned long long)chunk);
}

static int fail(const char *what, uint64_t chunk, int error)
{
	fprintf(stderr, "kvbell-demo: %s of chunk %llu: %s\n", what, (unsigned long long)chunk,
		kvb_strerror(error));
	return error;
}

/* 1; 0; -errno. */
static int engine_exists(struct engine *engine, uint64_t chunk)
{
	char key[128];
	size_t key_len = key_of(chunk, key, sizeof(key));
	uint64_t start = kvb_now_ns();
	int r = kvb_exists(engine->client, key, key_len, NULL);

	kvb_histogram_add(&engine->result->took[KVB_DEMO_EXISTS], kvb_now_ns() - start);
	if (r < 0 && r != -ENOENT)
		return fail("exists", chunk, r);
	return r == 0;
}

/* 1; 0 it is gone; -errno. */
static int engine_load(struct engine *engine, uint64_t chunk)
{
	char key[128];
	size_t key_len = key_of(chunk, key, sizeof(key));
	size_t len = 0;
	uint64_t start = kvb_now_ns();
	int r = kvb_get(
		engine->client, key, key_len, engine->data, engine->demo->chunk_bytes, &len);

	kvb_histogram_add(&engine->result->took[KVB_DEMO_GET], kvb_now_ns() - start);
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return fail("get", chunk, r);
	engine->result->moved_bytes += len;
	if (len != engine->demo->chunk_bytes || !kvb_pattern_check(engine->data, len, chunk)) {
		if (engine->result->mismatches++ < SHOWN_MAX)
			fprintf(stderr, "kvbell-demo: chunk %llu has wrong bytes\n",
				(unsigned long long)chunk);
	}
	return 1;
}

static int engine_store(struct engine *engine, uint64_t chunk)
{
	char key[128];
	size_t key_len = key_of(chunk, key, sizeof(key));
	uint64_t start;
	int r;

	kvb_pattern_fill(engine->data, engine->demo->chunk_bytes, chunk);
	start = kvb_now_ns();
	/* Another engine may have stored it meanwhile; and what follows an evicted chunk may still be
	 * there. Then nothing is moved. */
	r = kvb_put_if_absent(
		engine->client, key, key_len, engine->data, engine->demo->chunk_bytes);
	if (r == -EEXIST) {
		engine->result->present++;
		return 0;
	}
	kvb_histogram_add(&engine->result->took[KVB_DEMO_PUT], kvb_now_ns() - start);
	if (r == -ENOSPC) {
		engine->result->unstored++;
		return 0;
	}
	if (r < 0)
		return fail("put", chunk, r);
	engine->result->stored++;
	engine->result->moved_bytes += engine->demo->chunk_bytes;
	return 0;
}

static int engine_request(struct engine *engine, size_t request)
{
	size_t count, known = 0, loaded = 0;
	const uint64_t *chunks = kvb_workload_request(&engine->demo->workload, request, &count);
	int r = 1;

	while (known < count && (r = engine_exists(engine, chunks[known])) > 0)
		known++;
	if (r < 0)
		return r;
	while (loaded < known && (r = engine_load(engine, chunks[loaded])) > 0)
		loaded++;
	if (r < 0)
		return r;
	engine->result->requests++;
	engine->result->asked += count;
	engine->result->found += loaded;
	engine->result->lost += known - loaded;
	/* What was evicted meanwhile is computed, and stored, again. */
	for (size_t i = loaded; i < count; i++) {
		r = engine_store(engine, chunks[i]);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Takes the token; the number of the request in it. */
static int take_token(const struct demo *demo, uint64_t *ret_request)
{
	ssize_t n;

	do {
		n = read(demo->token[0], ret_request, sizeof(*ret_request));
	} while (n < 0 && errno == EINTR);
	return n == sizeof(*ret_request) ? 0 : -EPIPE;
}

static int pass_token(const struct demo *demo, uint64_t request)
{
	return write(demo->token[1], &request, sizeof(request)) == sizeof(request) ? 0 : -EPIPE;
}

static int engine_loop(struct engine *engine)
{
	const struct demo *demo = engine->demo;
	uint64_t request = 0;
	int r;

	while ((r = take_token(demo, &request)) == 0 && request < demo->workload.n_requests) {
		/* In order, the next one begins when this one has stored. */
		if (!demo->ordered)
			r = pass_token(demo, request + 1);
		if (r == 0)
			r = engine_request(engine, request);
		if (r == 0 && demo->ordered)
			r = pass_token(demo, request + 1);
		if (r < 0)
			return r;
		kvb_count(&demo->shared->done, 1);
	}
	return r < 0 ? r : pass_token(demo, request);
}

static int engine_main(const struct demo *demo, unsigned number)
{
	struct engine engine = {.demo = demo, .result = &demo->shared->results[number]};
	struct kvb_options options = KVB_OPTIONS_INIT;
	char name[16];
	int r;

	snprintf(name, sizeof(name), "engine-%u", number);
	options.dir = demo->server.dir;
	options.name = name;
	engine.data = malloc(demo->chunk_bytes);
	if (!engine.data)
		return EXIT_FAILURE;
	r = kvb_open(&options, &engine.client);
	if (r < 0) {
		fprintf(stderr, "kvbell-demo: %s: %s\n", name, kvb_strerror(r));
		return EXIT_FAILURE;
	}
	r = engine_loop(&engine);
	kvb_close(engine.client);
	free(engine.data);
	/* A mismatch ends nothing: the parent counts them all and reports. */
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* -------------------------------------------------------------------------------------------- the parent */

static int start_engine(struct demo *demo, unsigned number)
{
	pid_t pid = fork();
	sigset_t none;

	if (pid < 0)
		return -errno;
	if (pid > 0) {
		demo->pids[number] = pid;
		return 0;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	_exit(engine_main(demo, number));
}

static void kill_engines(const struct demo *demo)
{
	for (unsigned i = 0; i < demo->engines; i++)
		if (demo->pids[i] > 0)
			kill(demo->pids[i], SIGKILL);
}

/* Collects engines that have ended. One that failed ends the others: it may have had the token. */
static void collect(struct demo *demo, unsigned *running, int *outcome)
{
	for (unsigned i = 0; i < demo->engines; i++) {
		int status;
		if (demo->pids[i] <= 0 || waitpid(demo->pids[i], &status, WNOHANG) <= 0)
			continue;
		demo->pids[i] = 0;
		(*running)--;
		if (*outcome < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS))
			continue;
		/* One that exited has said why. */
		if (WIFSIGNALED(status))
			fprintf(stderr, "kvbell-demo: engine-%u was ended by signal %d (%s)\n", i,
				WTERMSIG(status), strsignal(WTERMSIG(status)));
		*outcome = -EIO;
		kill_engines(demo);
	}
}

static void show(const struct demo *demo, struct kvb_progress *progress)
{
	uint64_t done = kvb_load_relaxed(&demo->shared->done);
	char detail[64];

	if (!kvb_progress_due(progress))
		return;
	snprintf(detail, sizeof(detail), "%llu of %zu requests", (unsigned long long)done,
		demo->workload.n_requests);
	kvb_progress_draw(progress, done, demo->workload.n_requests, detail);
}

/* 0; -EINTR somebody wants to leave; -EIO an engine failed. */
static int wait_engines(struct demo *demo, const sigset_t *signals)
{
	const struct timespec pause = {.tv_nsec = PROGRESS_MS * (long)KVB_NS_PER_MS};
	unsigned running = (unsigned)demo->engines;
	struct kvb_progress progress;
	int outcome = 0;

	kvb_progress_init(&progress, "demo");
	while (running > 0) {
		int signal = sigtimedwait(signals, NULL, &pause);
		if (signal == SIGINT || signal == SIGTERM) {
			outcome = -EINTR;
			kill_engines(demo);
		}
		collect(demo, &running, &outcome);
		show(demo, &progress);
	}
	kvb_progress_clear(&progress);
	return outcome;
}

static int see_counter(void *user, const struct kvb_stat *stat)
{
	struct kvb_demo_report *report = user;

	if (strcmp(stat->name, "store.evicted") == 0)
		report->evicted = stat->value;
	else if (strcmp(stat->name, "ops.gets") == 0 || strcmp(stat->name, "ops.get_misses") == 0)
		report->asked += stat->value;
	return 0;
}

static int open_client(const struct demo *demo, struct kvb_client **ret_client)
{
	struct kvb_options options = KVB_OPTIONS_INIT;

	options.dir = demo->server.dir;
	options.name = "demo";
	return kvb_open(&options, ret_client);
}

/* A pool that still grows would evict what it will have room for. The client is closed again
 * before the engines are forked, since none survives a fork. */
static int wait_for_pool(const struct demo *demo)
{
	struct kvb_progress progress;
	struct kvb_client *client;
	uint64_t start_ns;
	int r = open_client(demo, &client);

	if (r < 0)
		return r;
	kvb_progress_init(&progress, "pool");
	do {
		start_ns = kvb_now_ns();
		r = kvb_wait_full(client, start_ns + POOL_WAIT, &progress);
		if (r == -ETIMEDOUT && kvb_leave_wanted())
			r = -EINTR;
		/* A server that does not answer takes far longer than the wait to say so. */
	} while (r == -ETIMEDOUT && kvb_now_ns() - start_ns < 10 * POOL_WAIT);
	kvb_progress_clear(&progress);
	kvb_close(client);
	return r;
}

/* What the server did, and was spared. */
static int see_server(const struct demo *demo, struct kvb_demo_report *report)
{
	struct kvb_info info = {0};
	struct kvb_client *client;
	int r = open_client(demo, &client);

	if (r < 0)
		return r;
	r = kvb_stats(client, see_counter, report);
	if (r == 0)
		r = kvb_get_info(client, &info);
	report->reads = info.reads;
	kvb_close(client);
	return r;
}

static int run_engines(struct demo *demo, const sigset_t *signals, struct kvb_demo_report *report)
{
	uint64_t start_ns = kvb_now_ns();
	int r = pass_token(demo, 0);

	for (unsigned i = 0; i < demo->engines && r == 0; i++)
		r = start_engine(demo, i);
	if (r < 0)
		kill_engines(demo);
	else
		r = wait_engines(demo, signals);
	report->wall_ns = kvb_now_ns() - start_ns;
	report->engines = (unsigned)demo->engines;
	report->ordered = demo->ordered;
	for (unsigned i = 0; i < demo->engines; i++)
		kvb_demo_result_merge(&report->all, &demo->shared->results[i]);
	return r;
}

static int run_demo(struct demo *demo, struct kvb_demo_report *report)
{
	sigset_t signals;
	int status;
	int r;

	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	demo->shared = mmap(NULL, sizeof(*demo->shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (demo->shared == MAP_FAILED || pipe(demo->token) < 0)
		return -errno;
	r = kvb_own_server_start(&demo->server,
		&(struct kvb_own_server_options){.program = demo->program, .pool = demo->pool});
	if (r < 0)
		return r;
	r = wait_for_pool(demo);
	if (r == 0)
		r = run_engines(demo, &signals, report);
	if (r == 0)
		r = see_server(demo, report);
	status = kvb_own_server_stop(&demo->server);
	if (status != 0)
		fprintf(stderr, "kvbell-demo: the server ended with status %d\n", status);
	munmap(demo->shared, sizeof(*demo->shared));
	return r == 0 && status != 0 ? -EIO : r;
}

/* ------------------------------------------------------------------------------------------ command line */

enum {
	OPT_TRACE = 't',
	OPT_REQUESTS = 'n',
	OPT_CHUNK = 'c',
	OPT_POOL = 'p',
	OPT_ENGINES = 'e',
	OPT_ORDERED = 'o',
	OPT_SEED = 's',
	OPT_JSON = 'j',
	OPT_SERVER = 256,
};

static const struct argp_option options[] = {
	{"trace", OPT_TRACE, "FILE", 0,
		"Replay this trace: JSON lines, of which \"hash_ids\" counts (generated conversations)",
		0},
	{"requests", OPT_REQUESTS, "N", 0, "How many requests (600)", 0},
	{"chunk", OPT_CHUNK, "SIZE", 0, "Payload of a chunk (1MiB)", 0},
	{"pool", OPT_POOL, "SIZE", 0, "The server's pool (768MiB)", 0},
	{"engines", OPT_ENGINES, "N", 0, "Engine processes (2)", 0},
	{"ordered", OPT_ORDERED, NULL, 0, "A request begins after the one before has stored", 0},
	{"seed", OPT_SEED, "N", 0, "Other conversations (1)", 0},
	{"json", OPT_JSON, NULL, 0, "Report in JSON", 0},
	{"server", OPT_SERVER, "PATH", 0, "The kvbelld to start (this build's)", 0},
	{NULL, 0, NULL, 0, NULL, 0},
};

static void parse_number(struct argp_state *state, const char *name, const char *arg, uint64_t min,
	uint64_t max, uint64_t *ret_number)
{
	if (kvb_parse_number(arg, min, max, ret_number) < 0)
		argp_error(state, "--%s: \"%s\" is not a number from %llu to %llu", name, arg,
			(unsigned long long)min, (unsigned long long)max);
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct demo *demo = state->input;

	switch (key) {
	case OPT_TRACE:
		demo->trace = arg;
		return 0;
	case OPT_REQUESTS:
		parse_number(state, "requests", arg, 1, 1000000000, &demo->requests);
		return 0;
	case OPT_CHUNK:
		if (kvb_parse_size(arg, &demo->chunk_bytes) < 0 || demo->chunk_bytes == 0 ||
			demo->chunk_bytes > CHUNK_MAX)
			argp_error(state, "--chunk: \"%s\" is not a size up to 192MiB", arg);
		return 0;
	case OPT_POOL:
		demo->pool = arg;
		return 0;
	case OPT_ENGINES:
		parse_number(state, "engines", arg, 1, ENGINES_MAX, &demo->engines);
		return 0;
	case OPT_ORDERED:
		demo->ordered = true;
		return 0;
	case OPT_SEED:
		parse_number(state, "seed", arg, 0, UINT64_MAX, &demo->seed);
		return 0;
	case OPT_JSON:
		demo->json = true;
		return 0;
	case OPT_SERVER:
		demo->program = arg;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "\"%s\": the demo takes options only", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int make_workload(struct demo *demo)
{
	size_t line = 0;
	int r;

	if (!demo->trace)
		return kvb_workload_generate(demo->seed, demo->requests, &demo->workload);
	r = kvb_workload_read(demo->trace, demo->requests, &demo->workload, &line);
	if (r == -EBADMSG)
		fprintf(stderr,
			"kvbell-demo: %s:%zu: not a JSON object with an array of numbers \"hash_ids\"\n",
			demo->trace, line);
	else if (r < 0)
		fprintf(stderr, "kvbell-demo: %s: %s\n", demo->trace, strerror(-r));
	if (r == 0 && demo->workload.n_requests == 0) {
		fprintf(stderr, "kvbell-demo: %s: there is no request in it\n", demo->trace);
		r = -ENODATA;
	}
	return r;
}

static const char doc[] =
	"kvbell-demo - engines that share KV-cache chunks through one kvbelld: each request looks up its "
	"longest known prefix, loads and verifies those chunks, and stores the missing ones.";

int main(int argc, char **argv)
{
	static const struct argp argp = {options, parse_option, NULL, doc, NULL, NULL, NULL};
	struct demo demo = {
		.pool = "768MiB", .chunk_bytes = KVB_MIB, .requests = 600, .engines = 2, .seed = 1};
	static struct kvb_demo_report report;
	int r;

	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &demo);
	if (make_workload(&demo) < 0)
		return EXIT_FAILURE;
	r = run_demo(&demo, &report);
	kvb_workload_free(&demo.workload);
	if (r == -EINTR)
		fprintf(stderr, "kvbell-demo: interrupted\n");
	else if (r == -ECHILD)
		fprintf(stderr, "kvbell-demo: the server did not start; see --server and --pool\n");
	else if (r < 0 && r != -EIO) /* what failed with -EIO has said so */
		fprintf(stderr, "kvbell-demo: failed: %s\n", kvb_strerror(r));
	if (r < 0)
		return EXIT_FAILURE;
	r = demo.json ? kvb_demo_report_json(&report) : kvb_demo_report_print(&report);
	return r < 0 || report.all.mismatches ? EXIT_FAILURE : EXIT_SUCCESS;
}
