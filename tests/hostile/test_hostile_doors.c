/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hostile_doors.c - what may be said at the two sockets: records and descriptors at the door, and
 * messages on the control socket, by those who have a session and by those who have none.
 *
 * Everything hostile is done by the main thread; server and honest client are processes of their own
 * (scene.h). Each test ends with scene_check(), which also counts the server's descriptors.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "shm/fd.h"
#include "tests/dealer.h"
#include "tests/hostile/scene.h"
#include "tests/random.h"

/* The most that the kernel passes in one message (SCM_MAX_FD). */
#define FDS_MAX      253u
#define RECORD_MAX   (100 * KVB_KIB)
#define SILENT       600u
#define HELLOS       300u
#define MESSAGES     (20000u / TEST_SLOWER)
#define FRAMES_MAX   20u
#define FRAME_LENGTH (64 * KVB_KIB)
#define TOKENS       200u
#define GREETINGS    300u

static uint64_t seed = 1;
static uint8_t noise[2 * KVB_MSG_FRAME_MAX];

static void make_noise(void *to, size_t size)
{
	uint8_t *at = to;

	for (size_t i = 0; i < size; i++)
		at[i] = (uint8_t)next_random(&seed);
}

/* ------------------------------------------------------------------------------------------ the door */

/* What the server answers: enum kvb_door_type; 0 it hung up without a word. */
static int answer_at(int fd)
{
	struct kvb_welcome welcome;
	int fds[KVB_WELCOME_READER_FDS];
	size_t size = 0;
	int r = raw_door_recv(fd, &welcome, sizeof(welcome), &size, fds, KVB_WELCOME_READER_FDS);

	/* It hangs up with what was sent to it unread: that is a reset. */
	if (r == 0 || r == -ECONNRESET)
		return 0;
	assert_int_equal(r, 1);
	kvb_fds_close(fds, KVB_WELCOME_READER_FDS);
	assert_int_equal(size, sizeof(welcome));
	return welcome.type;
}

/* With more descriptors than the product ever sends. */
static int send_with(int fd, const void *record, size_t size, const int *fds, unsigned n_fds)
{
	static union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = (void *)(uintptr_t)record, .iov_len = size};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

	if (n_fds > 0) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(n_fds * sizeof(int)),
			.cmsg_level = SOL_SOCKET,
			.cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.header), fds, n_fds * sizeof(int));
	}
	return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)size ? 0 : -errno;
}

static int answer_to(const void *record, size_t size, const int *fds, unsigned n_fds)
{
	int fd, r;

	assert_int_equal(raw_connect(scene_server.dir, &fd), 0);
	assert_int_equal(send_with(fd, record, size, fds, n_fds), 0);
	r = answer_at(fd);
	close(fd);
	return r;
}

static void records_of_any_size_with_any_descriptors(void **state)
{
	static const size_t sizes[] = {0, 1, 63, 64, 65, 128, 255, 256, 257, 4096, RECORD_MAX};
	static const unsigned counts[] = {0, 1, 2, FDS_MAX};
	static uint8_t record[RECORD_MAX];
	struct kvb_hello hello;
	int fds[FDS_MAX];

	(void)state;
	for (unsigned i = 0; i < FDS_MAX; i++) {
		fds[i] = open("/dev/null", O_RDWR | O_CLOEXEC);
		assert_true(fds[i] >= 0);
	}
	raw_hello(&hello);
	for (size_t s = 0; s < KVB_ARRAY_SIZE(sizes); s++)
		for (size_t c = 0; c < KVB_ARRAY_SIZE(counts); c++)
			for (unsigned valid = 0; valid < 2; valid++) {
				bool in = sizes[s] == sizeof(hello) && counts[c] == 0 && valid;
				int answer;
				make_noise(record, sizes[s]);
				if (valid)
					memcpy(record, &hello,
						kvb_min_u64(sizes[s], sizeof(hello)));
				answer = answer_to(record, sizes[s], fds, counts[c]);
				/* A record of no bytes is how a socket says that it is closed. */
				if (sizes[s] > 0)
					assert_int_equal(
						answer, in ? KVB_DOOR_WELCOME : KVB_DOOR_GOODBYE);
				else
					assert_true(answer == 0 || answer == KVB_DOOR_GOODBYE);
			}
	kvb_fds_close(fds, FDS_MAX);
	scene_check();
}

/* One bit of the record is another one than it ought to be; names and nodes may be anything. */
static void hellos_with_a_wrong_bit(void **state)
{
	unsigned refused = 0;

	(void)state;
	for (unsigned i = 0; i < HELLOS; i++) {
		size_t bit = next_random(&seed) % (8 * sizeof(struct kvb_hello));
		struct kvb_hello hello;
		bool free_to_choose;
		raw_hello(&hello);
		((uint8_t *)&hello)[bit / 8] ^= (uint8_t)(1u << bit % 8);
		free_to_choose = (bit / 8 >= offsetof(struct kvb_hello, node) &&
					 bit / 8 < offsetof(struct kvb_hello, reserved)) ||
			bit == 8 * offsetof(struct kvb_hello, flags);
		assert_int_equal(answer_to(&hello, sizeof(hello), NULL, 0),
			free_to_choose ? KVB_DOOR_WELCOME : KVB_DOOR_GOODBYE);
		refused += !free_to_choose;
	}
	assert_in_range(refused, 1, HELLOS - 1);
	scene_check();
}

