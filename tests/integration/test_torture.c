/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_torture.c - readers that hold what they found, writers that replace, delete and crowd out
 * without pause, clients killed and sessions ended at any moment: no wrong byte, and balanced books.
 *
 * A real server and real clients. Children record into shared memory and end with _exit(); the main
 * thread kills them, starts others, and asserts in the end. KVB_TEST_SECONDS says how long.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/pattern.h"
#include "kvbell/kvbell.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/process.h"
#include "tests/random.h"
#include "tests/raw.h"

#define READERS      6u
#define WRITERS      2u
#define CHILDREN     (READERS + WRITERS)
#define THREADS      2u /* of a reader */
#define KEYS         400u
#define HELD         24u /* by a thread */
#define LIST         8u
#define LENGTH_MAX   (160 * KVB_KIB)
#define SECONDS      8u
#define KILL_MAX_MS  60u
#define POISON_EVERY 20000u

static struct process_server server;

static struct shared {
	uint32_t stop;   /* atomic */
	uint64_t serial; /* atomic: of what is written, and of random sequences */
	uint64_t reads, hits, copies, prefixes, views_checked, bytes_checked;
	uint64_t puts, deletes, no_space, no_cells, poisoned, resets;
	uint64_t wrong, unexpected;
	int32_t unexpected_error;
	uint32_t wrong_kind;
} * shared;

enum wrong_kind { WRONG_AT_ONCE = 1, WRONG_LATER, WRONG_COPY };

static struct kvb_client *open_client(const char *name)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client = NULL;

	options.dir = server.dir;
	options.name = name;
	return kvb_open(&options, &client) == 0 ? client : NULL;
}

/* ---------------------------------------------------------------------------------------- what is stored */

/* An object begins with its key's number and its serial; all that follows, and how long it is, is made
 * from these. */
static size_t length_of(uint64_t serial)
{
	uint64_t seed = serial;
	uint32_t random = next_random(&seed);

	return 16 + (random % 4 ? random % 5000 : random % (LENGTH_MAX - 16));
}

static size_t payload_make(uint8_t *data, uint64_t number, uint64_t serial)
{
	size_t len = length_of(serial);

	memcpy(data, &number, 8);
	memcpy(data + 8, &serial, 8);
	kvb_pattern_fill(data + 16, len - 16, number << 40 ^ serial);
	return len;
}

static bool payload_is_whole(const uint8_t *data, size_t len, uint64_t number, uint64_t *ret_serial)
{
	uint64_t found;

	if (len < 16)
		return false;
	memcpy(&found, data, 8);
	memcpy(ret_serial, data + 8, 8);
	kvb_count(&shared->bytes_checked, len);
	return found == number && len == length_of(*ret_serial) &&
		kvb_pattern_check(data + 16, len - 16, number << 40 ^ *ret_serial);
}

static size_t key_make(char key[16], uint64_t number)
{
	return (size_t)snprintf(key, 16, "key%llu", (unsigned long long)number);
}

static void record_wrong(enum wrong_kind kind)
{
	kvb_store_relaxed(&shared->wrong_kind, (uint32_t)kind);
	kvb_count(&shared->wrong, 1);
}

/* Errors that a client of this test may meet. */
static void record_error(int error)
{
	if (error == -ENOBUFS)
		kvb_count(&shared->no_cells, 1);
	else if (error == -ENOSPC)
		kvb_count(&shared->no_space, 1);
	else if (error == -ECONNRESET || error == -ENOTCONN)
		kvb_count(&shared->resets, 1);
	else if (error != 0 && error != -ENOENT) {
		kvb_store_relaxed(&shared->unexpected_error, error);
		kvb_count(&shared->unexpected, 1);
	}
}

/* --------------------------------------------------------------------------------------------- a reader */

struct held {
	struct kvb_lease lease;
	uint64_t number, serial;
};

struct reader {
	struct kvb_client *client;
	uint64_t seed;
	uint8_t *buffer;
	struct held held[HELD];
};

