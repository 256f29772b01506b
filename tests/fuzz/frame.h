/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.h - frames as libzmq would bring them, for targets that stand in its place.
 */
#ifndef KVB_TESTS_FUZZ_FRAME_H
#define KVB_TESTS_FUZZ_FRAME_H

#include <string.h>
#include <zmq.h>

#include "tests/fuzz/fuzz.h"

/* Makes the message anew; what zmq_msg_recv() returns for it. */
static inline int kvb_fuzz_frame(zmq_msg_t *msg, const void *data, size_t size)
{
	zmq_msg_close(msg);
	kvb_fuzz_require(zmq_msg_init_size(msg, size) == 0, "no memory");
	/* An empty one lies nowhere. */
	if (size > 0)
		memcpy(zmq_msg_data(msg), data, size);
	return (int)size;
}

#endif /* KVB_TESTS_FUZZ_FRAME_H */
