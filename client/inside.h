/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inside.h - who is inside an operation on shared memory, known to the one thread that wants to unmap
 * it, at the price of two plain stores per operation.
 */
#ifndef KVB_CLIENT_INSIDE_H
#define KVB_CLIENT_INSIDE_H

#include <stdint.h>

/* Threads with a word of their own; those beyond share two, by turns, so that each of the two comes to rest
 * however many follow. */
#define KVB_INSIDE_WORDS 512u

struct kvb_inside {
	struct {
		uint32_t inside;  /* atomic, of one thread; the last two count threads */
		uint8_t pad[124]; /* a line pair each */
	} words[KVB_INSIDE_WORDS + 2];
	uint32_t turn; /* atomic: its lowest bit says which of the two counts those who come */
};

/* Makes the calling process ready for kvb_inside_barrier(). Any thread, as often as you like. */
void kvb_inside_prepare(void);
/* The calling thread's number, below KVB_INSIDE_WORDS; KVB_INSIDE_WORDS when all are taken. */
uint32_t kvb_inside_thread(void);

/* What is loaded between the two is not taken back before kvb_inside_leave(). Not nested. */
void kvb_inside_enter(struct kvb_inside *inside);
void kvb_inside_leave(struct kvb_inside *inside);

/* Every thread of the process has done what it did before, and will see what the caller did before. */
void kvb_inside_barrier(void);
/* After something was taken out of sight: waits until nobody is inside who may have seen it. */
void kvb_inside_wait(struct kvb_inside *inside);

/* Before a load that kvb_inside_barrier() of another thread orders against an earlier store of the
 * caller: nothing, or a full fence where the kernel has no such barrier. */
void kvb_inside_fence(void);

#endif /* KVB_CLIENT_INSIDE_H */