static void those_who_say_nothing_keep_nobody_out(void **state)
{
	static int fds[SILENT];
	struct raw_client client;

	(void)state;
	for (unsigned i = 0; i < SILENT; i++)
		assert_int_equal(raw_connect(scene_server.dir, &fds[i]), 0);
	assert_int_equal(raw_attach(&client, scene_server.dir), 0);
	assert_int_equal(raw_put(&client, "quiet", 0, 0, 100, 100), 0);
	raw_drop(&client);
	/* With all of them still open at this end. */
	scene_check();
	kvb_fds_close(fds, SILENT);
}

static void a_session_has_nothing_more_to_say_at_the_door(void **state)
{
	static const size_t sizes[] = {1, 64, 256, 5000};
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	(void)state;
	assert_true(fd >= 0);
	for (size_t s = 0; s < KVB_ARRAY_SIZE(sizes); s++)
		for (unsigned n_fds = 0; n_fds < 2; n_fds++) {
			struct raw_client client;
			struct kvb_goodbye goodbye;
			assert_int_equal(raw_attach(&client, scene_server.dir), 0);
			make_noise(noise, sizes[s]);
			assert_int_equal(
				kvb_record_send(client.door_fd, noise, sizes[s], &fd, n_fds), 0);
			assert_int_equal(raw_goodbye(client.door_fd, &goodbye), 0);
			assert_int_equal(goodbye.reason, KVB_REASON_PROTOCOL);
			raw_drop(&client);
		}
	close(fd);
	scene_check();
}

/* ------------------------------------------------------------------------------------ control socket */

/* A header that is right, or wrong in one place, or noise. */
static size_t make_header(const struct dealer *dealer, uint8_t *to)
{
	struct kvb_msg_header header =
		dealer_header(dealer, (uint16_t)(1 + next_random(&seed) % 8), next_random(&seed));
	uint32_t what = next_random(&seed) % 4;
	size_t bit = next_random(&seed) % (8 * sizeof(header));

	if (what == 1)
		((uint8_t *)&header)[bit / 8] ^= (uint8_t)(1u << bit % 8);
	if (what == 2)
		make_noise(&header, sizeof(header));
	memcpy(to, &header, sizeof(header));
	return what == 3 ? next_random(&seed) % sizeof(header) : sizeof(header);
}

/* MessagePack that claims more than it has, and noise; lengths of all orders. */
static size_t make_body(uint8_t *to)
{
	static const uint8_t claims[] = {0x80, 0x81, 0x90, 0xdd, 0xdf, 0xdb, 0xc6, 0xff};
	size_t size = next_random(&seed) % (1u << next_random(&seed) % 17);

	if (size > 64)
		make_noise(to, 64);
	else
		make_noise(to, size);
	if (size > 0 && next_random(&seed) % 2)
		to[0] = claims[next_random(&seed) % KVB_ARRAY_SIZE(claims)];
	return size;
}

static int send_frame(void *socket, const void *data, size_t size, bool more)
{
	/* Whoever does not read at once waits; this one does not. */
	return zmq_send(socket, data, size, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) < 0 ? -errno
											 : 0;
}

static void send_message(struct dealer *dealer)
{
	static uint8_t frame[FRAME_LENGTH];
	/* Mostly as many as there should be. */
	unsigned n = next_random(&seed) % 4 ? 2 : 1 + next_random(&seed) % FRAMES_MAX;
	int r = 0;

	for (unsigned i = 0; i < n && r == 0; i++) {
		size_t size = i == 0 ? make_header(dealer, frame) : make_body(frame);
		r = send_frame(dealer->socket, frame, size, i + 1 < n);
	}
	assert_true(r == 0 || r == -EAGAIN);
}

/* Replies must be ours whatever was asked. */
static unsigned read_replies(struct dealer *dealer)
{
	static struct dealer_reply reply;
	unsigned n = 0;
	int r;

	while ((r = dealer_receive_in(dealer, 0, &reply)) == 0)
		n++;
	assert_int_equal(r, -ETIMEDOUT);
	return n;
}

