/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store.c - objects in the pool: who sees them, who keeps them, who goes first.
 *
 * Owns a pool of plain memory. The tests run in one thread, but for the last, where several threads
 * put, read and delete the same keys; they only record what is wrong, and the test's thread asserts
 * once they are joined. The random test compares every step with a model that knows each unit of
 * the pool; its seeds are fixed, so a failure can be had again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <errno.h>
#include <sched.h>

#include "kvbell/protocol.h"
#include "server/store.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/random.h"

#define UNIT        256u
#define DEADLINE_NS (60 * KVB_NS_PER_S) /* only a broken store ever gets there */

struct room {
	struct kvb_store *store;
	unsigned char *pool;
};

/* ------------------------------------------------------------------------------------- helpers */

static void open_room(struct room *room, uint64_t units, const struct kvb_store_config *wanted)
{
	struct kvb_store_config config = *wanted;

	room->pool = aligned_alloc(UNIT, units * UNIT);
	assert_non_null(room->pool);
	config.pool = room->pool;
	config.pool_bytes = units * UNIT;
	config.alignment = UNIT;
	config.hash_seed = 0x5eed;
	assert_int_equal(kvb_store_new(&config, &room->store), 0);
}

/* All of the pool is there, nothing is evicted before it must be. */
static void open_ready(struct room *room, uint64_t units, uint32_t objects_max)
{
	struct kvb_store_config config = {
		.objects_max = objects_max, .low_percent = 100, .high_percent = 100};

	open_room(room, units, &config);
	assert_int_equal(kvb_store_add_range(room->store, 0, units * UNIT), 0);
}

static void close_room(struct room *room)
{
	assert_int_equal(kvb_store_check(room->store), 0);
	kvb_store_free(room->store);
	free(room->pool);
}

static unsigned char byte_at(uint64_t seed, uint64_t i)
{
	return (unsigned char)(seed * 31 + i * 7 + i / 251);
}

static void fill(void *data, uint64_t length, uint64_t seed)
{
	for (uint64_t i = 0; i < length; i++)
		((unsigned char *)data)[i] = byte_at(seed, i);
}

static bool is_filled(const void *data, uint64_t length, uint64_t seed)
{
	for (uint64_t i = 0; i < length; i++) {
		if (((const unsigned char *)data)[i] != byte_at(seed, i))
			return false;
	}
	return true;
}

static struct kvb_store_stats stats_of(const struct room *room)
{
	struct kvb_store_stats stats;

	kvb_store_get_stats(room->store, &stats);
	return stats;
}

static int reserve(
	const struct room *room, const char *key, uint64_t length, struct kvb_object **ret_object)
{
	return kvb_store_reserve(room->store, key, strlen(key), length, ret_object);
}

/* Stores `length` bytes made from `seed`. */
static int put(const struct room *room, const char *key, uint64_t length, uint64_t seed)
{
	struct kvb_object *object;
	int r = reserve(room, key, length, &object);

	if (r < 0)
		return r;
	fill(kvb_store_object_data(room->store, object), length, seed);
	kvb_store_commit(room->store, object);
	return 0;
}

static struct kvb_object *hold(const struct room *room, const char *key)
{
	struct kvb_object *object = NULL;

	assert_int_equal(kvb_store_hold(room->store, key, strlen(key), &object), 0);
	return object;
}

static bool object_is(
	const struct room *room, const struct kvb_object *object, uint64_t length, uint64_t seed)
{
	return kvb_store_object_length(object) == length &&
		is_filled(kvb_store_object_data(room->store, object), length, seed);
}

static bool get_is(const struct room *room, const char *key, uint64_t length, uint64_t seed)
{
	struct kvb_object *object = hold(room, key);
	bool is = object_is(room, object, length, seed);

	kvb_store_unhold(room->store, object);
	return is;
}

static int remove_key(const struct room *room, const char *key)
{
	return kvb_store_delete(room->store, key, strlen(key));
}

static int exists(const struct room *room, const char *key, uint64_t *ret_length)
{
	return kvb_store_exists(room->store, key, strlen(key), ret_length);
}

static int note_letter(void *user, const void *key, size_t key_len, uint64_t length)
{
	char *letters = user;

	(void)length;
	if (key_len == 1)
		letters[*(const char *)key - 'a'] = *(const char *)key;
	return 0;
}

/* The visible objects with keys "a" to "z", in this order; unlike exists, it is no use of them. */
static const char *letters_of(const struct room *room)
{
	static char text[27];
	char letters[26] = {0};
	size_t n = 0;

	assert_int_equal(kvb_store_list(room->store, 0, note_letter, letters), 0);
	for (size_t i = 0; i < 26; i++) {
		if (letters[i])
			text[n++] = letters[i];
	}
	text[n] = '\0';
	return text;
}

/* One object per letter, each `units` long. */
static void put_letters(const struct room *room, const char *letters, uint64_t units)
{
	for (; *letters; letters++) {
		char key[2] = {*letters, '\0'};
		assert_int_equal(put(room, key, units * UNIT, (uint64_t)*letters), 0);
	}
}

/* ---------------------------------------------------------------------------------- single steps */

static void new_refuses_what_makes_no_sense(void **state)
{
	static char pool[4096];
	const struct kvb_store_config good = {.pool = pool,
		.pool_bytes = 4096,
		.objects_max = 1,
		.alignment = 256,
		.low_percent = 50,
		.high_percent = 50};
	struct kvb_store_config bad[8];
	struct kvb_store *store = NULL;

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(bad); i++)
		bad[i] = good;
	bad[0].pool = NULL;
	bad[1].pool_bytes = 0;
	bad[2].pool_bytes = 4095;
	bad[3].objects_max = 0;
	bad[4].objects_max = UINT32_MAX;
	bad[5].alignment = 255;
	bad[6].low_percent = 51;
	bad[7].high_percent = 101;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(bad); i++) {
		if (kvb_store_new(&bad[i], &store) != -EINVAL)
			fail_msg("bad configuration %zu was taken", i);
	}
	assert_null(store);
	assert_int_equal(kvb_store_new(&good, &store), 0);
	kvb_store_free(store);
	kvb_store_free(NULL);
}

static void a_commit_makes_visible_at_once(void **state)
{
	struct kvb_object *object = NULL, *seen = NULL;
	struct kvb_store_stats stats;
	struct room room;
	uint64_t length = 7;
	unsigned char *data;

	(void)state;
	open_ready(&room, 8, 4);
	assert_int_equal(reserve(&room, "a", 300, &object), 0);
	data = kvb_store_object_data(room.store, object);
	assert_ptr_equal(data, room.pool);
	assert_int_equal(kvb_store_object_length(object), 300);
	fill(data, 300, 1);
	assert_int_equal(kvb_store_hold(room.store, "a", 1, &seen), -ENOENT);
	assert_int_equal(exists(&room, "a", &length), -ENOENT);
	assert_int_equal(remove_key(&room, "a"), -ENOENT);
	assert_string_equal(letters_of(&room), "");
	assert_null(seen);
	assert_int_equal(length, 7);
	stats = stats_of(&room);
	assert_int_equal(stats.pending, 1);
	assert_int_equal(stats.pending_bytes, 300);
	assert_int_equal(stats.objects, 0);
	assert_int_equal(stats.payload_bytes, 0);
	assert_int_equal(stats.used_bytes, 2 * UNIT);
	assert_int_equal(kvb_store_check(room.store), 0);

	kvb_store_commit(room.store, object);
	assert_int_equal(kvb_store_hold(room.store, "a", 1, &seen), 0);
	assert_ptr_equal(kvb_store_object_data(room.store, seen), data);
	assert_true(object_is(&room, seen, 300, 1));
	assert_int_equal(exists(&room, "a", &length), 0);
	assert_int_equal(length, 300);
	assert_string_equal(letters_of(&room), "a");
	assert_int_equal(stats_of(&room).held, 1);
	kvb_store_unhold(room.store, seen);
	stats = stats_of(&room);
	assert_int_equal(stats.pending, 0);
	assert_int_equal(stats.pending_bytes, 0);
	assert_int_equal(stats.objects, 1);
	assert_int_equal(stats.payload_bytes, 300);
	assert_int_equal(stats.used_bytes, 2 * UNIT);
	assert_int_equal(stats.held, 0);
	assert_int_equal(stats.objects_max, 4);
	assert_int_equal(stats.pool_bytes, 8 * UNIT);
	assert_int_equal(stats.ready_bytes, 8 * UNIT);
	assert_int_equal(stats.free_largest, 6 * UNIT);
	assert_int_equal(stats.evicted, 0);
	assert_int_equal(stats.replaced, 0);
	close_room(&room);
}

