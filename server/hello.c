/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hello.c - see hello.h. Owns nothing; the control thread, and whoever tests it. It must never trust
 * a byte of the record.
 */
#include "server/hello.h"

#include <string.h>

const char *kvb_hello_fault(const struct kvb_hello *hello, enum kvb_reason *ret_reason)
{
	static const uint8_t zeros[sizeof(hello->reserved)];

	*ret_reason = KVB_REASON_ABI;
	if (hello->magic != KVB_MAGIC)
		return "this is a kvbell server, and the client does not speak its protocol";
	if (hello->abi != KVB_ABI_VERSION)
		return "client and server have different protocol versions; update the older one";
	*ret_reason = KVB_REASON_PROTOCOL;
	if (hello->type != KVB_DOOR_HELLO)
		return "the first record must be HELLO";
	if ((hello->flags & ~(uint32_t)KVB_HELLO_READER) ||
		memcmp(hello->reserved, zeros, sizeof(zeros)) != 0)
		return "HELLO has flags or reserved bytes that this server does not know";
	return NULL;
}

void kvb_hello_name(const struct kvb_hello *hello, char ret_name[KVB_NAME_BYTES])
{
	const char *from = hello->name;

	memset(ret_name, 0, KVB_NAME_BYTES);
	for (unsigned i = 0; i < KVB_NAME_BYTES - 1 && from[i]; i++)
		ret_name[i] = from[i] > ' ' && from[i] <= '~' && from[i] != '"' ? from[i] : '?';
}
