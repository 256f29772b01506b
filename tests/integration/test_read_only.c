/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_read_only.c - what a reader gets is read-only: each way of writing to life page, index and
 * pool that the kernel knows is tried, by a client of the server's own user and by one of another.
 *
 * The server runs as an ordinary user where the test may choose (root), since what root may do is
 * no business of a seal. Children do the attempts and return a bit per file that could be written;
 * the main thread asserts.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvbell/kvbell.h"
#include "kvbell/protocol.h"
#include "shm/fd.h"
#include "shm/segment.h"
#include "shm/util.h"
#include "tests/process.h"
#include "tests/raw.h"

#define OWNER     1000u /* runs the server, if the test may choose */
#define OTHER     1001u /* is trusted */
#define PAGE      4096u
#define FDS_TRIED 64

static struct process_server server;

/* One of the files, as its reader has it. */
struct file {
	const char *name;
	int fd;
	size_t bytes;
	uint8_t *map; /* shared, read-only */
};

/* ------------------------------------------------------------------------------------- the attempts */

/* 0 it was written, or could be; -errno otherwise. */
typedef int attempt_fn(const struct file *file);

static int result(long r)
{
	return r < 0 ? -errno : 0;
}

static int write_map(int fd, size_t bytes, int prot)
{
	uint8_t *map = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		return -errno;
	map[0] ^= 0xff;
	munmap(map, bytes);
	return 0;
}

static int try_mmap(const struct file *file)
{
	return write_map(file->fd, file->bytes, PROT_READ | PROT_WRITE);
}

static int try_mmap_write_only(const struct file *file)
{
	return write_map(file->fd, file->bytes, PROT_WRITE);
}

static int try_mmap_last_page(const struct file *file)
{
	off_t last = (off_t)(file->bytes - PAGE);
	void *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, last);

	return result(map == MAP_FAILED ? -1 : 0);
}

static int try_mprotect(const struct file *file)
{
	return result(mprotect(file->map, file->bytes, PROT_READ | PROT_WRITE));
}

/* A map that was not writable when it was made. */
static int open_up(void *map, size_t bytes)
{
	int r;

	if (map == MAP_FAILED)
		return -errno;
	r = result(mprotect(map, bytes, PROT_READ | PROT_WRITE));
	munmap(map, bytes);
	return r;
}

static int try_mprotect_from_none(const struct file *file)
{
	return open_up(mmap(NULL, file->bytes, PROT_NONE, MAP_SHARED, file->fd, 0), file->bytes);
}

/* mremap() with an old size of 0 makes a second map of the same pages. */
static int try_mremap(const struct file *file)
{
	return open_up(mremap(file->map, 0, file->bytes, MREMAP_MAYMOVE), file->bytes);
}

/* A private map may be written, which is nobody else's business: the caller compares the file. */
static int try_private_map(const struct file *file)
{
	uint8_t *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file->fd, 0);
	int r;

	if (map == MAP_FAILED)
		return -errno;
	memset(map, 0xee, PAGE);
	/* Not even asked to be written back. */
	r = result(msync(map, PAGE, MS_SYNC));
	munmap(map, PAGE);
	return r < 0 ? r : -EPERM;
}

static int try_remove_pages(const struct file *file)
{
	return result(madvise(file->map, PAGE, MADV_REMOVE));
}

static int try_pwrite(const struct file *file)
{
	return result(pwrite(file->fd, "x", 1, 0));
}

static int try_write(const struct file *file)
{
	return result(write(file->fd, "x", 1));
}

static int try_pwritev2(const struct file *file)
{
	struct iovec iov = {.iov_base = (void *)"x", .iov_len = 1};

	return result(pwritev2(file->fd, &iov, 1, 0, RWF_APPEND));
}

static int try_sendfile(const struct file *file)
{
	int from = memfd_create("source", MFD_CLOEXEC);
	int r = ftruncate(from, PAGE) < 0 ? -1 : (int)sendfile(file->fd, from, NULL, PAGE);

	r = result(r);
	close(from);
	return r;
}

