/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.h - a gate that handlers of an embedded server wait at until the test opens it. One per
 * program. Any thread.
 */
#ifndef KVB_TESTS_GATE_H
#define KVB_TESTS_GATE_H

#include <stdbool.h>
#include <stdint.h>

/* Closes it, for handlers that come from now on. */
void gate_close(void);
void gate_open(void);
/* Handler: waits until it is open. */
void gate_pass(void);
/* How many wait at it, or are just leaving it. */
uint32_t gate_inside(void);
/* Waits until it is `count`. False: the deadline of embedded_wait() passed. */
bool gate_wait_inside(uint32_t count);

#endif /* KVB_TESTS_GATE_H */
