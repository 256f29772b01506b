/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runq.pml - two clients that submit and sleep, two workers that serve, sleep and hand sessions to each
 * other: bells, kicks, the run queue and its states.
 *
 * The client is client/stream.c with shm/ring.c and shm/bell.c; the workers are server/worker.c, runq.c and
 * execute.c. Who stores to shared memory puts into a buffer of its own, which is drained in order at any
 * time, as on x86; a fence or an atomic operation waits until it is empty. Kernel facilities have no
 * buffer: eventfds, and epoll whose edges one waiter takes. A visit may end after any request, as if its
 * budget were used up. With SPINS a worker may, as often as it likes, leave a session queued instead of
 * letting it sleep, as with spin_us.
 *
 * Shown: no session is served by two at once, and no request and no completion is slept on: all clients
 * get all they wait for. Where that fails, the checker comes to an end in which a client still waits.
 *
 * Short: REQUESTS_0=2 REQUESTS_1=0
 * Short: REQUESTS_0=1 REQUESTS_1=1
 * Short: REQUESTS_0=2 REQUESTS_1=0 SPINS
 * Short: REQUESTS_0=1 REQUESTS_1=1 SPINS
 *
 * Of a removal run.sh wants to see that the checker finds a trace, and what it must complain of:
 *
 * Removal: NO_CLIENT_FENCE end
 *     The new tail lies in the client's buffer while it reads that the worker is awake. The worker goes to
 *     sleep, its last look does not see the tail, and nobody rings.
 * Removal: NO_SERVER_FENCE end
 *     SLEEPING lies in the worker's buffer while it takes its last look: the same from the other side.
 * Removal: NO_LAST_LOOK end
 *     The client submits after the worker's look and before SLEEPING, and has no reason to ring.
 * Removal: NO_AGAIN end
 *     The kick of a session that is running is dropped; the worker has looked at its queue already.
 * Removal: NO_COMPLETION_FENCE end
 *     The completion lies in the worker's buffer while it reads that the client is awake.
 * Removal: NO_WAITER_FENCE end
 *     SLEEPING lies in the client's buffer while it looks at the completions once more.
 * Removal: NO_SECOND_LOOK end
 *     The completion comes after the client's look and before SLEEPING.
 */
/* Of either client. One that submits twice can be asleep, awake and on its way between the two. The
 * short settings are that client alone beside two workers, and two clients that submit once each. */
#ifndef REQUESTS_0
#define REQUESTS_0 2
#endif
#ifndef REQUESTS_1
#define REQUESTS_1 1
#endif
#define SESSIONS 2
#define WORKERS  2
#define REQUESTS(s) (s -> REQUESTS_1 : REQUESTS_0)

#define AWAKE    0
#define SLEEPING 1

#define IDLE    0
#define QUEUED  1
#define RUNNING 2
#define AGAIN   3

#define SQ_TAIL     0
#define CQ_SLEEPING 1
#define SQ_SLEEPING 0
#define CQ_TAIL     1

/* session->header */
byte sq_tail[SESSIONS], cq_tail[SESSIONS];
bit sq_sleeping[SESSIONS], cq_sleeping[SESSIONS];
/* the two eventfds: an edge that no worker has taken, a ring that the client has not taken */
bit kick[SESSIONS], bell[SESSIONS];
/* the server's own of a session */
byte run_of[SESSIONS], head[SESSIONS];
bit inside[SESSIONS];
/* the group */
chan queue = [SESSIONS] of { byte };
byte n_idle, n_waked, rings;

chan client_buffer[SESSIONS] = [3] of { bit, byte };
chan worker_buffer[WORKERS] = [3] of { byte, bit, byte };

proctype drain_client(byte s)
{
	byte value;

end:	do
	:: d_step { client_buffer[s]?SQ_TAIL,value; sq_tail[s] = value; value = 0 }
	:: d_step { client_buffer[s]?CQ_SLEEPING,value; cq_sleeping[s] = value; value = 0 }
	od
}

proctype drain_worker(byte me)
{
	byte s, value;

end:	do
	:: d_step { worker_buffer[me]?s,SQ_SLEEPING,value; sq_sleeping[s] = value; s = 0; value = 0 }
	:: d_step { worker_buffer[me]?s,CQ_TAIL,value; cq_tail[s] = value; s = 0; value = 0 }
	od
}

/* ------------------------------------------------------------------------------------- the client */

#define client_orders() empty(client_buffer[s])

proctype client(byte s)
{
	byte submitted, taken;

	do
	:: submitted < REQUESTS(s) ->
		atomic { submitted++; client_buffer[s]!SQ_TAIL,submitted };
		/* kvb_bell_wanted() */
#ifndef NO_CLIENT_FENCE
		client_orders();
#endif
		if
		:: sq_sleeping[s] == AWAKE
		:: sq_sleeping[s] == SLEEPING ->
			if
			:: d_step { client_orders() && sq_sleeping[s] == SLEEPING -> sq_sleeping[s] = AWAKE };
				d_step { client_orders() -> kick[s] = 1 }
			:: client_orders() && sq_sleeping[s] == AWAKE
			fi
		fi
	:: taken < submitted && taken < cq_tail[s] -> taken = cq_tail[s]
	:: taken < submitted && taken == cq_tail[s] ->
		client_buffer[s]!CQ_SLEEPING,SLEEPING;
#ifndef NO_WAITER_FENCE
		client_orders();
#endif
		if
#ifndef NO_SECOND_LOOK
		:: taken < cq_tail[s]
#endif
		:: taken == cq_tail[s] ->
			/* poll(), then kvb_bell_clear() */
			d_step { client_orders() && bell[s] -> bell[s] = 0 }
		fi;
		client_buffer[s]!CQ_SLEEPING,AWAKE
	:: taken == REQUESTS(s) -> break
	od
}