static void an_abort_leaves_no_trace(void **state)
{
	struct kvb_object *object;
	struct room room;

	(void)state;
	open_ready(&room, 4, 4);
	put_letters(&room, "a", 1);
	assert_int_equal(reserve(&room, "a", 3 * UNIT, &object), 0);
	assert_int_equal(stats_of(&room).used_bytes, 4 * UNIT);
	kvb_store_abort(room.store, object);
	assert_int_equal(stats_of(&room).used_bytes, UNIT);
	assert_int_equal(stats_of(&room).pending, 0);
	assert_int_equal(stats_of(&room).pending_bytes, 0);
	assert_int_equal(stats_of(&room).objects, 1);
	assert_int_equal(stats_of(&room).evicted, 0);
	assert_true(get_is(&room, "a", UNIT, 'a'));
	close_room(&room);
}

static void replacing_frees_the_old_one(void **state)
{
	struct room room;

	(void)state;
	open_ready(&room, 8, 4);
	assert_int_equal(put(&room, "a", 600, 1), 0);
	assert_int_equal(put(&room, "a", 10, 2), 0);
	assert_true(get_is(&room, "a", 10, 2));
	assert_int_equal(stats_of(&room).objects, 1);
	assert_int_equal(stats_of(&room).payload_bytes, 10);
	assert_int_equal(stats_of(&room).used_bytes, UNIT);
	assert_int_equal(stats_of(&room).replaced, 1);
	assert_int_equal(stats_of(&room).evicted, 0);
	close_room(&room);
}

static void holders_keep_what_is_replaced(void **state)
{
	struct kvb_object *first, *again, *second;
	struct room room;

	(void)state;
	open_ready(&room, 8, 4);
	assert_int_equal(put(&room, "a", 600, 1), 0);
	first = hold(&room, "a");
	again = hold(&room, "a");
	assert_ptr_equal(first, again);
	assert_int_equal(stats_of(&room).held, 1);
	assert_int_equal(put(&room, "a", 300, 2), 0);
	second = hold(&room, "a");
	assert_true(object_is(&room, first, 600, 1));
	assert_true(object_is(&room, second, 300, 2));
	assert_int_equal(stats_of(&room).held, 2);
	assert_int_equal(stats_of(&room).objects, 1);
	assert_int_equal(stats_of(&room).payload_bytes, 300);
	assert_int_equal(stats_of(&room).used_bytes, 5 * UNIT);
	assert_int_equal(kvb_store_check(room.store), 0);
	kvb_store_unhold(room.store, first);
	assert_int_equal(stats_of(&room).used_bytes, 5 * UNIT);
	assert_true(object_is(&room, again, 600, 1));
	kvb_store_unhold(room.store, again);
	assert_int_equal(stats_of(&room).used_bytes, 2 * UNIT);
	assert_int_equal(stats_of(&room).held, 1);
	assert_true(object_is(&room, second, 300, 2));
	kvb_store_unhold(room.store, second);
	assert_int_equal(stats_of(&room).held, 0);
	close_room(&room);
}

static void holders_keep_what_is_deleted(void **state)
{
	struct kvb_object *object;
	struct room room;
	uint64_t length;

	(void)state;
	open_ready(&room, 4, 4);
	assert_int_equal(remove_key(&room, "a"), -ENOENT);
	assert_int_equal(put(&room, "a", 2 * UNIT, 1), 0);
	object = hold(&room, "a");
	assert_int_equal(remove_key(&room, "a"), 0);
	assert_int_equal(remove_key(&room, "a"), -ENOENT);
	assert_int_equal(exists(&room, "a", &length), -ENOENT);
	assert_string_equal(letters_of(&room), "");
	assert_int_equal(stats_of(&room).objects, 0);
	assert_int_equal(stats_of(&room).held, 1);
	assert_int_equal(stats_of(&room).used_bytes, 2 * UNIT);
	assert_int_equal(put(&room, "a", UNIT, 2), 0);
	assert_int_equal(put(&room, "b", 2 * UNIT, 3), 0); /* in the way is only the new "a" */
	assert_string_equal(letters_of(&room), "b");
	assert_true(object_is(&room, object, 2 * UNIT, 1));
	kvb_store_unhold(room.store, object);
	assert_int_equal(stats_of(&room).used_bytes, 2 * UNIT);
	assert_int_equal(remove_key(&room, "b"), 0);
	assert_int_equal(stats_of(&room).used_bytes, 0);
	assert_int_equal(stats_of(&room).free_largest, 4 * UNIT);
	close_room(&room);
}

static void the_last_commit_wins(void **state)
{
	struct kvb_object *one, *two;
	struct room room;

	(void)state;
	open_ready(&room, 8, 4);
	assert_int_equal(reserve(&room, "a", 100, &one), 0);
	assert_int_equal(reserve(&room, "a", 200, &two), 0);
	assert_int_equal(stats_of(&room).pending, 2);
	assert_int_equal(stats_of(&room).pending_bytes, 300);
	fill(kvb_store_object_data(room.store, one), 100, 1);
	fill(kvb_store_object_data(room.store, two), 200, 2);
	kvb_store_commit(room.store, two);
	assert_true(get_is(&room, "a", 200, 2));
	assert_int_equal(kvb_store_check(room.store), 0);
	kvb_store_commit(room.store, one);
	assert_true(get_is(&room, "a", 100, 1));
	assert_int_equal(stats_of(&room).replaced, 1);
	assert_int_equal(stats_of(&room).used_bytes, UNIT);
	close_room(&room);
}

static void an_absent_commit_stays_if_nothing_is_there(void **state)
{
	struct kvb_object *object;
	struct room room;

	(void)state;
	open_ready(&room, 8, 4);
	assert_int_equal(reserve(&room, "a", 100, &object), 0);
	fill(kvb_store_object_data(room.store, object), 100, 1);
	assert_int_equal(kvb_store_commit_absent(room.store, object), 0);
	assert_true(get_is(&room, "a", 100, 1));
	/* One that came and went does not count. */
	assert_int_equal(reserve(&room, "b", 100, &object), 0);
	fill(kvb_store_object_data(room.store, object), 100, 2);
	assert_int_equal(put(&room, "b", 10, 3), 0);
	assert_int_equal(remove_key(&room, "b"), 0);
	assert_int_equal(kvb_store_commit_absent(room.store, object), 0);
	assert_true(get_is(&room, "b", 100, 2));
	assert_int_equal(stats_of(&room).replaced, 0);
	assert_int_equal(stats_of(&room).pending, 0);
	assert_int_equal(stats_of(&room).objects, 2);
	close_room(&room);
}

static void an_absent_commit_gives_way_to_what_is_there(void **state)
{
	struct kvb_object *one, *two, *held;
	struct room room;

	(void)state;
	open_ready(&room, 4, 4);
	assert_int_equal(reserve(&room, "a", UNIT, &one), 0);
	assert_int_equal(reserve(&room, "a", UNIT, &two), 0);
	put_letters(&room, "ab", 1);
	assert_int_equal(kvb_store_commit_absent(room.store, one), -EEXIST);
	assert_true(get_is(&room, "a", UNIT, 'a'));
	assert_int_equal(stats_of(&room).pending, 1);
	assert_int_equal(stats_of(&room).used_bytes, 3 * UNIT);
	held = hold(&room, "a");
	assert_int_equal(kvb_store_commit_absent(room.store, two), -EEXIST);
	assert_true(object_is(&room, held, UNIT, 'a'));
	kvb_store_unhold(room.store, held);
	assert_int_equal(stats_of(&room).pending, 0);
	assert_int_equal(stats_of(&room).pending_bytes, 0);
	assert_int_equal(stats_of(&room).replaced, 0);
	assert_int_equal(stats_of(&room).objects, 2);
	assert_int_equal(stats_of(&room).used_bytes, 2 * UNIT);
	close_room(&room);
}

static void giving_way_is_a_use(void **state)
{
	struct kvb_object *object;
	struct room room;

	(void)state;
	open_ready(&room, 3, 4);
	assert_int_equal(reserve(&room, "a", UNIT, &object), 0);
	put_letters(&room, "ab", 1);
	assert_int_equal(kvb_store_commit_absent(room.store, object), -EEXIST);
	put_letters(&room, "cd", 1);
	assert_string_equal(letters_of(&room), "acd");
	close_room(&room);
}

