/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life.h - the life word: tells others at once that the server's process is gone.
 */
#ifndef KVB_SERVER_LIFE_H
#define KVB_SERVER_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include "kvbell/protocol.h"

struct kvb_life {
	int fd;        /* memfd of the life page, handed to every client */
	uint8_t *area; /* two private pages of list nodes, then life page, then lock page */
	struct kvb_life_page *page;
	uint32_t *lock_word; /* in the lock file */
};

#define KVB_LIFE_BYTES 4096u

/* Makes the life page and maps it and the lock file. 0; -errno. */
int kvb_life_new(struct kvb_life *life, const uint8_t boot_id[KVB_ID_BYTES], int lock_fd);
/* Puts both words on the calling thread's robust-futex list. The control thread, once. 0; -errno. */
int kvb_life_begin(struct kvb_life *life);
/* Orderly end: both words become 0 and leave the list. The same thread. */
void kvb_life_end(struct kvb_life *life);
void kvb_life_free(struct kvb_life *life);

/* True when the lock file says that its owner has died or is about to end, though it still holds
 * the lock; also while an owner starts. */
bool kvb_life_lock_owner_gone(int lock_fd);

#endif /* KVB_SERVER_LIFE_H */
