/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_drivers.c - whoever drives a lane, or waits for one: no wake is lost when he leaves, nobody
 * spins, nobody starves, and what failed says so.
 *
 * A server in this process whose only worker can be held, and hooks that stop a driver at the moment
 * which matters. The main thread asserts; others record.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/client.h"
#include "client/hook.h"
#include "client/lane.h"
#include "kvbell/kvbell.h"
#include "server/hook.h"
#include "server/server.h"
#include "shm/atomic.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/process.h"
#include "tests/raw.h"

#define MANY          3000u
#define LONG_MS       60000u
#define HEAR_MS       (int)(5000 * TEST_SLOWER) /* a poller that has not heard by then never will */
#define BRIEF_MS      50u
#define LEAVE_MS      200u
#define ROOM_MS       (1500 * TEST_SLOWER)
#define SILENCE_MS    100
#define POLLS_MAX     50u
#define TURNS_MAX     100000u /* usual are hundreds */
#define TURNS_TO_FAIL 3u
#define CREDIT        KVB_LANE_ACTIVES
#define LARGE_BYTES   (8 * KVB_MIB)
#define FIRST_CALLS   20u

static struct embedded embedded;
static struct kvb_client *client;
static struct raw_client stopper; /* a session of the test's own, to kick the worker with */
static bool stopper_is_there;
/* Not on a stack that a failed assertion leaves while they are the library's. */
static uint8_t memory[3 * LARGE_BYTES];
static const char *const keys[] = {"a", "b", "c"};
static struct kvb_item singles[KVB_ARRAY_SIZE(keys)];
static struct kvb_item many[MANY];

/* ------------------------------------------------------------------------------------- holding others */

static uint32_t closed;      /* atomic: the worker stops where it comes to a hook */
static uint32_t held;        /* atomic: workers that have */
static uint32_t copies_left; /* atomic: so many more, then it is closed; 0: no limit */

static void on_server_hook(enum kvb_hook_point point, uint32_t slot)
{
	(void)slot;
	if (point == KVB_HOOK_SPIN)
		return;
	if (kvb_load_acquire(&closed)) {
		(void)kvb_fetch_add(&held, 1u);
		while (kvb_load_acquire(&closed))
			poll(NULL, 0, 1);
		(void)kvb_fetch_sub(&held, 1u);
		return;
	}
	if (point == KVB_HOOK_COPY && kvb_load_relaxed(&copies_left) > 0 &&
		kvb_fetch_sub(&copies_left, 1u) == 1)
		kvb_store_release(&closed, 1u);
}

static bool is_held(const void *unused)
{
	(void)unused;
	return kvb_load_acquire(&held) > 0;
}

/* From now on nothing is served. */
static void hold_server(void)
{
	if (!stopper_is_there)
		assert_int_equal(raw_attach(&stopper, embedded.dir), 0);
	stopper_is_there = true;
	kvb_store_release(&closed, 1u);
	raw_kick(&stopper);
	assert_true(embedded_wait(is_held, NULL));
}

static void let_server_go(void)
{
	kvb_store_release(&copies_left, 0u);
	kvb_store_release(&closed, 0u);
}

static _Thread_local bool drives;          /* this thread has, at some time */
static uint32_t hold_at;                   /* atomic: 1 + a point; 0: none */
static uint32_t stopped;                   /* atomic: threads that stand there */
static uint64_t turns;                     /* atomic: of lanes */
static struct kvb_session_header *to_fail; /* atomic: at the next turn; NULL */

static void on_client_hook(enum kvb_client_hook_point point)
{
	uint32_t number = (uint32_t)point + 1;
	struct kvb_session_header *header;

	if (point == KVB_CLIENT_HOOK_MOVE) {
		drives = true;
		kvb_count(&turns, 1);
		header = kvb_exchange(&to_fail, NULL);
		/* As the server says it, at a moment when no driver sleeps. */
		if (header)
			kvb_store_release(&header->state, (uint32_t)KVB_SESSION_REVOKED);
	}
	if (kvb_load_acquire(&hold_at) != number)
		return;
	(void)kvb_fetch_add(&stopped, 1u);
	while (kvb_load_acquire(&hold_at) == number)
		poll(NULL, 0, 1);
	(void)kvb_fetch_sub(&stopped, 1u);
}

