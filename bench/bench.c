/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.c - kvbell-bench: how fast kvbell is, beside what the machine can do at all.
 *
 * Owns the servers it starts, one at a time, each dying with it; main thread, which is the client.
 * It measures each figure in the same run as its limit and with the same pinning, and fails when a
 * pinning asked for did not happen.
 */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench/batch.h"
#include "bench/fairness.h"
#include "bench/limits.h"
#include "bench/placement.h"
#include "bench/reads.h"
#include "bench/results.h"
#include "bench/run.h"
#include "bench/server.h"
#include "kvbell/kvbell.h"
#include "shm/parse.h"
#include "shm/util.h"

#define SIZES_MAX   16u
#define KEYS_MIN    4u
#define SMALL_BYTES (64 * KVB_KIB) /* up to here the latency matters, beyond the bandwidth */
#define LIMIT_BYTES (32 * KVB_MIB)
#define IDLE_US     10000u
#define BATCH       64u

enum { EXIT_USAGE = 2 };
enum {
	OPT_SERVER_CPUS = 256,
	OPT_CLIENT_CPUS,
	OPT_NUMA_NODE,
	OPT_SPIN,
	OPT_SECONDS,
	OPT_SIZES,
	OPT_OBJECTS,
	OPT_JSON
};

struct bench {
	struct kvb_run run;
	cpu_set_t server_cpus, client_cpus;
	uint32_t spin_us;
	uint64_t sizes[SIZES_MAX];
	unsigned n_sizes;
	uint64_t objects[SIZES_MAX];
	unsigned n_objects;
	const char *suite; /* NULL: all */

	struct kvb_own_server server;
	struct kvb_client *client;
	uint8_t *payload; /* for each size as many bytes as its keys have together */
	uint64_t payload_bytes;
};

/* -------------------------------------------------------------------------------------- the command line */

static bool parse_payload(const char *text, uint64_t *ret_bytes)
{
	return kvb_parse_size(text, ret_bytes) == 0 && *ret_bytes >= 1 &&
		*ret_bytes <= 192 * KVB_MIB;
}

static bool parse_objects(const char *text, uint64_t *ret_objects)
{
	return kvb_parse_number(text, KVB_READS_OBJECTS_MIN, KVB_READS_OBJECTS_MAX, ret_objects) ==
		0;
}

static bool parse_seconds(const char *text, double *ret_seconds)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end || !(seconds >= 0.01 && seconds <= 600))
		return false;
	*ret_seconds = seconds;
	return true;
}

/* At most SIZES_MAX of them, with commas between. */
static bool parse_list(const char *list, bool (*parse)(const char *text, uint64_t *ret_value),
	uint64_t *ret_values, unsigned *ret_n)
{
	char text[32];

	*ret_n = 0;
	while (*list) {
		size_t len = strcspn(list, ",");
		if (len >= sizeof(text) || *ret_n == SIZES_MAX)
			return false;
		memcpy(text, list, len);
		text[len] = '\0';
		if (!parse(text, &ret_values[*ret_n]))
			return false;
		++*ret_n;
		list += len + (list[len] == ',');
	}
	return *ret_n > 0;
}

static const struct argp_option option_table[] = {
	{"server-cpus", OPT_SERVER_CPUS, "LIST", 0, "Pin the server, such as 0,2-3", 0},
	{"client-cpus", OPT_CLIENT_CPUS, "LIST", 0, "Pin the client", 0},
	{"numa-node", OPT_NUMA_NODE, "N", 0, "Bind the memory of both to a node", 0},
	{"spin-us", OPT_SPIN, "N", 0,
		"Spinning of both sides, for the names that end in .spin (1000)", 0},
	{"seconds", OPT_SECONDS, "N", 0, "Of each measurement (1)", 0},
	{"sizes", OPT_SIZES, "LIST", 0, "Payload sizes (4KiB,64KiB,1MiB,8MiB,32MiB)", 0},
	{"objects", OPT_OBJECTS, "LIST", 0, "Numbers of objects, for reads (1000,100000,1000000)",
		0},
	{"json", OPT_JSON, NULL, 0, "For programs", 0},
	{NULL, 0, NULL, 0, NULL, 0},
};

static void parse_cpus_of(
	struct bench *bench, bool is_server, const char *arg, struct argp_state *state)
{
	cpu_set_t *set = is_server ? &bench->server_cpus : &bench->client_cpus;

