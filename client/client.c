/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.c - open and close, the current connection, and the internal thread "kvb-door".
 *
 * The internal thread sleeps on the door with all signals blocked. When the server goes, it takes
 * the connection away from new calls, fails those that are inside, and knocks again with growing
 * pauses until it is let in. It must never unmap what a call may still use: references do that
 * (connection.c). Nothing here may run in a forked child but kvb_close(), which leaves the parent's
 * session alone.
 */
#include "client/client.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "client/attach.h"
#include "client/connection.h"
#include "client/hook.h"
#include "client/lane.h"
#include "client/local.h"
#include "client/process.h"
#include "shm/atomic.h"
#include "shm/dir.h"
#include "shm/fd.h"
#include "shm/threads.h"
#include "shm/util.h"

#define TIMEOUT_MS        30000u
#define RECHECK_MS        200u
#define POPULATE_AGAIN_MS 1000
#define BACKOFF_MIN_MS    10u
#define BACKOFF_MAX_MS    500u
/* A killed server's door still takes connections until the kernel gets to it; nobody answers there. */
#define ATTACH_AGAIN_MS 1000u
#define LINE_BYTES      256
#define SPIN_US_MAX     1000000u

#define TEXT_OF(number)  #number
#define TEXT_FOR(number) TEXT_OF(number)

void kvb_client_log(
	const struct kvb_client *client, enum kvb_log_level level, const char *format, ...)
{
	char line[LINE_BYTES];
	va_list args;

	if (!client->log)
		return;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	client->log(client->log_user, level, line);
}

/* ------------------------------------------------------------------------------------ inside and out */

bool kvb_client_is_forked_child(const struct kvb_client *client)
{
	return client->process != kvb_process_number();
}

static int check_locked(struct kvb_client *client)
{
	int r;

	if (!client->conn)
		return -ENOTCONN;
	r = kvb_conn_check(client->conn);
	/* In flight it would be a reset; this call never was. */
	return r == -ECONNRESET ? -ENOTCONN : r;
}

static int enter_locked(struct kvb_client *client, struct kvb_conn **ret_conn)
{
	int r = client->closing ? -ECONNRESET : check_locked(client);

	if (r < 0)
		return r;
	*ret_conn = kvb_conn_ref(client->conn);
	client->inside++;
	return 0;
}

int kvb_client_enter(
	struct kvb_client *client, struct kvb_conn **ret_conn, uint64_t *ret_deadline_ns)
{
	int r;

	if (kvb_client_is_forked_child(client))
		return -ECHILD;
	*ret_deadline_ns = kvb_now_ns() + client->timeout_ms * KVB_NS_PER_MS;
	pthread_mutex_lock(&client->lock);
	r = enter_locked(client, ret_conn);
	pthread_mutex_unlock(&client->lock);
	return r;
}

void kvb_client_leave(struct kvb_client *client, struct kvb_conn *conn)
{
	kvb_conn_unref(conn);
	kvb_client_leave_any(client);
}

int kvb_client_enter_any(struct kvb_client *client)
{
	int r;

	if (kvb_client_is_forked_child(client))
		return -ECHILD;
	pthread_mutex_lock(&client->lock);
	r = client->closing ? -ECONNRESET : 0;
	client->inside += r == 0;
	pthread_mutex_unlock(&client->lock);
	return r;
}

void kvb_client_leave_any(struct kvb_client *client)
{
	pthread_mutex_lock(&client->lock);
	client->inside--;
	if (client->inside == 0)
		pthread_cond_broadcast(&client->left);
	pthread_mutex_unlock(&client->lock);
}

int kvb_client_check(struct kvb_client *client)
{
	int r;

	pthread_mutex_lock(&client->lock);
	r = check_locked(client);
	pthread_mutex_unlock(&client->lock);
	return r;
}

/* --------------------------------------------------------------------------------- the internal thread */

static bool reads_locally(const struct kvb_client *client)
{
	return !(client->flags & KVB_OPEN_RING_ONLY);
}

static bool is_closing(struct kvb_client *client)
{
	bool closing;

	pthread_mutex_lock(&client->lock);
	closing = client->closing;
	pthread_mutex_unlock(&client->lock);
	return closing;
}

/* Maps a part of the pool, so that reads meet no page faults. Returns how long to wait before the next
 * part, in ms. */
static int populate_turn(struct kvb_client *client)
{
	if (kvb_local_populate(client->local))
		return 0;
	/* The server may not have all of its pool yet. */
	return kvb_local_is_populated(client->local) ? -1 : POPULATE_AGAIN_MS;
}

