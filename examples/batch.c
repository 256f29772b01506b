/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c - store and load many chunks at once, without waiting, from a loop of events.
 *
 * Two movers do the copying. The loop polls one descriptor, as it would beside sockets of its own,
 * and reaps what is finished.
 *
 *     batch [DIRECTORY]
 */
#include <kvbell/kvbell.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS = 64, KEY_BYTES = 32 };
#define CHUNK_BYTES ((size_t)256 * 1024)

/* What belongs to the library until the ticket has completed. */
struct batch {
	const char *name;
	struct kvb_item items[CHUNKS];
	char keys[CHUNKS][KEY_BYTES];
	unsigned char *memory;
};

static int explain(const char *what, int r)
{
	if (r < 0)
		fprintf(stderr, "batch: %s: %s\n", what, kvb_strerror(r));
	return r;
}

static void make_batch(struct batch *batch, const char *name)
{
	batch->name = name;
	for (int i = 0; i < CHUNKS; i++) {
		unsigned char *chunk = batch->memory + (size_t)i * CHUNK_BYTES;
		int len = snprintf(batch->keys[i], KEY_BYTES, "examples/batch/%d", i);
		struct kvb_item item = {0};

		item.key = batch->keys[i];
		item.key_len = (size_t)len;
		item.data = chunk;   /* what a put reads */
		item.buffer = chunk; /* where a get writes */
		/* They may all differ; here the last one is empty. */
		item.size = i == CHUNKS - 1 ? 0 : CHUNK_BYTES - (size_t)i;
		batch->items[i] = item;
	}
}

/* Runs the loop until one ticket has completed. */
static int loop(struct kvb_client *client)
{
	struct pollfd fd = {.fd = kvb_event_fd(client), .events = POLLIN};
	struct kvb_completion completion;
	int n = 0;

	while (n == 0) {
		if (poll(&fd, 1, -1) < 0)
			return -1;
		n = kvb_reap(client, &completion, 1);
	}
	if (n < 0)
		return explain("reap", n);
	printf("%s: %d chunks, %zu failed\n", ((struct batch *)completion.user)->name, CHUNKS,
		completion.failed);
	return explain("the first that failed", completion.result);
}

static int store_and_load(struct kvb_client *client, struct batch *batch)
{
	uint64_t ticket;
	int r;

	memset(batch->memory, 0x5a, CHUNKS * CHUNK_BYTES);
	make_batch(batch, "store");
	/* With KVB_PUT_IF_ABSENT for 0, what is there already would not be sent again. */
	r = explain("submit", kvb_submit_put(client, batch->items, CHUNKS, 0, batch, &ticket));
	if (r == 0)
		r = loop(client);
	if (r < 0)
		return r;
	memset(batch->memory, 0, CHUNKS * CHUNK_BYTES);
	make_batch(batch, "load");
	r = explain("submit", kvb_submit_get(client, batch->items, CHUNKS, batch, &ticket));
	if (r == 0)
		r = loop(client);
	for (int i = 0; r == 0 && i < CHUNKS; i++)
		if (batch->items[i].length != batch->items[i].size ||
			(batch->items[i].size > 0 &&
				batch->memory[(size_t)i * CHUNK_BYTES] != 0x5a))
			r = -1;
	return r;
}

int main(int argc, char *argv[])
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct batch *batch = calloc(1, sizeof(*batch));
	struct kvb_client *client = NULL;
	int r = -1;

	options.name = "batch";
	options.dir = argc > 1 ? argv[1] : NULL;
	options.movers = 2;
	if (batch)
		batch->memory = malloc(CHUNKS * CHUNK_BYTES);
	if (batch && batch->memory && explain("open", kvb_open(&options, &client)) == 0)
		r = store_and_load(client, batch);
	kvb_close(client); /* nothing touches the memory after this */
	if (batch)
		free(batch->memory);
	free(batch);
	return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
