/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - see host.h.
 *
 * Owns the server and its memory; the thread that runs the target. The segment and the pool end where
 * their memory ends, and what no object has of the pool is out of bounds, so that one byte beyond is
 * noticed. It must never let an input see what another
 * one left in the store.
 */
#include "tests/fuzz/host.h"

#include <stdlib.h>
#include <string.h>

#include "server/builtin.h"
#include "server/execute.h"
#include "server/extent.h"
#include "shm/atomic.h"
#include "tests/fuzz/fuzz.h"

#define SQ_ENTRIES 16u
#define CQ_ENTRIES 8u
#define OBJECTS    12u
#define VISITS_MAX 64u

/* What would be a system call; see the target's link options. */
int __wrap_kvb_bell_ring(int fd);
int __wrap_kvb_bell_ring(int fd)
{
	(void)fd;
	return 0;
}

void __wrap_kvb_server_notify(struct kvb_server *server);
void __wrap_kvb_server_notify(struct kvb_server *server)
{
	(void)server;
}

void __wrap_kvb_session_wake(struct kvb_session *session);
void __wrap_kvb_session_wake(struct kvb_session *session)
{
	(void)session;
}

/* Of the pool only what an object has may be touched. */
static uint8_t *pool;

int __real_kvb_extent_alloc(struct kvb_extents *extents, uint64_t length, uint32_t *ret_extent);
int __wrap_kvb_extent_alloc(struct kvb_extents *extents, uint64_t length, uint32_t *ret_extent);
int __wrap_kvb_extent_alloc(struct kvb_extents *extents, uint64_t length, uint32_t *ret_extent)
{
	int r = __real_kvb_extent_alloc(extents, length, ret_extent);

	if (r == 0)
		kvb_fuzz_show(pool + kvb_extent_offset(extents, *ret_extent), length);
	return r;
}

void __real_kvb_extent_free(struct kvb_extents *extents, uint32_t extent);
void __wrap_kvb_extent_free(struct kvb_extents *extents, uint32_t extent);
void __wrap_kvb_extent_free(struct kvb_extents *extents, uint32_t extent)
{
	kvb_fuzz_hide(
		pool + kvb_extent_offset(extents, extent), kvb_extent_length(extents, extent));
	__real_kvb_extent_free(extents, extent);
}

static void make_store(struct kvb_server *server)
{
	struct kvb_store_config config = {.pool = kvb_fuzz_alloc(KVB_FUZZ_POOL),
		.pool_bytes = KVB_FUZZ_POOL,
		.objects_max = OBJECTS,
		.alignment = 256,
		.hash_seed = 1,
		.low_percent = 100,
		.high_percent = 100};

	server->pool.segment =
		(struct kvb_segment){.fd = -1, .base = config.pool, .bytes = KVB_FUZZ_POOL};
	kvb_fuzz_require(kvb_store_new(&config, &server->store) == 0 &&
			kvb_store_add_range(server->store, 0, KVB_FUZZ_POOL) == 0,
		"no store");
	pool = config.pool;
	kvb_fuzz_hide(pool, KVB_FUZZ_POOL);
}

static void make_session(struct kvb_fuzz_host *host)
{
	struct kvb_session *session;

	kvb_fuzz_require(
		kvb_sessions_new(&host->server.sessions, &host->server, 1) == 0, "no session");
	session = host->session = &host->server.sessions.slots[0];
	kvb_layout_compute(&session->layout, SQ_ENTRIES, CQ_ENTRIES, 4096);
	session->segment.base = kvb_fuzz_alloc(session->layout.total_bytes);
	session->segment.bytes = session->layout.total_bytes;
	session->header = session->segment.base;
	session->staging = (uint8_t *)session->segment.base + session->layout.staging_offset;
	session->kind = KVB_KIND_OWN;
	session->phase = KVB_PHASE_ACTIVE;
	memset(session->token, 0x11, sizeof(session->token));
}

struct kvb_fuzz_host *kvb_fuzz_host_new(void)
{
	struct kvb_fuzz_host *host = calloc(1, sizeof(*host));
	struct kvb_server *server;