static void hold_clients_at(enum kvb_client_hook_point point)
{
	kvb_store_release(&hold_at, (uint32_t)point + 1);
}

static void let_clients_go(void)
{
	kvb_store_release(&hold_at, 0u);
}

static bool is_stopped(const void *unused)
{
	(void)unused;
	return kvb_load_acquire(&stopped) > 0;
}

/* ------------------------------------------------------------------- between a thread and its sleep */

/* Everything is served, and told of. */
static bool is_served(const void *arg)
{
	struct kvb_session_header *header = (struct kvb_session_header *)arg;

	return kvb_load_acquire(&header->sq_sleeping) == KVB_SLEEPING &&
		kvb_load_acquire(&header->cq_tail) == kvb_load_acquire(&header->sq_tail);
}

/* The linker puts this in the place of poll(). */
int __real_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);

static _Thread_local const struct kvb_session_header
	*late;                           /* oversleep once, until all is served */
static _Thread_local unsigned timed_out; /* polls of descriptors */
static uint32_t sleeps_deep; /* atomic: drivers do not look by themselves now and then */
static uint32_t hold_watch;  /* atomic: the threads of lanes stay where they slept */

static int poll_late(struct pollfd *fds, nfds_t n)
{
	const struct kvb_session_header *header = late;
	int r;

	late = NULL;
	let_server_go();
	r = __real_poll(fds, n, HEAR_MS);
	(void)embedded_wait(is_served, header);
	(void)__real_poll(NULL, 0, (int)BRIEF_MS + 1);
	return r;
}

static bool is_lanes_thread(void)
{
	char name[16] = "";

	return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
		strncmp(name, "kvb-mover-", 10) == 0;
}

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	int r;

	if (fds && late)
		return poll_late(fds, n);
	if (fds && n == 2 && drives && kvb_load_acquire(&sleeps_deep))
		timeout_ms = -1;
	r = __real_poll(fds, n, timeout_ms);
	if (fds && r == 0)
		timed_out++;
	while (fds && kvb_load_acquire(&hold_watch) && is_lanes_thread())
		(void)__real_poll(NULL, 0, 1);
	return r;
}

/* --------------------------------------------------------------------------------- server and client */

static void start_server(uint32_t sessions_max)
{
	struct kvb_server_options config;

	kvb_hook_installed = on_server_hook;
	kvb_client_hook_installed = on_client_hook;
	embedded_config(&config);
	config.workers = 1;
	config.sessions_max = sessions_max;
	config.staging_bytes = 4 * KVB_MIB;
	config.ring_entries = CREDIT;
	assert_int_equal(embedded_start(&embedded, &config), 0);
}

static void open_client(uint32_t movers, uint32_t timeout_ms)
{
	struct kvb_options options = KVB_OPTIONS_INIT;

	options.dir = embedded.dir;
	options.name = "drivers";
	/* What can be had without asking would not come to a lane. */
	options.flags = KVB_OPEN_RING_ONLY;
	options.movers = movers;
	options.timeout_ms = timeout_ms;
	assert_int_equal(process_client_open(&options, &client), 0);
}

static void close_client(void)
{
	kvb_close(client);
	client = NULL;
}

static int start(void **state)
{
	(void)state;
	start_server(16);
	return 0;
}

static int start_narrow(void **state)
{
	(void)state;
	start_server(1);
	return 0;
}

static int stop(void **state)
{
	int r;

	(void)state;
	late = NULL;
	kvb_store_release(&sleeps_deep, 0u);
	kvb_store_release(&to_fail, NULL);
	kvb_store_release(&hold_watch, 0u);
	let_server_go();
	let_clients_go();
	close_client();
	if (stopper_is_there)
		raw_drop(&stopper);
	stopper_is_there = false;
	r = embedded_stop(&embedded);
	kvb_hook_installed = NULL;
	kvb_client_hook_installed = NULL;
	return r;
}

static struct kvb_item item_of(const char *key, void *bytes, size_t size)
{
	return (struct kvb_item){.key = key,
		.key_len = strlen(key),
		.data = bytes,
		.buffer = bytes,
		.size = size,
		.result = 77,
		.length = 77};
}

