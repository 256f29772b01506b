/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fd.c - one record, one set of descriptors; and whatever goes wrong, none of them stays.
 *
 * Main thread. Every test ends with as many open descriptors as it began with.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/fd.h"
#include "shm/util.h"
#include "tests/process.h"

static const char record[] = "0123456789abcde";

static unsigned fds_before;
static int pair[2]; /* 0 sends, 1 receives */

static int set_up(void **state)
{
	(void)state;
	fds_before = process_fds(getpid());
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair);
}

static int tear_down(void **state)
{
	(void)state;
	kvb_fds_close(pair, 2);
	return process_fds(getpid()) == fds_before ? 0 : -1;
}

/* Sends the record with n copies of an eventfd that holds `value`, past all checks of ours. */
static void send_raw(const void *data, size_t size, unsigned n, eventfd_t value)
{
	union {
		char bytes[CMSG_SPACE(16 * sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct iovec iov = {.iov_base = (void *)data, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	int fd = eventfd((unsigned)value, EFD_CLOEXEC | EFD_NONBLOCK);

	assert_true(fd >= 0);
	if (n > 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n * sizeof(int));
		for (unsigned i = 0; i < n; i++)
			memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &fd, sizeof(fd));
	}
	assert_int_equal(sendmsg(pair[0], &msg, MSG_NOSIGNAL), size);
	close(fd);
}

/* Receives, wanting n_fds descriptors, and expects `result`; on failure nothing may stay. */
static void refuse(unsigned n_fds, int result)
{
	unsigned before = process_fds(getpid());
	char data[sizeof(record)];
	int fds[KVB_FDS_MAX];
	size_t size = 99;

	memset(fds, 0, sizeof(fds));
	assert_int_equal(kvb_record_recv(pair[1], data, sizeof(data), &size, fds, n_fds), result);
	assert_int_equal(size, 99);
	for (unsigned i = 0; i < n_fds; i++)
		assert_int_equal(fds[i], -1);
	assert_int_equal(process_fds(getpid()), before);
}

/* --------------------------------------------------------------------------------------------- as agreed */

static void descriptors_come_with_their_record(void **state)
{
	int sent[3], got[4];
	char data[64];
	size_t size = 0;
	eventfd_t value;

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		sent[i] = eventfd(i + 5, EFD_NONBLOCK);
	assert_int_equal(kvb_record_send(pair[0], record, sizeof(record), sent, 3), 0);
	kvb_fds_close(sent, 3);
	assert_int_equal(kvb_record_recv(pair[1], data, sizeof(data), &size, got, 4), 1);
	assert_int_equal(size, sizeof(record));
	assert_memory_equal(data, record, sizeof(record));
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(fcntl(got[i], F_GETFD), FD_CLOEXEC);
		assert_int_equal(eventfd_read(got[i], &value), 0);
		assert_int_equal(value, i + 5);
	}
	assert_int_equal(got[3], -1);
	kvb_fds_close(got, 4);
}

static void as_many_as_agreed_may_come(void **state)
{
	int sent[KVB_FDS_MAX], got[KVB_FDS_MAX];
	char data[sizeof(record)];
	size_t size = 0;

	(void)state;
	for (unsigned i = 0; i < KVB_FDS_MAX; i++)
		sent[i] = pair[1];
	assert_int_equal(kvb_record_send(pair[0], record, sizeof(record), sent, KVB_FDS_MAX), 0);
	/* The record fits exactly. */
	assert_int_equal(kvb_record_recv(pair[1], data, sizeof(data), &size, got, KVB_FDS_MAX), 1);
	assert_int_equal(size, sizeof(record));
	for (unsigned i = 0; i < KVB_FDS_MAX; i++)
		assert_true(got[i] > pair[1]);
	kvb_fds_close(got, KVB_FDS_MAX);
}

static void records_keep_their_bounds(void **state)
{
	char data[8];
	size_t size = 0;

	(void)state;
	assert_int_equal(kvb_record_send(pair[0], "a", 1, NULL, 0), 0);
	assert_int_equal(kvb_record_send(pair[0], "bcd", 3, NULL, 0), 0);
	assert_int_equal(kvb_record_recv(pair[1], data, sizeof(data), &size, NULL, 0), 1);
	assert_int_equal(size, 1);
	assert_int_equal(kvb_record_recv(pair[1], data, sizeof(data), &size, NULL, 0), 1);
	assert_int_equal(size, 3);
	assert_memory_equal(data, "bcd", 3);
	refuse(0, -EAGAIN);
}

static void more_than_the_most_is_not_sent(void **state)
{
	int fds[KVB_FDS_MAX + 1] = {0};
	size_t size = 0;
	char data;

	(void)state;
	assert_int_equal(kvb_record_send(pair[0], record, 1, fds, KVB_FDS_MAX + 1), -EINVAL);
	assert_int_equal(kvb_record_send(pair[0], record, 0, NULL, 0), -EINVAL);
	assert_int_equal(kvb_record_recv(pair[1], &data, 1, &size, fds, KVB_FDS_MAX + 1), -EINVAL);
	refuse(0, -EAGAIN);
}

/* ------------------------------------------------------------------------------------------ hostile peers */

static void unwanted_descriptors_never_arrive(void **state)
{
	(void)state;
	send_raw(record, sizeof(record), 1, 0);
	refuse(0, -EPROTO);
	send_raw(record, sizeof(record), KVB_FDS_MAX, 0);
	refuse(0, -EPROTO);
}

static void more_than_agreed_are_closed(void **state)
{
	(void)state;
	send_raw(record, sizeof(record), 3, 0);
	refuse(1, -EPROTO);
	send_raw(record, sizeof(record), KVB_FDS_MAX, 0);
	refuse(KVB_FDS_MAX - 1, -EPROTO);
	/* More than any record has: the kernel keeps the rest. */
	send_raw(record, sizeof(record), KVB_FDS_MAX + 4, 0);
	refuse(2, -EMFILE);
}

/* The kernel installs what fits, drops the others and says so in a flag only. */
static void a_full_descriptor_table_leaks_none(void **state)
{
	struct rlimit before, low;
	int probe = dup(pair[0]);

	(void)state;
	assert_true(probe >= 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	for (unsigned room = 1; room < 4; room++) {
		send_raw(record, sizeof(record), 4, 0);
		close(probe);
		low = before;
		/* Of four, as many find a number; refuse() needs one itself, for counting. */
		low.rlim_cur = (rlim_t)probe + room;
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
		refuse(4, -EMFILE);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
		assert_int_equal(dup(pair[0]), probe);
	}
	close(probe);
}

static void an_empty_record_is_no_record(void **state)
{
	(void)state;
	send_raw("", 0, 0, 0);
	refuse(4, 0);
	send_raw("", 0, 2, 0);
	refuse(4, -EPROTO);
	send_raw("", 0, 2, 0);
	refuse(0, -EPROTO);
}

static void a_long_record_is_refused_whole(void **state)
{
	static const char big[4096];

	(void)state;
	send_raw(big, sizeof(record) + 1, 0, 0);
	refuse(0, -EMSGSIZE);
	send_raw(big, sizeof(big), 3, 0);
	refuse(4, -EMSGSIZE);
	send_raw(big, sizeof(big), 3, 0);
	refuse(0, -EMSGSIZE);
	/* Nothing of it is left over. */
	refuse(0, -EAGAIN);
}

static void other_control_data_is_refused(void **state)
{
	const int on = 1;

	(void)state;
	assert_int_equal(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
	send_raw(record, sizeof(record), 0, 0);
	refuse(4, -EPROTO);
	/* Credentials come first and take the room. */
	send_raw(record, sizeof(record), 2, 0);
	refuse(4, -EMFILE);
}

/* ------------------------------------------------------------------------------------------- the way out */

static void a_peer_that_left_is_told_apart(void **state)
{
	(void)state;
	kvb_fd_close(&pair[0]);
	refuse(4, 0);
	assert_int_equal(kvb_record_send(pair[1], record, sizeof(record), NULL, 0), -EPIPE);
}

/* SEQPACKET has no SIGPIPE; a stream has, and it would end the test here. */
static void no_signal_comes_from_sending(void **state)
{
	const struct sigaction standard = {.sa_handler = SIG_DFL};
	struct sigaction before;
	int stream[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stream), 0);
	kvb_fd_close(&stream[1]);
	assert_int_equal(sigaction(SIGPIPE, &standard, &before), 0);
	assert_int_equal(kvb_record_send(stream[0], record, sizeof(record), NULL, 0), -EPIPE);
	assert_int_equal(sigaction(SIGPIPE, &before, NULL), 0);
	kvb_fd_close(&stream[0]);
}

static void sending_never_blocks(void **state)
{
	unsigned sent = 0, received = 0;
	char data[sizeof(record)];
	size_t size;
	int r;

	(void)state;
	while ((r = kvb_record_send(pair[0], record, sizeof(record), NULL, 0)) == 0)
		sent++;
	assert_int_equal(r, -EAGAIN);
	while ((r = kvb_record_recv(pair[1], data, sizeof(data), &size, NULL, 0)) == 1)
		received++;
	assert_int_equal(r, -EAGAIN);
	assert_int_equal(received, sent);
	assert_int_equal(kvb_record_send(-1, record, sizeof(record), NULL, 0), -EBADF);
}

static void closing_happens_once(void **state)
{
	int fds[3] = {dup(pair[0]), -1, dup(pair[0])};
	int first = fds[0];

	(void)state;
	kvb_fds_close(fds, 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(fds[i], -1);
	/* Somebody else gets the number; closing again must not take it away. */
	assert_int_equal(dup(pair[0]), first);
	kvb_fds_close(fds, 3);
	assert_int_equal(fcntl(first, F_GETFD), 0);
	close(first);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(descriptors_come_with_their_record),
		TEST(as_many_as_agreed_may_come),
		TEST(records_keep_their_bounds),
		TEST(more_than_the_most_is_not_sent),
		TEST(unwanted_descriptors_never_arrive),
		TEST(more_than_agreed_are_closed),
		TEST(a_full_descriptor_table_leaks_none),
		TEST(an_empty_record_is_no_record),
		TEST(a_long_record_is_refused_whole),
		TEST(other_control_data_is_refused),
		TEST(a_peer_that_left_is_told_apart),
		TEST(no_signal_comes_from_sending),
		TEST(sending_never_blocks),
		TEST(closing_happens_once),
	};

	return cmocka_run_group_tests_name("fd", tests, NULL, NULL) ? 1 : 0;
}
