/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tickets.c - batches: every size, thousands of items, many tickets from many threads; what a
 * poller sees; what closing leaves alone. With movers and without.
 *
 * A server in this process. The main thread asserts; others record.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/pattern.h"
#include "client/client.h"
#include "client/hook.h"
#include "kvbell/kvbell.h"
#include "server/hook.h"
#include "server/server.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/gate.h"
#include "tests/process.h"

#define MANY       5000u
#define POLLED     400u
#define SUBMITTERS 4u
#define PER_THREAD 300u
#define LONG_MS    (60000 * TEST_SLOWER)

static struct embedded embedded;

static void start_server(uint64_t pool_bytes)
{
	struct kvb_server_options config;

	embedded_config(&config);
	config.pool_bytes = pool_bytes;
	config.staging_bytes = 8 * KVB_MIB;
	config.objects_max = 2 * MANY;
	assert_int_equal(embedded_start(&embedded, &config), 0);
}

/* How this test's clients read: what can be had without asking never comes to a lane's ring. */
static uint32_t open_flags;

static int by_ring(void **state)
{
	(void)state;
	open_flags = KVB_OPEN_RING_ONLY;
	return 0;
}

static int locally(void **state)
{
	(void)state;
	open_flags = 0;
	return 0;
}

static struct kvb_client *open_client_for(uint32_t movers, uint32_t timeout_ms)
{
	struct kvb_options options = KVB_OPTIONS_INIT;
	struct kvb_client *client = NULL;

	options.dir = embedded.dir;
	options.name = "tickets";
	options.movers = movers;
	options.timeout_ms = timeout_ms;
	options.flags = open_flags;
	assert_int_equal(process_client_open(&options, &client), 0);
	return client;
}

static struct kvb_client *open_client(uint32_t movers)
{
	return open_client_for(movers, 0);
}

static uint64_t counter(const uint64_t *counter)
{
	return kvb_load_relaxed(counter);
}

static void stop_server(void)
{
	assert_int_equal(counter(&embedded.server->counters.missed_wakes), 0);
	assert_int_equal(embedded_stop(&embedded), 0);
}

/* None of its waits ended by looking again after a wake that did not come. */
static void close_client(struct kvb_client *client)
{
	struct kvb_info info;

	assert_int_equal(kvb_get_info(client, &info), 0);
	assert_int_equal(info.missed_wakes, 0);
	kvb_close(client);
}

static struct kvb_completion wait_for(struct kvb_client *client, uint64_t ticket)
{
	struct kvb_completion completion = {0};

	assert_int_equal(kvb_wait(client, ticket, LONG_MS, &completion), 0);
	assert_int_equal(completion.ticket, ticket);
	return completion;
}

/* A batch of `n` objects of `size` bytes at most under keys of their own. */
struct batch {
	struct kvb_item *items;
	char (*keys)[32];
	uint8_t *memory;
	size_t n;
};

static void batch_make(struct batch *batch, const char *name, const size_t *sizes, size_t n)
{
	size_t total = 0, at = 0;

	for (size_t i = 0; i < n; i++)
		total += sizes[i];
	batch->n = n;
	batch->items = test_calloc(n, sizeof(*batch->items));
	batch->keys = test_calloc(n, sizeof(*batch->keys));
	batch->memory = test_malloc(total + 1);
	for (size_t i = 0; i < n; i++) {
		int len = snprintf(batch->keys[i], sizeof(batch->keys[i]), "%s-%zu", name, i);
		batch->items[i] = (struct kvb_item){.key = batch->keys[i],
			.key_len = (size_t)len,
			.data = batch->memory + at,
			.buffer = batch->memory + at,
			.size = sizes[i],
			.result = 77,
			.length = 77};
		at += sizes[i];
	}
}

static void batch_free(struct batch *batch)
{
	test_free(batch->items);
	test_free(batch->keys);
	test_free(batch->memory);
}

static void batch_fill(struct batch *batch, uint64_t seed)
{
	for (size_t i = 0; i < batch->n; i++)
		kvb_pattern_fill(batch->items[i].buffer, batch->items[i].size, seed + i);
}

static void batch_check(const struct batch *batch, uint64_t seed)
{
	for (size_t i = 0; i < batch->n; i++)
		assert_true(
			kvb_pattern_check(batch->items[i].buffer, batch->items[i].size, seed + i));
}

static void assert_results(const struct batch *batch, int result, bool with_lengths)
{
	for (size_t i = 0; i < batch->n; i++) {
		assert_int_equal(batch->items[i].result, result);
		assert_int_equal(batch->items[i].length, with_lengths ? batch->items[i].size : 0);
	}
}

static void assert_completion(struct kvb_completion completion, int result, size_t failed)
{
	assert_int_equal(completion.result, result);
	assert_int_equal(completion.failed, failed);
}

/* ------------------------------------------------------------------------------------- what a batch does */

typedef int submit_fn(struct kvb_client *client, struct kvb_item *items, size_t n, void *user,
	uint64_t *ret_ticket);

static struct kvb_completion run(struct kvb_client *client, submit_fn *submit, struct batch *batch)
{
	uint64_t ticket = 0;

	assert_int_equal(submit(client, batch->items, batch->n, NULL, &ticket), 0);
	return wait_for(client, ticket);
}

static int submit_put(struct kvb_client *client, struct kvb_item *items, size_t n, void *user,
	uint64_t *ret_ticket)
{
	return kvb_submit_put(client, items, n, 0, user, ret_ticket);
}

static void check_sizes(uint32_t movers)
{
	static const size_t sizes[] = {
		1, 4096, 32 * KVB_MIB, 0, 1000003, 65536, 65537, 512 * KVB_KIB, 0, 5 * KVB_MIB + 1};
	struct kvb_client *client = open_client(movers);
	struct batch batch;

	batch_make(&batch, "sizes", sizes, KVB_ARRAY_SIZE(sizes));
	batch_fill(&batch, 1);
	assert_completion(run(client, kvb_submit_exists, &batch), -ENOENT, batch.n);
	assert_results(&batch, -ENOENT, false);
	assert_completion(run(client, kvb_submit_get, &batch), -ENOENT, batch.n);
	batch_check(&batch, 1);
	assert_completion(run(client, submit_put, &batch), 0, 0);
	assert_results(&batch, 0, false);
	memset(batch.items[0].buffer, 0, 1);
	batch_fill(&batch, 99);
	assert_completion(run(client, kvb_submit_get, &batch), 0, 0);
	assert_results(&batch, 0, true);
	batch_check(&batch, 1);
	assert_completion(run(client, kvb_submit_exists, &batch), 0, 0);
	assert_results(&batch, 0, true);
	assert_completion(run(client, kvb_submit_delete, &batch), 0, 0);
	assert_completion(run(client, kvb_submit_delete, &batch), -ENOENT, batch.n);
	batch_free(&batch);
	close_client(client);
}

