/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connection.c - see connection.h.
 *
 * Owns the maps, descriptors, request table and staging of one attachment. Runs in whatever thread
 * is inside a call, under conn->lock; one of the waiting threads at a time sleeps on the bell
 * without the lock and wakes the others. It must never give staging or credit back before the
 * server's completion (a late write would land in somebody else's payload), and never touch the
 * maps without a reference.
 */
#include "client/connection.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/client.h"
#include "shm/atomic.h"
#include "shm/bell.h"
#include "shm/fd.h"
#include "shm/threads.h"
#include "shm/util.h"

/* A sleeper looks at the life word this often, so that a call notices a killed server well within a
 * second, however long the kernel takes to close its sockets. */
#define RECHECK_MS 200
#define SPIN_LOOKS 64u

/* ------------------------------------------------------------------------------------ life and death */

static int init_tables(struct kvb_conn *conn)
{
	const struct kvb_welcome *welcome = &conn->attached.welcome;
	uint32_t credit = welcome->cq_entries;

	conn->requests = calloc(credit, sizeof(*conn->requests));
	conn->slots = calloc(welcome->transfers, sizeof(*conn->slots));
	if (!conn->requests || !conn->slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < credit; i++)
		conn->requests[i].next_free = i + 1;
	return kvb_staging_init(&conn->staging, welcome->staging_bytes, credit);
}

static void free_tables(struct kvb_conn *conn)
{
	kvb_fd_close(&conn->wake_fd);
	kvb_staging_done(&conn->staging);
	free(conn->requests);
	free(conn->slots);
	free(conn);
}

int kvb_conn_new(struct kvb_client *client, struct kvb_attached *attached, int owner_wake_fd,
	struct kvb_conn **ret_conn)
{
	struct kvb_conn *conn = calloc(1, sizeof(*conn));
	int r;

	if (!conn)
		return -ENOMEM;
	*conn = (struct kvb_conn){
		.client = client, .owner_wake_fd = owner_wake_fd, .refs = 1, .attached = *attached};
	conn->header = attached->session.base;
	conn->staging_base = (uint8_t *)attached->session.base + attached->welcome.staging_offset;
	kvb_sq_producer_init(&conn->sq, attached->session.base, &attached->layout);
	kvb_cq_consumer_init(&conn->cq, attached->session.base, &attached->layout);
	conn->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = conn->wake_fd < 0 ? -errno : init_tables(conn);
	if (r == 0)
		r = kvb_dealer_init(&conn->dealer);
	if (r < 0) {
		free_tables(conn);
		return r;
	}
	pthread_mutex_init(&conn->lock, NULL);
	kvb_cond_init(&conn->changed);
	*ret_conn = conn;
	return 0;
}

struct kvb_conn *kvb_conn_ref(struct kvb_conn *conn)
{
	(void)kvb_fetch_add(&conn->refs, 1u);
	return conn;
}

void kvb_conn_unref(struct kvb_conn *conn)
{
	/* The acquire half pairs with the release half of the others: they are through with the
	 * maps. */
	if (kvb_fetch_sub(&conn->refs, 1u) != 1)
		return;
	kvb_dealer_done(&conn->dealer);
	kvb_attached_free(&conn->attached);
	pthread_cond_destroy(&conn->changed);
	pthread_mutex_destroy(&conn->lock);
	free_tables(conn);
}

void kvb_conn_free_in_child(struct kvb_conn *conn)
{
	/* The maps did not come along (MADV_DONTFORK), so there is nothing to unmap; and a
	 * shutdown of the door would end the parent's session. */
	kvb_fd_close(&conn->attached.session.fd);
	kvb_fd_close(&conn->attached.life.fd);
	kvb_fd_close(&conn->attached.kick_fd);
	kvb_fd_close(&conn->attached.bell_fd);
	kvb_fd_close(&conn->attached.door_fd);
	kvb_dealer_done_in_child(&conn->dealer);
	free_tables(conn);
}

void kvb_conn_fail(struct kvb_conn *conn, int error)
{
	int32_t none = 0;

	(void)kvb_compare_exchange(&conn->failed, &none, error);
	(void)eventfd_write(conn->wake_fd, 1);
	kvb_dealer_wake(&conn->dealer);
	/* Its owner may not have heard of it. */
	(void)eventfd_write(conn->owner_wake_fd, 1);
	pthread_mutex_lock(&conn->lock);
	pthread_cond_broadcast(&conn->changed);
	pthread_mutex_unlock(&conn->lock);
}

/* As kvb_conn_fail(), for whoever holds the lock. */
static int fail_locked(struct kvb_conn *conn, int error)
{
	int32_t none = 0;

	if (kvb_compare_exchange(&conn->failed, &none, error)) {
		(void)eventfd_write(conn->wake_fd, 1);
		kvb_dealer_wake(&conn->dealer);
		(void)eventfd_write(conn->owner_wake_fd, 1);
		pthread_cond_broadcast(&conn->changed);
	}
	return kvb_load_acquire(&conn->failed);
}

