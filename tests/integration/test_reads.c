/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reads.c - reading without asking: views and how long they last, lists of keys, copies that
 * make no request, what leases do to eviction, threads that come and go.
 *
 * A server in this process. The main thread asserts; others record. What is in limbo and in use is
 * looked up in the store itself, since a question through the ring would change what is counted.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/pattern.h"
#include "client/hook.h"
#include "client/inside.h"
#include "kvbell/kvbell.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/process.h"
#include "tests/raw.h"

#define POOL  (16 * KVB_MIB)
#define CELLS 16u

static struct embedded embedded;

static void start_server(uint64_t pool_bytes, uint32_t cells)
{
	struct kvb_server_options config;

	embedded_config(&config);
	config.pool_bytes = pool_bytes;
	config.lease_cells = cells;
	config.drain_timeout_ms = 2000;
	assert_int_equal(embedded_start(&embedded, &config), 0);
}

static void stop_server(void)
{
	assert_int_equal(kvb_store_check(embedded.server->store), 0);
	assert_int_equal(kvb_load_relaxed(&embedded.server->counters.missed_wakes), 0);
	assert_int_equal(embedded_stop(&embedded), 0);
}

static struct kvb_client *open_client(uint32_t flags)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client = NULL;
	struct kvb_info info;

	options.dir = embedded.dir;
	options.name = "reads";
	options.flags = flags;
	assert_int_equal(kvb_open(&options, &client), 0);
	assert_int_equal(kvb_get_info(client, &info), 0);
	assert_string_equal(info.reads, flags & KVB_OPEN_RING_ONLY ? "ring" : "local");
	return client;
}

static struct kvb_store_stats stats(void)
{
	struct kvb_store_stats stats;

	kvb_store_get_stats(embedded.server->store, &stats);
	return stats;
}

static uint64_t counter(const uint64_t *counter)
{
	return kvb_load_relaxed(counter);
}

/* The key of `size` bytes that begins with the name and goes on with dots. */
static struct kvb_key key_of(const char *name, size_t size)
{
	static char keys[16][KVB_KEY_MAX];
	static unsigned next;
	char *key = keys[next++ % KVB_ARRAY_SIZE(keys)];

	memset(key, '.', size);
	memcpy(key, name, kvb_min_u64(strlen(name), size));
	return (struct kvb_key){key, size};
}

static int put_seed(struct kvb_client *client, struct kvb_key key, size_t len, uint64_t seed)
{
	uint8_t *data = malloc(len + 1);
	int r;

	assert_non_null(data);
	kvb_pattern_fill(data, len, seed);
	r = kvb_put(client, key.data, key.len, data, len);
	free(data);
	return r;
}

static void put(struct kvb_client *client, const char *key, size_t len, uint64_t seed)
{
	assert_int_equal(put_seed(client, key_of(key, strlen(key)), len, seed), 0);
}

/* So much that whatever is free is used again and again. */
static void fill_pool_again(struct kvb_client *client)
{
	for (uint64_t i = 0; i < 2 * POOL / KVB_MIB; i++)
		put(client, "more", 7 * KVB_MIB, i);
}

static struct kvb_lease acquire(struct kvb_client *client, const char *key)
{
	struct kvb_lease lease = {0};

	assert_int_equal(kvb_acquire(client, key, strlen(key), &lease), 0);
	return lease;
}

static void assert_view(const struct kvb_lease *lease, size_t len, uint64_t seed)
{
	size_t got = 1;
	const uint8_t *data = kvb_view(lease, &got);

	assert_int_equal(got, len);
	assert_true(len == 0 || data);
	assert_true(kvb_pattern_check(data, len, seed));
}

static bool limbo_is_empty(const void *arg)
{
	(void)arg;
	return stats().limbo == 0;
}

/* Nothing is held any more, and what was in limbo has given its bytes back. */
static void assert_nothing_held(uint64_t used_bytes)
{
	assert_true(embedded_wait(limbo_is_empty, NULL));
	assert_int_equal(stats().limbo_bytes, 0);
	assert_int_equal(stats().leases_most, 0);
	assert_int_equal(stats().used_bytes, used_bytes);
	assert_int_equal(kvb_store_check(embedded.server->store), 0);
}

/* ------------------------------------------------------------------------------------------------ views */

static const size_t sizes[] = {0, 1, 7, 4096, KVB_MIB + 1, 8 * KVB_MIB};

static void check_a_view_is_the_object(uint32_t flags)
{
	struct kvb_client *client = open_client(flags);

	for (size_t i = 0; i < KVB_ARRAY_SIZE(sizes); i++) {
		struct kvb_lease lease;
		put(client, "object", sizes[i], i);
		lease = acquire(client, "object");
		assert_view(&lease, sizes[i], i);
		if (sizes[i] == 0 && !(flags & KVB_OPEN_RING_ONLY))
			assert_null(kvb_view(&lease, NULL));
		kvb_release(&lease);
		assert_null(lease.owner);
		assert_null(kvb_view(&lease, NULL));
	}
	kvb_close(client);
}

static void a_view_is_the_object(void **state)
{
	(void)state;
	start_server(2 * POOL, CELLS);
	check_a_view_is_the_object(0);
	check_a_view_is_the_object(KVB_OPEN_RING_ONLY);
	check_a_view_is_the_object(KVB_OPEN_NO_POPULATE);
	stop_server();
}

static void what_is_not_there_is_not_held(void **state)
{
	struct kvb_lease lease = {0}, zeros = {0};
	char key[KVB_KEY_MAX + 1] = "";

	(void)state;
	start_server(POOL, CELLS);
	for (uint32_t flags = 0; flags <= KVB_OPEN_RING_ONLY; flags++) {
		struct kvb_client *client = open_client(flags);
		assert_int_equal(kvb_acquire(client, "missing", 7, &lease), -ENOENT);
		assert_int_equal(kvb_acquire(client, key, 0, &lease), -EINVAL);
		assert_int_equal(kvb_acquire(client, NULL, 3, &lease), -EINVAL);
		assert_int_equal(kvb_acquire(client, key, sizeof(key), &lease), -ENAMETOOLONG);
		assert_memory_equal(&lease, &zeros, sizeof(lease));
		kvb_release(&lease);
		kvb_release(&lease);
		kvb_close(client);
	}
	assert_nothing_held(0);
	stop_server();
}

