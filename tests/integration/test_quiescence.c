/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_quiescence.c - descriptors go only after the workers are seen not to touch them.
 *
 * A server in this process, so that its descriptors share their numbers with the test's files: the
 * fault this project exists for is a late ring into a number that somebody else has got meanwhile.
 * Threads and hooks record into atomics; the main thread asserts.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/hook.h"
#include "server/server.h"
#include "shm/atomic.h"
#include "shm/fd.h"
#include "shm/threads.h"
#include "shm/util.h"
#include "tests/embedded.h"
#include "tests/raw.h"

#define T1 KVB_TRANSFER_ID(0, 1)

static struct embedded embedded;
static struct raw_client raw;

/* ------------------------------------------------------------------------- stopping a worker by hook */

static struct {
	uint32_t point; /* atomic: 1 + enum kvb_hook_point to stop at, once; 0: none */
	sem_t reached;
	sem_t go_on;
} gate;

static void stop_here(enum kvb_hook_point point, uint32_t slot)
{
	uint32_t expected = 1 + (uint32_t)point;

	(void)slot;
	if (!kvb_compare_exchange(&gate.point, &expected, 0u))
		return;
	sem_post(&gate.reached);
	while (sem_wait(&gate.go_on) < 0)
		;
}

static void arm_gate(enum kvb_hook_point point)
{
	kvb_store_release(&gate.point, 1 + (uint32_t)point);
}

static bool gate_reached(const void *arg)
{
	(void)arg;
	return sem_trywait(&gate.reached) == 0;
}

static int start(void **state)
{
	struct kvb_server_options config;

	(void)state;
	sem_init(&gate.reached, 0, 0);
	sem_init(&gate.go_on, 0, 0);
	gate.point = 0;
	kvb_store_relaxed(&kvb_hook_installed, stop_here);
	embedded_config(&config);
	config.drain_timeout_ms = 300;
	if (embedded_start(&embedded, &config) < 0)
		return -1;
	return raw_attach(&raw, embedded.dir);
}

static int stop(void **state)
{
	int r = 0;

	(void)state;
	raw_drop(&raw);
	/* Lets a worker go that a failed test left behind. */
	sem_post(&gate.go_on);
	if (embedded.server)
		r = embedded_stop(&embedded);
	kvb_store_relaxed(&kvb_hook_installed, (kvb_hook_fn *)NULL);
	return r;
}

static bool logged(const void *text)
{
	return embedded_log_find(&embedded, text, 0) >= 0;
}

/* ------------------------------------------------------------------------------------- one session */

static void a_worker_with_an_event_in_hand_holds_up_the_close(void **state)
{
	struct kvb_sqe nop = {.op = KVB_OP_NOP};
	struct raw_client other;

	(void)state;
	assert_int_equal(raw_attach(&other, embedded.dir), 0);
	arm_gate(KVB_HOOK_EVENT_TAKEN);
	raw_kick(&raw);
	assert_true(embedded_wait(gate_reached, NULL));
	raw_drop(&raw);
	assert_true(embedded_wait(logged, "session 0 (raw) ends: the client left"));
	/* The other worker serves on, and passes many quiescent points; the stopped one passes
	 * none. */
	for (int i = 0; i < 2000; i++)
		assert_int_equal(raw_call(&other, &nop, NULL, NULL), 0);
	assert_false(logged("step: close kick of session 0"));
	assert_false(logged("step: close segment of session 0"));
	sem_post(&gate.go_on);
	assert_true(embedded_wait(logged, "step: close segment of session 0"));
	assert_true(embedded_log_find(&embedded, "step: close kick of session 0", 0) >= 0);
	assert_int_equal(raw_call(&other, &nop, NULL, NULL), 0);
	raw_drop(&other);
}