static void objects_without_bytes(void **state)
{
	struct kvb_object *object;
	struct room room;
	uint64_t length = 7;

	(void)state;
	open_ready(&room, 1, 3);
	put_letters(&room, "z", 1);
	assert_int_equal(reserve(&room, "a", 0, &object), 0);
	assert_null(kvb_store_object_data(room.store, object));
	kvb_store_commit(room.store, object);
	assert_int_equal(put(&room, "b", 0, 0), 0);
	assert_string_equal(letters_of(&room), "abz"); /* the full pool is no matter */
	assert_int_equal(exists(&room, "b", &length), 0);
	assert_int_equal(length, 0);
	assert_int_equal(stats_of(&room).used_bytes, UNIT);
	assert_int_equal(stats_of(&room).payload_bytes, UNIT);

	put_letters(&room, "y", 1); /* slot and bytes of "z", which is also the oldest */
	assert_string_equal(letters_of(&room), "aby");
	object = hold(&room, "b");
	assert_null(kvb_store_object_data(room.store, object));
	assert_int_equal(kvb_store_object_length(object), 0);
	assert_int_equal(remove_key(&room, "b"), 0);
	kvb_store_unhold(room.store, object);
	put_letters(&room, "c", 0);
	put_letters(&room, "d", 0); /* the slot of "a" */
	assert_string_equal(letters_of(&room), "cdy");
	assert_int_equal(stats_of(&room).evicted, 2);
	assert_int_equal(stats_of(&room).evicted_bytes, UNIT);
	close_room(&room);
}

/* Every key is the start of all longer ones. */
static void keys_of_every_length(void **state)
{
	unsigned char key[KVB_KEY_MAX + 1] = {0};
	struct kvb_object *object;
	struct room room;
	uint64_t length;

	(void)state;
	open_ready(&room, 1, KVB_KEY_MAX);
	for (size_t n = 1; n <= KVB_KEY_MAX; n++) {
		assert_int_equal(kvb_store_reserve(room.store, key, n, 0, &object), 0);
		kvb_store_commit(room.store, object);
	}
	assert_int_equal(stats_of(&room).objects, KVB_KEY_MAX);
	assert_int_equal(kvb_store_check(room.store), 0);
	assert_int_equal(kvb_store_reserve(room.store, key, 0, 0, &object), -EINVAL);
	assert_int_equal(kvb_store_reserve(room.store, key, KVB_KEY_MAX + 1, 0, &object), -EINVAL);
	assert_int_equal(kvb_store_exists(room.store, key, 0, &length), -ENOENT);
	assert_int_equal(kvb_store_exists(room.store, key, KVB_KEY_MAX + 1, &length), -ENOENT);
	for (size_t n = 1; n <= KVB_KEY_MAX; n++) {
		key[n - 1] = 1;
		assert_int_equal(kvb_store_delete(room.store, key, n), -ENOENT);
		key[n - 1] = 0;
		assert_int_equal(kvb_store_delete(room.store, key, n), 0);
		assert_int_equal(kvb_store_delete(room.store, key, n), -ENOENT);
	}
	assert_int_equal(stats_of(&room).objects, 0);
	close_room(&room);
}

struct key_wanted {
	const unsigned char *key;
	size_t key_len;
	unsigned seen;
};

static int see_key(void *user, const void *key, size_t key_len, uint64_t length)
{
	struct key_wanted *wanted = user;

	wanted->seen +=
		length == 5 && key_len == wanted->key_len && memcmp(key, wanted->key, key_len) == 0;
	return 0;
}

/* Around the length up to which a key lies in its slot. */
static void keys_are_listed_as_they_are(void **state)
{
	static const size_t lengths[] = {1, 199, 200, 201, KVB_KEY_MAX};
	unsigned char key[KVB_KEY_MAX];
	struct kvb_object *object;
	struct room room;

	(void)state;
	for (size_t i = 0; i < sizeof(key); i++)
		key[i] = byte_at(9, i);
	open_ready(&room, 1, 1);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(lengths); i++) {
		struct key_wanted wanted = {key, lengths[i], 0};
		assert_int_equal(kvb_store_reserve(room.store, key, lengths[i], 5, &object), 0);
		kvb_store_commit(room.store, object);
		assert_int_equal(kvb_store_list(room.store, 0, see_key, &wanted), 0);
		assert_int_equal(wanted.seen, 1);
		assert_int_equal(kvb_store_check(room.store), 0);
	}
	close_room(&room);
}

static void what_can_never_fit(void **state)
{
	struct kvb_store_config config = {
		.objects_max = 4, .low_percent = 100, .high_percent = 100};
	struct kvb_object *object = NULL;
	struct room room;

	(void)state;
	open_room(&room, 4, &config);
	assert_int_equal(reserve(&room, "a", 4 * UNIT + 1, &object), -EFBIG);
	assert_int_equal(reserve(&room, "a", UINT64_MAX, &object), -EFBIG);
	assert_int_equal(reserve(&room, "a", 1, &object), -ENOSPC); /* nothing is there yet */
	assert_int_equal(kvb_store_add_range(room.store, 2 * UNIT, 3 * UNIT), -EINVAL);
	assert_int_equal(kvb_store_add_range(room.store, 2 * UNIT + 1, UNIT), -EINVAL);
	assert_int_equal(kvb_store_add_range(room.store, 2 * UNIT, 2 * UNIT), 0);
	assert_int_equal(kvb_store_add_range(room.store, 3 * UNIT, UNIT), -EINVAL);
	assert_int_equal(stats_of(&room).ready_bytes, 2 * UNIT);
	assert_int_equal(put(&room, "a", 2 * UNIT, 1), 0);
	assert_int_equal(reserve(&room, "b", 4 * UNIT, &object), -ENOSPC);
	assert_int_equal(kvb_store_add_range(room.store, 0, 2 * UNIT), 0);
	assert_true(get_is(&room, "a", 2 * UNIT, 1));
	assert_int_equal(put(&room, "b", 4 * UNIT, 2), 0); /* one object fills the pool */
	assert_true(get_is(&room, "b", 4 * UNIT, 2));
	assert_string_equal(letters_of(&room), "b");
	assert_int_equal(reserve(&room, "a", 4 * UNIT + 1, &object), -EFBIG);
	assert_string_equal(letters_of(&room), "b");
	close_room(&room);
}

/* -------------------------------------------------------------------------------------- eviction */

static void the_least_recently_used_goes_first(void **state)
{
	struct room room;
	uint64_t length;

	(void)state;
	open_ready(&room, 4, 10);
	put_letters(&room, "abcd", 1);
	assert_true(get_is(&room, "a", UNIT, 'a'));
	assert_int_equal(exists(&room, "b", &length), 0);
	put_letters(&room, "e", 1);
	assert_string_equal(letters_of(&room), "abde"); /* order of use: d a b e */
	put_letters(&room, "f", 1);
	assert_string_equal(letters_of(&room), "abef");
	put_letters(&room, "a", 1); /* replacing takes room first: "a" itself is the oldest */
	assert_string_equal(letters_of(&room), "abef");
	assert_int_equal(stats_of(&room).replaced, 0);
	put_letters(&room, "g", 1);
	assert_string_equal(letters_of(&room), "aefg");
	assert_int_equal(stats_of(&room).evicted, 4);
	assert_int_equal(stats_of(&room).evicted_bytes, 4 * UNIT);
	close_room(&room);
}

static void held_and_pending_ones_stay(void **state)
{
	struct kvb_object *a, *pending, *b, *none = NULL;
	struct room room;

	(void)state;
	open_ready(&room, 3, 10);
	put_letters(&room, "ab", 1);
	a = hold(&room, "a");
	assert_int_equal(reserve(&room, "p", UNIT, &pending), 0);
	put_letters(&room, "c", 1);
	assert_string_equal(letters_of(&room), "ac");
	b = hold(&room, "c");
	assert_int_equal(reserve(&room, "d", 1, &none), -ENOSPC);
	assert_null(none);
	assert_int_equal(stats_of(&room).evicted, 1);
	assert_string_equal(letters_of(&room), "ac");
	put_letters(&room, "z", 0); /* a slot is all it takes */
	kvb_store_commit(room.store, pending);
	put_letters(&room, "d", 1);
	assert_string_equal(letters_of(&room), "acdz"); /* "p" went, never having been used */
	kvb_store_unhold(room.store, a);
	kvb_store_unhold(room.store, b);
	assert_true(get_is(&room, "a", UNIT, 'a'));
	close_room(&room);
}

