/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_users.c - clients of other users: own, trusted, isolated, and those on no list.
 *
 * Needs root, to become the others. Children do the calls as uid 1000 and 1001 and return a bit for
 * each that went otherwise than DESIGN's table says; the main thread asserts.
 */
#include <errno.h>
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvbell/kvbell.h"
#include "kvbell/protocol.h"
#include "shm/atomic.h"
#include "shm/segment.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/process.h"
#include "tests/raw.h"

#define ALICE 1000u
#define BOB   1001u

static struct process_server server;

struct user {
	uid_t uid;
	gid_t gid, group; /* group: a supplementary one; 0 none */
	int open_error;
	const char *kind;
	bool control;
};

static int become(const struct user *user)
{
	gid_t groups[1] = {user->group};

	if (setgroups(user->group ? 1 : 0, groups) < 0 || setgid(user->gid) < 0)
		return -errno;
	return setuid(user->uid) < 0 ? -errno : 0;
}

static int see_stat(void *user, const struct kvb_stat *stat)
{
	(void)stat;
	++*(int *)user;
	return 0;
}

static int see_entry(void *user, const struct kvb_entry *entry)
{
	(void)entry;
	++*(int *)user;
	return 0;
}

/* What every client may do through its ring. */
static int use_ring(struct kvb_client *client)
{
	static uint8_t data[1000000], back[1000000];
	int stats = 0, faults = 0;
	size_t len;

	memset(data, 'd', sizeof(data));
	faults |= kvb_put(client, "shared", 6, data, sizeof(data)) != 0 ? 1 : 0;
	faults |= kvb_get(client, "shared", 6, back, sizeof(back), &len) != 0 ? 2 : 0;
	faults |= memcmp(data, back, sizeof(data)) != 0 ? 4 : 0;
	faults |= kvb_exists(client, "shared", 6, &len) != 0 ? 8 : 0;
	faults |= kvb_delete(client, "shared", 6) != 0 ? 8 : 0;
	faults |= kvb_ping(client) != 0 ? 8 : 0;
	faults |= kvb_stats(client, see_stat, &stats) != 0 || stats < 40 ? 16 : 0;
	return faults;
}

static int use_control(struct kvb_client *client, bool allowed)
{
	int entries = 0, want = allowed ? 0 : -EPERM;

	return (kvb_ping_control(client) != want ? 32 : 0) |
		(kvb_list(client, see_entry, &entries) != want ? 64 : 0);
}

static int act_as(void *arg)
{
	const struct user *user = arg;
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client;
	struct kvb_info info;
	int faults;

	if (become(user) < 0)
		return 127;
	options.dir = server.dir;
	options.name = "user";
	if (kvb_open(&options, &client) != user->open_error)
		return 126;
	if (user->open_error)
		return 0;
	if (kvb_get_info(client, &info) < 0 || strcmp(info.kind, user->kind) != 0)
		return 125;
	faults = use_ring(client) | use_control(client, user->control);
	kvb_close(client);
	return faults;
}

static int setup(void **state)
{
	(void)state;
	memset(&server, 0, sizeof(server));
	if (geteuid() != 0)
		return 0;
	/* The others must be able to reach the directory. */
	return process_dir_new(server.dir, sizeof(server.dir));
}

static int teardown(void **state)
{
	(void)state;
	process_dir_remove(server.dir);
	unlink(server.log);
	return 0;
}

static void need_root(void)
{
	if (geteuid() == 0)
		return;
	print_message("skipped: only root can become other users\n");
	skip();
}

static void check_users(const char *const args[], const struct user *users, size_t count)
{
	need_root();
	assert_int_equal(process_server_start(&server, args), 0);
	for (size_t i = 0; i < count; i++) {
		struct user user = users[i];
		int status = process_wait(process_fork(act_as, &user), 60000);
		print_message("uid %u: status %d\n", user.uid, status);
		assert_int_equal(status, 0);
	}
	assert_int_equal(process_server_stop(&server), 0);
}

static void each_kind_gets_its_column(void **state)
{
	static const char *const args[] = {
		"--pool", "64MiB", "--trust-uid", "1000", "--allow-uid", "1001", NULL};
	static const struct user users[] = {
		{0, 0, 0, 0, "own", true},
		{ALICE, ALICE, 0, 0, "trusted", false},
		{BOB, BOB, 0, 0, "isolated", false},
		{1002, 1002, 0, -EACCES, NULL, false},
	};

	(void)state;
	check_users(args, users, KVB_ARRAY_SIZE(users));
}

static void groups_count_too(void **state)
{
	static const char *const args[] = {
		"--pool", "64MiB", "--trust-gid", "2000", "--allow-gid", "3000", NULL};
	static const struct user users[] = {
		{ALICE, 2000, 0, 0, "trusted", false},
		{ALICE, ALICE, 2000, 0, "trusted", false},
		{BOB, BOB, 3000, 0, "isolated", false},
		{BOB, 3000, 0, 0, "isolated", false},
		{BOB, BOB, 3001, -EACCES, NULL, false},
	};

	(void)state;
	check_users(args, users, KVB_ARRAY_SIZE(users));
}

/* Nobody else is let in: the file modes say so before the server is asked. */
static void a_private_server_is_out_of_reach(void **state)
{
	static const char *const args[] = {"--pool", "64MiB", NULL};
	static const struct user users[] = {
		{ALICE, ALICE, 0, -EACCES, NULL, false},
	};

	(void)state;
	check_users(args, users, KVB_ARRAY_SIZE(users));
}

