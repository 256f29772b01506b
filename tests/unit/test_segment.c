/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_segment.c - memfds: what their seals forbid, what is refused before it is mapped, which
 * pages are there, and who inherits what.
 *
 * Main thread; forked children only look, say what they saw by their exit status, and assert
 * nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/segment.h"
#include "shm/util.h"
#include "tests/process.h"

#define PAGE       4096u
#define PAGES      8u
#define BYTES      ((uint64_t)PAGES * PAGE)
#define POOL_SEALS (KVB_SEALS_FIXED_SIZE | KVB_SEAL_FUTURE_WRITE)

static unsigned fds_before;

static int count_fds(void **state)
{
	(void)state;
	fds_before = process_fds(getpid());
	return 0;
}

/* Whatever a test did, it gave all descriptors back. */
static int same_fds(void **state)
{
	(void)state;
	return process_fds(getpid()) == fds_before ? 0 : -1;
}

static struct kvb_segment new_segment(int seals)
{
	struct kvb_segment segment = KVB_SEGMENT_NONE;

	assert_int_equal(kvb_segment_new("test", BYTES, seals, &segment), 0);
	assert_true(segment.fd >= 0);
	assert_non_null(segment.base);
	assert_int_equal(segment.bytes, BYTES);
	return segment;
}

/* ----------------------------------------------------------------------------------------------- seals */