static struct kvb_item *single(unsigned number, const char *key, size_t size)
{
	singles[number] = item_of(key, memory + number * LARGE_BYTES, size);
	return &singles[number];
}

static uint64_t submit_exists(size_t n)
{
	uint64_t ticket = 0;

	for (size_t i = 0; i < n; i++)
		many[i] = item_of("many", NULL, 0);
	assert_int_equal(kvb_submit_exists(client, many, n, NULL, &ticket), 0);
	return ticket;
}

typedef uint64_t submit_one_fn(struct kvb_item *item);

static uint64_t submit_one_exists(struct kvb_item *item)
{
	uint64_t ticket = 0;

	assert_int_equal(kvb_submit_exists(client, item, 1, NULL, &ticket), 0);
	return ticket;
}

static uint64_t submit_put(struct kvb_item *item)
{
	uint64_t ticket = 0;

	assert_int_equal(kvb_submit_put(client, item, 1, 0, NULL, &ticket), 0);
	return ticket;
}

static uint64_t submit_get(struct kvb_item *item)
{
	uint64_t ticket = 0;

	assert_int_equal(kvb_submit_get(client, item, 1, NULL, &ticket), 0);
	return ticket;
}

static struct kvb_completion wait_for(uint64_t ticket)
{
	struct kvb_completion completion = {0};

	assert_int_equal(kvb_wait(client, ticket, LONG_MS, &completion), 0);
	assert_int_equal(completion.ticket, ticket);
	return completion;
}

static bool is_readable(int timeout_ms)
{
	struct pollfd fd = {.fd = kvb_event_fd(client), .events = POLLIN};

	return poll(&fd, 1, timeout_ms) == 1;
}

/* As a poller does that knows of nothing but the descriptor. */
static struct kvb_completion hear(void)
{
	struct kvb_completion completion = {0};
	int n = 0;

	while (n == 0) {
		assert_true(is_readable(HEAR_MS));
		n = kvb_reap(client, &completion, 1);
	}
	assert_int_equal(n, 1);
	return completion;
}

/* The lane of callers is attached, and the descriptor is silent. */
static void warm_up(void)
{
	struct kvb_completion completion;

	assert_int_equal(wait_for(submit_exists(1)).result, -ENOENT);
	while (is_readable(0))
		assert_int_equal(kvb_reap(client, &completion, 1), 0);
}

static struct kvb_session_header *lane_header(unsigned number)
{
	struct kvb_session_header *header;

	pthread_mutex_lock(&client->tickets.lock);
	header = client->lanes[number].conn->header;
	pthread_mutex_unlock(&client->tickets.lock);
	return header;
}

/* ------------------------------------------------------------------------------------ wakes that got lost */

struct leaver {
	pthread_t thread;
	uint64_t ticket; /* to wait for; 0: reaps */
	struct kvb_completion completion;
	int result;
};

static void *drive_and_leave(void *arg)
{
	struct leaver *leaver = arg;

	leaver->result = leaver->ticket
		? kvb_wait(client, leaver->ticket, LEAVE_MS, &leaver->completion)
		: kvb_reap(client, &leaver->completion, 1);
	return NULL;
}

/* One thread has driven and is about to leave; the completion comes; another one is woken, and
 * cannot drive. */
static void check_hand_over(bool waits)
{
	static struct leaver leaver;
	struct kvb_completion completion;
	uint64_t ticket;

	hold_server();
	ticket = submit_exists(1);
	/* The one who waits does not take what the descriptor says. */
	if (waits)
		assert_int_equal(kvb_reap(client, &completion, 1), 0);
	leaver = (struct leaver){.ticket = waits ? ticket : 0};
	hold_clients_at(KVB_CLIENT_HOOK_LEAVE);
	assert_int_equal(kvb_thread_start(&leaver.thread, "leaver", drive_and_leave, &leaver), 0);
	assert_true(embedded_wait(is_stopped, NULL));
	let_server_go();
	assert_true(is_readable(HEAR_MS));
	assert_int_equal(kvb_reap(client, &completion, 1), 0);
	assert_false(is_readable(0));
	let_clients_go();
	pthread_join(leaver.thread, NULL);
	assert_int_equal(leaver.result, waits ? -ETIMEDOUT : 0);
	assert_int_equal(hear().ticket, ticket);
}

