/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.c - calls the handlers of `embed`, and shows what an answer and an error look like.
 *
 *     call DIRECTORY
 */
#include <errno.h>
#include <kvbell/kvbell.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MSG_ECHO = 1024, MSG_NAP, MSG_COUNT };

/* Calls, prints what came of it, and tells whether that is what was expected. */
static int call(struct kvb_client *client, const char *name, uint16_t type, const char *body,
	size_t size, int expected)
{
	struct kvb_reply reply;
	int r = kvb_call(client, type, body, size, 5000, &reply);

	if (r == 0) {
		printf("%s:", name);
		for (size_t i = 0; i < reply.size; i++)
			printf(" %02x", ((const unsigned char *)reply.body)[i]);
		printf("\n");
	} else {
		/* The server's own words, where it has some; else what the code means. */
		printf("%s: %s\n", name, reply.text[0] ? reply.text : kvb_strerror(r));
	}
	kvb_reply_free(&reply);
	return r == expected;
}

int main(int argc, char *argv[])
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client;
	int r, good;

	options.name = "call";
	options.dir = argc > 1 ? argv[1] : NULL;
	r = kvb_open(&options, &client);
	if (r < 0) {
		fprintf(stderr, "call: %s\n", kvb_strerror(r));
		return EXIT_FAILURE;
	}
	good = call(client, "echo", MSG_ECHO, "\xa5hello", 6, 0) &&
		call(client, "nap", MSG_NAP, "\x05", 1, 0) &&
		call(client, "nap", MSG_NAP, "\xa5hello", 6, -EINVAL) &&
		call(client, "count", MSG_COUNT, "\xc0", 1, 0) &&
		call(client, "count", MSG_COUNT, "\xc0", 1, 0);
	kvb_close(client);
	return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