static void a_view_outlives_replacement_and_deletion(void **state)
{
	struct kvb_client *reader, *writer;
	struct kvb_lease first, second, third;

	(void)state;
	start_server(POOL, CELLS);
	reader = open_client(0);
	writer = open_client(0);
	put(writer, "key", KVB_MIB, 1);
	first = acquire(reader, "key");
	put(writer, "key", KVB_MIB, 2);
	second = acquire(reader, "key");
	third = acquire(reader, "key");
	assert_ptr_not_equal(kvb_view(&first, NULL), kvb_view(&second, NULL));
	assert_ptr_equal(kvb_view(&second, NULL), kvb_view(&third, NULL));
	assert_int_equal(stats().limbo, 1);
	assert_int_equal(stats().limbo_bytes, KVB_MIB);
	assert_int_equal(stats().leases_most, 3);
	assert_int_equal(kvb_delete(writer, "key", 3), 0);
	assert_int_equal(kvb_acquire(reader, "key", 3, &(struct kvb_lease){0}), -ENOENT);
	assert_int_equal(stats().limbo, 2);
	assert_int_equal(stats().used_bytes, 2 * KVB_MIB);
	/* All that is free gets written over and over. */
	for (uint64_t i = 0; i < 3 * POOL / KVB_MIB; i++)
		put(writer, i % 2 ? "odd" : "even", 3 * KVB_MIB, 100 + i);
	assert_view(&first, KVB_MIB, 1);
	assert_view(&second, KVB_MIB, 2);
	kvb_release(&second);
	put(writer, "odd", 3 * KVB_MIB, 7);
	assert_view(&third, KVB_MIB, 2);
	kvb_release(&first);
	kvb_release(&third);
	assert_nothing_held(6 * KVB_MIB);
	kvb_close(reader);
	kvb_close(writer);
	stop_server();
}

static void a_view_outlives_the_eviction_of_all_else(void **state)
{
	struct kvb_client *reader, *writer;
	struct kvb_lease lease;

	(void)state;
	start_server(POOL, CELLS);
	reader = open_client(0);
	writer = open_client(0);
	put(writer, "held", KVB_MIB, 5);
	lease = acquire(reader, "held");
	for (uint64_t i = 0; i < 5 * POOL / KVB_MIB; i++) {
		char key[16];
		snprintf(key, sizeof(key), "other%u", (unsigned)i);
		put(writer, key, KVB_MIB, i);
		assert_view(&lease, KVB_MIB, 5);
	}
	assert_true(stats().evicted >= 60);
	kvb_release(&lease);
	assert_nothing_held(POOL);
	kvb_close(reader);
	kvb_close(writer);
	stop_server();
}

static void a_view_outlives_the_server_and_the_client(void **state)
{
	struct kvb_client *early, *late;
	struct kvb_lease before, after;

	(void)state;
	start_server(POOL, CELLS);
	early = open_client(0);
	late = open_client(0);
	put(early, "key", KVB_MIB, 1);
	before = acquire(early, "key");
	after = acquire(late, "key");
	kvb_close(early);
	assert_view(&before, KVB_MIB, 1);
	put(late, "key", KVB_MIB, 2);
	fill_pool_again(late);
	assert_view(&before, KVB_MIB, 1);
	assert_int_equal(stats().limbo, 1);
	stop_server();
	assert_view(&before, KVB_MIB, 1);
	assert_view(&after, KVB_MIB, 1);
	kvb_release(&before);
	assert_int_equal(kvb_acquire(late, "key", 3, &before), -ENOTCONN);
	kvb_close(late);
	assert_view(&after, KVB_MIB, 1);
	kvb_release(&after);
}

static bool no_sessions(const void *arg)
{
	(void)arg;
	return counter(&embedded.server->gauges.sessions_active) +
		counter(&embedded.server->gauges.sessions_ending) ==
		0;
}

/* A client that was closed with views in hand is gone with the last of them. */
static void the_last_view_ends_the_session(void **state)
{
	struct kvb_client *client;
	struct kvb_lease leases[3];

	(void)state;
	start_server(POOL, CELLS);
	client = open_client(0);
	put(client, "key", 4096, 1);
	for (unsigned i = 0; i < 3; i++)
		leases[i] = acquire(client, "key");
	assert_int_equal(kvb_delete(client, "key", 3), 0);
	kvb_close(client);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(stats().limbo, 1);
		assert_view(&leases[i], 4096, 1);
		kvb_release(&leases[i]);
	}
	assert_true(embedded_wait(no_sessions, NULL));
	assert_nothing_held(0);
	stop_server();
}

static bool revoked_are(const void *count)
{
	return counter(&embedded.server->gauges.sessions_revoked) == *(const uint64_t *)count;
}

/* The server takes back its descriptors, and honours what is leased until the process lets go of it. */
static void a_view_outlives_a_session_that_the_server_ended(void **state)
{
	struct kvb_client *broken, *other;
	const uint64_t none = 0, one = 1;
	struct kvb_lease before, after;
	struct kvb_info info;

	(void)state;
	start_server(POOL, CELLS);
	broken = open_client(0);
	other = open_client(0);
	put(other, "key", KVB_MIB, 1);
	before = acquire(broken, "key");
	assert_true(raw_break_client(broken));
	assert_true(embedded_wait(revoked_are, &one));
	put(other, "key", KVB_MIB, 2);
	fill_pool_again(other);
	assert_int_equal(stats().limbo, 1);
	assert_view(&before, KVB_MIB, 1);
	/* The client works again meanwhile, in a session of its own. */
	put(other, "key", KVB_MIB, 3);
	while (kvb_acquire(broken, "key", 3, &after) != 0)
		(void)poll(NULL, 0, 1);
	assert_view(&after, KVB_MIB, 3);
	assert_int_equal(kvb_get_info(broken, &info), 0);
	assert_int_equal(info.attaches, 2);
	assert_true(revoked_are(&one));
	kvb_release(&before);
	assert_true(embedded_wait(revoked_are, &none));
	assert_int_equal(stats().limbo, 0);
	assert_view(&after, KVB_MIB, 3);
	kvb_release(&after);
	kvb_close(broken);
	kvb_close(other);
	stop_server();
}

