/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.pml - readers that find and lease objects without asking, beside the server that replaces, evicts
 * and frees them, and uses their slots and extents again.
 *
 * memory[] is the shared index and the pool, cells[] the lease cells. Who stores puts into a buffer of its
 * own, which is drained in order at any time, as on x86; a fence waits until it is empty. The reader is
 * kvb_index_find() and kvb_index_lease() of shm/index.c, the server is server/store.c with index.c and
 * lease.c. A word's generation is never wrapped around here; tests/unit/test_index.c does that.
 *
 * Shown: what is leased is what was found, until it is let go of: neither freed nor overwritten. A key
 * that is always there is never missed, though it is replaced all the time. A reader that starts over
 * finds another entry than before, so it does not spin on a server that stands still. Limbo runs empty.
 *
 * Of a removal run.sh wants to see that the checker finds a trace, and what it must complain of:
 *
 * Removal: NO_READER_FENCE owner
 *     The lease lies in the reader's buffer while it looks again, and finds the object live. The server
 *     retires it, scans cells that are empty, frees the extent, and the reader reads it.
 * Removal: NO_SERVER_FENCE owner
 *     DYING lies in the server's buffer while it scans; then the reader leases, fences, looks again, and
 *     still finds the object live. The server frees it.
 * Removal: NO_RECHECK owner
 *     The server retires, scans and frees between the reader's look and its lease, which comes too late.
 * Removal: USED_AFTER_FENCE owner
 *     The scan comes between the reader's second look and the moment when it is told that there is a cell
 *     to look at.
 * Removal: SCAN_BEFORE_RETIRE owner
 *     The lease is taken after the scan and before DYING.
 * Removal: CLEAR_BEFORE_READ owner
 *     A reader that lets go before its last look at the bytes.
 * Removal: NO_NEW_GENERATION owner
 *     The slot is freed and used for another object between the two looks, which see the same word.
 * Removal: NO_KEY_RECHECK key
 *     The slot is used for another key between the look at the state and the comparison of the keys: the
 *     key that is always there is taken for missing.
 * Removal: NO_GENERATION key
 *     As before, between the looks at the entry and at the state.
 * Removal: NO_RESTART key
 *     The key is replaced between the looks at the entry and at the state; who does not start over
 *     misses it.
 * Removal: ENTRY_AFTER_DYING entry
 *     While the entry still names what is dying the reader starts over in vain.
 * Removal: ENTRY_BEFORE_LIVE entry
 *     While the entry already names what is not yet live the reader starts over in vain.
 */
#ifndef SLOTS
#define SLOTS 2
#endif
#define EXTENTS SLOTS
#ifndef PUTS
#define PUTS 4
#endif
#ifndef BUFFER
#define BUFFER 8
#endif
#define READERS 2

/* KEPT is always there: it is replaced, never deleted. OTHER comes and goes. */
#define KEPT  0
#define OTHER 1

#define EMPTY 0
#define LIVE  1
#define DYING 2

#define WORD(slot, generation)        (1 + (slot) + SLOTS * (generation))
#define SLOT_OF(word)                 (((word) - 1) % SLOTS)
#define GENERATION_OF(word)           (((word) - 1) / SLOTS)
#define STATE_GEN(generation, state)  ((generation) * 4 + (state))
#define CONTENT(slot, generation, key) (2 * WORD(slot, generation) + (key))

#ifdef NO_GENERATION
#define ENTRY_WORD(slot, generation) WORD(slot, 0)
#define IS_LIVE_IN(state, entry)     ((state) % 4 == LIVE)
#else
#define ENTRY_WORD(slot, generation) WORD(slot, generation)
#define IS_LIVE_IN(state, entry)     ((state) == STATE_GEN(GENERATION_OF(entry), LIVE))
#endif

#define ENTRY(key)    (key)
#define STATE(slot)   (2 + (slot))
#define KEY(slot)     (2 + SLOTS + (slot))
#define OFFSET(slot)  (2 + 2 * SLOTS + (slot))
#define BYTES(extent) (2 + 3 * SLOTS + (extent))
byte memory[2 + 3 * SLOTS + EXTENTS];
byte cells[READERS];
bit used[READERS]; /* cells_used: the scan looks at the cell. Stored by a locked operation, past the buffers */

