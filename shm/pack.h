/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack.h - looking things up in MessagePack. Owns nothing; any thread.
 */
#ifndef KVB_SHM_PACK_H
#define KVB_SHM_PACK_H

#include <msgpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* The value under a text key; NULL when `map` is no map or has none of that name. */
static inline const msgpack_object *kvb_pack_find(const msgpack_object *map, const char *name)
{
	size_t len = strlen(name);

	if (map->type != MSGPACK_OBJECT_MAP)
		return NULL;
	for (uint32_t i = 0; i < map->via.map.size; i++) {
		const msgpack_object_kv *kv = &map->via.map.ptr[i];
		if (kv->key.type == MSGPACK_OBJECT_STR && kv->key.via.str.size == len &&
			memcmp(kv->key.via.str.ptr, name, len) == 0)
			return &kv->val;
	}
	return NULL;
}

/* True when the bytes are exactly one MessagePack object. Whatever comes from outside must pass
 * this before it is unpacked. */
bool kvb_pack_is_one_object(const void *data, size_t size);

#endif /* KVB_SHM_PACK_H */