static void all_cells_taken_leave_the_ring(void **state)
{
	struct kvb_client *client;
	struct kvb_lease leases[CELLS], more = {0};
	uint8_t data[64];
	size_t len = 0;
	uint64_t gets;

	(void)state;
	start_server(POOL, CELLS);
	client = open_client(0);
	put(client, "key", sizeof(data), 1);
	for (unsigned i = 0; i < CELLS; i++)
		leases[i] = acquire(client, "key");
	for (unsigned i = 0; i < CELLS; i++) {
		assert_int_equal(kvb_acquire(client, "key", 3, &more), -ENOBUFS);
		assert_null(more.owner);
		gets = counter(&embedded.server->counters.gets);
		assert_int_equal(kvb_get(client, "key", 3, data, sizeof(data), &len), 0);
		assert_int_equal(len, sizeof(data));
		assert_true(kvb_pattern_check(data, len, 1));
		assert_int_equal(counter(&embedded.server->counters.gets), gets + 1);
		assert_int_equal(kvb_exists(client, "key", 3, NULL), 0);
		kvb_release(&leases[i]);
		leases[i] = acquire(client, "key");
	}
	for (unsigned i = 0; i < CELLS; i++)
		kvb_release(&leases[i]);
	gets = counter(&embedded.server->counters.gets);
	assert_int_equal(kvb_get(client, "key", 3, data, sizeof(data), NULL), 0);
	assert_int_equal(counter(&embedded.server->counters.gets), gets);
	assert_nothing_held(4096);
	kvb_close(client);
	stop_server();
}

static void *release_them(void *arg)
{
	struct kvb_lease *leases = arg;

	for (unsigned i = 0; i < CELLS; i++)
		kvb_release(&leases[i]);
	return NULL;
}

static void another_thread_releases(void **state)
{
	struct kvb_client *client;
	struct kvb_lease leases[CELLS];
	pthread_t thread;

	(void)state;
	start_server(POOL, CELLS);
	client = open_client(0);
	for (unsigned round = 0; round < 20; round++) {
		put(client, "key", 4096, round);
		for (unsigned i = 0; i < CELLS; i++)
			leases[i] = acquire(client, "key");
		if (round == 19)
			kvb_close(client);
		assert_int_equal(kvb_thread_start(&thread, "releaser", release_them, leases), 0);
		pthread_join(thread, NULL);
	}
	assert_nothing_held(4096);
	stop_server();
}

/* ---------------------------------------------------------------------------------------- lists of keys */

#define LISTED 12u

/* Keys of a list: the first `n` are there; one of them may be too long for the index. */
struct list {
	char text[LISTED][KVB_KEY_MAX];
	struct kvb_key keys[LISTED];
	struct kvb_lease leases[LISTED];
};

static void list_make(struct list *list, size_t far)
{
	memset(list, 0, sizeof(*list));
	for (size_t i = 0; i < LISTED; i++) {
		size_t len = i == far ? KVB_INDEX_KEY_MAX + 1 : 8;
		memset(list->text[i], 'k', len);
		list->text[i][0] = (char)('a' + i);
		list->keys[i] = (struct kvb_key){list->text[i], len};
	}
}

static size_t prefix(struct kvb_client *client, struct list *list, size_t n, bool hold)
{
	size_t found = 77;

	assert_int_equal(kvb_prefix(client, list->keys, n, hold ? list->leases : NULL, &found), 0);
	for (size_t i = 0; hold && i < found; i++) {
		assert_view(&list->leases[i], 100 + i, i);
		kvb_release(&list->leases[i]);
	}
	return found;
}

static void check_prefixes(struct kvb_client *client, size_t far)
{
	struct list *list = test_malloc(sizeof(*list));

	list_make(list, far);
	for (int hold = 0; hold < 2; hold++) {
		for (size_t there = 0; there <= LISTED; there++) {
			assert_int_equal(prefix(client, list, LISTED, hold), there);
			assert_int_equal(prefix(client, list, there, hold), there);
			assert_int_equal(prefix(client, list, 0, hold), 0);
			if (there < LISTED)
				assert_int_equal(
					put_seed(client, list->keys[there], 100 + there, there), 0);
		}
		/* Broken in the middle, at each place. */
		for (size_t i = 0; i < LISTED; i++) {
			assert_int_equal(
				kvb_delete(client, list->keys[i].data, list->keys[i].len), 0);
			assert_int_equal(prefix(client, list, LISTED, hold), i);
			assert_int_equal(put_seed(client, list->keys[i], 100 + i, i), 0);
		}
		for (size_t i = 0; i < LISTED; i++)
			assert_int_equal(
				kvb_delete(client, list->keys[i].data, list->keys[i].len), 0);
		assert_nothing_held(0);
	}
	test_free(list);
}

static void a_prefix_ends_at_the_first_miss(void **state)
{
	(void)state;
	start_server(POOL, CELLS);
	for (uint32_t flags = 0; flags <= KVB_OPEN_RING_ONLY; flags++) {
		struct kvb_client *client = open_client(flags);
		check_prefixes(client, LISTED);
		check_prefixes(client, 0);
		check_prefixes(client, 5);
		check_prefixes(client, LISTED - 1);
		kvb_close(client);
	}
	stop_server();
}

static void a_prefix_holds_a_key_twice(void **state)
{
	struct kvb_client *client;
	struct kvb_key keys[4];
	struct kvb_lease leases[4] = {0};
	size_t found = 0;

	(void)state;
	start_server(POOL, CELLS);
	client = open_client(0);
	put(client, "key", 4096, 1);
	for (unsigned i = 0; i < 4; i++)
		keys[i] = key_of("key", 3);
	assert_int_equal(kvb_prefix(client, keys, 4, leases, &found), 0);
	assert_int_equal(found, 4);
	assert_int_equal(stats().leases_most, 4);
	put(client, "key", 4096, 2);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(stats().limbo, 1);
		assert_view(&leases[i], 4096, 1);
		kvb_release(&leases[i]);
	}
	assert_nothing_held(4096);
	kvb_close(client);
	stop_server();
}