static void take_view(struct held *held, const struct kvb_lease *lease, uint64_t number)
{
	size_t len;
	const uint8_t *data = kvb_view(lease, &len);

	*held = (struct held){.lease = *lease, .number = number};
	if (!payload_is_whole(data, len, number, &held->serial))
		record_wrong(WRONG_AT_ONCE);
	kvb_count(&shared->hits, 1);
}

/* It must be what it was, whatever happened meanwhile. */
static void check_view(const struct held *held)
{
	size_t len;
	const uint8_t *data = kvb_view(&held->lease, &len);
	uint64_t serial = 0;

	if (!payload_is_whole(data, len, held->number, &serial) || serial != held->serial)
		record_wrong(WRONG_LATER);
	kvb_count(&shared->views_checked, 1);
}

static void let_go(struct held *held)
{
	if (!held->lease.owner)
		return;
	check_view(held);
	kvb_release(&held->lease);
}

static void hold_one(struct reader *reader, struct held *held, uint64_t number)
{
	struct kvb_lease lease;
	char key[16];
	int r;

	let_go(held);
	r = kvb_acquire(reader->client, key, key_make(key, number), &lease);
	if (r == 0)
		take_view(held, &lease, number);
	record_error(r);
}

static void copy_one(struct reader *reader, uint64_t number)
{
	uint64_t serial;
	size_t len = 0;
	char key[16];
	int r = kvb_get(
		reader->client, key, key_make(key, number), reader->buffer, LENGTH_MAX, &len);

	record_error(r);
	if (r != 0)
		return;
	kvb_count(&shared->copies, 1);
	if (!payload_is_whole(reader->buffer, len, number, &serial))
		record_wrong(WRONG_COPY);
}

static void hold_list(struct reader *reader, uint64_t number)
{
	struct kvb_lease leases[LIST];
	struct kvb_key keys[LIST];
	struct held held;
	char text[LIST][16];
	size_t found = 0;
	int r;

	for (unsigned i = 0; i < LIST; i++)
		keys[i] = (struct kvb_key){text[i], key_make(text[i], (number + i) % KEYS)};
	r = kvb_prefix(reader->client, keys, LIST, leases, &found);
	record_error(r);
	if (r != 0)
		return;
	kvb_count(&shared->prefixes, 1);
	for (unsigned i = 0; i < found; i++) {
		take_view(&held, &leases[i], (number + i) % KEYS);
		let_go(&held);
	}
}

static void *read_on(void *arg)
{
	struct reader *reader = arg;

	while (!kvb_load_relaxed(&shared->stop)) {
		uint32_t what = next_random(&reader->seed) % 64;
		uint64_t number = next_random(&reader->seed) % KEYS;
		struct held *held = &reader->held[next_random(&reader->seed) % HELD];
		kvb_count(&shared->reads, 1);
		/* Views that are held must stay. */
		if (next_random(&reader->seed) % POISON_EVERY == 0 &&
			raw_break_client(reader->client))
			kvb_count(&shared->poisoned, 1);
		if (what < 40)
			hold_one(reader, held, number);
		else if (what < 50)
			let_go(held);
		else if (what < 60)
			copy_one(reader, number);
		else
			hold_list(reader, number);
	}
	for (unsigned i = 0; i < HELD; i++)
		let_go(&reader->held[i]);
	return NULL;
}

static int be_reader(void *arg)
{
	struct kvb_client *client = open_client("reader");
	struct reader *readers = calloc(THREADS, sizeof(*readers));
	pthread_t thread;

	(void)arg;
	if (!client || !readers)
		return 1;
	for (unsigned i = 0; i < THREADS; i++) {
		readers[i].client = client;
		readers[i].seed = kvb_fetch_add(&shared->serial, 1u) * 977;
		readers[i].buffer = malloc(LENGTH_MAX);
		if (!readers[i].buffer)
			return 1;
	}
	if (kvb_thread_start(&thread, "reader", read_on, &readers[1]) < 0)
		return 1;
	(void)read_on(&readers[0]);
	pthread_join(thread, NULL);
	kvb_close(client);
	for (unsigned i = 0; i < THREADS; i++)
		free(readers[i].buffer);
	free(readers);
	return 0;
}

