/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_isolated.c - clients that see their own staging only: they can do all that others can, through the
 * ring, and learn nothing that they were not told.
 *
 * Needs root, to become the others. Children do the calls as other users and end with the line where
 * something went otherwise; the main thread asserts that none did.
 */
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvbell/kvbell.h"
#include "kvbell/protocol.h"
#include "shm/fd.h"
#include "shm/util.h"
#include "tests/process.h"
#include "tests/raw.h"

#define TRUSTED  1000u
#define ISOLATED 1001u

#define SECRET_BYTE 0xa7u /* in all that an isolated client must not see */
#define MARK_BYTE   0x11u /* in staging, before the server writes there */
#define FRAGMENT    ((uint32_t)(64 * KVB_KIB))

static struct process_server server;

/* In a child, where nothing may be asserted: says what failed, and makes the child's status of it. */
#define EXPECT(condition)                                                               \
	do {                                                                            \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			return 1;                                                       \
		}                                                                       \
	} while (0)

static int become(uid_t uid)
{
	if (uid == 0)
		return 0;
	return setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0 ? -errno : 0;
}

static struct kvb_client *open_client(uint32_t movers)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client = NULL;

	options.dir = server.dir;
	options.name = "isolated";
	options.movers = movers;
	return kvb_open(&options, &client) == 0 ? client : NULL;
}

/* ------------------------------------------------------------------------- what every client can do */

static void fill(uint8_t *data, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		data[i] = (uint8_t)(seed + i * 7 + i / 253);
}

static int use_sizes(struct kvb_client *client)
{
	static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 512 * KVB_KIB - 1, 512 * KVB_KIB + 1,
		8 * KVB_MIB + 1, 32 * KVB_MIB};
	uint8_t *data = malloc(32 * KVB_MIB), *back = malloc(32 * KVB_MIB + 1);

	EXPECT(data && back);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(sizes); i++) {
		size_t n = sizes[i], len = 77;
		fill(data, n, (unsigned)i);
		memset(back, 0xee, n + 1);
		EXPECT(kvb_put(client, "size", 4, data, n) == 0);
		EXPECT(kvb_exists(client, "size", 4, &len) == 0 && len == n);
		EXPECT(kvb_get(client, "size", 4, back, n + 1, &len) == 0 && len == n);
		EXPECT(memcmp(back, data, n) == 0 && back[n] == 0xee);
		if (n > 0) {
			back[0] ^= 0xff;
			EXPECT(kvb_get(client, "size", 4, back + 1, n - 1, &len) == -EMSGSIZE);
			EXPECT(len == n && back[1] == (n > 1 ? data[1] : 0xee));
		}
		EXPECT(kvb_put_if_absent(client, "size", 4, data, n) == -EEXIST);
	}
	EXPECT(kvb_delete(client, "size", 4) == 0);
	EXPECT(kvb_delete(client, "size", 4) == -ENOENT);
	EXPECT(kvb_exists(client, "size", 4, NULL) == -ENOENT);
	EXPECT(kvb_get(client, "size", 4, back, 1, NULL) == -ENOENT);
	free(data);
	free(back);
	return 0;
}

static int use_leases(struct kvb_client *client)
{
	static uint8_t data[100001], other[50];
	const struct kvb_key keys[] = {{"a", 1}, {"b", 1}, {"c", 1}};
	struct kvb_lease lease, leases[3];
	size_t n = 0, len = 0;

	fill(data, sizeof(data), 5);
	EXPECT(kvb_acquire(client, "a", 1, &lease) == -ENOENT);
	EXPECT(kvb_put(client, "a", 1, data, sizeof(data)) == 0);
	EXPECT(kvb_put(client, "b", 1, other, sizeof(other)) == 0);
	EXPECT(kvb_acquire(client, "a", 1, &lease) == 0);
	EXPECT(kvb_prefix(client, keys, 3, leases, &n) == 0 && n == 2);
	/* What is held stays, whatever happens to its key. */
	EXPECT(kvb_put(client, "a", 1, other, sizeof(other)) == 0);
	EXPECT(kvb_delete(client, "b", 1) == 0);
	EXPECT(memcmp(kvb_view(&lease, &len), data, sizeof(data)) == 0 && len == sizeof(data));
	EXPECT(memcmp(kvb_view(&leases[0], &len), data, sizeof(data)) == 0 && len == sizeof(data));
	EXPECT(memcmp(kvb_view(&leases[1], &len), other, sizeof(other)) == 0 &&
		len == sizeof(other));
	kvb_release(&leases[1]);
	kvb_release(&leases[0]);
	kvb_release(&lease);
	EXPECT(kvb_prefix(client, keys, 3, NULL, &n) == 0 && n == 1);
	EXPECT(kvb_delete(client, "a", 1) == 0);
	return 0;
}