static void a_batch_holds_items_of_every_size(void **state)
{
	(void)state;
	start_server(128 * KVB_MIB);
	check_sizes(0);
	check_sizes(1);
	check_sizes(3);
	stop_server();
}

static void check_errors(uint32_t movers)
{
	static const size_t sizes[] = {1000, 1000, 1000, 1000, 1000, 1000};
	struct kvb_client *client = open_client(movers);
	char longest[KVB_KEY_MAX + 1] = {0};
	struct batch batch;
	uint64_t ticket;

	batch_make(&batch, "errors", sizes, KVB_ARRAY_SIZE(sizes));
	batch_fill(&batch, 1);
	assert_completion(run(client, submit_put, &batch), 0, 0);
	batch.items[1].key_len = 0;
	batch.items[2].key = longest;
	batch.items[2].key_len = sizeof(longest);
	batch.items[3].buffer = NULL;
	batch.items[4].size = 999;
	assert_completion(run(client, kvb_submit_get, &batch), -EINVAL, 4);
	assert_int_equal(batch.items[0].result, 0);
	assert_int_equal(batch.items[1].result, -EINVAL);
	assert_int_equal(batch.items[2].result, -ENAMETOOLONG);
	assert_int_equal(batch.items[3].result, -EINVAL);
	assert_int_equal(batch.items[4].result, -EMSGSIZE);
	assert_int_equal(batch.items[4].length, 1000);
	assert_int_equal(batch.items[5].result, 0);
	batch.items[5].size = SIZE_MAX;
	assert_completion(run(client, submit_put, &batch), -EINVAL, 3);
	assert_int_equal(batch.items[5].result, -EFBIG);

	assert_int_equal(kvb_submit_get(client, NULL, 1, NULL, &ticket), -EINVAL);
	assert_int_equal(kvb_submit_put(client, batch.items, 1, 2, NULL, &ticket), -EINVAL);
	assert_int_equal(kvb_wait(client, 12345, 0, &(struct kvb_completion){0}), -ENOENT);
	assert_int_equal(kvb_reap(client, &(struct kvb_completion){0}, 0), -EINVAL);
	/* A batch of nothing is done at once. */
	assert_int_equal(kvb_submit_get(client, NULL, 0, &ticket, &ticket), 0);
	assert_completion(wait_for(client, ticket), 0, 0);
	assert_int_equal(kvb_wait(client, ticket, 0, &(struct kvb_completion){0}), -ENOENT);
	batch_free(&batch);
	close_client(client);
}

static void one_bad_item_spoils_no_other(void **state)
{
	(void)state;
	start_server(64 * KVB_MIB);
	check_errors(0);
	check_errors(2);
	stop_server();
}

static int submit_absent(struct kvb_client *client, struct kvb_item *items, size_t n, void *user,
	uint64_t *ret_ticket)
{
	return kvb_submit_put(client, items, n, KVB_PUT_IF_ABSENT, user, ret_ticket);
}

/* Every second object is there already, and stays as it is. */
static void check_absent(uint32_t movers)
{
	static const size_t sizes[] = {
		0, 0, 100, 100, 70000, 70000, 3 * KVB_MIB + 1, 3 * KVB_MIB + 1};
	struct kvb_client *client = open_client(movers);
	struct batch batch;

	batch_make(&batch, "absent", sizes, KVB_ARRAY_SIZE(sizes));
	batch_fill(&batch, 1);
	for (size_t i = 0; i < batch.n; i += 2)
		assert_int_equal(kvb_put(client, batch.items[i].key, batch.items[i].key_len,
					 batch.items[i].data, batch.items[i].size),
			0);
	batch_fill(&batch, 100);
	assert_completion(run(client, submit_absent, &batch), -EEXIST, batch.n / 2);
	for (size_t i = 0; i < batch.n; i++) {
		assert_int_equal(batch.items[i].result, i % 2 ? 0 : -EEXIST);
		assert_int_equal(batch.items[i].length, 0);
	}
	assert_completion(run(client, submit_absent, &batch), -EEXIST, batch.n);
	assert_results(&batch, -EEXIST, false);
	assert_completion(run(client, kvb_submit_get, &batch), 0, 0);
	assert_results(&batch, 0, true);
	for (size_t i = 0; i < batch.n; i++)
		assert_true(kvb_pattern_check(
			batch.items[i].buffer, batch.items[i].size, (i % 2 ? 100 : 1) + i));
	assert_completion(run(client, kvb_submit_delete, &batch), 0, 0);
	batch_free(&batch);
	close_client(client);
}

static void what_is_there_is_left_alone(void **state)
{
	(void)state;
	start_server(64 * KVB_MIB);
	check_absent(0);
	check_absent(2);
	stop_server();
}

/* Unfinished puts may not hold more than some of these items together. */
static void check_open_max(uint32_t movers, uint64_t open_max)
{
	static const size_t sizes[] = {2 * KVB_MIB, 2 * KVB_MIB - 1, 100, 2 * KVB_MIB, 0,
		KVB_MIB + 1, 2 * KVB_MIB, 2 * KVB_MIB};
	struct kvb_server_options config;
	struct kvb_client *client;
	struct batch batch;

	embedded_config(&config);
	config.pool_bytes = 64 * KVB_MIB;
	config.open_max = open_max;
	assert_int_equal(embedded_start(&embedded, &config), 0);
	client = open_client(movers);
	batch_make(&batch, "quota", sizes, KVB_ARRAY_SIZE(sizes));
	batch_fill(&batch, 1);
	assert_completion(run(client, submit_put, &batch), 0, 0);
	batch_fill(&batch, 99);
	assert_completion(run(client, kvb_submit_get, &batch), 0, 0);
	batch_check(&batch, 1);
	batch_free(&batch);
	close_client(client);
	stop_server();
}

