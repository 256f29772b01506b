/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reads.c - see reads.h.
 *
 * Owns a server per number of objects, and its clients, one after the other; main thread. It must
 * never call a read local that the server was asked for: the server's counters are looked at in the
 * end.
 */
#include "bench/reads.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bench/batch.h"
#include "bench/limits.h"
#include "bench/pattern.h"
#include "bench/timer.h"
#include "shm/util.h"

#define PREFIX      1000u
#define FILL        1000u /* objects in a ticket */
#define OBJECT      4096u /* what one takes in the pool, however small it is */
#define ACQUIRES    1000000u
#define LOOK_UP     1024u /* so many operations between two looks at the signals: those are calls */
#define COPY_BYTES  (32 * KVB_MIB)
#define COPIES      8u
#define COPY_ROUNDS 4u
#define MEMORY_LEFT (1 * KVB_GIB) /* for everybody else */
#define SUFFIX      16

/* As LMCache makes them: model, packed ranks, group, hash of the chunk. */
#define KEY_FORMAT "meta-llama/Llama-3.1-8B-Instruct@08030803@0@%016llx%016llx%016llx%016llx"
#define KEY_LEN    108u

struct reads {
	struct kvb_run *run;
	uint64_t objects;
	char suffix[SUFFIX]; /* ".1e5" */
	struct kvb_own_server server;
	struct kvb_client *client;
	char *text; /* of the keys, one after the other in the order of use */
	struct kvb_key *keys;
};

/* ------------------------------------------------------------------------------------------------ keys */

static void write_key(char *to, uint64_t object)
{
	char text[KEY_LEN + 1];

	snprintf(text, sizeof(text), KEY_FORMAT, (unsigned long long)kvb_pattern_word(object, 0),
		(unsigned long long)kvb_pattern_word(object, 1),
		(unsigned long long)kvb_pattern_word(object, 2),
		(unsigned long long)kvb_pattern_word(object, 3));
	memcpy(to, text, KEY_LEN);
}

/* The objects in random order. NULL: no memory. */
static uint32_t *shuffled(uint64_t n)
{
	uint32_t *order = malloc(n * sizeof(*order));

	for (uint64_t i = 0; order && i < n; i++) {
		uint64_t other = kvb_pattern_word(n, i) % (i + 1);
		order[i] = order[other];
		order[other] = (uint32_t)i;
	}
	return order;
}

/*
 * The walk over the keys is random for the index and straight for the memory that they lie in: a
 * caller has just made its keys, so that its cache misses on them are none of ours.
 */
static int make_keys(struct reads *reads)
{
	uint32_t *order = shuffled(reads->objects);

	reads->text = malloc(reads->objects * KEY_LEN);
	reads->keys = malloc(reads->objects * sizeof(*reads->keys));
	for (uint64_t i = 0; order && reads->text && reads->keys && i < reads->objects; i++) {
		char *text = reads->text + i * KEY_LEN;
		write_key(text, order[i]);
		reads->keys[i] = (struct kvb_key){text, KEY_LEN};
	}
	free(order);
	if (!order || !reads->text || !reads->keys)
		return kvb_run_fail("keys", -ENOMEM);
	return kvb_check_pages("the client's keys", reads->text, reads->objects * KEY_LEN,
		reads->run->placement.node);
}

/* -------------------------------------------------------------------------------------------- the server */

struct counters {
	uint64_t objects, evicted, asked;
};

static int see_counter(void *user, const struct kvb_stat *stat)
{
	static const char *const asked[] = {"ops.gets", "ops.get_misses", "ops.exists"};
	struct counters *counters = user;

	if (strcmp(stat->name, "store.objects") == 0)
		counters->objects = stat->value;
	else if (strcmp(stat->name, "store.evicted") == 0)
		counters->evicted = stat->value;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(asked); i++)
		if (strcmp(stat->name, asked[i]) == 0)
			counters->asked += stat->value;
	return 0;
}

