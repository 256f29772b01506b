/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbell/kvbell.h - the client library: share KV-cache chunks between processes of one host.
 *
 * Conventions, true for every function here:
 * - It returns 0 or a negative errno value; kvb_strerror() explains the value in kvbell's terms.
 * - Parameters named ret_ are written on success only, unless their description says otherwise.
 * - It is thread-safe and may be called from many threads on one client at once, except
 *   kvb_close(), which must be the last call on its client.
 * - It never writes to stdout or stderr, installs no signal handler and never exits; what it has to
 *   say goes to the log callback of struct kvb_options.
 * - After fork(2) the child may only call kvb_close(); everything else is -ECHILD there.
 *
 * When the server goes away, calls in flight return -ECONNRESET, new calls return -ENOTCONN at
 * once, and a thread of the library attaches again by itself as soon as a server is there.
 */
#ifndef KVBELL_KVBELL_H
#define KVBELL_KVBELL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVB_VERSION_MAJOR 0
#define KVB_VERSION_MINOR 1
#define KVB_VERSION_PATCH 0

#if defined(__GNUC__)
#define KVB_API __attribute__((visibility("default")))
#else
#define KVB_API
#endif

/** A connection to one server, kept over restarts of that server. */
struct kvb_client;

enum kvb_log_level {
	KVB_LOG_ERR = 0,
	KVB_LOG_WARN = 1,
	KVB_LOG_INFO = 2,
	KVB_LOG_DEBUG = 3,
};

/** Called from any thread that is inside the library, and from its internal thread. Must not call
 *  back into the library. `text` is valid during the call only. */
typedef void kvb_log_fn(void *user, enum kvb_log_level level, const char *text);

/** Called from the thread inside kvb_put() or kvb_get(), after each fragment. Must not call back. */
typedef void kvb_progress_fn(void *user, uint64_t done_bytes, uint64_t total_bytes);

/** Flags of struct kvb_options. */
enum kvb_open_flag {
	KVB_OPEN_RING_ONLY =
		1u << 0, /**< maps neither index nor pool; every read asks the server */
	KVB_OPEN_NO_POPULATE = 1u << 1, /**< maps the pool page by page, as it is read */
};

/** All members may be zero; initialise with KVB_OPTIONS_INIT. */
struct kvb_options {
	size_t size;      /**< sizeof(struct kvb_options), for growth of this struct */
	const char *dir;  /**< runtime directory; NULL: kvb_default_dir() */
	const char *name; /**< shown in the server's log and stats; at most 31 bytes are used */
	uint32_t
		timeout_ms; /**< deadline of every call, and of every page of kvb_list(); 0: 30,000 */
	kvb_log_fn *log;    /**< NULL: silent */
	void *log_user;     /**< passed to log */
	kvb_progress_fn *progress; /**< NULL: none */
	void *progress_user;       /**< passed to progress */
	uint32_t spin_us; /**< a call looks for its answer for so long before it sleeps, at most
			    1,000,000; 0: not at all */
	uint32_t
		movers; /**< threads that move the items of tickets, each with a session of its own; at
			    most 64. 0: the threads inside kvb_reap() and kvb_wait() do */
	uint32_t flags; /**< set of enum kvb_open_flag */
};
#define KVB_OPTIONS_INIT                                                                   \
	{                                                                                  \
		sizeof(struct kvb_options), NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, 0, 0 \
	}

/**
 * Connects to the server and waits until it has let this client in.
 *
 * \param options  NULL for all defaults; not kept after the call, nor are its strings
 * \param ret_client  to be given back with kvb_close()
 * \return 0;
 *   -EINVAL an option is out of its range; -ECONNREFUSED no server is listening in the directory; -ENAMETOOLONG the directory's path does
 *   not fit a socket address (107 bytes with "/control.sock"); -EACCES this uid is not let in;
 *   -EUSERS the server has no free session; -EPROTONOSUPPORT server and library have different
 *   protocol versions; -EMFILE, -ENFILE this process cannot take the descriptors; -EAGAIN it cannot make a
 *   thread; -ETIMEDOUT; -ENOMEM;
 *   -EPROTO the server's answer makes no sense.
 */
KVB_API int kvb_open(const struct kvb_options *options, struct kvb_client **ret_client);

/**
 * Ends the session and frees the client. Calls of other threads still inside return -ECONNRESET,
 * and kvb_close() waits for them; no thread may enter a call after it was called. NULL is allowed.
 */
KVB_API void kvb_close(struct kvb_client *client);

