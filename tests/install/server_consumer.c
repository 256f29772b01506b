/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_consumer.c - somebody else's program with a server inside: knows kvbell by its installed
 * header and library only.
 *
 * server_consumer DIRECTORY: makes a server there with a handler, starts it, stops it, frees it;
 * prints "ok".
 */
#include <kvbell/server.h>
#include <stdio.h>
#include <string.h>

/* Answers with what it was asked. */
static int echo(struct kvb_call *call, void *user)
{
	size_t size;
	const void *body = kvb_call_body(call, &size);

	(void)user;
	return kvb_call_reply(call, body, size);
}

static void log_line(void *user, enum kvb_log_level level, const char *text)
{
	(void)user;
	(void)level;
	fprintf(stderr, "server_consumer: %s\n", text);
}

static int run(struct kvb_server *server)
{
	int r = kvb_server_handle_sync(server, KVB_MSG_USER, echo, NULL);

	if (r == 0)
		r = kvb_server_start(server);
	if (r < 0)
		return r;
	kvb_server_stop_begin(server);
	return kvb_server_stop_wait(server);
}

int main(int argc, char *argv[])
{
	struct kvb_server_options options;
	struct kvb_server *server;
	int r;

	kvb_server_options_init(&options, sizeof(options));
	options.dir = argc > 1 ? argv[1] : NULL;
	options.pool_bytes = (uint64_t)8 << 20;
	options.sessions_max = 8;
	options.workers = 1;
	options.log.level = KVB_LOG_WARN;
	options.log.fn = log_line;
	r = kvb_server_new(&options, &server);
	if (r == 0)
		r = run(server);
	if (r < 0) {
		fprintf(stderr, "server_consumer: %s\n", strerror(-r));
		return 1; /* a server that is stuck must not be freed */
	}
	kvb_server_free(server);
	puts("ok");
	return 0;
}