static bool server_lives(struct kvb_conn *conn)
{
	const struct kvb_life_page *page = conn->attached.life.base;
	uint32_t life = kvb_load_acquire(&page->life);

	return life != 0 && !(life & KVB_LIFE_OWNER_DIED);
}

int kvb_conn_check(struct kvb_conn *conn)
{
	/* Pairs with the exchange in kvb_conn_fail(). */
	int failed = kvb_load_acquire(&conn->failed);

	if (failed)
		return failed;
	if (!server_lives(conn)) {
		kvb_conn_fail(conn, -ECONNRESET);
		return -ECONNRESET;
	}
	return 0;
}

/* ---------------------------------------------------------------------------------- requests and slots */

/* Tells those that wait for room, or for a slot, to look again. The sleeper would learn of it
 * only at its next completion otherwise, and there may be none to come. */
static void tell_of_room(struct kvb_conn *conn)
{
	kvb_store_relaxed(&conn->room_given, conn->room_given + 1);
	if (conn->waiting)
		pthread_cond_broadcast(&conn->changed);
	if (!conn->sleeper_wants_room)
		return;
	conn->sleeper_wants_room = false;
	(void)eventfd_write(conn->wake_fd, 1);
}

void kvb_conn_poke(struct kvb_conn *conn)
{
	pthread_mutex_lock(&conn->lock);
	tell_of_room(conn);
	pthread_mutex_unlock(&conn->lock);
}

int kvb_conn_take_locked(struct kvb_conn *conn, uint32_t length, uint32_t *ret_index)
{
	uint32_t index = conn->free_request;
	struct kvb_request *request;
	uint32_t block = KVB_NO_BLOCK;
	uint64_t staging = 0;
	int r = kvb_load_acquire(&conn->failed);

	if (r < 0)
		return r;
	if (length > conn->staging.bytes)
		return -EMSGSIZE;
	if (index == conn->attached.welcome.cq_entries)
		return -EAGAIN;
	if (length > 0) {
		r = kvb_staging_take(&conn->staging, length, &staging, &block);
		if (r < 0)
			return r;
	}
	request = &conn->requests[index];
	conn->free_request = request->next_free;
	*request = (struct kvb_request){.generation = request->generation + 1,
		.block = block,
		.staging = staging,
		.aborts = -1};
	*ret_index = index;
	return 0;
}

void kvb_conn_finish_locked(struct kvb_conn *conn, uint32_t index)
{
	struct kvb_request *request = &conn->requests[index];

	if (request->block != KVB_NO_BLOCK)
		kvb_staging_give(&conn->staging, request->block);
	request->in_flight = request->orphan = false;
	request->next_free = conn->free_request;
	conn->free_request = index;
	tell_of_room(conn);
}

void kvb_conn_orphan_locked(struct kvb_conn *conn, uint32_t index)
{
	if (conn->requests[index].done)
		kvb_conn_finish_locked(conn, index);
	else
		conn->requests[index].orphan = true;
}

void kvb_conn_submit_locked(
	struct kvb_conn *conn, uint32_t index, struct kvb_sqe *sqe, const void *key)
{
	struct kvb_request *request = &conn->requests[index];

	sqe->user_data = (uint64_t)request->generation << 32 | index;
	sqe->staging = request->staging;
	request->in_flight = true;
	/* Cannot be full: it has a slot for each credit. */
	(void)kvb_sq_push(&conn->sq, sqe, key);
	if (kvb_bell_wanted(&conn->header->sq_sleeping))
		(void)kvb_bell_ring(conn->attached.kick_fd);
}

int kvb_conn_slot_take_locked(struct kvb_conn *conn, uint32_t *ret_transfer)
{
	for (uint32_t i = 0; i < conn->attached.welcome.transfers; i++) {
		struct kvb_slot *slot = &conn->slots[i];
		if (slot->state != KVB_SLOT_FREE)
			continue;
		slot->state = KVB_SLOT_BUSY;
		slot->use = slot->use % 0xffffff + 1;
		*ret_transfer = KVB_TRANSFER_ID(i, slot->use);
		return 0;
	}
	return -EAGAIN;
}

/* Sends the ABORTs that found no credit before. */
static void send_aborts(struct kvb_conn *conn)
{
	for (uint32_t i = 0; i < conn->attached.welcome.transfers; i++) {
		struct kvb_slot *slot = &conn->slots[i];
		struct kvb_sqe sqe = {
			.op = KVB_OP_ABORT, .transfer = KVB_TRANSFER_ID(i, slot->use)};
		uint32_t index;
		if (slot->state != KVB_SLOT_ABORT)
			continue;
		if (kvb_conn_take_locked(conn, 0, &index) < 0)
			return;
		slot->state = KVB_SLOT_BUSY;
		conn->requests[index].orphan = true;
		conn->requests[index].aborts = (int)i;
		kvb_conn_submit_locked(conn, index, &sqe, NULL);
	}
}