static int use_tickets(struct kvb_client *client)
{
	static uint8_t data[3][200000], back[3][200000];
	struct kvb_item puts[3], gets[3];
	struct kvb_completion completion;
	struct pollfd event = {.fd = kvb_event_fd(client), .events = POLLIN};
	uint64_t ticket;

	EXPECT(event.fd >= 0);
	for (unsigned i = 0; i < 3; i++) {
		static const char *const keys[] = {"t0", "t1", "t2"};
		fill(data[i], sizeof(data[i]), i);
		puts[i] = (struct kvb_item){
			.key = keys[i], .key_len = 2, .data = data[i], .size = i * 99999};
		gets[i] = (struct kvb_item){
			.key = keys[i], .key_len = 2, .buffer = back[i], .size = sizeof(back[i])};
	}
	EXPECT(kvb_submit_put(client, puts, 3, 0, NULL, &ticket) == 0);
	EXPECT(kvb_wait(client, ticket, 20000, &completion) == 0 && completion.result == 0);
	EXPECT(kvb_submit_get(client, gets, 3, client, &ticket) == 0);
	do
		EXPECT(poll(&event, 1, 20000) == 1);
	while (kvb_reap(client, &completion, 1) == 0);
	EXPECT(completion.ticket == ticket && completion.user == client && completion.result == 0);
	for (unsigned i = 0; i < 3; i++)
		EXPECT(gets[i].result == 0 && gets[i].length == i * 99999 &&
			memcmp(back[i], data[i], i * 99999) == 0);
	EXPECT(kvb_submit_delete(client, puts, 3, NULL, &ticket) == 0);
	EXPECT(kvb_wait(client, ticket, 20000, &completion) == 0 && completion.result == 0);
	return 0;
}

static int see_stat(void *user, const struct kvb_stat *stat)
{
	(void)stat;
	++*(unsigned *)user;
	return 0;
}

struct user {
	uid_t uid;
	const char *kind, *reads;
	uint32_t movers;
};

static int use_all(void *arg)
{
	const struct user *user = arg;
	struct kvb_client *client;
	struct kvb_info info;
	unsigned stats = 0;

	EXPECT(become(user->uid) == 0);
	client = open_client(user->movers);
	EXPECT(client && kvb_get_info(client, &info) == 0);
	EXPECT(strcmp(info.kind, user->kind) == 0 && strcmp(info.reads, user->reads) == 0);
	EXPECT(use_sizes(client) == 0);
	EXPECT(use_leases(client) == 0);
	EXPECT(use_tickets(client) == 0);
	EXPECT(kvb_ping(client) == 0);
	EXPECT(kvb_stats(client, see_stat, &stats) == 0 && stats > 40);
	kvb_close(client);
	return 0;
}

static void need_root(void)
{
	if (geteuid() == 0)
		return;
	print_message("skipped: only root can become other users\n");
	skip();
}

static int run_child(int (*fn)(void *arg), void *arg)
{
	return process_wait(process_fork(fn, arg), 120000);
}

static void all_kinds_can_do_the_same(void **state)
{
	static const struct user users[] = {
		{0, "own", "local", 0},
		{0, "own", "local", 2},
		{TRUSTED, "trusted", "local", 0},
		{TRUSTED, "trusted", "local", 2},
		{ISOLATED, "isolated", "ring", 0},
		{ISOLATED, "isolated", "ring", 2},
	};

	(void)state;
	need_root();
	for (size_t i = 0; i < KVB_ARRAY_SIZE(users); i++) {
		struct user user = users[i];
		int status = run_child(use_all, &user);
		print_message("%s, %u movers: status %d\n", user.kind, user.movers, status);
		assert_int_equal(status, 0);
	}
}

/* -------------------------------------------------------------------------------- what it is not given */

