/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.c - read in place: hold an object, look at its bytes where the server keeps them, give it
 * back. No copy, no message.
 *
 *     view [DIRECTORY]
 */
#include <kvbell/kvbell.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char key[] = "examples/view";

static int explain(const char *what, int r)
{
	if (r < 0)
		fprintf(stderr, "view: %s: %s\n", what, kvb_strerror(r));
	return r;
}

static int look(struct kvb_client *client)
{
	struct kvb_lease lease;
	const char *text;
	size_t len;
	int r = explain("put", kvb_put(client, key, strlen(key), "first", 5));

	if (r == 0)
		r = explain("acquire", kvb_acquire(client, key, strlen(key), &lease));
	if (r < 0)
		return r;
	/* What is held stays as it is, whatever becomes of the key. */
	r = explain("put", kvb_put(client, key, strlen(key), "second", 6));
	text = kvb_view(&lease, &len);
	printf("held: %.*s\n", (int)len, text);
	if (len != 5 || memcmp(text, "first", 5) != 0)
		r = -1;
	kvb_release(&lease);
	return r < 0 ? r : explain("delete", kvb_delete(client, key, strlen(key)));
}

int main(int argc, char *argv[])
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client = NULL;
	struct kvb_info info;
	int r;

	options.name = "view";
	options.dir = argc > 1 ? argv[1] : NULL;
	r = explain("open", kvb_open(&options, &client));
	if (r == 0)
		r = explain("info", kvb_get_info(client, &info));
	if (r == 0) {
		printf("reads: %s\n", info.reads);
		r = look(client);
	}
	kvb_close(client);
	return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
