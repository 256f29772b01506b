/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tickets.c - see tickets.h.
 *
 * Owns every ticket from its submission until it is reaped, and the two descriptors. Any thread, under
 * tickets->lock, which is held for short steps. It must never wait for a completion in a submit,
 * never finish a ticket twice, and never leave event_fd readable when there is nothing to do: it
 * would make a poller spin.
 */
#include "client/tickets.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/client.h"
#include "client/hook.h"
#include "client/lane.h"
#include "client/local.h"
#include "kvbell/protocol.h"
#include "shm/fd.h"
#include "shm/threads.h"
#include "shm/util.h"

/* So many quick items go before one with payload. */
#define QUICK_RUN 64u
/* So many lookups in this process's own memory take less time than another thread's waking up. */
#define LOOKUPS_NOW 1024u

int kvb_tickets_init(struct kvb_tickets *tickets)
{
	struct epoll_event event = {.events = EPOLLIN};

	*tickets = (struct kvb_tickets){.ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
		.event_fd = epoll_create1(EPOLL_CLOEXEC)};
	TAILQ_INIT(&tickets->open);
	TAILQ_INIT(&tickets->done);
	for (unsigned i = 0; i < KVB_QUEUES; i++)
		TAILQ_INIT(&tickets->queues[i]);
	pthread_mutex_init(&tickets->lock, NULL);
	kvb_cond_init(&tickets->finished);
	if (tickets->ready_fd < 0 || tickets->event_fd < 0 ||
		epoll_ctl(tickets->event_fd, EPOLL_CTL_ADD, tickets->ready_fd, &event) < 0) {
		int r = -errno;
		kvb_tickets_done(tickets);
		return r;
	}
	return 0;
}

static void free_list(struct kvb_ticket_list *list)
{
	struct kvb_ticket *ticket;

	while ((ticket = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, ticket, link);
		free(ticket);
	}
}

void kvb_tickets_done(struct kvb_tickets *tickets)
{
	free_list(&tickets->open);
	free_list(&tickets->done);
	kvb_fd_close(&tickets->event_fd);
	kvb_fd_close(&tickets->ready_fd);
}

/* ------------------------------------------------------------------------------------------ signals */

static void signal_locked(struct kvb_tickets *tickets)
{
	if (tickets->ready)
		return;
	tickets->ready = true;
	(void)eventfd_write(tickets->ready_fd, 1);
}

static void unsignal_locked(struct kvb_tickets *tickets)
{
	eventfd_t value;

	if (!tickets->ready)
		return;
	tickets->ready = false;
	(void)eventfd_read(tickets->ready_fd, &value);
}

void kvb_tickets_signal(struct kvb_tickets *tickets)
{
	pthread_mutex_lock(&tickets->lock);
	signal_locked(tickets);
	pthread_mutex_unlock(&tickets->lock);
}

void kvb_tickets_wake(struct kvb_tickets *tickets)
{
	pthread_mutex_lock(&tickets->lock);
	pthread_cond_broadcast(&tickets->finished);
	pthread_mutex_unlock(&tickets->lock);
}

void kvb_tickets_close(struct kvb_tickets *tickets)
{
	pthread_mutex_lock(&tickets->lock);
	tickets->closing = true;
	pthread_cond_broadcast(&tickets->finished);
	pthread_mutex_unlock(&tickets->lock);
}

/* ---------------------------------------------------------------------------------- taking and finishing */

static enum kvb_ticket_queue queue_of(const struct kvb_ticket *ticket)
{
	if (ticket->op == KVB_OP_GET)
		return KVB_QUEUE_GET;
	return ticket->op == KVB_OP_PUT ? KVB_QUEUE_PUT : KVB_QUEUE_QUICK;
}

static struct kvb_ticket *next_payload(const struct kvb_tickets *tickets, uint64_t payload_room)
{
	struct kvb_ticket *ticket;

	if (payload_room == 0)
		return NULL;
	ticket = TAILQ_FIRST(&tickets->queues[KVB_QUEUE_GET + tickets->payload_turn]);
	if (!ticket)
		ticket = TAILQ_FIRST(&tickets->queues[KVB_QUEUE_PUT - tickets->payload_turn]);
	return ticket && ticket->items[ticket->next].size <= payload_room ? ticket : NULL;
}

