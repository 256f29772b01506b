/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tickets_away.c - tickets while the server is away, or stopped, or the client is: each
 * completes exactly once, what is the caller's again is not touched, nobody spins, and work goes on
 * by itself.
 *
 * Real servers. The thread or the child that makes the traffic records; the main thread asserts.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
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

#include "kvbell/kvbell.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/process.h"

#define SLOTS    8u
#define ITEMS    4u
#define KILLS    10u
#define STOPS    4u
#define SHORT_MS 500u
/* How long it may take until work goes on. */
#define AGAIN_MS (10000 * TEST_SLOWER)
#define AWAY_MS  3000
/* How long a client that lost its server is given to clear up. */
#define SETTLE_MS (500 * TEST_SLOWER)
/* One percent of a core over that time. */
#define PERCENT_NS (AWAY_MS * KVB_NS_PER_MS / 100 * TEST_SLOWER)
/* Of several such times one must be quiet. Memory may still have to be populated or freed in the first, which a
 * busy machine draws out; who does not sleep uses all of them. */
#define PERIODS 4u
#define SPOIL   0xa5

/* A stopped server does not keep a client from reading, so some tests do without. */
static uint32_t open_flags;

static struct process_server server;
/* Small: of a killed server's pool the last one that mapped it frees the pages, and its time is measured
 * here. */
static const char *const server_args[] = {"--pool", "32MiB", NULL};

static int setup(void **state)
{
	(void)state;
	memset(&server, 0, sizeof(server));
	return process_server_start(&server, server_args);
}

static int teardown(void **state)
{
	open_flags = 0;
	int r;

	(void)state;
	/* A test that failed may have left it stopped. */
	kill(server.pid, SIGCONT);
	r = process_server_stop(&server);
	process_dir_remove(server.dir);
	unlink(server.log);
	return r;
}

static int try_open(uint32_t movers, uint32_t timeout_ms, struct kvb_client **ret_client)
{
	struct kvb_options options = KVB_OPTIONS_INIT;

	options.dir = server.dir;
	options.name = "away";
	options.movers = movers;
	options.timeout_ms = timeout_ms;
	options.flags = open_flags;
	return process_client_open(&options, ret_client);
}

static struct kvb_client *open_client(uint32_t movers, uint32_t timeout_ms)
{
	struct kvb_client *client = NULL;

	assert_int_equal(try_open(movers, timeout_ms, &client), 0);
	return client;
}

/* ------------------------------------------------------------------------------------------ the traffic */

static const size_t item_sizes[ITEMS] = {100, 70000, 300000, 1500001};

/* One ticket at a time; between two the memory is spoiled, and must stay so. */
struct slot {
	char keys[ITEMS][16];
	struct kvb_item items[ITEMS];
	uint8_t *memory[ITEMS];
	uint64_t ticket;
	bool outstanding;
};

enum outcome { DONE, RESET, NOT_CONNECTED, MISSING, TIMED_OUT, OTHER, OUTCOMES };

/* What is counted; may lie in memory shared with another process. */
struct counts {
	uint32_t stop; /* atomic */
	uint64_t done; /* atomic: tickets without an error */
	uint64_t submitted, completed;
	uint64_t outcomes[OUTCOMES];
	uint64_t
		wrong; /* completions of what was not outstanding, or without an end of all items */
	uint64_t touched; /* memory that was not the library's */
	uint64_t garbled; /* payload that is not what was stored */
	uint64_t moved;   /* the descriptor's number changed */
	int other;        /* the last result that nobody expects */
	int error;        /* of a function that cannot fail */
};

struct traffic {
	struct kvb_client *client;
	struct counts *counts;
	struct slot slots[SLOTS];
	int fd;
};

static void slot_spoil(struct slot *slot)
{
	memset(slot->items, SPOIL, sizeof(slot->items));
	for (unsigned i = 0; i < ITEMS; i++)
		memset(slot->memory[i], SPOIL, item_sizes[i]);
}