static void a_worker_in_a_copy_holds_up_the_close(void **state)
{
	struct kvb_sqe put = {.op = KVB_OP_PUT,
		.flags = KVB_SQE_OPEN,
		.key_len = 1,
		.total = 4096,
		.length = 4096};
	struct kvb_sqe nop = {.op = KVB_OP_NOP};
	struct raw_client other;

	(void)state;
	assert_int_equal(raw_attach(&other, embedded.dir), 0);
	arm_gate(KVB_HOOK_COPY);
	assert_int_equal(raw_submit(&raw, &put, "k"), 0);
	assert_true(embedded_wait(gate_reached, NULL));
	raw_drop(&raw);
	/* Past the deadline it is told, and still open. */
	assert_true(embedded_wait(logged, "session 0 (raw, pid"));
	assert_true(logged("is stuck: 1 references, 0 open transfers, held by kvb-worker-"));
	assert_false(logged("step: close"));
	assert_int_equal(raw_call(&other, &nop, NULL, NULL), 0);
	sem_post(&gate.go_on);
	assert_true(embedded_wait(logged, "step: close segment of session 0"));
	raw_drop(&other);
}

/* The client fills its bell and takes O_NONBLOCK away from the description it shares with the
 * server. */
static void a_bell_that_blocks_costs_its_owner_the_session(void **state)
{
	struct kvb_sqe nop = {.op = KVB_OP_NOP};
	struct kvb_goodbye goodbye;
	struct raw_client other;

	(void)state;
	assert_int_equal(raw_attach(&other, embedded.dir), 0);
	assert_int_equal(fcntl(raw.fds[KVB_FD_BELL], F_SETFL, 0), 0);
	assert_int_equal(eventfd_write(raw.fds[KVB_FD_BELL], UINT64_MAX - 1), 0);
	kvb_store_relaxed(&raw.cq.header->cq_sleeping, (uint32_t)KVB_SLEEPING_ALWAYS);
	assert_int_equal(raw_submit(&raw, &nop, NULL), 0);
	assert_int_equal(raw_goodbye(raw.door_fd, &goodbye), 0);
	assert_int_equal(goodbye.reason, KVB_REASON_BELL_BLOCKED);
	assert_int_equal(raw_call(&other, &nop, NULL, NULL), 0);
	raw_drop(&other);
}

/* -------------------------------------------------------------------------------------- the server */

static void assert_order(const char *earlier, const char *later)
{
	char *log = embedded_log(&embedded);
	char *last_earlier = NULL, *first_later = strstr(log, later);

	for (char *at = strstr(log, earlier); at; at = strstr(at + 1, earlier))
		last_earlier = at;
	assert_non_null(last_earlier);
	assert_non_null(first_later);
	assert_true(last_earlier < first_later);
	free(log);
}

static bool is_draining(const void *arg)
{
	(void)arg;
	return kvb_load_acquire(&raw.sq.header->state) == KVB_SESSION_DRAINING;
}

static void drain_lets_an_open_transfer_finish_and_closes_in_order(void **state)
{
	struct raw_client other;
	struct kvb_goodbye goodbye;
	struct kvb_cqe cqe;
	eventfd_t rings;

	(void)state;
	assert_int_equal(raw_attach(&other, embedded.dir), 0);
	assert_int_equal(raw_put(&raw, "k", T1, 0, 4096, 12288), 0);
	kvb_server_stop_begin(embedded.server);
	assert_true(embedded_wait(is_draining, NULL));
	assert_int_equal(raw_put(&raw, "new", 0, 0, 16, 16), -ESHUTDOWN);
	assert_int_equal(raw_get(&raw, "k", 0, 0, 16, 16, &cqe), -ESHUTDOWN);
	assert_int_equal(raw_put(&raw, "", T1, 4096, 4096, 0), 0);
	assert_int_equal(raw_put(&raw, "", T1, 8192, 4096, 0), 0);
	assert_int_equal(raw_goodbye(raw.door_fd, &goodbye), 0);
	assert_int_equal(goodbye.reason, KVB_REASON_SERVER_DRAIN);
	assert_int_equal(goodbye.error, -ESHUTDOWN);
	assert_int_equal(raw_goodbye(other.door_fd, &goodbye), 0);
	assert_int_equal(kvb_load_acquire(&raw.sq.header->state), KVB_SESSION_REVOKED);
	/* The final ring came. */
	assert_int_equal(eventfd_read(other.fds[KVB_FD_BELL], &rings), 0);
	assert_int_equal(rings, 1);
	assert_int_equal(kvb_server_stop_wait(embedded.server), 0);
	assert_order("step: ring", "step: close");
	assert_order("step: close", "step: unlink");
	assert_false(logged("stuck"));
	raw_drop(&other);
}