static void a_batch_keeps_within_what_a_session_may_have_open(void **state)
{
	(void)state;
	for (uint32_t movers = 0; movers <= 2; movers++) {
		check_open_max(movers, 2 * KVB_MIB);
		check_open_max(movers, 3 * KVB_MIB);
		check_open_max(movers, 5 * KVB_MIB);
	}
}

static void check_many(uint32_t movers)
{
	struct kvb_client *client = open_client(movers);
	size_t *sizes = test_calloc(MANY, sizeof(*sizes));
	struct batch batch;

	for (size_t i = 0; i < MANY; i++)
		sizes[i] = i % 7 * 100;
	batch_make(&batch, "many", sizes, MANY);
	batch_fill(&batch, 5);
	assert_completion(run(client, submit_put, &batch), 0, 0);
	batch_fill(&batch, 6);
	assert_completion(run(client, kvb_submit_get, &batch), 0, 0);
	assert_results(&batch, 0, true);
	batch_check(&batch, 5);
	assert_completion(run(client, kvb_submit_exists, &batch), 0, 0);
	assert_completion(run(client, kvb_submit_delete, &batch), 0, 0);
	assert_completion(run(client, kvb_submit_exists, &batch), -ENOENT, MANY);
	batch_free(&batch);
	test_free(sizes);
	close_client(client);
}

static void thousands_of_items_in_one_batch(void **state)
{
	(void)state;
	start_server(64 * KVB_MIB);
	check_many(0);
	check_many(2);
	stop_server();
}

/* --------------------------------------------------------------------------------------- who is told */

/* Blocking puts all the time, beside the poller. */
struct putter {
	struct kvb_client *client;
	pthread_t thread;
	uint32_t stop; /* atomic */
	uint64_t puts;
	int error;
};

static void *put_without_end(void *arg)
{
	struct putter *putter = arg;
	static uint8_t data[100000];

	while (!kvb_load_acquire(&putter->stop) && putter->error == 0) {
		putter->error = kvb_put(putter->client, "putter", 6, data, sizeof(data));
		putter->puts++;
	}
	return NULL;
}

/* The descriptor alone tells: without a timeout, so that a lost wake is a hang. */
static int poll_and_reap(struct kvb_client *client, struct kvb_completion *ret_completions, int max)
{
	struct pollfd fd = {.fd = kvb_event_fd(client), .events = POLLIN};

	if (poll(&fd, 1, -1) != 1)
		return -errno;
	return kvb_reap(client, ret_completions, max);
}

static void check_poller(uint32_t movers)
{
	static const size_t sizes[] = {10, 70000, 300000};
	struct kvb_client *client = open_client(movers);
	struct putter putter = {.client = client};
	struct batch batch;
	uint64_t ticket;

	batch_make(&batch, "polled", sizes, KVB_ARRAY_SIZE(sizes));
	batch_fill(&batch, 3);
	assert_int_equal(kvb_thread_start(&putter.thread, "putter", put_without_end, &putter), 0);
	for (unsigned i = 0; i < POLLED; i++) {
		struct kvb_completion completion = {0};
		int n = 0;
		submit_fn *submit = i % 2 ? kvb_submit_get : submit_put;
		assert_int_equal(submit(client, batch.items, batch.n, &batch, &ticket), 0);
		while (n == 0)
			n = poll_and_reap(client, &completion, 1);
		assert_int_equal(n, 1);
		assert_int_equal(completion.ticket, ticket);
		assert_ptr_equal(completion.user, &batch);
		assert_completion(completion, 0, 0);
	}
	kvb_store_release(&putter.stop, 1u);
	pthread_join(putter.thread, NULL);
	assert_int_equal(putter.error, 0);
	assert_true(putter.puts > 0);
	batch_check(&batch, 3);
	batch_free(&batch);
	close_client(client);
}

static void a_poller_misses_none_beside_blocking_calls(void **state)
{
	(void)state;
	start_server(64 * KVB_MIB);
	check_poller(0);
	check_poller(1);
	check_poller(2);
	stop_server();
}

/* With nothing to reap the descriptor is silent, after whatever was before. */
static void the_descriptor_is_silent_when_there_is_nothing(void **state)
{
	struct kvb_completion completions[4];

	(void)state;
	start_server(64 * KVB_MIB);
	for (uint32_t movers = 0; movers < 3; movers++) {
		static const size_t sizes[] = {10, 10};
		struct kvb_client *client = open_client(movers);
		struct pollfd fd = {.fd = kvb_event_fd(client), .events = POLLIN};
		struct batch batch;
		uint64_t tickets[3];
		int n = 0;

		assert_true(fd.fd >= 0);
		assert_int_equal(kvb_event_fd(client), fd.fd);
		assert_int_equal(poll(&fd, 1, 0), 0);
		assert_int_equal(kvb_reap(client, completions, 4), 0);
		batch_make(&batch, "silent", sizes, 2);
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(
				submit_put(client, batch.items + (i & 1), 1, NULL, &tickets[i]), 0);
		/* One at a time: what is left keeps it readable. */
		while (n < 3) {
			int r = poll_and_reap(client, completions, 1);
			assert_in_range(r, 0, 1);
			n += r;
		}
		assert_int_equal(kvb_reap(client, completions, 4), 0);
		assert_int_equal(poll(&fd, 1, 50), 0);
		/* Who is waited for is not told of. */
		assert_completion(run(client, kvb_submit_exists, &batch), 0, 0);
		assert_int_equal(kvb_reap(client, completions, 4), 0);
		assert_int_equal(poll(&fd, 1, 50), 0);
		batch_free(&batch);
		close_client(client);
	}
	stop_server();
}

/* Threads that submit and wait, each for its own, beside one that reaps whatever it meets. */
struct submitter {
	struct kvb_client *client;
	pthread_t thread;
	unsigned number;
	uint64_t submitted, waited;
	int error;
};

/* 0 also when the poller was faster. */
static int wait_or_lose(struct submitter *submitter, uint64_t ticket)
{
	struct kvb_completion completion;
	int r = kvb_wait(submitter->client, ticket, LONG_MS, &completion);

	submitter->submitted++;
	if (r == -ENOENT)
		return 0;
	submitter->waited += r == 0;
	return r == 0 ? completion.result : r;
}