static bool is_all(uint8_t byte, const void *memory, size_t size)
{
	const uint8_t *bytes = memory;

	return bytes[0] == byte && memcmp(bytes, bytes + 1, size - 1) == 0;
}

static bool slot_is_untouched(const struct slot *slot)
{
	bool untouched = is_all(SPOIL, slot->items, sizeof(slot->items));

	for (unsigned i = 0; i < ITEMS; i++)
		untouched = untouched && is_all(SPOIL, slot->memory[i], item_sizes[i]);
	return untouched;
}

static int traffic_init(struct traffic *traffic, struct kvb_client *client, struct counts *counts)
{
	*traffic = (struct traffic){.client = client, .counts = counts, .fd = kvb_event_fd(client)};
	for (unsigned s = 0; s < SLOTS; s++) {
		struct slot *slot = &traffic->slots[s];
		for (unsigned i = 0; i < ITEMS; i++) {
			slot->memory[i] = malloc(item_sizes[i]);
			if (!slot->memory[i])
				return -ENOMEM;
			/* Each put has its get. */
			snprintf(slot->keys[i], sizeof(slot->keys[i]), "key-%u-%u", s / 2, i);
		}
		slot_spoil(slot);
	}
	return traffic->fd < 0 ? traffic->fd : 0;
}

static void traffic_done(struct traffic *traffic)
{
	for (unsigned s = 0; s < SLOTS; s++)
		for (unsigned i = 0; i < ITEMS; i++)
			free(traffic->slots[s].memory[i]);
}

static bool is_put(const struct traffic *traffic, const struct slot *slot)
{
	return (slot - traffic->slots) % 2 == 0;
}

static int slot_submit(struct traffic *traffic, struct slot *slot)
{
	bool put = is_put(traffic, slot);
	int r;

	traffic->counts->touched += !slot_is_untouched(slot);
	for (unsigned i = 0; i < ITEMS; i++) {
		slot->items[i] = (struct kvb_item){.key = slot->keys[i],
			.key_len = strlen(slot->keys[i]),
			.data = slot->memory[i],
			.buffer = slot->memory[i],
			.size = item_sizes[i],
			.result = 77};
		if (put)
			memset(slot->memory[i], (int)i + 1, item_sizes[i]);
	}
	slot->outstanding = true;
	r = put ? kvb_submit_put(traffic->client, slot->items, ITEMS, 0, slot, &slot->ticket)
		: kvb_submit_get(traffic->client, slot->items, ITEMS, slot, &slot->ticket);
	traffic->counts->submitted += r == 0;
	return r;
}

static enum outcome outcome_of(int result)
{
	switch (result) {
	case 0:
		return DONE;
	case -ECONNRESET:
		return RESET;
	case -ENOTCONN:
		return NOT_CONNECTED;
	case -ENOENT:
		return MISSING;
	case -ETIMEDOUT:
		return TIMED_OUT;
	default:
		return OTHER;
	}
}

static void check_items(struct traffic *traffic, const struct slot *slot, size_t failed)
{
	size_t seen = 0;

	for (unsigned i = 0; i < ITEMS; i++) {
		int result = slot->items[i].result;
		seen += result != 0;
		traffic->counts->wrong += result > 0;
		if (result == 0 && !is_all((uint8_t)(i + 1), slot->memory[i], item_sizes[i]))
			traffic->counts->garbled++;
	}
	traffic->counts->wrong += seen != failed;
}

static void take_completion(struct traffic *traffic, const struct kvb_completion *completion)
{
	struct counts *counts = traffic->counts;
	struct slot *slot = completion->user;

	counts->completed++;
	counts->outcomes[outcome_of(completion->result)]++;
	if (outcome_of(completion->result) == OTHER)
		counts->other = completion->result;
	if (!slot->outstanding || slot->ticket != completion->ticket) {
		counts->wrong++;
		return;
	}
	slot->outstanding = false;
	check_items(traffic, slot, completion->failed);
	slot_spoil(slot);
	if (completion->result == 0)
		kvb_count(&counts->done, 1);
	/* Whoever tries again takes his time. */
	else if (completion->result == -ENOTCONN)
		poll(NULL, 0, 1);
}

