/* SPDX-License-Identifier: Apache-2.0 */
/*
 * put_get.c - store 1 MiB under a key, read it back, compare.
 *
 * Shows the whole life of a client: open, put, get, delete, close, and how every error is
 * explained.
 *
 *     put_get [DIRECTORY]     of a running kvbelld; by default $KVBELL_DIR and so on, see kvbell.h
 */
#include <kvbell/kvbell.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAYLOAD_BYTES ((size_t)1 << 20)

static const char key[] = "examples/put_get";

/* Passes a result on, and says what went wrong when it is an error. */
static int explain(const char *what, int r)
{
	if (r < 0)
		fprintf(stderr, "put_get: %s: %s\n", what, kvb_strerror(r));
	return r;
}

static int put_and_get(struct kvb_client *client, unsigned char *sent, unsigned char *received)
{
	size_t len;
	int r;

	for (size_t i = 0; i < PAYLOAD_BYTES; i++)
		sent[i] = (unsigned char)(i * 31 + i / 256);
	/* When kvb_put() has returned 0, every client of this server sees the object, whole. */
	r = explain("put", kvb_put(client, key, strlen(key), sent, PAYLOAD_BYTES));
	if (r < 0)
		return r;
	r = explain("get", kvb_get(client, key, strlen(key), received, PAYLOAD_BYTES, &len));
	if (r < 0)
		return r;
	if (len != PAYLOAD_BYTES || memcmp(sent, received, len) != 0) {
		fprintf(stderr, "put_get: what came back is not what was put\n");
		return -1;
	}
	printf("put and got %zu bytes under \"%s\"\n", len, key);
	return explain("delete", kvb_delete(client, key, strlen(key)));
}

int main(int argc, char *argv[])
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	unsigned char *buffers = malloc(2 * PAYLOAD_BYTES);
	struct kvb_client *client = NULL;
	int r;

	if (!buffers) {
		fprintf(stderr, "put_get: out of memory\n");
		return EXIT_FAILURE;
	}
	options.name = "put_get"; /* how the server's log calls this client */
	options.dir = argc > 1 ? argv[1] : NULL;
	r = explain("open", kvb_open(&options, &client));
	if (r == 0)
		r = put_and_get(client, buffers, buffers + PAYLOAD_BYTES);
	kvb_close(client); /* NULL is fine */
	free(buffers);
	return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