/* More keys than cells, also with one that is copied in between; and keys that are none. */
static void a_prefix_that_fails_holds_nothing(void **state)
{
	struct kvb_client *client;
	struct kvb_lease leases[CELLS + 2] = {0};
	struct kvb_key keys[CELLS + 2];
	size_t found = 77;

	(void)state;
	start_server(POOL, CELLS);
	client = open_client(0);
	put(client, "key", 4096, 1);
	assert_int_equal(put_seed(client, key_of("far", KVB_INDEX_KEY_MAX + 1), 5000, 1), 0);
	for (unsigned far = 0; far < 2; far++) {
		for (unsigned i = 0; i < CELLS + 2; i++)
			keys[i] = far && i == 3 ? key_of("far", KVB_INDEX_KEY_MAX + 1)
						: (struct kvb_key){"key", 3};
		assert_int_equal(kvb_prefix(client, keys, CELLS + 2, leases, &found), -ENOBUFS);
		assert_nothing_held(3 * 4096);
		assert_int_equal(kvb_prefix(client, keys, CELLS + 2, NULL, &found), 0);
		assert_int_equal(found, CELLS + 2);
		found = 77;
	}
	keys[7].len = 0;
	assert_int_equal(kvb_prefix(client, keys, CELLS + 2, leases, &found), -EINVAL);
	keys[7].len = KVB_KEY_MAX + 1;
	assert_int_equal(kvb_prefix(client, keys, CELLS + 2, leases, &found), -ENAMETOOLONG);
	assert_int_equal(kvb_prefix(client, NULL, 1, leases, &found), -EINVAL);
	assert_int_equal(found, 77);
	for (unsigned i = 0; i < CELLS + 2; i++)
		assert_null(leases[i].owner);
	assert_nothing_held(3 * 4096);
	kvb_close(client);
	stop_server();
}

static void a_prefix_without_a_server_holds_nothing(void **state)
{
	struct kvb_client *client;
	struct kvb_key keys[2] = {{"key", 3}, {"key", 3}};
	struct kvb_lease leases[2] = {0};
	size_t found = 77;

	(void)state;
	start_server(POOL, CELLS);
	client = open_client(0);
	put(client, "key", 4096, 1);
	stop_server();
	assert_int_equal(kvb_prefix(client, keys, 2, leases, &found), -ENOTCONN);
	assert_int_equal(kvb_prefix(client, keys, 2, NULL, &found), -ENOTCONN);
	assert_int_equal(found, 77);
	assert_null(leases[0].owner);
	kvb_close(client);
}

/* ------------------------------------------------------------------------------------ copies and questions */

/* What the server was asked so far. */
struct asked {
	uint64_t gets, exists, puts, present;
};

static struct asked asked(void)
{
	const struct kvb_counters *counters = &embedded.server->counters;

	return (struct asked){counter(&counters->gets), counter(&counters->exists),
		counter(&counters->puts), counter(&counters->puts_present)};
}

/* One object under one key, in every way; `requests`: how many each of them makes. */
static void check_copies(
	struct kvb_client *client, struct kvb_key key, size_t size, uint64_t requests)
{
	uint8_t *data = test_malloc(size + 1);
	struct asked before, after;
	size_t len = 77;

	assert_int_equal(kvb_get(client, key.data, key.len, data, size, &len), -ENOENT);
	assert_int_equal(kvb_exists(client, key.data, key.len, &len), -ENOENT);
	assert_int_equal(len, 77);
	kvb_pattern_fill(data, size, size);
	before = asked();
	assert_int_equal(kvb_put_if_absent(client, key.data, key.len, data, size), 0);
	memset(data, 0x55, size + 1);
	assert_int_equal(kvb_get(client, key.data, key.len, data, size, &len), 0);
	assert_int_equal(len, size);
	assert_true(kvb_pattern_check(data, size, size));
	assert_int_equal(data[size], 0x55);
	len = 77;
	assert_int_equal(kvb_exists(client, key.data, key.len, &len), 0);
	assert_int_equal(len, size);
	assert_int_equal(kvb_put_if_absent(client, key.data, key.len, data, size), -EEXIST);
	after = asked();
	assert_int_equal(after.puts - before.puts, 1);
	assert_int_equal(after.gets - before.gets, requests);
	assert_int_equal(after.exists - before.exists, requests);
	assert_int_equal(after.present - before.present, requests);
	if (size > 0) {
		len = 77;
		memset(data, 0x55, size);
		assert_int_equal(
			kvb_get(client, key.data, key.len, data, size - 1, &len), -EMSGSIZE);
		assert_int_equal(len, size);
		assert_int_equal(data[0], 0x55);
		assert_int_equal(kvb_get(client, key.data, key.len, NULL, 0, &len), -EMSGSIZE);
	}
	assert_int_equal(kvb_delete(client, key.data, key.len), 0);
	test_free(data);
}

static void check_all_copies(uint32_t flags)
{
	static const size_t key_sizes[] = {1, 7, 8, 9, 199, 200, 201, 1024};
	struct kvb_client *client = open_client(flags);

	for (size_t k = 0; k < KVB_ARRAY_SIZE(key_sizes); k++) {
		bool near = key_sizes[k] <= KVB_INDEX_KEY_MAX && !(flags & KVB_OPEN_RING_ONLY);
		for (size_t i = 0; i < KVB_ARRAY_SIZE(sizes); i++)
			check_copies(client, key_of("key", key_sizes[k]), sizes[i], near ? 0 : 1);
	}
	kvb_close(client);
}

static void a_local_read_makes_no_request(void **state)
{
	(void)state;
	start_server(2 * POOL, CELLS);
	check_all_copies(0);
	stop_server();
}

static void a_client_of_the_ring_makes_them(void **state)
{
	(void)state;
	start_server(2 * POOL, CELLS);
	check_all_copies(KVB_OPEN_RING_ONLY);
	stop_server();
}

/* --------------------------------------------------------------------------- leases and eviction */

#define SLICES 16u /* objects of this size fill the pool */
#define SLICE  (POOL / SLICES)

static void put_slice(struct kvb_client *client, unsigned i, int result)
{
	char key[16];

	snprintf(key, sizeof(key), "slice%u", i);
	assert_int_equal(put_seed(client, key_of(key, strlen(key)), SLICE, i), result);
}

static bool has_slice(struct kvb_client *client, unsigned i)
{
	char key[16];
	int r;

	snprintf(key, sizeof(key), "slice%u", i);
	r = kvb_exists(client, key, strlen(key), NULL);
	assert_true(r == 0 || r == -ENOENT);
	return r == 0;
}

static struct kvb_lease acquire_slice(struct kvb_client *client, unsigned i)
{
	char key[16];

	snprintf(key, sizeof(key), "slice%u", i);
	return acquire(client, key);
}