/* The descriptor alone tells, without a timeout: a completion that is not told of is a hang. */
static int reap_some(struct traffic *traffic)
{
	struct pollfd fd = {.fd = traffic->fd, .events = POLLIN};
	struct kvb_completion completions[3];
	int n;

	if (poll(&fd, 1, -1) != 1)
		return errno == EINTR ? 0 : -errno;
	n = kvb_reap(traffic->client, completions, 3);
	for (int i = 0; i < n; i++)
		take_completion(traffic, &completions[i]);
	traffic->counts->moved += kvb_event_fd(traffic->client) != traffic->fd;
	return n;
}

static bool some_are_outstanding(const struct traffic *traffic)
{
	for (unsigned i = 0; i < SLOTS; i++)
		if (traffic->slots[i].outstanding)
			return true;
	return false;
}

static int submit_free_slots(struct traffic *traffic)
{
	int r = 0;

	for (unsigned i = 0; i < SLOTS && r == 0; i++)
		if (!traffic->slots[i].outstanding)
			r = slot_submit(traffic, &traffic->slots[i]);
	return r;
}

static void reap_all(struct traffic *traffic)
{
	int r = 0;

	while (r >= 0 && some_are_outstanding(traffic))
		r = reap_some(traffic);
	if (r < 0)
		traffic->counts->error = r;
	for (unsigned i = 0; i < SLOTS; i++)
		traffic->counts->touched += !slot_is_untouched(&traffic->slots[i]);
}

static void *make_traffic(void *arg)
{
	struct traffic *traffic = arg;
	int r = 0;

	while (r >= 0 && !kvb_load_acquire(&traffic->counts->stop)) {
		r = submit_free_slots(traffic);
		if (r == 0)
			r = reap_some(traffic);
	}
	if (r < 0)
		traffic->counts->error = r;
	else
		reap_all(traffic);
	return NULL;
}

static void assert_counts(const struct counts *counts)
{
	assert_int_equal(counts->error, 0);
	assert_int_equal(counts->wrong, 0);
	assert_int_equal(counts->touched, 0);
	assert_int_equal(counts->garbled, 0);
	assert_int_equal(counts->moved, 0);
	assert_int_equal(counts->other, 0);
	assert_int_equal(counts->submitted, counts->completed);
}

static void print_counts(const char *what, uint32_t movers, const struct counts *counts)
{
	print_message("%s, %u movers: %llu tickets, of which done %llu, reset %llu, not connected "
		      "%llu, missing %llu, timed out %llu, other %llu (%d)\n",
		what, movers, (unsigned long long)counts->completed,
		(unsigned long long)counts->outcomes[DONE],
		(unsigned long long)counts->outcomes[RESET],
		(unsigned long long)counts->outcomes[NOT_CONNECTED],
		(unsigned long long)counts->outcomes[MISSING],
		(unsigned long long)counts->outcomes[TIMED_OUT],
		(unsigned long long)counts->outcomes[OTHER], counts->other);
}

/* Waits for so many more tickets without an error. How long it took, in ms. */
static uint64_t wait_done(struct counts *counts, uint64_t more)
{
	uint64_t goal = kvb_load_relaxed(&counts->done) + more, begin_ns = kvb_now_ns();

	while (kvb_load_relaxed(&counts->done) < goal) {
		if (kvb_now_ns() - begin_ns > AGAIN_MS * KVB_NS_PER_MS)
			print_message("error %d, submitted %llu, completed %llu\n", counts->error,
				(unsigned long long)counts->submitted,
				(unsigned long long)counts->completed);
		assert_true(kvb_now_ns() - begin_ns <= AGAIN_MS * KVB_NS_PER_MS);
		poll(NULL, 0, 1);
	}
	return (kvb_now_ns() - begin_ns) / KVB_NS_PER_MS;
}

/* --------------------------------------------------------------------------------- the server is killed */

