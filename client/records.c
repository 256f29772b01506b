/* SPDX-License-Identifier: Apache-2.0 */
/*
 * records.c - see records.h. Owns nothing; whatever thread is at the door, and whoever tests it. It
 * must never look beyond the bytes that came, nor at a field before what it depends on.
 */
#include "client/records.h"

#include <errno.h>

/* More than any sensible server grants; keeps the client's own tables small. */
#define CREDIT_MAX 65536u

bool kvb_is_goodbye(const struct kvb_goodbye *goodbye, size_t size)
{
	return size == sizeof(*goodbye) && goodbye->magic == KVB_MAGIC &&
		goodbye->type == KVB_DOOR_GOODBYE;
}

int kvb_goodbye_error(const struct kvb_goodbye *goodbye)
{
	switch (goodbye->error) {
	case -EMFILE:
	case -ENFILE:
		/* These mean this process; the server's own lack is a lack of the server's. */
		return -ENOMEM;
	case -EACCES:
	case -EUSERS:
	case -EPROTONOSUPPORT:
	case -ENOMEM:
	case -ESHUTDOWN:
	case -ETIMEDOUT:
		return goodbye->error;
	default:
		return -EPROTO;
	}
}

void kvb_goodbye_clean(struct kvb_goodbye *goodbye)
{
	goodbye->text[sizeof(goodbye->text) - 1] = '\0';
	for (char *c = goodbye->text; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
}

static int fields_verify(const struct kvb_welcome *welcome, size_t size)
{
	if (size != sizeof(*welcome) || welcome->magic != KVB_MAGIC)
		return -EPROTO;
	if (welcome->abi != KVB_ABI_VERSION)
		return -EPROTONOSUPPORT;
	if (welcome->type != KVB_DOOR_WELCOME ||
		(welcome->flags & ~(uint32_t)KVB_WELCOME_READER) != 0)
		return -EPROTO;
	if (welcome->kind < KVB_KIND_OWN || welcome->kind > KVB_KIND_ISOLATED)
		return -EPROTO;
	if (welcome->session_bytes > SIZE_MAX || welcome->life_bytes > SIZE_MAX ||
		welcome->life_bytes < sizeof(struct kvb_life_page))
		return -EPROTO;
	if (welcome->key_max != KVB_KEY_MAX || welcome->cq_entries > CREDIT_MAX ||
		welcome->sq_entries > CREDIT_MAX)
		return -EPROTO;
	if (welcome->fragment_bytes == 0 || welcome->fragment_bytes > welcome->staging_bytes ||
		welcome->staging_bytes % KVB_LINE != 0)
		return -EPROTO;
	/* The transfer's slot has 8 bits. */
	if (welcome->transfers == 0 || welcome->transfers > 256)
		return -EPROTO;
	return 0;
}

int kvb_welcome_verify(
	const struct kvb_welcome *welcome, size_t size, struct kvb_layout *ret_layout)
{
	struct kvb_layout layout;
	int r = fields_verify(welcome, size);

	if (r < 0)
		return r;
	layout = (struct kvb_layout){.sq_entries = welcome->sq_entries,
		.cq_entries = welcome->cq_entries,
		.sq_offset = welcome->sq_offset,
		.cq_offset = welcome->cq_offset,
		.key_offset = welcome->key_offset,
		.staging_offset = welcome->staging_offset,
		.staging_bytes = welcome->staging_bytes,
		.total_bytes = welcome->session_bytes};
	r = kvb_layout_verify(&layout);
	if (r == 0)
		*ret_layout = layout;
	return r;
}