/* The ticket whose next item comes next; NULL. */
static struct kvb_ticket *next_ticket(const struct kvb_tickets *tickets, uint64_t payload_room)
{
	struct kvb_ticket *quick = TAILQ_FIRST(&tickets->queues[KVB_QUEUE_QUICK]);
	struct kvb_ticket *payload = next_payload(tickets, payload_room);

	/* Quick ones do not wait behind payload, nor does payload for ever behind them. */
	return quick && (!payload || tickets->quick_run < QUICK_RUN) ? quick : payload;
}

bool kvb_tickets_may_take_locked(const struct kvb_tickets *tickets, uint64_t payload_room)
{
	return next_ticket(tickets, payload_room) != NULL;
}

static size_t take_item(struct kvb_tickets *tickets, struct kvb_ticket *ticket)
{
	size_t index = ticket->next++;

	if (ticket->next == ticket->n)
		TAILQ_REMOVE(&tickets->queues[queue_of(ticket)], ticket, queue_link);
	return index;
}

bool kvb_tickets_take_locked(
	struct kvb_tickets *tickets, uint64_t payload_room, struct kvb_taken *ret_taken)
{
	struct kvb_ticket *ticket = next_ticket(tickets, payload_room);

	if (!ticket)
		return false;
	if (queue_of(ticket) == KVB_QUEUE_QUICK) {
		tickets->quick_run++;
	} else {
		tickets->quick_run = 0;
		tickets->payload_turn = queue_of(ticket) == KVB_QUEUE_GET;
	}
	*ret_taken = (struct kvb_taken){.ticket = ticket, .index = take_item(tickets, ticket)};
	return true;
}

static void finish_locked(struct kvb_tickets *tickets, struct kvb_ticket *ticket)
{
	TAILQ_REMOVE(&tickets->open, ticket, link);
	ticket->finished = true;
	if (ticket->awaited) {
		pthread_cond_broadcast(&tickets->finished);
		return;
	}
	TAILQ_INSERT_TAIL(&tickets->done, ticket, link);
	/* Whoever reaps looks again before it leaves. */
	if (tickets->reaping == 0)
		signal_locked(tickets);
}

static void sum_up(struct kvb_ticket *ticket)
{
	for (size_t i = 0; i < ticket->n; i++) {
		if (ticket->items[i].result == 0)
			continue;
		ticket->failed++;
		if (ticket->result == 0)
			ticket->result = ticket->items[i].result;
	}
}

static void finish_item_locked(struct kvb_tickets *tickets, struct kvb_ticket *ticket, size_t index,
	int result, uint64_t length)
{
	struct kvb_item *item = &ticket->items[index];

	item->result = result;
	item->length = length;
	if (--ticket->left > 0)
		return;
	sum_up(ticket);
	finish_locked(tickets, ticket);
}

void kvb_tickets_finish_item(
	struct kvb_tickets *tickets, const struct kvb_taken *taken, int result, uint64_t length)
{
	pthread_mutex_lock(&tickets->lock);
	finish_item_locked(tickets, taken->ticket, taken->index, result, length);
	pthread_mutex_unlock(&tickets->lock);
}

void kvb_tickets_finish_call(struct kvb_tickets *tickets, struct kvb_ticket *ticket, int result)
{
	pthread_mutex_lock(&tickets->lock);
	ticket->result = result;
	ticket->failed = result != 0;
	finish_locked(tickets, ticket);
	pthread_mutex_unlock(&tickets->lock);
}

/* All items of it that nobody has taken. The ticket may be finished then. */
static void fail_rest_locked(struct kvb_tickets *tickets, struct kvb_ticket *ticket, int error)
{
	bool more;

	do {
		size_t index = take_item(tickets, ticket);
		more = ticket->next < ticket->n;
		finish_item_locked(tickets, ticket, index, error, 0);
	} while (more);
}

static void fail_queues_locked(struct kvb_tickets *tickets, int error, uint64_t until_ns)
{
	for (unsigned i = 0; i < KVB_QUEUES; i++) {
		struct kvb_ticket *ticket;
		/* Submitted in this order, so the deadlines are in order too. */
		while ((ticket = TAILQ_FIRST(&tickets->queues[i])) &&
			ticket->deadline_ns <= until_ns)
			fail_rest_locked(tickets, ticket, error);
	}
}

void kvb_tickets_expire(struct kvb_tickets *tickets, uint64_t now_ns)
{
	pthread_mutex_lock(&tickets->lock);
	fail_queues_locked(tickets, -ETIMEDOUT, now_ns);
	pthread_mutex_unlock(&tickets->lock);
}