static void kill_server(void)
{
	kill(server.pid, SIGKILL);
	assert_int_equal(process_wait(server.pid, AGAIN_MS), 128 + SIGKILL);
}

static void check_kills(uint32_t movers)
{
	struct kvb_client *client = open_client(movers, 0);
	static struct traffic traffic;
	struct counts counts = {0};
	uint32_t random = 7 + movers;
	uint64_t slowest = 0;
	pthread_t thread;

	assert_int_equal(traffic_init(&traffic, client, &counts), 0);
	assert_int_equal(kvb_thread_start(&thread, "traffic", make_traffic, &traffic), 0);
	(void)wait_done(&counts, 2 * SLOTS);
	for (unsigned i = 0; i < KILLS; i++) {
		random = random * 1103515245 + 12345;
		/* The kills strike anywhere. */
		usleep((random >> 8) % 50000);
		kill_server();
		/* Every second time it stays away until tickets have failed for that. */
		usleep(i % 2 ? 0 : (random >> 8) % 300000);
		assert_int_equal(process_server_start(&server, server_args), 0);
		slowest = kvb_max_u64(slowest, wait_done(&counts, 2 * SLOTS));
	}
	kvb_store_release(&counts.stop, 1u);
	pthread_join(thread, NULL);
	print_counts("kills", movers, &counts);
	print_message(
		"works again at most %llu ms after the restart\n", (unsigned long long)slowest);
	assert_counts(&counts);
	assert_int_equal(counts.outcomes[TIMED_OUT], 0);
	assert_true(counts.outcomes[RESET] > 0);
	kvb_close(client);
	traffic_done(&traffic);
}

static void killed_servers_lose_no_ticket_and_work_goes_on(void **state)
{
	(void)state;
	check_kills(0);
	check_kills(1);
	check_kills(2);
}

/* ------------------------------------------------------------------------------------ time of processors */

static uint64_t cpu_ns(clockid_t clock)
{
	struct timespec now;

	assert_int_equal(clock_gettime(clock, &now), 0);
	return (uint64_t)now.tv_sec * KVB_NS_PER_S + (uint64_t)now.tv_nsec;
}

static uint64_t own_cpu_ns(void)
{
	return cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
}

/* Polls and reaps for `ms`. The wakes; *completion is the last one, and *ret_n how many. */
static unsigned poll_for(
	struct kvb_client *client, int ms, struct kvb_completion *completion, unsigned *ret_n)
{
	uint64_t end_ns = kvb_now_ns() + (uint64_t)ms * KVB_NS_PER_MS;
	struct pollfd fd = {.fd = kvb_event_fd(client), .events = POLLIN};
	unsigned wakes = 0;

	for (*ret_n = 0;;) {
		uint64_t now_ns = kvb_now_ns();
		int n;
		if (now_ns >= end_ns)
			return wakes;
		if (poll(&fd, 1, (int)((end_ns - now_ns) / KVB_NS_PER_MS + 1)) <= 0)
			continue;
		wakes++;
		n = kvb_reap(client, completion, 1);
		assert_in_range(n, 0, 1);
		*ret_n += (unsigned)n;
	}
}

/* Waits without a server, half of the time with something submitted. The time of processors that it took;
 * adds to *wakes. */
static uint64_t wait_away(struct kvb_client *client, unsigned *wakes)
{
	struct kvb_item item = {.key = "k", .key_len = 1, .data = "payload", .size = 7};
	struct kvb_completion completion = {0};
	uint64_t ticket, before_ns = own_cpu_ns();
	unsigned n;

	*wakes += poll_for(client, AWAY_MS / 2, &completion, &n);
	assert_int_equal(n, 0);
	assert_int_equal(kvb_submit_put(client, &item, 1, 0, NULL, &ticket), 0);
	*wakes += poll_for(client, AWAY_MS / 2, &completion, &n);
	assert_int_equal(n, 1);
	assert_int_equal(completion.ticket, ticket);
	assert_int_equal(completion.result, -ENOTCONN);
	assert_int_equal(item.result, -ENOTCONN);
	return own_cpu_ns() - before_ns;
}