/* The control socket says no by its mode, and its holder cannot be talked past the door. */
static int reach_control(void *arg)
{
	const struct user *user = arg;
	char path[128];

	if (become(user) < 0)
		return 127;
	snprintf(path, sizeof(path), "%s/%s", server.dir, KVB_CONTROL_SOCKET);
	return access(path, W_OK) < 0 && errno == EACCES ? 0 : 1;
}

/* Each client maps the life page read-only, and its own session's segment cannot change its size. */
static int try_descriptors(void *arg)
{
	const struct user *user = arg;
	struct kvb_segment writable = KVB_SEGMENT_NONE;
	struct raw_client raw;
	int faults = 0;

	if (become(user) < 0 || raw_attach(&raw, server.dir) < 0)
		return 127;
	faults |= kvb_segment_map(raw.life.fd, raw.life.bytes, 0, true, &writable) == 0 ? 1 : 0;
	faults |= ftruncate(raw.session.fd, 0) == 0 ? 2 : 0;
	faults |= ftruncate(raw.session.fd, (off_t)raw.session.bytes * 2) == 0 ? 4 : 0;
	raw_drop(&raw);
	return faults;
}

static void others_cannot_go_around_the_door(void **state)
{
	static const char *const args[] = {"--pool", "64MiB", "--trust-uid", "1000", NULL};
	struct user alice = {ALICE, ALICE, 0, 0, "trusted", false};

	(void)state;
	need_root();
	assert_int_equal(process_server_start(&server, args), 0);
	assert_int_equal(process_wait(process_fork(reach_control, &alice), 60000), 0);
	assert_int_equal(process_wait(process_fork(try_descriptors, &alice), 60000), 0);
	assert_int_equal(process_server_stop(&server), 0);
}

/* ------------------------------------------------------------------ ended sessions that are held on to */

#define ENDED_MAX 64u /* of one uid */

/* A session that the server has ended, for an index that cannot be, and whose client stays. */
static int hold_an_end(struct raw_client *raw)
{
	struct kvb_goodbye goodbye;
	int r = raw_attach(raw, server.dir);

	if (r < 0)
		return r;
	kvb_store_release(&raw->sq.header->sq_tail, raw->sq.tail + 1000);
	raw_kick(raw);
	return raw_goodbye(raw->door_fd, &goodbye);
}

static int hoard_ends(void *arg)
{
	static struct raw_client ended[ENDED_MAX], one_more;
	const int fd = *(const int *)arg;
	char byte;

	if (setgroups(0, NULL) < 0 || setgid(BOB) < 0 || setuid(BOB) < 0)
		return 127;
	for (unsigned i = 0; i < ENDED_MAX; i++)
		if (hold_an_end(&ended[i]) < 0)
			return 1;
	if (write(fd, "e", 1) != 1 || read(fd, &byte, 1) != 1)
		return 2;
	if (raw_attach(&one_more, server.dir) != -EUSERS)
		return 3;
	/* Who lets go of one may have one. */
	raw_drop(&ended[0]);
	if (write(fd, "d", 1) != 1 || read(fd, &byte, 1) != 1)
		return 4;
	return raw_attach(&one_more, server.dir) == 0 ? 0 : 5;
}

static int see_revoked(void *user, const struct kvb_stat *stat)
{
	if (strcmp(stat->name, "sessions.revoked") == 0)
		*(uint64_t *)user = stat->value;
	return 0;
}

struct revoked_wanted {
	struct kvb_client *client;
	uint64_t number;
};

static bool are_revoked(const void *arg)
{
	const struct revoked_wanted *wanted = arg;
	uint64_t revoked = UINT64_MAX;

	return kvb_stats(wanted->client, see_revoked, &revoked) == 0 && revoked == wanted->number;
}

/* Waits for the child's word, then for the statistic, and lets it go on. */
static void await_revoked(struct kvb_client *client, int fd, uint64_t number)
{
	struct revoked_wanted wanted = {client, number};
	char byte;

	assert_int_equal(read(fd, &byte, 1), 1);
	assert_true(embedded_wait(are_revoked, &wanted));
	assert_int_equal(write(fd, "g", 1), 1);
}

static void ended_sessions_are_counted_per_user(void **state)
{
	static const char *const args[] = {
		"--pool", "64MiB", "--trust-uid", "1000", "--allow-uid", "1001", NULL};
	struct user alice = {ALICE, ALICE, 0, 0, "trusted", false};
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client;
	int fds[2];
	pid_t hoarder;

	(void)state;
	need_root();
	assert_int_equal(process_server_start(&server, args), 0);
	options.dir = server.dir;
	assert_int_equal(kvb_open(&options, &client), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	hoarder = process_fork(hoard_ends, &fds[1]);
	close(fds[1]);
	await_revoked(client, fds[0], ENDED_MAX);
	/* Others have nothing to do with it. */
	assert_int_equal(process_wait(process_fork(act_as, &alice), 60000), 0);
	await_revoked(client, fds[0], ENDED_MAX - 1);
	assert_int_equal(process_wait(hoarder, 60000), 0);
	close(fds[0]);
	kvb_close(client);
	assert_int_equal(process_server_stop(&server), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(each_kind_gets_its_column, setup, teardown),
		cmocka_unit_test_setup_teardown(groups_count_too, setup, teardown),
		cmocka_unit_test_setup_teardown(a_private_server_is_out_of_reach, setup, teardown),
		cmocka_unit_test_setup_teardown(others_cannot_go_around_the_door, setup, teardown),
		cmocka_unit_test_setup_teardown(
			ended_sessions_are_counted_per_user, setup, teardown),
	};

	return cmocka_run_group_tests_name("users", tests, NULL, NULL) ? 1 : 0;
}