static int one_object(struct submitter *submitter, struct kvb_item *item, unsigned seed)
{
	uint64_t ticket;
	int r;

	kvb_pattern_fill((uint8_t *)item->data, item->size, seed);
	r = submit_put(submitter->client, item, 1, NULL, &ticket);
	if (r == 0)
		r = wait_or_lose(submitter, ticket);
	if (r == 0)
		r = kvb_submit_get(submitter->client, item, 1, NULL, &ticket);
	if (r == 0)
		r = wait_or_lose(submitter, ticket);
	if (r == 0 && !kvb_pattern_check(item->buffer, item->size, seed))
		return -EBADMSG;
	return r;
}

static void *submit_and_wait(void *arg)
{
	struct submitter *submitter = arg;
	char key[16];
	uint8_t data[2000], back[2000];
	int len = snprintf(key, sizeof(key), "thread-%u", submitter->number);
	struct kvb_item item = {.key = key,
		.key_len = (size_t)len,
		.data = data,
		.buffer = back,
		.size = sizeof(data)};

	for (unsigned i = 0; i < PER_THREAD && submitter->error == 0; i++)
		submitter->error = one_object(submitter, &item, i);
	return NULL;
}

static void check_submitters(uint32_t movers)
{
	static const size_t sizes[] = {100000};
	struct submitter submitters[SUBMITTERS] = {0};
	struct kvb_client *client = open_client(movers);
	uint64_t ticket, submitted = 0, waited = 0, reaped = 0;
	struct kvb_completion completion;
	struct batch batch;

	batch_make(&batch, "beside", sizes, 1);
	batch_fill(&batch, 8);
	for (unsigned i = 0; i < SUBMITTERS; i++) {
		submitters[i].client = client;
		submitters[i].number = i;
		assert_int_equal(kvb_thread_start(&submitters[i].thread, "submitter",
					 submit_and_wait, &submitters[i]),
			0);
	}
	for (unsigned i = 0; i < PER_THREAD; i++) {
		bool own = false;
		assert_int_equal(submit_put(client, batch.items, 1, NULL, &ticket), 0);
		submitted++;
		while (!own) {
			int n = poll_and_reap(client, &completion, 1);
			assert_in_range(n, 0, 1);
			reaped += (uint64_t)n;
			own = n == 1 && completion.ticket == ticket;
			if (n == 1)
				assert_completion(completion, 0, 0);
		}
	}
	for (unsigned i = 0; i < SUBMITTERS; i++)
		pthread_join(submitters[i].thread, NULL);
	for (unsigned i = 0; i < SUBMITTERS; i++) {
		assert_int_equal(submitters[i].error, 0);
		submitted += submitters[i].submitted;
		waited += submitters[i].waited;
	}
	assert_int_equal(kvb_reap(client, &completion, 1), 0);
	/* Each came out exactly once. */
	assert_int_equal(submitted, waited + reaped);
	batch_free(&batch);
	close_client(client);
}

static void threads_that_wait_and_one_that_polls(void **state)
{
	(void)state;
	start_server(64 * KVB_MIB);
	check_submitters(0);
	check_submitters(2);
	stop_server();
}

/* ------------------------------------------------------------------------------------ bounded memory */

#define BIG_ITEM  (32 * KVB_MIB)
#define BIG_BYTES (20 * KVB_GIB)
#define BIG_POOL  (256 * KVB_MIB)
/* Versions of a payload begin at different places of the same memory. */
#define VERSIONS 8u
#define BIG_KEYS 2u
/* What allocators and stacks may take, of a sanitizer too; ThreadSanitizer keeps notes on each byte. */
#ifdef __SANITIZE_THREAD__
#define SLACK KVB_GIB
#else
#define SLACK (16 * TEST_SLOWER * KVB_MIB)
#endif

/* Resident memory of this process from now on: its largest value is counted anew. */
static uint64_t memory_restart(void)
{
	FILE *file = fopen("/proc/self/clear_refs", "we");

	assert_non_null(file);
	assert_true(fputs("5", file) >= 0);
	assert_int_equal(fclose(file), 0);
	return process_memory(getpid(), "VmRSS:");
}

static uint8_t *make_memory(size_t size)
{
	uint8_t *memory =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(memory != MAP_FAILED);
	memset(memory, 0, size);
	return memory;
}

static struct kvb_item *make_big_items(size_t n, uint8_t *memory)
{
	static const char keys[BIG_KEYS][8] = {"big-0", "big-1"};
	struct kvb_item *items = test_calloc(n, sizeof(*items));

	for (size_t i = 0; i < n; i++)
		items[i] = (struct kvb_item){.key = keys[i % BIG_KEYS],
			.key_len = 5,
			.data = memory + i / BIG_KEYS % VERSIONS * 8,
			.size = BIG_ITEM};
	return items;
}

/* One version, and that one whole. */
static bool is_a_version(const uint8_t *memory, const uint8_t *got)
{
	for (unsigned i = 0; i < VERSIONS; i++)
		if (memcmp(memory + (size_t)i * 8, got, BIG_ITEM) == 0)
			return true;
	return false;
}

static void check_big_gets(struct kvb_client *client, const uint8_t *memory, uint8_t *got)
{
	struct kvb_item *items = make_big_items(BIG_KEYS, got);
	uint64_t ticket;

	for (unsigned i = 0; i < BIG_KEYS; i++) {
		items[i].buffer = got;
		memset(got, 0, BIG_ITEM);
		assert_int_equal(kvb_submit_get(client, &items[i], 1, NULL, &ticket), 0);
		assert_completion(wait_for(client, ticket), 0, 0);
		assert_int_equal(items[i].length, BIG_ITEM);
		assert_true(is_a_version(memory, got));
	}
	test_free(items);
}

static void check_big(uint32_t movers, uint64_t bytes, uint8_t *memory, uint8_t *got)
{
	struct kvb_client *client = open_client_for(movers, LONG_MS);
	size_t n = bytes / BIG_ITEM;
	struct kvb_item *items = make_big_items(n, memory);
	uint64_t before = memory_restart(), shared = process_memory(getpid(), "RssShmem:");
	uint64_t begin_ns = kvb_now_ns(), most, ticket;

	assert_int_equal(submit_put(client, items, n, NULL, &ticket), 0);
	assert_completion(wait_for(client, ticket), 0, 0);
	most = process_memory(getpid(), "VmHWM:");
	/* Pages of pool and staging come when they are touched, and stay. */
	/* Less, when an earlier client's session has gone meanwhile. */
	shared = kvb_max_u64(process_memory(getpid(), "RssShmem:"), shared) - shared;
	print_message("%u movers: %llu MiB in %.1f s; resident memory grew by %llu MiB, of which "
		      "%llu MiB pool and staging\n",
		movers, (unsigned long long)(bytes / KVB_MIB),
		(double)(kvb_now_ns() - begin_ns) / 1e9,
		(unsigned long long)((most - before) / KVB_MIB),
		(unsigned long long)(shared / KVB_MIB));
	/* Staging is mapped twice in this process. */
	assert_true(shared <= BIG_POOL + 2 * 8 * KVB_MIB * (movers + 1));
	assert_true(most <= before + shared + SLACK);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(items[i].result, 0);
	check_big_gets(client, memory, got);
	test_free(items);
	close_client(client);
}

