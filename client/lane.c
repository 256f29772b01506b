/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane.c - see lane.h.
 *
 * Owns the sessions of the lanes, their threads "kvb-mover-<number>", and the items on their way.
 * Whoever drives a lane is the only one at its streams; that is its thread, or without movers a
 * thread inside kvb_reap() or kvb_wait(). It must never touch a caller's memory of an item that is
 * finished, never finish one twice, and never sleep while the queues have an item that it could
 * begin.
 *
 * Without movers nobody sleeps on the bell between two calls of kvb_reap(): the last driver leaves
 * it armed, and it is in the epoll set of event_fd, edge-triggered, since whoever drives next may
 * not be the one who was woken.
 */
#include "client/lane.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/attach.h"
#include "client/client.h"
#include "client/hook.h"
#include "client/local.h"
#include "shm/atomic.h"
#include "shm/bell.h"
#include "shm/fd.h"
#include "shm/threads.h"
#include "shm/util.h"

/* Of payload, so many items are begun whatever their size: the second one's first fragments follow
 * the first one's last without a gap. */
#define PAYLOADS_MIN 2u
/* A thread that only reaps does not copy for longer than this, or one item. */
#define REAP_NS KVB_NS_PER_MS
/* How often a lane's thread looks at the life word while items are on their way. */
#define RECHECK_MS 200u
/* How often a lane that never sleeps looks at deadlines. */
#define EXPIRE_NS (100 * KVB_NS_PER_MS)

kvb_client_hook_fn *kvb_client_hook_installed;

/* ------------------------------------------------------------------------------------------- driving */

/* The longest payload that may be begun now; 0 none. One that is alone may be as long as it likes: what is
 * too long for the server is its caller's error. */
static uint64_t payload_room(const struct kvb_lane *lane)
{
	uint64_t most = lane->open_max;

	if (lane->payloads == 0)
		return UINT64_MAX;
	if (lane->payloads >= PAYLOADS_MIN)
		most = kvb_min_u64(most, KVB_WINDOW_BYTES);
	return lane->payload_bytes < most ? most - lane->payload_bytes : 0;
}

static void make_task(const struct kvb_ticket *ticket, size_t index, struct kvb_task *ret_task)
{
	const struct kvb_item *item = &ticket->items[index];

	*ret_task = (struct kvb_task){.op = ticket->op,
		.flags = ticket->flags,
		.key = item->key,
		.key_len = item->key_len,
		.data = item->data,
		.buffer = item->buffer,
		.size = item->size};
}

static void count_payload(struct kvb_lane *lane, struct kvb_active *active)
{
	const struct kvb_ticket *ticket = active->taken.ticket;

	active->payload = 0;
	if (ticket->op != KVB_OP_PUT && ticket->op != KVB_OP_GET)
		return;
	active->payload = kvb_max_u64(ticket->items[active->taken.index].size, 1);
	lane->payloads++;
	lane->payload_bytes += active->payload;
}

/* Moves items from the queues to the lane. True: there were some. */
static bool take_items(struct kvb_lane *lane)
{
	struct kvb_tickets *tickets = &lane->client->tickets;
	struct kvb_active *active;
	bool some = false;

	pthread_mutex_lock(&tickets->lock);
	while ((active = TAILQ_FIRST(&lane->unused)) &&
		kvb_tickets_take_locked(tickets, payload_room(lane), &active->taken)) {
		active->deadline_ns = active->taken.ticket->deadline_ns;
		active->stream.conn = NULL;
		count_payload(lane, active);
		TAILQ_REMOVE(&lane->unused, active, link);
		TAILQ_INSERT_TAIL(&lane->moving, active, link);
		some = true;
	}
	pthread_mutex_unlock(&tickets->lock);
	return some;
}

static void finish(struct kvb_lane *lane, struct kvb_active *active, int result, uint64_t length)
{
	if (active->payload > 0) {
		lane->payloads--;
		lane->payload_bytes -= active->payload;
	}
	TAILQ_REMOVE(&lane->moving, active, link);
	TAILQ_INSERT_TAIL(&lane->unused, active, link);
	kvb_tickets_finish_item(&lane->client->tickets, &active->taken, result, length);
}

