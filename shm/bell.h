/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bell.h - an eventfd, and the sleeping word that says whether ringing it is needed.
 *
 *   producer: publish the index (release), kvb_bell_wanted(), kvb_bell_ring() if it says so
 *   consumer: kvb_bell_arm(), look at the index again, sleep; on waking kvb_bell_disarm()
 *
 * Both sides hold a full fence between their store and their load; without either of them both can
 * miss each other (store buffering), and the consumer sleeps on work for ever.
 */
#ifndef KVB_SHM_BELL_H
#define KVB_SHM_BELL_H

#include <stdbool.h>
#include <stdint.h>

/* Producer, after publishing. True at most once per sleep, except for KVB_SLEEPING_ALWAYS. */
bool kvb_bell_wanted(uint32_t *sleeping);

/* Consumer. After kvb_bell_arm() it must look at the index once more before it sleeps. */
void kvb_bell_arm(uint32_t *sleeping);
void kvb_bell_disarm(uint32_t *sleeping);

/* Adds 1 to the eventfd. 0; 1 it was full already, which counts as rung; -EINTR a signal came
 * while the peer made this write block; other -errno. Not retried on EINTR: that is how the
 * watchdog frees a ringer. */
int kvb_bell_ring(int fd);

/* Takes all rings so far. Only the bell's consumer calls this. 0; -EAGAIN there were none. */
int kvb_bell_clear(int fd);

#endif /* KVB_SHM_BELL_H */