void kvb_tickets_go_away(struct kvb_tickets *tickets)
{
	pthread_mutex_lock(&tickets->lock);
	tickets->away = true;
	fail_queues_locked(tickets, -ECONNRESET, UINT64_MAX);
	pthread_mutex_unlock(&tickets->lock);
}

void kvb_tickets_come_back(struct kvb_tickets *tickets)
{
	pthread_mutex_lock(&tickets->lock);
	tickets->away = false;
	pthread_mutex_unlock(&tickets->lock);
}

uint64_t kvb_tickets_deadline(struct kvb_tickets *tickets)
{
	uint64_t deadline_ns = UINT64_MAX;
	const struct kvb_ticket *ticket;

	pthread_mutex_lock(&tickets->lock);
	TAILQ_FOREACH(ticket, &tickets->open, link)
	{
		/* Calls have deadlines of their own, which control.c looks after. */
		if (!ticket->items)
			continue;
		deadline_ns = ticket->deadline_ns;
		break;
	}
	pthread_mutex_unlock(&tickets->lock);
	return deadline_ns;
}

uint64_t kvb_tickets_queued_deadline(struct kvb_tickets *tickets)
{
	uint64_t deadline_ns = UINT64_MAX;

	pthread_mutex_lock(&tickets->lock);
	for (unsigned i = 0; i < KVB_QUEUES; i++) {
		const struct kvb_ticket *ticket = TAILQ_FIRST(&tickets->queues[i]);
		if (ticket)
			deadline_ns = kvb_min_u64(deadline_ns, ticket->deadline_ns);
	}
	pthread_mutex_unlock(&tickets->lock);
	return deadline_ns;
}

/* ---------------------------------------------------------------------------------------- submitting */

static void add_locked(struct kvb_tickets *tickets, struct kvb_ticket *ticket)
{
	ticket->id = ++tickets->last_id;
	LIST_INSERT_HEAD(&tickets->ids[ticket->id % KVB_TICKET_BUCKETS], ticket, id_link);
	TAILQ_INSERT_TAIL(&tickets->open, ticket, link);
}

struct kvb_ticket *kvb_tickets_add_call(struct kvb_tickets *tickets, void *user, uint64_t *ret_id)
{
	struct kvb_ticket *ticket = calloc(1, sizeof(*ticket));

	if (!ticket)
		return NULL;
	ticket->user = user;
	pthread_mutex_lock(&tickets->lock);
	add_locked(tickets, ticket);
	*ret_id = ticket->id;
	pthread_mutex_unlock(&tickets->lock);
	return ticket;
}

/* Begins a batch, or ends it at once. Returns how many connections are to be poked. */
static unsigned begin_locked(struct kvb_client *client, struct kvb_ticket *ticket, int error,
	struct kvb_conn *ret_pokes[KVB_LANES_MAX])
{
	struct kvb_tickets *tickets = &client->tickets;
	size_t shares = ticket->n;
	unsigned n_pokes;

	/* Under the lock, so that deadlines are in the order of the queues. */
	ticket->deadline_ns = kvb_now_ns() + client->timeout_ms * KVB_NS_PER_MS;
	add_locked(tickets, ticket);
	if (ticket->left == 0) {
		sum_up(ticket);
		finish_locked(tickets, ticket);
		return 0;
	}
	TAILQ_INSERT_TAIL(&tickets->queues[queue_of(ticket)], ticket, queue_link);
	if (error < 0) {
		fail_rest_locked(tickets, ticket, error);
		return 0;
	}
	/* A lane has many quick ones on their way at once. */
	if (queue_of(ticket) == KVB_QUEUE_QUICK)
		shares = ticket->n / KVB_LANE_ACTIVES + 1;
	n_pokes = kvb_lanes_choose_locked(client, shares, ret_pokes);
	/* A caller has to come and drive. */
	if (n_pokes == 0 && client->n_movers == 0)
		signal_locked(tickets);
	return n_pokes;
}