/* Where the payload can be had without asking, it is. True: the item is finished. */
static bool do_without_asking(
	struct kvb_lane *lane, struct kvb_conn *conn, struct kvb_active *active)
{
	struct kvb_task task;
	uint64_t length;
	bool done;
	int result;

	make_task(active->taken.ticket, active->taken.index, &task);
	/* A copy takes its time, and who pokes must not wait for it. */
	pthread_mutex_unlock(&conn->lock);
	done = kvb_local_try(lane->client, &task, false, &result, &length);
	pthread_mutex_lock(&conn->lock);
	if (done)
		finish(lane, active, result, length);
	return done;
}

/* Begins on the ring what has to go there. True: the item is finished. */
static bool begin_locked(struct kvb_lane *lane, struct kvb_conn *conn, struct kvb_active *active)
{
	struct kvb_task task;
	int r;

	if (do_without_asking(lane, conn, active))
		return true;
	make_task(active->taken.ticket, active->taken.index, &task);
	r = kvb_stream_init(&active->stream, conn, &task, &lane->window);
	if (r == 0)
		return false;
	active->stream.conn = NULL;
	finish(lane, active, r, 0);
	return true;
}

static uint64_t told_length(const struct kvb_active *active, int result)
{
	bool tells =
		active->taken.ticket->op == KVB_OP_GET || active->taken.ticket->op == KVB_OP_EXISTS;

	return tells && (result == 0 || result == -EMSGSIZE) ? active->stream.value : 0;
}

/* True: something moved. */
static bool advance_locked(struct kvb_lane *lane, struct kvb_conn *conn, struct kvb_active *active)
{
	bool moved = false;
	int r;

	if (!active->stream.conn && begin_locked(lane, conn, active))
		return true;
	r = kvb_stream_advance_locked(&active->stream, &moved);
	if (r == 0)
		return moved;
	r = kvb_stream_end_locked(&active->stream, r);
	finish(lane, active, r, told_length(active, r));
	return true;
}

/* Ends what is past its deadline. */
static void expire_locked(struct kvb_lane *lane)
{
	struct kvb_active *active = TAILQ_FIRST(&lane->moving), *next;
	uint64_t now_ns = kvb_now_ns();

	lane->expired_ns = now_ns;
	kvb_tickets_expire(&lane->client->tickets, now_ns);
	for (; active; active = next) {
		int r = -ETIMEDOUT;
		next = TAILQ_NEXT(active, link);
		if (active->deadline_ns > now_ns)
			continue;
		if (active->stream.conn)
			r = kvb_stream_end_locked(&active->stream, r);
		finish(lane, active, r, 0);
	}
}

/* Ends all that is on its way. */
static void fail_moving_locked(struct kvb_lane *lane, int error)
{
	struct kvb_active *active;

	while ((active = TAILQ_FIRST(&lane->moving))) {
		if (active->stream.conn)
			(void)kvb_stream_end_locked(&active->stream, error);
		finish(lane, active, error, 0);
	}
}

static uint64_t earliest_deadline(const struct kvb_lane *lane)
{
	uint64_t deadline_ns = kvb_tickets_queued_deadline(&lane->client->tickets);
	const struct kvb_active *active;

	TAILQ_FOREACH(active, &lane->moving, link)
	deadline_ns = kvb_min_u64(deadline_ns, active->deadline_ns);
	return deadline_ns;
}

/* Everything that can be done without waiting, once. True: something moved. */
static bool turn_locked(struct kvb_lane *lane, struct kvb_conn *conn)
{
	struct kvb_active *active, *next;
	bool moved;

	kvb_client_hook(KVB_CLIENT_HOOK_MOVE);
	/* On a connection that has failed nothing is begun: another lane may do better. */
	moved = kvb_load_acquire(&conn->failed) == 0 && take_items(lane);
	for (active = TAILQ_FIRST(&lane->moving); active; active = next) {
		next = TAILQ_NEXT(active, link);
		moved |= advance_locked(lane, conn, active);
	}
	if (kvb_now_ns() >= lane->expired_ns + EXPIRE_NS)
		expire_locked(lane);
	return moved;
}

/* Driver, with tickets->lock: whether take_items() would find one. */
static bool may_take_locked(const struct kvb_lane *lane)
{
	return !TAILQ_EMPTY(&lane->unused) &&
		kvb_tickets_may_take_locked(&lane->client->tickets, payload_room(lane));
}

