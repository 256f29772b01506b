/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guest.c - see guest.h.
 *
 * Owns the client and its memory; the thread that runs the target. The segment ends where its memory
 * ends. It must never wait: what would sleep finds that its time is up.
 */
#include "tests/fuzz/guest.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "shm/atomic.h"
#include "tests/fuzz/fuzz.h"

static struct kvb_fuzz_guest *the_guest;

/* What would be a system call; see the target's link options. */
int __wrap_kvb_bell_ring(int fd);
int __wrap_kvb_bell_ring(int fd)
{
	(void)fd;
	if (the_guest->kicked)
		the_guest->kicked(the_guest);
	return 0;
}

int __wrap_eventfd_write(int fd, eventfd_t value);
int __wrap_eventfd_write(int fd, eventfd_t value)
{
	(void)fd;
	(void)value;
	return 0;
}

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	(void)timeout_ms;
	for (nfds_t i = 0; i < n; i++)
		fds[i].revents = 0;
	return 0;
}

static void attach(struct kvb_attached *ret_attached)
{
	struct kvb_layout layout;
	struct kvb_life_page *life = kvb_fuzz_alloc(sizeof(*life));

	kvb_layout_compute(&layout, KVB_FUZZ_CREDIT, KVB_FUZZ_CREDIT, KVB_FUZZ_STAGING);
	life->life = 1;
	*ret_attached = (struct kvb_attached){.welcome = {.magic = KVB_MAGIC,
						      .abi = KVB_ABI_VERSION,
						      .type = KVB_DOOR_WELCOME,
						      .session = 1ull << 32,
						      .kind = KVB_KIND_OWN,
						      .session_bytes = layout.total_bytes,
						      .sq_entries = layout.sq_entries,
						      .cq_entries = layout.cq_entries,
						      .key_max = KVB_KEY_MAX,
						      .staging_offset = layout.staging_offset,
						      .staging_bytes = layout.staging_bytes,
						      .fragment_bytes = KVB_FUZZ_PIECE,
						      .transfers = KVB_FUZZ_TRANSFERS,
						      .payload_max = KVB_FUZZ_OBJECT},
		.layout = layout,
		.session = {-1, kvb_fuzz_alloc(layout.total_bytes), layout.total_bytes},
		.life = {-1, life, sizeof(*life)},
		.index = KVB_SEGMENT_NONE,
		.pool = KVB_SEGMENT_NONE,
		.leases = KVB_SEGMENT_NONE,
		.door_fd = -1,
		.kick_fd = -1,
		.bell_fd = -1};
	memset(ret_attached->welcome.boot_id, 0x22, KVB_ID_BYTES);
	memset(ret_attached->welcome.token, 0x11, KVB_ID_BYTES);
}

struct kvb_fuzz_guest *kvb_fuzz_guest_new(void)
{
	struct kvb_fuzz_guest *guest = the_guest = calloc(1, sizeof(*guest));
	struct kvb_attached attached;
	struct kvb_client *client;

	kvb_fuzz_require(guest != NULL, "no memory");
	client = &guest->client;
	pthread_mutex_init(&client->lock, NULL);
	pthread_cond_init(&client->left, NULL);
	kvb_tickets_init(&client->tickets);
	attach(&attached);
	kvb_fuzz_require(kvb_conn_new(client, &attached, -1, &guest->conn) == 0, "no connection");
	client->conn = guest->conn;
	return guest;
}

static void reset_tables(struct kvb_conn *conn)
{
	memset(conn->requests, 0, KVB_FUZZ_CREDIT * sizeof(*conn->requests));
	for (uint32_t i = 0; i < KVB_FUZZ_CREDIT; i++)
		conn->requests[i].next_free = i + 1;
	conn->free_request = 0;
	memset(conn->slots, 0, KVB_FUZZ_TRANSFERS * sizeof(*conn->slots));
	memset(conn->staging.blocks, 0, KVB_FUZZ_CREDIT * sizeof(*conn->staging.blocks));
	conn->staging.start = conn->staging.end = 0;
	conn->staging.first = conn->staging.next = 0;
}

void kvb_fuzz_guest_begin(struct kvb_fuzz_guest *guest)
{
	struct kvb_conn *conn = guest->conn;
	struct kvb_dealer *dealer = &conn->dealer;
	const struct kvb_attached *attached = &conn->attached;

	memset(conn->header, 0, attached->layout.staging_offset);
	conn->header->state = KVB_SESSION_ACTIVE;
	conn->header->sq_sleeping = KVB_SLEEPING_ALWAYS;
	kvb_store_relaxed(&conn->failed, 0);
	kvb_sq_producer_init(&conn->sq, conn->header, &attached->layout);
	kvb_cq_consumer_init(&conn->cq, conn->header, &attached->layout);
	reset_tables(conn);
	kvb_fuzz_require(TAILQ_EMPTY(&dealer->exchanges), "an exchange was left behind");
	dealer->state = KVB_DEALER_DETACHED;
	dealer->attachments = dealer->request = dealer->attach_first = 0;
	dealer->ended = false;
}

void kvb_fuzz_guest_post(struct kvb_fuzz_guest *guest, const struct kvb_cqe *cqe)
{
	struct kvb_session_header *header = guest->conn->header;
	const struct kvb_layout *layout = &guest->conn->attached.layout;
	uint32_t tail = kvb_load_relaxed(&header->cq_tail);

	memcpy((uint8_t *)header + layout->cq_offset +
			(tail & (layout->cq_entries - 1)) * sizeof(*cqe),
		cqe, sizeof(*cqe));
	kvb_store_release(&header->cq_tail, tail + 1);
}
