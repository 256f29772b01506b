/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvbelld: the signals, the exit status.
 *
 * Runs in the main thread, which blocks the signals before any other exists and reads them from a
 * descriptor. It must never close or free anything when the server is stuck: threads may still use
 * it, and the kernel clears up after _exit().
 */
#include <argp.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "server/arguments.h"
#include "server/server.h"
#include "shm/atomic.h"
#include "shm/util.h"

enum exit_status {
	EXIT_USAGE = 2,
	EXIT_STUCK = 3,
	EXIT_AT_ONCE = 4,
};

/* The hard limit is what the operator allows; whether it suffices is the server's check. */
static int raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return -errno;
	limit.rlim_cur = limit.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? -errno : 0;
}

static void protect_memory(void)
{
	/* The leak checker attaches to its own process. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(KVB_TSAN)
	/* Seals keep clients from writing into the pool; /proc/pid/mem and ptrace go around seals. */
	prctl(PR_SET_DUMPABLE, 0);
#endif
}

static int open_signals(int *ret_fd)
{
	sigset_t set;
	int fd;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	signal(SIGPIPE, SIG_IGN);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

static void say_ready(const struct kvb_arguments *arguments, const char *dir)
{
	static const char ready[] = "ready\n";
	int fd = arguments->ready_fd;

	kvb_log(&arguments->options.log, KVB_LOG_INFO, "ready in %s", dir);
	if (fd < 0)
		return;
	if (write(fd, ready, strlen(ready)) != (ssize_t)strlen(ready))
		kvb_log(&arguments->options.log, KVB_LOG_WARN, "cannot write to --ready-fd %d: %s",
			fd, strerror(errno));
	close(fd);
}

/* The first signal drains; a second one leaves at once. */
static void take_signal(struct kvb_server *server, int signal_fd, bool *draining)
{
	struct signalfd_siginfo info;

	if (read(signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
		return;
	if (*draining) {
		kvb_log(&server->log, KVB_LOG_WARN, "second signal: leaving at once");
		_exit(EXIT_AT_ONCE);
	}
	*draining = true;
	kvb_log(&server->log, KVB_LOG_INFO, "%s: stopping",
		info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
	kvb_server_stop_begin(server);
}

static int run(struct kvb_server *server, int signal_fd)
{
	struct pollfd fds[] = {
		{.fd = signal_fd, .events = POLLIN},
		{.fd = kvb_server_stop_fd(server), .events = POLLIN},
	};
	bool draining = false;
	int fault;

	while (poll(fds, KVB_ARRAY_SIZE(fds), -1) >= 0 || errno == EINTR) {
		if (fds[1].revents)
			break;
		if (fds[0].revents)
			take_signal(server, signal_fd, &draining);
	}
	if (kvb_server_stop_wait(server) < 0) {
		kvb_log(&server->log, KVB_LOG_ERR,
			"work is stuck at the drain deadline: leaving with its descriptors open");
		_exit(EXIT_STUCK);
	}
	fault = kvb_load_relaxed(&server->fault);
	kvb_log(&server->log, KVB_LOG_INFO, "stopped");
	kvb_server_free(server);
	return fault ? EXIT_FAILURE : EXIT_SUCCESS;
}

const char *argp_program_version = "kvbelld " KVB_SERVER_VERSION;

int main(int argc, char **argv)
{
	struct kvb_arguments arguments;
	struct kvb_server_options *options = &arguments.options;
	struct kvb_server *server;
	int signal_fd = -1, status;
	int r;

	kvb_arguments_init(&arguments);
	options->log = (struct kvb_log){
		.level = KVB_LOG_INFO, .fn = kvb_log_to_stderr, .user = (void *)"kvbelld"};
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&kvb_arguments_argp, argc, argv, 0, NULL, &arguments);
	protect_memory();
	r = raise_file_limit();
	if (r == 0)
		r = open_signals(&signal_fd);
	if (r < 0) {
		kvb_log(&options->log, KVB_LOG_ERR, "cannot set up the process: %s", strerror(-r));
		return EXIT_FAILURE;
	}
	options->cancel_fd = signal_fd;
	r = kvb_server_new(options, &server);
	if (r < 0)
		return r == -EINVAL ? EXIT_USAGE : EXIT_FAILURE;
	r = kvb_server_start(server);
	if (r < 0) {
		kvb_server_free(server);
		if (r == -EINTR)
			kvb_log(&options->log, KVB_LOG_INFO, "stopped before it was ready");
		return r == -EINTR ? EXIT_SUCCESS : EXIT_FAILURE;
	}
	say_ready(&arguments, server->dir);
	status = run(server, signal_fd);
	close(signal_fd);
	return status;
}