static void check_messages(bool attached)
{
	struct raw_client client;
	struct dealer dealer;
	unsigned replies = 0;

	assert_int_equal(raw_attach(&client, scene_server.dir), 0);
	assert_int_equal(dealer_open(&dealer, scene_server.dir, &client.welcome, NULL), 0);
	if (attached)
		assert_int_equal(dealer_attach(&dealer), 0);
	for (unsigned i = 0; i < MESSAGES; i++) {
		send_message(&dealer);
		if (i % 16 == 0)
			replies += read_replies(&dealer);
	}
	dealer_close(&dealer);
	/* Afterwards it is as good a server as before. */
	assert_int_equal(dealer_open(&dealer, scene_server.dir, &client.welcome, NULL), 0);
	if (attached)
		assert_true(replies > 0);
	else
		assert_int_equal(dealer_attach(&dealer), 0);
	dealer_close(&dealer);
	raw_drop(&client);
	scene_check();
}

static void messages_of_any_shape_with_a_session(void **state)
{
	(void)state;
	check_messages(true);
}

static void messages_of_any_shape_without_one(void **state)
{
	(void)state;
	check_messages(false);
}

static void frames_that_are_too_long_cut_the_connection(void **state)
{
	struct raw_client client;
	struct dealer dealer;
	struct kvb_msg_header header;

	(void)state;
	assert_int_equal(raw_attach(&client, scene_server.dir), 0);
	assert_int_equal(dealer_open(&dealer, scene_server.dir, &client.welcome, NULL), 0);
	assert_int_equal(dealer_attach(&dealer), 0);
	header = dealer_header(&dealer, KVB_MSG_PING, 2);
	assert_int_equal(dealer_send(&dealer, &header, noise, sizeof(noise)), 0);
	/* libzmq connects again by itself, as somebody who has shown no token. */
	assert_true(dealer_ping(&dealer, 3) < 0);
	dealer_close(&dealer);
	raw_drop(&client);
	scene_check();
}

static void tokens_cannot_be_guessed_or_shared(void **state)
{
	struct raw_client client, other;
	struct dealer dealer, thief;
	uint8_t token[KVB_ID_BYTES];

	(void)state;
	assert_int_equal(raw_attach(&client, scene_server.dir), 0);
	assert_int_equal(raw_attach(&other, scene_server.dir), 0);
	assert_int_equal(dealer_open(&thief, scene_server.dir, &client.welcome, NULL), 0);
	for (unsigned i = 0; i < TOKENS; i++) {
		make_noise(token, sizeof(token));
		/* One bit away from the right one, too. */
		if (i % 2) {
			memcpy(token, client.welcome.token, sizeof(token));
			token[i % sizeof(token)] ^= (uint8_t)(1u << i % 8);
		}
		assert_true(dealer_attach_with(&thief, token) < 0);
		assert_true(dealer_ping(&thief, 2) < 0);
	}
	/* The token of another session, for this one. */
	assert_true(dealer_attach_with(&thief, other.welcome.token) < 0);
	assert_int_equal(dealer_open(&dealer, scene_server.dir, &client.welcome, NULL), 0);
	assert_int_equal(dealer_attach(&dealer), 0);
	assert_true(dealer_ping(&thief, 3) < 0);
	assert_int_equal(dealer_ping(&dealer, 4), 0);
	/* Who has it moves the session to another connection, as after one that was lost; never to two. */
	assert_int_equal(dealer_attach(&thief), 0);
	assert_int_equal(dealer_ping(&thief, 5), 0);
	assert_true(dealer_ping(&dealer, 6) < 0);
	dealer_close(&thief);
	dealer_close(&dealer);
	raw_drop(&client);
	raw_drop(&other);
	scene_check();
}

static int connect_to_control(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", scene_server.dir,
		KVB_CONTROL_SOCKET);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

/* Below libzmq: greetings that are none, that stop in the middle, and that are followed by noise. */
static void greetings_that_libzmq_never_sends(void **state)
{
	static const uint8_t greeting[64] = {
		0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
	uint8_t bytes[256];

	(void)state;
	for (unsigned i = 0; i < GREETINGS; i++) {
		size_t known = next_random(&seed) % (sizeof(greeting) + 1);
		size_t size = known + next_random(&seed) % (sizeof(bytes) - known);
		int fd = connect_to_control();
		make_noise(bytes, sizeof(bytes));
		memcpy(bytes, greeting, known);
		/* It may have hung up already. */
		(void)!send(fd, bytes, size, MSG_NOSIGNAL);
		close(fd);
	}
	scene_check();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records_of_any_size_with_any_descriptors),
		cmocka_unit_test(hellos_with_a_wrong_bit),
		cmocka_unit_test(those_who_say_nothing_keep_nobody_out),
		cmocka_unit_test(a_session_has_nothing_more_to_say_at_the_door),
		cmocka_unit_test(messages_of_any_shape_with_a_session),
		cmocka_unit_test(messages_of_any_shape_without_one),
		cmocka_unit_test(frames_that_are_too_long_cut_the_connection),
		cmocka_unit_test(tokens_cannot_be_guessed_or_shared),
		cmocka_unit_test(greetings_that_libzmq_never_sends),
		cmocka_unit_test(scene_ends_well),
	};

	return cmocka_run_group_tests_name("hostile_doors", tests, scene_start, scene_stop) ? 1 : 0;
}