/* ------------------------------------------------------------------------------------ the workers */

#define worker_orders() empty(worker_buffer[me])

/* Who pushes takes the oldest next, so that only what lies behind it is worth a wake. */
inline push(session, wakes)
{
	d_step {
		worker_orders() ->
		wake = wakes && nempty(queue) && n_idle > n_waked;
		queue!session;
		n_waked = n_waked + wake
	};
	if
	:: wake -> atomic { rings++; wake = false }
	:: else
	fi
}

/* kick() */
inline session_kick(session)
{
	d_step {
		worker_orders() ->
		was = run_of[session];
		if
		:: was == IDLE -> run_of[session] = QUEUED
#ifndef NO_AGAIN
		:: was == RUNNING -> run_of[session] = AGAIN
#endif
		:: else
		fi
	};
	if
	:: was == IDLE -> push(session, true)
	:: else
	fi;
	was = 0
}

inline take_kicks()
{
	edge[0] = kick[0]; kick[0] = 0;
	edge[1] = kick[1]; kick[1] = 0
}

inline handle_events()
{
	if
	:: edge[0] -> edge[0] = 0; session_kick(0)
	:: else
	fi;
	if
	:: edge[1] -> edge[1] = 0; session_kick(1)
	:: else
	fi;
	if
	:: waked ->
		/* take_wake(): several may see one ring, one gets it. */
		if
		:: atomic { rings > 0 -> rings--; waked = false };
			n_waked--
		:: atomic { rings == 0 -> waked = false }
		fi
	:: else
	fi
}

inline post(s)
{
	atomic { head[s]++; worker_buffer[me]!s,CQ_TAIL,head[s] };
	/* kvb_bell_wanted() */
#ifndef NO_COMPLETION_FENCE
	worker_orders();
#endif
	if
	:: cq_sleeping[s] == AWAKE
	:: cq_sleeping[s] == SLEEPING ->
		if
		:: d_step { worker_orders() && cq_sleeping[s] == SLEEPING -> cq_sleeping[s] = AWAKE };
			d_step { worker_orders() -> bell[s] = 1 }
		:: worker_orders() && cq_sleeping[s] == AWAKE
		fi
	fi
}

proctype worker(byte me)
{
	byte s, was;
	bit edge[SESSIONS];
	bool watched, waked, wake;

top:
	if
	:: atomic { worker_orders() && nempty(queue) -> queue?s; watched = n_idle > n_waked }
	:: atomic { worker_orders() && empty(queue) -> n_idle++; goto wait }
	fi;
	/* serve() */
	d_step { worker_orders() -> assert(run_of[s] == QUEUED && !inside[s]); run_of[s] = RUNNING; inside[s] = 1 };
visit:
	if
	:: head[s] < sq_tail[s] ->
		post(s);
		if
		:: goto visit
		:: goto more /* the budget is used up */
		fi
	:: head[s] == sq_tail[s]
#ifdef SPINS
	:: head[s] == sq_tail[s] -> goto spin
#endif
	fi;
	/* rest() */
	worker_buffer[me]!s,SQ_SLEEPING,SLEEPING;
#ifndef NO_SERVER_FENCE
	worker_orders();
#endif
#ifndef NO_LAST_LOOK
	if
	:: head[s] < sq_tail[s] ->
		worker_buffer[me]!s,SQ_SLEEPING,AWAKE;
		goto more
	:: head[s] == sq_tail[s]
	fi;
#endif
	if
	:: d_step { worker_orders() && run_of[s] == RUNNING -> inside[s] = 0; run_of[s] = IDLE; s = 0 };
		goto served
	:: worker_orders() && run_of[s] != RUNNING
	fi;
#ifdef SPINS
spin:
	if
	:: sq_sleeping[s] == SLEEPING -> worker_buffer[me]!s,SQ_SLEEPING,AWAKE
	:: sq_sleeping[s] == AWAKE
	fi;
	atomic { worker_orders() -> inside[s] = 0; run_of[s] = QUEUED };
	push(s, false);
	s = 0;
	goto served;
#endif
more:
	atomic { worker_orders() -> inside[s] = 0; run_of[s] = QUEUED };
	push(s, true);
	s = 0;
served:
	if
	:: atomic { watched -> watched = false }
	:: atomic { !watched -> skip }
	/* A wake is left to a worker that is idle. */
	:: atomic { !watched -> take_kicks() }; handle_events()
	fi;
	goto top;
wait:
end:	atomic { kick[0] || kick[1] || rings > 0 -> take_kicks(); waked = rings > 0 };
	n_idle--;
	handle_events();
	goto top
}

init
{
	atomic {
		sq_sleeping[0] = SLEEPING;
		sq_sleeping[1] = SLEEPING;
		run drain_client(0); run drain_client(1);
		run drain_worker(0); run drain_worker(1);
		run client(0); run client(1);
		run worker(0); run worker(1)
	}
}