/* Eight objects, the fourth and the fifth in the way: three units left on either side. */
static void contiguous_room_is_found_if_there_is_any(void **state)
{
	struct kvb_object *d, *e, *none = NULL;
	struct room room;

	(void)state;
	open_ready(&room, 8, 20);
	put_letters(&room, "abcdefgh", 1);
	d = hold(&room, "d");
	e = hold(&room, "e");
	assert_int_equal(reserve(&room, "x", 4 * UNIT, &none), -ENOSPC);
	assert_int_equal(reserve(&room, "x", 4 * UNIT, &none), -ENOSPC);
	assert_int_equal(reserve(&room, "x", 5 * UNIT, &none), -ENOSPC);
	assert_int_equal(stats_of(&room).evicted, 0);
	assert_int_equal(kvb_store_check(room.store), 0);
	kvb_store_unhold(room.store, e);
	put_letters(&room, "x", 4); /* not around the oldest: there it does not fit */
	assert_string_equal(letters_of(&room), "abcdx");
	assert_int_equal(reserve(&room, "y", 5 * UNIT, &none), -ENOSPC);
	put_letters(&room, "y", 3);
	assert_string_equal(letters_of(&room), "dxy");
	assert_true(get_is(&room, "x", 4 * UNIT, 'x'));
	assert_true(object_is(&room, d, UNIT, 'd'));
	kvb_store_unhold(room.store, d);
	put_letters(&room, "z", 8);
	assert_string_equal(letters_of(&room), "z");
	assert_true(get_is(&room, "z", 8 * UNIT, 'z'));
	close_room(&room);
}

/*
 * Between "a" and "b" lies what stands in the way of two units, so that the store has to look for
 * them and may remember that there are none. Each way of letting go must make it look again.
 */
static void a_refusal_is_not_for_ever(void **state)
{
	enum { UNHELD, DELETED, COMMITTED, ABORTED, MORE_ROOM, WAYS };

	(void)state;
	for (int way = 0; way < WAYS; way++) {
		struct kvb_store_config config = {
			.objects_max = 20, .low_percent = 100, .high_percent = 100};
		struct kvb_object *object, *none;
		struct room room;

		open_room(&room, 4, &config);
		assert_int_equal(kvb_store_add_range(room.store, 0, 3 * UNIT), 0);
		put_letters(&room, "a", 1);
		assert_int_equal(reserve(&room, "m", UNIT, &object), 0);
		put_letters(&room, "b", 1);
		if (way == UNHELD || way == DELETED) {
			kvb_store_commit(room.store, object);
			object = hold(&room, "m");
		}
		if (way == DELETED)
			assert_int_equal(remove_key(&room, "m"), 0);
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(reserve(&room, "x", 2 * UNIT, &none), -ENOSPC);
		assert_int_equal(stats_of(&room).evicted, 0);

		if (way == UNHELD || way == DELETED)
			kvb_store_unhold(room.store, object);
		else if (way == COMMITTED)
			kvb_store_commit(room.store, object);
		else if (way == ABORTED)
			kvb_store_abort(room.store, object);
		else
			assert_int_equal(kvb_store_add_range(room.store, 3 * UNIT, UNIT), 0);
		put_letters(&room, "x", 2);
		if (way == MORE_ROOM)
			kvb_store_abort(room.store, object);
		assert_true(get_is(&room, "x", 2 * UNIT, 'x'));
		close_room(&room);
	}
}

/* Room is made around the oldest, towards its less recently used neighbour. */
static void the_older_neighbour_goes_along(void **state)
{
	struct room room;
	uint64_t length;

	(void)state;
	open_ready(&room, 5, 20);
	put_letters(&room, "cabde", 1); /* where they lie; order of use: a b c d e */
	assert_int_equal(exists(&room, "c", &length), 0);
	assert_int_equal(exists(&room, "d", &length), 0);
	assert_int_equal(exists(&room, "e", &length), 0);
	put_letters(&room, "x", 2);
	assert_string_equal(letters_of(&room), "cdex");
	close_room(&room);

	open_ready(&room, 5, 20);
	put_letters(&room, "bacde", 1); /* order of use: a b c d e again */
	for (const char *key = "b\0c\0d\0e\0"; *key; key += 2)
		assert_int_equal(exists(&room, key, &length), 0);
	put_letters(&room, "x", 2);
	assert_string_equal(letters_of(&room), "cdex");
	close_room(&room);
}

/* Lying d a b with a the oldest, then d: but a and b alone are long enough. */
static void nobody_goes_needlessly(void **state)
{
	struct room room;
	uint64_t length;

	(void)state;
	open_ready(&room, 6, 20);
	put_letters(&room, "da", 1);
	put_letters(&room, "b", 4);
	assert_int_equal(exists(&room, "d", &length), 0);
	assert_int_equal(exists(&room, "b", &length), 0);
	put_letters(&room, "x", 5);
	assert_string_equal(letters_of(&room), "dx");
	assert_int_equal(stats_of(&room).evicted, 2);
	assert_int_equal(stats_of(&room).evicted_bytes, 5 * UNIT);
	assert_true(get_is(&room, "d", UNIT, 'd'));
	close_room(&room);
}

static void slots_run_out_like_bytes(void **state)
{
	struct kvb_object *a, *c, *pending, *none = NULL;
	struct room room;

	(void)state;
	open_ready(&room, 100, 3);
	put_letters(&room, "abc", 1);
	put_letters(&room, "d", 1);
	assert_string_equal(letters_of(&room), "bcd");
	assert_int_equal(stats_of(&room).used_bytes, 3 * UNIT);
	close_room(&room);

	open_ready(&room, 100, 3);
	put_letters(&room, "a", 97);
	put_letters(&room, "bc", 1);
	put_letters(&room, "x", 97); /* takes the bytes of "a" and with them its slot */
	assert_string_equal(letters_of(&room), "bcx");
	put_letters(&room, "a", 0);
	assert_string_equal(letters_of(&room), "acx");
	a = hold(&room, "a");
	c = hold(&room, "x");
	assert_int_equal(reserve(&room, "p", 0, &pending), 0);
	assert_string_equal(letters_of(&room), "ax");
	assert_int_equal(reserve(&room, "e", 0, &none), -ENOSPC);
	assert_int_equal(reserve(&room, "e", 1, &none), -ENOSPC);
	assert_int_equal(remove_key(&room, "x"), 0);
	assert_int_equal(reserve(&room, "e", 1, &none), -ENOSPC); /* its holder keeps the slot */
	kvb_store_unhold(room.store, c);
	put_letters(&room, "e", 1);
	assert_string_equal(letters_of(&room), "ae");
	kvb_store_commit(room.store, pending);
	kvb_store_unhold(room.store, a);
	close_room(&room);
}

/* ------------------------------------------------------------------------------------------ list */

struct page {
	char letters[32];
	size_t room;
	size_t n;
};

static int add_to_page(void *user, const void *key, size_t key_len, uint64_t length)
{
	struct page *page = user;

	if (page->n == page->room)
		return 1;
	if (key_len != 1 || length != UNIT)
		return -1;
	page->letters[page->n++] = *(const char *)key;
	page->letters[page->n] = '\0';
	return 0;
}

static void a_list_goes_on_where_it_stopped(void **state)
{
	struct page page = {.room = 0};
	uint64_t cursor = 0;
	struct room room;

	(void)state;
	open_ready(&room, 20, 20);
	put_letters(&room, "abcdefgh", 1);
	cursor = kvb_store_list(room.store, cursor, add_to_page, &page);
	assert_int_not_equal(cursor, 0);
	assert_int_equal(page.n, 0); /* the refused one is not consumed */
	page.room = 3;
	cursor = kvb_store_list(room.store, cursor, add_to_page, &page);
	assert_string_equal(page.letters, "abc");
	assert_int_equal(remove_key(&room, "b"), 0); /* seen */
	assert_int_equal(remove_key(&room, "d"), 0); /* the one it would go on with */
	assert_int_equal(remove_key(&room, "g"), 0); /* one to come */
	page.room = 5;
	cursor = kvb_store_list(room.store, cursor, add_to_page, &page);
	assert_string_equal(page.letters, "abcef");
	assert_int_not_equal(cursor, 0);
	page.room = 6;
	cursor = kvb_store_list(room.store, cursor, add_to_page, &page);
	assert_string_equal(page.letters, "abcefh");
	assert_int_equal(cursor, 0); /* the page is full, and so is the list */
	close_room(&room);
}

static void odd_cursors_do_no_harm(void **state)
{
	static const uint64_t cursors[] = {
		1000, UINT32_MAX, 1ull << 32, (1ull << 32) + 2, UINT64_MAX};
	struct page page = {.room = 30};
	struct room room;

	(void)state;
	open_ready(&room, 20, 20);
	assert_int_equal(kvb_store_list(room.store, 0, add_to_page, &page), 0);
	put_letters(&room, "ab", 1);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(cursors); i++)
		assert_int_equal(kvb_store_list(room.store, cursors[i], add_to_page, &page), 0);
	assert_int_equal(page.n, 0);
	assert_int_equal(kvb_store_list(room.store, 1, add_to_page, &page), 0);
	assert_string_equal(page.letters, "ab");
	close_room(&room);
}

