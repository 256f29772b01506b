/* SPDX-License-Identifier: Apache-2.0 */
/*
 * consumer.c - somebody else's C program: knows kvbell by its installed header and library only.
 *
 * consumer DIRECTORY: puts, gets, compares with the server there; prints "ok".
 */
#include <kvbell/kvbell.h>
#include <stdio.h>
#include <string.h>

static int put_and_get(struct kvb_client *client)
{
	static const char sent[] = "from C";
	char received[sizeof(sent)] = "";
	size_t len = 0;
	int r = kvb_put(client, "c", 1, sent, sizeof(sent));

	if (r == 0)
		r = kvb_get(client, "c", 1, received, sizeof(received), &len);
	if (r == 0 && (len != sizeof(sent) || strcmp(sent, received) != 0))
		r = -1;
	return r;
}

int main(int argc, char *argv[])
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client = NULL;
	int r;

	options.dir = argc > 1 ? argv[1] : NULL;
	r = kvb_open(&options, &client);
	if (r == 0)
		r = put_and_get(client);
	kvb_close(client);
	if (r < 0)
		fprintf(stderr, "consumer: %s\n", kvb_strerror(r));
	else
		puts("ok");
	return r < 0;
}