static void a_wake_for_one_who_cannot_drive_is_not_lost(void **state)
{
	(void)state;
	open_client(0, LONG_MS);
	warm_up();
	check_hand_over(false);
	check_hand_over(true);
}

/* Takes all credit, and leaves it with the completions that are to come. */
static void leave_orphans(void)
{
	struct kvb_completion completion = wait_for(submit_exists(CREDIT));

	assert_int_equal(completion.result, -ETIMEDOUT);
	assert_int_equal(completion.failed, CREDIT);
}

static bool all_are_taken(const void *unused)
{
	struct kvb_tickets *tickets = &client->tickets;
	bool taken;

	(void)unused;
	pthread_mutex_lock(&tickets->lock);
	taken = TAILQ_EMPTY(&tickets->queues[KVB_QUEUE_QUICK]) &&
		TAILQ_EMPTY(&tickets->queues[KVB_QUEUE_PUT]);
	pthread_mutex_unlock(&tickets->lock);
	return taken;
}

/* The driver has the item, and found no room for it. */
static void let_driver_take(uint32_t movers)
{
	struct kvb_completion completion;

	if (movers == 0) {
		assert_int_equal(kvb_reap(client, &completion, 1), 0);
		assert_true(all_are_taken(NULL));
		return;
	}
	assert_true(embedded_wait(all_are_taken, NULL));
	hold_clients_at(KVB_CLIENT_HOOK_MOVE);
	assert_true(embedded_wait(is_stopped, NULL));
	kvb_store_release(&sleeps_deep, 1u);
}

static void check_room(uint32_t movers)
{
	struct kvb_completion completion;
	uint64_t ticket, begun_ns;

	open_client(movers, ROOM_MS);
	warm_up();
	hold_server();
	leave_orphans();
	begun_ns = kvb_now_ns();
	ticket = submit_exists(1);
	let_driver_take(movers);
	let_server_go();
	assert_true(embedded_wait(is_served, lane_header(0)));
	let_clients_go();
	completion = hear();
	assert_int_equal(completion.ticket, ticket);
	assert_int_equal(completion.result, -ENOENT);
	/* Not when it was looked at for its deadline. */
	assert_true(kvb_now_ns() - begun_ns < ROOM_MS * KVB_NS_PER_MS);
	kvb_store_release(&sleeps_deep, 0u);
	close_client();
}

static void room_that_others_give_back_is_used_at_once(void **state)
{
	(void)state;
	check_room(0);
	check_room(1);
}

/* Waits and is told too late, when all that was on its way has completed. The result of the wait. */
static int wait_and_oversleep(uint64_t ticket, struct kvb_completion *ret_completion)
{
	int r = -ETIMEDOUT;

	late = lane_header(0);
	/* It may be so slow that it does not come to sleep. */
	while (late && r == -ETIMEDOUT)
		r = kvb_wait(client, ticket, BRIEF_MS, ret_completion);
	return r;
}

static void check_deadline(struct kvb_item *item, submit_one_fn *submit, int result)
{
	struct kvb_completion completion = {0};
	uint64_t ticket;
	int r;

	hold_server();
	ticket = submit(item);
	assert_int_equal(kvb_reap(client, &completion, 1), 0);
	r = wait_and_oversleep(ticket, &completion);
	if (r == -ETIMEDOUT)
		completion = hear();
	else
		assert_int_equal(r, 0);
	assert_int_equal(completion.ticket, ticket);
	assert_int_equal(completion.result, result);
}

static void what_comes_with_the_deadline_of_a_wait_is_told_of(void **state)
{
	struct kvb_item *item = single(0, keys[0], LARGE_BYTES);

	(void)state;
	open_client(0, LONG_MS);
	warm_up();
	check_deadline(item, submit_one_exists, -ENOENT);
	/* And a part of these. */
	check_deadline(item, submit_put, 0);
	check_deadline(item, submit_get, 0);
}

/* ------------------------------------------------------------------------------------------- no spinning */

/* Hears of `ticket`, and of no other. */
static struct kvb_completion hear_of(uint64_t ticket)
{
	struct kvb_completion completion = hear();

