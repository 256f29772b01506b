/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - slots, references, descriptors.
 *
 * The control thread creates, revokes and frees; any thread gets and puts references. A descriptor
 * must never be closed here while a reference is out: the control thread calls revoke only after
 * quiescence (drain.c).
 */
#include "server/session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "server/server.h"
#include "shm/atomic.h"
#include "shm/fd.h"
#include "shm/util.h"

/* Entries of the ring that tells what a client has used; what goes beyond is not heard of. */
#define TOUCHES 1024u

int kvb_sessions_new(struct kvb_sessions *sessions, struct kvb_server *server, uint32_t count)
{
	struct kvb_session *slots = calloc(count, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++) {
		slots[i].server = server;
		slots[i].slot = i;
		slots[i].life = (uint64_t)1 << 32;
		slots[i].kick_fd = slots[i].bell_fd = slots[i].door_fd = slots[i].pidfd = -1;
		slots[i].segment = slots[i].leases = (struct kvb_segment)KVB_SEGMENT_NONE;
	}
	*sessions = (struct kvb_sessions){.slots = slots, .count = count};
	return 0;
}

void kvb_sessions_free(struct kvb_sessions *sessions)
{
	for (uint32_t i = 0; i < sessions->count; i++)
		kvb_portable_reset(&sessions->slots[i].portable);
	free(sessions->slots);
	sessions->slots = NULL;
	sessions->count = 0;
}

uint64_t kvb_session_own_id(struct kvb_session *session)
{
	return kvb_session_id(session->slot, (uint32_t)(kvb_load_relaxed(&session->life) >> 32));
}

struct kvb_session *kvb_session_find(struct kvb_sessions *sessions, uint64_t id)
{
	struct kvb_session *session;

	if ((uint32_t)id >= sessions->count)
		return NULL;
	session = &sessions->slots[(uint32_t)id];
	return kvb_session_own_id(session) == id && session->phase != KVB_PHASE_FREE ? session
										     : NULL;
}

struct kvb_session *kvb_session_get(struct kvb_sessions *sessions, uint64_t id)
{
	uint32_t slot = (uint32_t)id;
	struct kvb_session *session;
	uint64_t life;

	if (slot >= sessions->count)
		return NULL;
	session = &sessions->slots[slot];
	life = kvb_load_relaxed(&session->life);
	do {
		if (life >> 32 != id >> 32)
			return NULL;
		/* Pairs with the exchange in kvb_session_release_slot(): the slot is either still
		 * this generation and now held, or was given up before. */
	} while (!kvb_compare_exchange(&session->life, &life, life + 1));
	return session;
}

uint32_t kvb_session_refs(struct kvb_session *session)
{
	/* Pairs with the release half of kvb_session_put(): a count of zero means that everything
	 * the holders did has happened. */
	return (uint32_t)kvb_load_acquire(&session->life);
}

void kvb_session_put(struct kvb_session *session)
{
	/* After the subtraction, which orders this load behind whoever set `closed` and gave its
	 * reference back before. The slot may be another session's by now; a notice too many
	 * does no harm. */
	if ((uint32_t)kvb_fetch_sub(&session->life, 1) == 1 && kvb_load_acquire(&session->closed))
		kvb_server_notify(session->server);
}

void kvb_session_fail(struct kvb_session *session, enum kvb_reason reason, const char *format, ...)
{
	va_list args;

	/* Of a worker and the control thread only one writes the text. */
	if (kvb_exchange(&session->failing, 1u))
		return;
	va_start(args, format);
	vsnprintf(session->failure_text, sizeof(session->failure_text), format, args);
	va_end(args);
	/* Publishes the text; pairs with the acquire load in drain.c. */
	kvb_store_release(&session->failure, (uint32_t)reason);
	kvb_server_notify(session->server);
}