/* Says that the queues are looked at only when poked. False: there is something to take. */
static bool rest(struct kvb_lane *lane)
{
	struct kvb_tickets *tickets = &lane->client->tickets;
	bool may_take;

	pthread_mutex_lock(&tickets->lock);
	may_take = may_take_locked(lane);
	lane->resting = !may_take && !TAILQ_EMPTY(&lane->unused);
	lane->room = payload_room(lane);
	pthread_mutex_unlock(&tickets->lock);
	return !may_take;
}

static void stop_resting(struct kvb_lane *lane)
{
	struct kvb_tickets *tickets = &lane->client->tickets;

	pthread_mutex_lock(&tickets->lock);
	lane->resting = false;
	pthread_mutex_unlock(&tickets->lock);
}

/* Nothing is on its way. 0; the connection's error. */
static int sleep_idle_locked(struct kvb_lane *lane, struct kvb_conn *conn, uint64_t deadline_ns)
{
	bool ended = false;

	if (kvb_conn_rest_locked(conn, deadline_ns)) {
		pthread_mutex_unlock(&conn->lock);
		ended = kvb_door_ended(lane->client, conn->attached.door_fd);
		if (ended)
			kvb_conn_fail(conn, -ECONNRESET);
		pthread_mutex_lock(&conn->lock);
	}
	return kvb_load_acquire(&conn->failed);
}

/* Waits for a completion, for items or for a deadline. 0; the connection's error. */
static int sleep_locked(struct kvb_lane *lane, struct kvb_conn *conn, uint64_t deadline_ns)
{
	int r = kvb_load_acquire(&conn->failed);

	/* Nothing is taken for it any more, however much is queued. */
	if (r < 0)
		return r;
	/* Between the look at the queues and the sleep the connection's lock is not let go of, so
	 * that no poke can get lost. */
	if (!rest(lane))
		return 0;
	deadline_ns = kvb_min_u64(deadline_ns, earliest_deadline(lane));
	if (TAILQ_EMPTY(&lane->moving))
		r = sleep_idle_locked(lane, conn, deadline_ns);
	else
		r = kvb_conn_wait_room_locked(conn, deadline_ns);
	stop_resting(lane);
	if (kvb_now_ns() >= deadline_ns)
		expire_locked(lane);
	return r == -ETIMEDOUT ? 0 : r;
}

static bool is_closing(struct kvb_client *client)
{
	struct kvb_tickets *tickets = &client->tickets;
	bool closing;

	pthread_mutex_lock(&tickets->lock);
	closing = tickets->closing;
	pthread_mutex_unlock(&tickets->lock);
	return closing;
}

/* A mover's thread, until its connection or the client ends. */
static void move(struct kvb_lane *lane, struct kvb_conn *conn)
{
	int r = 0;

	pthread_mutex_lock(&conn->lock);
	while (r == 0 && !is_closing(lane->client))
		if (!turn_locked(lane, conn))
			r = sleep_locked(lane, conn, UINT64_MAX);
	pthread_mutex_unlock(&conn->lock);
}

/* ------------------------------------------------------------------------------ driving without movers */

/* Whoever waits while the connection has failed is told when the lane's thread has ended what was
 * moving, and when there is a new one: he must not go round and round until then. */
static bool may_drive(const struct kvb_lane *lane)
{
	return lane->conn && !lane->driven && !kvb_load_relaxed(&lane->conn->failed);
}

bool kvb_lanes_may_drive_locked(const struct kvb_client *client)
{
	return may_drive(&client->lanes[0]);
}

static bool is_finished(struct kvb_client *client, const struct kvb_ticket *ticket)
{
	struct kvb_tickets *tickets = &client->tickets;
	bool finished;

	pthread_mutex_lock(&tickets->lock);
	finished = ticket->finished || tickets->closing;
	pthread_mutex_unlock(&tickets->lock);
	return finished;
}