static void the_size_is_sealed(void **state)
{
	struct kvb_segment segment = new_segment(KVB_SEALS_FIXED_SIZE);
	int seals = fcntl(segment.fd, F_GET_SEALS);
	struct stat st;

	(void)state;
	assert_int_equal(seals & POOL_SEALS, KVB_SEALS_FIXED_SIZE);
	assert_int_equal(ftruncate(segment.fd, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(segment.fd, 2 * (off_t)BYTES), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(kvb_memfd_seal(segment.fd, F_SEAL_WRITE), -EPERM);
	assert_int_equal(fstat(segment.fd, &st), 0);
	assert_int_equal(st.st_size, BYTES);
	assert_int_equal(fcntl(segment.fd, F_GETFD), FD_CLOEXEC);
	kvb_segment_free(&segment);
}

static void future_writers_are_shut_out(void **state)
{
	struct kvb_segment owner = new_segment(POOL_SEALS);
	struct kvb_segment client = KVB_SEGMENT_NONE;
	char *seen;

	(void)state;
	assert_int_equal(kvb_segment_map(owner.fd, BYTES, POOL_SEALS, true, &client), -EPERM);
	assert_null(client.base);
	assert_int_equal(kvb_segment_map(owner.fd, BYTES, POOL_SEALS, false, &client), 0);
	assert_int_equal(mprotect(client.base, BYTES, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(errno, EACCES);
	assert_int_equal(pwrite(owner.fd, "x", 1, 0), -1);
	assert_int_equal(errno, EPERM);
	/* Taking memory out of the file is writing, too. */
	assert_int_equal(
		fallocate(owner.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE), -1);
	assert_int_equal(errno, EPERM);
	/* The owner's mapping is older than the seal. */
	memcpy((char *)owner.base + PAGE, "bell", 5);
	seen = (char *)client.base + PAGE;
	assert_string_equal(seen, "bell");
	kvb_segment_unmap(&client);
	kvb_segment_free(&owner);
}

static void both_sides_write_a_session(void **state)
{
	struct kvb_segment owner = new_segment(KVB_SEALS_FIXED_SIZE);
	struct kvb_segment client = KVB_SEGMENT_NONE;

	(void)state;
	assert_int_equal(kvb_segment_map(owner.fd, BYTES, KVB_SEALS_FIXED_SIZE, true, &client), 0);
	assert_int_equal(client.fd, owner.fd);
	assert_ptr_not_equal(client.base, owner.base);
	memcpy(client.base, "kick", 5);
	assert_string_equal(owner.base, "kick");
	kvb_segment_unmap(&client);
	assert_null(client.base);
	kvb_segment_free(&owner);
}

/* --------------------------------------------------------------------------------- refused before mapped */

static void refuse(int fd, uint64_t bytes, int seals)
{
	struct kvb_segment segment = KVB_SEGMENT_NONE;

	assert_int_equal(kvb_segment_map(fd, bytes, seals, false, &segment), -EPROTO);
	assert_int_equal(segment.fd, -1);
	assert_null(segment.base);
}

static void another_size_is_refused(void **state)
{
	struct kvb_segment owner = new_segment(KVB_SEALS_FIXED_SIZE);
	int empty = -1;

	(void)state;
	refuse(owner.fd, BYTES - PAGE, KVB_SEALS_FIXED_SIZE);
	refuse(owner.fd, BYTES + PAGE, KVB_SEALS_FIXED_SIZE);
	refuse(owner.fd, BYTES - 1, KVB_SEALS_FIXED_SIZE);
	refuse(owner.fd, 0, KVB_SEALS_FIXED_SIZE);
	refuse(owner.fd, UINT64_MAX, KVB_SEALS_FIXED_SIZE);
	/* Refusing does not take the descriptor. */
	assert_int_equal(fcntl(owner.fd, F_GETFD), FD_CLOEXEC);
	kvb_segment_free(&owner);
	assert_int_equal(kvb_memfd_new("empty", 0, &empty), 0);
	assert_int_equal(kvb_memfd_seal(empty, KVB_SEALS_FIXED_SIZE), 0);
	refuse(empty, 0, KVB_SEALS_FIXED_SIZE);
	close(empty);
}

static void each_missing_seal_is_refused(void **state)
{
	static const int seals[] = {F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, KVB_SEAL_FUTURE_WRITE};

	(void)state;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(seals); i++) {
		int fd = -1;
		assert_int_equal(kvb_memfd_new("test", BYTES, &fd), 0);
		assert_int_equal(kvb_memfd_seal(fd, POOL_SEALS & ~seals[i]), 0);
		refuse(fd, BYTES, POOL_SEALS);
		close(fd);
	}
}

static void what_is_no_memfd_is_refused(void **state)
{
	char path[] = "/tmp/kvbell-test-XXXXXX";
	int file = mkstemp(path);
	int event = eventfd(0, EFD_CLOEXEC);
	int bare = memfd_create("bare", MFD_CLOEXEC);
	int pipe_fds[2];

	(void)state;
	assert_true(file >= 0 && event >= 0 && bare >= 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(pipe(pipe_fds), 0);
	assert_int_equal(ftruncate(file, (off_t)BYTES), 0);
	assert_int_equal(ftruncate(bare, (off_t)BYTES), 0);
	refuse(file, BYTES, KVB_SEALS_FIXED_SIZE);
	refuse(event, BYTES, KVB_SEALS_FIXED_SIZE);
	refuse(pipe_fds[0], BYTES, KVB_SEALS_FIXED_SIZE);
	refuse(-1, BYTES, KVB_SEALS_FIXED_SIZE);
	/* Made without MFD_ALLOW_SEALING: it can never get the seals. */
	assert_int_equal(kvb_memfd_seal(bare, KVB_SEALS_FIXED_SIZE), -EPERM);
	refuse(bare, BYTES, KVB_SEALS_FIXED_SIZE);
	close(file);
	close(event);
	close(bare);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
}

/* --------------------------------------------------------------------------------------------- populate */

/* One bit per page: it has memory. */
static unsigned pages_there(const struct kvb_segment *segment)
{
	unsigned char there[PAGES];
	unsigned bits = 0;

	assert_int_equal(mincore(segment->base, segment->bytes, there), 0);
	for (unsigned i = 0; i < PAGES; i++)
		bits |= (there[i] & 1u) << i;
	return bits;
}

static void populate_brings_its_range_and_no_more(void **state)
{
	struct kvb_segment segment = new_segment(POOL_SEALS);
	struct kvb_segment reader = KVB_SEGMENT_NONE;

	(void)state;
	assert_int_equal(pages_there(&segment), 0);
	assert_int_equal(kvb_segment_populate(&segment, 2 * PAGE, 3 * PAGE, true), 0);
	assert_int_equal(pages_there(&segment), 0x1c);
	/* Twice is once. */
	assert_int_equal(kvb_segment_populate(&segment, 2 * PAGE, 3 * PAGE, true), 0);
	assert_int_equal(pages_there(&segment), 0x1c);
	assert_int_equal(kvb_segment_map(segment.fd, BYTES, POOL_SEALS, false, &reader), 0);
	assert_int_equal(kvb_segment_populate(&reader, 6 * PAGE, PAGE, false), 0);
	assert_int_equal(pages_there(&segment), 0x5c);
	assert_int_equal(kvb_segment_populate(&segment, 0, BYTES, true), 0);
	assert_int_equal(pages_there(&segment), 0xff);
	kvb_segment_unmap(&reader);
	kvb_segment_free(&segment);
}

/* An access to the second half would be SIGBUS, as on a full host. */
static void memory_that_cannot_come_is_an_error(void **state)
{
	struct kvb_segment segment = {.bytes = BYTES};

	(void)state;
	assert_int_equal(kvb_memfd_new("short", BYTES / 2, &segment.fd), 0);
	segment.base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd, 0);
	assert_ptr_not_equal(segment.base, MAP_FAILED);
	assert_int_equal(kvb_segment_populate(&segment, 0, BYTES / 2, true), 0);
	assert_int_equal(kvb_segment_populate(&segment, BYTES / 2, PAGE, true), -ENOMEM);
	assert_int_equal(kvb_segment_populate(&segment, BYTES / 2, PAGE, false), -ENOMEM);
	kvb_segment_free(&segment);
}

static void a_size_beyond_reason_is_an_error(void **state)
{
	struct kvb_segment segment = KVB_SEGMENT_NONE;

	(void)state;
	assert_int_equal(kvb_segment_new("huge", (uint64_t)1 << 62, KVB_SEALS_FIXED_SIZE, &segment),
		-ENOMEM);
	assert_int_equal(segment.fd, -1);
	assert_int_equal(kvb_segment_new("none", 0, KVB_SEALS_FIXED_SIZE, &segment), -EINVAL);
	assert_int_equal(segment.fd, -1);
}

/* ----------------------------------------------------------------------------------------- who inherits */

static int look_at_mapping(void *arg)
{
	const struct kvb_segment *segment = arg;
	unsigned char there[PAGES];

	if (mincore(segment->base, segment->bytes, there) == 0)
		return 1;
	return errno == ENOMEM ? 0 : 2;
}

static void a_forked_child_has_no_mapping(void **state)
{
	struct kvb_segment segment = new_segment(KVB_SEALS_FIXED_SIZE);
	pid_t pid = process_fork(look_at_mapping, &segment);

	(void)state;
	assert_true(pid > 0);
	assert_int_equal(process_wait(pid, 20000 * TEST_SLOWER), 0);
	kvb_segment_free(&segment);
}

/* The flags of the mapping at `base`, as smaps has them; "" if there is none. */
static void mapping_flags(const void *base, char *ret_flags, size_t size)
{
	char *text = process_read_file("/proc/self/smaps");
	char start[32];
	char *at;

	ret_flags[0] = '\0';
	snprintf(start, sizeof(start), "%lx-", (unsigned long)(uintptr_t)base);
	at = strstr(text, start);
	at = at ? strstr(at, "VmFlags:") : NULL;
	if (at) {
		at[strcspn(at, "\n")] = '\0';
		snprintf(ret_flags, size, "%s", at + strlen("VmFlags:"));
	}
	free(text);
}

static void a_core_dump_has_no_payload(void **state)
{
	struct kvb_segment segment = new_segment(KVB_SEALS_FIXED_SIZE);
	char flags[128];

	(void)state;
	mapping_flags(segment.base, flags, sizeof(flags));
	assert_non_null(strstr(flags, " dd"));
	assert_non_null(strstr(flags, " dc"));
	kvb_segment_free(&segment);
}

static void freeing_twice_is_freeing_once(void **state)
{
	struct kvb_segment segment = new_segment(KVB_SEALS_FIXED_SIZE);
	int fd = segment.fd;

	(void)state;
	kvb_segment_free(&segment);
	assert_int_equal(segment.fd, -1);
	assert_null(segment.base);
	assert_int_equal(segment.bytes, 0);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	kvb_segment_free(&segment);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, count_fds, same_fds)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_size_is_sealed),
		TEST(future_writers_are_shut_out),
		TEST(both_sides_write_a_session),
		TEST(another_size_is_refused),
		TEST(each_missing_seal_is_refused),
		TEST(what_is_no_memfd_is_refused),
		TEST(populate_brings_its_range_and_no_more),
		TEST(memory_that_cannot_come_is_an_error),
		TEST(a_size_beyond_reason_is_an_error),
		TEST(a_forked_child_has_no_mapping),
		TEST(a_core_dump_has_no_payload),
		TEST(freeing_twice_is_freeing_once),
	};

	return cmocka_run_group_tests_name("segment", tests, NULL, NULL) ? 1 : 0;
}