/* All objects are there, and no read has come to the server. */
static int check_server(struct kvb_client *client, uint64_t objects)
{
	struct counters counters = {0};
	int r = kvb_stats(client, see_counter, &counters);

	if (r < 0)
		return kvb_run_fail("statistics of the server", r);
	if (counters.objects == objects && counters.evicted == 0 && counters.asked == 0)
		return 0;
	fprintf(stderr,
		"kvbell-bench: reads: %llu of %llu objects are there, %llu were evicted, and the server "
		"was asked %llu times\n",
		(unsigned long long)counters.objects, (unsigned long long)objects,
		(unsigned long long)counters.evicted, (unsigned long long)counters.asked);
	return -EPROTO;
}

static int fill_some(const struct reads *reads, uint64_t first, char *text, struct kvb_item *items)
{
	struct kvb_batch batch = {.client = reads->client,
		.items = items,
		.n = kvb_min_u64(FILL, reads->objects - first)};

	for (size_t i = 0; i < batch.n; i++) {
		write_key(text + i * KEY_LEN, first + i);
		items[i] = (struct kvb_item){
			.key = text + i * KEY_LEN, .key_len = KEY_LEN, .data = "x", .size = 1};
	}
	return kvb_leave_wanted() ? -EINTR : kvb_batch_once(&batch);
}

static int fill(const struct reads *reads)
{
	char *text = malloc(FILL * KEY_LEN);
	struct kvb_item *items = malloc(FILL * sizeof(*items));
	int r = text && items ? 0 : -ENOMEM;

	for (uint64_t i = 0; i < reads->objects && r == 0; i += FILL)
		r = fill_some(reads, i, text, items);
	free(text);
	free(items);
	if (r < 0)
		return kvb_run_fail("storing objects", r);
	return check_server(reads->client, reads->objects);
}

/* With room for a quarter more: nothing comes near a watermark. */
static uint64_t slots_for(uint64_t objects)
{
	return objects + objects / 4 + 1024;
}

static int start(struct reads *reads)
{
	char pool[32];
	struct kvb_own_server_options server = {
		.pool = pool, .max_objects = slots_for(reads->objects)};
	struct kvb_options options = KVB_OPTIONS_INIT;
	int r = make_keys(reads);

	snprintf(pool, sizeof(pool), "%lluMiB",
		(unsigned long long)(slots_for(reads->objects) * OBJECT / KVB_MIB + 64));
	/* No thread maps the pool beside the measurements, none of which reads payload. */
	options.flags = KVB_OPEN_NO_POPULATE;
	if (r == 0)
		r = kvb_run_serve(reads->run, &server, &reads->server);
	if (r == 0)
		r = kvb_run_connect(reads->run, &reads->server, &options, &reads->client);
	return r < 0 ? r : fill(reads);
}

static void stop(struct reads *reads)
{
	kvb_close(reads->client);
	(void)kvb_own_server_stop(&reads->server);
	free(reads->text);
	free(reads->keys);
}

/* ---------------------------------------------------------------------------------------------- lookups */

typedef int lookup_fn(struct kvb_client *client, const struct kvb_key *key);

static int look_exists(struct kvb_client *client, const struct kvb_key *key)
{
	return kvb_exists(client, key->data, key->len, NULL);
}

static int look_acquire(struct kvb_client *client, const struct kvb_key *key)
{
	struct kvb_lease lease;
	int r = kvb_acquire(client, key->data, key->len, &lease);

	if (r == 0)
		kvb_release(&lease);
	return r;
}

/* Once through all keys: pages that are not mapped yet are no part of what is measured. */
static int warm_up(const struct reads *reads, lookup_fn *fn)
{
	int r = 0;

	for (uint64_t i = 0; i < reads->objects && r == 0; i++)
		r = fn(reads->client, &reads->keys[i]);
	return r;
}

/* True: it has been at it long enough. Looks at the signals now and then. */
static bool is_over(const struct kvb_run *run, uint64_t turn, uint64_t begin_ns, int *r)
{
	if (turn % LOOK_UP == 0 && kvb_leave_wanted())
		*r = -EINTR;
	return *r < 0 || (double)(kvb_now_ns() - begin_ns) >= run->seconds * 1e9;
}

static int time_lookups(const struct reads *reads, lookup_fn *fn, struct kvb_histogram *ret_took_ns)
{
	uint64_t timer_ns = kvb_timer_cost_ns(), begin_ns = kvb_now_ns(), at = 0;
	int r = 0;

	for (uint64_t turn = 0; !is_over(reads->run, turn, begin_ns, &r); turn++) {
		uint64_t started_ns = kvb_now_ns();
		r = fn(reads->client, &reads->keys[at]);
		kvb_histogram_add(ret_took_ns, kvb_timer_net(kvb_now_ns() - started_ns, timer_ns));
		at = at + 1 < reads->objects ? at + 1 : 0;
	}
	return r;
}