static struct kvb_session *find_free(struct kvb_sessions *sessions)
{
	for (uint32_t i = 0; i < sessions->count; i++)
		if (sessions->slots[i].phase == KVB_PHASE_FREE)
			return &sessions->slots[i];
	return NULL;
}

/* Clears what belonged to the slot's last session; descriptors are closed already. */
static void reset(struct kvb_session *session)
{
	session->run = KVB_RUN_IDLE;
	session->orders = session->failing = session->failure = session->open_transfers = 0;
	kvb_store_relaxed(&session->closed, 0u);
	session->oldest_progress_ns = 0;
	session->sq_head_seen = 0;
	memset(session->transfers, 0, sizeof(session->transfers));
	session->worked_ns = 0;
	session->open_bytes = session->orders_seen = session->backlog = 0;
	kvb_portable_reset(&session->portable);
	session->portable_next = false;
	session->failure_text[0] = '\0';
	session->peer_gone = session->unserved = false;
	session->abort_ordered = session->failure_told = false;
	session->reason = KVB_REASON_NONE;
	session->control_peer.len = 0;
	memset(session->name, 0, sizeof(session->name));
}

static int make_descriptors(struct kvb_session *session, const struct kvb_layout *layout)
{
	int r = kvb_segment_new(
		"kvbell-session", layout->total_bytes, KVB_SEALS_FIXED_SIZE, &session->segment);

	if (r < 0)
		return r;
	/* Now, so that a full host is an error here and never a SIGBUS in a worker. */
	r = kvb_segment_populate(&session->segment, 0, layout->total_bytes, true);
	if (r < 0)
		return r;
	session->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	session->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (session->kick_fd < 0 || session->bell_fd < 0)
		return -errno;
	if (getrandom(session->token, sizeof(session->token), 0) != (ssize_t)sizeof(session->token))
		return -EIO;
	return 0;
}

static void init_segment(struct kvb_session *session)
{
	struct kvb_session_header *header = session->segment.base;

	session->header = header;
	session->staging = (uint8_t *)session->segment.base + session->layout.staging_offset;
	header->magic = KVB_MAGIC;
	header->abi = KVB_ABI_VERSION;
	memcpy(header->boot_id, session->server->boot_id, KVB_ID_BYTES);
	header->session = kvb_session_own_id(session);
	header->state = KVB_SESSION_ACTIVE;
	/* No worker has looked yet, so the first submission must kick. */
	header->sq_sleeping = KVB_SLEEPING;
	kvb_sq_consumer_init(&session->sq, session->segment.base, &session->layout);
	kvb_cq_producer_init(&session->cq, session->segment.base, &session->layout);
}

int kvb_session_create(struct kvb_server *server, struct kvb_session **ret_session)
{
	const struct kvb_server_options *options = &server->options;
	struct kvb_session *session = find_free(&server->sessions);
	int r;

	if (!session)
		return -EUSERS;
	reset(session);
	kvb_layout_compute(&session->layout, options->ring_entries, options->ring_entries,
		options->staging_bytes);
	r = make_descriptors(session, &session->layout);
	if (r < 0) {
		kvb_session_discard(session);
		return r;
	}
	init_segment(session);
	*ret_session = session;
	return 0;
}

int kvb_session_make_leases(struct kvb_session *session)
{
	struct kvb_server *server = session->server;
	uint32_t cells = server->options.lease_cells;
	uint64_t bytes = kvb_round_up(kvb_lease_bytes(cells, TOUCHES), 4096);
	struct kvb_lease_header *header;
	struct kvb_leases leases;
	int r = kvb_segment_new("kvbell-leases", bytes, KVB_SEALS_FIXED_SIZE, &session->leases);

	if (r == 0)
		r = kvb_segment_populate(&session->leases, 0, bytes, true);
	if (r < 0)
		return r;
	header = session->leases.base;
	header->magic = KVB_MAGIC;
	header->abi = KVB_ABI_VERSION;
	header->cells = cells;
	header->touches = TOUCHES;
	r = kvb_leases_open(&leases, header, bytes);
	if (r == 0)
		r = kvb_store_add_leases(server->store, &leases, kvb_session_own_id(session));
	return r;
}