static int try_splice(const struct file *file)
{
	off_t offset = 0;
	int fds[2], r;

	if (pipe2(fds, O_CLOEXEC) < 0 || write(fds[1], "x", 1) != 1)
		return 0;
	r = result(splice(fds[0], NULL, file->fd, &offset, 1, 0));
	close(fds[0]);
	close(fds[1]);
	return r;
}

static int try_copy_file_range(const struct file *file)
{
	int from = memfd_create("source", MFD_CLOEXEC);
	off_t at = 0, to = 0;
	int r = ftruncate(from, PAGE) < 0 ? -1
					  : (int)copy_file_range(from, &at, file->fd, &to, PAGE, 0);

	r = result(r);
	close(from);
	return r;
}

static int try_shrink(const struct file *file)
{
	return result(ftruncate(file->fd, 0));
}

static int try_grow(const struct file *file)
{
	return result(ftruncate(file->fd, (off_t)(2 * file->bytes)));
}

static int try_allocate_beyond(const struct file *file)
{
	return result(fallocate(file->fd, 0, 0, (off_t)(2 * file->bytes)));
}

static int try_punch_hole(const struct file *file)
{
	return result(
		fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)PAGE));
}

static int try_zero_range(const struct file *file)
{
	return result(fallocate(file->fd, FALLOC_FL_ZERO_RANGE, 0, (off_t)PAGE));
}

static int try_collapse(const struct file *file)
{
	return result(fallocate(file->fd, FALLOC_FL_COLLAPSE_RANGE, 0, (off_t)PAGE));
}

/* Seals that would take the server's own access away. */
static int try_more_seals(const struct file *file)
{
	return result(fcntl(file->fd, F_ADD_SEALS, F_SEAL_WRITE));
}

/* Opens it anew, by the path under /proc that names it, and tries what a fresh descriptor may. */
static int write_path(const char *path, const struct file *file, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);
	int r;

	if (fd < 0)
		return -errno;
	r = result(pwrite(fd, "x", 1, 0));
	if (r < 0)
		r = write_map(fd, file->bytes, PROT_READ | PROT_WRITE);
	if (r < 0)
		r = result(ftruncate(fd, 0));
	if (r < 0)
		r = result(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE));
	close(fd);
	return r;
}

static int reopen(const struct file *file, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", file->fd);
	return write_path(path, file, flags);
}

static int try_reopen(const struct file *file)
{
	return reopen(file, O_RDWR);
}

static int try_reopen_truncated(const struct file *file)
{
	return reopen(file, O_RDWR | O_TRUNC);
}

static int try_reopen_appending(const struct file *file)
{
	return reopen(file, O_WRONLY | O_APPEND);
}

/* The client's own map, by its name under /proc. */
static int try_own_map_file(const struct file *file)
{
	char path[96];

	snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", (unsigned long)file->map,
		(unsigned long)(file->map + file->bytes));
	return write_path(path, file, O_RDWR);
}

/* The client's memory as a file goes around page protection, but not around a shared map's. */
static int try_own_memory(const struct file *file)
{
	int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	int r = fd < 0 ? -errno : result(pwrite(fd, "x", 1, (off_t)(uintptr_t)file->map));

	if (fd >= 0)
		close(fd);
	return r;
}

/* ------------------------------------------------------ the server itself, who can write to its maps */

/* A server under a sanitizer stays open to those of its own user, for its leak checker. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(KVB_TSAN)
#define SERVER_IS_CLOSED

/* Which number a file has there may not be asked, so all are tried. */
static int try_servers_descriptors(const struct file *file)
{
	char path[64];
	int r = -EACCES;

	for (int fd = 0; fd < FDS_TRIED; fd++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)server.pid, fd);
		if (access(path, F_OK) == 0)
			return 0;
		r = write_path(path, file, O_RDWR);
		if (r != -EACCES)
			break;
	}
	return r;
}