/* Returns the connection's error; 0 when there is nothing more to do, or no more time. */
static int drive_until_locked(struct kvb_lane *lane, struct kvb_conn *conn,
	const struct kvb_ticket *until, uint64_t deadline_ns, bool *ret_more)
{
	uint64_t reap_end_ns = kvb_now_ns() + REAP_NS;
	int r = 0;

	do {
		*ret_more = turn_locked(lane, conn);
		if (!*ret_more && until)
			r = sleep_locked(lane, conn, deadline_ns);
	} while (r == 0 &&
		(until ? !is_finished(lane->client, until) && kvb_now_ns() < deadline_ns
		       : *ret_more && kvb_now_ns() < reap_end_ns));
	/* What came with the deadline is not told of again. */
	if (r == 0 && until)
		*ret_more = turn_locked(lane, conn);
	if (r == 0 && !until)
		expire_locked(lane);
	return r;
}

/* Leaves the bell armed for whoever polls. True: there is something to do already. */
static bool arm_locked(struct kvb_lane *lane, struct kvb_conn *conn)
{
	if (TAILQ_EMPTY(&lane->moving))
		return false;
	kvb_bell_arm(&conn->header->cq_sleeping);
	/* The look again, after the fence. */
	return !kvb_cq_empty(&conn->cq) ||
		kvb_load_acquire(&conn->header->state) == KVB_SESSION_REVOKED;
}

/* The lane's connection, with a reference, for the one who drives; NULL: it cannot be driven. */
static struct kvb_conn *claim(struct kvb_lane *lane)
{
	struct kvb_tickets *tickets = &lane->client->tickets;
	struct kvb_conn *conn = NULL;

	pthread_mutex_lock(&tickets->lock);
	if (may_drive(lane)) {
		lane->driven = true;
		conn = kvb_conn_ref(lane->conn);
	} else {
		/* It may have taken the bell's edge, and the one who drives has looked before. */
		lane->came = lane->driven;
	}
	pthread_mutex_unlock(&tickets->lock);
	return conn;
}

/* `usable`: a caller who comes again could move what is queued. */
static void unclaim(struct kvb_lane *lane, bool usable, bool more)
{
	struct kvb_tickets *tickets = &lane->client->tickets;

	pthread_mutex_lock(&tickets->lock);
	more = usable && (more || lane->came || may_take_locked(lane));
	lane->driven = lane->came = false;
	pthread_cond_broadcast(&tickets->finished);
	pthread_mutex_unlock(&tickets->lock);
	if (more)
		kvb_tickets_signal(tickets);
}

void kvb_lanes_drive(
	struct kvb_client *client, const struct kvb_ticket *until, uint64_t deadline_ns)
{
	struct kvb_lane *lane = &client->lanes[0];
	struct kvb_conn *conn = claim(lane);
	bool more = false;
	int r;

	if (!conn)
		return;
	pthread_mutex_lock(&conn->lock);
	kvb_bell_disarm(&conn->header->cq_sleeping);
	r = drive_until_locked(lane, conn, until, deadline_ns, &more);
	if (r == 0 && !more)
		more = arm_locked(lane, conn);
	pthread_mutex_unlock(&conn->lock);
	kvb_client_hook(KVB_CLIENT_HOOK_LEAVE);
	/* If the connection has failed, the lane's thread takes it from here. */
	unclaim(lane, r == 0, more);
	kvb_conn_unref(conn);
}

/* ------------------------------------------------------------------------------------ a lane's thread */

/* Until when the thread of a lane that others drive may sleep, in ms; -1 without end. */
static int watch_ms(struct kvb_lane *lane)
{
	struct kvb_tickets *tickets = &lane->client->tickets;
	uint64_t deadline_ns = kvb_tickets_deadline(tickets), now_ns = kvb_now_ns();

	bool idle;

	if (deadline_ns <= now_ns)
		kvb_tickets_signal(tickets);
	pthread_mutex_lock(&tickets->lock);
	lane->idle = idle = TAILQ_EMPTY(&tickets->open);
	pthread_mutex_unlock(&tickets->lock);
	if (idle)
		return -1;
	if (deadline_ns <= now_ns)
		return RECHECK_MS;
	return (int)kvb_min_u64((deadline_ns - now_ns) / KVB_NS_PER_MS + 1, RECHECK_MS);
}

static void watch(struct kvb_lane *lane, struct kvb_conn *conn)
{
	struct pollfd fds[] = {
		{.fd = conn->attached.door_fd, .events = POLLIN},
		{.fd = lane->wake_fd, .events = POLLIN},
	};
	eventfd_t wakes;

	while (!is_closing(lane->client) && kvb_conn_check(conn) == 0) {
		if (poll(fds, KVB_ARRAY_SIZE(fds), watch_ms(lane)) < 0)
			continue;
		if (fds[1].revents)
			(void)eventfd_read(lane->wake_fd, &wakes);
		if (fds[0].revents && kvb_door_ended(lane->client, conn->attached.door_fd))
			kvb_conn_fail(conn, -ECONNRESET);
	}
}