/* --------------------------------------------------------------------------------------------- a writer */

static int be_writer(void *arg)
{
	struct kvb_client *client = open_client("writer");
	uint8_t *data = malloc(LENGTH_MAX);
	uint64_t seed = kvb_fetch_add(&shared->serial, 1u) * 991;

	(void)arg;
	if (!client || !data)
		return 1;
	while (!kvb_load_relaxed(&shared->stop)) {
		uint64_t number = next_random(&seed) % KEYS;
		uint64_t serial = kvb_fetch_add(&shared->serial, 1u);
		char key[16];
		size_t len = key_make(key, number);
		int r;
		if (next_random(&seed) % 8 == 0) {
			record_error(kvb_delete(client, key, len));
			kvb_count(&shared->deletes, 1);
			continue;
		}
		r = kvb_put(client, key, len, data, payload_make(data, number, serial));
		record_error(r);
		kvb_count(&shared->puts, 1);
	}
	free(data);
	kvb_close(client);
	return 0;
}

/* --------------------------------------------------------------------------------------------- the books */

struct books {
	uint64_t used_bytes, objects, pending, held, limbo, limbo_bytes, most, evicted, spared,
		replaced;
	uint64_t active, ending, failed, missed_wakes;
	uint64_t listed, listed_bytes;
};

static int see_stat(void *user, const struct kvb_stat *stat)
{
	struct books *books = user;
	struct {
		const char *name;
		uint64_t *where;
	} table[] = {{"pool.used_bytes", &books->used_bytes}, {"store.objects", &books->objects},
		{"store.pending", &books->pending}, {"store.held", &books->held},
		{"leases.limbo", &books->limbo}, {"leases.limbo_bytes", &books->limbo_bytes},
		{"leases.most", &books->most}, {"leases.spared", &books->spared},
		{"store.evicted", &books->evicted}, {"store.replaced", &books->replaced},
		{"sessions.active", &books->active}, {"sessions.ending", &books->ending},
		{"sessions.failed", &books->failed}, {"bells.missed_wakes", &books->missed_wakes}};

	for (size_t i = 0; i < KVB_ARRAY_SIZE(table); i++)
		if (strcmp(stat->name, table[i].name) == 0)
			*table[i].where = stat->value;
	return 0;
}

static int see_entry(void *user, const struct kvb_entry *entry)
{
	struct books *books = user;

	books->listed++;
	books->listed_bytes += kvb_round_up(entry->length, 4096);
	return 0;
}

static struct books books_of(struct kvb_client *client)
{
	struct books books = {0};

	assert_int_equal(kvb_stats(client, see_stat, &books), 0);
	assert_int_equal(kvb_list(client, see_entry, &books), 0);
	return books;
}

/* All clients are gone: what is there is what is visible, and no more. */
static void assert_balanced(struct kvb_client *client)
{
	uint64_t deadline_ns = kvb_now_ns() + 10 * TEST_SLOWER * KVB_NS_PER_S;
	struct books books = books_of(client);

	while (books.limbo || books.ending || books.active != 1 || books.pending || books.held) {
		assert_true(kvb_now_ns() < deadline_ns);
		books = books_of(client);
	}
	print_message("server: %llu evicted, %llu replaced, %llu spared, %llu sessions failed, "
		      "%llu objects in the end\n",
		(unsigned long long)books.evicted, (unsigned long long)books.replaced,
		(unsigned long long)books.spared, (unsigned long long)books.failed,
		(unsigned long long)books.objects);
	assert_int_equal(books.limbo_bytes, 0);
	assert_int_equal(books.most, 0);
	assert_int_equal(books.listed, books.objects);
	assert_int_equal(books.listed_bytes, books.used_bytes);
	assert_true(books.evicted > 0);
	assert_true(books.replaced > 0);
}

/* ---------------------------------------------------------------------------------------- the torture */

