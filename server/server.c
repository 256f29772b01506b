/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.c - puts the parts together, and takes them apart when the start fails.
 *
 * Runs in the thread that starts and stops the server; the control thread takes everything apart
 * that has served clients (drain.c). It must never free what a thread of ours may still touch: a
 * server that is stuck is not freed.
 */
#include "server/server.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include "server/builtin.h"
#include "server/hook.h"
#include "shm/atomic.h"
#include "shm/dir.h"
#include "shm/fd.h"
#include "shm/threads.h"
#include "shm/util.h"

kvb_hook_fn *kvb_hook_installed;

/* Extents are whole pages; huge pages come later. */
#define EXTENT_ALIGNMENT 4096u
#define VISIT_REQUESTS   16u

void kvb_server_notify(struct kvb_server *server)
{
	/* Full counts as rung. */
	(void)eventfd_write(server->output_fd, 1);
}

bool kvb_server_is_draining(struct kvb_server *server)
{
	/* Pairs with the release store in drain.c. */
	return kvb_load_acquire(&server->draining);
}

void kvb_server_set_start_result(struct kvb_server *server, int result)
{
	pthread_mutex_lock(&server->state_lock);
	server->start_result = result;
	pthread_cond_broadcast(&server->state_changed);
	pthread_mutex_unlock(&server->state_lock);
}

void kvb_server_set_stop_result(struct kvb_server *server, int result)
{
	pthread_mutex_lock(&server->state_lock);
	server->stop_result = result;
	/* Under the lock, so that a waiter who takes the result takes this along. */
	(void)eventfd_write(server->stop_fd, 1);
	pthread_cond_broadcast(&server->state_changed);
	pthread_mutex_unlock(&server->state_lock);
}

static int make_store(struct kvb_server *server)
{
	const struct kvb_server_options *options = &server->options;
	struct kvb_store_config store = {
		.pool = server->pool.segment.base,
		.pool_bytes = options->pool_bytes,
		.objects_max = options->objects_max,
		.alignment = EXTENT_ALIGNMENT,
		.low_percent = options->low_percent,
		.high_percent = options->high_percent,
	};
	int r;

	if (getrandom(&store.hash_seed, sizeof(store.hash_seed), 0) !=
		(ssize_t)sizeof(store.hash_seed))
		return -EIO;
	memcpy(store.boot_id, server->boot_id, KVB_ID_BYTES);
	r = kvb_store_new(&store, &server->store);
	return r < 0 ? r : kvb_store_start_maintenance(server->store);
}

static int start_control(struct kvb_server *server)
{
	int r = kvb_thread_start(&server->control_thread, "kvb-control", kvb_control_main, server);

	if (r < 0)
		return r;
	server->control_started = true;
	pthread_mutex_lock(&server->state_lock);
	while (server->start_result == 1)
		pthread_cond_wait(&server->state_changed, &server->state_lock);
	r = server->start_result;
	pthread_mutex_unlock(&server->state_lock);
	return r;
}

static int make_identity(struct kvb_server *server)
{
	if (getrandom(server->boot_id, sizeof(server->boot_id), 0) !=
		(ssize_t)sizeof(server->boot_id))
		return -EIO;
	server->output_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	server->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return server->output_fd < 0 || server->stop_fd < 0 ? -errno : 0;
}

/* Each step is undone by kvb_server_free(), whether it was reached or not. */
static int start_parts(struct kvb_server *server)
{
	const struct kvb_server_options *options = &server->options;
	int r = make_identity(server);

	if (r == 0)
		r = kvb_rundir_open(&server->rundir, options->dir, kvb_door_open_to_others(options),
			options->start_wait_ms, options->cancel_fd, &server->log);
	if (r == 0)
		r = kvb_life_new(&server->life, server->boot_id, server->rundir.lock_fd);
	if (r == 0)
		r = kvb_pool_new(&server->pool, server);
	if (r == 0)
		r = make_store(server);
	if (r == 0)
		r = kvb_sessions_new(&server->sessions, server, options->sessions_max);
	if (r == 0)
		r = kvb_watchdog_start(&server->watchdog, options->watchdog_signal);
	if (r == 0)
		r = kvb_pool_start(&server->pool, server);
	if (r == 0)
		r = kvb_workers_start(&server->workers, server);
	if (r == 0)
		r = kvb_handler_pools_start(&server->handler_pools);
	if (r == 0)
		r = start_control(server);
	return r;
}

/* Everything that kvb_server_free() may be called on. */
static struct kvb_server *server_alloc(void)
{
	struct kvb_server *server = calloc(1, sizeof(*server));