static int try_servers_memory(const struct file *file)
{
	char path[64];
	int fd;

	(void)file;
	snprintf(path, sizeof(path), "/proc/%d/mem", (int)server.pid);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

static int try_vm_writev(const struct file *file)
{
	struct iovec from = {.iov_base = (void *)"x", .iov_len = 1};
	struct iovec to = {.iov_base = file->map, .iov_len = 1};

	return result(process_vm_writev(server.pid, &from, 1, &to, 1, 0));
}

static int try_ptrace(const struct file *file)
{
	(void)file;
	return result(ptrace(PTRACE_SEIZE, server.pid, NULL, NULL));
}
#endif

/* -------------------------------------------------------------------------------------- the attempts' run */

struct attempt {
	const char *name;
	attempt_fn *fn;
	int error, or_error; /* what the kernel says to it */
};

static const struct attempt attempts[] = {
	{"mmap", try_mmap, -EPERM, 0},
	{"mmap, write only", try_mmap_write_only, -EPERM, 0},
	{"mmap of the last page", try_mmap_last_page, -EPERM, 0},
	{"mprotect", try_mprotect, -EACCES, 0},
	{"mprotect of a map without access", try_mprotect_from_none, -EACCES, 0},
	{"mremap", try_mremap, -EACCES, 0},
	{"a private map", try_private_map, -EPERM, 0},
	{"madvise(MADV_REMOVE)", try_remove_pages, -EACCES, 0},
	{"pwrite", try_pwrite, -EPERM, 0},
	{"write", try_write, -EPERM, 0},
	{"pwritev2(RWF_APPEND)", try_pwritev2, -EPERM, 0},
	{"sendfile", try_sendfile, -EPERM, 0},
	{"splice", try_splice, -EPERM, 0},
	{"copy_file_range", try_copy_file_range, -EPERM, 0},
	{"ftruncate to nothing", try_shrink, -EPERM, 0},
	{"ftruncate to twice the size", try_grow, -EPERM, 0},
	{"fallocate beyond the end", try_allocate_beyond, -EPERM, 0},
	{"fallocate(PUNCH_HOLE)", try_punch_hole, -EPERM, 0},
	{"fallocate(ZERO_RANGE)", try_zero_range, -EPERM, -EOPNOTSUPP},
	{"fallocate(COLLAPSE_RANGE)", try_collapse, -EPERM, -EOPNOTSUPP},
	{"fcntl(F_ADD_SEALS)", try_more_seals, -EPERM, 0},
	{"reopening through /proc", try_reopen, -EPERM, -EACCES},
	{"reopening with O_TRUNC", try_reopen_truncated, -EPERM, -EACCES},
	{"reopening with O_APPEND", try_reopen_appending, -EPERM, -EACCES},
	{"/proc/self/map_files", try_own_map_file, -EPERM, -EACCES},
	{"/proc/self/mem", try_own_memory, -EIO, 0},
#ifdef SERVER_IS_CLOSED
	{"/proc/SERVER/fd", try_servers_descriptors, -EACCES, 0},
	{"/proc/SERVER/mem", try_servers_memory, -EACCES, 0},
	{"process_vm_writev", try_vm_writev, -EPERM, 0},
	{"ptrace", try_ptrace, -EPERM, 0},
#endif
};

static const struct attempt *attempt_now;
static uid_t uid_now;

static int become(uid_t uid)
{
	if (geteuid() != 0)
		return uid == geteuid() ? 0 : -EPERM;
	if (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0)
		return -errno;
	/* Who changes its user loses what any other process may do to itself. */
	return prctl(PR_SET_DUMPABLE, 1) < 0 ? -errno : 0;
}

/* Attaches as a reader does; all descriptors stay open until the process ends. */
static int attach(struct file ret_files[3])
{
	static struct raw_client raw;
	int r = raw_attach_as(&raw, server.dir, KVB_HELLO_READER);

	if (r < 0)
		return r;
	if (!(raw.welcome.flags & KVB_WELCOME_READER))
		return -EPROTO;
	ret_files[0] = (struct file){"life page", raw.life.fd, raw.welcome.life_bytes, NULL};
	ret_files[1] = (struct file){"index", raw.fds[KVB_FD_INDEX], raw.welcome.index_bytes, NULL};
	ret_files[2] = (struct file){"pool", raw.fds[KVB_FD_POOL], raw.welcome.payload_max, NULL};
	return 0;
}

static bool holds(const struct attempt *attempt, const struct file *file)
{
	uint8_t *before = malloc(file->bytes);
	bool same;
	int r;

	if (!before)
		return false;
	memcpy(before, file->map, file->bytes);
	r = attempt->fn(file);
	if (r == 0 || (r != attempt->error && r != attempt->or_error))
		fprintf(stderr, "%s on the %s: %s\n", attempt->name, file->name,
			r == 0 ? "worked" : strerror(-r));
	same = memcmp(before, file->map, file->bytes) == 0;
	if (!same)
		fprintf(stderr, "%s changed the %s\n", attempt->name, file->name);
	free(before);
	return same && r != 0 && (r == attempt->error || r == attempt->or_error);
}

static int try_all_files(void *arg)
{
	struct file files[3];
	int faults = 0;

	(void)arg;
	if (become(uid_now) < 0 || attach(files) < 0)
		return 127;
	for (unsigned i = 0; i < KVB_ARRAY_SIZE(files); i++) {
		files[i].map = mmap(NULL, files[i].bytes, PROT_READ, MAP_SHARED, files[i].fd, 0);
		if (files[i].map == MAP_FAILED)
			return 126;
		faults |= holds(attempt_now, &files[i]) ? 0 : 1 << i;
	}
	return faults;
}

static void check_attempt(void **state, uid_t uid)
{
	attempt_now = *state;
	uid_now = uid;
	assert_int_equal(process_wait(process_fork(try_all_files, NULL), 60000), 0);
}

static void own_user(void **state)
{
	check_attempt(state, geteuid() == 0 ? OWNER : geteuid());
}

static void other_user(void **state)
{
	if (geteuid() != 0) {
		print_message("skipped: only root can become another user\n");
		skip();
	}
	check_attempt(state, OTHER);
}

/* ----------------------------------------------------------------------------------------- the server */

static int fill(void *arg)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client;
	static uint8_t data[100000];
	int r;

	(void)arg;
	memset(data, 0x5a, sizeof(data));
	if (become(geteuid() == 0 ? OWNER : geteuid()) < 0)
		return 127;
	options.dir = server.dir;
	if (kvb_open(&options, &client) < 0)
		return 126;
	r = kvb_put(client, "object", 6, data, sizeof(data));
	kvb_close(client);
	return r == 0 ? 0 : 1;
}

