/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - everything the server holds for one client, from WELCOME to FREED.
 *
 * Slots are never freed, only re-generated: whoever holds a stale (slot, generation) finds a slot
 * that says no. Three owners share a session:
 *
 *   control thread    state, descriptors, what is known of the peer; creates and ends sessions
 *   serving worker    (the one that took it from the run queue) rings and transfers, and nobody else
 *   anybody           the atomic words: life, run, orders, closed, failure
 */
#ifndef KVB_SERVER_SESSION_H
#define KVB_SERVER_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvbell/protocol.h"
#include "server/call.h"
#include "server/portable.h"
#include "server/store.h"
#include "shm/ring.h"
#include "shm/segment.h"

struct kvb_group;
struct kvb_server;

#define KVB_TRANSFERS 16u

/* Control's view of a session's life. */
enum kvb_session_phase {
	KVB_PHASE_FREE = 0,
	KVB_PHASE_ACTIVE,
	KVB_PHASE_DRAINING, /* waits until no worker has work of it */
	KVB_PHASE_QUIESCED, /* out of the wait sets; waits for the grace period */
	KVB_PHASE_REVOKED, /* eventfds and segment are gone; waits for the client's end of the door */
	KVB_PHASE_QUARANTINED, /* a deadline passed with work in flight: as DRAINING, but told */
};

/* Where a session stands with the workers; see worker.c. */
enum kvb_run {
	KVB_RUN_IDLE = 0,
	KVB_RUN_QUEUED,
	KVB_RUN_RUNNING,
	KVB_RUN_AGAIN,
};

/* What control asks of the worker that serves the session next. */
enum kvb_order {
	KVB_ORDER_SWEEP =
		1u << 0, /* end transfers without progress, after what lies in the queue */
	KVB_ORDER_DRAIN = 1u << 1, /* finish what is open, then close */
	KVB_ORDER_ABORT = 1u << 2, /* serve what lies in the queue, end every transfer, close */
	KVB_ORDER_END = 1u << 3,   /* the client is gone or broken: end every transfer, close */
};

struct kvb_transfer {
	uint32_t id; /* 0: free */
	bool is_put;
	bool if_absent;            /* put: loses to an object that came meanwhile */
	bool portable;             /* the carrier that opened it */
	struct kvb_object *object; /* reserved (put) or held (get) */
	uint64_t total;
	uint64_t next; /* offset at which the next fragment must start */
	uint64_t progress_ns;
};

struct kvb_session {
	/* --- fixed for the slot --- */
	struct kvb_server *server;
	uint32_t slot;

	/* --- atomic words --- */
	uint64_t life;    /* generation in the high half, references in the low */
	uint32_t run;     /* enum kvb_run */
	uint32_t orders;  /* set of enum kvb_order */
	uint32_t closed;  /* no worker will touch the segment or open anything again */
	uint32_t failing; /* somebody writes failure_text */
	uint32_t failure; /* enum kvb_reason: the client was found broken */
	uint32_t open_transfers;
	uint64_t oldest_progress_ns; /* of open transfers; 0: none are open */
	uint32_t sq_head_seen;       /* index the workers have reached, for the missed-wake scan */

	/* --- run queue link, under the group's lock --- */
	struct kvb_session *run_next;

	/* --- set by control before the session is ACTIVE, constant until it is FREE --- */
	struct kvb_group *group;
	struct kvb_session_header *header;
	uint8_t *staging;
	struct kvb_layout layout;
	enum kvb_client_kind kind;
	uid_t uid;
	gid_t gid;
	pid_t pid; /* 0: in another pid namespace */
	char name[KVB_NAME_BYTES];
	int kick_fd;
	int bell_fd;