/* The fault comes when the session already drains in peace. */
static void a_client_that_breaks_the_protocol_cannot_hold_up_the_drain(void **state)
{
	struct kvb_goodbye goodbye;

	(void)state;
	assert_int_equal(raw_put(&raw, "k", T1, 0, 4096, 12288), 0);
	kvb_server_stop_begin(embedded.server);
	assert_true(embedded_wait(is_draining, NULL));
	kvb_store_release(&raw.sq.header->sq_tail, raw.sq.tail + 1000);
	raw_kick(&raw);
	assert_int_equal(raw_goodbye(raw.door_fd, &goodbye), 0);
	assert_int_equal(goodbye.reason, KVB_REASON_PROTOCOL);
	assert_int_equal(kvb_server_stop_wait(embedded.server), 0);
	assert_false(logged("stuck"));
}

static void an_open_transfer_is_not_stuck_work(void **state)
{
	(void)state;
	assert_int_equal(raw_put(&raw, "k", T1, 0, 4096, 12288), 0);
	kvb_server_stop_begin(embedded.server);
	assert_int_equal(kvb_server_stop_wait(embedded.server), 0);
	assert_false(logged("stuck"));
}

static void stuck_work_is_named_and_may_be_waited_for_again(void **state)
{
	struct kvb_sqe put = {.op = KVB_OP_PUT,
		.flags = KVB_SQE_OPEN,
		.key_len = 1,
		.total = 4096,
		.length = 4096};

	(void)state;
	arm_gate(KVB_HOOK_COPY);
	assert_int_equal(raw_submit(&raw, &put, "k"), 0);
	assert_true(embedded_wait(gate_reached, NULL));
	kvb_server_stop_begin(embedded.server);
	assert_int_equal(kvb_server_stop_wait(embedded.server), -ETIMEDOUT);
	assert_true(logged("is stuck: 1 references, 0 open transfers, held by kvb-worker-"));
	assert_false(logged("step: close"));
	assert_int_equal(kvb_server_stop_wait(embedded.server), -ETIMEDOUT);
	sem_post(&gate.go_on);
	/* The last word may be one more time-out that was under way. */
	int r;
	do {
		r = kvb_server_stop_wait(embedded.server);
	} while (r == -ETIMEDOUT);
	assert_int_equal(r, 0);
	assert_order("step: ring", "step: close");
}

/* ----------------------------------------------------------------------------------- the old hazard */

#define CYCLES  40
#define RINGERS 3

static struct {
	uint32_t stop;   /* atomic */
	uint32_t dirty;  /* atomic: canary files with something in them */
	uint32_t files;  /* atomic: canary files made */
	uint32_t calls;  /* atomic: requests completed */
	uint32_t faults; /* atomic: canary files that could not be made */
} storm;

/* Makes files all the time, so that a number that is closed is reused at once, and looks whether
 * anybody wrote into them. */
static void *make_canaries(void *arg)
{
	(void)arg;
	while (!kvb_load_acquire(&storm.stop)) {
		int fds[8];
		struct stat st;
		for (unsigned i = 0; i < KVB_ARRAY_SIZE(fds); i++)
			fds[i] = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
		for (unsigned i = 0; i < KVB_ARRAY_SIZE(fds); i++) {
			if (fds[i] < 0 || fstat(fds[i], &st) < 0)
				kvb_count(&storm.faults, 1);
			else if (st.st_size != 0)
				kvb_count(&storm.dirty, 1);
			kvb_count(&storm.files, 1);
			kvb_fd_close(&fds[i]);
		}
	}
	return NULL;
}