/* Takes the connection, on success only. 0; -ENOMEM, -ENOSPC. */
static int install(void *user, struct kvb_conn *conn)
{
	struct kvb_lane *lane = user;
	struct kvb_tickets *tickets = &lane->client->tickets;
	struct epoll_event event = {.events = EPOLLIN | EPOLLET};

	if (!lane->moves &&
		epoll_ctl(tickets->event_fd, EPOLL_CTL_ADD, conn->attached.bell_fd, &event) < 0)
		return -errno;
	pthread_mutex_lock(&tickets->lock);
	lane->conn = conn;
	lane->open_max = conn->attached.welcome.open_max;
	pthread_cond_broadcast(&tickets->finished);
	pthread_mutex_unlock(&tickets->lock);
	if (!lane->moves)
		kvb_tickets_signal(tickets);
	return 0;
}

/* Takes the connection away from whoever might drive or poke it. */
static struct kvb_conn *uninstall(struct kvb_lane *lane)
{
	struct kvb_tickets *tickets = &lane->client->tickets;
	struct kvb_conn *conn;

	pthread_mutex_lock(&tickets->lock);
	conn = lane->conn;
	lane->conn = NULL;
	while (lane->driven)
		pthread_cond_wait(&tickets->finished, &tickets->lock);
	pthread_mutex_unlock(&tickets->lock);
	/* The server holds the bell too, so that closing ours would leave it in the set. */
	if (conn && !lane->moves)
		(void)epoll_ctl(tickets->event_fd, EPOLL_CTL_DEL, conn->attached.bell_fd, NULL);
	return conn;
}

static unsigned choose(struct kvb_client *client, struct kvb_conn *ret_pokes[KVB_LANES_MAX])
{
	unsigned n;

	pthread_mutex_lock(&client->tickets.lock);
	n = kvb_lanes_choose_locked(client, KVB_LANES_MAX, ret_pokes);
	pthread_mutex_unlock(&client->tickets.lock);
	return n;
}

static void detach(struct kvb_lane *lane)
{
	struct kvb_client *client = lane->client;
	struct kvb_conn *conn, *pokes[KVB_LANES_MAX];
	unsigned n_pokes;
	eventfd_t wakes;

	if (lane->conn)
		kvb_conn_fail(lane->conn, -ECONNRESET);
	conn = uninstall(lane);
	if (!conn)
		return;
	pthread_mutex_lock(&conn->lock);
	fail_moving_locked(lane, -ECONNRESET);
	pthread_mutex_unlock(&conn->lock);
	kvb_conn_unref(conn);
	/* What this one was poked for. */
	n_pokes = choose(client, pokes);
	kvb_lanes_poke(pokes, n_pokes);
	(void)eventfd_read(lane->wake_fd, &wakes);
	/* The client's own session may not have noticed. */
	(void)eventfd_write(client->wake_fd, 1);
}

static void *lane_main(void *arg)
{
	struct kvb_lane *lane = arg;

	do {
		/* Only this thread changes it. */
		if (lane->conn && lane->moves)
			move(lane, lane->conn);
		else if (lane->conn)
			watch(lane, lane->conn);
		detach(lane);
	} while (kvb_client_attach_again(lane->client, false, lane->wake_fd, install, lane));
	return NULL;
}

/* -------------------------------------------------------------------------------------- open and close */

static int lane_init(struct kvb_lane *lane, struct kvb_client *client)
{
	*lane = (struct kvb_lane){.client = client,
		.moves = client->n_movers > 0,
		.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
		.actives = calloc(KVB_LANE_ACTIVES, sizeof(*lane->actives))};
	TAILQ_INIT(&lane->moving);
	TAILQ_INIT(&lane->unused);
	if (lane->wake_fd < 0)
		return -errno;
	if (!lane->actives)
		return -ENOMEM;
	for (unsigned i = 0; i < KVB_LANE_ACTIVES; i++)
		TAILQ_INSERT_TAIL(&lane->unused, &lane->actives[i], link);
	return 0;
}