	/* --- serving worker --- */
	struct kvb_sq_consumer sq;
	struct kvb_cq_producer cq;
	struct kvb_transfer transfers[KVB_TRANSFERS];
	uint64_t worked_ns;   /* when it last had a request */
	uint64_t open_bytes;  /* of PUT transfers */
	uint32_t orders_seen; /* taken from `orders`, not yet done with */
	uint32_t backlog;     /* most requests that may have lain in the queue before the orders */
	bool portable_next;   /* which carrier has its turn */

	/* --- control appends, the serving worker pops --- */
	struct kvb_portable portable;

	/* --- whoever set `failing` --- */
	char failure_text[KVB_TEXT_BYTES]; /* written before `failure`, read after it */

	/* --- control thread --- */
	enum kvb_session_phase phase;
	struct kvb_segment segment;
	struct kvb_segment leases; /* of a reader; stays until the client's end is gone */
	int door_fd;
	int pidfd;
	bool peer_gone;
	enum kvb_reason reason;
	uint64_t deadline_ns; /* DRAINING: end open transfers after this, then quarantine */
	bool abort_ordered;
	bool failure_told;
	uint64_t grace_id; /* QUIESCED: the grace period it waits for */
	uint8_t token[KVB_ID_BYTES];
	struct kvb_peer control_peer; /* the connection that presented the token */
	uint32_t unserved_tail;       /* missed-wake scan: index seen unserved at the last tick */
	bool unserved;
};

struct kvb_sessions {
	struct kvb_session *slots;
	uint32_t count;
};

int kvb_sessions_new(struct kvb_sessions *sessions, struct kvb_server *server, uint32_t count);
void kvb_sessions_free(struct kvb_sessions *sessions);

static inline uint64_t kvb_session_id(uint32_t slot, uint32_t generation)
{
	return (uint64_t)generation << 32 | slot;
}
uint64_t kvb_session_own_id(struct kvb_session *session);

/* The same session without a reference; NULL when the id is stale. Control thread only. */
struct kvb_session *kvb_session_find(struct kvb_sessions *sessions, uint64_t id);
/* Takes a reference on a session named by id; NULL when it is not that one any more. Any thread. */
struct kvb_session *kvb_session_get(struct kvb_sessions *sessions, uint64_t id);
/* Gives it back; the last one out of a closed session tells control. Any thread. */
void kvb_session_put(struct kvb_session *session);
uint32_t kvb_session_refs(struct kvb_session *session);

/* Says that the client broke the protocol and asks control to end the session. The first failure
 * counts. Serving worker or control. */
void kvb_session_fail(struct kvb_session *session, enum kvb_reason reason, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Control: fills a FREE slot with segment and eventfds. 0; -EUSERS none is free; -ENOMEM; -EMFILE;
 * other -errno. The slot is not yet ACTIVE. */
int kvb_session_create(struct kvb_server *server, struct kvb_session **ret_session);
/* Control: makes the lease cells of a session whose client reads by itself, and lets the store know of
 * them. 0; -ENOMEM; other -errno. */
int kvb_session_make_leases(struct kvb_session *session);
/* Control: forgets the cells, when nobody can read under them any more. As often as you like. */
void kvb_session_drop_leases(struct kvb_session *session);
/* Control: takes back what was created and never became ACTIVE. */
void kvb_session_discard(struct kvb_session *session);
/* Control: closes eventfds and segment. No worker may be able to reach them. */
void kvb_session_revoke_descriptors(struct kvb_session *session);
/* Control: closes the door, raises the generation, frees the slot. */
void kvb_session_release_slot(struct kvb_session *session);

/* Control: true while its client's control messages are served. */
bool kvb_session_is_served(const struct kvb_session *session);

/* Control: the session, if it is served and has attached on this connection; else NULL. */
struct kvb_session *kvb_session_find_attached(
	struct kvb_sessions *sessions, uint64_t id, const struct kvb_peer *peer);

const char *kvb_kind_name(enum kvb_client_kind kind);
const char *kvb_reason_name(enum kvb_reason reason);

#endif /* KVB_SERVER_SESSION_H */
