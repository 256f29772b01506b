/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.c - what a handler may ask of its call, and the one answer that comes of it.
 *
 * Owns the answer while a handler runs, in that handler's thread. It must never send anything: only
 * the control thread does, after it has the call back.
 */
#include "server/call.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kvbell/server.h"
#include "server/handler.h"
#include "server/session.h"
#include "shm/atomic.h"
#include "shm/pack.h"
#include "shm/util.h"

/* The kernel's bound; anything beyond is no errno. */
#define ERRNO_MAX 4095

void kvb_call_init_answer(struct kvb_call *call)
{
	msgpack_sbuffer_init(&call->reply);
	msgpack_packer_init(&call->packer, &call->reply, msgpack_sbuffer_write);
}

void kvb_call_free_answer(struct kvb_call *call)
{
	msgpack_sbuffer_destroy(&call->reply);
}

void kvb_pack_error(msgpack_packer *packer, int status, const char *text)
{
	if (!text || !text[0])
		text = strerrordesc_np(-status);
	if (!text)
		text = "unknown error";
	msgpack_pack_map(packer, 1);
	msgpack_pack_str_with_body(packer, "error", 5);
	msgpack_pack_str_with_body(packer, text, strlen(text));
}

void kvb_call_set_error(struct kvb_call *call, int status, const char *text)
{
	msgpack_sbuffer_clear(&call->reply);
	call->status = status;
	kvb_pack_error(&call->packer, status, text);
}

void kvb_call_run(struct kvb_call *call)
{
	int r = call->handler->fn(call, call->handler->user);

	if (r > 0 || r < -ERRNO_MAX)
		kvb_call_set_error(call, -EIO, "the handler returned an impossible status");
	else if (r < 0)
		kvb_call_set_error(call, r, call->text);
	else if (call->replied_twice)
		kvb_call_set_error(call, -EBADMSG, "the handler gave more than one reply");
	else if (call->reply.size == 0)
		kvb_call_set_error(call, -ENODATA, "the handler gave no reply");
	else
		call->status = 0;
}

/* ------------------------------------------------------------------------------- the handler's side */

uint16_t kvb_call_type(const struct kvb_call *call)
{
	return call->header.type;
}

uint64_t kvb_call_session(const struct kvb_call *call)
{
	return call->header.session;
}

const char *kvb_call_client_name(const struct kvb_call *call)
{
	return call->session ? call->session->name : "";
}

const void *kvb_call_body(const struct kvb_call *call, size_t *ret_size)
{
	*ret_size = call->body_size;
	return call->body;
}

bool kvb_call_abandoned(const struct kvb_call *call)
{
	return kvb_load_relaxed(&call->abandoned) != 0;
}

int kvb_call_reply(struct kvb_call *call, const void *body, size_t size)
{
	if (call->reply.size > 0) {
		call->replied_twice = true;
		return -EALREADY;
	}
	if (size > KVB_MSG_BODY_MAX)
		return -EMSGSIZE;
	if (!kvb_pack_is_one_object(body, size))
		return -EPROTO;
	return msgpack_sbuffer_write(&call->reply, body, size) < 0 ? -ENOMEM : 0;
}

/* A text that was cut may end within a character, which strict readers of MessagePack refuse. */
static void end_at_character(char *text)
{
	size_t len = strlen(text), at = len;

	/* Back over continuation bytes, to the byte that says how many there should be. */
	while (at > 0 && len - at < 4 && ((uint8_t)text[at - 1] & 0xc0) == 0x80)
		at--;
	if (at > 0 && ((uint8_t)text[at - 1] & 0xc0) == 0xc0) {
		uint8_t lead = (uint8_t)text[at - 1];
		size_t want = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
		if (len - at < want)
			text[at - 1] = '\0';
	}
}

int kvb_call_fail(struct kvb_call *call, int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(call->text, sizeof(call->text), format, args);
	va_end(args);
	end_at_character(call->text);
	/* A handler that fails with nothing has failed all the same. */
	return error < 0 ? error : -EIO;
}