void kvb_conn_slot_give_locked(struct kvb_conn *conn, uint32_t transfer, bool aborted)
{
	struct kvb_slot *slot = &conn->slots[KVB_TRANSFER_SLOT(transfer)];

	slot->state = aborted ? KVB_SLOT_ABORT : KVB_SLOT_FREE;
	if (aborted)
		send_aborts(conn);
	else
		tell_of_room(conn);
}

/* --------------------------------------------------------------------------------------- completions */

static void complete(struct kvb_conn *conn, const struct kvb_cqe *cqe)
{
	uint32_t index = (uint32_t)cqe->user_data;
	struct kvb_request *request;

	if (index >= conn->attached.welcome.cq_entries)
		return;
	request = &conn->requests[index];
	/* Nobody waits for a completion that is not of this use of the entry. */
	if (!request->in_flight || request->done || request->generation != cqe->user_data >> 32)
		return;
	request->cqe = *cqe;
	if (cqe->result > 0)
		request->cqe.result = -EPROTO;
	request->done = true;
	if (!request->orphan)
		return;
	if (request->aborts >= 0)
		conn->slots[request->aborts].state = KVB_SLOT_FREE;
	kvb_conn_finish_locked(conn, index);
}

int kvb_conn_reap_locked(struct kvb_conn *conn)
{
	struct kvb_cqe cqe;
	bool some = false;
	int r;

	while ((r = kvb_cq_take(&conn->cq, &cqe)) > 0) {
		complete(conn, &cqe);
		some = true;
	}
	if (r < 0)
		return fail_locked(conn, -EPROTO);
	if (some) {
		send_aborts(conn);
		if (conn->waiting)
			pthread_cond_broadcast(&conn->changed);
	}
	r = kvb_load_acquire(&conn->failed);
	if (r == 0 &&
		/* Pairs with the server's release store: all completions are there by then, and
		 * were taken, unless they came after the look above. */
		kvb_load_acquire(&conn->header->state) == KVB_SESSION_REVOKED &&
		kvb_cq_empty(&conn->cq))
		return fail_locked(conn, -ECONNRESET);
	return r;
}

/* 1 the bell rang or somebody wrote wake_fd; 0 neither, for the whole time between two looks;
 * negative it ended early, which proves nothing. */
static int poll_bell(struct kvb_conn *conn, uint64_t deadline_ns)
{
	struct pollfd fds[] = {
		{.fd = conn->attached.bell_fd, .events = POLLIN},
		{.fd = conn->wake_fd, .events = POLLIN},
	};
	uint64_t now_ns = kvb_now_ns();
	uint64_t left_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / KVB_NS_PER_MS + 1 : 0;
	int n = poll(fds, KVB_ARRAY_SIZE(fds), (int)kvb_min_u64(left_ms, RECHECK_MS));
	eventfd_t wakes;

	if (n > 0 && fds[0].revents)
		(void)kvb_bell_clear(conn->attached.bell_fd);
	/* A connection that failed says so in `failed`, which was set before the write. */
	if (n > 0 && fds[1].revents)
		(void)eventfd_read(conn->wake_fd, &wakes);
	return n == 0 && left_ms < RECHECK_MS ? -1 : n;
}

static int poll_bell_unlocked(struct kvb_conn *conn, uint64_t deadline_ns)
{
	int r;

	pthread_mutex_unlock(&conn->lock);
	r = poll_bell(conn, deadline_ns);
	pthread_mutex_lock(&conn->lock);
	return r;
}

/* Sleeps on the bell; the lock is released meanwhile. */
static void sleep_on_bell(struct kvb_conn *conn, uint64_t deadline_ns)
{
	int r = poll_bell_unlocked(conn, deadline_ns);
	uint32_t head = conn->cq.head;

	/* A completion without a ring may have its ring under way: only the one that is still
	 * there, and still has none, at the next look is a wake that got lost. */
	if (r == 0 && !kvb_cq_empty(&conn->cq) && poll_bell_unlocked(conn, deadline_ns) == 0 &&
		head == conn->cq.head)
		kvb_count(&conn->client->missed_wakes, 1);
}