/**
 * Stores `len` bytes under `key`, replacing what was there; visible to all when complete, never in
 * part. The caller's buffer is free again on return.
 *
 * \param key  1 to 1024 arbitrary bytes
 * \param len  0 to the size of the pool
 * \return 0;
 *   -EINVAL the key is empty; -ENAMETOOLONG the key is longer than 1024 bytes; -EFBIG the payload can
 *   never fit the pool; -ENOSPC it does not fit now, since everything there is held or the pool is
 *   still being populated; -EDQUOT this client's open transfers hold too many bytes; -ETIMEDOUT;
 *   -ESHUTDOWN the server is draining; -ECONNRESET; -ENOTCONN; -ECHILD.
 */
KVB_API int kvb_put(
	struct kvb_client *client, const void *key, size_t key_len, const void *data, size_t len);

/**
 * As kvb_put(), but leaves alone what is there. For an object that is there already no payload is moved,
 * or, when the server has to be asked, no more than the first fragment.
 *
 * \return also -EEXIST: an object was there, or came to be there meanwhile.
 */
KVB_API int kvb_put_if_absent(
	struct kvb_client *client, const void *key, size_t key_len, const void *data, size_t len);

/**
 * Copies the object under `key` into `buffer`.
 *
 * \param capacity  bytes in buffer
 * \param ret_len  the object's length; also written with -EMSGSIZE; may be NULL
 * \return 0;
 *   -ENOENT no such key (the buffer is untouched); -EMSGSIZE the object is longer than `capacity` (the
 *   buffer is untouched); and as kvb_put(). On any other error the buffer's content is undefined.
 */
KVB_API int kvb_get(struct kvb_client *client, const void *key, size_t key_len, void *buffer,
	size_t capacity, size_t *ret_len);

/**
 * Tells whether an object is there. It may be gone by the time of the next call.
 *
 * \param ret_len  the object's length; may be NULL
 * \return 0 it is; -ENOENT it is not; other errors as kvb_put().
 */
KVB_API int kvb_exists(struct kvb_client *client, const void *key, size_t key_len, size_t *ret_len);

/** Removes an object. Readers that already have it keep it. \return 0; -ENOENT; as kvb_put(). */
KVB_API int kvb_delete(struct kvb_client *client, const void *key, size_t key_len);

/** One empty request through the ring and back: proves that a worker serves this session. */
KVB_API int kvb_ping(struct kvb_client *client);

/** The same through the ZMQ control socket. \return also -EPERM: only the server's uid may. */
KVB_API int kvb_ping_control(struct kvb_client *client);

/* --------------------------------------------------------------------------------- zero copy */

/**
 * An object that is held for reading: its bytes stay where and as they are until kvb_release(), also
 * when it is replaced, deleted or evicted meanwhile, and when the server goes away. Members are the
 * library's.
 */
struct kvb_lease {
	const void *data;
	size_t length;
	void *owner;
	uint32_t cell;
	uint32_t process;
};

/** A key in a list. */
struct kvb_key {
	const void *data;
	size_t len;
};

/**
 * Holds the object under `key` for reading. With a server of the same user, or one that trusts this one,
 * that is a few loads and stores, and no message; else the bytes are copied into memory of this process.
 *
 * \param ret_lease  to be given back with kvb_release(), by any thread, also after kvb_close()
 * \return 0; -ENOENT; -ENOBUFS this client holds as many objects as the server allows (--lease-cells);
 *   -ENOMEM; other errors as kvb_get().
 */
KVB_API int kvb_acquire(
	struct kvb_client *client, const void *key, size_t key_len, struct kvb_lease *ret_lease);

/** The object's bytes, to be read only. `ret_len` may be NULL. NULL only when there are none. */
KVB_API const void *kvb_view(const struct kvb_lease *lease, size_t *ret_len);

/** Gives the object back, once; then the lease is all zeros, which is allowed here as well. In a forked
 * child a lease of the parent's is zeroed and stays the parent's; its bytes are not there. */
KVB_API void kvb_release(struct kvb_lease *lease);

/**
 * How many keys of a list, from its start, have an object: the length of the longest cached prefix.
 *
 * \param ret_leases  NULL, or room for n: each object found is held, as by kvb_acquire(), so that it is
 *   still there when it is read; the first *ret_n are to be given back
 * \return 0, also for *ret_n = 0; -EINVAL; -ENAMETOOLONG; -ENOBUFS; other errors as kvb_get(), with
 *   nothing held.
 */
