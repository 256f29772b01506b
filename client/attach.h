/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attach.h - being let in at the door.
 */
#ifndef KVB_CLIENT_ATTACH_H
#define KVB_CLIENT_ATTACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvbell/protocol.h"
#include "shm/ring.h"
#include "shm/segment.h"

struct kvb_client;

/* What a WELCOME brought, verified and mapped. Owned by whoever holds the struct. */
struct kvb_attached {
	struct kvb_welcome welcome;
	struct kvb_layout layout;
	struct kvb_segment session;
	struct kvb_segment life;
	struct kvb_segment index; /* with KVB_WELCOME_READER, as are the next two */
	struct kvb_segment pool;
	struct kvb_segment leases;
	int door_fd;
	int kick_fd;
	int bell_fd;
};

/* dir/name as the longest path a socket address can hold. 0; -ENAMETOOLONG. */
int kvb_socket_path(const char *dir, const char *name, char *ret_path, size_t size);

/*
 * Knocks, and waits until the server has answered. `reader`: asks for index, pool and leases. `cancel_fd` (or -1) ends the wait when it
 * becomes readable. 0; -ECANCELED; the errors of kvb_open().
 */
int kvb_attach(const struct kvb_client *client, bool reader, int cancel_fd, uint64_t deadline_ns,
	struct kvb_attached *ret_attached);
void kvb_attached_free(struct kvb_attached *attached);

/* Reads what the server says at the door of a session that it let in: a GOODBYE, or that it is
 * gone. Returns false when nothing has come yet. */
bool kvb_door_ended(const struct kvb_client *client, int door_fd);

#endif /* KVB_CLIENT_ATTACH_H */