static void twenty_gib_in_one_batch_need_no_memory(void **state)
{
	/* Under a sanitizer one of three goes the whole way; where each byte is looked at, none. */
#ifdef __SANITIZE_THREAD__
	uint64_t bytes = BIG_BYTES / 40, short_bytes = bytes;
#else
	uint64_t bytes = BIG_BYTES, short_bytes = BIG_BYTES / TEST_SLOWER / TEST_SLOWER;
#endif
	uint8_t *memory = make_memory(BIG_ITEM + VERSIONS * 8), *got = make_memory(BIG_ITEM);

	(void)state;
	kvb_pattern_fill(memory, BIG_ITEM + VERSIONS * 8, 20);
	start_server(BIG_POOL);
	check_big(0, short_bytes, memory, got);
	check_big(1, short_bytes, memory, got);
	check_big(2, bytes, memory, got);
	stop_server();
	munmap(memory, BIG_ITEM + VERSIONS * 8);
	munmap(got, BIG_ITEM);
}

/* --------------------------------------------------------------------------- submitting waits for nothing */

#define HELD_TICKETS 100u
#ifdef __SANITIZE_THREAD__
#define HELD_ITEMS 500u
#else
#define HELD_ITEMS 5000u
#endif

static void hold_mover(enum kvb_client_hook_point point)
{
	if (point == KVB_CLIENT_HOOK_MOVE)
		gate_pass();
}

struct held {
	struct kvb_item *items;
	uint64_t ticket;
	uint64_t took_ns;
	unsigned completions;
};

static void held_submit(struct kvb_client *client, struct held *held, submit_fn *submit)
{
	static char data[100];
	uint64_t begin_ns;

	held->items = test_calloc(HELD_ITEMS, sizeof(*held->items));
	for (size_t i = 0; i < HELD_ITEMS; i++)
		held->items[i] = (struct kvb_item){
			.key = "held", .key_len = 4, .data = data, .size = sizeof(data)};
	begin_ns = kvb_now_ns();
	assert_int_equal(submit(client, held->items, HELD_ITEMS, held, &held->ticket), 0);
	held->took_ns = kvb_now_ns() - begin_ns;
}

static int by_time(const void *a, const void *b)
{
	const struct held *left = a, *right = b;

	return left->took_ns < right->took_ns ? -1 : left->took_ns > right->took_ns;
}

static void held_reap_all(struct kvb_client *client)
{
	struct kvb_completion completions[16];
	unsigned left = HELD_TICKETS;

	while (left > 0) {
		int n = poll_and_reap(client, completions, 16);
		assert_in_range(n, 0, left);
		for (int i = 0; i < n; i++) {
			struct held *held = completions[i].user;
			assert_completion(completions[i], 0, 0);
			assert_int_equal(completions[i].ticket, held->ticket);
			assert_int_equal(held->completions++, 0);
		}
		left -= (unsigned)n;
	}
	assert_int_equal(kvb_reap(client, completions, 16), 0);
}

static void check_held(uint32_t movers)
{
	struct held *all = test_calloc(HELD_TICKETS, sizeof(*all));
	const struct kvb_counters *counters = &embedded.server->counters;
	struct kvb_client *client;
	uint64_t puts, exists;

	gate_close();
	client = open_client_for(movers, LONG_MS);
	assert_int_equal(kvb_put(client, "held", 4, "before", 6), 0);
	puts = counter(&counters->puts);
	exists = counter(&counters->exists);
	assert_true(gate_wait_inside(movers));
	for (unsigned i = 0; i < HELD_TICKETS; i++)
		held_submit(client, &all[i], i % 2 ? kvb_submit_exists : submit_put);
	assert_int_equal(counter(&counters->puts), puts);
	assert_int_equal(counter(&counters->exists), exists);
	/* Without movers this is what would move. */
	if (movers > 0)
		assert_int_equal(kvb_reap(client, &(struct kvb_completion){0}, 1), 0);
	gate_open();
	held_reap_all(client);
	assert_int_equal(counter(&counters->puts), puts + HELD_TICKETS / 2 * HELD_ITEMS);
	assert_int_equal(counter(&counters->exists), exists + HELD_TICKETS / 2 * HELD_ITEMS);
	close_client(client);
	for (unsigned i = 0; i < HELD_TICKETS; i++)
		test_free(all[i].items);
	qsort(all, HELD_TICKETS, sizeof(*all), by_time);
	print_message("%u movers: a submit of %u items took %.1f us in the middle, at most %.1f\n",
		movers, HELD_ITEMS, (double)all[HELD_TICKETS / 2].took_ns / 1e3,
		(double)all[HELD_TICKETS - 1].took_ns / 1e3);
	test_free(all);
}

static void a_submit_returns_though_nothing_is_moved(void **state)
{
	(void)state;
	start_server(64 * KVB_MIB);
	kvb_client_hook_installed = hold_mover;
	check_held(1);
	check_held(2);
	kvb_client_hook_installed = NULL;
	check_held(0);
	stop_server();
}

/* ------------------------------------------------------------- what is not touched, whatever happens */

static uint32_t held_slot; /* atomic: of the session that came to the gate last */

/* Copies of the server wait at the gate. */
static void hold_copy(enum kvb_hook_point point, uint32_t slot)
{
	if (point != KVB_HOOK_COPY)
		return;
	kvb_store_release(&held_slot, slot);
	gate_pass();
}

static void start_held_server(void)
{
	gate_open();
	kvb_hook_installed = hold_copy;
	start_server(128 * KVB_MIB);
}

static void stop_held_server(void)
{
	stop_server();
	kvb_hook_installed = NULL;
}

static bool sessions_are_gone(const void *unused)
{
	const struct kvb_gauges *gauges = &embedded.server->gauges;

	(void)unused;
	return kvb_load_relaxed(&gauges->sessions_active) == 0 &&
		kvb_load_relaxed(&gauges->sessions_ending) == 0;
}