static int measure_lookup(const struct reads *reads, const char *kind, lookup_fn *fn)
{
	struct kvb_histogram took_ns = {0};
	char name[48];
	int r;

	snprintf(name, sizeof(name), "%s%s", kind, reads->suffix);
	if (!kvb_run_begin(reads->run, name))
		return 0;
	r = warm_up(reads, fn);
	if (r == 0)
		r = time_lookups(reads, fn, &took_ns);
	if (r < 0)
		return kvb_run_fail(name, r);
	kvb_run_add(reads->run, name, &took_ns, KVB_SCALE_NS, "dram.load");
	return 0;
}

static int time_prefixes(const struct reads *reads, struct kvb_histogram *ret_took_ns)
{
	uint64_t begin_ns = kvb_now_ns(), at = 0;
	int r = 0;

	for (uint64_t turn = 0; !is_over(reads->run, turn, begin_ns, &r); turn++) {
		uint64_t started_ns = kvb_now_ns();
		size_t found = 0;
		r = kvb_prefix(reads->client, &reads->keys[at], PREFIX, NULL, &found);
		kvb_histogram_add(ret_took_ns, kvb_now_ns() - started_ns);
		if (r == 0 && found != PREFIX)
			r = -ENOENT;
		at = at + 2 * PREFIX <= reads->objects ? at + PREFIX : 0;
	}
	return r;
}

/* Per key: the walk looks ahead, so that the misses of several keys are under way at a time. */
static int measure_prefix(const struct reads *reads)
{
	struct kvb_histogram took_ns = {0};
	char name[48];
	int r;

	snprintf(name, sizeof(name), "prefix.local.%u%s", PREFIX, reads->suffix);
	if (!kvb_run_begin(reads->run, name))
		return 0;
	r = time_prefixes(reads, &took_ns);
	if (r < 0)
		return kvb_run_fail(name, r);
	kvb_run_add(reads->run, name, &took_ns, KVB_SCALE_NS_KEY(PREFIX), "dram.load");
	return 0;
}

/* ----------------------------------------------------------------------------------- what the server does */

/* CPU time of all threads of a process, to the nanosecond; /proc/PID/stat counts in ticks of 10 ms.
 * 0; -errno. */
static int cpu_time(pid_t pid, uint64_t *ret_ns)
{
	struct timespec time;
	clockid_t clock;
	int r = clock_getcpuclockid(pid, &clock);

	if (r != 0)
		return -r;
	if (clock_gettime(clock, &time) < 0)
		return -errno;
	*ret_ns = (uint64_t)time.tv_sec * KVB_NS_PER_S + (uint64_t)time.tv_nsec;
	return 0;
}

static int acquire_all(const struct reads *reads, uint64_t *ret_n)
{
	uint64_t begin_ns = kvb_now_ns(), at = 0, turn;
	int r = 0;

	for (turn = 0; turn < ACQUIRES || !is_over(reads->run, turn, begin_ns, &r); turn++) {
		r = look_acquire(reads->client, &reads->keys[at]);
		if (r < 0)
			return r;
		at = at + 1 < reads->objects ? at + 1 : 0;
	}
	*ret_n = turn;
	return r;
}

/* CPU time of the server beside that of the clock, while a client acquires and releases without a
 * pause, a million times at least. */
static int measure_server(const struct reads *reads)
{
	static const char name[] = "acquire.local.server_cpu";
	uint64_t before_ns = 0, after_ns = 0, begin_ns, took_ns, n = 0;
	int r;

	if (!kvb_run_begin(reads->run, name))
		return 0;
	r = cpu_time(reads->server.pid, &before_ns);
	begin_ns = kvb_now_ns();
	if (r == 0)
		r = acquire_all(reads, &n);
	took_ns = kvb_now_ns() - begin_ns;
	if (r == 0)
		r = cpu_time(reads->server.pid, &after_ns);
	if (r < 0)
		return kvb_run_fail(name, r);
	kvb_progress_clear(&reads->run->progress);
	kvb_results_add_percent(&reads->run->results, name, n,
		100 * (double)(after_ns - before_ns) / (double)took_ns, reads->run->quiet);
	return 0;
}