static void check_away(uint32_t movers)
{
	struct kvb_client *client = open_client(movers, 0);
	struct kvb_item item = {.key = "k", .key_len = 1, .data = "payload", .size = 7};
	struct kvb_completion completion = {0};
	uint64_t ticket, used_ns = UINT64_MAX;
	unsigned n, wakes, periods = 0;

	assert_int_equal(kvb_submit_put(client, &item, 1, 0, NULL, &ticket), 0);
	assert_int_equal(kvb_wait(client, ticket, AGAIN_MS, &completion), 0);
	assert_int_equal(completion.result, 0);
	kill_server();
	/* Freeing what the server shared is work, done once by who maps it last. */
	wakes = poll_for(client, SETTLE_MS, &completion, &n);
	assert_int_equal(n, 0);
	for (; periods < PERIODS && used_ns >= PERCENT_NS; periods++)
		used_ns = wait_away(client, &wakes);
	print_message("server away, %u movers: %.3f %% of a core, %u wakes\n", movers,
		(double)used_ns / 1e4 / AWAY_MS, wakes);
	assert_true(used_ns < PERCENT_NS);
	assert_in_range(wakes, 1, 5 * periods);
	assert_int_equal(process_server_start(&server, server_args), 0);
	kvb_close(client);
}

static void a_poller_sleeps_while_the_server_is_away(void **state)
{
	(void)state;
	check_away(0);
	check_away(1);
	check_away(2);
}

static void idle_server_and_clients_sleep(void **state)
{
	struct kvb_client *clients[] = {open_client(2, 0), open_client(0, 0)};
	struct kvb_item item = {.key = "k", .key_len = 1, .data = "payload", .size = 7};
	struct kvb_completion completion;
	uint64_t ticket, own_ns = PERCENT_NS, server_ns = PERCENT_NS;
	clockid_t clock;
	unsigned n;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(kvb_submit_put(clients[i], &item, 1, 0, NULL, &ticket), 0);
		assert_int_equal(kvb_wait(clients[i], ticket, AGAIN_MS, &completion), 0);
		assert_int_equal(completion.result, 0);
		/* Takes what the wait has left to tell. */
		(void)poll_for(clients[i], SETTLE_MS, &completion, &n);
		assert_int_equal(n, 0);
	}
	assert_int_equal(clock_getcpuclockid(server.pid, &clock), 0);
	for (unsigned i = 0; i < PERIODS && own_ns + server_ns >= PERCENT_NS / 2; i++) {
		uint64_t own_before_ns = own_cpu_ns(), server_before_ns = cpu_ns(clock);
		assert_int_equal(poll_for(clients[0], AWAY_MS, &completion, &n), 0);
		own_ns = own_cpu_ns() - own_before_ns;
		server_ns = cpu_ns(clock) - server_before_ns;
	}
	print_message("idle: clients %.3f %%, server %.3f %% of a core\n",
		(double)own_ns / 1e4 / AWAY_MS, (double)server_ns / 1e4 / AWAY_MS);
	/* Under 0.5 %, together. */
	assert_true(own_ns + server_ns < PERCENT_NS / 2);
	kvb_close(clients[0]);
	kvb_close(clients[1]);
}

/* ------------------------------------------------------------------------------------- one side is stopped */

/* Every thread of it has come to a halt when this returns. */
static void stop_server(void)
{
	siginfo_t info;

	kill(server.pid, SIGSTOP);
	assert_int_equal(waitid(P_PID, (id_t)server.pid, &info, WSTOPPED), 0);
}