/* Looks for completions, without the lock, for spin_us. */
static void spin(struct kvb_conn *conn, uint64_t deadline_ns, uint32_t head, uint32_t room)
{
	const uint32_t *tail = &conn->header->cq_tail;
	uint64_t now_ns = 0, until_ns = 0;

	pthread_mutex_unlock(&conn->lock);
	do {
		for (unsigned i = 0; i < SPIN_LOOKS && kvb_load_relaxed(tail) == head; i++)
			kvb_cpu_relax();
		if (kvb_load_relaxed(tail) != head || kvb_load_relaxed(&conn->room_given) != room ||
			kvb_load_relaxed(&conn->failed) || !server_lives(conn))
			break;
		now_ns = kvb_now_ns();
		/* The clock is read only when the first looks have found nothing. */
		if (until_ns == 0)
			until_ns = kvb_min_u64(
				deadline_ns, now_ns + conn->client->spin_us * KVB_NS_PER_US);
	} while (now_ns < until_ns);
	pthread_mutex_lock(&conn->lock);
}

/* One turn as the thread that spins, before the server is told that anybody sleeps. True:
 * something may have changed, or another thread may have taken it, for which nobody rings again. */
static bool take_spin_turn(struct kvb_conn *conn, uint64_t deadline_ns, bool wants_room)
{
	uint32_t head = conn->cq.head, room = conn->room_given;

	conn->sleeping = true;
	spin(conn, deadline_ns, head, room);
	conn->sleeping = false;
	if (kvb_cq_empty(&conn->cq) && conn->cq.head == head &&
		!(wants_room && conn->room_given != room))
		return false;
	if (conn->waiting)
		pthread_cond_broadcast(&conn->changed);
	return true;
}

/* One turn as the thread that sleeps on the bell. */
static void take_sleep_turn(struct kvb_conn *conn, uint64_t deadline_ns, bool wants_room)
{
	conn->sleeping = true;
	conn->sleeper_wants_room = wants_room;
	kvb_bell_arm(&conn->header->cq_sleeping);
	/* The look again, after the fence. */
	if (kvb_cq_empty(&conn->cq) &&
		kvb_load_acquire(&conn->header->state) != KVB_SESSION_REVOKED)
		sleep_on_bell(conn, deadline_ns);
	kvb_bell_disarm(&conn->header->cq_sleeping);
	conn->sleeping = conn->sleeper_wants_room = false;
	if (!server_lives(conn))
		(void)fail_locked(conn, -ECONNRESET);
	/* Somebody else may have to sleep on the bell now. */
	if (conn->waiting)
		pthread_cond_broadcast(&conn->changed);
}

/* One wait. 0 something may have changed; -ETIMEDOUT; the connection's error. */
static int wait_once(struct kvb_conn *conn, uint64_t deadline_ns, bool wants_room)
{
	if (kvb_now_ns() >= deadline_ns)
		return -ETIMEDOUT;
	if (conn->sleeping) {
		conn->waiting++;
		(void)kvb_cond_wait_until(&conn->changed, &conn->lock, deadline_ns);
		conn->waiting--;
	} else if (conn->client->spin_us == 0 || !take_spin_turn(conn, deadline_ns, wants_room)) {
		take_sleep_turn(conn, deadline_ns, wants_room);
	}
	return kvb_conn_reap_locked(conn);
}

bool kvb_conn_rest_locked(struct kvb_conn *conn, uint64_t deadline_ns)
{
	struct pollfd fds[] = {
		{.fd = conn->attached.door_fd, .events = POLLIN},
		{.fd = conn->wake_fd, .events = POLLIN},
	};
	uint64_t now_ns = kvb_now_ns();
	uint64_t left_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / KVB_NS_PER_MS + 1 : 0;
	eventfd_t wakes;

	conn->sleeper_wants_room = true;
	pthread_mutex_unlock(&conn->lock);
	(void)poll(fds, KVB_ARRAY_SIZE(fds),
		deadline_ns == UINT64_MAX ? -1 : (int)kvb_min_u64(left_ms, INT32_MAX));
	pthread_mutex_lock(&conn->lock);
	conn->sleeper_wants_room = false;
	if (fds[1].revents)
		(void)eventfd_read(conn->wake_fd, &wakes);
	return fds[0].revents != 0;
}

int kvb_conn_wait_room_locked(struct kvb_conn *conn, uint64_t deadline_ns)
{
	uint32_t head = conn->cq.head;
	int r = kvb_conn_reap_locked(conn);

	/* What was taken just now may have been an orphan's room. The clock is looked at all the same:
	 * others may complete without end. */
	if (r == 0 && head != conn->cq.head)
		return kvb_now_ns() >= deadline_ns ? -ETIMEDOUT : 0;
	return r < 0 ? r : wait_once(conn, deadline_ns, true);
}

int kvb_conn_wait_done_locked(struct kvb_conn *conn, uint32_t index, uint64_t deadline_ns)
{
	int r = kvb_conn_reap_locked(conn);

	while (!conn->requests[index].done && r == 0)
		r = wait_once(conn, deadline_ns, false);
	/* What is done counts, whatever happened since. */
	return conn->requests[index].done ? 0 : r;
}