/* ---------------------------------------------------------------------------------- numbers of objects */

/* "1e5" where that says it. */
static void name_count(uint64_t n, char *text, size_t size)
{
	uint64_t rest = n;
	unsigned zeros = 0;

	for (; rest % 10 == 0; rest /= 10)
		zeros++;
	if (rest == 1)
		snprintf(text, size, ".1e%u", zeros);
	else
		snprintf(text, size, ".%llu", (unsigned long long)n);
}

/* The number in a file; UINT64_MAX when there is none, such as "max". */
static uint64_t read_number(const char *path)
{
	unsigned long long number;
	FILE *file = fopen(path, "re");
	bool found = file && fscanf(file, "%llu", &number) == 1;

	if (file)
		fclose(file);
	return found ? number : UINT64_MAX;
}

/* The least room in this process's cgroups (version 2), in which its servers will be. */
static uint64_t cgroup_room(void)
{
	char group[512] = "", path[600];
	uint64_t room = UINT64_MAX;
	FILE *file = fopen("/proc/self/cgroup", "re");

	while (file && group[0] != '/' && fgets(path, sizeof(path), file))
		(void)sscanf(path, "0::%511s", group);
	if (file)
		fclose(file);
	for (; group[0] == '/'; *strrchr(group, '/') = '\0') {
		uint64_t limit, used;
		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
		limit = read_number(path);
		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.current", group);
		used = read_number(path);
		if (limit != UINT64_MAX && used != UINT64_MAX)
			room = kvb_min_u64(room, limit > used ? limit - used : 0);
	}
	return room;
}

static uint64_t memory_available(void)
{
	unsigned long long kib = 0;
	char line[128];
	FILE *file = fopen("/proc/meminfo", "re");

	while (file && kib == 0 && fgets(line, sizeof(line), file))
		(void)sscanf(line, "MemAvailable: %llu", &kib);
	if (file)
		fclose(file);
	return kvb_min_u64(kib * KVB_KIB, cgroup_room());
}

/* Pool; slots, their twins in the server, and buckets; keys, and the list of them. */
static uint64_t memory_for(uint64_t objects)
{
	return slots_for(objects) * (OBJECT + KVB_KIB) +
		objects * (KEY_LEN + sizeof(struct kvb_key)) + MEMORY_LEFT;
}

/* True: there is too little memory, and it has said so. */
static bool leave_out(const struct reads *reads, bool with_server)
{
	static const char *const kinds[] = {"exists.local", "acquire.local", "prefix.local.1000"};
	uint64_t needed = memory_for(reads->objects), available = memory_available();
	struct kvb_results *results = &reads->run->results;
	char name[48], why[96];

	if (reads->run->planning || available >= needed)
		return false;
	/* The server would wait for it, and then not start. */
	snprintf(why, sizeof(why), "needs %.1f GiB of memory, %.1f GiB are available",
		(double)needed / (double)KVB_GIB, (double)available / (double)KVB_GIB);
	kvb_progress_clear(&reads->run->progress);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(kinds); i++) {
		snprintf(name, sizeof(name), "%s%s", kinds[i], reads->suffix);
		kvb_results_leave_out(results, name, why, reads->run->quiet);
	}
	if (with_server)
		kvb_results_leave_out(results, "acquire.local.server_cpu", why, reads->run->quiet);
	return true;
}

/* The server's part is the same whatever the number: what it does is to look at what was touched. */
static int measure_objects(struct kvb_run *run, uint64_t objects, bool with_server)
{
	struct reads reads = {.run = run, .objects = objects};
	int r = 0;

	name_count(objects, reads.suffix, sizeof(reads.suffix));
	if (leave_out(&reads, with_server))
		return 0;
	if (kvb_run_begin(run, "storing objects"))
		r = start(&reads);
	if (r == 0)
		r = measure_lookup(&reads, "exists.local", look_exists);
	if (r == 0)
		r = measure_lookup(&reads, "acquire.local", look_acquire);
	if (r == 0)
		r = measure_prefix(&reads);
	if (r == 0 && with_server)
		r = measure_server(&reads);
	if (r == 0 && !run->planning)
		r = check_server(reads.client, objects);
	stop(&reads);
	return r;
}

