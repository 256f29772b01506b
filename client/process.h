/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.h - whether something was made in this process or in one that it was forked from, without
 * asking the kernel. Any thread.
 */
#ifndef KVB_CLIENT_PROCESS_H
#define KVB_CLIENT_PROCESS_H

#include <stdint.h>

/* Gives this process its number, if it has none yet. 0; -errno. */
int kvb_process_prepare(void);
/* Differs from the number of every process that this one descends from; 0: it has none yet. */
uint32_t kvb_process_number(void);

#endif /* KVB_CLIENT_PROCESS_H */