static bool some_are_at_the_gate(const void *unused)
{
	(void)unused;
	return gate_inside() > 0;
}

#define SPOIL  0xa5
#define CLOSES 16u

static const size_t spoiled_sizes[] = {
	3 * KVB_MIB, 3 * KVB_MIB, 100, 70000, 2 * KVB_MIB + 1, 300000};

static size_t spoiled_bytes(void)
{
	size_t total = 0;

	for (size_t i = 0; i < KVB_ARRAY_SIZE(spoiled_sizes); i++)
		total += spoiled_sizes[i];
	return total;
}

static void make_spoilable(struct batch *batch, const char *name)
{
	batch_make(batch, name, spoiled_sizes, KVB_ARRAY_SIZE(spoiled_sizes));
	batch_fill(batch, 1);
}

/* The memory is the caller's again, who does with it what he likes. */
static void spoil(struct batch *batch)
{
	memset(batch->memory, SPOIL, spoiled_bytes());
	memset(batch->items, SPOIL, batch->n * sizeof(*batch->items));
	memset(batch->keys, SPOIL, batch->n * sizeof(*batch->keys));
}

static bool is_all_spoil(const void *memory, size_t size)
{
	const uint8_t *bytes = memory;

	return bytes[0] == SPOIL && memcmp(bytes, bytes + 1, size - 1) == 0;
}

static void assert_untouched(const struct batch *batch)
{
	assert_true(is_all_spoil(batch->memory, spoiled_bytes()));
	assert_true(is_all_spoil(batch->items, batch->n * sizeof(*batch->items)));
	assert_true(is_all_spoil(batch->keys, batch->n * sizeof(*batch->keys)));
}

struct waiter {
	struct kvb_client *client;
	pthread_t thread;
	uint64_t ticket;
	int result; /* of the wait; when that went well, the ticket's */
};

static void *wait_without_end(void *arg)
{
	struct waiter *waiter = arg;
	struct kvb_completion completion;

	waiter->result = kvb_wait(waiter->client, waiter->ticket, 0, &completion);
	/* The ticket's end may come to it just before the client's. */
	if (waiter->result == 0)
		waiter->result = completion.result;
	return NULL;
}

/* The gate holds what goes through a ring: gets that ask nobody end by themselves. */
static unsigned waiters_held(void)
{
	return open_flags & KVB_OPEN_RING_ONLY ? 2 : 1;
}

static bool waiters_are_inside(const void *client)
{
	struct kvb_client *inner = (struct kvb_client *)client;
	uint32_t inside;

	pthread_mutex_lock(&inner->lock);
	inside = inner->inside;
	pthread_mutex_unlock(&inner->lock);
	return inside == waiters_held();
}

struct closing {
	struct kvb_client *client;
	struct batch gets, puts;
	uint64_t tickets[2]; /* of the puts, of the gets */
};

static void closing_begin(struct closing *closing, uint32_t movers, bool held)
{
	struct kvb_client *client = closing->client = open_client(movers);

	make_spoilable(&closing->gets, "close");
	make_spoilable(&closing->puts, "put");
	assert_completion(run(client, submit_put, &closing->gets), 0, 0);
	if (held)
		gate_close();
	assert_int_equal(kvb_submit_get(client, closing->gets.items, closing->gets.n, NULL,
				 &closing->tickets[1]),
		0);
	assert_int_equal(submit_put(client, closing->puts.items, closing->puts.n, NULL,
				 &closing->tickets[0]),
		0);
}

/* The client was closed. */
static void closing_end(struct closing *closing)
{
	spoil(&closing->gets);
	spoil(&closing->puts);
	gate_open();
	assert_true(embedded_wait(sessions_are_gone, NULL));
	assert_untouched(&closing->gets);
	assert_untouched(&closing->puts);
	batch_free(&closing->gets);
	batch_free(&closing->puts);
}

/* A thread is in kvb_wait() for the puts. */
static bool puts_are_awaited(const void *arg)
{
	const struct closing *closing = arg;
	struct kvb_tickets *tickets = &closing->client->tickets;
	const struct kvb_ticket *ticket;
	bool awaited = false;

	pthread_mutex_lock(&tickets->lock);
	TAILQ_FOREACH(ticket, &tickets->open, link)
	awaited |= ticket->id == closing->tickets[0] && ticket->awaited;
	pthread_mutex_unlock(&tickets->lock);
	return awaited;
}

static void check_close_held(uint32_t movers)
{
	struct kvb_completion completion;
	struct waiter waiters[2] = {0};
	struct closing closing;

	closing_begin(&closing, movers, true);
	for (unsigned i = 0; i < waiters_held(); i++) {
		waiters[i].client = closing.client;
		waiters[i].ticket = closing.tickets[i];
		assert_int_equal(kvb_thread_start(&waiters[i].thread, "waiter", wait_without_end,
					 &waiters[i]),
			0);
	}
	assert_true(embedded_wait(waiters_are_inside, closing.client));
	assert_true(embedded_wait(some_are_at_the_gate, NULL));
	assert_true(embedded_wait(puts_are_awaited, &closing));
	assert_int_equal(kvb_wait(closing.client, closing.tickets[0], 1, &completion), -EBUSY);
	kvb_close(closing.client);
	for (unsigned i = 0; i < waiters_held(); i++) {
		pthread_join(waiters[i].thread, NULL);
		assert_int_equal(waiters[i].result, -ECONNRESET);
	}
	closing_end(&closing);
}

/* At another moment in each round; nothing depends on which. */
static void check_close_anywhere(uint32_t movers, unsigned round)
{
	struct kvb_completion completions[2];
	struct closing closing;

	closing_begin(&closing, movers, false);
	for (unsigned i = 0; i < round % 8 && movers == 0; i++)
		assert_in_range(kvb_reap(closing.client, completions, 2), 0, 2);
	poll(NULL, 0, (int)(round % 8));
	kvb_close(closing.client);
	closing_end(&closing);
}

static void close_leaves_the_callers_memory_alone(void **state)
{
	(void)state;
	start_held_server();
	for (uint32_t movers = 0; movers < 3; movers++) {
		check_close_held(movers);
		for (unsigned round = 0; round < CLOSES; round++)
			check_close_anywhere(movers, round);
	}
	stop_held_server();
}

/* ----------------------------------------------------------------------------------------- a forked child */