static pid_t start_child(unsigned i)
{
	pid_t pid = process_fork(i < READERS ? be_reader : be_writer, NULL);

	assert_true(pid > 0);
	return pid;
}

static uint64_t seconds(void)
{
	const char *text = getenv("KVB_TEST_SECONDS");

	return text ? strtoull(text, NULL, 10) : SECONDS;
}

/* Kills one after the other, at random, and puts another in its place. */
static uint64_t kill_and_replace(pid_t pids[CHILDREN], uint64_t until_ns)
{
	uint64_t seed = 3, kills = 0;

	while (kvb_now_ns() < until_ns && kvb_load_relaxed(&shared->wrong) == 0) {
		unsigned victim = next_random(&seed) % CHILDREN;
		struct timespec pause = {
			.tv_nsec = (long)(next_random(&seed) % (KILL_MAX_MS * 1000)) * 1000};
		/* Spreads the moments at which it strikes. */
		nanosleep(&pause, NULL);
		kill(pids[victim], SIGKILL);
		assert_int_equal(process_wait(pids[victim], 20000), 128 + SIGKILL);
		pids[victim] = start_child(victim);
		kills++;
	}
	return kills;
}

static void print_figures(uint64_t kills)
{
	print_message("%llu reads: %llu views, %llu looked at again, %llu copies, %llu lists, %llu "
		      "MiB compared; %llu puts, %llu deletes\n",
		(unsigned long long)shared->reads, (unsigned long long)shared->hits,
		(unsigned long long)shared->views_checked, (unsigned long long)shared->copies,
		(unsigned long long)shared->prefixes,
		(unsigned long long)(shared->bytes_checked / KVB_MIB),
		(unsigned long long)shared->puts, (unsigned long long)shared->deletes);
	print_message(
		"%llu kills, %llu sessions poisoned, %llu calls reset; %llu without room, %llu "
		"without a cell; %llu wrong (%u), %llu unexpected (%d)\n",
		(unsigned long long)kills, (unsigned long long)shared->poisoned,
		(unsigned long long)shared->resets, (unsigned long long)shared->no_space,
		(unsigned long long)shared->no_cells, (unsigned long long)shared->wrong,
		shared->wrong_kind, (unsigned long long)shared->unexpected,
		shared->unexpected_error);
}

static void no_byte_is_wrong_whatever_dies(void **state)
{
	/* Less than all keys need, so that eviction never rests. */
	static const char *const args[] = {"--pool", "4MiB", "--lease-cells", "64",
		"--low-watermark", "80", "--high-watermark", "90", "--log-level", "warning", NULL};
	pid_t pids[CHILDREN];
	struct kvb_client *client;
	uint64_t kills;

	(void)state;
	assert_int_equal(process_server_start(&server, args), 0);
	for (unsigned i = 0; i < CHILDREN; i++)
		pids[i] = start_child(i);
	kills = kill_and_replace(pids, kvb_now_ns() + seconds() * KVB_NS_PER_S);
	kvb_store_release(&shared->stop, 1u);
	for (unsigned i = 0; i < CHILDREN; i++)
		assert_int_equal(process_wait(pids[i], 30000), 0);
	print_figures(kills);
	assert_int_equal(shared->wrong, 0);
	assert_int_equal(shared->unexpected, 0);
	assert_true(shared->hits > 0 && shared->copies > 0 && shared->prefixes > 0 && kills > 0);
	assert_true(shared->poisoned > 0);
	client = open_client("books");
	assert_non_null(client);
	assert_balanced(client);
	kvb_close(client);
	assert_int_equal(process_server_stop(&server), 0);
}

static int setup(void **state)
{
	(void)state;
	shared = mmap(
		NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return shared == MAP_FAILED ? -1 : 0;
}

static int teardown(void **state)
{
	(void)state;
	process_dir_remove(server.dir);
	unlink(server.log);
	munmap(shared, sizeof(*shared));
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(no_byte_is_wrong_whatever_dies, setup, teardown),
	};

	return cmocka_run_group_tests_name("torture", tests, NULL, NULL) ? 1 : 0;
}