static void check_stopped_server(uint32_t movers)
{
	struct kvb_client *client = open_client(movers, SHORT_MS);
	static struct traffic traffic;
	struct counts counts = {0};
	uint64_t begin_ns, used_ns;

	assert_int_equal(traffic_init(&traffic, client, &counts), 0);
	/* Again and again until it works: the deadline is short. */
	begin_ns = kvb_now_ns();
	do {
		assert_int_equal(submit_free_slots(&traffic), 0);
		reap_all(&traffic);
		assert_true(kvb_now_ns() - begin_ns < AGAIN_MS * KVB_NS_PER_MS);
	} while (kvb_load_relaxed(&counts.done) < 2 * SLOTS);
	assert_int_equal(submit_free_slots(&traffic), 0);
	stop_server();
	begin_ns = kvb_now_ns();
	used_ns = own_cpu_ns();
	reap_all(&traffic);
	/* What came just before the stop may still be done; of the next none can be. */
	assert_int_equal(submit_free_slots(&traffic), 0);
	reap_all(&traffic);
	used_ns = own_cpu_ns() - used_ns;
	begin_ns = kvb_now_ns() - begin_ns;
	print_message("server stopped, %u movers: both rounds took %llu ms, %llu ms of a core\n",
		movers, (unsigned long long)(begin_ns / KVB_NS_PER_MS),
		(unsigned long long)(used_ns / KVB_NS_PER_MS));
	assert_in_range(counts.outcomes[TIMED_OUT], SLOTS, 3 * SLOTS);
	assert_true(begin_ns < AGAIN_MS * KVB_NS_PER_MS);
	kill(server.pid, SIGCONT);
	begin_ns = kvb_now_ns();
	counts.done = 0;
	while (kvb_load_relaxed(&counts.done) < 4 * SLOTS) {
		assert_int_equal(submit_free_slots(&traffic), 0);
		reap_all(&traffic);
		assert_true(kvb_now_ns() - begin_ns < AGAIN_MS * KVB_NS_PER_MS);
	}
	print_counts("server stopped", movers, &counts);
	assert_counts(&counts);
	kvb_close(client);
	traffic_done(&traffic);
}

static void a_stopped_server_is_late_and_touches_nothing(void **state)
{
	(void)state;
	open_flags = KVB_OPEN_RING_ONLY;
	check_stopped_server(0);
	check_stopped_server(1);
	check_stopped_server(2);
}

struct child {
	struct counts counts;
	uint32_t movers;
};

static int be_stopped(void *arg)
{
	static struct traffic traffic;
	struct child *child = arg;
	struct kvb_client *client;
	int r = try_open(child->movers, SHORT_MS, &client);

	if (r == 0)
		r = traffic_init(&traffic, client, &child->counts);
	if (r == 0) {
		make_traffic(&traffic);
		kvb_close(client);
	}
	return r != 0;
}

static void check_stopped_client(uint32_t movers)
{
	struct child *child = mmap(
		NULL, sizeof(*child), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid;

	assert_true(child != MAP_FAILED);
	child->movers = movers;
	pid = process_fork(be_stopped, child);
	for (unsigned i = 0; i < STOPS; i++) {
		(void)wait_done(&child->counts, SLOTS + i);
		kill(pid, SIGSTOP);
		/* Longer than its deadline, which is what is tested. */
		poll(NULL, 0, 2 * SHORT_MS);
		kill(pid, SIGCONT);
	}
	(void)wait_done(&child->counts, 2 * SLOTS);
	kvb_store_release(&child->counts.stop, 1u);
	assert_int_equal(process_wait(pid, AGAIN_MS), 0);
	print_counts("client stopped", movers, &child->counts);
	assert_counts(&child->counts);
	assert_int_equal(child->counts.outcomes[RESET], 0);
	munmap(child, sizeof(*child));
}

static void a_stopped_client_finds_each_ticket_completed_once(void **state)
{
	(void)state;
	open_flags = KVB_OPEN_RING_ONLY;
	check_stopped_client(0);
	check_stopped_client(2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			killed_servers_lose_no_ticket_and_work_goes_on, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_poller_sleeps_while_the_server_is_away, setup, teardown),
		cmocka_unit_test_setup_teardown(idle_server_and_clients_sleep, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_stopped_server_is_late_and_touches_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_stopped_client_finds_each_ticket_completed_once, setup, teardown),
	};

	return cmocka_run_group_tests_name("tickets_away", tests, NULL, NULL) ? 1 : 0;
}