/* ----------------------------------------------------------------------------------- maintenance */

static void open_marked(struct room *room, uint32_t low, uint32_t high)
{
	struct kvb_store_config config = {
		.objects_max = 400, .low_percent = low, .high_percent = high};

	open_room(room, 100, &config);
	assert_int_equal(kvb_store_add_range(room->store, 0, 100 * UNIT), 0);
}

/* One object of one unit for each number. */
static void put_numbers(const struct room *room, unsigned from, unsigned to)
{
	for (unsigned i = from; i < to; i++) {
		char key[24];
		(void)snprintf(key, sizeof(key), "object %u", i);
		assert_int_equal(put(room, key, UNIT, i), 0);
	}
}

static bool has_number(const struct room *room, unsigned number)
{
	char key[24];
	uint64_t length;

	(void)snprintf(key, sizeof(key), "object %u", number);
	return exists(room, key, &length) == 0 && length == UNIT;
}

/* Waits for the thread of the store to have evicted so many; a deadline turns never into a failure. */
static void await_evicted(const struct room *room, uint64_t evicted)
{
	uint64_t deadline = kvb_now_ns() + DEADLINE_NS;

	while (stats_of(room).evicted < evicted) {
		if (kvb_now_ns() > deadline)
			fail_msg("evicted %llu of %llu", (unsigned long long)stats_of(room).evicted,
				(unsigned long long)evicted);
		sched_yield();
	}
}

static void maintenance_evicts_between_the_marks(void **state)
{
	struct room room;

	(void)state;
	open_marked(&room, 50, 80);
	assert_int_equal(kvb_store_start_maintenance(room.store), 0);
	assert_int_equal(kvb_store_start_maintenance(room.store), -EALREADY);
	put_numbers(&room, 0, 80);
	kvb_store_stop_maintenance(room.store);
	kvb_store_stop_maintenance(room.store);
	assert_int_equal(stats_of(&room).evicted, 0); /* at the mark is not above it */

	assert_int_equal(kvb_store_start_maintenance(room.store), 0);
	put_numbers(&room, 80, 81);
	await_evicted(&room, 31);
	kvb_store_stop_maintenance(room.store);
	assert_int_equal(stats_of(&room).evicted, 31);
	assert_int_equal(stats_of(&room).evicted_bytes, 31 * UNIT);
	assert_int_equal(stats_of(&room).used_bytes, 50 * UNIT);
	for (unsigned i = 0; i < 81; i++)
		assert_int_equal(has_number(&room, i), i >= 31);
	close_room(&room);
}

/* More than one batch, and what passed the mark before the thread was there counts as well. */
static void maintenance_catches_up(void **state)
{
	struct room room;

	(void)state;
	open_marked(&room, 10, 90);
	put_numbers(&room, 0, 100);
	assert_int_equal(stats_of(&room).evicted, 0);
	assert_int_equal(kvb_store_start_maintenance(room.store), 0);
	await_evicted(&room, 90);
	assert_int_equal(stats_of(&room).used_bytes, 10 * UNIT);
	put_numbers(&room, 100, 181); /* and again */
	await_evicted(&room, 90 + 81);
	assert_int_equal(stats_of(&room).used_bytes, 10 * UNIT);
	close_room(&room); /* which stops it */
}

static void maintenance_spares_the_held(void **state)
{
	struct kvb_object *held[70], *pending;
	struct room room;

	(void)state;
	open_marked(&room, 50, 80);
	put_numbers(&room, 0, 70);
	for (unsigned i = 0; i < 70; i++) {
		char key[24];
		(void)snprintf(key, sizeof(key), "object %u", i);
		held[i] = hold(&room, key);
	}
	put_letters(&room, "z", 0); /* evicting it would make no room */
	assert_int_equal(kvb_store_start_maintenance(room.store), 0);
	put_numbers(&room, 70, 80);
	assert_int_equal(reserve(&room, "p", UNIT, &pending), 0);
	await_evicted(&room, 10);
	kvb_store_stop_maintenance(room.store); /* though it never gets down to the mark */
	assert_int_equal(stats_of(&room).used_bytes, 71 * UNIT);
	assert_int_equal(stats_of(&room).evicted, 10);
	kvb_store_abort(room.store, pending);
	for (unsigned i = 0; i < 70; i++) {
		assert_true(object_is(&room, held[i], UNIT, i));
		kvb_store_unhold(room.store, held[i]);
	}
	assert_string_equal(letters_of(&room), "z");
	close_room(&room);
}

static void at_100_percent_maintenance_does_nothing(void **state)
{
	struct room room;

	(void)state;
	open_marked(&room, 100, 100);
	assert_int_equal(kvb_store_start_maintenance(room.store), 0);
	put_numbers(&room, 0, 100);
	kvb_store_stop_maintenance(room.store);
	assert_int_equal(stats_of(&room).evicted, 0);
	assert_int_equal(stats_of(&room).used_bytes, 100 * UNIT);
	close_room(&room);
}

/* ------------------------------------------------------------------------------------- the model */

#define UNITS_MAX 96u
#define ITEMS_MAX 128u
#define KEYS      48u
#define NOBODY    UINT32_MAX
#define NOT_READY (UINT32_MAX - 1)

enum item_state { GONE, PENDING, VISIBLE, ORPHAN };

struct item {
	enum item_state state;
	unsigned key;
	unsigned holders;
	uint64_t length;
	uint64_t seed;
	uint64_t used_at;
	uint32_t unit; /* where it lies */
	uint32_t units;
	struct kvb_object *object; /* while held or pending */
};

struct model {
	struct room room;
	uint64_t seed;
	uint64_t clock;
	uint32_t units;
	uint32_t slots;
	uint32_t longest;       /* units of an object at most */
	bool uniform;           /* all objects have one unit: plain LRU */
	uint32_t at[UNITS_MAX]; /* index of the item, NOBODY or NOT_READY */
	struct item items[ITEMS_MAX];
	struct kvb_store_stats stats;
	uint32_t refused;
};

static void demand(const struct model *model, bool holds, const char *what)
{
	if (!holds)
		fail_msg("%s (%u units, %u slots, next seed %llu)", what, model->units,
			model->slots, (unsigned long long)model->seed);
}

static uint32_t random_below(struct model *model, uint32_t n)
{
	return next_random(&model->seed) % n;
}

/* Keys of 1 to 1024 bytes, all different. */
static size_t key_of(unsigned number, unsigned char key[KVB_KEY_MAX])
{
	size_t key_len = 1 + number * 331 % KVB_KEY_MAX;

	memset(key, (int)number, key_len);
	return key_len;
}

static bool item_is_evictable(const struct item *item)
{
	return item->state == VISIBLE && item->holders == 0;
}

static struct item *visible_item(struct model *model, unsigned key)
{
	for (uint32_t i = 0; i < ITEMS_MAX; i++) {
		if (model->items[i].state == VISIBLE && model->items[i].key == key)
			return &model->items[i];
	}
	return NULL;
}

static uint32_t count_taken(const struct model *model)
{
	uint32_t taken = 0;

	for (uint32_t i = 0; i < ITEMS_MAX; i++)
		taken += model->items[i].state != GONE;
	return taken;
}

/* The free unit, or one whose object may go. */
static bool unit_is_to_be_had(const struct model *model, uint32_t unit, bool by_eviction)
{
	uint32_t is = model->at[unit];

	return is == NOBODY ||
		(by_eviction && is != NOT_READY && item_is_evictable(&model->items[is]));
}

static uint32_t longest_run(const struct model *model, bool by_eviction)
{
	uint32_t longest = 0, run = 0;

	for (uint32_t unit = 0; unit < model->units; unit++) {
		run = unit_is_to_be_had(model, unit, by_eviction) ? run + 1 : 0;
		longest = run > longest ? run : longest;
	}
	return longest;
}

/* The run of units to be had that this one lies in. */
static void run_around(
	const struct model *model, uint32_t unit, uint32_t *ret_low, uint32_t *ret_end)
{
	uint32_t low = unit, end = unit;

	while (low > 0 && unit_is_to_be_had(model, low - 1, true))
		low--;
	while (end < model->units && unit_is_to_be_had(model, end, true))
		end++;
	*ret_low = low;
	*ret_end = end;
}

/* The least recently used object that may go and lies in a run of so many units; 0 is any. */
static struct item *first_victim(struct model *model, uint32_t units)
{
	struct item *oldest = NULL;

	for (uint32_t i = 0; i < ITEMS_MAX; i++) {
		struct item *item = &model->items[i];
		uint32_t low = 0, end = 0;
		if (!item_is_evictable(item) || (units > 0 && item->units == 0))
			continue;
		if (units > 0)
			run_around(model, item->unit, &low, &end);
		if (end - low >= units && (!oldest || item->used_at < oldest->used_at))
			oldest = item;
	}
	return oldest;
}