static int start(void **state)
{
	static const char *const as_owner[] = {
		"setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", NULL};
	static const char *const args[] = {"--pool", "16MiB", "--trust-uid", "1001", NULL};

	(void)state;
	memset(&server, 0, sizeof(server));
	if (process_dir_new(server.dir, sizeof(server.dir)) < 0)
		return -1;
	if (geteuid() == 0) {
		server.prefix = as_owner;
		if (chown(server.dir, OWNER, OWNER) < 0)
			return -1;
	}
	if (process_server_start(&server, args) != 0)
		return -1;
	return process_wait(process_fork(fill, NULL), 60000);
}

static int stop(void **state)
{
	int r = process_server_stop(&server);

	(void)state;
	process_dir_remove(server.dir);
	unlink(server.log);
	return r;
}

int main(void)
{
	struct CMUnitTest tests[2 * KVB_ARRAY_SIZE(attempts)];
	static char names[KVB_ARRAY_SIZE(tests)][64];

	for (size_t i = 0; i < KVB_ARRAY_SIZE(tests); i++) {
		const struct attempt *attempt = &attempts[i / 2];
		bool own = i % 2 == 0;
		snprintf(names[i], sizeof(names[i]), "%s, %s user", attempt->name,
			own ? "own" : "other");
		tests[i] = (struct CMUnitTest){.name = names[i],
			.test_func = own ? own_user : other_user,
			.initial_state = (void *)attempt};
	}
	return cmocka_run_group_tests_name("read_only", tests, start, stop) ? 1 : 0;
}