static int see_most(void *user, const struct kvb_stat *stat)
{
	uint64_t *most = user;

	if (strcmp(stat->name, "leases.most") == 0)
		most[0] = stat->value;
	if (strcmp(stat->name, "leases.most_session") == 0)
		most[1] = stat->value;
	if (strcmp(stat->name, "leases.refused") == 0)
		most[2] = stat->value;
	return 0;
}

static void a_pool_full_of_leases_refuses_and_says_who(void **state)
{
	struct kvb_client *reader, *writer;
	struct kvb_lease leases[SLICES];
	uint64_t most[3] = {0};
	struct kvb_info info;

	(void)state;
	start_server(POOL, SLICES);
	writer = open_client(0);
	reader = open_client(0);
	assert_int_equal(kvb_get_info(reader, &info), 0);
	for (unsigned i = 0; i < SLICES; i++)
		put_slice(writer, i, 0);
	for (unsigned i = 0; i < SLICES; i++)
		leases[i] = acquire_slice(reader, i);
	for (unsigned i = 0; i < 3; i++)
		put_slice(writer, SLICES, -ENOSPC);
	assert_int_equal(stats().evicted, 0);
	assert_int_equal(kvb_stats(writer, see_most, most), 0);
	assert_int_equal(most[0], SLICES);
	assert_int_equal(most[1], (uint32_t)info.session);
	assert_int_equal(most[2], 3);
	/* What is replaced keeps its place, too, until it is let go. */
	assert_int_equal(kvb_delete(writer, "slice3", 6), 0);
	put_slice(writer, SLICES, -ENOSPC);
	for (unsigned i = 0; i < SLICES; i++)
		assert_view(&leases[i], SLICE, i);
	kvb_release(&leases[3]);
	put_slice(writer, SLICES, 0);
	assert_int_equal(stats().evicted, 0);
	kvb_release(&leases[7]);
	put_slice(writer, SLICES + 1, 0);
	assert_int_equal(stats().evicted, 1);
	assert_false(has_slice(writer, 7));
	for (unsigned i = 0; i < SLICES; i++) {
		if (leases[i].owner)
			assert_view(&leases[i], SLICE, i);
		kvb_release(&leases[i]);
	}
	assert_nothing_held(POOL);
	kvb_close(reader);
	kvb_close(writer);
	stop_server();
}

/* The same when it is slots that run out. */
static void slots_full_of_leases_refuse_and_say_so(void **state)
{
	struct kvb_server_options config;
	struct kvb_client *client;
	struct kvb_lease leases[8];

	(void)state;
	embedded_config(&config);
	config.objects_max = 8;
	config.lease_cells = 8;
	assert_int_equal(embedded_start(&embedded, &config), 0);
	client = open_client(0);
	for (unsigned i = 0; i < 8; i++) {
		put_slice(client, i, 0);
		leases[i] = acquire_slice(client, i);
	}
	put_slice(client, 8, -ENOSPC);
	assert_int_equal(stats().leased_refused, 1);
	kvb_release(&leases[5]);
	put_slice(client, 8, 0);
	assert_false(has_slice(client, 5));
	for (unsigned i = 0; i < 8; i++)
		kvb_release(&leases[i]);
	kvb_close(client);
	stop_server();
}

static void leased_objects_go_last(void **state)
{
	struct kvb_client *reader, *writer;
	struct kvb_lease leases[SLICES / 2];

	(void)state;
	start_server(POOL, SLICES);
	writer = open_client(0);
	reader = open_client(0);
	for (unsigned i = 0; i < SLICES; i++)
		put_slice(writer, i, 0);
	/* The even ones, and then the odd ones are used by somebody else, so that these are newer. */
	for (unsigned i = 0; i < SLICES; i += 2)
		leases[i / 2] = acquire_slice(reader, i);
	for (unsigned i = 1; i < SLICES; i += 2)
		assert_true(has_slice(writer, i));
	for (unsigned i = 0; i < 4 * SLICES; i++)
		put_slice(writer, 100 + i, 0);
	assert_true(stats().leased_spared >= 1);
	assert_int_equal(stats().leased_refused, 0);
	for (unsigned i = 0; i < SLICES; i++)
		assert_int_equal(has_slice(writer, i), i % 2 == 0);
	for (unsigned i = 0; i < SLICES; i += 2) {
		assert_view(&leases[i / 2], SLICE, i);
		kvb_release(&leases[i / 2]);
	}
	assert_nothing_held(POOL);
	kvb_close(reader);
	kvb_close(writer);
	stop_server();
}

/* Eviction goes by what readers use, though they tell nobody in so many words. */
static void what_is_only_read_locally_stays(void **state)
{
	uint8_t *data = test_malloc(SLICE);
	struct kvb_client *reader, *writer;
	struct kvb_lease lease;
	struct asked before;

	(void)state;
	start_server(POOL, SLICES);
	writer = open_client(0);
	reader = open_client(0);
	for (unsigned i = 0; i < SLICES; i++)
		put_slice(writer, i, 0);
	before = asked();
	for (unsigned i = 0; i < 5 * SLICES; i++) {
		assert_true(has_slice(reader, 0));
		assert_int_equal(kvb_get(reader, "slice1", 6, data, SLICE, NULL), 0);
		lease = acquire_slice(reader, 2);
		kvb_release(&lease);
		put_slice(writer, 100 + i, 0);
	}
	assert_int_equal(asked().gets, before.gets);
	assert_int_equal(asked().exists, before.exists);
	/* Once more in the order of use: 1 is the oldest of the three. */
	assert_int_equal(kvb_get(reader, "slice1", 6, data, SLICE, NULL), 0);
	assert_true(has_slice(reader, 0));
	lease = acquire_slice(reader, 2);
	kvb_release(&lease);
	for (unsigned i = 0; i < SLICES - 2; i++)
		put_slice(writer, 1000 + i, 0);
	assert_false(has_slice(writer, 1));
	put_slice(writer, 1100, 0);
	assert_false(has_slice(writer, 0));
	put_slice(writer, 1101, 0);
	assert_false(has_slice(writer, 2));
	assert_nothing_held(POOL);
	test_free(data);
	kvb_close(reader);
	kvb_close(writer);
	stop_server();
}