static int ask_for_readers_maps(void *arg)
{
	struct kvb_welcome welcome;
	struct kvb_hello hello;
	int door, fds[KVB_WELCOME_READER_FDS];
	unsigned before, n = 0;
	size_t size;

	(void)arg;
	EXPECT(become(ISOLATED) == 0 && raw_connect(server.dir, &door) == 0);
	before = process_fds(getpid());
	raw_hello(&hello);
	hello.flags |= KVB_HELLO_READER;
	EXPECT(kvb_record_send(door, &hello, sizeof(hello), NULL, 0) == 0);
	EXPECT(raw_door_recv(door, &welcome, sizeof(welcome), &size, fds, KVB_ARRAY_SIZE(fds)) ==
		1);
	EXPECT(size == sizeof(welcome) && welcome.type == KVB_DOOR_WELCOME);
	EXPECT(welcome.kind == KVB_KIND_ISOLATED && !(welcome.flags & KVB_WELCOME_READER));
	EXPECT(welcome.index_bytes == 0 && welcome.lease_bytes == 0 && welcome.lease_cells == 0);
	for (size_t i = 0; i < KVB_ARRAY_SIZE(fds); i++)
		n += fds[i] >= 0;
	EXPECT(n == KVB_WELCOME_FDS && process_fds(getpid()) == before + KVB_WELCOME_FDS);
	return 0;
}

static void who_asks_for_the_maps_gets_the_ring(void **state)
{
	(void)state;
	need_root();
	assert_int_equal(run_child(ask_for_readers_maps, NULL), 0);
}

/* ------------------------------------------------------------------------------------ others' bytes */

/* Fills the whole pool with what nobody else may see, and takes it away again. */
static int leave_secrets(void *arg)
{
	struct kvb_client *client = open_client(0);
	uint8_t *data = malloc(KVB_MIB);
	char key[16];

	(void)arg;
	EXPECT(client && data);
	memset(data, SECRET_BYTE, KVB_MIB);
	for (int i = 0; i < 200; i++) {
		int n = snprintf(key, sizeof(key), "secret-%d", i);
		EXPECT(kvb_put(client, key, (size_t)n, data, KVB_MIB) == 0);
	}
	for (int i = 0; i < 199; i++) {
		int n = snprintf(key, sizeof(key), "secret-%d", i);
		int r = kvb_delete(client, key, (size_t)n);
		EXPECT(r == 0 || r == -ENOENT); /* evicted */
	}
	kvb_close(client);
	free(data);
	return 0;
}

static size_t count_secrets(const struct raw_client *raw)
{
	size_t n = 0;

	for (uint64_t i = 0; i < raw->welcome.staging_bytes; i++)
		n += raw->staging[i] == SECRET_BYTE;
	return n;
}

static void mark(struct raw_client *raw)
{
	memset(raw->staging, MARK_BYTE, raw->welcome.staging_bytes);
}

static int try_partial(struct raw_client *raw)
{
	struct kvb_cqe cqe;

	/* One fragment of four, and then a look at what the rest would be. */
	EXPECT(raw_put(raw, "partial", KVB_TRANSFER_ID(0, 1), 0, FRAGMENT, 4 * FRAGMENT) == 0);
	EXPECT(raw_get(raw, "partial", 0, 0, FRAGMENT, FRAGMENT, &cqe) == -ENOENT);
	/* Its own transfer is a put, out of which nothing can be read. */
	EXPECT(raw_get(raw, "", KVB_TRANSFER_ID(0, 1), FRAGMENT, FRAGMENT, 4 * FRAGMENT, &cqe) < 0);
	EXPECT(raw_get(raw, "partial", 0, 0, FRAGMENT, FRAGMENT, &cqe) == -ENOENT);
	EXPECT(count_secrets(raw) == 0);
	return 0;
}

/* `offset`: of the second fragment, which overlaps with the first or leaves a gap. */
static int try_offset(struct raw_client *raw, uint32_t use, uint64_t offset)
{
	uint32_t transfer = KVB_TRANSFER_ID(1, use);
	struct kvb_cqe cqe;

	EXPECT(raw_put(raw, "offset", transfer, 0, FRAGMENT, 4 * FRAGMENT) == 0);
	EXPECT(raw_put(raw, "", transfer, offset, FRAGMENT, 4 * FRAGMENT) < 0);
	/* The transfer is over, or goes on where it was: in no case is it complete. */
	(void)raw_put(raw, "", transfer, 3 * FRAGMENT, FRAGMENT, 4 * FRAGMENT);
	EXPECT(raw_get(raw, "offset", 0, 0, FRAGMENT, FRAGMENT, &cqe) == -ENOENT);
	EXPECT(count_secrets(raw) == 0);
	return 0;
}

