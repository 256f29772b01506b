/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_late_write.c - the fault this project began with: a handler that finishes while the server
 * closes, and writes the 8 bytes of its wake-up into whatever file has got the descriptor's number.
 *
 * Again and again a server is stopped while handlers run and payload moves, and all the while a
 * thread opens and creates files, so that each number that becomes free is taken at once. Every
 * file must stay empty. `./dev mutate` runs this against servers that close too early, and it must
 * fail there.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvbell/kvbell.h"
#include "kvbell/server.h"
#include "shm/atomic.h"
#include "shm/util.h"
#include "tests/embedded.h"

#define ROUNDS     200
#define CALLERS    4
#define FILES      64
#define TIMEOUT_MS 10000u

enum { T_NAP = KVB_MSG_USER, T_NAP_AFFINITY };

static struct embedded embedded;

/* ----------------------------------------------------------------------------------- the file opener */

static char files_dir[] = "/tmp/kvbell-files-XXXXXX";
static uint32_t files_stop;    /* atomic */
static uint64_t files_made;    /* atomic */
static uint64_t files_written; /* atomic: those that did not stay empty */

static void close_file(int fd)
{
	struct stat st;

	if (fd < 0)
		return;
	if (fstat(fd, &st) < 0 || st.st_size != 0)
		kvb_count(&files_written, 1);
	close(fd);
}

/* Holds FILES descriptors, the oldest of which makes room for the next. No assertion may stand
 * here. */
static void *open_files(void *arg)
{
	int fds[FILES];
	unsigned next = 0;

	(void)arg;
	memset(fds, -1, sizeof(fds));
	while (!kvb_load_acquire(&files_stop)) {
		char path[64];
		snprintf(path, sizeof(path), "%s/%u", files_dir, next);
		close_file(fds[next]);
		unlink(path);
		fds[next] = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (fds[next] >= 0)
			kvb_count(&files_made, 1);
		next = (next + 1) % FILES;
	}
	for (unsigned i = 0; i < FILES; i++) {
		char path[64];
		snprintf(path, sizeof(path), "%s/%u", files_dir, i);
		close_file(fds[i]);
		unlink(path);
	}
	return NULL;
}

/* --------------------------------------------------------------------------------------- the callers */

struct caller {
	struct kvb_client *client;
	pthread_t thread;
	bool started;
	uint16_t type;
	uint64_t answered;
	uint64_t failed;
	uint64_t late;  /* took longer than its timeout */
	uint64_t wrong; /* an answer that is not the question's */
};

/* Calls and puts until the server refuses. No assertion may stand here. */
static void *call_again_and_again(void *arg)
{
	struct caller *caller = arg;
	static const char payload[70000] = "payload";
	char key[32];
	int r;

	snprintf(key, sizeof(key), "key-%p", arg);
	do {
		uint8_t body[] = {0xcc, (uint8_t)caller->answered};
		struct kvb_reply reply;
		uint64_t begin_ns = kvb_now_ns();
		r = kvb_call(caller->client, caller->type, body, sizeof(body), TIMEOUT_MS, &reply);
		if (kvb_now_ns() - begin_ns >= TIMEOUT_MS * KVB_NS_PER_MS)
			caller->late++;
		if (r == 0) {
			caller->answered++;
			caller->wrong += reply.size != sizeof(body) ||
				memcmp(reply.body, body, sizeof(body)) != 0;
		} else {
			caller->failed++;
		}
		kvb_reply_free(&reply);
		(void)kvb_put(caller->client, key, strlen(key), payload, sizeof(payload));
	} while (r == 0);
	return NULL;
}

static int nap(struct kvb_call *call, void *unused)
{
	size_t size;
	const uint8_t *body = kvb_call_body(call, &size);

	(void)unused;
	poll(NULL, 0, body[1] % 4);
	return kvb_call_reply(call, body, size);
}

/* ----------------------------------------------------------------------------------------- one round */

static void start_server(void)
{
	struct kvb_server_options options;
	uint32_t normal, affinity;

	embedded_config(&options);
	options.pool_bytes = 4 * KVB_MIB;
	options.staging_bytes = 512 * KVB_KIB;
	options.fragment_bytes = 8192;
	options.log.level = KVB_LOG_INFO;
	assert_int_equal(embedded_make(&embedded, &options), 0);
	assert_int_equal(kvb_server_add_pool(embedded.server, KVB_POOL_NORMAL, 4, 64, &normal), 0);
	assert_int_equal(
		kvb_server_add_pool(embedded.server, KVB_POOL_AFFINITY, 4, 64, &affinity), 0);
	assert_int_equal(
		kvb_server_handle_blocking(embedded.server, T_NAP, normal, 0, nap, NULL), 0);
	assert_int_equal(
		kvb_server_handle_blocking(embedded.server, T_NAP_AFFINITY, affinity, 0, nap, NULL),
		0);
	assert_int_equal(kvb_server_start(embedded.server), 0);
}

static void stop_under_load(unsigned round, uint64_t *answered, uint64_t *failed)
{
	struct caller callers[CALLERS] = {0};
	struct kvb_options options = KVB_OPTIONS_INIT;

	start_server();
	options.dir = embedded.dir;
	for (unsigned i = 0; i < CALLERS; i++) {
		/* Two threads share a client. */
		if (i % 2 == 0)
			assert_int_equal(kvb_open(&options, &callers[i].client), 0);
		else
			callers[i].client = callers[i - 1].client;
		callers[i].type = i < 2 ? T_NAP : T_NAP_AFFINITY;
		assert_int_equal(
			pthread_create(&callers[i].thread, NULL, call_again_and_again, &callers[i]),
			0);
	}
	/* Rounds differ in when the stop comes; nothing depends on how long it really takes. */
	poll(NULL, 0, (int)(round % 13));
	kvb_server_stop_begin(embedded.server);
	assert_int_equal(kvb_server_stop_wait(embedded.server), 0);
	for (unsigned i = 0; i < CALLERS; i++)
		pthread_join(callers[i].thread, NULL);
	for (unsigned i = 0; i < CALLERS; i++) {
		assert_int_equal(callers[i].late, 0);
		assert_int_equal(callers[i].wrong, 0);
		assert_int_equal(callers[i].failed, 1);
		*answered += callers[i].answered;
		*failed += callers[i].failed;
		if (i % 2 == 0)
			kvb_close(callers[i].client);
	}
	assert_int_equal(embedded_stop(&embedded), 0);
}

static void no_late_write_ever_lands_in_a_file(void **state)
{
	pthread_t opener;
	uint64_t answered = 0, failed = 0;

	(void)state;
	assert_non_null(mkdtemp(files_dir));
	assert_int_equal(pthread_create(&opener, NULL, open_files, NULL), 0);
	for (unsigned round = 0; round < ROUNDS && kvb_load_acquire(&files_written) == 0; round++)
		stop_under_load(round, &answered, &failed);
	kvb_store_release(&files_stop, 1u);
	pthread_join(opener, NULL);
	assert_int_equal(rmdir(files_dir), 0);
	printf("%d rounds: %llu calls answered, %llu ended with an error, %llu files\n", ROUNDS,
		(unsigned long long)answered, (unsigned long long)failed,
		(unsigned long long)kvb_load_relaxed(&files_made));
	assert_int_equal(kvb_load_acquire(&files_written), 0);
	assert_true(answered > ROUNDS);
	assert_true(kvb_load_relaxed(&files_made) > (uint64_t)ROUNDS * FILES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_late_write_ever_lands_in_a_file),
	};

	return cmocka_run_group_tests_name("late_write", tests, NULL, NULL) ? 1 : 0;
}
