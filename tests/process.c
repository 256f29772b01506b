/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.c - see process.h.
 *
 * Owns nothing but what it returns; the test's main thread. It must never leave a child behind:
 * each one gets a parent-death signal before it does anything else.
 */
#include "tests/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/util.h"

#define ARGS_MAX 64
#define START_MS (60000 * TEST_SLOWER)
#define RUN_MS   (60000 * TEST_SLOWER)

int process_dir_new(char *ret_dir, size_t size)
{
	snprintf(ret_dir, size, "/tmp/kvbell-test-XXXXXX");
	return mkdtemp(ret_dir) ? 0 : -errno;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void process_dir_remove(const char *dir)
{
	(void)nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

unsigned process_count_entries(const char *dir)
{
	DIR *stream = opendir(dir);
	unsigned n = 0;

	if (!stream)
		return 0;
	for (struct dirent *entry = readdir(stream); entry; entry = readdir(stream))
		n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
	closedir(stream);
	return n;
}

static void redirect(int fd, const char *path, int flags)
{
	int file = open(path, flags, 0644);

	if (file < 0 || dup2(file, fd) < 0)
		_exit(127);
	if (file != fd)
		close(file);
}

static void become(const struct process_options *options)
{
	if (options->gid && (setgroups(0, NULL) < 0 || setgid(options->gid) < 0))
		_exit(127);
	if (options->uid && setuid(options->uid) < 0)
		_exit(127);
	/* A change of uid clears it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void run_child(const char *const argv[], const struct process_options *options)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	redirect(STDIN_FILENO, options->input ? options->input : "/dev/null", O_RDONLY);
	if (options->output)
		redirect(STDOUT_FILENO, options->output, O_WRONLY | O_CREAT | O_TRUNC);
	if (options->errors)
		redirect(STDERR_FILENO, options->errors, O_WRONLY | O_CREAT | O_APPEND);
	if (options->pass_fd >= 0)
		fcntl(options->pass_fd, F_SETFD, 0);
	become(options);
	execvp(argv[0], (char *const *)argv);
	_exit(127);
}

pid_t process_start(const char *const argv[], const struct process_options *options)
{
	pid_t pid = fork();

	if (pid == 0)
		run_child(argv, options);
	return pid < 0 ? -errno : pid;
}

int process_wait(pid_t pid, uint32_t timeout_ms)
{
	struct pollfd pfd = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
	int status;
	int n;

	if (pfd.fd < 0)
		return -errno;
	n = poll(&pfd, 1, (int)timeout_ms);
	close(pfd.fd);
	if (n <= 0)
		return -ETIMEDOUT;
	if (waitpid(pid, &status, 0) < 0)
		return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int process_run(const char *const argv[], const struct process_options *options)
{
	pid_t pid = process_start(argv, options);

	return pid < 0 ? (int)pid : process_wait(pid, RUN_MS);
}

#ifdef __SANITIZE_ADDRESS__
static bool thread_sleeps(const char *tid)
{
	char path[64];
	char *stat;
	const char *name_end;
	bool sleeps;

	snprintf(path, sizeof(path), "/proc/self/task/%.16s/stat", tid);
	stat = process_read_file(path);
	/* The state follows the name, which may hold anything; a thread that has gone has neither. */
	name_end = stat ? strrchr(stat, ')') : NULL;
	sleeps = !name_end || name_end[2] == 'S';
	free(stat);
	return sleeps;
}

/* All threads but the caller, each at one moment or another. */
static bool others_sleep(void)
{
	DIR *dir = opendir("/proc/self/task");
	bool all = true;

	for (struct dirent *entry = dir ? readdir(dir) : NULL; entry && all; entry = readdir(dir))
		all = entry->d_name[0] == '.' || atoi(entry->d_name) == (int)gettid() ||
			thread_sleeps(entry->d_name);
	if (dir)
		closedir(dir);
	return all;
}

/* AddressSanitizer's allocator has locks that fork(2) copies in whatever state they are: a child would
 * wait for a thread that it does not have. */
static void wait_for_allocators(void)
{
	for (unsigned i = 0; i < 1000 && !others_sleep(); i++)
		poll(NULL, 0, 1);
}
#else
static void wait_for_allocators(void)
{
}
#endif

pid_t process_fork(int (*fn)(void *arg), void *arg)
{
	pid_t pid;

	wait_for_allocators();
	pid = fork();

	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	_exit(fn(arg));
}

/* ----------------------------------------------------------------------------------------- the server */

static void build_args(const struct process_server *server, const char *const args[],
	const char *ready_fd, const char *argv[ARGS_MAX])
{
	const char *const first[] = {KVB_TEST_SERVER, "--dir", server->dir, "--ready-fd", ready_fd,
		"--log-level", "debug"};
	unsigned n = 0;

	for (unsigned i = 0; server->prefix && server->prefix[i]; i++)
		argv[n++] = server->prefix[i];
	for (size_t i = 0; i < KVB_ARRAY_SIZE(first); i++)
		argv[n++] = first[i];
	for (unsigned i = 0; args && args[i] && n < ARGS_MAX - 1; i++)
		argv[n++] = args[i];
	argv[n] = NULL;
}

/* "ready\n" comes, or the end of the pipe with the process's. */
static int wait_ready(struct process_server *server, int fd)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	char line[8] = "";
	int n = poll(&pfd, 1, (int)START_MS);

	if (n <= 0)
		return -ETIMEDOUT;
	if (read(fd, line, sizeof(line)) == 6 && memcmp(line, "ready\n", 6) == 0)
		return 0;
	server->pid = process_wait(server->pid, START_MS);
	return -ECHILD;
}

int process_server_start(struct process_server *server, const char *const args[])
{
	struct process_options options = PROCESS_OPTIONS_INIT;
	const char *argv[ARGS_MAX];
	char number[16];
	int pipe_fds[2];
	int r;

	if (!server->dir[0])
		r = process_dir_new(server->dir, sizeof(server->dir));
	snprintf(server->log, sizeof(server->log), "%s.log", server->dir);
	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return -errno;
	snprintf(number, sizeof(number), "%d", pipe_fds[1]);
	build_args(server, args, number, argv);
	options.errors = server->log;
	options.pass_fd = pipe_fds[1];
	server->pid = process_start(argv, &options);
	close(pipe_fds[1]);
	r = server->pid < 0 ? (int)server->pid : wait_ready(server, pipe_fds[0]);
	close(pipe_fds[0]);
	return r;
}

/* A server that does not end well says why, and a test's output is all that a CI run leaves. */
static void print_log(const struct process_server *server, int status)
{
	char *log = process_read_file(server->log);

	fprintf(stderr, "server %d did not end well: %d; its log:\n%s", server->pid, status,
		log ? log : "");
	free(log);
}

int process_server_stop(struct process_server *server)
{
	int r;

	kill(server->pid, SIGTERM);
	r = process_wait(server->pid, START_MS);
	if (r != 0)
		print_log(server, r);
	return r;
}

char *process_read_file(const char *path)
{
	char *text = calloc(1, 1);
	size_t len = 0;
	FILE *file = fopen(path, "re");
	char chunk[4096];
	size_t n;

	while (file && text && (n = fread(chunk, 1, sizeof(chunk), file)) > 0) {
		text = realloc(text, len + n + 1);
		if (!text)
			break;
		memcpy(text + len, chunk, n);
		len += n;
		text[len] = '\0';
	}
	if (file)
		fclose(file);
	return text;
}

bool process_log_has(const struct process_server *server, const char *text)
{
	char *log = process_read_file(server->log);
	bool found = log && strstr(log, text);

	free(log);
	return found;
}

int process_client_open(const struct kvb_options *options, struct kvb_client **ret_client)
{
	uint64_t end_ns = kvb_now_ns() + 20 * KVB_NS_PER_S;
	int r;

	do
		r = kvb_open(options, ret_client);
	while (r == -ETIMEDOUT && kvb_now_ns() < end_ns);
	return r;
}

unsigned process_fds(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	return process_count_entries(path);
}

uint64_t process_memory(pid_t pid, const char *field)
{
	char path[64], *text, *at;
	uint64_t kib = 0;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	text = process_read_file(path);
	at = text ? strstr(text, field) : NULL;
	if (at)
		kib = strtoull(at + strlen(field) + 1, NULL, 10);
	free(text);
	return kib * KVB_KIB;
}