/* A client that has its bell rung for every completion, until the server revokes it. */
static void *ring_all_the_time(void *arg)
{
	struct kvb_sqe nop = {.op = KVB_OP_NOP};
	struct raw_client client;
	struct kvb_cqe cqe;
	uint32_t credit = 0;

	(void)arg;
	/* The server may be draining by now. */
	if (raw_attach(&client, embedded.dir) < 0)
		return NULL;
	kvb_store_relaxed(&client.cq.header->cq_sleeping, (uint32_t)KVB_SLEEPING_ALWAYS);
	while (kvb_load_acquire(&client.sq.header->state) != KVB_SESSION_REVOKED) {
		if (credit < client.welcome.cq_entries && raw_submit(&client, &nop, NULL) == 0)
			credit++;
		while (kvb_cq_take(&client.cq, &cqe) == 1) {
			kvb_count(&storm.calls, 1);
			credit--;
		}
	}
	raw_drop(&client);
	return NULL;
}

static bool storm_blows(const void *arg)
{
	return kvb_load_relaxed(&storm.calls) > *(const uint32_t *)arg;
}

static unsigned count_open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static unsigned count_threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void one_cycle(void)
{
	pthread_t ringers[RINGERS];
	struct kvb_server_options config;
	uint32_t want = kvb_load_relaxed(&storm.calls) + 200;

	embedded_config(&config);
	config.pool_bytes = KVB_MIB;
	assert_int_equal(embedded_start(&embedded, &config), 0);
	for (int i = 0; i < RINGERS; i++)
		assert_int_equal(
			kvb_thread_start(&ringers[i], "ringer", ring_all_the_time, NULL), 0);
	assert_true(embedded_wait(storm_blows, &want));
	assert_int_equal(embedded_stop(&embedded), 0);
	for (int i = 0; i < RINGERS; i++)
		pthread_join(ringers[i], NULL);
}

static void no_ring_goes_into_a_reused_number(void **state)
{
	unsigned fds, threads;
	pthread_t canaries;

	(void)state;
	one_cycle();
	fds = count_open_fds();
	threads = count_threads();
	assert_int_equal(kvb_thread_start(&canaries, "canaries", make_canaries, NULL), 0);
	for (int i = 0; i < CYCLES; i++)
		one_cycle();
	kvb_store_release(&storm.stop, 1u);
	pthread_join(canaries, NULL);
	assert_int_equal(storm.faults, 0);
	assert_int_equal(storm.dirty, 0);
	assert_true(storm.files > CYCLES);
	assert_int_equal(count_open_fds(), fds);
	assert_int_equal(count_threads(), threads);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_worker_with_an_event_in_hand_holds_up_the_close, start, stop),
		cmocka_unit_test_setup_teardown(a_worker_in_a_copy_holds_up_the_close, start, stop),
		cmocka_unit_test_setup_teardown(
			a_bell_that_blocks_costs_its_owner_the_session, start, stop),
		cmocka_unit_test_setup_teardown(
			drain_lets_an_open_transfer_finish_and_closes_in_order, start, stop),
		cmocka_unit_test_setup_teardown(
			a_client_that_breaks_the_protocol_cannot_hold_up_the_drain, start, stop),
		cmocka_unit_test_setup_teardown(an_open_transfer_is_not_stuck_work, start, stop),
		cmocka_unit_test_setup_teardown(
			stuck_work_is_named_and_may_be_waited_for_again, start, stop),
		cmocka_unit_test(no_ring_goes_into_a_reused_number),
	};

	return cmocka_run_group_tests_name("quiescence", tests, NULL, NULL) ? 1 : 0;
}