/* Sleeps until the door, another thread, or an answer for nobody in particular comes. */
static void poll_door(struct kvb_client *client, struct kvb_conn *conn)
{
	struct pollfd fds[] = {
		{.fd = conn->attached.door_fd, .events = POLLIN},
		{.fd = client->wake_fd, .events = POLLIN},
		{.fd = -1, .events = POLLIN},
	};
	uint64_t deadline_ns, now_ns = kvb_now_ns();
	eventfd_t wakes;
	int ms = -1;

	kvb_dealer_needs(&conn->dealer, &fds[2].fd, &deadline_ns);
	if (client->local && !(client->flags & KVB_OPEN_NO_POPULATE))
		ms = populate_turn(client);
	/* While anybody waits for an answer the life word is looked at, too. */
	if (deadline_ns != UINT64_MAX && ms != 0)
		ms = deadline_ns <= now_ns
			? 0
			: (int)kvb_min_u64((deadline_ns - now_ns) / KVB_NS_PER_MS + 1, RECHECK_MS);
	if (poll(fds, KVB_ARRAY_SIZE(fds), ms) < 0)
		return;
	if (fds[1].revents)
		(void)eventfd_read(client->wake_fd, &wakes);
	if (fds[0].revents && kvb_door_ended(client, conn->attached.door_fd))
		kvb_conn_fail(conn, -ECONNRESET);
}

/* Waits until the connection is at its end, or the client is. */
static void watch_door(struct kvb_client *client, struct kvb_conn *conn)
{
	while (!is_closing(client) && kvb_conn_check(conn) == 0) {
		poll_door(client, conn);
		kvb_dealer_turn(conn);
	}
}

/* Up to twice as long as asked, so that clients of one server do not knock in step. */
static void pause_or_wake(int wake_fd, uint32_t ms)
{
	struct pollfd fd = {.fd = wake_fd, .events = POLLIN};
	uint32_t random = 0;
	eventfd_t wakes;

	(void)!getrandom(&random, sizeof(random), GRND_NONBLOCK);
	if (poll(&fd, 1, (int)(ms + random % (ms + 1))) > 0)
		(void)eventfd_read(wake_fd, &wakes);
}

int kvb_client_attach(struct kvb_client *client, bool reader, int wake_fd, uint64_t deadline_ns,
	kvb_install_fn *install, void *user)
{
	struct kvb_attached attached;
	struct kvb_conn *conn;
	int r = kvb_attach(client, reader, wake_fd, deadline_ns, &attached);

	if (r < 0)
		return r;
	r = kvb_conn_new(client, &attached, wake_fd, &conn);
	if (r < 0) {
		kvb_attached_free(&attached);
		return r;
	}
	r = install(user, conn);
	if (r < 0)
		kvb_conn_unref(conn);
	return r;
}

bool kvb_client_attach_again(
	struct kvb_client *client, bool reader, int wake_fd, kvb_install_fn *install, void *user)
{
	uint32_t backoff_ms = BACKOFF_MIN_MS;
	int told = 0;

	while (!is_closing(client)) {
		uint64_t deadline_ns = kvb_now_ns() + ATTACH_AGAIN_MS * KVB_NS_PER_MS;
		int r = kvb_client_attach(client, reader, wake_fd, deadline_ns, install, user);
		if (r == 0)
			return true;
		if (r != told && r != -ECANCELED)
			kvb_client_log(client, KVB_LOG_WARN, "cannot attach: %s", kvb_strerror(r));
		told = r;
		/* Nobody else may look at what is queued meanwhile. */
		kvb_tickets_expire(&client->tickets, kvb_now_ns());
		pause_or_wake(wake_fd, backoff_ms);
		/* Somebody woke this thread; the server had no part in it. */
		if (r != -ECANCELED)
			backoff_ms = (uint32_t)kvb_min_u64(2 * backoff_ms, BACKOFF_MAX_MS);
	}
	return false;
}

/* Takes the connection, on success only. 0; -ENOMEM; -EPROTO. */
static int install(void *user, struct kvb_conn *conn)
{
	struct kvb_client *client = user;
	struct kvb_local *local;
	int r = kvb_local_new(conn, &local);

	if (r < 0)
		return r;
	/* Pairs with the acquire load in kvb_local_enter(). */
	kvb_store_release(&client->local, local);
	pthread_mutex_lock(&client->lock);
	client->conn = conn;
	client->attaches++;
	pthread_mutex_unlock(&client->lock);
	kvb_tickets_come_back(&client->tickets);
	return 0;
}