	if (!server)
		return NULL;
	server->output_fd = server->stop_fd = server->life.fd = server->rundir.lock_fd = -1;
	server->door.listen_fd = server->door.epoll_fd = -1;
	server->pool.segment = (struct kvb_segment)KVB_SEGMENT_NONE;
	server->start_result = server->stop_result = 1;
	server->visit_requests = VISIT_REQUESTS;
	pthread_mutex_init(&server->state_lock, NULL);
	kvb_cond_init(&server->state_changed);
	kvb_handler_pools_init(&server->handler_pools, server);
	kvb_inflight_init(&server->inflight);
	kvb_outboxes_init(&server->outboxes);
	return server;
}

/* The directory's name is kept, so that the caller may let go of his. */
static int copy_options(struct kvb_server *server, const struct kvb_server_options *options)
{
	struct kvb_server_options *mine = &server->options;
	int n;

	kvb_server_options_init(mine, sizeof(*mine));
	if (options) {
		if (options->size < offsetof(struct kvb_server_options, log))
			return -EINVAL;
		memcpy(mine, options, kvb_min_u64(options->size, sizeof(*mine)));
	}
	server->log = mine->log;
	if (mine->dir) {
		n = snprintf(server->dir, sizeof(server->dir), "%s", mine->dir);
		if (n < 0 || (size_t)n >= sizeof(server->dir)) {
			kvb_log(&server->log, KVB_LOG_ERR,
				"the runtime directory's path is too long");
			return -ENAMETOOLONG;
		}
	} else if (kvb_runtime_dir(server->dir, sizeof(server->dir)) < 0) {
		kvb_log(&server->log, KVB_LOG_ERR,
			"$KVBELL_DIR or $XDG_RUNTIME_DIR is too long for a socket's path; name a "
			"directory (--dir)");
		return -ENAMETOOLONG;
	}
	mine->dir = server->dir;
	return kvb_options_check(mine);
}

int kvb_server_new(const struct kvb_server_options *options, struct kvb_server **ret_server)
{
	struct kvb_server *server = server_alloc();
	int r;

	if (!server)
		return -ENOMEM;
	r = copy_options(server, options);
	if (r == 0)
		r = kvb_builtins_register(server);
	if (r < 0) {
		kvb_server_free(server);
		return r;
	}
	*ret_server = server;
	return 0;
}

int kvb_server_start(struct kvb_server *server)
{
	int r;

	if (server->started)
		return -EBUSY;
	server->started = true;
	server->start_ns = kvb_now_ns();
	r = kvb_options_check_files(&server->options);
	if (r < 0)
		return r;
	kvb_numa_probe(&server->numa);
	if (!server->numa.available)
		kvb_log(&server->log, KVB_LOG_WARN, "memory placement is off: %s",
			server->numa.why);
	r = start_parts(server);
	if (r < 0 && r != -EINTR)
		kvb_log(&server->log, KVB_LOG_ERR, "the server does not start: %s", strerror(-r));
	return r;
}

void kvb_server_stop_begin(struct kvb_server *server)
{
	/* Pairs with the acquire load in drain.c. */
	kvb_store_release(&server->stop, 1u);
	kvb_server_notify(server);
}

void kvb_server_fail(struct kvb_server *server, int error)
{
	kvb_store_relaxed(&server->fault, error);
	kvb_server_stop_begin(server);
}

int kvb_server_stop_fd(struct kvb_server *server)
{
	return server->stop_fd;
}

int kvb_server_stop_wait(struct kvb_server *server)
{
	eventfd_t value;
	int result;

	pthread_mutex_lock(&server->state_lock);
	while (server->stop_result == 1)
		pthread_cond_wait(&server->state_changed, &server->state_lock);
	result = server->stop_result;
	if (result < 0) {
		/* The next wait is for the next word of the control thread. */
		server->stop_result = 1;
		(void)eventfd_read(server->stop_fd, &value);
	}
	pthread_mutex_unlock(&server->state_lock);
	return result;
}

void kvb_server_free(struct kvb_server *server)
{
	if (!server)
		return;
	if (server->control_started)
		pthread_join(server->control_thread, NULL);
	kvb_workers_stop(&server->workers);
	kvb_workers_free(&server->workers);
	kvb_handler_pools_free(&server->handler_pools);
	kvb_handlers_free(&server->handlers);
	kvb_inflight_free(&server->inflight);
	kvb_outboxes_clear(server);
	kvb_pool_stop(&server->pool);
	kvb_store_free(server->store);
	kvb_pool_free(&server->pool);
	kvb_watchdog_stop(&server->watchdog);
	kvb_sessions_free(&server->sessions);
	kvb_life_free(&server->life);
	kvb_rundir_close(&server->rundir);
	kvb_fd_close(&server->output_fd);
	kvb_fd_close(&server->stop_fd);
	pthread_cond_destroy(&server->state_changed);
	pthread_mutex_destroy(&server->state_lock);
	free(server);
}