	assert_int_equal(completion.ticket, ticket);
	return completion;
}

static struct kvb_completion wait_once_for(uint64_t ticket)
{
	struct kvb_completion completion = wait_for(ticket);

	assert_int_equal(kvb_wait(client, ticket, 0, &completion), -ENOENT);
	return completion;
}

typedef struct kvb_completion learn_fn(uint64_t ticket);

/* A lane's session ends in the middle of a turn, and the client's own does not. */
static void check_failed_lane(uint32_t movers, learn_fn *learn)
{
	struct kvb_completion completion;
	uint64_t ticket, turns_before;
	size_t lost = 0;

	open_client(movers, 5000);
	warm_up();
	turns_before = kvb_load_relaxed(&turns);
	kvb_store_release(&to_fail, lane_header(0));
	ticket = submit_exists(MANY);
	completion = learn(ticket);
	/* What was on its way is lost, and nothing else. */
	for (size_t i = 0; i < MANY; i++) {
		lost += many[i].result == -ECONNRESET;
		assert_true(many[i].result == -ECONNRESET || many[i].result == -ENOENT);
	}
	assert_int_equal(completion.ticket, ticket);
	assert_int_equal(completion.failed, MANY);
	assert_in_range(lost, movers > 1 ? 0 : 1, KVB_LANE_ACTIVES);
	assert_in_range(kvb_load_relaxed(&turns) - turns_before, 1, TURNS_MAX);
	assert_int_equal(kvb_reap(client, &completion, 1), 0);
	close_client();
}

static void when_a_lane_fails_alone_the_rest_goes_on(void **state)
{
	(void)state;
	check_failed_lane(0, wait_once_for);
	check_failed_lane(0, hear_of);
	check_failed_lane(1, wait_once_for);
	check_failed_lane(1, hear_of);
	check_failed_lane(2, wait_once_for);
}

/* The lane's thread, which would end what was moving, does not come to it for a while. */
static void who_waits_for_a_failed_lane_sleeps(void **state)
{
	struct kvb_completion completion;
	uint64_t ticket, turns_before;

	(void)state;
	open_client(0, 5000);
	warm_up();
	turns_before = kvb_load_relaxed(&turns);
	kvb_store_release(&hold_watch, 1u);
	kvb_store_release(&to_fail, lane_header(0));
	ticket = submit_exists(MANY);
	assert_int_equal(kvb_wait(client, ticket, LEAVE_MS, &completion), -ETIMEDOUT);
	assert_in_range(kvb_load_relaxed(&turns) - turns_before, 1, TURNS_TO_FAIL);
	kvb_store_release(&hold_watch, 0u);
	completion = wait_once_for(ticket);
	assert_int_equal(completion.failed, MANY);
	close_client();
}

static void assert_falls_silent(void)
{
	struct kvb_completion completion;
	unsigned polls = 0;

	while (is_readable(SILENCE_MS)) {
		assert_int_equal(kvb_reap(client, &completion, 1), 0);
		assert_in_range(++polls, 1, POLLS_MAX);
	}
}

static void a_poller_sleeps_while_the_lane_is_full(void **state)
{
	uint64_t tickets[3], ticket;

	(void)state;
	open_client(0, LONG_MS);
	warm_up();
	/* As many as there may be on their way. */
	hold_server();
	ticket = submit_exists(MANY);
	assert_falls_silent();
	let_server_go();
	assert_int_equal(hear_of(ticket).result, -ENOENT);
	/* As much payload as there may be. */
	hold_server();
	for (unsigned i = 0; i < 3; i++)
		tickets[i] = submit_put(single(i, keys[i], LARGE_BYTES));
	assert_falls_silent();
	let_server_go();
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(wait_for(tickets[i]).result, 0);
}

/* ------------------------------------------------------------------------------------------ who is heard */

/* The client's own session is the only one. */
static void what_no_lane_can_take_expires_all_the_same(void **state)
{
	static submit_one_fn *const submits[] = {submit_one_exists, submit_put, submit_get};

	(void)state;
	open_client(0, 200);
	for (unsigned i = 0; i < 3; i++) {
		uint64_t ticket = submits[i](single(i, keys[i], 1));
		assert_int_equal(hear_of(ticket).result, -ETIMEDOUT);
		assert_int_equal(singles[i].result, -ETIMEDOUT);
		assert_int_equal(singles[i].length, 0);
	}
}