/* Lets nobody read from the connection's maps any more, but for those who hold leases. */
static void retire_local(struct kvb_client *client)
{
	struct kvb_local *local = client->local;

	if (!local)
		return;
	kvb_store_relaxed(&client->local, (struct kvb_local *)NULL);
	kvb_inside_wait(&client->in);
	kvb_local_retire(local);
}

static void detach(struct kvb_client *client)
{
	struct kvb_conn *conn;
	eventfd_t wakes;

	pthread_mutex_lock(&client->lock);
	conn = client->conn;
	client->conn = NULL;
	pthread_mutex_unlock(&client->lock);
	if (!conn)
		return;
	kvb_conn_fail(conn, -ECONNRESET);
	retire_local(client);
	kvb_dealer_end(conn, -ECONNRESET);
	kvb_conn_unref(conn);
	kvb_tickets_go_away(&client->tickets);
	/* Its last wake is not meant for the next attachment; `closing` is looked at again after
	 * this. */
	(void)eventfd_read(client->wake_fd, &wakes);
}

static void *door_main(void *arg)
{
	struct kvb_client *client = arg;

	for (;;) {
		/* Only this thread changes it, so it needs no reference of its own. */
		watch_door(client, client->conn);
		detach(client);
		if (!kvb_client_attach_again(
			    client, reads_locally(client), client->wake_fd, install, client))
			return NULL;
		kvb_client_log(client, KVB_LOG_INFO, "attached again");
		kvb_client_hook(KVB_CLIENT_HOOK_NUDGE);
		kvb_lanes_nudge(client);
	}
}

/* -------------------------------------------------------------------------------------- open and close */

static int copy_options(struct kvb_client *client, const struct kvb_options *options)
{
	size_t size = options ? options->size : 0;
	struct kvb_options all = KVB_OPTIONS_INIT;
	int n;

	/* A program built with an older header knows fewer members. */
	if (options)
		memcpy(&all, options, kvb_min_u64(size, sizeof(all)));
	if (options && size < offsetof(struct kvb_options, timeout_ms))
		return -EINVAL;
	client->timeout_ms = all.timeout_ms ? all.timeout_ms : TIMEOUT_MS;
	if (all.spin_us > SPIN_US_MAX)
		return -EINVAL;
	client->spin_us = all.spin_us;
	if (all.movers > KVB_LANES_MAX)
		return -EINVAL;
	client->n_movers = all.movers;
	if (all.flags & ~(uint32_t)(KVB_OPEN_RING_ONLY | KVB_OPEN_NO_POPULATE))
		return -EINVAL;
	client->flags = all.flags;
	client->log = all.log;
	client->log_user = all.log_user;
	client->progress = all.progress;
	client->progress_user = all.progress_user;
	if (all.name)
		snprintf(client->name, sizeof(client->name), "%s", all.name);
	if (!all.dir)
		return kvb_runtime_dir(client->dir, sizeof(client->dir));
	n = snprintf(client->dir, sizeof(client->dir), "%s", all.dir);
	return n < 0 || (size_t)n >= sizeof(client->dir) ? -ENAMETOOLONG : 0;
}

/* The longest socket's path must fit, or the control socket would fail much later. */
static int check_paths(const struct kvb_client *client)
{
	char path[108];

	return kvb_socket_path(client->dir, KVB_CONTROL_SOCKET, path, sizeof(path));
}

static void client_free(struct kvb_client *client)
{
	kvb_tickets_done(&client->tickets);
	kvb_fd_close(&client->wake_fd);
	free(client);
}

static int client_new(const struct kvb_options *options, struct kvb_client **ret_client)
{
	struct kvb_client *client = calloc(1, sizeof(*client));
	int r;

	if (!client)
		return -ENOMEM;
	kvb_inside_prepare();
	r = kvb_tickets_init(&client->tickets);
	if (r < 0) {
		free(client);
		return r;
	}
	client->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = client->wake_fd < 0 ? -errno : copy_options(client, options);
	if (r == 0)
		r = check_paths(client);
	if (r == 0)
		r = kvb_process_prepare();
	if (r < 0) {
		client_free(client);
		return r;
	}
	client->process = kvb_process_number();
	pthread_mutex_init(&client->lock, NULL);
	kvb_cond_init(&client->left);
	*ret_client = client;
	return 0;
}