static int try_in_child(struct kvb_client *client, uint64_t ticket)
{
	struct kvb_completion completion;
	struct kvb_item item = {.key = "k", .key_len = 1};
	uint64_t other;
	int faults = (kvb_submit_get(client, &item, 1, NULL, &other) != -ECHILD) +
		2 * (kvb_reap(client, &completion, 1) != -ECHILD) +
		4 * (kvb_wait(client, ticket, 0, &completion) != -ECHILD) +
		8 * (kvb_event_fd(client) != -ECHILD);

	kvb_close(client);
	return faults;
}

static void check_fork(uint32_t movers)
{
	struct kvb_client *client = open_client(movers);
	struct kvb_completion completion = {0};
	struct batch batch;
	uint64_t ticket;
	pid_t pid;

	make_spoilable(&batch, "fork");
	assert_completion(run(client, submit_put, &batch), 0, 0);
	gate_close();
	assert_int_equal(kvb_submit_get(client, batch.items, batch.n, &batch, &ticket), 0);
	while (!some_are_at_the_gate(NULL))
		assert_int_equal(kvb_reap(client, &completion, 1), 0);
	pid = fork();
	if (pid == 0)
		_exit(try_in_child(client, ticket));
	assert_int_equal(process_wait(pid, LONG_MS), 0);
	gate_open();
	/* The bell, the descriptor and what is in flight are the parent's as before. */
	while (poll_and_reap(client, &completion, 1) == 0)
		;
	assert_int_equal(completion.ticket, ticket);
	assert_completion(completion, 0, 0);
	batch_check(&batch, 1);
	assert_completion(run(client, kvb_submit_exists, &batch), 0, 0);
	batch_free(&batch);
	kvb_close(client);
}

static void a_forked_child_leaves_the_parents_tickets_alone(void **state)
{
	(void)state;
	start_held_server();
	check_fork(0);
	check_fork(2);
	stop_held_server();
}

/* --------------------------------------------------------------------------------------------- deadlines */

#define SHORT_MS  300u
#define LATE_MS   (5000 * TEST_SLOWER)
#define LATE_SETS 3u

/* Tickets that cannot be done in time, since the server is held. */
struct late {
	struct batch batch;
	submit_fn *submit;
	uint64_t ticket;
	unsigned completions;
};

static void late_submit(struct kvb_client *client, struct late *late, submit_fn *submit)
{
	late->submit = submit;
	batch_make(&late->batch, "late", spoiled_sizes, KVB_ARRAY_SIZE(spoiled_sizes));
	memset(late->batch.memory, 1, spoiled_bytes());
	assert_int_equal(submit(client, late->batch.items, late->batch.n, late, &late->ticket), 0);
}

static void late_completed(const struct kvb_completion *completion)
{
	struct late *late = completion->user;

	assert_int_equal(late->completions++, 0);
	assert_int_equal(completion->ticket, late->ticket);
	/* Something short may have been done before the server was held up. */
	assert_int_equal(completion->result, -ETIMEDOUT);
	assert_in_range(completion->failed, 1, late->batch.n);
	for (size_t i = 0; i < late->batch.n; i++)
		if (late->batch.items[i].size > 1000)
			assert_int_equal(late->batch.items[i].result, -ETIMEDOUT);
	spoil(&late->batch);
}

/* A batch that takes all staging there is; tried again while what was late is still under way. */
static void work_again(struct kvb_client *client)
{
	uint64_t deadline_ns = kvb_now_ns() + LATE_MS * KVB_NS_PER_MS;
	unsigned times = 0;
	struct batch batch;

	make_spoilable(&batch, "again");
	while (times < 4) {
		assert_true(kvb_now_ns() < deadline_ns);
		batch_fill(&batch, 2);
		if (run(client, submit_put, &batch).result != 0)
			continue;
		batch_fill(&batch, 3);
		if (run(client, kvb_submit_get, &batch).result != 0)
			continue;
		batch_check(&batch, 2);
		times++;
	}
	batch_free(&batch);
}

static void check_late_set(struct kvb_client *client)
{
	struct late late[6] = {0};
	struct kvb_completion completions[4];
	uint64_t begin_ns = kvb_now_ns();
	unsigned left = KVB_ARRAY_SIZE(late);

	gate_close();
	for (unsigned i = 0; i < left; i++)
		late_submit(client, &late[i], i % 2 ? submit_put : kvb_submit_get);
	while (left > 0) {
		int n = poll_and_reap(client, completions, 4);
		assert_in_range(n, 0, left);
		for (int i = 0; i < n; i++)
			late_completed(&completions[i]);
		left -= (unsigned)n;
	}
	assert_in_range(
		kvb_now_ns() - begin_ns, (SHORT_MS - 1) * KVB_NS_PER_MS, LATE_MS * KVB_NS_PER_MS);
	assert_true(gate_inside() > 0);
	gate_open();
	work_again(client);
	assert_int_equal(kvb_reap(client, completions, 4), 0);
	assert_int_equal(gate_inside(), 0);
	for (unsigned i = 0; i < KVB_ARRAY_SIZE(late); i++) {
		assert_untouched(&late[i].batch);
		batch_free(&late[i].batch);
	}
}

static void check_late(uint32_t movers)
{
	struct kvb_client *patient = open_client(movers), *client;
	struct batch batch;

	make_spoilable(&batch, "late");
	assert_completion(run(patient, submit_put, &batch), 0, 0);
	batch_free(&batch);
	kvb_close(patient);
	client = open_client_for(movers, SHORT_MS);
	for (unsigned i = 0; i < LATE_SETS; i++)
		check_late_set(client);
	kvb_close(client);
}

static void a_late_ticket_completes_once_and_lets_go_of_the_memory(void **state)
{
	(void)state;
	start_held_server();
	check_late(0);
	check_late(1);
	check_late(2);
	stop_held_server();
}

/* ------------------------------------------------------------------------ what a lane alone may come to */

#define CUT_ITEMS 64u
#define CUT_MS    (5000 * TEST_SLOWER)

/* The server finds the session that is at the gate broken; the client's own goes on. */
static void end_held_session(void)
{
	struct kvb_sessions *sessions = &embedded.server->sessions;
	uint32_t slot = kvb_load_acquire(&held_slot);
	struct kvb_session *session =
		kvb_session_get(sessions, kvb_session_own_id(&sessions->slots[slot]));

	assert_non_null(session);
	kvb_session_fail(session, KVB_REASON_PROTOCOL, "says the test");
	kvb_session_put(session);
}