/* Of an object that is no multiple of anything, exactly its bytes come, whatever is asked for. */
static int try_beyond_the_end(struct raw_client *raw)
{
	struct kvb_cqe cqe;

	EXPECT(raw_put(raw, "short", 0, 0, 100, 100) == 0);
	memset(raw->staging, 0x33, raw->welcome.staging_bytes);
	EXPECT(raw_get(raw, "short", 0, 0, FRAGMENT, FRAGMENT, &cqe) == 0);
	EXPECT(cqe.value == 100 && cqe.length == 100);
	for (uint64_t i = 0; i < raw->welcome.staging_bytes; i++)
		EXPECT(raw->staging[i] == (i < 100 ? MARK_BYTE : 0x33));
	mark(raw);
	/* In a transfer, beyond its end. */
	EXPECT(raw_get(raw, "short", KVB_TRANSFER_ID(2, 1), 0, 64, 4 * FRAGMENT, &cqe) == 0);
	EXPECT(raw_get(raw, "", KVB_TRANSFER_ID(2, 1), 4096, 64, 4 * FRAGMENT, &cqe) < 0);
	(void)raw_get(raw, "", KVB_TRANSFER_ID(2, 1), 64, FRAGMENT, 4 * FRAGMENT, &cqe);
	EXPECT(count_secrets(raw) == 0);
	for (uint64_t i = 0; i < raw->welcome.staging_bytes; i++)
		EXPECT(raw->staging[i] == MARK_BYTE);
	return 0;
}

static int look_for_secrets(void *arg)
{
	struct raw_client raw;
	struct kvb_cqe cqe;

	(void)arg;
	EXPECT(become(ISOLATED) == 0 && raw_attach(&raw, server.dir) == 0);
	/* Its staging is new memory, not that of a session before. */
	for (uint64_t i = 0; i < raw.welcome.staging_bytes; i++)
		EXPECT(raw.staging[i] == 0);
	mark(&raw);
	/* A part of a key is not the key. One who knows it is told, which proves that it is there. */
	EXPECT(raw_get(&raw, "secret-", 0, 0, FRAGMENT, FRAGMENT, &cqe) == -ENOENT);
	EXPECT(raw_get(&raw, "secret-199x", 0, 0, FRAGMENT, FRAGMENT, &cqe) == -ENOENT);
	EXPECT(raw_get(&raw, "secret-199", 0, 0, FRAGMENT, FRAGMENT, &cqe) == -EMSGSIZE);
	EXPECT(count_secrets(&raw) == 0);
	EXPECT(try_partial(&raw) == 0);
	EXPECT(try_offset(&raw, 1, 0) == 0);
	EXPECT(try_offset(&raw, 2, FRAGMENT / 2) == 0);
	EXPECT(try_offset(&raw, 3, FRAGMENT - 1) == 0);
	EXPECT(try_offset(&raw, 4, 2 * FRAGMENT) == 0);
	EXPECT(try_offset(&raw, 5, UINT64_MAX - FRAGMENT + 1) == 0);
	EXPECT(try_beyond_the_end(&raw) == 0);
	raw_drop(&raw);
	return 0;
}

static void old_bytes_of_others_stay_unseen(void **state)
{
	(void)state;
	need_root();
	assert_int_equal(run_child(leave_secrets, NULL), 0);
	assert_int_equal(run_child(look_for_secrets, NULL), 0);
}

static int setup(void **state)
{
	static const char *const args[] = {
		"--pool", "128MiB", "--trust-uid", "1000", "--allow-uid", "1001", NULL};

	(void)state;
	memset(&server, 0, sizeof(server));
	if (geteuid() != 0)
		return 0;
	return process_server_start(&server, args);
}

static int teardown(void **state)
{
	int r = geteuid() == 0 ? process_server_stop(&server) : 0;

	(void)state;
	process_dir_remove(server.dir);
	unlink(server.log);
	return r;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(all_kinds_can_do_the_same, setup, teardown),
		cmocka_unit_test_setup_teardown(
			who_asks_for_the_maps_gets_the_ring, setup, teardown),
		cmocka_unit_test_setup_teardown(old_bytes_of_others_stay_unseen, setup, teardown),
	};

	return cmocka_run_group_tests_name("isolated", tests, NULL, NULL) ? 1 : 0;
}