static int submit_ticket(struct kvb_client *client, struct kvb_ticket *ticket, uint64_t *ret_ticket)
{
	struct kvb_tickets *tickets = &client->tickets;
	struct kvb_conn *pokes[KVB_LANES_MAX];
	/* Whatever the server's state is, the ticket tells of it. */
	int error = kvb_client_check(client);
	unsigned n_pokes = 0;
	int r = 0;

	kvb_client_hook(KVB_CLIENT_HOOK_SUBMIT);
	pthread_mutex_lock(&tickets->lock);
	/* The server may have gone since, and nobody would look at the queues. */
	if (error == 0 && tickets->away)
		error = -ENOTCONN;
	if (error == 0 && ticket->left > 0)
		r = kvb_lanes_prepare_locked(client);
	if (r == 0) {
		n_pokes = begin_locked(client, ticket, error, pokes);
		*ret_ticket = ticket->id;
	}
	pthread_mutex_unlock(&tickets->lock);
	kvb_lanes_poke(pokes, n_pokes);
	return r;
}

/* Lookups that need nobody but this thread are done at once. True: all of them are. */
static bool look_up_now(struct kvb_client *client, struct kvb_item *items, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct kvb_task task = {
			.op = KVB_OP_EXISTS, .key = items[i].key, .key_len = items[i].key_len};
		uint64_t length;
		if (!kvb_local_try(client, &task, false, &items[i].result, &length))
			return false;
		items[i].length = length;
	}
	return true;
}