/* Maintenance finds nothing that it could evict: it must rest, not look for it all the time. */
static void maintenance_rests_while_all_is_leased(void **state)
{
	struct kvb_server_options config;
	struct kvb_client *client;
	struct kvb_lease leases[SLICES];
	uint64_t before, deadline_ns;

	(void)state;
	embedded_config(&config);
	config.pool_bytes = POOL;
	config.low_percent = 50;
	config.high_percent = 75;
	assert_int_equal(embedded_start(&embedded, &config), 0);
	client = open_client(0);
	for (unsigned i = 0; i < 12; i++) {
		put_slice(client, i, 0);
		leases[i] = acquire_slice(client, i);
	}
	/* This one is over the mark. It may go at once, since it is the only one that can. */
	put_slice(client, 12, 0);
	/* It has a moment to find out. */
	deadline_ns = kvb_now_ns() + 100 * KVB_NS_PER_MS;
	while (kvb_now_ns() < deadline_ns)
		sched_yield();
	before = stats().leased_spared;
	deadline_ns = kvb_now_ns() + 200 * KVB_NS_PER_MS;
	while (kvb_now_ns() < deadline_ns)
		sched_yield();
	print_message("spared %llu, and 200 ms later %llu\n", (unsigned long long)before,
		(unsigned long long)stats().leased_spared);
	assert_true(stats().leased_spared - before <= 20 * 12);
	for (unsigned i = 0; i < 12; i++)
		kvb_release(&leases[i]);
	/* It does its work at the next put. */
	put_slice(client, 13, 0);
	put_slice(client, 14, 0);
	kvb_close(client);
	stop_server();
}

/* ------------------------------------------------------------------------------------------ processes */

static struct kvb_lease parents_lease;

#ifndef __SANITIZE_THREAD__
/* A lease of the child's own is another matter. */
static int read_in_child(void)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_lease lease, parents = parents_lease;
	struct kvb_client *own;
	int faults;

	options.dir = embedded.dir;
	if (kvb_open(&options, &own) < 0)
		return 128;
	faults = kvb_acquire(own, "key", 3, &lease) != 0 ? 128 : 0;
	kvb_release(&parents);
	kvb_release(&lease);
	kvb_close(own);
	return faults;
}
#endif

static int be_child(void *arg)
{
	struct kvb_client *client = arg;
	struct kvb_lease parents = parents_lease;
	struct kvb_key key = {"key", 3};
	struct kvb_lease lease = {0};
	uint8_t data[64];
	size_t found;
	int faults = 0;

	faults |= kvb_acquire(client, "key", 3, &lease) != -ECHILD ? 1 : 0;
	faults |= lease.owner ? 2 : 0;
	faults |= kvb_prefix(client, &key, 1, &lease, &found) != -ECHILD ? 4 : 0;
	faults |= kvb_prefix(client, &key, 1, NULL, &found) != -ECHILD ? 8 : 0;
	faults |= kvb_get(client, "key", 3, data, sizeof(data), NULL) != -ECHILD ? 16 : 0;
	faults |= kvb_exists(client, "key", 3, NULL) != -ECHILD ? 32 : 0;
	faults |= kvb_put_if_absent(client, "key", 3, data, 1) != -ECHILD ? 64 : 0;
	kvb_release(&parents);
	faults |= parents.owner ? 2 : 0;
	kvb_close(client);
	parents = parents_lease;
	kvb_release(&parents);
	/* ThreadSanitizer allows no threads in a child of a process that has some. */
#ifndef __SANITIZE_THREAD__
	faults |= read_in_child();
#endif
	return faults;
}

static void a_forked_child_leaves_the_parents_leases(void **state)
{
	struct kvb_client *client;
	struct kvb_lease lease;

	(void)state;
	start_server(POOL, CELLS);
	client = open_client(0);
	put(client, "key", 64, 1);
	lease = parents_lease = acquire(client, "key");
	assert_int_equal(process_wait(process_fork(be_child, client), 20000), 0);
	put(client, "key", 64, 2);
	assert_view(&lease, 64, 1);
	assert_int_equal(stats().limbo, 1);
	kvb_release(&lease);
	lease = acquire(client, "key");
	assert_view(&lease, 64, 2);
	kvb_release(&lease);
	assert_nothing_held(4096);
	kvb_close(client);
	stop_server();
}

/* -------------------------------------------------------------------------------------------- threads */

#define AT_ONCE (KVB_INSIDE_WORDS + 88)
#define KEYS    8u

struct crowd {
	struct kvb_client *client;
	uint32_t turns; /* of each thread */
	uint32_t here;  /* atomic: threads that have read something */
	uint32_t go;    /* atomic: they may end */
	uint32_t wrong; /* atomic */
};

static void read_once(struct crowd *crowd, uint32_t turn)
{
	struct kvb_lease lease;
	uint8_t data[256];
	size_t len = 0;
	char key[8];
	int r;

	snprintf(key, sizeof(key), "key%u", turn % KEYS);
	r = kvb_get(crowd->client, key, 4, data, sizeof(data), &len);
	if (r != 0 || !kvb_pattern_check(data, len, turn % KEYS))
		kvb_count(&crowd->wrong, 1);
	r = kvb_acquire(crowd->client, key, 4, &lease);
	/* There may be more threads than cells. */
	if (r == 0) {
		const uint8_t *view = kvb_view(&lease, &len);
		if (!kvb_pattern_check(view, len, turn % KEYS))
			kvb_count(&crowd->wrong, 1);
		kvb_release(&lease);
	} else if (r != -ENOBUFS) {
		kvb_count(&crowd->wrong, 1);
	}
}

static void *read_in_crowd(void *arg)
{
	struct crowd *crowd = arg;

	for (uint32_t i = 0; i < crowd->turns; i++) {
		read_once(crowd, i);
		sched_yield();
	}
	(void)kvb_fetch_add(&crowd->here, 1u);
	while (!kvb_load_acquire(&crowd->go))
		usleep(1000);
	read_once(crowd, 0);
	return NULL;
}

struct waited {
	struct crowd *crowd;
	uint32_t count;
};

static bool all_here(const void *arg)
{
	const struct waited *waited = arg;

	return kvb_load_acquire(&waited->crowd->here) == waited->count;
}