static void item_set_units(struct model *model, const struct item *item, uint32_t was, uint32_t is)
{
	for (uint32_t unit = item->unit; unit < item->unit + item->units; unit++) {
		demand(model, unit < model->units && model->at[unit] == was, "objects overlap");
		model->at[unit] = is;
	}
}

static void item_drop(struct model *model, struct item *item)
{
	item_set_units(model, item, (uint32_t)(item - model->items), NOBODY);
	item->state = GONE;
}

static void item_hide(struct model *model, struct item *item)
{
	model->stats.objects--;
	model->stats.payload_bytes -= item->length;
	if (item->holders > 0)
		item->state = ORPHAN;
	else
		item_drop(model, item);
}

struct listing {
	uint32_t seen[KEYS];
	uint64_t lengths[KEYS];
	bool strange;
};

static int list_key(void *user, const void *key, size_t key_len, uint64_t length)
{
	struct listing *listing = user;
	unsigned number = *(const unsigned char *)key;
	unsigned char expected[KVB_KEY_MAX];

	if (number >= KEYS || key_len != key_of(number, expected) ||
		memcmp(key, expected, key_len) != 0) {
		listing->strange = true;
		return 0;
	}
	listing->seen[number]++;
	listing->lengths[number] = length;
	return 0;
}

static void list_all(const struct model *model, struct listing *ret_listing)
{
	*ret_listing = (struct listing){0};
	demand(model, kvb_store_list(model->room.store, 0, list_key, ret_listing) == 0, "cursor");
	demand(model, !ret_listing->strange, "a key nobody put");
}

struct expectation {
	int r;
	uint32_t count;      /* of evicted objects; 0 also: at least one, all in the run */
	struct item *victim; /* one of them */
	uint32_t low;
	uint32_t end;
};

static struct expectation expect(struct model *model, uint32_t units)
{
	bool slots_out = count_taken(model) == model->slots;
	struct expectation expected = {0};

	if ((slots_out && !first_victim(model, 0)) || longest_run(model, true) < units) {
		expected.r = -ENOSPC;
	} else if (longest_run(model, false) >= units) {
		expected.count = slots_out;
		expected.victim = slots_out ? first_victim(model, 0) : NULL;
	} else {
		expected.victim = first_victim(model, units);
		run_around(model, expected.victim->unit, &expected.low, &expected.end);
	}
	return expected;
}

/* Finds out who was evicted and whether it had to be them. */
static void settle(struct model *model, const struct expectation *expected)
{
	struct listing listing;
	uint32_t evicted = 0;

	list_all(model, &listing);
	for (uint32_t i = 0; i < ITEMS_MAX; i++) {
		struct item *item = &model->items[i];
		if (item->state != VISIBLE || listing.seen[item->key] > 0)
			continue;
		demand(model, item->holders == 0, "a held object was evicted");
		if (expected->end > 0)
			demand(model,
				item->units > 0 && item->unit >= expected->low &&
					item->unit < expected->end,
				"evicted one aside");
		evicted++;
		model->stats.evicted++;
		model->stats.evicted_bytes += item->length;
		item_hide(model, item);
	}
	if (expected->end == 0)
		demand(model, evicted == expected->count, "evicted more or fewer than needed");
	if (expected->end > 0 && model->uniform)
		demand(model, evicted == 1, "one has to make room for one");
	if (expected->victim)
		demand(model, expected->victim->state == GONE, "the oldest was spared");
}

static void step_reserve(struct model *model)
{
	struct item item = {.state = PENDING, .key = random_below(model, KEYS)};
	unsigned char key[KVB_KEY_MAX];
	struct expectation expected;
	uint32_t slot = 0;
	unsigned char *data;
	int r;

	item.units = model->uniform ? 1 : random_below(model, model->longest + 1);
	item.length = item.units ? item.units * UNIT - random_below(model, UNIT) : 0;
	item.seed = ++model->clock;
	expected = expect(model, item.units);
	r = kvb_store_reserve(
		model->room.store, key, key_of(item.key, key), item.length, &item.object);
	demand(model, r == expected.r, "room is judged wrongly");
	settle(model, &expected);
	if (r < 0) {
		model->refused++;
		return;
	}
	while (model->items[slot].state != GONE)
		slot++;
	data = kvb_store_object_data(model->room.store, item.object);
	demand(model, (data == NULL) == (item.units == 0), "data");
	if (data) {
		demand(model, (data - model->room.pool) % UNIT == 0, "alignment");
		item.unit = (uint32_t)((data - model->room.pool) / UNIT);
		fill(data, item.length, item.seed);
	}
	item_set_units(model, &item, NOBODY, slot);
	model->items[slot] = item;
	model->stats.pending++;
	model->stats.pending_bytes += item.length;
}

static struct item *random_item(struct model *model, enum item_state state, bool held)
{
	uint32_t first = random_below(model, ITEMS_MAX);

	for (uint32_t i = 0; i < ITEMS_MAX; i++) {
		struct item *item = &model->items[(first + i) % ITEMS_MAX];
		if (held ? item->holders > 0 : item->state == state)
			return item;
	}
	return NULL;
}

static void item_show(struct model *model, struct item *item)
{
	item->state = VISIBLE;
	item->used_at = ++model->clock;
	model->stats.pending--;
	model->stats.pending_bytes -= item->length;
	model->stats.objects++;
	model->stats.payload_bytes += item->length;
}

static void step_commit(struct model *model, struct item *item)
{
	struct item *old = visible_item(model, item->key);

	kvb_store_commit(model->room.store, item->object);
	if (old) {
		item_hide(model, old);
		model->stats.replaced++;
	}
	item_show(model, item);
}

static void step_commit_absent(struct model *model, struct item *item)
{
	struct item *old = visible_item(model, item->key);
	int r = kvb_store_commit_absent(model->room.store, item->object);

	demand(model, r == (old ? -EEXIST : 0), "commit if absent");
	if (!old) {
		item_show(model, item);
		return;
	}
	old->used_at = ++model->clock;
	model->stats.pending--;
	model->stats.pending_bytes -= item->length;
	item_drop(model, item);
}

static void step_abort(struct model *model, struct item *item)
{
	kvb_store_abort(model->room.store, item->object);
	model->stats.pending--;
	model->stats.pending_bytes -= item->length;
	item_drop(model, item);
}

static void step_hold(struct model *model)
{
	unsigned number = random_below(model, KEYS);
	struct item *item = visible_item(model, number);
	struct kvb_object *object = NULL;
	unsigned char key[KVB_KEY_MAX];
	int r = kvb_store_hold(model->room.store, key, key_of(number, key), &object);

	demand(model, r == (item ? 0 : -ENOENT), "hold");
	if (!item)
		return;
	demand(model, object_is(&model->room, object, item->length, item->seed), "bytes");
	item->object = object;
	item->holders++;
}

static void step_unhold(struct model *model, struct item *item)
{
	demand(model, object_is(&model->room, item->object, item->length, item->seed),
		"held bytes");
	kvb_store_unhold(model->room.store, item->object);
	if (--item->holders > 0)
		return;
	item->used_at = ++model->clock;
	if (item->state == ORPHAN)
		item_drop(model, item);
}

static void step_exists(struct model *model)
{
	unsigned number = random_below(model, KEYS);
	struct item *item = visible_item(model, number);
	unsigned char key[KVB_KEY_MAX];
	uint64_t length = 0;
	int r = kvb_store_exists(model->room.store, key, key_of(number, key), &length);

	demand(model, r == (item ? 0 : -ENOENT), "exists");
	if (!item)
		return;
	demand(model, length == item->length, "length");
	item->used_at = ++model->clock;
}

static void step_delete(struct model *model)
{
	unsigned number = random_below(model, KEYS);
	struct item *item = visible_item(model, number);
	unsigned char key[KVB_KEY_MAX];
	int r = kvb_store_delete(model->room.store, key, key_of(number, key));

	demand(model, r == (item ? 0 : -ENOENT), "delete");
	if (item)
		item_hide(model, item);
}

/* A unit of the pool becomes ready. */
static void step_add(struct model *model)
{
	uint32_t unit = random_below(model, model->units);
	bool is_new = model->at[unit] == NOT_READY;
	int r = kvb_store_add_range(model->room.store, unit * UNIT, UNIT);

	demand(model, r == (is_new ? 0 : -EINVAL), "add");
	if (is_new) {
		model->at[unit] = NOBODY;
		model->stats.ready_bytes += UNIT;
	}
}