	if (!kvb_parse_cpus(arg, set))
		argp_error(state, "\"%s\" is not a list of CPUs such as 0,2-3", arg);
	*(is_server ? &bench->run.placement.server_cpus : &bench->run.placement.client_cpus) = set;
}

static bool is_suite(const char *text)
{
	static const char *const suites[] = {"limits", "latency", "bandwidth", "reads", "fairness"};

	for (size_t i = 0; i < KVB_ARRAY_SIZE(suites); i++)
		if (strcmp(text, suites[i]) == 0)
			return true;
	return false;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct bench *bench = state->input;
	uint64_t number = 0;

	switch (key) {
	case OPT_SERVER_CPUS:
	case OPT_CLIENT_CPUS:
		parse_cpus_of(bench, key == OPT_SERVER_CPUS, arg, state);
		return 0;
	case OPT_NUMA_NODE:
		if (kvb_parse_number(arg, 0, KVB_NODES_MAX - 1, &number) < 0)
			argp_error(state, "--numa-node: \"%s\" is not a number from 0 to %d", arg,
				KVB_NODES_MAX - 1);
		bench->run.placement.node = (int)number;
		return 0;
	case OPT_SPIN:
		if (kvb_parse_number(arg, 1, 1000000, &number) < 0)
			argp_error(
				state, "--spin-us: \"%s\" is not a number from 1 to 1000000", arg);
		bench->spin_us = (uint32_t)number;
		return 0;
	case OPT_SECONDS:
		if (!parse_seconds(arg, &bench->run.seconds))
			argp_error(
				state, "--seconds: \"%s\" is not a number from 0.01 to 600", arg);
		return 0;
	case OPT_SIZES:
		if (!parse_list(arg, parse_payload, bench->sizes, &bench->n_sizes))
			argp_error(state,
				"--sizes: \"%s\" is not a list of sizes from 1B to 192MiB", arg);
		return 0;
	case OPT_OBJECTS:
		if (!parse_list(arg, parse_objects, bench->objects, &bench->n_objects))
			argp_error(state,
				"--objects: \"%s\" is not a list of numbers from %u to %u", arg,
				KVB_READS_OBJECTS_MIN, KVB_READS_OBJECTS_MAX);
		return 0;
	case OPT_JSON:
		bench->run.quiet = true;
		return 0;
	case ARGP_KEY_ARG:
		if (state->arg_num > 0 || !is_suite(arg))
			argp_error(state,
				"\"%s\": give one of limits, latency, bandwidth, reads, fairness; or "
				"nothing, for all",
				arg);
		bench->suite = arg;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static bool wanted(const struct bench *bench, const char *suite)
{
	return !bench->suite || strcmp(bench->suite, suite) == 0;
}

/* ----------------------------------------------------------------------------------------------- limits */

/* "32MiB": a number that users type. */
static const char *size_name(uint64_t bytes, char *text, size_t size)
{
	if (bytes >= KVB_MIB && bytes % KVB_MIB == 0)
		snprintf(text, size, "%lluMiB", (unsigned long long)(bytes / KVB_MIB));
	else if (bytes >= KVB_KIB && bytes % KVB_KIB == 0)
		snprintf(text, size, "%lluKiB", (unsigned long long)(bytes / KVB_KIB));
	else
		snprintf(text, size, "%lluB", (unsigned long long)bytes);
	return text;
}

static int measure_latencies(struct bench *bench)
{
	static const struct {
		const char *name;
		kvb_limit_fn *fn;
		struct kvb_scale scale;
	} limits[] = {{"eventfd.rtt", kvb_limit_eventfd, {KVB_UNIT_US, 0}},
		{"cacheline.rtt", kvb_limit_cacheline, {KVB_UNIT_US, 0}},
		{"zmq.rtt", kvb_limit_zmq, {KVB_UNIT_US, 0}},
		{"dram.load", kvb_limit_dram, {KVB_UNIT_NS, 0}}};

	for (size_t i = 0; i < KVB_ARRAY_SIZE(limits); i++) {
		struct kvb_histogram took_ns = {0};
		int r;
		if (!kvb_run_begin(&bench->run, limits[i].name))
			continue;
		r = limits[i].fn(&bench->run.placement, bench->run.seconds, &took_ns);
		if (r < 0)
			return kvb_run_fail_machine(limits[i].name, r);
		kvb_run_add(&bench->run, limits[i].name, &took_ns, limits[i].scale, NULL);
	}
	return 0;
}

static int measure_copy(
	struct bench *bench, const char *kind, kvb_limit_copy_fn *fn, uint64_t bytes)
{
	struct kvb_histogram took_ns = {0};
	char name[48], text[24];
	int r;

	snprintf(name, sizeof(name), "%s.%s", kind, size_name(bytes, text, sizeof(text)));
	if (!kvb_run_begin(&bench->run, name))
		return 0;
	r = fn(&bench->run.placement, bytes, bench->run.seconds, &took_ns);
	if (r < 0)
		return kvb_run_fail_machine(name, r);
	kvb_run_add(&bench->run, name, &took_ns, KVB_SCALE_GBPS(bytes), NULL);
	return 0;
}

static int measure_copies(struct bench *bench, uint64_t bytes)
{
	int r = measure_copy(bench, "memcpy", kvb_limit_memcpy, bytes);

	return r < 0 ? r : measure_copy(bench, "ntcopy", kvb_limit_ntcopy, bytes);
}

static int measure_limits(struct bench *bench)
{
	int r = measure_latencies(bench);

	/* What the machine is known by, whatever sizes were asked for. */
	if (r == 0)
		r = measure_copies(bench, LIMIT_BYTES);
	for (unsigned i = 0; i < bench->n_sizes && r == 0; i++)
		if (bench->sizes[i] > SMALL_BYTES && bench->sizes[i] != LIMIT_BYTES)
			r = measure_copies(bench, bench->sizes[i]);
	return r;
}

/* ----------------------------------------------------------------------------------- one server, one client */

static int open_pair(struct bench *bench, uint32_t spin_us)
{
	struct kvb_own_server_options server = {.pool = "1GiB", .spin_us = spin_us};
	struct kvb_options options = KVB_OPTIONS_INIT;
	int r;

	if (bench->run.planning)
		return 0;
	options.spin_us = spin_us;
	/* What is measured here is the ring: nothing is read without asking, and no thread of the
	 * client maps the pool meanwhile. */
	options.flags = KVB_OPEN_RING_ONLY;
	r = kvb_run_serve(&bench->run, &server, &bench->server);
	return r < 0 ? r : kvb_run_connect(&bench->run, &bench->server, &options, &bench->client);
}

static void close_pair(struct bench *bench)
{
	if (bench->run.planning)
		return;
	kvb_close(bench->client);
	bench->client = NULL;
	(void)kvb_own_server_stop(&bench->server);
}

struct operation {
	int (*fn)(struct bench *bench, uint64_t bytes, unsigned turn);
	uint64_t bytes;
	unsigned idle_us; /* before each */
};

static int op_ping(struct bench *bench, uint64_t bytes, unsigned turn)
{
	(void)bytes;
	(void)turn;
	return kvb_ping(bench->client);
}

static int op_ping_control(struct bench *bench, uint64_t bytes, unsigned turn)
{
	(void)bytes;
	(void)turn;
	return kvb_ping_control(bench->client);
}

/* How many objects, and buffers, of a size are used by turns: so many that copies meet as cold memory as those
 * of the limits do. */
static unsigned keys_of(uint64_t bytes)
{
	if (bytes <= SMALL_BYTES)
		return KEYS_MIN;
	return (unsigned)kvb_max_u64(KVB_COLD_BYTES / bytes, KEYS_MIN);
}

static size_t key_of(uint64_t bytes, unsigned turn, char *key, size_t size)
{
	return (size_t)snprintf(
		key, size, "bench-%llu-%u", (unsigned long long)bytes, turn % keys_of(bytes));
}

static uint8_t *payload_of(const struct bench *bench, uint64_t bytes, unsigned turn)
{
	return bench->payload + (turn % keys_of(bytes)) * bytes;
}

static int op_put(struct bench *bench, uint64_t bytes, unsigned turn)
{
	char key[32];
	size_t n = key_of(bytes, turn, key, sizeof(key));

	return kvb_put(bench->client, key, n, payload_of(bench, bytes, turn), bytes);
}

static int op_get(struct bench *bench, uint64_t bytes, unsigned turn)
{
	char key[32];
	size_t n = key_of(bytes, turn, key, sizeof(key));

	return kvb_get(bench->client, key, n, payload_of(bench, bytes, turn), bytes, NULL);
}

static int measure(
	struct bench *bench, const struct operation *operation, const char *name, const char *limit)
{
	struct kvb_histogram took_ns = {0};
	bool is_small = operation->bytes <= SMALL_BYTES;
	/* The first rounds find pages and keys that are not there yet; those with gaps come after them. */
	unsigned warm_up = operation->idle_us > 0 ? 1 : keys_of(operation->bytes);
	uint64_t begin_ns = 0, now_ns = 0;

	if (!kvb_run_begin(&bench->run, name))
		return 0;
	for (unsigned turn = 0;
		turn < warm_up + KEYS_MIN || (double)(now_ns - begin_ns) < bench->run.seconds * 1e9;
		turn++) {
		uint64_t started_ns;
		int r;
		if (operation->idle_us > 0)
			usleep(operation->idle_us);
		if (kvb_leave_wanted())
			return -EINTR;
		started_ns = kvb_now_ns();
		r = operation->fn(bench, operation->bytes, turn);
		now_ns = kvb_now_ns();
		if (r < 0)
			return kvb_run_fail(name, r);
		if (turn < warm_up)
			begin_ns = now_ns;
		else
			kvb_histogram_add(&took_ns, now_ns - started_ns);
	}
	kvb_run_add(&bench->run, name, &took_ns,
		is_small ? KVB_SCALE_US : KVB_SCALE_GBPS(operation->bytes), limit);
	return 0;
}

/* ---------------------------------------------------------------------------------------------- latency */

static int measure_pings(struct bench *bench, bool spins)
{
	const struct operation ping = {.fn = op_ping}, control = {.fn = op_ping_control},
			       idle = {.fn = op_ping, .idle_us = IDLE_US};
	int r;

	if (spins)
		return measure(bench, &ping, "ping.ring.spin", "cacheline.rtt");
	r = measure(bench, &ping, "ping.ring.block", "eventfd.rtt");
	if (r == 0)
		r = measure(bench, &control, "ping.zmq", "zmq.rtt");
	if (r == 0)
		r = measure(bench, &idle, "ping.ring.idle", "eventfd.rtt");
	return r;
}

static int measure_size(struct bench *bench, uint64_t bytes, bool spins)
{
	const char *spin = spins ? ".spin" : "";
	struct operation put = {.fn = op_put, .bytes = bytes}, get = {.fn = op_get, .bytes = bytes};
	char name[48], limit[48], text[24];
	int r;

	size_name(bytes, text, sizeof(text));
	if (bytes <= SMALL_BYTES)
		snprintf(limit, sizeof(limit), "%s", spins ? "cacheline.rtt" : "eventfd.rtt");
	else
		snprintf(limit, sizeof(limit), "memcpy.%s", text);
	snprintf(name, sizeof(name), "put.%s.ring%s", text, spin);
	r = measure(bench, &put, name, limit);
	snprintf(name, sizeof(name), "get.%s.ring%s", text, spin);
	if (r == 0)
		r = measure(bench, &get, name, limit);
	if (r < 0 || spins)
		return r;
	put.idle_us = get.idle_us = IDLE_US;
	snprintf(name, sizeof(name), "put.%s.ring.idle", text);
	r = measure(bench, &put, name, limit);
	snprintf(name, sizeof(name), "get.%s.ring.idle", text);
	return r == 0 ? measure(bench, &get, name, limit) : r;
}

static int measure_zmq_put(struct bench *bench, uint64_t bytes)
{
	struct kvb_histogram took_ns = {0};
	char name[48], limit[48], text[24];
	int r;

	size_name(bytes, text, sizeof(text));
	snprintf(name, sizeof(name), "put.%s.zmq", text);
	if (!kvb_run_begin(&bench->run, name))
		return 0;
	r = kvb_limit_zmq_put(&bench->run.placement, bytes, bench->run.seconds, &took_ns);
	if (r < 0)
		return kvb_run_fail_machine(name, r);
	snprintf(limit, sizeof(limit), "memcpy.%s", text);
	kvb_run_add(&bench->run, name, &took_ns, KVB_SCALE_GBPS(bytes), limit);
	return 0;
}

/* A batch of the same keys and payloads as one by one, moved by so many threads; 0: the one that waits. */
static int measure_batch(struct bench *bench, uint64_t bytes, uint32_t movers)
{
	static char keys[BATCH][32];
	static struct kvb_item items[BATCH];
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_batch batch = {.items = items, .n = BATCH};
	char name[80], limit[48], text[24], suffix[24] = "";
	int r;

	size_name(bytes, text, sizeof(text));
	if (movers > 0)
		snprintf(suffix, sizeof(suffix), ".%umovers", movers);
	snprintf(name, sizeof(name), "put.%s.batch%s", text, suffix);
	snprintf(limit, sizeof(limit), "memcpy.%s", text);
	if (!kvb_run_begin(&bench->run, name))
		return 0;
	for (unsigned i = 0; i < BATCH; i++)
		items[i] = (struct kvb_item){.key = keys[i],
			.key_len = key_of(bytes, i, keys[i], sizeof(keys[i])),
			.data = payload_of(bench, bytes, i),
			.size = bytes};
	options.flags = KVB_OPEN_RING_ONLY;
	options.movers = movers;
	r = kvb_run_connect(&bench->run, &bench->server, &options, &batch.client);
	if (r < 0)
		return r;
	r = kvb_batch_measure(&bench->run, &batch, name, limit);
	kvb_close(batch.client);
	return r;
}

static int measure_batches(struct bench *bench, uint64_t bytes)
{
	int r = measure_batch(bench, bytes, 0);

	return r < 0 ? r : measure_batch(bench, bytes, 2);
}

/* With one kind of server: the pings, and the sizes that the suites ask for. */
static int measure_pair(struct bench *bench, bool spins)
{
	int r = open_pair(bench, spins ? bench->spin_us : 0);

	if (r == 0 && wanted(bench, "latency"))
		r = measure_pings(bench, spins);
	for (unsigned i = 0; i < bench->n_sizes && r == 0; i++)
		if (wanted(bench, bench->sizes[i] <= SMALL_BYTES ? "latency" : "bandwidth"))
			r = measure_size(bench, bench->sizes[i], spins);
	for (unsigned i = 0; i < bench->n_sizes && r == 0; i++)
		if (!spins && bench->sizes[i] > SMALL_BYTES && wanted(bench, "bandwidth"))
			r = measure_batches(bench, bench->sizes[i]);
	close_pair(bench);
	return r;
}

static int measure_kvbell(struct bench *bench)
{
	int r = measure_pair(bench, false);

	if (r == 0)
		r = measure_pair(bench, true);
	for (unsigned i = 0; i < bench->n_sizes && r == 0; i++)
		if (bench->sizes[i] > SMALL_BYTES && wanted(bench, "bandwidth"))
			r = measure_zmq_put(bench, bench->sizes[i]);
	return r;
}

/* --------------------------------------------------------------------------------------------- fairness */

/* What a small get may take beside a flood: another's fragment is being copied when it comes, and
 * one more when its session's turn is over. */
static double fairness_limit(
	const struct kvb_result *idle, const struct kvb_result *copy, uint32_t fragment_bytes)
{
	return idle->p99 + 2 * (double)fragment_bytes / copy->p50 / 1000;
}

static int report_fairness(
	struct bench *bench, const struct kvb_fairness *fairness, const char *suffix)
{
	const struct kvb_result *idle, *copy;
	char name[48], text[24];

	snprintf(name, sizeof(name), "memcpy.%s",
		size_name(fairness->fragment_bytes, text, sizeof(text)));
	if (!kvb_results_find(&bench->run.results, name)) {
		struct kvb_histogram took_ns = {0};
		int r = kvb_limit_memcpy(&bench->run.placement, fairness->fragment_bytes,
			bench->run.seconds, &took_ns);
		if (r < 0)
			return kvb_run_fail_machine(name, r);
		kvb_run_add(&bench->run, name, &took_ns, KVB_SCALE_GBPS(fairness->fragment_bytes),
			NULL);
	}
	copy = kvb_results_find(&bench->run.results, name);
	snprintf(name, sizeof(name), "fairness.put.64MiB%s", suffix);
	kvb_run_add(
		&bench->run, name, &fairness->flood_ns, KVB_SCALE_GBPS(KVB_FAIRNESS_FLOOD), NULL);
	snprintf(name, sizeof(name), "fairness.get.4KiB.idle%s", suffix);
	kvb_run_add(&bench->run, name, &fairness->idle_ns, KVB_SCALE_US, NULL);
	idle = kvb_results_find(&bench->run.results, name);
	snprintf(name, sizeof(name), "fairness.get.4KiB.flooded%s", suffix);
	if (idle && copy)
		kvb_results_add_tail(&bench->run.results, name, &fairness->flooded_ns,
			"idle + 2 fragments", fairness_limit(idle, copy, fairness->fragment_bytes),
			bench->run.quiet);
	return 0;
}

/* Through the ring, one worker shows the order of its queue, and two whether they stand in each other's
 * way. A client that reads locally asks neither. */
static int measure_fairness(struct bench *bench)
{
	static const struct {
		const char *suffix;
		uint32_t workers, flags;
	} kinds[] = {{"", 1, KVB_OPEN_RING_ONLY}, {".2workers", 2, KVB_OPEN_RING_ONLY},
		{".local", 1, 0}};

	for (size_t i = 0; i < KVB_ARRAY_SIZE(kinds); i++) {
		struct kvb_fairness fairness;
		int r;
		if (!kvb_run_begin(&bench->run, "fairness"))
			continue;
		r = kvb_fairness_measure(&bench->run.placement, kinds[i].workers, kinds[i].flags,
			bench->run.seconds, &fairness);
		if (r == 0)
			r = report_fairness(bench, &fairness, kinds[i].suffix);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ------------------------------------------------------------------------------------------------- main */

static int make_payload(struct bench *bench)
{
	int r;

	for (unsigned i = 0; i < bench->n_sizes; i++)
		bench->payload_bytes = kvb_max_u64(
			bench->payload_bytes, keys_of(bench->sizes[i]) * bench->sizes[i]);
	bench->payload = mmap(NULL, bench->payload_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bench->payload == MAP_FAILED)
		return kvb_run_fail_machine("memory for payload", -errno);
	memset(bench->payload, 0x5a, bench->payload_bytes);
	r = kvb_check_pages("the client's payload", bench->payload, bench->payload_bytes,
		bench->run.placement.node);
	return r;
}

static int measure_suites(struct bench *bench)
{
	int r = measure_limits(bench);

	if (r == 0 && (wanted(bench, "latency") || wanted(bench, "bandwidth")))
		r = measure_kvbell(bench);
	if (r == 0 && wanted(bench, "reads"))
		r = kvb_reads_measure(&bench->run, bench->objects, bench->n_objects);
	if (r == 0 && wanted(bench, "fairness"))
		r = measure_fairness(bench);
	kvb_progress_clear(&bench->run.progress);
	return r;
}

static int run(struct bench *bench)
{
	int r = kvb_place_self(&bench->run.placement);

	if (r == 0)
		r = make_payload(bench);
	if (r < 0)
		return r;
	bench->run.planning = true;
	r = measure_suites(bench);
	bench->run.planning = false;
	if (!bench->run.quiet) {
		kvb_progress_init(&bench->run.progress, "kvbell-bench");
		kvb_results_print_head();
	}
	if (r == 0)
		r = measure_suites(bench);
	if (r == 0 && bench->run.quiet)
		r = kvb_results_print_json(&bench->run.results, bench->suite ? bench->suite : "all",
			&bench->run.placement);
	return r;
}

int main(int argc, char **argv)
{
	static const char doc[] =
		"kvbell-bench - measures the machine's limits and kvbell beside them.\v"
		"A limit and what is judged by it are measured in one run with one pinning; compare "
		"ratios, not figures, between machines and runs.";
	static const struct argp argp = {option_table, parse_option,
		"[limits|latency|bandwidth|reads|fairness]", doc, NULL, NULL, NULL};
	static struct bench bench = {.run = {.placement = {.node = KVB_NODE_ANY}, .seconds = 1},
		.spin_us = 1000,
		.sizes = {4 * KVB_KIB, 64 * KVB_KIB, KVB_MIB, 8 * KVB_MIB, 32 * KVB_MIB},
		.n_sizes = 5,
		.objects = {1000, 100000, 1000000},
		.n_objects = 3};
	sigset_t signals;

	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &bench);
	/* The servers are stopped in order when somebody wants to leave. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	return run(&bench) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
