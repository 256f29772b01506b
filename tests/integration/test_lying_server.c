/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lying_server.c - what libkvbell does when the server says what cannot be.
 *
 * A thread plays the server: it lets one client in and answers every request with the same
 * completion. It asserts nothing; the main thread does.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvbell/kvbell.h"
#include "kvbell/protocol.h"
#include "shm/atomic.h"
#include "shm/bell.h"
#include "shm/fd.h"
#include "shm/ring.h"
#include "shm/segment.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/process.h"

#define CAPACITY 8192u
#define BUFFER   65536u

struct fake {
	pthread_t thread;
	char dir[64];
	int listen_fd;
	uint32_t stop;
	int32_t result; /* atomic, as are the two below */
	uint64_t value;
	uint32_t length;
	const char *stats; /* atomic: `value` bytes, published with it */
};

static void fake_serve(struct fake *fake, int door)
{
	struct kvb_layout layout;
	struct kvb_segment session, life;
	int kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
	    bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct kvb_sq_consumer sq;
	struct kvb_cq_producer cq;
	struct kvb_hello hello;
	size_t size;

	struct pollfd pfd = {.fd = door, .events = POLLIN};
	poll(&pfd, 1, 2000);
	(void)kvb_record_recv(door, &hello, sizeof(hello), &size, NULL, 0);
	kvb_layout_compute(&layout, 16, 16, 65536);
	kvb_segment_new("fake", layout.total_bytes, KVB_SEALS_FIXED_SIZE, &session);
	kvb_segment_new("fake-life", 4096, KVB_SEALS_FIXED_SIZE | KVB_SEAL_FUTURE_WRITE, &life);
	struct kvb_session_header *header = session.base;
	struct kvb_life_page *page = life.base;
	header->magic = page->magic = KVB_MAGIC;
	header->abi = page->abi = KVB_ABI_VERSION;
	header->state = KVB_SESSION_ACTIVE;
	header->sq_sleeping = KVB_SLEEPING_ALWAYS;
	page->life = 1;
	kvb_sq_consumer_init(&sq, session.base, &layout);
	kvb_cq_producer_init(&cq, session.base, &layout);
	struct kvb_welcome welcome = {.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = KVB_DOOR_WELCOME,
		.kind = KVB_KIND_ISOLATED,
		.session_bytes = layout.total_bytes,
		.life_bytes = 4096,
		.sq_entries = 16,
		.cq_entries = 16,
		.sq_offset = layout.sq_offset,
		.cq_offset = layout.cq_offset,
		.key_offset = layout.key_offset,
		.key_max = KVB_KEY_MAX,
		.staging_offset = layout.staging_offset,
		.staging_bytes = layout.staging_bytes,
		.fragment_bytes = 4096,
		.transfers = 16,
		.payload_max = 1 << 20};
	int fds[4] = {session.fd, life.fd, kick, bell};
	kvb_record_send(door, &welcome, sizeof(welcome), fds, 4);
	while (!kvb_load_acquire(&fake->stop)) {
		struct kvb_sqe sqe;
		uint8_t key[KVB_KEY_MAX];
		if (kvb_sq_pop(&sq, &sqe, key) <= 0) {
			usleep(200);
			continue;
		}
		struct kvb_cqe cqe = {.user_data = sqe.user_data,
			.result = kvb_load_acquire(&fake->result),
			.value = kvb_load_acquire(&fake->value),
			.length = kvb_min_u64(sqe.length, kvb_load_acquire(&fake->length))};
		if (sqe.op == KVB_OP_STATS)
			memcpy((uint8_t *)session.base + layout.staging_offset + sqe.staging,
				kvb_load_relaxed(&fake->stats), cqe.value);
		kvb_cq_post(&cq, &cqe);
		if (kvb_bell_wanted(&header->cq_sleeping))
			kvb_bell_ring(bell);
	}
	close(kick);
	close(bell);
	kvb_segment_free(&session);
	kvb_segment_free(&life);
}

static void *fake_main(void *arg)
{
	struct fake *fake = arg;
	int door = accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	fake_serve(fake, door);
	close(door);
	return NULL;
}

static struct fake fake;
static struct kvb_client *client;