static void compare_stats(struct model *model)
{
	struct kvb_store_stats expected = model->stats, stats = stats_of(&model->room);

	for (uint32_t i = 0; i < ITEMS_MAX; i++)
		expected.held += model->items[i].holders > 0;
	for (uint32_t i = 0; i < model->units; i++)
		expected.used_bytes +=
			model->at[i] != NOBODY && model->at[i] != NOT_READY ? UNIT : 0;
	expected.free_largest = longest_run(model, false) * UNIT;
	expected.index_bytes = stats.index_bytes;
	demand(model, memcmp(&stats, &expected, sizeof(stats)) == 0, "statistics");
}

static void compare(struct model *model)
{
	struct listing listing;

	list_all(model, &listing);
	for (unsigned key = 0; key < KEYS; key++) {
		const struct item *item = visible_item(model, key);
		demand(model, listing.seen[key] == (item != NULL), "another list");
		demand(model, listing.lengths[key] == (item ? item->length : 0), "another length");
	}
	compare_stats(model);
	demand(model, kvb_store_check(model->room.store) == 0, "the books disagree");
}

static void step(struct model *model)
{
	uint32_t dice = random_below(model, 100);
	struct item *pending = random_item(model, PENDING, false);
	struct item *held = random_item(model, VISIBLE, true);

	if (dice < 32)
		step_reserve(model);
	else if (dice < 46 && pending)
		step_commit(model, pending);
	else if (dice < 54 && pending)
		step_commit_absent(model, pending);
	else if (dice < 58 && pending)
		step_abort(model, pending);
	else if (dice < 72)
		step_hold(model);
	else if (dice < 88 && held)
		step_unhold(model, held);
	else if (dice < 94)
		step_exists(model);
	else if (dice < 98)
		step_delete(model);
	else
		step_add(model);
	compare(model);
}

/* Half of the pool is ready at the start. */
static void model_open(struct model *model)
{
	struct kvb_store_config config = {
		.objects_max = model->slots, .low_percent = 100, .high_percent = 100};
	uint32_t half = model->units / 2;

	open_room(&model->room, model->units, &config);
	assert_int_equal(kvb_store_add_range(model->room.store, half * UNIT, half * UNIT), 0);
	for (uint32_t i = 0; i < model->units; i++)
		model->at[i] = i >= half && i < 2 * half ? NOBODY : NOT_READY;
	model->stats.ready_bytes = half * UNIT;
	model->stats.pool_bytes = model->units * UNIT;
	model->stats.objects_max = model->slots;
}

static void model_close(struct model *model)
{
	struct item *item;

	while ((item = random_item(model, PENDING, false)) != NULL)
		step_abort(model, item);
	while ((item = random_item(model, VISIBLE, true)) != NULL)
		step_unhold(model, item);
	compare(model);
	for (unsigned i = 0; i < 10 * KEYS; i++)
		step_hold(model); /* every byte that is left, most likely */
	while ((item = random_item(model, VISIBLE, true)) != NULL)
		step_unhold(model, item);
	compare(model);
	close_room(&model->room);
}

static void run_model(uint64_t seed, uint32_t units, uint32_t slots, uint32_t longest)
{
	struct model *model = calloc(1, sizeof(*model));

	assert_non_null(model);
	model->seed = seed;
	model->units = units;
	model->slots = slots;
	model->longest = longest;
	model->uniform = longest == 1;
	model_open(model);
	for (unsigned i = 0; i < 3000; i++)
		step(model);
	demand(model, model->stats.evicted > 50, "hardly ever evicted, which proves little");
	demand(model, model->stats.replaced > 20, "hardly ever replaced, which proves little");
	demand(model, model->refused > 10, "hardly ever refused, which proves little");
	model_close(model);
	free(model);
}

static void equal_objects_leave_in_order_of_use(void **state)
{
	(void)state;
	run_model(1, 24, 100, 1); /* bytes are short */
	run_model(2, 24, 16, 1);  /* slots are */
	run_model(3, 24, 24, 1);
}

static void random_steps_agree_with_a_model(void **state)
{
	(void)state;
	for (uint64_t seed = 10; seed < 13; seed++) {
		run_model(seed, 48, 100, 6);
		run_model(seed + 100, UNITS_MAX, 100, 20);
		run_model(seed + 200, UNITS_MAX, 20, 10);
	}
}

/* ---------------------------------------------------------------------------------------- stress */

#define THREADS     4u
#define ROUNDS      15000u
#define CLAIMS      3u
#define HOT_KEYS    40u
#define CALM_KEYS   7u /* held by the test, so that they are there all the time */
#define CROWD_UNITS 160u

enum fault {
	FAULT_NONE,
	FAULT_BYTES,
	FAULT_RESERVE,
	FAULT_HOLD,
	FAULT_LENGTH,
	FAULT_DELETE,
	FAULT_ADD,
	FAULT_LIST,
	FAULT_CHECK,
	FAULT_MAINTENANCE,
};

struct crowd {
	struct room room;
	uint32_t fault;    /* atomic: enum fault, some that happened */
	uint32_t finished; /* atomic: threads */
};

struct member {
	struct crowd *crowd;
	pthread_t thread;
	uint64_t seed;
	unsigned number;
	struct kvb_object *held[CLAIMS];
	unsigned held_keys[CLAIMS];
	struct kvb_object *pending[CLAIMS];
	uint64_t commits;
	uint64_t deletes;
	uint64_t refusals;
};

static void blame(struct crowd *crowd, enum fault fault)
{
	kvb_store_relaxed(&crowd->fault, (uint32_t)fault);
}

/* Content: a nonce, and bytes that follow from it and the key. The length follows from the nonce. */
static uint64_t length_of_nonce(uint64_t nonce)
{
	return nonce % 11 == 0 ? 0 : sizeof(nonce) + nonce * 97 % (7 * UNIT);
}

static void write_content(void *data, unsigned key, uint64_t nonce)
{
	uint64_t length = length_of_nonce(nonce);

	if (length == 0)
		return;
	memcpy(data, &nonce, sizeof(nonce));
	fill((unsigned char *)data + sizeof(nonce), length - sizeof(nonce),
		nonce + key * 1000003ull);
}

static bool content_is_right(const struct room *room, const struct kvb_object *object, unsigned key)
{
	const unsigned char *data = kvb_store_object_data(room->store, object);
	uint64_t length = kvb_store_object_length(object), nonce;

	if (length == 0)
		return data == NULL;
	memcpy(&nonce, data, sizeof(nonce));
	return length == length_of_nonce(nonce) &&
		is_filled(data + sizeof(nonce), length - sizeof(nonce), nonce + key * 1000003ull);
}

static void crowd_reserve(struct member *member, unsigned i)
{
	struct crowd *crowd = member->crowd;
	unsigned number = next_random(&member->seed) % HOT_KEYS;
	uint64_t nonce = next_random(&member->seed);
	unsigned char key[KVB_KEY_MAX];
	int r = kvb_store_reserve(crowd->room.store, key, key_of(number, key),
		length_of_nonce(nonce), &member->pending[i]);

	if (r == -ENOSPC)
		member->refusals++;
	else if (r < 0)
		blame(crowd, FAULT_RESERVE);
	else
		write_content(kvb_store_object_data(crowd->room.store, member->pending[i]), number,
			nonce);
}

/* Lets go of what it has reserved, or reserves. */
static void crowd_put(struct member *member, unsigned i)
{
	struct kvb_store *store = member->crowd->room.store;

	if (!member->pending[i]) {
		crowd_reserve(member, i);
		return;
	}
	if (next_random(&member->seed) % 8 == 0) {
		kvb_store_abort(store, member->pending[i]);
	} else {
		kvb_store_commit(store, member->pending[i]);
		member->commits++;
	}
	member->pending[i] = NULL;
}

static void crowd_get(struct member *member, unsigned i)
{
	struct crowd *crowd = member->crowd;
	unsigned char key[KVB_KEY_MAX];
	unsigned number;
	int r;

	if (member->held[i]) {
		if (!content_is_right(&crowd->room, member->held[i], member->held_keys[i]))
			blame(crowd, FAULT_BYTES);
		kvb_store_unhold(crowd->room.store, member->held[i]);
		member->held[i] = NULL;
		return;
	}
	number = next_random(&member->seed) % (HOT_KEYS + CALM_KEYS);
	r = kvb_store_hold(crowd->room.store, key, key_of(number, key), &member->held[i]);
	if (r == 0 && !content_is_right(&crowd->room, member->held[i], number))
		blame(crowd, FAULT_BYTES);
	if (r < 0 && (r != -ENOENT || number >= HOT_KEYS))
		blame(crowd, FAULT_HOLD);
	member->held_keys[i] = number;
}