chan server_buffer = [BUFFER] of { byte, byte };
chan reader_buffer[READERS] = [3] of { byte };

/* Whose the bytes of an extent are meant to be; the server's own, for the assertions. */
byte owner[EXTENTS];
byte gone; /* readers that have ended */

active proctype drain_server()
{
	byte address, value;

end:	do
	:: d_step { server_buffer?address,value; memory[address] = value; address = 0; value = 0 }
	od
}

proctype drain_reader(byte me)
{
	byte value;

end:	do
	:: d_step { reader_buffer[me]?value; cells[me] = value; value = 0 }
	od
}

inline start_over()
{
#ifdef NO_RESTART
	goto miss;
#else
#if !defined(NO_GENERATION) && !defined(NO_NEW_GENERATION)
	assert(memory[ENTRY(key)] != entry);
#endif
	entry = 0; state = 0; at = 0; matches = false;
	goto search;
#endif
}

proctype reader(byte me)
{
	byte key, entry, state, at;
	bool matches;

next:
	atomic {
		entry = 0; state = 0; at = 0; matches = false; key = KEPT;
		if
		:: key = KEPT
		:: key = OTHER
		:: goto leave
		fi
	}
search:
	atomic {
		entry = memory[ENTRY(key)];
		if
		:: entry == 0 -> goto miss
		:: else
		fi
	}
	atomic {
		state = memory[STATE(SLOT_OF(entry))];
		if
		:: !IS_LIVE_IN(state, entry) -> start_over()
		:: else
		fi
	}
	matches = memory[KEY(SLOT_OF(entry))] == key;
	at = memory[OFFSET(SLOT_OF(entry))];
	atomic {
#ifndef NO_KEY_RECHECK
		if
		:: memory[STATE(SLOT_OF(entry))] != state -> start_over()
		:: else
		fi;
#endif
		if
		:: !matches -> goto miss
		:: else -> matches = false
		fi;
#ifndef USED_AFTER_FENCE
		used[me] = 1;
#endif
		reader_buffer[me]!WORD(SLOT_OF(entry), state / 4)
	}
#ifndef NO_READER_FENCE
	empty(reader_buffer[me]);
#endif
	atomic {
#ifndef NO_RECHECK
		if
		:: memory[STATE(SLOT_OF(entry))] != state -> reader_buffer[me]!0; start_over()
		:: else
		fi;
#endif
		skip
	}
#ifdef USED_AFTER_FENCE
	used[me] = 1;
#endif
#ifdef CLEAR_BEFORE_READ
	reader_buffer[me]!0;
#endif
	do
	:: d_step {
		assert(owner[at] == CONTENT(SLOT_OF(entry), state / 4, key));
		assert(memory[BYTES(at)] == owner[at])
	   }
	:: break
	od;
#ifndef CLEAR_BEFORE_READ
	reader_buffer[me]!0;
#endif
	goto next;
miss:
	assert(key != KEPT);
	goto next;
leave:
	gone++
}

/* Of a slot, in the server's own memory. */
#define FREE    0
#define SHOWN   1 /* SHOWN + key */
#define LIMBO   3

#define HAS(slot, what) (slots[slot] == (what))

inline retire(old)
{
	server_buffer!STATE(old),STATE_GEN(generation[old], DYING)
}

inline set_entry(key, word)
{
	server_buffer!ENTRY(key),word
}

inline fill(slot, extent, key)
{
	server_buffer!BYTES(extent),CONTENT(slot, generation[slot], key);
	server_buffer!KEY(slot),key;
	server_buffer!OFFSET(slot),extent;
	server_buffer!STATE(slot),STATE_GEN(generation[slot], LIVE)
}

inline fence()
{
#ifndef NO_SERVER_FENCE
	empty(server_buffer);
#endif
	skip
}

inline look_at_cell(c)
{
	d_step {
		i = 0;
		do
		:: i < SLOTS ->
			leased[i] = leased[i] || (used[c] && cells[c] == WORD(i, generation[i]));
			i++
		:: else -> break
		od;
		i = 0
	}
}

inline scan()
{
	look_at_cell(0);
	look_at_cell(1)
}

