/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbell/server.h - a kvbell server inside your own program, with handlers for messages of your
 * own.
 *
 * Life of a server: kvb_server_new(), any number of kvb_server_add_pool() and
 * kvb_server_handle_*(), kvb_server_start(); later kvb_server_stop_begin(), kvb_server_stop_wait()
 * until it returns 0, kvb_server_free(). Clients reach a handler with kvb_call() of kvbell.h, or
 * with the bare protocol.
 *
 * Conventions, true for every function here:
 * - It returns 0 or a negative errno value; what an operator should know goes to options.log.
 * - Parameters named ret_ are written on success only.
 * - Where nothing else is said, it may be called from any thread, by one thread at a time per server.
 * - The server makes threads of its own ("kvb-control", "kvb-worker-0", ...) with all signals blocked
 *   but one real-time signal, options.watchdog_signal, whose handler it installs: a program that uses
 *   that signal chooses another. It seeds rand(3), from which libzmq draws. It never writes to stdout
 *   or stderr and never exits.
 *
 * What kvbelld does beyond this, and an embedding program has to decide for itself: it raises the
 * soft limit of open files, and makes itself undumpable, since /proc/PID/mem goes around the seals
 * that keep clients from writing into the pool.
 */
#ifndef KVBELL_SERVER_H
#define KVBELL_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvbell/kvbell.h>
#include <kvbell/protocol.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A server: one runtime directory, one pool of payload memory. */
struct kvb_server;

/* ------------------------------------------------------------------------------------ options */

/** Most uids or gids in one list. */
#define KVB_IDS_MAX 64u

/** Uids or gids. */
struct kvb_id_list {
	uint32_t ids[KVB_IDS_MAX];
	uint32_t count;
};

/** Where the log goes. */
struct kvb_log {
	enum kvb_log_level level; /**< most detailed level that is passed on */
	kvb_log_fn *fn;           /**< NULL: nowhere. Must be thread-safe */
	void *user;               /**< passed to fn */
};

/** Initialise with kvb_server_options_init(), then change what you need. */
struct kvb_server_options {
	size_t size;            /**< set by kvb_server_options_init() */
	const char *dir;        /**< runtime directory; NULL: kvb_default_dir() */
	uint64_t pool_bytes;    /**< payload memory; at least 1 MiB */
	uint64_t staging_bytes; /**< payload area of each session; two fragments to 4 GiB */
	uint32_t
		fragment_bytes; /**< most payload in one request; 4 KiB to 64 MiB, times 128 bytes */
	uint32_t ring_entries;  /**< requests in flight per session; power of two, 8 to 4096 */
	uint32_t sessions_max;  /**< sessions at a time; 1 to 16384 */
	uint32_t objects_max;   /**< stored objects; 0: by the pool's size */
	uint64_t open_max;      /**< bytes in unfinished puts of one session; 0: half the pool */
	uint32_t workers;       /**< threads that move payload, 1 to 256; 0: by the CPUs */
	uint32_t spin_us; /**< a session stays awake for so long after a request; 0: not at all */
	uint32_t low_percent;         /**< eviction goes on until the pool is this full */
	uint32_t high_percent;        /**< eviction begins when the pool is this full */
	uint32_t transfer_timeout_ms; /**< a transfer without progress is ended; 100 or more */
	uint32_t drain_timeout_ms;    /**< how long work in flight may take at the stop */
	uint32_t start_wait_ms;       /**< for memory and lock of a server that has just died */
	bool populate_require; /**< memory that cannot be had ends the server, not just the rest */
	struct kvb_id_list trust_uids; /**< may use the ring besides the server's own uid */
	struct kvb_id_list trust_gids;
	struct kvb_id_list allow_uids; /**< the same, and see payload in their own staging only */
	struct kvb_id_list allow_gids;
	uint32_t lease_cells; /**< objects that one client may hold for reading; 8 to 65536 */
	int watchdog_signal;  /**< 0: SIGRTMIN + 7 */
	int cancel_fd;        /**< readable: kvb_server_start() gives up with -EINTR; -1: none */
	struct kvb_log log;
};

/** Fills in the defaults. `size` is sizeof(struct kvb_server_options). */
KVB_API void kvb_server_options_init(struct kvb_server_options *options, size_t size);

/* --------------------------------------------------------------------------------------- life */

/**
 * Makes a server that does nothing yet.
 *
 * \param options  NULL for all defaults; copied. `dir` is copied too, the log's user is not
 * \return 0; -EINVAL an option is out of range, and the log names it; -ENAMETOOLONG; -ENOMEM.
 */
KVB_API int kvb_server_new(
	const struct kvb_server_options *options, struct kvb_server **ret_server);

/**
 * Starts all threads and returns when clients are let in. Call it once. After an error only
 * kvb_server_free() is allowed.
 *
 * \return 0;
 *   -EBUSY another server holds the directory, or this one was started before; -ENOMEM, -ENOSPC there is not enough memory;
 *   -EMFILE the limit of open files is too low for sessions_max (libzmq would abort the process when it
 *   meets it): raise it, or lower sessions_max; -EACCES, -EPERM the directory; -EINTR cancel_fd.
 */
KVB_API int kvb_server_start(struct kvb_server *server);

/**
 * Begins the drain and returns at once: nobody new is let in, requests that open new work and calls
 * of your handlers get -ESHUTDOWN, what was accepted goes on. Any thread, as often as you like;
 * async-signal-safe.
 */
KVB_API void kvb_server_stop_begin(struct kvb_server *server);

