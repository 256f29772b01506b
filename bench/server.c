/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.c - see server.h.
 *
 * Owns the directory and the child; main thread. It must never leave either behind.
 */
#include "bench/server.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvbell/protocol.h"
#include "shm/util.h"

#define POLL_MS 100

/* ../server/kvbelld as seen from this program. */
static int find_program(char *path, size_t size)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n < 0)
		return -errno;
	self[n] = '\0';
	*strrchr(self, '/') = '\0';
	return snprintf(path, size, "%s/../server/kvbelld", self) < (int)size ? 0 : -ENAMETOOLONG;
}

static void run_server(const char *program, const char *dir,
	const struct kvb_own_server_options *options, int ready_fd)
{
	char number[16], spin_us[16], workers[16], max_objects[24];
	const char *argv[20] = {program, "--dir", dir, "--pool", options->pool, "--spin-us",
		spin_us, "--ready-fd", number, "--log-level", "warning"};
	size_t n = 11;
	sigset_t none;

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* Ctrl-C goes to the whole group; who stops the server is the demo. */
	setpgid(0, 0);
	if (options->cpus && sched_setaffinity(0, sizeof(*options->cpus), options->cpus) < 0) {
		fprintf(stderr, "cannot pin the server: %s\n", strerror(errno));
		_exit(127);
	}
	snprintf(number, sizeof(number), "%d", ready_fd);
	snprintf(spin_us, sizeof(spin_us), "%u", options->spin_us);
	snprintf(workers, sizeof(workers), "%u", options->workers);
	snprintf(
		max_objects, sizeof(max_objects), "%llu", (unsigned long long)options->max_objects);
	if (options->workers > 0) {
		argv[n++] = "--workers";
		argv[n++] = workers;
	}
	if (options->max_objects > 0) {
		argv[n++] = "--max-objects";
		argv[n++] = max_objects;
	}
	execvp(program, (char *const *)argv);
	fprintf(stderr, "cannot start %s: %s\n", program, strerror(errno));
	_exit(127);
}

bool kvb_leave_wanted(void)
{
	sigset_t pending;

	sigpending(&pending);
	return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
}

static int wait_ready(struct kvb_own_server *server, int fd)
{
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	bool leave = false;
	char line[8];

	/* A server may wait for memory as long as its --start-wait. */
	while (!leave && poll(&ready, 1, POLL_MS) <= 0)
		leave = kvb_leave_wanted();
	if (!leave && read(fd, line, sizeof(line)) > 0)
		return 0;
	(void)kvb_own_server_stop(server);
	return leave ? -EINTR : -ECHILD;
}

int kvb_own_server_start(
	struct kvb_own_server *server, const struct kvb_own_server_options *options)
{
	char path[PATH_MAX + 32];
	int pipe_fds[2];
	int r = options->program ? 0 : find_program(path, sizeof(path));

	server->pid = 0;
	if (r < 0)
		return r;
	snprintf(server->dir, sizeof(server->dir), "/tmp/kvbell-demo-XXXXXX");
	if (!mkdtemp(server->dir))
		return -errno;
	if (pipe(pipe_fds) < 0) {
		r = -errno;
		rmdir(server->dir);
		return r;
	}
	server->pid = fork();
	if (server->pid == 0) {
		close(pipe_fds[0]);
		run_server(options->program ? options->program : path, server->dir, options,
			pipe_fds[1]);
	}
	close(pipe_fds[1]);
	if (server->pid < 0) {
		r = -errno;
		server->pid = 0;
		rmdir(server->dir);
	} else {
		r = wait_ready(server, pipe_fds[0]);
	}
	close(pipe_fds[0]);
	return r;
}

int kvb_own_server_stop(struct kvb_own_server *server)
{
	/* A server that was killed leaves its sockets, too. */
	static const char *const files[] = {KVB_DOOR_SOCKET, KVB_CONTROL_SOCKET, KVB_LOCK_FILE};
	char path[sizeof(server->dir) + 32];
	int status = 0;

	/* Not even started: 0 and -1 would reach far more than a server. */
	if (server->pid <= 0)
		return 0;
	kill(server->pid, SIGTERM);
	while (waitpid(server->pid, &status, 0) < 0 && errno == EINTR)
		;
	for (size_t i = 0; i < KVB_ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", server->dir, files[i]);
		unlink(path);
	}
	rmdir(server->dir);
	server->pid = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
