/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.h - real processes for integration tests: servers, tools, clients.
 *
 * Every wait has a deadline; every process dies with the test that started it. Called from the main
 * thread only; a failure prints what happened and is returned.
 */
#ifndef KVB_TESTS_PROCESS_H
#define KVB_TESTS_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvbell/kvbell.h"

/* How much longer things may take in this build. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SLOWER 4u
#else
#define TEST_SLOWER 1u
#endif

/* A fresh directory under /tmp, and away with it and what it holds. */
int process_dir_new(char *ret_dir, size_t size);
void process_dir_remove(const char *dir);
/* Number of entries in a directory, "." and ".." left out. */
unsigned process_count_entries(const char *dir);

/* Starts a program; stdin is /dev/null or `input`, stdout and stderr go to the files named
 * (NULL: stay). uid and gid: 0 stays as it is. The child's pid; -errno. */
struct process_options {
	const char *input, *output, *errors;
	uid_t uid;
	gid_t gid;
	int pass_fd; /* stays open in the child; -1 none */
};
#define PROCESS_OPTIONS_INIT               \
	{                                  \
		NULL, NULL, NULL, 0, 0, -1 \
	}
pid_t process_start(const char *const argv[], const struct process_options *options);

/* Waits; exit status, or 128 + signal; -ETIMEDOUT. */
int process_wait(pid_t pid, uint32_t timeout_ms);
/* Runs to its end. */
int process_run(const char *const argv[], const struct process_options *options);

/* Runs `fn` in a forked child, which exits with its return value. */
pid_t process_fork(int (*fn)(void *arg), void *arg);

struct process_server {
	pid_t pid;
	char dir[64];
	char log[96];              /* file with its stderr */
	const char *const *prefix; /* a program to run it under, with its arguments; NULL */
};

/* Starts kvbelld with `args` (NULL-terminated, may be NULL) in server->dir, made if it is empty,
 * and waits until its door is open. 0; -ECHILD it ended instead, its status in server->pid;
 * -ETIMEDOUT. */
int process_server_start(struct process_server *server, const char *const args[]);
/* SIGTERM and the exit status; the directory stays. */
int process_server_stop(struct process_server *server);
/* True when the log so far has the text. */
bool process_log_has(const struct process_server *server, const char *text);
/* The whole file, to be freed; "" when it is not there. */
char *process_read_file(const char *path);

/* kvb_open(), and again when a busy machine took longer than the client's own deadline. */
int process_client_open(const struct kvb_options *options, struct kvb_client **ret_client);

/* From /proc: open descriptors; shared memory and all resident memory in bytes. */
unsigned process_fds(pid_t pid);
uint64_t process_memory(pid_t pid, const char *field);

#endif /* KVB_TESTS_PROCESS_H */
