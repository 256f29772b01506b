/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dealer.c - see dealer.h.
 *
 * Owns its context and socket; runs in the test's thread. It must never hide a fault of the server:
 * what is not as the protocol says is an error here.
 */
#include "tests/dealer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define DEADLINE_MS 20000

static int open_with(struct dealer *dealer, const char *dir, const struct kvb_welcome *welcome,
	const char *identity, int receive_hwm)
{
	char endpoint[128];
	int zero = 0;

	*dealer = (struct dealer){.context = zmq_ctx_new(), .welcome = welcome};
	dealer->socket = zmq_socket(dealer->context, ZMQ_DEALER);
	zmq_setsockopt(dealer->socket, ZMQ_LINGER, &zero, sizeof(zero));
	zmq_setsockopt(dealer->socket, ZMQ_RCVHWM, &receive_hwm, sizeof(receive_hwm));
	if (identity)
		zmq_setsockopt(dealer->socket, ZMQ_ROUTING_ID, identity, strlen(identity));
	snprintf(endpoint, sizeof(endpoint), "ipc://%s/%s", dir, KVB_CONTROL_SOCKET);
	return zmq_connect(dealer->socket, endpoint) < 0 ? -errno : 0;
}

int dealer_open(struct dealer *dealer, const char *dir, const struct kvb_welcome *welcome,
	const char *identity)
{
	return open_with(dealer, dir, welcome, identity, 1000);
}

int dealer_open_small(struct dealer *dealer, const char *dir, const struct kvb_welcome *welcome)
{
	return open_with(dealer, dir, welcome, NULL, 8);
}

void dealer_close(struct dealer *dealer)
{
	zmq_close(dealer->socket);
	zmq_ctx_term(dealer->context);
}

struct kvb_msg_header dealer_header(const struct dealer *dealer, uint16_t type, uint64_t request)
{
	struct kvb_msg_header header = {.magic = KVB_MAGIC,
		.abi = KVB_ABI_VERSION,
		.type = type,
		.request = request,
		.session = dealer->welcome->session};

	memcpy(header.boot_id, dealer->welcome->boot_id, KVB_ID_BYTES);
	return header;
}

int dealer_send(
	struct dealer *dealer, const struct kvb_msg_header *header, const void *body, size_t size)
{
	if (zmq_send(dealer->socket, header, sizeof(*header), ZMQ_SNDMORE) < 0 ||
		zmq_send(dealer->socket, body, size, 0) < 0)
		return -errno;
	return 0;
}

int dealer_receive_in(struct dealer *dealer, int timeout_ms, struct dealer_reply *ret_reply)
{
	zmq_pollitem_t item = {.socket = dealer->socket, .events = ZMQ_POLLIN};
	size_t size = sizeof(int);
	int more = 1, n;

	if (zmq_poll(&item, 1, timeout_ms) != 1)
		return -ETIMEDOUT;
	n = zmq_recv(dealer->socket, &ret_reply->header, sizeof(ret_reply->header), 0);
	if (n != sizeof(ret_reply->header))
		return -EPROTO;
	n = zmq_recv(dealer->socket, ret_reply->body, sizeof(ret_reply->body), 0);
	if (n < 1 || (size_t)n > sizeof(ret_reply->body))
		return -EPROTO;
	ret_reply->size = (size_t)n;
	zmq_getsockopt(dealer->socket, ZMQ_RCVMORE, &more, &size);
	if (more || ret_reply->header.magic != KVB_MAGIC ||
		memcmp(ret_reply->header.boot_id, dealer->welcome->boot_id, KVB_ID_BYTES) != 0)
		return -EPROTO;
	return 0;
}

int dealer_receive(struct dealer *dealer, struct dealer_reply *ret_reply)
{
	return dealer_receive_in(dealer, DEADLINE_MS, ret_reply);
}

int dealer_call(struct dealer *dealer, const struct kvb_msg_header *header, const void *body,
	size_t size, struct dealer_reply *ret_reply)
{
	int r = dealer_send(dealer, header, body, size);

	if (r == 0)
		r = dealer_receive(dealer, ret_reply);
	if (r < 0)
		return r;
	return ret_reply->header.request == header->request &&
			ret_reply->header.type == header->type
		? 0
		: -EBADMSG;
}

static int status_of(
	struct dealer *dealer, const struct kvb_msg_header *header, const void *body, size_t size)
{
	static _Thread_local struct dealer_reply reply;
	int r = dealer_call(dealer, header, body, size, &reply);

	return r < 0 ? r : reply.header.status;
}

int dealer_attach_with(struct dealer *dealer, const uint8_t token[KVB_ID_BYTES])
{
	struct kvb_msg_header header = dealer_header(dealer, KVB_MSG_ATTACH, 1);
	uint8_t body[9 + KVB_ID_BYTES] = "\x81\xa5token\xc4\x10";

	memcpy(body + 9, token, KVB_ID_BYTES);
	return status_of(dealer, &header, body, sizeof(body));
}

int dealer_attach(struct dealer *dealer)
{
	return dealer_attach_with(dealer, dealer->welcome->token);
}

int dealer_ping(struct dealer *dealer, uint64_t request)
{
	struct kvb_msg_header header = dealer_header(dealer, KVB_MSG_PING, request);

	return status_of(dealer, &header, "\x80", 1);
}