static int start_thread(struct kvb_lane *lane)
{
	char name[16];
	int r;

	snprintf(name, sizeof(name), "kvb-mover-%u",
		(unsigned)(lane - lane->client->lanes) % KVB_LANES_MAX);
	r = kvb_thread_start(&lane->thread, name, lane_main, lane);
	if (r == 0)
		lane->started = true;
	return r;
}

static int open_lane(struct kvb_lane *lane, struct kvb_client *client)
{
	int r = lane_init(lane, client);

	if (r < 0 || !lane->moves)
		return r;
	r = kvb_client_attach(client, false, lane->wake_fd,
		kvb_now_ns() + client->timeout_ms * KVB_NS_PER_MS, install, lane);
	return r < 0 ? r : start_thread(lane);
}

int kvb_lanes_open(struct kvb_client *client)
{
	unsigned n = client->n_movers > 0 ? client->n_movers : 1;

	client->lanes = calloc(n, sizeof(*client->lanes));
	if (!client->lanes)
		return -ENOMEM;
	for (unsigned i = 0; i < n; i++) {
		int r;
		client->n_lanes = i + 1;
		r = open_lane(&client->lanes[i], client);
		if (r < 0)
			return r;
	}
	return 0;
}

static void free_lanes(struct kvb_client *client)
{
	for (unsigned i = 0; i < client->n_lanes; i++) {
		kvb_fd_close(&client->lanes[i].wake_fd);
		free(client->lanes[i].actives);
	}
	free(client->lanes);
	client->lanes = NULL;
	client->n_lanes = 0;
}

static void end_lane(struct kvb_lane *lane)
{
	struct kvb_tickets *tickets = &lane->client->tickets;
	struct kvb_conn *conn = NULL;

	(void)eventfd_write(lane->wake_fd, 1);
	pthread_mutex_lock(&tickets->lock);
	if (lane->conn)
		conn = kvb_conn_ref(lane->conn);
	pthread_mutex_unlock(&tickets->lock);
	if (!conn)
		return;
	kvb_conn_fail(conn, -ECONNRESET);
	kvb_conn_unref(conn);
}

void kvb_lanes_end(struct kvb_client *client)
{
	for (unsigned i = 0; i < client->n_lanes; i++)
		end_lane(&client->lanes[i]);
}

void kvb_lanes_free(struct kvb_client *client)
{
	for (unsigned i = 0; i < client->n_lanes; i++) {
		if (client->lanes[i].started)
			pthread_join(client->lanes[i].thread, NULL);
		else
			detach(&client->lanes[i]);
	}
	free_lanes(client);
}

void kvb_lanes_free_in_child(struct kvb_client *client)
{
	for (unsigned i = 0; i < client->n_lanes; i++)
		if (client->lanes[i].conn)
			kvb_conn_free_in_child(client->lanes[i].conn);
	free_lanes(client);
}

void kvb_lanes_nudge(struct kvb_client *client)
{
	for (unsigned i = 0; i < client->n_lanes; i++)
		(void)eventfd_write(client->lanes[i].wake_fd, 1);
}

/* -------------------------------------------------------------------------------- what submitters need */

int kvb_lanes_prepare_locked(struct kvb_client *client)
{
	struct kvb_lane *lane = &client->lanes[0];

	if (!lane->started)
		return start_thread(lane);
	if (lane->idle) {
		lane->idle = false;
		(void)eventfd_write(lane->wake_fd, 1);
	}
	return 0;
}

unsigned kvb_lanes_choose_locked(
	struct kvb_client *client, size_t shares, struct kvb_conn *ret_pokes[KVB_LANES_MAX])
{
	unsigned n_pokes = 0;

	for (unsigned i = 0; i < client->n_lanes && n_pokes < shares; i++) {
		struct kvb_lane *lane = &client->lanes[i];
		if (!lane->resting || !lane->conn ||
			!kvb_tickets_may_take_locked(&client->tickets, lane->room))
			continue;
		lane->resting = false;
		ret_pokes[n_pokes++] = kvb_conn_ref(lane->conn);
	}
	return n_pokes;
}

void kvb_lanes_poke(struct kvb_conn *pokes[], unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		kvb_conn_poke(pokes[i]);
		kvb_conn_unref(pokes[i]);
	}
}