static void crowd_remove(struct member *member)
{
	struct kvb_store *store = member->crowd->room.store;
	unsigned number = next_random(&member->seed) % HOT_KEYS;
	unsigned char key[KVB_KEY_MAX];
	uint64_t length = 0;
	int r = kvb_store_exists(store, key, key_of(number, key), &length);

	if (r == 0 && length > sizeof(uint64_t) + 7 * UNIT)
		blame(member->crowd, FAULT_LENGTH);
	r = kvb_store_delete(store, key, key_of(number, key));
	if (r == 0)
		member->deletes++;
	else if (r != -ENOENT)
		blame(member->crowd, FAULT_DELETE);
}

static void *run_member(void *arg)
{
	struct member *member = arg;
	struct crowd *crowd = member->crowd;
	uint32_t half = CROWD_UNITS / 2;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t dice = next_random(&member->seed) % 100;
		if (member->number == 0 && round % 100 == 0 && round / 100 < half &&
			kvb_store_add_range(crowd->room.store, (half + round / 100) * UNIT, UNIT) <
				0)
			blame(crowd, FAULT_ADD);
		if (dice < 40)
			crowd_put(member, dice % CLAIMS);
		else if (dice < 95)
			crowd_get(member, dice % CLAIMS);
		else
			crowd_remove(member);
	}
	for (unsigned i = 0; i < CLAIMS; i++) {
		if (member->pending[i])
			kvb_store_abort(crowd->room.store, member->pending[i]);
		if (member->held[i])
			crowd_get(member, i);
	}
	kvb_count(&crowd->finished, 1);
	return NULL;
}

struct crowd_page {
	unsigned seen[CALM_KEYS];
	unsigned room;
};

static int add_to_crowd_page(void *user, const void *key, size_t key_len, uint64_t length)
{
	struct crowd_page *page = user;
	unsigned number = *(const unsigned char *)key;

	(void)key_len;
	(void)length;
	if (page->room == 0)
		return 1;
	page->room--;
	if (number >= HOT_KEYS)
		page->seen[number - HOT_KEYS]++;
	return 0;
}

/* Page by page, while the others change what it walks over. */
static void watch_list(struct crowd *crowd)
{
	struct crowd_page page = {{0}, 0};
	uint64_t cursor = 0;

	do {
		page.room = 3;
		cursor = kvb_store_list(crowd->room.store, cursor, add_to_crowd_page, &page);
	} while (cursor != 0);
	for (unsigned i = 0; i < CALM_KEYS; i++) {
		if (page.seen[i] != 1)
			blame(crowd, FAULT_LIST);
	}
}

/* Runs in the test's thread beside the others, so it must not assert. */
static void watch(struct crowd *crowd)
{
	while (kvb_load_relaxed(&crowd->finished) < THREADS) {
		watch_list(crowd);
		if (kvb_store_check(crowd->room.store) < 0)
			blame(crowd, FAULT_CHECK);
		kvb_store_stop_maintenance(crowd->room.store);
		if (kvb_store_start_maintenance(crowd->room.store) < 0)
			blame(crowd, FAULT_MAINTENANCE);
		sched_yield();
	}
}

static void crowd_open(struct crowd *crowd, struct kvb_object *calm[CALM_KEYS])
{
	struct kvb_store_config config = {.objects_max = 64, .low_percent = 60, .high_percent = 75};
	unsigned char key[KVB_KEY_MAX];

	open_room(&crowd->room, CROWD_UNITS, &config);
	assert_int_equal(kvb_store_add_range(crowd->room.store, 0, CROWD_UNITS / 2 * UNIT), 0);
	for (unsigned i = 0; i < CALM_KEYS; i++) {
		unsigned number = HOT_KEYS + i;
		uint64_t nonce = number;
		size_t key_len = key_of(number, key);
		assert_int_equal(kvb_store_reserve(crowd->room.store, key, key_len,
					 length_of_nonce(nonce), &calm[i]),
			0);
		write_content(kvb_store_object_data(crowd->room.store, calm[i]), number, nonce);
		kvb_store_commit(crowd->room.store, calm[i]);
		assert_int_equal(kvb_store_hold(crowd->room.store, key, key_len, &calm[i]), 0);
	}
	assert_int_equal(kvb_store_start_maintenance(crowd->room.store), 0);
}

/* Every object there ever was is still there, or was evicted, replaced or deleted: once. */
static void crowd_settle(struct crowd *crowd, const struct member *members)
{
	struct kvb_store_stats stats = stats_of(&crowd->room);
	uint64_t commits = CALM_KEYS, deletes = 0, refusals = 0;

	for (unsigned i = 0; i < THREADS; i++) {
		commits += members[i].commits;
		deletes += members[i].deletes;
		refusals += members[i].refusals;
	}
	assert_int_equal(commits, stats.objects + stats.evicted + stats.replaced + deletes);
	assert_int_equal(stats.held, CALM_KEYS);
	assert_int_equal(stats.pending, 0);
	assert_int_equal(stats.pending_bytes, 0);
	assert_int_equal(stats.ready_bytes, CROWD_UNITS * UNIT);
	/* Or it proves nothing. */
	assert_true(stats.evicted > 1000);
	assert_true(stats.replaced > 100);
	assert_true(deletes > 100);
	assert_true(refusals < ROUNDS);
	assert_int_equal(kvb_store_check(crowd->room.store), 0);
}

static void threads_share_the_store(void **state)
{
	struct member members[THREADS] = {0};
	struct kvb_object *calm[CALM_KEYS], *object;
	unsigned char key[KVB_KEY_MAX];
	struct crowd crowd = {.fault = FAULT_NONE};

	(void)state;
	crowd_open(&crowd, calm);
	for (unsigned i = 0; i < THREADS; i++) {
		members[i] = (struct member){.crowd = &crowd, .seed = i + 1, .number = i};
		assert_int_equal(
			kvb_thread_start(&members[i].thread, "crowd", run_member, &members[i]), 0);
	}
	watch(&crowd);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(members[i].thread, NULL);
	kvb_store_stop_maintenance(crowd.room.store);
	assert_int_equal(crowd.fault, FAULT_NONE);
	crowd_settle(&crowd, members);
	for (unsigned i = 0; i < HOT_KEYS; i++) {
		if (kvb_store_hold(crowd.room.store, key, key_of(i, key), &object) < 0)
			continue;
		assert_true(content_is_right(&crowd.room, object, i));
		kvb_store_unhold(crowd.room.store, object);
	}
	for (unsigned i = 0; i < CALM_KEYS; i++) {
		assert_true(content_is_right(&crowd.room, calm[i], HOT_KEYS + i));
		kvb_store_unhold(crowd.room.store, calm[i]);
	}
	close_room(&crowd.room);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(new_refuses_what_makes_no_sense),
		cmocka_unit_test(a_commit_makes_visible_at_once),
		cmocka_unit_test(an_abort_leaves_no_trace),
		cmocka_unit_test(replacing_frees_the_old_one),
		cmocka_unit_test(holders_keep_what_is_replaced),
		cmocka_unit_test(holders_keep_what_is_deleted),
		cmocka_unit_test(the_last_commit_wins),
		cmocka_unit_test(an_absent_commit_stays_if_nothing_is_there),
		cmocka_unit_test(an_absent_commit_gives_way_to_what_is_there),
		cmocka_unit_test(giving_way_is_a_use),
		cmocka_unit_test(objects_without_bytes),
		cmocka_unit_test(keys_of_every_length),
		cmocka_unit_test(keys_are_listed_as_they_are),
		cmocka_unit_test(what_can_never_fit),
		cmocka_unit_test(the_least_recently_used_goes_first),
		cmocka_unit_test(held_and_pending_ones_stay),
		cmocka_unit_test(contiguous_room_is_found_if_there_is_any),
		cmocka_unit_test(a_refusal_is_not_for_ever),
		cmocka_unit_test(the_older_neighbour_goes_along),
		cmocka_unit_test(nobody_goes_needlessly),
		cmocka_unit_test(slots_run_out_like_bytes),
		cmocka_unit_test(a_list_goes_on_where_it_stopped),
		cmocka_unit_test(odd_cursors_do_no_harm),
		cmocka_unit_test(maintenance_evicts_between_the_marks),
		cmocka_unit_test(maintenance_catches_up),
		cmocka_unit_test(maintenance_spares_the_held),
		cmocka_unit_test(at_100_percent_maintenance_does_nothing),
		cmocka_unit_test(equal_objects_leave_in_order_of_use),
		cmocka_unit_test(random_steps_agree_with_a_model),
		cmocka_unit_test(threads_share_the_store),
	};

	return cmocka_run_group_tests_name("store", tests, NULL, NULL) ? 1 : 0;
}