KVB_API int kvb_prefix(struct kvb_client *client, const struct kvb_key *keys, size_t n,
	struct kvb_lease *ret_leases, size_t *ret_n);

/* ---------------------------------------------------------------------------------------- tickets */

/**
 * One object of a batch. The array, the keys and the payload memory belong to the library from
 * kvb_submit_...() until the ticket's completion was returned by kvb_reap() or kvb_wait(), or
 * kvb_close() has returned. The items of a batch may differ in size, and be empty.
 */
struct kvb_item {
	const void *key; /**< as in kvb_put() */
	size_t key_len;
	const void *data; /**< put: the payload */
	void *buffer;     /**< get: where to copy it */
	size_t size;      /**< put: bytes of data; get: room in buffer; else not used */
	int result;       /**< written: what the blocking call would have returned */
	size_t length; /**< written: get, exists: the object's length, also with -EMSGSIZE; else 0 */
};

/** A ticket that has come to its end. */
struct kvb_completion {
	uint64_t ticket;
	void *user;    /**< as submitted */
	int result;    /**< 0; or that of the first item, in the order of the array, that failed */
	size_t failed; /**< items with a result other than 0 */
};

/** For kvb_submit_put(): each item as kvb_put_if_absent(). */
#define KVB_PUT_IF_ABSENT 1u

/**
 * Submits a batch, and returns without waiting for anything. Items are moved one by one as there is room,
 * however many there are; batches submitted at the same time are moved beside one another and in no
 * order. Each ticket completes exactly once, at the latest soon after the client's timeout_ms have
 * passed: what is not done by then has the result -ETIMEDOUT. When the server is away or goes away the
 * items have the results -ENOTCONN or -ECONNRESET.
 *
 * \param items  see struct kvb_item
 * \param user  returned in the completion, not interpreted
 * \param ret_ticket  a number that is never used twice. With movers, or other threads that reap, it may
 *   have completed when this returns
 * \return 0; -EINVAL no items for n > 0, or an unknown flag; -ENOMEM; -EAGAIN no thread can be made;
 *   -ECONNRESET the client is being closed; -ECHILD.
 */
KVB_API int kvb_submit_put(struct kvb_client *client, struct kvb_item *items, size_t n,
	uint32_t flags, void *user, uint64_t *ret_ticket);
KVB_API int kvb_submit_get(struct kvb_client *client, struct kvb_item *items, size_t n, void *user,
	uint64_t *ret_ticket);
KVB_API int kvb_submit_exists(struct kvb_client *client, struct kvb_item *items, size_t n,
	void *user, uint64_t *ret_ticket);
KVB_API int kvb_submit_delete(struct kvb_client *client, struct kvb_item *items, size_t n,
	void *user, uint64_t *ret_ticket);

/**
 * A descriptor to poll for POLLIN: then kvb_reap() has something to do. Its number stays the same until
 * kvb_close(), whatever becomes of the server. Only for poll, select and epoll: not to be read, written
 * or closed.
 *
 * \return the descriptor; -ECHILD; -ECONNRESET the client is being closed.
 */
KVB_API int kvb_event_fd(struct kvb_client *client);

/**
 * Takes completions, and without movers moves what can be moved without waiting. Never waits.
 *
 * \param max  1 or more
 * \return how many were written, 0 included; -EINVAL; -ECHILD; -ECONNRESET the client is being closed.
 */
KVB_API int kvb_reap(struct kvb_client *client, struct kvb_completion *ret_completions, int max);

/**
 * Waits for one ticket, which kvb_reap() in other threads leaves alone meanwhile.
 *
 * \param timeout_ms  0: as long as it takes, which is the client's timeout_ms and a little more
 * \return 0; -ETIMEDOUT the ticket is still to be waited for or reaped; -ENOENT no such ticket, or it was
 *   reaped; -EBUSY another thread waits for it; -ECONNRESET the client is being closed; -ECHILD.
 */
KVB_API int kvb_wait(struct kvb_client *client, uint64_t ticket, uint32_t timeout_ms,
	struct kvb_completion *ret_completion);

/* ------------------------------------------------------------------------------- server and control */

/** What the server said when it let this client in. */
struct kvb_info {
	char boot_id[33];     /**< hexadecimal; differs at every start of the server */
	uint64_t session;     /**< as in the server's log */
	const char *kind;     /**< "own", "trusted" or "isolated"; static */
	uint64_t payload_max; /**< bytes: the pool's size */
	uint64_t staging_bytes;
	uint32_t fragment_bytes;
	uint32_t credit;       /**< most ring requests in flight */
	uint64_t attaches;     /**< how often this client was let in, the first time included */
	uint64_t missed_wakes; /**< completions found only by a re-check; stays 0 */
	const char *reads;     /**< "local": without asking the server; "ring"; static */
};