static int start(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct kvb_options options = KVB_OPTIONS_INIT;

	(void)state;
	memset(&fake, 0, sizeof(fake));
	if (process_dir_new(fake.dir, sizeof(fake.dir)) < 0)
		return -1;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/door.sock", fake.dir);
	fake.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (bind(fake.listen_fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
		listen(fake.listen_fd, 8) < 0 ||
		kvb_thread_start(&fake.thread, "fake", fake_main, &fake) < 0)
		return -1;
	options.dir = fake.dir;
	options.timeout_ms = 5000;
	return kvb_open(&options, &client);
}

static int stop(void **state)
{
	(void)state;
	kvb_close(client);
	kvb_store_release(&fake.stop, 1u);
	pthread_join(fake.thread, NULL);
	close(fake.listen_fd);
	process_dir_remove(fake.dir);
	return 0;
}

static void a_length_beyond_the_buffer_is_not_believed(void **state)
{
	uint8_t *buffer = malloc(BUFFER);
	size_t len = 0;

	(void)state;
	memset(buffer, 0xee, BUFFER);
	kvb_store_release(&fake.value, (uint64_t)40960);
	kvb_store_release(&fake.length, 4096u);
	assert_int_equal(kvb_get(client, "k", 1, buffer, CAPACITY, &len), -EPROTO);
	for (size_t i = CAPACITY; i < BUFFER; i++)
		assert_int_equal(buffer[i], 0xee);
	free(buffer);
}

static void a_result_is_zero_or_an_error(void **state)
{
	uint8_t buffer[CAPACITY];
	size_t len = 0;

	(void)state;
	kvb_store_release(&fake.value, (uint64_t)100);
	kvb_store_release(&fake.result, 7);
	assert_int_equal(kvb_get(client, "k", 1, buffer, CAPACITY, &len), -EPROTO);
	assert_int_equal(kvb_exists(client, "k", 1, &len), -EPROTO);
	assert_int_equal(kvb_put(client, "k", 1, buffer, 100), -EPROTO);
}

static void a_fragment_of_another_length_is_not_believed(void **state)
{
	uint8_t buffer[CAPACITY];

	(void)state;
	kvb_store_release(&fake.value, (uint64_t)CAPACITY);
	kvb_store_release(&fake.length, 100u);
	assert_int_equal(kvb_get(client, "k", 1, buffer, CAPACITY, NULL), -EPROTO);
}

static int count_stat(void *user, const struct kvb_stat *stat)
{
	assert_string_equal(stat->name, "");
	assert_string_equal(stat->text, "");
	*(unsigned *)user += 1;
	return 0;
}

static int ask_stats(const char *stats, size_t size, unsigned *ret_n)
{
	kvb_store_relaxed(&fake.stats, stats);
	kvb_store_release(&fake.value, (uint64_t)size);
	*ret_n = 0;
	return kvb_stats(client, count_stat, ret_n);
}

/* Five bytes that promise 2^32 pairs would reserve 256 GiB. */
static void statistics_that_are_not_there_are_not_believed(void **state)
{
	unsigned n;

	(void)state;
	assert_int_equal(ask_stats("\xdf\xff\xff\xff\xff", 5, &n), -EPROTO);
	assert_int_equal(n, 0);
	assert_int_equal(ask_stats("\x80\x80", 2, &n), -EPROTO);
	assert_int_equal(ask_stats("", 0, &n), -EPROTO);
}

static void names_and_texts_may_be_empty(void **state)
{
	unsigned n;

	(void)state;
	assert_int_equal(ask_stats("\x82\xa0\xa0\xa0\xa0", 5, &n), 0);
	assert_int_equal(n, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_length_beyond_the_buffer_is_not_believed, start, stop),
		cmocka_unit_test_setup_teardown(a_result_is_zero_or_an_error, start, stop),
		cmocka_unit_test_setup_teardown(
			a_fragment_of_another_length_is_not_believed, start, stop),
		cmocka_unit_test_setup_teardown(
			statistics_that_are_not_there_are_not_believed, start, stop),
		cmocka_unit_test_setup_teardown(names_and_texts_may_be_empty, start, stop),
	};

	return cmocka_run_group_tests_name("lying_server", tests, NULL, NULL) ? 1 : 0;
}