/* So many threads at once; none of them is lost, and none keeps anything when it has ended. */
static void run_crowd(struct crowd *crowd, uint32_t count)
{
	pthread_t *threads = test_calloc(count, sizeof(*threads));
	struct waited waited = {crowd, count};

	crowd->here = crowd->go = 0;
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(kvb_thread_start(&threads[i], "crowd", read_in_crowd, crowd), 0);
	assert_true(embedded_wait(all_here, &waited));
	kvb_store_release(&crowd->go, 1u);
	for (uint32_t i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	test_free(threads);
	assert_int_equal(crowd->wrong, 0);
}

static void put_keys(struct kvb_client *client)
{
	for (unsigned i = 0; i < KEYS; i++) {
		char key[8];
		snprintf(key, sizeof(key), "key%u", i);
		put(client, key, 200 + i, i);
	}
}

static void more_threads_than_words_read(void **state)
{
	struct crowd crowd = {.turns = 10};

	(void)state;
	start_server(POOL, CELLS);
	crowd.client = open_client(0);
	put_keys(crowd.client);
	run_crowd(&crowd, AT_ONCE);
	run_crowd(&crowd, AT_ONCE);
	/* The main thread may be among those without a number; nobody else has one now. */
	assert_nothing_held(KEYS * 4096);
	kvb_close(crowd.client);
	stop_server();
}

static void *note_number(void *arg)
{
	*(uint32_t *)arg = kvb_inside_thread();
	return NULL;
}

static uint32_t number_of_a_new_thread(void)
{
	uint32_t number = UINT32_MAX;
	pthread_t thread;

	assert_int_equal(kvb_thread_start(&thread, "number", note_number, &number), 0);
	pthread_join(thread, NULL);
	return number;
}

static void numbers_of_threads_come_back(void **state)
{
	struct crowd crowd = {.turns = 1};
	uint32_t first;

	(void)state;
	start_server(POOL, CELLS);
	crowd.client = open_client(0);
	put_keys(crowd.client);
	first = number_of_a_new_thread();
	assert_true(first < KVB_INSIDE_WORDS);
	for (unsigned i = 0; i < 100; i++)
		run_crowd(&crowd, 8);
	assert_int_equal(number_of_a_new_thread(), first);
	kvb_close(crowd.client);
	stop_server();
}

/* More threads than words read, hold and let go while their client is taken from them. */
static void *read_until_reset(void *arg)
{
	struct crowd *crowd = arg;
	uint8_t data[256];
	uint32_t i;
	int r = 0;

	for (i = 0; r == 0; i++) {
		struct kvb_lease lease;
		size_t len = 0;
		r = kvb_get(crowd->client, "key1", 4, data, sizeof(data), &len);
		if (r == 0 && !kvb_pattern_check(data, len, 1))
			kvb_count(&crowd->wrong, 1);
		if (r == 0 && kvb_acquire(crowd->client, "key1", 4, &lease) == 0)
			kvb_release(&lease);
		if (i == 0)
			(void)kvb_fetch_add(&crowd->here, 1u);
		/* Hundreds of them that use up their slices leave the server too little. */
		sched_yield();
	}
	if (r != -ENOTCONN && r != -ECONNRESET && r != -ESHUTDOWN)
		kvb_count(&crowd->wrong, 1);
	return NULL;
}

static void the_server_stops_under_many_readers(void **state)
{
	(void)state;
	for (unsigned round = 0; round < 4; round++) {
		uint32_t count = round % 2 ? AT_ONCE : 8;
		pthread_t *threads = test_calloc(count, sizeof(*threads));
		struct crowd crowd = {0};
		struct waited waited = {&crowd, count};
		/* Without a cell a thread would ask, and wait with all others for answers. */
		start_server(POOL, 2 * AT_ONCE);
		crowd.client = open_client(0);
		put_keys(crowd.client);
		for (uint32_t i = 0; i < count; i++)
			assert_int_equal(
				kvb_thread_start(&threads[i], "crowd", read_until_reset, &crowd),
				0);
		assert_true(embedded_wait(all_here, &waited));
		assert_int_equal(embedded_stop(&embedded), 0);
		for (uint32_t i = 0; i < count; i++)
			pthread_join(threads[i], NULL);
		assert_int_equal(crowd.wrong, 0);
		kvb_close(crowd.client);
		test_free(threads);
	}
}

/* ------------------------------------------------------------------------------------ the end of a client */

/* The memory that a copy goes to is asked for in the middle of kvb_acquire(). */
#define COPY_SIZE 12345u
#define CLOSE_NS  (300 * KVB_NS_PER_MS) /* longer than a kvb_close() that waits for nobody takes */

static uint32_t copying;      /* atomic: 1 is to wait, 2 waits */
static uint32_t closed;       /* atomic: kvb_close() has returned */
static uint32_t closed_early; /* atomic: while a call was inside */

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

void *__wrap_malloc(size_t size)
{
	uint64_t deadline_ns = kvb_now_ns() + CLOSE_NS;
	uint32_t expected = 1;

	if (size != COPY_SIZE + 1 || !kvb_compare_exchange(&copying, &expected, 2u))
		return __real_malloc(size);
	while (kvb_now_ns() < deadline_ns && !kvb_load_acquire(&closed))
		usleep(1000);
	if (!kvb_load_acquire(&closed))
		return __real_malloc(size);
	/* The client is gone: there is no way on but this one. */
	kvb_store_release(&closed_early, 1u);
	return NULL;
}

struct copy_call {
	struct kvb_client *client;
	int result;
};

static void *acquire_a_copy(void *arg)
{
	struct kvb_lease lease = {0};
	struct copy_call *call = arg;

	call->result = kvb_acquire(call->client, "copy", 4, &lease);
	kvb_release(&lease);
	return NULL;
}

static bool is_copying(const void *arg)
{
	(void)arg;
	return kvb_load_acquire(&copying) == 2;
}

static void closing_waits_for_a_copy(void **state)
{
	struct copy_call call = {NULL, 77};
	pthread_t thread;

	(void)state;
	start_server(POOL, CELLS);
	call.client = open_client(KVB_OPEN_RING_ONLY);
	put(call.client, "copy", COPY_SIZE, 1);
	kvb_store_release(&copying, 1u);
	assert_int_equal(kvb_thread_start(&thread, "copy", acquire_a_copy, &call), 0);
	assert_true(embedded_wait(is_copying, NULL));
	kvb_close(call.client);
	kvb_store_release(&closed, 1u);
	pthread_join(thread, NULL);
	assert_int_equal(closed_early, 0);
	assert_int_equal(call.result, -ECONNRESET);
	stop_server();
}

struct closing {
	struct kvb_client *client;
	struct kvb_key *keys;
	size_t n;
	uint32_t inside; /* atomic */
	int result;
	size_t found;
};

static void *look_up_a_long_list(void *arg)
{
	struct closing *closing = arg;

	kvb_store_release(&closing->inside, 1u);
	closing->result =
		kvb_prefix(closing->client, closing->keys, closing->n, NULL, &closing->found);
	return NULL;
}

static bool has_asked(const void *arg)
{
	return counter(&embedded.server->counters.exists) > *(const uint64_t *)arg + 10;
}

/* A list that is asked for key by key is one call, which kvb_close() waits for. */
static void closing_waits_for_a_list_that_asks(void **state)
{
	struct closing closing = {.n = 200000};
	pthread_t thread;

	(void)state;
	start_server(POOL, CELLS);
	closing.keys = test_calloc(closing.n, sizeof(*closing.keys));
	for (size_t i = 0; i < closing.n; i++)
		closing.keys[i] = (struct kvb_key){"key1", 4};
	for (unsigned round = 0; round < 20; round++) {
		uint64_t before = asked().exists;
		closing.client = open_client(KVB_OPEN_RING_ONLY);
		put_keys(closing.client);
		closing.result = 77;
		assert_int_equal(
			kvb_thread_start(&thread, "list", look_up_a_long_list, &closing), 0);
		assert_true(embedded_wait(has_asked, &before));
		kvb_close(closing.client);
		pthread_join(thread, NULL);
		assert_int_equal(closing.result, -ECONNRESET);
	}
	test_free(closing.keys);
	stop_server();
}

static uint32_t hold_askers; /* atomic */
static uint32_t askers_held; /* atomic */

static void hold_at_ask(enum kvb_client_hook_point point)
{
	if (point != KVB_CLIENT_HOOK_ASK || !kvb_load_acquire(&hold_askers))
		return;
	(void)kvb_fetch_add(&askers_held, 1u);
	while (kvb_load_acquire(&hold_askers))
		poll(NULL, 0, 1);
}

static bool an_asker_is_held(const void *arg)
{
	(void)arg;
	return kvb_load_acquire(&askers_held) > 0;
}

struct asker {
	struct kvb_client *client;
	unsigned way;
	int result;
	uint32_t closed; /* atomic */
};

/* Reads that turn out to need the ring. */
static void *ask(void *arg)
{
	const struct kvb_key key = {"key1", 4};
	struct asker *asker = arg;
	struct kvb_lease lease;
	size_t n;

	if (asker->way == 0)
		asker->result = kvb_put_if_absent(asker->client, "absent", 6, "x", 1);
	else if (asker->way == 1)
		asker->result = kvb_exists(asker->client, "key1", 4, NULL);
	else if (asker->way == 2)
		asker->result = kvb_acquire(asker->client, "key1", 4, &lease);
	else
		asker->result = kvb_prefix(asker->client, &key, 1, NULL, &n);
	return NULL;
}

static void *close_it(void *arg)
{
	struct asker *asker = arg;

	kvb_close(asker->client);
	kvb_store_release(&asker->closed, 1u);
	return NULL;
}

/* From local reading to the ring is a step in which kvb_close() must not lose sight of the caller. */
static void closing_waits_for_one_on_his_way_to_the_ring(void **state)
{
	(void)state;
	kvb_client_hook_installed = hold_at_ask;
	for (unsigned way = 0; way < 4; way++) {
		struct asker asker = {NULL, way, 77, 0};
		pthread_t thread, closer;
		start_server(POOL, CELLS);
		asker.client = open_client(0);
		put_keys(asker.client);
		/* Then nothing is read locally. */
		if (way > 0)
			stop_server();
		kvb_store_release(&askers_held, 0u);
		kvb_store_release(&hold_askers, 1u);
		assert_int_equal(kvb_thread_start(&thread, "ask", ask, &asker), 0);
		assert_true(embedded_wait(an_asker_is_held, NULL));
		assert_int_equal(kvb_thread_start(&closer, "close", close_it, &asker), 0);
		for (unsigned i = 0; i < 100 && !kvb_load_acquire(&asker.closed); i++)
			poll(NULL, 0, 1);
		assert_int_equal(kvb_load_acquire(&asker.closed), 0);
		kvb_store_release(&hold_askers, 0u);
		pthread_join(thread, NULL);
		pthread_join(closer, NULL);
		assert_int_equal(asker.result, -ECONNRESET);
		if (way == 0)
			stop_server();
	}
	kvb_client_hook_installed = NULL;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_view_is_the_object),
		cmocka_unit_test(what_is_not_there_is_not_held),
		cmocka_unit_test(a_view_outlives_replacement_and_deletion),
		cmocka_unit_test(a_view_outlives_the_eviction_of_all_else),
		cmocka_unit_test(a_view_outlives_the_server_and_the_client),
		cmocka_unit_test(the_last_view_ends_the_session),
		cmocka_unit_test(a_view_outlives_a_session_that_the_server_ended),
		cmocka_unit_test(all_cells_taken_leave_the_ring),
		cmocka_unit_test(another_thread_releases),
		cmocka_unit_test(a_prefix_ends_at_the_first_miss),
		cmocka_unit_test(a_prefix_holds_a_key_twice),
		cmocka_unit_test(a_prefix_that_fails_holds_nothing),
		cmocka_unit_test(a_prefix_without_a_server_holds_nothing),
		cmocka_unit_test(a_local_read_makes_no_request),
		cmocka_unit_test(a_client_of_the_ring_makes_them),
		cmocka_unit_test(a_pool_full_of_leases_refuses_and_says_who),
		cmocka_unit_test(slots_full_of_leases_refuse_and_say_so),
		cmocka_unit_test(leased_objects_go_last),
		cmocka_unit_test(what_is_only_read_locally_stays),
		cmocka_unit_test(maintenance_rests_while_all_is_leased),
		cmocka_unit_test(a_forked_child_leaves_the_parents_leases),
		cmocka_unit_test(more_threads_than_words_read),
		cmocka_unit_test(numbers_of_threads_come_back),
		cmocka_unit_test(the_server_stops_under_many_readers),
		cmocka_unit_test(closing_waits_for_a_copy),
		cmocka_unit_test(closing_waits_for_a_list_that_asks),
		cmocka_unit_test(closing_waits_for_one_on_his_way_to_the_ring),
	};

	return cmocka_run_group_tests_name("reads", tests, NULL, NULL) ? 1 : 0;
}