static int see_nothing(void *user, const struct kvb_entry *entry)
{
	(void)user;
	(void)entry;
	return 0;
}

static void the_first_control_message_waits_for_nothing(void **state)
{
	unsigned slow = 0;

	(void)state;
	for (unsigned i = 0; i < FIRST_CALLS; i++) {
		open_client(0, LONG_MS);
		timed_out = 0;
		if (i % 2)
			assert_int_equal(kvb_list(client, see_nothing, NULL), 0);
		else
			assert_int_equal(kvb_ping_control(client), 0);
		slow += timed_out > 0;
		close_client();
	}
	/* A busy machine may be slow by itself, now and then. */
	assert_in_range(slow, 0, FIRST_CALLS / 4);
}

static bool first_lane_rests(const void *unused)
{
	bool rests;

	pthread_mutex_lock(&client->tickets.lock);
	rests = client->lanes[0].resting;
	pthread_mutex_unlock(&client->tickets.lock);
	return rests && all_are_taken(unused);
}

static bool second_lane_moves(const void *unused)
{
	(void)unused;
	return kvb_load_acquire(&lane_header(1)->sq_tail) > 0;
}

static void a_lane_without_room_is_not_asked(void **state)
{
	uint64_t tickets[3];

	(void)state;
	open_client(2, LONG_MS);
	hold_server();
	for (unsigned i = 0; i < 3; i++) {
		assert_true(embedded_wait(first_lane_rests, NULL));
		assert_false(second_lane_moves(NULL));
		tickets[i] = submit_put(single(i, keys[i], LARGE_BYTES));
	}
	assert_true(embedded_wait(second_lane_moves, NULL));
	let_server_go();
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(wait_for(tickets[i]).result, 0);
}

static void check_turns(uint32_t movers, submit_one_fn *submit)
{
	uint64_t lookups, ticket;

	open_client(movers, LONG_MS);
	warm_up();
	hold_server();
	lookups = submit_exists(MANY);
	ticket = submit(single(0, keys[0], KVB_MIB));
	let_server_go();
	/* One at a time, and in the order in which they came to their end. */
	assert_int_equal(hear_of(ticket).result, 0);
	assert_int_equal(hear_of(lookups).result, -ENOENT);
	close_client();
}

static void payload_is_not_starved_by_lookups(void **state)
{
	(void)state;
	for (uint32_t movers = 0; movers < 2; movers++) {
		check_turns(movers, submit_put);
		check_turns(movers, submit_get);
	}
}

/* The first fragment tells the length, and then no more of them come. */
static void begin_get(struct kvb_item *item, uint64_t *ret_ticket)
{
	struct kvb_completion completion;

	assert_int_equal(kvb_put(client, item->key, item->key_len, memory, item->size), 0);
	kvb_store_release(&copies_left, 1u);
	*ret_ticket = submit_get(item);
	if (client->n_movers == 0)
		assert_int_equal(kvb_reap(client, &completion, 1), 0);
	assert_true(embedded_wait(is_held, NULL));
}

static void check_length(uint32_t movers)
{
	struct kvb_item *item = single(0, keys[0], LARGE_BYTES);
	uint64_t ticket;

	open_client(movers, 500);
	warm_up();
	begin_get(item, &ticket);
	assert_int_equal(wait_for(ticket).result, -ETIMEDOUT);
	assert_int_equal(item->length, 0);
	let_server_go();
	close_client();

	open_client(movers, LONG_MS);
	warm_up();
	begin_get(item, &ticket);
	assert_int_equal(
		kvb_wait(client, ticket, BRIEF_MS, &(struct kvb_completion){0}), -ETIMEDOUT);
	kvb_store_release(&to_fail, lane_header(0));
	assert_int_equal(wait_for(ticket).result, -ECONNRESET);
	assert_int_equal(item->length, 0);
	let_server_go();
	close_client();
}

static void what_failed_half_way_has_no_length(void **state)
{
	(void)state;
	check_length(0);
	check_length(1);
}

/* ---------------------------------------------------------------------------- while the server goes or comes */

