/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scene.h - where hostile clients do their worst: a server in a process of its own, and beside them an
 * honest client in another, which checks every byte it gets and how long it waits.
 *
 * A group of tests has one scene. Main thread only.
 */
#ifndef KVB_TESTS_HOSTILE_SCENE_H
#define KVB_TESTS_HOSTILE_SCENE_H

#include "shm/util.h"
#include "tests/process.h"
#include "tests/raw.h"

#define SCENE_RING     64u
#define SCENE_FRAGMENT (64 * KVB_KIB)
#define SCENE_STAGING  KVB_MIB
#define SCENE_POOL     (64 * KVB_MIB)
#define SCENE_CELLS    256u

extern struct process_server scene_server;
/* How many wakes the server may have missed by now: those that a client took away from itself. */
extern uint64_t scene_missed_wakes;

/* Group setup and teardown: the teardown's findings are asserted by scene_ends_well(), since cmocka
 * does not fail for a group's teardown. */
int scene_start(void **state);
int scene_stop(void **state);

/*
 * The end of each test: all hostile clients have left. Waits until the server is as it was before them
 * (sessions, descriptors, threads), and asserts that it is whole, that no sanitizer said anything, and
 * that the honest client got on with its work meanwhile: no wrong byte, no error, no wait of a second.
 */
void scene_check(void);
/* The last test of a group: the server stops in order. */
void scene_ends_well(void **state);

/* One statistic of the server, as a client of its own sees it. */
uint64_t scene_stat(const char *name);

#endif /* KVB_TESTS_HOSTILE_SCENE_H */