static void client_destroy(struct kvb_client *client)
{
	pthread_cond_destroy(&client->tickets.finished);
	pthread_mutex_destroy(&client->tickets.lock);
	pthread_cond_destroy(&client->left);
	pthread_mutex_destroy(&client->lock);
	client_free(client);
}

/* Ends all that is in flight, and lets nobody in any more. */
static void begin_closing(struct kvb_client *client)
{
	/* First, so that whoever waits for a ticket hears that, and not what becomes of it. */
	kvb_tickets_close(&client->tickets);
	pthread_mutex_lock(&client->lock);
	client->closing = true;
	if (client->conn)
		kvb_conn_fail(client->conn, -ECONNRESET);
	pthread_mutex_unlock(&client->lock);
	kvb_lanes_end(client);
}

static int client_start(struct kvb_client *client)
{
	int r = kvb_client_attach(client, reads_locally(client), client->wake_fd,
		kvb_now_ns() + client->timeout_ms * KVB_NS_PER_MS, install, client);

	if (r < 0)
		return r;
	r = kvb_lanes_open(client);
	if (r == 0)
		r = kvb_thread_start(&client->thread, "kvb-door", door_main, client);
	if (r == 0)
		return 0;
	begin_closing(client);
	kvb_lanes_free(client);
	detach(client);
	return r;
}

int kvb_open(const struct kvb_options *options, struct kvb_client **ret_client)
{
	struct kvb_client *client;
	int r = client_new(options, &client);

	if (r < 0)
		return r;
	r = client_start(client);
	if (r < 0) {
		client_destroy(client);
		return r;
	}
	*ret_client = client;
	return 0;
}

/* Threads, and what they held, did not come along into the child. */
static void close_in_child(struct kvb_client *client)
{
	kvb_lanes_free_in_child(client);
	if (client->local)
		kvb_local_free_in_child(client->local);
	if (client->conn)
		kvb_conn_free_in_child(client->conn);
	client_free(client);
}

static void close_in_parent(struct kvb_client *client)
{
	begin_closing(client);
	/* Who reads locally goes on through the ring as one of those below, or not at all. */
	kvb_inside_wait(&client->in);
	pthread_mutex_lock(&client->lock);
	while (client->inside > 0)
		pthread_cond_wait(&client->left, &client->lock);
	pthread_mutex_unlock(&client->lock);
	/* Before the lanes: it wakes them when it is attached again. */
	(void)eventfd_write(client->wake_fd, 1);
	pthread_join(client->thread, NULL);
	kvb_lanes_free(client);
	client_destroy(client);
}

void kvb_close(struct kvb_client *client)
{
	if (!client)
		return;
	if (kvb_client_is_forked_child(client))
		close_in_child(client);
	else
		close_in_parent(client);
}

/* ---------------------------------------------------------------------------------------- information */

static const char *kind_name(uint32_t kind)
{
	switch (kind) {
	case KVB_KIND_OWN:
		return "own";
	case KVB_KIND_TRUSTED:
		return "trusted";
	default:
		return "isolated";
	}
}

int kvb_get_info(struct kvb_client *client, struct kvb_info *ret_info)
{
	const struct kvb_welcome *welcome;
	struct kvb_conn *conn;
	uint64_t deadline_ns;
	int r = kvb_client_enter(client, &conn, &deadline_ns);

	if (r < 0)
		return r;
	welcome = &conn->attached.welcome;
	*ret_info = (struct kvb_info){.session = welcome->session,
		.kind = kind_name(welcome->kind),
		.payload_max = welcome->payload_max,
		.staging_bytes = welcome->staging_bytes,
		.fragment_bytes = welcome->fragment_bytes,
		.credit = welcome->cq_entries,
		.missed_wakes = kvb_load_relaxed(&client->missed_wakes),
		.reads = kvb_load_relaxed(&client->local) ? "local" : "ring"};
	for (unsigned i = 0; i < KVB_ID_BYTES; i++)
		snprintf(ret_info->boot_id + (size_t)2 * i, 3, "%02x", welcome->boot_id[i]);
	pthread_mutex_lock(&client->lock);
	ret_info->attaches = client->attaches;
	pthread_mutex_unlock(&client->lock);
	kvb_client_leave(client, conn);
	return 0;
}

const char *kvb_version(void)
{
	return TEXT_FOR(KVB_VERSION_MAJOR) "." TEXT_FOR(KVB_VERSION_MINOR) "." TEXT_FOR(
		KVB_VERSION_PATCH);
}

int kvb_default_dir(char *ret_dir, size_t size)
{
	return kvb_runtime_dir(ret_dir, size);
}