/* ------------------------------------------------------------------------------------------------ copies */

struct copies {
	struct kvb_run *run;
	struct kvb_own_server server;
	struct kvb_client *client; /* of all but the first touches */
	uint8_t *buffers;          /* COPIES of them: together they are in no cache */
	char keys[COPIES][16];
	struct kvb_item items[COPIES];
};

/* The better of the machine's own copies, of those that were measured by turns with ours. */
static const char *limit_of_copy(const struct kvb_run *run)
{
	static const char plain[] = "memcpy.32MiB.beside", streaming[] = "ntcopy.32MiB.beside";
	const struct kvb_result *a = kvb_results_find(&run->results, plain);
	const struct kvb_result *b = kvb_results_find(&run->results, streaming);

	return a && b && b->p50 > a->p50 ? streaming : plain;
}

static int open_copies(struct copies *copies, uint32_t movers, struct kvb_client **ret_client)
{
	struct kvb_options options = KVB_OPTIONS_INIT;

	/* What is to be mapped already is touched first; no thread maps beside the copies. */
	options.flags = KVB_OPEN_NO_POPULATE;
	options.movers = movers;
	return kvb_run_connect(copies->run, &copies->server, &options, ret_client);
}

static int start_copies(struct copies *copies)
{
	struct kvb_own_server_options server = {.pool = "1GiB"};
	struct kvb_batch puts = {.items = copies->items, .n = COPIES};
	int r;

	copies->buffers = mmap(NULL, COPIES * COPY_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (copies->buffers == MAP_FAILED)
		return kvb_run_fail_machine("memory for copies", -errno);
	memset(copies->buffers, 0x5a, COPIES * COPY_BYTES);
	for (unsigned i = 0; i < COPIES; i++) {
		uint8_t *buffer = copies->buffers + i * COPY_BYTES;
		int n = snprintf(copies->keys[i], sizeof(copies->keys[i]), "copy-%u", i);
		copies->items[i] = (struct kvb_item){.key = copies->keys[i],
			.key_len = (size_t)n,
			.data = buffer,
			.buffer = buffer,
			.size = COPY_BYTES};
	}
	r = kvb_check_pages("the client's buffers", copies->buffers, COPIES * COPY_BYTES,
		copies->run->placement.node);
	if (r == 0)
		r = kvb_run_serve(copies->run, &server, &copies->server);
	if (r == 0)
		r = open_copies(copies, 0, &copies->client);
	if (r < 0)
		return r;
	puts.client = copies->client;
	r = kvb_batch_once(&puts);
	return r < 0 ? kvb_run_fail("storing objects to copy", r) : 0;
}

static void stop_copies(struct copies *copies)
{
	kvb_close(copies->client);
	(void)kvb_own_server_stop(&copies->server);
	if (copies->buffers && copies->buffers != MAP_FAILED)
		munmap(copies->buffers, COPIES * COPY_BYTES);
}

/* One object, timed. */
static int copy_one(const struct copies *copies, struct kvb_client *client, uint64_t turn,
	struct kvb_histogram *took_ns)
{
	const struct kvb_item *item = &copies->items[turn % COPIES];
	uint64_t started_ns = kvb_now_ns();
	int r = kvb_get(client, item->key, item->key_len, item->buffer, item->size, NULL);

	kvb_histogram_add(took_ns, kvb_now_ns() - started_ns);
	return r;
}

static int copy_warm(const struct copies *copies, uint64_t turn, struct kvb_histogram *took_ns)
{
	return copy_one(copies, copies->client, turn, took_ns);
}

/* By a client that has touched nothing of the pool yet. */
static int copy_first(const struct copies *copies, uint64_t turn, struct kvb_histogram *took_ns)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client;
	int r;

	options.dir = copies->server.dir;
	options.flags = KVB_OPEN_NO_POPULATE;
	r = kvb_open(&options, &client);
	if (r < 0)
		return r;
	r = copy_one(copies, client, turn, took_ns);
	kvb_close(client);
	return r;
}

typedef int copy_fn(const struct copies *copies, uint64_t turn, struct kvb_histogram *took_ns);