/**
 * Waits until the server has stopped.
 *
 * \return 0: no handler and no worker runs any more, clients were told and their descriptors are closed, and the
 *   sockets are gone; what is left, the directory's lock among it, goes with kvb_server_free();
 *   -ETIMEDOUT: at the drain deadline something was still at work, such as a handler that does not
 *   return. It is named in the log, and everything it might touch stays open. Wait again as often as you like:
 *   each wait lasts about drain_timeout_ms.
 */
KVB_API int kvb_server_stop_wait(struct kvb_server *server);

/** A descriptor to poll: readable when kvb_server_stop_wait() would return at once. The server's
 * own. */
KVB_API int kvb_server_stop_fd(struct kvb_server *server);

/**
 * Frees a server that was never started, did not start, or for which kvb_server_stop_wait() has
 * returned 0. Never one that is stuck: its threads still use it. NULL is allowed.
 */
KVB_API void kvb_server_free(struct kvb_server *server);

/* ----------------------------------------------------------------------------------- handlers */

/**
 * One call of a message, on its way through a handler. It belongs to the server and is valid until
 * the handler returns; only the thread that runs the handler may use it.
 */
struct kvb_call;

/**
 * A handler: answers one call.
 *
 * On success it has called kvb_call_reply() exactly once and returns 0. On failure it returns a
 * negative errno, best through kvb_call_fail(), which adds a text; a reply it gave before is
 * forgotten then. The caller gets exactly one answer, whatever the handler does: returning 0
 * without a reply is -ENODATA for the caller, a second kvb_call_reply() is -EBADMSG, a positive
 * return value is -EIO. The status of a caller never tells whether it comes from the handler or the
 * server, so document yours.
 *
 * A SYNC handler runs in the control thread, which serves every control message and lets clients
 * in: it must return within microseconds, must not block, must not wait for anything that this
 * server does. One that takes 100 ms or more is named in the log. A BLOCKING handler runs in a
 * thread of its pool, in parallel with itself; it may block, and use libkvbell on this very server.
 * If it has not returned within its timeout, the caller gets -ETIMEDOUT and whatever it answers
 * later is dropped; the thread stays with it until it returns. Neither may call the functions under
 * "life", except kvb_server_stop_begin(), which both may.
 */
typedef int kvb_handler_fn(struct kvb_call *call, void *user);

enum kvb_pool_kind {
	KVB_POOL_NORMAL = 0,   /**< any thread takes the oldest call */
	KVB_POOL_AFFINITY = 1, /**< all calls of one session run on one thread, in their order */
};

/**
 * Adds a pool of threads for BLOCKING handlers; several handlers may share it. Before
 * kvb_server_start().
 *
 * \param threads  1 to 256
 * \param queue_max  most calls waiting for a thread, 1 to 65536; one more is -EAGAIN for its caller,
 *   at once. In an affinity pool each thread has a queue of its own, of this length
 * \param ret_pool  its number, for kvb_server_handle_blocking()
 * \return 0; -EINVAL; -EBUSY the server has been started; -ENOMEM.
 */
KVB_API int kvb_server_add_pool(struct kvb_server *server, enum kvb_pool_kind kind,
	uint32_t threads, uint32_t queue_max, uint32_t *ret_pool);

/**
 * Registers a handler that runs in the control thread. Before kvb_server_start().
 *
 * \param type  KVB_MSG_USER to 65535
 * \param user  passed to fn; must stay valid until kvb_server_stop_wait() has returned 0
 * \return 0; -EINVAL the type is reserved; -EEXIST it has a handler; -EBUSY the server has been started;
 *   -ENOMEM.
 */
KVB_API int kvb_server_handle_sync(
	struct kvb_server *server, uint16_t type, kvb_handler_fn *fn, void *user);

/**
 * Registers a handler that runs in a pool. Before kvb_server_start().
 *
 * \param pool  from kvb_server_add_pool()
 * \param timeout_ms  from the arrival of a call, waiting in the queue included; 0: 30,000
 * \return as kvb_server_handle_sync(); -ENOENT there is no such pool.
 */
KVB_API int kvb_server_handle_blocking(struct kvb_server *server, uint16_t type, uint32_t pool,
	uint32_t timeout_ms, kvb_handler_fn *fn, void *user);

/** The message's type. */
KVB_API uint16_t kvb_call_type(const struct kvb_call *call);
/** The caller's session, as in the server's log. Differs for each attachment of a client. */
KVB_API uint64_t kvb_call_session(const struct kvb_call *call);
/** The name that the client gave itself; "" when none. Valid during the call. */
KVB_API const char *kvb_call_client_name(const struct kvb_call *call);
/** The request's body: one MessagePack object, checked by the server. Valid during the call. */
KVB_API const void *kvb_call_body(const struct kvb_call *call, size_t *ret_size);
/** True when nobody waits for the answer any more: the timeout has passed, or the client has gone. */
KVB_API bool kvb_call_abandoned(const struct kvb_call *call);

/**
 * Answers with one MessagePack object, which is copied.
 *
 * \param size  1 to KVB_MSG_BODY_MAX
 * \return 0; -EMSGSIZE too long; -EPROTO not one MessagePack object; -ENOMEM; -EALREADY the call has a
 *   reply already, and its caller will get -EBADMSG. After the first three the call has no reply yet.
 */
KVB_API int kvb_call_reply(struct kvb_call *call, const void *body, size_t size);

/**
 * Sets the text that goes with an error, at most 191 bytes of it, and returns `error`, so that a
 * handler ends with `return kvb_call_fail(call, -ENOENT, "no model \"%s\"", name);`.
 */
KVB_API int kvb_call_fail(struct kvb_call *call, int error, const char *format, ...)
#if defined(__GNUC__)
	__attribute__((format(printf, 3, 4)))
#endif
	;

#ifdef __cplusplus
}
#endif
#endif /* KVBELL_SERVER_H */
