/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embed.c - a program that is a kvbell server, and answers messages of its own.
 *
 * Shows one handler of each kind. Bodies are MessagePack; these are so small that they are read and
 * written by hand, a real program would use a library.
 *
 *     1024  SYNC      echo: the body comes back
 *     1025  BLOCKING  nap: sleeps for as many milliseconds as the body (an integer below 128) says
 *     1026  AFFINITY  count: how many calls of this client have come, kept without any lock
 *
 *     embed DIRECTORY     runs until SIGINT or SIGTERM; `call DIRECTORY` is its client
 */
#include <errno.h>
#include <kvbell/server.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MSG_ECHO = KVB_MSG_USER, MSG_NAP, MSG_COUNT };

#define CLIENTS 64

/* Of each client, by its session's slot. */
struct counts {
	struct count {
		uint64_t session;
		unsigned calls;
	} of[CLIENTS];
};

/* Runs in the control thread, which serves everybody: it must not block. */
static int echo(struct kvb_call *call, void *user)
{
	size_t size;
	const void *body = kvb_call_body(call, &size);

	(void)user;
	return kvb_call_reply(call, body, size);
}

/* May block: it has a thread of the pool for itself. */
static int nap(struct kvb_call *call, void *user)
{
	struct timespec time = {0, 0};
	size_t size;
	const unsigned char *body = kvb_call_body(call, &size);

	(void)user;
	if (size != 1 || body[0] > 127)
		return kvb_call_fail(call, -EINVAL, "the body must be a number from 0 to 127");
	time.tv_nsec = body[0] * 1000000L;
	nanosleep(&time, NULL);
	/* nil */
	return kvb_call_reply(call, "\xc0", 1);
}

/* All calls of one client run on one thread of an affinity pool, so its entry needs no lock. */
static int count(struct kvb_call *call, void *user)
{
	struct counts *counts = user;
	struct count *mine = &counts->of[(uint32_t)kvb_call_session(call) % CLIENTS];
	unsigned char body[3] = {0xcd};

	/* The low half of a session's number is its slot, the high half tells whose it is now. */
	if (mine->session != kvb_call_session(call)) {
		mine->session = kvb_call_session(call);
		mine->calls = 0;
	}
	mine->calls++;
	body[1] = (unsigned char)(mine->calls >> 8);
	body[2] = (unsigned char)mine->calls;
	return kvb_call_reply(call, body, sizeof(body));
}

static void print_line(void *user, enum kvb_log_level level, const char *text)
{
	(void)user;
	(void)level;
	fprintf(stderr, "embed: %s\n", text);
}

static int add_handlers(struct kvb_server *server, struct counts *counts)
{
	uint32_t pool, affinity;
	int r;

	/* Two naps at a time; a hundred may wait, one more is -EAGAIN for its caller. */
	r = kvb_server_add_pool(server, KVB_POOL_NORMAL, 2, 100, &pool);
	if (r == 0)
		r = kvb_server_add_pool(server, KVB_POOL_AFFINITY, 2, 100, &affinity);
	if (r == 0)
		r = kvb_server_handle_sync(server, MSG_ECHO, echo, NULL);
	if (r == 0)
		r = kvb_server_handle_blocking(server, MSG_NAP, pool, 1000, nap, NULL);
	if (r == 0)
		r = kvb_server_handle_blocking(server, MSG_COUNT, affinity, 1000, count, counts);
	return r;
}

static int serve(struct kvb_server *server, const sigset_t *signals)
{
	int signal_number;
	int r = kvb_server_start(server);

	if (r < 0)
		return r;
	printf("ready\n");
	fflush(stdout);
	sigwait(signals, &signal_number);
	kvb_server_stop_begin(server);
	/* What is stuck is named in the log; here we have all the time in the world. */
	do
		r = kvb_server_stop_wait(server);
	while (r == -ETIMEDOUT);
	return r;
}

int main(int argc, char *argv[])
{
	static struct counts counts;
	struct kvb_server_options options;
	struct kvb_server *server = NULL;
	sigset_t signals;
	int r;

	/* Before any thread exists, so that all of them have it. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigprocmask(SIG_BLOCK, &signals, NULL);

	kvb_server_options_init(&options, sizeof(options));
	options.dir = argc > 1 ? argv[1] : NULL;
	options.pool_bytes = 16u << 20;
	options.sessions_max = CLIENTS;
	options.log.fn = print_line;
	r = kvb_server_new(&options, &server);
	if (r == 0)
		r = add_handlers(server, &counts);
	if (r == 0)
		r = serve(server, &signals);
	if (r < 0)
		fprintf(stderr, "embed: %s\n", strerror(-r));
	kvb_server_free(server);
	return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