static int copy_for(const struct copies *copies, double seconds, copy_fn *fn, uint64_t *turn,
	struct kvb_histogram *took_ns)
{
	uint64_t begin_ns = kvb_now_ns();
	int r;

	do
		r = kvb_leave_wanted() ? -EINTR : fn(copies, (*turn)++, took_ns);
	while (r == 0 && (double)(kvb_now_ns() - begin_ns) < seconds * 1e9);
	return r;
}

static int copy_all_once(const struct copies *copies, copy_fn *fn)
{
	struct kvb_histogram cold_ns = {0};
	int r = 0;

	for (uint64_t turn = 0; turn < COPIES && r == 0; turn++)
		r = fn(copies, turn, &cold_ns);
	return r;
}

/* The machine's own copies and ours by turns: a busy machine changes faster than a suite ends. */
static int measure_warm(struct copies *copies)
{
	static const char name[] = "get.32MiB.copy.warm";
	struct kvb_histogram plain_ns = {0}, streaming_ns = {0}, took_ns = {0};
	const struct kvb_placement *placement = &copies->run->placement;
	double seconds = copies->run->seconds / COPY_ROUNDS;
	uint64_t turn = 0;
	int r;

	if (!kvb_run_begin(copies->run, name))
		return 0;
	r = copy_all_once(copies, copy_warm);
	for (unsigned round = 0; round < COPY_ROUNDS && r == 0; round++) {
		r = kvb_limit_memcpy(placement, COPY_BYTES, seconds, &plain_ns);
		if (r == 0)
			r = kvb_limit_ntcopy(placement, COPY_BYTES, seconds, &streaming_ns);
		if (r == 0)
			r = copy_for(copies, seconds, copy_warm, &turn, &took_ns);
	}
	if (r < 0)
		return kvb_run_fail(name, r);
	kvb_run_add(
		copies->run, "memcpy.32MiB.beside", &plain_ns, KVB_SCALE_GBPS(COPY_BYTES), NULL);
	kvb_run_add(copies->run, "ntcopy.32MiB.beside", &streaming_ns, KVB_SCALE_GBPS(COPY_BYTES),
		NULL);
	kvb_run_add(copies->run, name, &took_ns, KVB_SCALE_GBPS(COPY_BYTES),
		limit_of_copy(copies->run));
	return 0;
}

static int measure_first(struct copies *copies)
{
	static const char name[] = "get.32MiB.copy.first";
	struct kvb_histogram took_ns = {0};
	uint64_t turn = 0;
	int r;

	if (!kvb_run_begin(copies->run, name))
		return 0;
	r = copy_for(copies, copies->run->seconds, copy_first, &turn, &took_ns);
	if (r < 0)
		return kvb_run_fail(name, r);
	kvb_run_add(copies->run, name, &took_ns, KVB_SCALE_GBPS(COPY_BYTES),
		limit_of_copy(copies->run));
	return 0;
}

/* All of them as one ticket, so that the movers copy at the same time. */
static int measure_movers(struct copies *copies, uint32_t movers, const char *name)
{
	struct kvb_batch batch = {.items = copies->items, .n = COPIES, .gets = true};
	int r;

	if (!kvb_run_begin(copies->run, name))
		return 0;
	r = open_copies(copies, movers, &batch.client);
	if (r < 0)
		return r;
	r = kvb_batch_measure(copies->run, &batch, name, limit_of_copy(copies->run));
	kvb_close(batch.client);
	return r;
}

static int measure_all_copies(struct kvb_run *run)
{
	struct copies copies = {.run = run};
	int r = run->planning ? 0 : start_copies(&copies);

	if (r == 0)
		r = measure_warm(&copies);
	if (r == 0)
		r = measure_first(&copies);
	if (r == 0)
		r = measure_movers(&copies, 1, "get.32MiB.copy.warm.1mover");
	if (r == 0)
		r = measure_movers(&copies, 2, "get.32MiB.copy.warm.2movers");
	if (r == 0 && !run->planning)
		r = check_server(copies.client, COPIES);
	stop_copies(&copies);
	return r;
}

int kvb_reads_measure(struct kvb_run *run, const uint64_t *objects, unsigned n)
{
	int r = 0;

	for (unsigned i = 0; i < n && r == 0; i++)
		r = measure_objects(run, objects[i], i == 0);
	return r < 0 ? r : measure_all_copies(run);
}