void kvb_session_drop_leases(struct kvb_session *session)
{
	if (session->leases.base)
		kvb_store_remove_leases(session->server->store, kvb_session_own_id(session));
	kvb_segment_free(&session->leases);
}

static void close_traced(struct kvb_session *session, int *fd, const char *what)
{
	if (*fd < 0)
		return;
	kvb_log(&session->server->log, KVB_LOG_DEBUG, "step: close %s of session %u", what,
		session->slot);
	kvb_fd_close(fd);
}

void kvb_session_revoke_descriptors(struct kvb_session *session)
{
	close_traced(session, &session->kick_fd, "kick");
	close_traced(session, &session->bell_fd, "bell");
	session->header = NULL;
	session->staging = NULL;
	if (session->segment.fd >= 0)
		kvb_log(&session->server->log, KVB_LOG_DEBUG, "step: close segment of session %u",
			session->slot);
	kvb_segment_free(&session->segment);
}

void kvb_session_discard(struct kvb_session *session)
{
	kvb_session_revoke_descriptors(session);
	kvb_session_drop_leases(session);
}

void kvb_session_release_slot(struct kvb_session *session)
{
	uint64_t life = kvb_load_relaxed(&session->life);

	if (session->door_fd >= 0)
		shutdown(session->door_fd, SHUT_RDWR);
	close_traced(session, &session->door_fd, "door");
	close_traced(session, &session->pidfd, "pidfd");
	kvb_session_drop_leases(session);
	/* Generation + 1, no references. A late event of the old generation either got its
	 * reference before this (then the loop waits for it to be given back) or is refused
	 * after it. */
	do {
		life &= ~(uint64_t)UINT32_MAX;
	} while (!kvb_compare_exchange(&session->life, &life, life + ((uint64_t)1 << 32)));
	session->phase = KVB_PHASE_FREE;
}

bool kvb_session_is_served(const struct kvb_session *session)
{
	return session->phase == KVB_PHASE_ACTIVE ||
		(session->reason == KVB_REASON_SERVER_DRAIN && session->header);
}

struct kvb_session *kvb_session_find_attached(
	struct kvb_sessions *sessions, uint64_t id, const struct kvb_peer *peer)
{
	struct kvb_session *session = kvb_session_find(sessions, id);

	return session && kvb_session_is_served(session) &&
			kvb_peer_equal(&session->control_peer, peer)
		? session
		: NULL;
}

const char *kvb_kind_name(enum kvb_client_kind kind)
{
	switch (kind) {
	case KVB_KIND_OWN:
		return "own";
	case KVB_KIND_TRUSTED:
		return "trusted";
	case KVB_KIND_ISOLATED:
		return "isolated";
	}
	return "unknown";
}

const char *kvb_reason_name(enum kvb_reason reason)
{
	static const char *const names[] = {
		[KVB_REASON_NONE] = "none",
		[KVB_REASON_CLIENT_LEFT] = "the client left",
		[KVB_REASON_CLIENT_DIED] = "the client died",
		[KVB_REASON_SERVER_DRAIN] = "the server is shutting down",
		[KVB_REASON_PROTOCOL] = "the client broke the protocol",
		[KVB_REASON_NOT_ALLOWED] = "the client's uid and groups are not let in",
		[KVB_REASON_TOO_MANY] = "there is no free session",
		[KVB_REASON_ABI] = "the protocol versions differ",
		[KVB_REASON_NO_MEMORY] = "the server lacks memory or descriptors",
		[KVB_REASON_BELL_BLOCKED] = "the client made its bell block the server",
		[KVB_REASON_NOT_READING] = "the client does not read its control replies",
	};

	return (unsigned)reason < KVB_REASON_MAX ? names[reason] : "unknown";
}