/** \return 0; -ENOTCONN. */
KVB_API int kvb_get_info(struct kvb_client *client, struct kvb_info *ret_info);

/** One statistic of the server. `text` is NULL when the value is a number. Valid during the call. */
struct kvb_stat {
	const char *name; /**< dotted, such as "pool.used_bytes" */
	uint64_t value;
	const char *text;
};
/** A negative return ends the iteration and is returned to the caller. */
typedef int kvb_stat_fn(void *user, const struct kvb_stat *stat);

/** Calls `fn` once per statistic. Works for every kind of client. */
KVB_API int kvb_stats(struct kvb_client *client, kvb_stat_fn *fn, void *user);

/** One stored object. The key is not zero-terminated. Valid during the call. */
struct kvb_entry {
	const void *key;
	size_t key_len;
	uint64_t length; /**< bytes of payload */
};
/** A negative return ends the iteration and is returned to the caller. */
typedef int kvb_entry_fn(void *user, const struct kvb_entry *entry);

/**
 * Calls `fn` for each object, in no order. An object that is there all the time is seen exactly
 * once; one that comes or goes meanwhile may be seen or not.
 *
 * \return 0; -EPERM this client is not of the server's uid; -ECONNRESET; -ENOTCONN; -ETIMEDOUT.
 */
KVB_API int kvb_list(struct kvb_client *client, kvb_entry_fn *fn, void *user);

/** The answer to kvb_call(). */
struct kvb_reply {
	void *body; /**< one MessagePack object; NULL with an error */
	size_t size;
	char text[192]; /**< with an error of the server: what it said about it; else "" */
};

/**
 * Calls a handler that the server's program has registered (kvbell/server.h), and waits for its
 * answer. Many threads may be inside at once; their calls do not wait for one another.
 *
 * \param type  1024 (KVB_MSG_USER) to 65535
 * \param body  one MessagePack object of `size` bytes, 262,144 at most
 * \param timeout_ms  0: the client's. A call that times out may have been done, or still be done
 * \param ret_reply  always written; to be given back with kvb_reply_free(). NULL: the answer is dropped
 * \return 0; the handler's own negative errno; and
 *   -EINVAL type or body; -EMSGSIZE the body is too long; -EOPNOTSUPP there is no handler; -EAGAIN as many calls
 *   wait as the server's queue holds; -ETIMEDOUT here or on the server; -ENODATA, -EBADMSG, -EIO the handler
 *   gave no reply, two, or an impossible status; -ESHUTDOWN; -EPERM this client is not of the server's uid;
 *   -ECONNRESET; -ENOTCONN; -ENOMEM; -EPROTO.
 */
KVB_API int kvb_call(struct kvb_client *client, uint16_t type, const void *body, size_t size,
	uint32_t timeout_ms, struct kvb_reply *ret_reply);

/**
 * As kvb_call(), without waiting: the answer, or the error, comes with the ticket's completion.
 *
 * \param body  copied
 * \param reply  the library's until then, as struct kvb_item; to be given back with kvb_reply_free()
 * \return 0; -EINVAL; -EMSGSIZE; -ENOMEM; -ECONNRESET the client is being closed; -ECHILD. All else is
 *   the completion's result.
 */
KVB_API int kvb_submit_call(struct kvb_client *client, uint16_t type, const void *body, size_t size,
	uint32_t timeout_ms, struct kvb_reply *reply, void *user, uint64_t *ret_ticket);

/** Frees the body. A reply of zeroes, or one freed before, is allowed. */
KVB_API void kvb_reply_free(struct kvb_reply *reply);

/** Text for a negative errno of this library: what happened and what helps. Static, never NULL. */
KVB_API const char *kvb_strerror(int error);

/** "0.1.0": the version of the library that runs, not of this header. */
KVB_API const char *kvb_version(void);

/**
 * The runtime directory used when none is given: $KVBELL_DIR, else $XDG_RUNTIME_DIR/kvbell, else
 * /run/kvbell.
 *
 * \return 0; -ENAMETOOLONG.
 */
KVB_API int kvb_default_dir(char *ret_dir, size_t size);

#ifdef __cplusplus
}
#endif
#endif /* KVBELL_KVBELL_H */