static void check_cut(uint32_t movers)
{
	struct kvb_client *client = open_client(movers);
	struct waiter waiter = {.client = client};
	size_t sizes[CUT_ITEMS];
	struct batch batch;
	uint64_t begin_ns;

	for (unsigned i = 0; i < CUT_ITEMS; i++)
		sizes[i] = KVB_MIB;
	batch_make(&batch, "cut", sizes, CUT_ITEMS);
	batch_fill(&batch, 1);
	gate_close();
	assert_int_equal(submit_put(client, batch.items, batch.n, NULL, &waiter.ticket), 0);
	assert_int_equal(kvb_thread_start(&waiter.thread, "waiter", wait_without_end, &waiter), 0);
	assert_true(embedded_wait(some_are_at_the_gate, NULL));
	end_held_session();
	begin_ns = kvb_now_ns();
	gate_open();
	pthread_join(waiter.thread, NULL);
	print_message("%u movers: the rest came to its end after %llu ms\n", movers,
		(unsigned long long)((kvb_now_ns() - begin_ns) / KVB_NS_PER_MS));
	assert_int_equal(waiter.result, -ECONNRESET);
	assert_true(kvb_now_ns() - begin_ns < CUT_MS * KVB_NS_PER_MS);
	assert_completion(run(client, submit_put, &batch), 0, 0);
	batch_free(&batch);
	kvb_close(client);
}

static void a_lane_whose_session_ends_attaches_again(void **state)
{
	(void)state;
	start_held_server();
	check_cut(1);
	check_cut(0);
	stop_held_server();
}

static void check_no_lane(void)
{
	struct kvb_client *client = open_client_for(0, SHORT_MS);
	struct pollfd fd = {.fd = kvb_event_fd(client), .events = POLLIN};
	struct kvb_item item = {.key = "k", .key_len = 1};
	struct kvb_completion completion = {0};
	uint64_t end_ns = kvb_now_ns() + CUT_MS * KVB_NS_PER_MS, ticket;
	int n = 0;

	assert_int_equal(kvb_submit_exists(client, &item, 1, NULL, &ticket), 0);
	while (n == 0) {
		assert_true(kvb_now_ns() < end_ns);
		assert_int_equal(poll(&fd, 1, CUT_MS), 1);
		n = kvb_reap(client, &completion, 1);
	}
	assert_int_equal(completion.ticket, ticket);
	assert_completion(completion, -ETIMEDOUT, 1);
	kvb_close(client);
}

static void a_deadline_is_told_of_though_no_lane_is_attached(void **state)
{
	struct kvb_server_options config;

	(void)state;
	embedded_config(&config);
	/* The client itself has it, and its lane is refused. */
	config.sessions_max = 1;
	assert_int_equal(embedded_start(&embedded, &config), 0);
	check_no_lane();
	stop_server();
}

/* More items than a lane has on its way at once. */
#define QUEUED 200u

static void check_full_lane(uint32_t movers)
{
	struct kvb_client *client = open_client(movers);
	struct pollfd fd = {.fd = kvb_event_fd(client), .events = POLLIN};
	struct kvb_completion completion = {0};
	size_t sizes[QUEUED];
	struct batch batch;
	unsigned wakes = 0;
	uint64_t ticket, end_ns;

	for (unsigned i = 0; i < QUEUED; i++)
		sizes[i] = 100;
	batch_make(&batch, "queued", sizes, QUEUED);
	batch_fill(&batch, 1);
	assert_completion(run(client, submit_put, &batch), 0, 0);
	gate_close();
	assert_int_equal(kvb_submit_get(client, batch.items, batch.n, NULL, &ticket), 0);
	for (end_ns = kvb_now_ns() + KVB_NS_PER_S; kvb_now_ns() < end_ns;) {
		if (poll(&fd, 1, 100) == 0)
			continue;
		wakes++;
		assert_int_equal(kvb_reap(client, &completion, 1), 0);
	}
	print_message("%u movers: %u wakes in a second in which nothing moved\n", movers, wakes);
	gate_open();
	assert_completion(wait_for(client, ticket), 0, 0);
	assert_in_range(wakes, 0, 20);
	batch_free(&batch);
	kvb_close(client);
}

static void a_poller_sleeps_while_all_that_can_be_is_on_its_way(void **state)
{
	(void)state;
	start_held_server();
	check_full_lane(1);
	check_full_lane(0);
	stop_held_server();
}

#define TEST(function, reads)                                     \
	{                                                         \
#function "_" #reads, function, reads, NULL, NULL \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_batch_holds_items_of_every_size, by_ring),
		TEST(a_batch_holds_items_of_every_size, locally),
		TEST(one_bad_item_spoils_no_other, by_ring),
		TEST(one_bad_item_spoils_no_other, locally),
		TEST(what_is_there_is_left_alone, by_ring),
		TEST(what_is_there_is_left_alone, locally),
		TEST(a_batch_keeps_within_what_a_session_may_have_open, by_ring),
		TEST(thousands_of_items_in_one_batch, by_ring),
		TEST(thousands_of_items_in_one_batch, locally),
		TEST(a_poller_misses_none_beside_blocking_calls, by_ring),
		TEST(a_poller_misses_none_beside_blocking_calls, locally),
		TEST(the_descriptor_is_silent_when_there_is_nothing, by_ring),
		TEST(the_descriptor_is_silent_when_there_is_nothing, locally),
		TEST(threads_that_wait_and_one_that_polls, by_ring),
		TEST(threads_that_wait_and_one_that_polls, locally),
		TEST(twenty_gib_in_one_batch_need_no_memory, by_ring),
		TEST(a_submit_returns_though_nothing_is_moved, by_ring),
		TEST(close_leaves_the_callers_memory_alone, by_ring),
		TEST(close_leaves_the_callers_memory_alone, locally),
		TEST(a_forked_child_leaves_the_parents_tickets_alone, by_ring),
		TEST(a_late_ticket_completes_once_and_lets_go_of_the_memory, by_ring),
		TEST(a_lane_whose_session_ends_attaches_again, by_ring),
		TEST(a_deadline_is_told_of_though_no_lane_is_attached, by_ring),
		TEST(a_poller_sleeps_while_all_that_can_be_is_on_its_way, by_ring),
	};

	return cmocka_run_group_tests_name("tickets", tests, NULL, NULL) ? 1 : 0;
}