static int submit(struct kvb_client *client, uint8_t op, uint8_t flags, struct kvb_item *items,
	size_t n, void *user, uint64_t *ret_ticket)
{
	struct kvb_ticket *ticket;
	int r;

	if (!items && n > 0)
		return -EINVAL;
	r = kvb_client_enter_any(client);
	if (r < 0)
		return r;
	ticket = calloc(1, sizeof(*ticket));
	if (ticket) {
		*ticket = (struct kvb_ticket){
			.user = user, .op = op, .flags = flags, .items = items, .n = n, .left = n};
		if (op == KVB_OP_EXISTS && n <= LOOKUPS_NOW && look_up_now(client, items, n))
			ticket->left = 0;
		r = submit_ticket(client, ticket, ret_ticket);
		if (r < 0)
			free(ticket);
	} else {
		r = -ENOMEM;
	}
	/* The lists have the ticket. NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
	kvb_client_leave_any(client);
	return r;
}

int kvb_submit_put(struct kvb_client *client, struct kvb_item *items, size_t n, uint32_t flags,
	void *user, uint64_t *ret_ticket)
{
	if (flags & ~(uint32_t)KVB_PUT_IF_ABSENT)
		return -EINVAL;
	return submit(
		client, KVB_OP_PUT, flags ? KVB_SQE_IF_ABSENT : 0, items, n, user, ret_ticket);
}

int kvb_submit_get(struct kvb_client *client, struct kvb_item *items, size_t n, void *user,
	uint64_t *ret_ticket)
{
	return submit(client, KVB_OP_GET, 0, items, n, user, ret_ticket);
}

int kvb_submit_exists(struct kvb_client *client, struct kvb_item *items, size_t n, void *user,
	uint64_t *ret_ticket)
{
	return submit(client, KVB_OP_EXISTS, 0, items, n, user, ret_ticket);
}

int kvb_submit_delete(struct kvb_client *client, struct kvb_item *items, size_t n, void *user,
	uint64_t *ret_ticket)
{
	return submit(client, KVB_OP_DELETE, 0, items, n, user, ret_ticket);
}

/* ------------------------------------------------------------------------------- reaping and waiting */

int kvb_event_fd(struct kvb_client *client)
{
	int r = kvb_client_enter_any(client);

	if (r < 0)
		return r;
	kvb_client_leave_any(client);
	return client->tickets.event_fd;
}

/* Hands the ticket over; it is in no list but the one of numbers. */
static void deliver_locked(struct kvb_ticket *ticket, struct kvb_completion *ret_completion)
{
	*ret_completion = (struct kvb_completion){.ticket = ticket->id,
		.user = ticket->user,
		.result = ticket->result,
		.failed = ticket->failed};
	LIST_REMOVE(ticket, id_link);
	free(ticket);
}

static int collect_locked(
	struct kvb_tickets *tickets, struct kvb_completion *ret_completions, int max)
{
	struct kvb_ticket *ticket;
	int n = 0;

	while (n < max && (ticket = TAILQ_FIRST(&tickets->done))) {
		TAILQ_REMOVE(&tickets->done, ticket, link);
		deliver_locked(ticket, &ret_completions[n++]);
	}
	return n;
}

int kvb_reap(struct kvb_client *client, struct kvb_completion *ret_completions, int max)
{
	struct kvb_tickets *tickets = &client->tickets;
	struct epoll_event events[2];
	int n, r = max < 1 ? -EINVAL : kvb_client_enter_any(client);

	if (r < 0)
		return r;
	pthread_mutex_lock(&tickets->lock);
	tickets->reaping++;
	unsignal_locked(tickets);
	pthread_mutex_unlock(&tickets->lock);
	if (client->n_movers == 0) {
		/* Takes the bell's edge, which nobody reads here. */
		(void)epoll_wait(tickets->event_fd, events, KVB_ARRAY_SIZE(events), 0);
		kvb_lanes_drive(client, NULL, 0);
	}
	kvb_tickets_expire(tickets, kvb_now_ns());
	pthread_mutex_lock(&tickets->lock);
	n = collect_locked(tickets, ret_completions, max);
	tickets->reaping--;
	if (!TAILQ_EMPTY(&tickets->done))
		signal_locked(tickets);
	pthread_mutex_unlock(&tickets->lock);
	kvb_client_leave_any(client);
	return n;
}

static struct kvb_ticket *find_locked(struct kvb_tickets *tickets, uint64_t id)
{
	struct kvb_ticket *ticket;

	LIST_FOREACH(ticket, &tickets->ids[id % KVB_TICKET_BUCKETS], id_link)
	if (ticket->id == id)
		return ticket;
	return NULL;
}

/* One wait of a thread in kvb_wait(). */
static void wait_turn_locked(
	struct kvb_client *client, const struct kvb_ticket *ticket, uint64_t deadline_ns)
{
	struct kvb_tickets *tickets = &client->tickets;

	/* Whoever finishes it, or stops to drive, says so under the lock. Nobody drives for a call. */
	if (client->n_movers > 0 || !ticket->items || !kvb_lanes_may_drive_locked(client)) {
		(void)kvb_cond_wait_until(&tickets->finished, &tickets->lock, deadline_ns);
		return;
	}
	pthread_mutex_unlock(&tickets->lock);
	kvb_lanes_drive(client, ticket, deadline_ns);
	pthread_mutex_lock(&tickets->lock);
}

static int await_locked(struct kvb_client *client, struct kvb_ticket *ticket, uint64_t deadline_ns)
{
	struct kvb_tickets *tickets = &client->tickets;

	for (;;) {
		uint64_t now_ns = kvb_now_ns(), until_ns = deadline_ns;
		if (tickets->closing)
			return -ECONNRESET;
		if (ticket->finished)
			return 0;
		if (now_ns >= deadline_ns)
			return -ETIMEDOUT;
		fail_queues_locked(tickets, -ETIMEDOUT, now_ns);
		/* Past it, a mover may still have to let go of the caller's memory. */
		if (ticket->items && ticket->deadline_ns > now_ns)
			until_ns = kvb_min_u64(until_ns, ticket->deadline_ns);
		if (!ticket->finished)
			wait_turn_locked(client, ticket, until_ns);
	}
}

static int wait_locked(struct kvb_client *client, uint64_t id, uint64_t deadline_ns,
	struct kvb_completion *ret_completion)
{
	struct kvb_ticket *ticket = find_locked(&client->tickets, id);
	int r;

	if (!ticket)
		return -ENOENT;
	if (ticket->awaited)
		return -EBUSY;
	if (ticket->finished)
		TAILQ_REMOVE(&client->tickets.done, ticket, link);
	ticket->awaited = true;
	r = await_locked(client, ticket, deadline_ns);
	if (r == 0) {
		deliver_locked(ticket, ret_completion);
		return 0;
	}
	ticket->awaited = false;
	/* The client is being closed, and nobody will ask for it. */
	if (ticket->finished)
		TAILQ_INSERT_TAIL(&client->tickets.done, ticket, link);
	return r;
}

int kvb_wait(struct kvb_client *client, uint64_t ticket, uint32_t timeout_ms,
	struct kvb_completion *ret_completion)
{
	uint64_t deadline_ns = timeout_ms ? kvb_now_ns() + timeout_ms * KVB_NS_PER_MS : UINT64_MAX;
	int r = kvb_client_enter_any(client);

	if (r < 0)
		return r;
	pthread_mutex_lock(&client->tickets.lock);
	r = wait_locked(client, ticket, deadline_ns, ret_completion);
	pthread_mutex_unlock(&client->tickets.lock);
	kvb_client_leave_any(client);
	return r;
}
