/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.c - see stats.h.
 *
 * Owns nothing; any thread. The numbers are read one by one while others count on, so they are each
 * true but of slightly different moments. It must never show a token, a routing id or an address.
 */
#include "server/stats.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "server/server.h"
#include "shm/atomic.h"
#include "shm/util.h"

struct field {
	const char *name;
	size_t offset;
};

#define COUNTER(name, member)                               \
	{                                                   \
		name, offsetof(struct kvb_counters, member) \
	}
static const struct field counter_fields[] = {
	COUNTER("ops.puts", puts),
	COUNTER("ops.put_bytes", put_bytes),
	COUNTER("ops.put_aborts", put_aborts),
	COUNTER("ops.puts_present", puts_present),
	COUNTER("ops.gets", gets),
	COUNTER("ops.get_bytes", get_bytes),
	COUNTER("ops.get_misses", get_misses),
	COUNTER("ops.exists", exists),
	COUNTER("ops.exists_hits", exists_hits),
	COUNTER("ops.deletes", deletes),
	COUNTER("ops.nops", nops),
	COUNTER("ops.transfers_expired", transfers_expired),
	COUNTER("bells.rung", bells_rung),
	COUNTER("bells.suppressed", bells_suppressed),
	COUNTER("bells.full", bells_full),
	COUNTER("bells.blocked", bells_blocked),
	COUNTER("bells.missed_wakes", missed_wakes),
	COUNTER("workers.kicks", kicks),
	COUNTER("workers.visits", visits),
	COUNTER("workers.spins", spins),
	COUNTER("sessions.total", sessions_total),
	COUNTER("sessions.refused", sessions_refused),
	COUNTER("sessions.failed", sessions_failed),
	COUNTER("control.requests", control_requests),
	COUNTER("control.replies", control_replies),
	COUNTER("control.dropped", control_dropped),
	COUNTER("control.submitted", control_submitted),
	COUNTER("calls.total", calls),
	COUNTER("calls.refused", calls_refused),
	COUNTER("calls.timed_out", calls_timed_out),
	COUNTER("calls.late", calls_late),
};

#define GAUGE(name, member)                               \
	{                                                 \
		name, offsetof(struct kvb_gauges, member) \
	}
static const struct field gauge_fields[] = {
	GAUGE("sessions.active", sessions_active),
	GAUGE("sessions.ending", sessions_ending),
	GAUGE("sessions.quarantined", sessions_quarantined),
	GAUGE("sessions.revoked", sessions_revoked),
	GAUGE("sessions.bytes", session_bytes),
	GAUGE("control.replies_waiting", replies_waiting),
	GAUGE("calls.in_flight", calls_in_flight),
};

#define STORE(name, member)                                    \
	{                                                      \
		name, offsetof(struct kvb_store_stats, member) \
	}
static const struct field store_fields[] = {
	STORE("pool.bytes", pool_bytes),
	STORE("pool.ready_bytes", ready_bytes),
	STORE("pool.used_bytes", used_bytes),
	STORE("pool.free_largest_bytes", free_largest),
	STORE("store.objects", objects),
	STORE("store.objects_max", objects_max),
	STORE("store.payload_bytes", payload_bytes),
	STORE("store.held", held),
	STORE("store.pending", pending),
	STORE("store.pending_bytes", pending_bytes),
	STORE("store.evicted", evicted),
	STORE("store.evicted_bytes", evicted_bytes),
	STORE("store.replaced", replaced),
	STORE("store.index_bytes", index_bytes),
	STORE("leases.limbo", limbo),
	STORE("leases.limbo_bytes", limbo_bytes),
	STORE("leases.spared", leased_spared),
	STORE("leases.refused", leased_refused),
	STORE("leases.most", leases_most),
};

static void pack_text(msgpack_packer *packer, const char *name, const char *text)
{
	msgpack_pack_str_with_body(packer, name, strlen(name));
	msgpack_pack_str_with_body(packer, text, strlen(text));
}

static void pack_number(msgpack_packer *packer, const char *name, uint64_t value)
{
	msgpack_pack_str_with_body(packer, name, strlen(name));
	/* Of one width, so that a reader who was told the length does not find it grown. */
	msgpack_pack_fix_uint64(packer, value);
}

static void pack_fields(
	msgpack_packer *packer, const struct field *fields, size_t count, const void *base)
{
	for (size_t i = 0; i < count; i++)
		pack_number(packer, fields[i].name,
			kvb_load_relaxed(
				(const uint64_t *)((const char *)base + fields[i].offset)));
}

static uint32_t count_workers(const struct kvb_workers *workers)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < workers->n_groups; i++)
		n += workers->groups[i].n_workers;
	return n;
}

static void pack_server(struct kvb_server *server, msgpack_packer *packer)
{
	char boot_id[2 * KVB_ID_BYTES + 1];
	int32_t error = kvb_load_acquire(&server->pool.error);

	for (unsigned i = 0; i < KVB_ID_BYTES; i++)
		snprintf(boot_id + (size_t)2 * i, 3, "%02x", server->boot_id[i]);
	pack_text(packer, "server.version", KVB_SERVER_VERSION);
	pack_text(packer, "server.boot_id", boot_id);
	pack_text(packer, "server.state", kvb_server_is_draining(server) ? "draining" : "active");
	pack_number(packer, "server.uptime_ms", (kvb_now_ns() - server->start_ns) / KVB_NS_PER_MS);
	pack_text(packer, "numa.placement", server->numa.why);
	pack_number(packer, "numa.nodes", (uint64_t)server->numa.n_nodes);
	pack_number(packer, "workers.threads", count_workers(&server->workers));
	pack_number(packer, "pool.populate_ms",
		kvb_load_relaxed(&server->pool.populate_ns) / KVB_NS_PER_MS);
	pack_number(packer, "pool.failed_bytes", kvb_load_relaxed(&server->pool.failed_bytes));
	pack_text(packer, "pool.populate_error", error ? strerrordesc_np(-error) : "none");
}
#define SERVER_FIELDS 10

void kvb_stats_pack(struct kvb_server *server, msgpack_packer *packer)
{
	struct kvb_store_stats store;

	kvb_store_get_stats(server->store, &store);
	msgpack_pack_map(packer,
		SERVER_FIELDS + 1 + KVB_ARRAY_SIZE(counter_fields) + KVB_ARRAY_SIZE(gauge_fields) +
			KVB_ARRAY_SIZE(store_fields));
	pack_server(server, packer);
	pack_fields(packer, store_fields, KVB_ARRAY_SIZE(store_fields), &store);
	/* The slot, which is what the log calls it. */
	pack_number(packer, "leases.most_session", (uint32_t)store.leases_session);
	pack_fields(packer, gauge_fields, KVB_ARRAY_SIZE(gauge_fields), &server->gauges);
	pack_fields(packer, counter_fields, KVB_ARRAY_SIZE(counter_fields), &server->counters);
}

int kvb_stats_write(struct kvb_server *server, void *to, uint64_t room, uint64_t *ret_length)
{
	msgpack_sbuffer buffer;
	msgpack_packer packer;
	int r = 0;

	msgpack_sbuffer_init(&buffer);
	msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
	kvb_stats_pack(server, &packer);
	*ret_length = buffer.size;
	if (buffer.size > room)
		r = -EMSGSIZE;
	else
		memcpy(to, buffer.data, buffer.size);
	msgpack_sbuffer_destroy(&buffer);
	return r;
}
