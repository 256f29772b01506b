/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.h - all statistics under their names, as one MessagePack map. Any thread.
 */
#ifndef KVB_SERVER_STATS_H
#define KVB_SERVER_STATS_H

#include <msgpack.h>
#include <stdint.h>

struct kvb_server;

void kvb_stats_pack(struct kvb_server *server, msgpack_packer *packer);

/* The packed map into `room` bytes of memory that somebody else may write. *ret_length is the map's
 * length, also with -EMSGSIZE. 0; -EMSGSIZE; -ENOMEM. */
int kvb_stats_write(struct kvb_server *server, void *to, uint64_t room, uint64_t *ret_length);

#endif /* KVB_SERVER_STATS_H */