	kvb_fuzz_require(host != NULL, "no memory");
	server = &host->server;
	kvb_server_options_init(&server->options, sizeof(server->options));
	server->options.fragment_bytes = KVB_FUZZ_FRAGMENT;
	server->options.pool_bytes = KVB_FUZZ_POOL;
	server->options.open_max = KVB_FUZZ_POOL / 2;
	server->visit_requests = 32;
	server->output_fd = server->stop_fd = -1;
	server->numa.why = "none";
	memset(server->boot_id, 0x22, sizeof(server->boot_id));
	kvb_inflight_init(&server->inflight);
	kvb_outboxes_init(&server->outboxes);
	make_store(server);
	make_session(host);
	kvb_fuzz_require(kvb_builtins_register(server) == 0, "no handlers");
	return host;
}

void kvb_fuzz_host_begin(struct kvb_fuzz_host *host)
{
	struct kvb_session *session = host->session;
	struct kvb_session_header *header = session->header;

	memset(header, 0, session->layout.total_bytes);
	header->magic = KVB_MAGIC;
	header->abi = KVB_ABI_VERSION;
	header->session = kvb_session_own_id(session);
	header->state = KVB_SESSION_ACTIVE;
	session->run = KVB_RUN_RUNNING;
	session->orders = session->closed = session->failing = session->failure = 0;
	session->orders_seen = session->backlog = 0;
	session->portable.tail = session->portable.head = 0;
	session->portable_next = false;
	session->control_peer.len = 0;
	kvb_sq_consumer_init(&session->sq, header, &session->layout);
	kvb_cq_producer_init(&session->cq, header, &session->layout);
}

uint32_t kvb_fuzz_host_serve(struct kvb_fuzz_host *host)
{
	uint32_t before = host->session->cq.tail;

	/* A page that changes might say for ever that there is more. */
	for (unsigned i = 0; i < VISITS_MAX; i++) {
		uint32_t tail = host->session->cq.tail;
		enum kvb_visit visit = kvb_execute(&host->worker, host->session);
		kvb_fuzz_require(host->session->cq.tail - tail <= host->server.visit_requests,
			"a visit serves more than it may");
		if (visit != KVB_VISIT_MORE)
			break;
	}
	return host->session->cq.tail - before;
}

void kvb_fuzz_host_reap(struct kvb_fuzz_host *host)
{
	struct kvb_session_header *header = host->session->header;

	kvb_store_release(&header->cq_head, host->session->cq.tail);
}

struct found_key {
	uint8_t key[KVB_KEY_MAX];
	size_t len;
};

static int note_key(void *user, const void *key, size_t key_len, uint64_t length)
{
	struct found_key *found = user;

	(void)length;
	if (found->len > 0)
		return 1;
	memcpy(found->key, key, key_len);
	found->len = key_len;
	return 0;
}

static void empty_store(struct kvb_store *store)
{
	struct found_key found = {.len = 0};
	struct kvb_store_stats stats;

	for (;;) {
		found.len = 0;
		(void)kvb_store_list(store, 0, note_key, &found);
		if (found.len == 0)
			break;
		kvb_fuzz_require(kvb_store_delete(store, found.key, found.len) == 0,
			"an object that is listed cannot be deleted");
	}
	kvb_store_get_stats(store, &stats);
	kvb_fuzz_require(stats.objects == 0 && stats.used_bytes == 0 && stats.held == 0 &&
			stats.pending == 0 && stats.limbo == 0,
		"something is left in the store");
}

void kvb_fuzz_host_end(struct kvb_fuzz_host *host, bool recount)
{
	struct kvb_session *session = host->session;

	session->orders |= KVB_ORDER_END;
	(void)kvb_execute(&host->worker, session);
	kvb_fuzz_require(
		session->closed && session->open_transfers == 0 && session->open_bytes == 0,
		"a session that has ended has open transfers");
	kvb_outboxes_clear(&host->server);
	kvb_fuzz_require(!recount || kvb_store_check(host->server.store) == 0,
		"the store's books are wrong");
	empty_store(host->server.store);
}