struct submitter {
	pthread_t thread;
	struct kvb_item item;
	uint64_t ticket;
	int result;
};

static void *submit_one(void *arg)
{
	struct submitter *submitter = arg;

	submitter->result =
		kvb_submit_put(client, &submitter->item, 1, 0, NULL, &submitter->ticket);
	return NULL;
}

static bool is_away(const void *unused)
{
	bool away;

	(void)unused;
	pthread_mutex_lock(&client->tickets.lock);
	away = client->tickets.away;
	pthread_mutex_unlock(&client->tickets.lock);
	return away;
}

/* The server was there when the caller asked, and is not when the item could be queued. */
static void check_submit_while_server_goes(uint32_t movers)
{
	static struct submitter submitter;
	struct kvb_completion completion = {0};

	open_client(movers, 10 * LONG_MS);
	warm_up();
	submitter = (struct submitter){.item = item_of("k", memory, 7), .result = 77};
	hold_clients_at(KVB_CLIENT_HOOK_SUBMIT);
	assert_int_equal(
		kvb_thread_start(&submitter.thread, "submitter", submit_one, &submitter), 0);
	assert_true(embedded_wait(is_stopped, NULL));
	assert_int_equal(embedded_stop(&embedded), 0);
	assert_true(embedded_wait(is_away, NULL));
	let_clients_go();
	pthread_join(submitter.thread, NULL);
	assert_int_equal(submitter.result, 0);
	assert_int_equal(kvb_wait(client, submitter.ticket, HEAR_MS, &completion), 0);
	assert_int_equal(completion.result, -ENOTCONN);
	assert_int_equal(submitter.item.result, -ENOTCONN);
	close_client();
	start_server(16);
}

static void what_is_submitted_while_the_server_goes_is_told_of_at_once(void **state)
{
	(void)state;
	check_submit_while_server_goes(0);
	check_submit_while_server_goes(2);
}

static bool threads_are(const void *count)
{
	return process_count_entries("/proc/self/task") == *(const unsigned *)count;
}

static void *close_it(void *unused)
{
	(void)unused;
	kvb_close(client);
	return NULL;
}

/* The internal thread is attached again and about to wake the lanes, whose threads have ended. ThreadSanitizer
 * sees it beside the one who frees them. */
static void a_client_is_closed_while_it_comes_back(void **state)
{
	pthread_t closer;
	unsigned threads;

	(void)state;
	open_client(2, LONG_MS);
	warm_up();
	hold_clients_at(KVB_CLIENT_HOOK_NUDGE);
	pthread_mutex_lock(&client->lock);
	kvb_conn_fail(client->conn, -ECONNRESET);
	pthread_mutex_unlock(&client->lock);
	assert_true(embedded_wait(is_stopped, NULL));
	/* The two movers go, the closer comes. */
	threads = process_count_entries("/proc/self/task") - 1;
	assert_int_equal(kvb_thread_start(&closer, "closer", close_it, NULL), 0);
	assert_true(embedded_wait(threads_are, &threads));
	/* What would be freed too early is freed by now. */
	(void)poll(NULL, 0, (int)BRIEF_MS);
	let_clients_go();
	pthread_join(closer, NULL);
	client = NULL;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_wake_for_one_who_cannot_drive_is_not_lost),
		TEST(room_that_others_give_back_is_used_at_once),
		TEST(what_comes_with_the_deadline_of_a_wait_is_told_of),
		TEST(when_a_lane_fails_alone_the_rest_goes_on),
		TEST(who_waits_for_a_failed_lane_sleeps),
		TEST(a_poller_sleeps_while_the_lane_is_full),
		cmocka_unit_test_setup_teardown(
			what_no_lane_can_take_expires_all_the_same, start_narrow, stop),
		TEST(the_first_control_message_waits_for_nothing),
		TEST(a_lane_without_room_is_not_asked),
		TEST(payload_is_not_starved_by_lookups),
		TEST(what_failed_half_way_has_no_length),
		TEST(what_is_submitted_while_the_server_goes_is_told_of_at_once),
		TEST(a_client_is_closed_while_it_comes_back),
	};

	return cmocka_run_group_tests_name("drivers", tests, NULL, NULL) ? 1 : 0;
}