inline leave_limbo()
{
	atomic {
		i = 0;
		do
		:: i < SLOTS && HAS(i, LIMBO) && !leased[i] ->
			slots[i] = FREE;
			owner[extents[i]] = 0;
			extents[i] = 0;
#ifndef NO_NEW_GENERATION
			generation[i]++;
#endif
			server_buffer!STATE(i),STATE_GEN(generation[i], EMPTY);
			i++
		:: i < SLOTS && !(HAS(i, LIMBO) && !leased[i]) -> i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < SLOTS -> leased[i] = false; i++
		:: else -> break
		od;
		i = 0
	}
}

inline hide(old, key, successor)
{
#ifdef ENTRY_AFTER_DYING
	retire(old);
	set_entry(key, successor);
#else
	set_entry(key, successor);
	retire(old);
#endif
	slots[old] = LIMBO
}

#define LAST (SLOTS - 1)

/* Any free slot and any free extent; there are as many of either. Those that were never taken are all the
 * same, so they go in order. */
inline take_free()
{
	if
	:: HAS(0, FREE) -> slot = 0
	:: HAS(1, FREE) -> slot = 1
	:: LAST > 1 && HAS(LAST, FREE) && slots_end >= LAST -> slot = LAST
	fi;
	if
	:: slot == slots_end -> slots_end++
	:: else
	fi;
	if
	:: owner[0] == 0 -> extent = 0
	:: owner[1] == 0 -> extent = 1
	:: LAST > 1 && owner[LAST] == 0 && extents_end >= LAST -> extent = LAST
	fi;
	if
	:: extent == extents_end -> extents_end++
	:: else
	fi
}

inline find_shown(key)
{
	old = 0;
	do
	:: old < SLOTS && !HAS(old, SHOWN + key) -> old++
	:: else -> break
	od
}

inline put(key)
{
	atomic {
		puts++;
		take_free();
		owner[extent] = CONTENT(slot, generation[slot], key);
		extents[slot] = extent;
		find_shown(key);
#ifdef ENTRY_BEFORE_LIVE
		if
		:: old < SLOTS -> hide(old, key, ENTRY_WORD(slot, generation[slot]))
		:: else -> set_entry(key, ENTRY_WORD(slot, generation[slot]))
		fi;
		fill(slot, extent, key);
#else
		fill(slot, extent, key);
		if
		:: old < SLOTS -> hide(old, key, ENTRY_WORD(slot, generation[slot]))
		:: else -> set_entry(key, ENTRY_WORD(slot, generation[slot]))
		fi;
#endif
		slots[slot] = SHOWN + key;
		slot = 0; extent = 0; old = 0
	}
}

inline evict()
{
	atomic {
		find_shown(OTHER);
		hide(old, OTHER, 0);
		old = 0
	}
}

#define ANY(what)   (HAS(0, what) || HAS(1, what) || (SLOTS > 2 && HAS(SLOTS - 1, what)))

#ifdef SCAN_BEFORE_RETIRE
#define scan_early() fence(); scan()
#define scan_late()  skip
#define free_now()   fence(); leave_limbo()
#else
#define scan_early() skip
#define scan_late()  scan()
#define free_now()   skip
#endif

active proctype server()
{
	byte slots[SLOTS], generation[SLOTS], extents[SLOTS];
	bool leased[SLOTS];
	byte puts, slot, extent, old, i;
	byte slots_end = 1, extents_end = 1;

	atomic {
		slots[0] = SHOWN + KEPT;
		owner[0] = CONTENT(0, 0, KEPT);
		memory[BYTES(0)] = owner[0];
		memory[KEY(0)] = KEPT;
		memory[STATE(0)] = STATE_GEN(0, LIVE);
		memory[ENTRY(KEPT)] = ENTRY_WORD(0, 0);
		run drain_reader(0);
		run drain_reader(1);
		run reader(0);
		run reader(1)
	}
	do
	:: puts < PUTS && ANY(FREE) -> scan_early(); put(KEPT); free_now()
	:: puts < PUTS && ANY(FREE) -> scan_early(); put(OTHER); free_now()
	:: ANY(SHOWN + OTHER) -> scan_early(); evict(); free_now()
	:: ANY(LIMBO) -> fence(); scan(); leave_limbo()
	:: break
	od;
	gone == READERS && empty(reader_buffer[0]) && empty(reader_buffer[1]);
	fence();
	scan();
	leave_limbo();
	assert(!ANY(LIMBO))
}
