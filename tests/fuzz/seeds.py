#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the inputs that fuzzing begins with: python3 tests/fuzz/seeds.py FOLDER

One folder per target, in it one file per kind of valid input, and per kind of refusal that is worth a name. The
formats are described at the head of each target. What fuzzing finds is kept beside them; this touches only "seed_*".
"""
import struct
import sys
from pathlib import Path

import msgpack

MAGIC, ABI = 0x4C56424B, 1
BOOT, TOKEN = b"\x22" * 16, b"\x11" * 16
NOP, PUT, GET, EXISTS, DELETE, ABORT, STATS = range(7)
OPEN, IF_ABSENT = 1, 2
SESSION = 1 << 32


def u8(*values):
    return bytes(values)


def u16(value):
    return struct.pack("<H", value)


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def change(after, how, word, value):
    return u8(after, how) + u16(word) + u32(value)


def changes(*each):
    return u8(len(each)) + b"".join(each)


# ---------------------------------------------------------------------------------------------------- door


def hello(magic=MAGIC, abi=ABI, kind=1, flags=0, node=-1, name=b"engine", reserved=b""):
    return u8(0) + struct.pack("<IHHIi32s16s", magic, abi, kind, flags, node, name, reserved)


def welcome(sq=16, cq=16, staging=4096, fragment=1024, **fields):
    head = 7 * 128
    up = lambda value, unit: (value + unit - 1) // unit * unit
    cq_at = up(head + sq * 64, 128)
    key_at = up(cq_at + cq * 32, 128)
    staging_at = up(key_at + sq * 1024, 4096)
    v = dict(magic=MAGIC, abi=ABI, kind=2, who=1, flags=0, total=staging_at + staging, life=4096, sq=sq, cq=cq,
             sq_at=head, cq_at=cq_at, key_at=key_at, lease_bytes=0, cells=0, key_max=1024, staging_at=staging_at,
             staging=staging, fragment=fragment, transfers=16, payload=1 << 30, index=0)
    v.update(fields)
    record = struct.pack("<IHH16s16sQIIQQIIQQQQIIQQIIQQIIQ80x", v["magic"], v["abi"], v["kind"], BOOT, TOKEN, SESSION,
                         v["who"], v["flags"], v["total"], v["life"], v["sq"], v["cq"], v["sq_at"], v["cq_at"],
                         v["key_at"], v["lease_bytes"], v["cells"], v["key_max"], v["staging_at"], v["staging"],
                         v["fragment"], v["transfers"], v["payload"], v["payload"] // 2, 30000, 0, v["index"])
    return u8(1) + record


def goodbye(reason=1, error=-104, text=b"the session ends", kind=3):
    return u8(2) + struct.pack("<IHHIi48x192s", MAGIC, ABI, kind, reason, error, text)


def door():
    yield "hello", hello()
    yield "hello_reader", hello(flags=1, node=0)
    yield "hello_name_full", hello(name=b"\x1b[31m\"" + b"n" * 26)
    yield "hello_other_abi", hello(abi=2)
    yield "hello_other_magic", hello(magic=0x48545450)
    yield "hello_reserved", hello(reserved=b"\0" * 15 + b"\1")
    yield "welcome", welcome()
    yield "welcome_reader", welcome(flags=1, lease_bytes=4096, cells=8, index=8192)
    yield "welcome_isolated", welcome(who=3)
    yield "welcome_smallest", welcome(sq=1, cq=1, staging=128, fragment=1, total=4096 + 128)
    yield "welcome_more_sq", welcome(sq=64, cq=8)
    yield "welcome_sq_less_than_cq", welcome(sq=8, cq=16)
    yield "welcome_keys_beyond", welcome(key_at=8192)
    yield "welcome_credit", welcome(cq=1 << 17, sq=1 << 17)
    yield "welcome_short", welcome()[:-1]
    yield "goodbye", goodbye()
    yield "goodbye_drain", goodbye(3, -108, b"the server is shutting down")
    yield "goodbye_no_room", goodbye(8, -24, b"")
    yield "goodbye_text_full", goodbye(4, -71, b"\x1b" * 192)


# -------------------------------------------------------------------------------------------- control, server


def message(kind, body, flags=0, raw=False):
    return u8(flags) + u8(kind) + u16(len(body)) + body


def packed(value):
    return msgpack.packb(value, use_bin_type=True)


def sqe_array(op, flags=0, transfer=0, user=9, offset=0, total=0, staging=0, length=0, key=b""):
    return [op, flags, transfer, user, offset, total, staging, length, key]


def control():
    attach = message(1, packed({"token": TOKEN}))
    serve = 0x80
    put = sqe_array(PUT, OPEN, total=600, length=600, key=b"k" * 150)
    yield "attach_ping", u8(0) + attach + message(2, b"\x80")
    yield "attach_wrong_token", u8(0) + message(1, packed({"token": b"\0" * 16}))
    yield "attach_token_text", u8(0) + message(1, packed({"token": "x" * 16}))
    yield "ping_unattached", u8(0) + message(2, b"\x80")
    yield "stats", u8(1) + message(3, b"\xc0")
    yield "list_empty", u8(1) + message(4, packed({"cursor": 0, "limit": 10}))
    yield "submit_list", (u8(1) + message(6, packed([put, sqe_array(EXISTS, key=b"k" * 150)]), serve) +
                          message(4, packed({"limit": 1})) + message(4, packed({"cursor": 1, "limit": 100})))
    yield "submit_get_delete", (u8(9) + message(6, packed([put, sqe_array(GET, OPEN, total=4096, length=1024,
                                                                           key=b"k" * 150)]), serve) +
                                message(5, packed({"key": b"k" * 150})) + message(5, packed({"key": b"k" * 150})))
    yield "submit_transfer", u8(9) + message(6, packed([
        sqe_array(PUT, OPEN, 0x100, total=2000, length=1000, key=b"t"),
        sqe_array(PUT, 0, 0x100, offset=1000, total=2000, length=1000)]), serve)
    yield "submit_abort", u8(9) + message(6, packed([
        sqe_array(PUT, OPEN, 0x103, total=2000, length=1000, key=b"t"), sqe_array(ABORT, 0, 0x103)]), serve)
    yield "submit_full", u8(1) + message(6, packed([sqe_array(NOP)] * 8)) + message(6, packed([sqe_array(NOP)]))
    yield "submit_too_many", u8(1) + message(6, packed([sqe_array(NOP)] * 9))
    yield "submit_short_array", u8(1) + message(6, packed([[0] * 8]))
    yield "submit_long_key", u8(1) + message(6, packed([sqe_array(EXISTS, key=b"k" * 1025)]))
    yield "submit_stats", u8(1) + message(6, packed([sqe_array(STATS, length=4096)]), serve)
    yield "draining", u8(3) + message(6, packed([put]), serve) + message(2, b"\x80")
    yield "unknown_type", u8(1) + message(77, b"\x80")
    yield "foreign", u8(1) + message(2, b"\x80", 4)
    yield "other_session", u8(1) + message(2, b"\x80", 0x20)
    yield "other_peer", u8(1) + message(2, b"\x80", 8)
    yield "full_stuck", u8(5) + message(2, b"\x80", 0x40) * 3
    yield "full_then_room", u8(1) + message(2, b"\x80", 0x40) * 3 + message(2, b"\x80")
    yield "two_frames", u8(1) + message(2, b"\x80", 1)
    yield "one_frame", u8(1) + message(2, b"\x80", 2)
    yield "five_frames", u8(1) + message(2, b"\x80", 3)
    header = struct.pack("<IHHQ16sQiI16x", MAGIC, ABI, 2, 5, BOOT, SESSION, 0, 0)
    yield "raw_header", u8(1) + u8(0x10) + header + u16(1) + b"\x80"
    yield "raw_header_abi", u8(1) + u8(0x10) + header.replace(u16(ABI) + u16(2), u16(9) + u16(2), 1) + u16(1) + b"\x80"
    yield "array_that_lies", u8(1) + message(4, b"\xdd\xff\xff\xff\xff")
    yield "nested", u8(1) + message(4, b"\x91" * 60 + b"\xc0")
    yield "two_objects", u8(1) + message(4, b"\xc0\xc0")
    every = [None, True, 1, 200, 70000, 1 << 40, -1, -200, -70000, -(1 << 40), 1.5, "t", "t" * 40, "t" * 300, b"b",
             b"b" * 300, [1] * 20, {"a": 1}, {str(i): i for i in range(20)}, msgpack.ExtType(1, b"1"),
             msgpack.ExtType(1, b"1" * 16), msgpack.ExtType(1, b"1" * 20)]
    yield "every_type", u8(1) + message(5, packed({"other": every, "key": b"k"}))


# ------------------------------------------------------------------------------------------------------ ring

REQUEST, RAW, SERVE, REAP, POKE, ORDER, WRAP, MORE = (u8(i) for i in range(8))
AT_LOADS, IN_THREAD = 1, 2
SQ_TAIL, SQ_HEAD, CQ_TAIL, CQ_HEAD = 128 // 4, 256 // 4, 512 // 4, 640 // 4
SQE_WORDS = (7 * 128) // 4


def request(op, flags=0, key=1, transfer=0, offset=0, total=0, length=0, staging=0):
    """Offsets and lengths in units of 256 bytes; transfer: slot in the low 5 bits, use above."""
    return REQUEST + u8(op, flags, key, transfer, offset, total, length, staging)


def ring_flows():
    put, get = request(PUT, OPEN, total=4, length=4), request(GET, OPEN, total=8, length=4)
    yield "ping", request(NOP) + SERVE + REAP
    yield "put_get", put + get + SERVE + REAP
    yield "put_twice", put + put + SERVE + REAP + get + SERVE
    yield "put_absent", request(PUT, OPEN | IF_ABSENT, total=4, length=4) * 2 + SERVE
    yield "put_empty", request(PUT, OPEN) + request(GET, OPEN, total=4, length=4) + SERVE
    yield "long_key", request(PUT, OPEN, key=0x40, total=1, length=1) + request(EXISTS, key=0x40) + SERVE
    yield "transfer", (request(PUT, OPEN, transfer=0x20, total=12, length=4) +
                       request(PUT, transfer=0x20, offset=4, total=12, length=4, staging=4) +
                       request(PUT, transfer=0x20, offset=8, total=12, length=4, staging=8) +
                       request(GET, OPEN, transfer=0x41, total=16, length=4) +
                       request(GET, transfer=0x41, offset=4, length=4, staging=4) +
                       request(GET, transfer=0x41, offset=8, length=4, staging=8) + SERVE + REAP)
    yield "gap", (request(PUT, OPEN, transfer=0x20, total=12, length=4) +
                  request(PUT, transfer=0x20, offset=8, length=4) + SERVE)
    opened = request(PUT, OPEN, transfer=0x20, total=10, length=4) + SERVE + MORE + u8(0, 4, 0) + SERVE + REAP
    yield "put_last", opened + MORE + u8(0, 2, 0) + SERVE + request(EXISTS) + SERVE
    yield "put_too_long", opened + MORE + u8(0, 4, 0) + SERVE
    yield "put_too_far", opened + MORE + u8(0, 2, 1) + SERVE
    yield "get_last", (opened + MORE + u8(0, 2, 0) + request(GET, OPEN, transfer=0x41, total=16, length=4) + SERVE +
                       MORE + u8(1, 4, 0) + SERVE + MORE + u8(1, 4, 0) + SERVE)
    yield "abort", request(PUT, OPEN, transfer=0x25, total=12, length=4) + request(ABORT, transfer=0x25) * 2 + SERVE
    yield "delete_held", (put + request(GET, OPEN, transfer=0x22, total=8, length=1) + request(DELETE) +
                          request(GET, transfer=0x22, offset=1, length=4) + SERVE)
    yield "evict", b"".join(request(PUT, OPEN, key=k, transfer=0x20 + k, total=40, length=4) for k in range(4)) + SERVE
    yield "quota", b"".join(request(PUT, OPEN, key=k, transfer=0x20 + k, total=30, length=4) for k in range(6)) + SERVE
    yield "stats", request(STATS, length=16) + request(STATS, length=1) + SERVE
    yield "end_of_staging", request(PUT, OPEN, total=4, length=4, staging=12) + SERVE
    yield "beyond_staging", request(PUT, OPEN, total=4, length=4, staging=13) + SERVE
    yield "fragment_too_large", request(PUT, OPEN, total=5, length=5) + SERVE
    yield "orders", put + ORDER + u8(1) + SERVE + ORDER + u8(2) + put + SERVE + ORDER + u8(4) + SERVE
    yield "drain_open", request(PUT, OPEN, transfer=0x20, total=8, length=4) + SERVE + ORDER + u8(2) + SERVE
    yield "wrap", WRAP + (put + get + SERVE + REAP) * 3
    yield "no_credit", request(NOP) * 9 + SERVE
    yield "full_queue", request(NOP) * 8 + SERVE + REAP + request(NOP) * 8 + SERVE + REAP
    yield "tail_ahead", POKE + u16(SQ_TAIL) + u32(17) + SERVE
    yield "tail_behind", request(NOP) + SERVE + POKE + u16(SQ_TAIL) + u32(0) + SERVE
    yield "unknown_op", request(99) + SERVE
    raw = struct.pack("<BBHIQQQQIIQQ", PUT, OPEN, 5, 0, 1, 0, 100, 0, 100, 0, 0, 0)
    yield "raw", RAW + raw + SERVE
    yield "raw_key_too_long", RAW + raw[:2] + u16(1025) + raw[4:] + SERVE
    yield "raw_overflow", RAW + raw[:32] + u64(2**64 - 64) + raw[40:] + SERVE
    yield "raw_reserved", RAW + raw[:-1] + u8(1) + SERVE


def ring():
    for name, steps in ring_flows():
        yield name, u8(4) + changes() + steps
    steps = dict(ring_flows())
    for wait in range(6):
        yield f"changes_length_{wait}", u8(1) + changes(change(wait, 0, SQE_WORDS + 12, 4096)) + steps["put_get"]
        yield f"changes_key_len_{wait}", u8(3) + changes(change(wait, 0, SQE_WORDS, 0xFFFF0101)) + steps["put_get"]
    yield "changes_tail", u8(3) + changes(change(1, 1, SQ_TAIL, 1), change(0, 1, SQ_TAIL, 64)) + steps["put_get"]
    yield "changes_cq_head", u8(3) + changes(change(2, 1, CQ_HEAD, 1)) + steps["full_queue"]


# ----------------------------------------------------------------------------------------------- completions

BEGIN, ADVANCE, POST, RAW_CQE, GIVE_UP, POKE_CQ = range(6)
S_GET, S_PUT, S_STATS, S_EXISTS, S_NOP = range(5)


def step(kind, stream=0):
    return u8(kind + 6 * stream)


def post(index, value=0, length=0, result=0, older=0):
    return step(POST) + u8(index, older, result, value, length)


def completion_flows():
    begin = lambda op, size=0, stream=0: step(BEGIN, stream) + u8(op, size) + step(ADVANCE, stream)
    go = step(ADVANCE)
    yield "ping", begin(S_NOP) + post(0) + go
    yield "exists", begin(S_EXISTS) + post(0, value=7) + go
    yield "absent", begin(S_EXISTS) + post(0, result=2) + go
    yield "put", begin(S_PUT, 10) + post(0) + go
    yield "put_fragments", begin(S_PUT, 40) + post(0) + post(1) + post(2) + go
    yield "put_fails", begin(S_PUT, 40) + post(0, result=28) + post(1, result=116) + post(2, result=116) + go
    yield "get", begin(S_GET, 16) + post(0, 10, 10) + go
    yield "get_fragments", begin(S_GET, 40) + post(0, 40, 16) + post(1, 40, 16) + post(2, 40, 8) + go
    yield "get_shorter", begin(S_GET, 40) + post(0, 20, 16) + post(1, 20, 4) + post(2, result=116) + go
    yield "get_too_large", begin(S_GET, 4) + post(0, 20, result=90) + go
    yield "get_lies_value", begin(S_GET, 4) + post(0, 200, 4) + go
    yield "get_lies_length", begin(S_GET, 16) + post(0, 10, 200) + go
    yield "stats", begin(S_STATS, 16) + post(0, 9) + go
    yield "stats_lies", begin(S_STATS, 4) + post(0, 200) + go
    yield "two", begin(S_GET, 16) + begin(S_PUT, 16, 1) + post(1) + post(0, 16, 16) + go + step(ADVANCE, 1)
    yield "backwards", begin(S_PUT, 40) + post(2) + post(1) + post(0) + go
    yield "give_up", begin(S_PUT, 200) + step(GIVE_UP) + post(0) + post(1) + begin(S_NOP) + post(7) + go
    yield "twice", begin(S_NOP) + post(0) + post(0) + go
    yield "older", begin(S_NOP) + post(0, older=1) + post(8) + post(0) + go
    yield "tail_ahead", begin(S_NOP) + step(POKE_CQ) + u16(CQ_TAIL) + u32(9) + go
    yield "revoked", begin(S_NOP) + step(POKE_CQ) + u16(10) + u32(3) + go
    yield "raw", begin(S_NOP) + step(RAW_CQE) + struct.pack("<QiIQII", 1 << 32, 5, 0, 0, 0, 0) + go


def completions():
    for name, steps in completion_flows():
        yield name, u8(0) + changes() + steps
    steps = dict(completion_flows())
    word = (7 * 128 + 8 * 64) // 4
    yield "changes_value", u8(3) + changes(change(1, 0, word + 4, 60000)) + steps["get"]
    yield "changes_tail", u8(3) + changes(change(1, 1, CQ_TAIL, 1), change(0, 1, CQ_TAIL, 64)) + steps["get"]


# ---------------------------------------------------------------------------------------------------- answers


def answer(body, status=0, flags=0):
    return u8(flags, status) + u16(len(body)) + body


def answers():
    attach = answer(b"\x80")
    text = packed({"error": "the answer of a handler"})
    page = lambda cursor: packed({"cursor": cursor, "entries": [[b"key", 7], [b"k" * 300, 1 << 40]]})
    yield "ping", u8(0) + attach + answer(b"\x80")
    yield "ping_no_attach", u8(0) + answer(text, 13)
    yield "ping_refused", u8(0) + (attach + answer(text, 13, 0x10)) * 10
    yield "ping_strange", u8(0) + attach + answer(b"\x80", 0, 0x41) + answer(b"\x80", 0, 0x40)
    yield "ping_other_boot", u8(0) + attach + answer(b"\x80", 0, 0x20)
    yield "ping_one_frame", u8(0) + attach + answer(b"\x80", 0, 2) + answer(b"\x80", 0, 0x40)
    yield "ping_four_frames", u8(0) + attach + answer(b"\x80", 0, 4) + answer(b"\x80", 0, 0x40)
    yield "list", u8(1) + attach + answer(page(0))
    yield "list_pages", u8(1) + attach + answer(page(1)) + answer(page(2)) + answer(page(0))
    yield "list_fails", u8(1) + attach + answer(text, 22)
    yield "list_no_map", u8(1) + attach + answer(b"\x93\1\2\3")
    yield "list_text_key", u8(1) + attach + answer(packed({"cursor": 0, "entries": [["key", 7]]}))
    yield "list_lies", u8(1) + attach + answer(b"\x82\xa7entries\xdd\xff\xff\xff\xff")
    yield "call", u8(2) + attach + answer(packed({"any": [1, 2, b"x"]}))
    yield "call_fails", u8(2) + attach + answer(text, 5)
    yield "call_fails_long", u8(2) + attach + answer(packed({"error": "e" * 1000}), 5)
    yield "call_fails_no_text", u8(2) + attach + answer(packed({"error": 5}), 5)
    yield "call_no_object", u8(2) + attach + answer(b"\xc1")
    header = struct.pack("<IHHQ16sQiI16x", MAGIC, ABI, 1024, 2, BOOT, SESSION, 0, 0)
    yield "call_raw_header", u8(2) + attach + u8(8) + header + u16(1) + b"\x80"
    stats = packed({"ops.puts": 7, "server.version": "1.2.3", "pool.bytes": 1 << 40})
    yield "stats", u8(3) + u8(0, 0) + stats
    yield "stats_more", u8(3) + u8(90, 100) + u8(0, 0) + stats
    yield "stats_fail", u8(3) + u8(108, 0)
    yield "stats_empty_names", u8(3) + u8(0, 0) + packed({"": ""})
    yield "stats_long_names", u8(3) + u8(0, 0) + packed({"n" * 127: "t" * 255, "n" * 128: 1})
    yield "stats_lies", u8(3) + u8(0, 1) + b"\xdf\xff\xff\xff\xff"


# ------------------------------------------------------------------------------------------------------ index


def index_input(look_ups, how=0, there=0, words=(), moves=(), leases=b""):
    return (u8(how, len(look_ups)) + u16(there) + u8(len(words)) +
            b"".join(u16(number) + u64(value) for number, value in words) + changes(*moves) +
            b"".join(look_ups) + leases)


def index():
    every = [u8(i) for i in range(15)]
    lease = [u8(i | 16) for i in range(15)]
    # magic 0, boot 1, 2, seed 3, pool 4, blocks at 5, slots at 6, buckets and blocks 7, slots 8, ready 9; in 8 bytes
    yield "all", index_input(every)
    yield "all_leased", index_input(lease)
    yield "raw_key", index_input([u8(32, 4) + b"hello"])
    yield "shorter", index_input(every, there=1000)
    yield "header_only", index_input(every, there=128)
    for name, word, value in (("magic", 0, 0), ("pool", 4, 1 << 40), ("pool_small", 4, 512), ("blocks_at", 5, 1 << 63),
                              ("slots_at", 6, 2**64 - 128), ("buckets", 7, 3 | 64 << 32), ("many", 7, 2**63 - 1),
                              ("slots", 8, 0xFFFFFFFF), ("one_slot", 8, 1)):
        yield "header_" + name, index_input(lease[:8], words=[(word, value)])
    for name, word in (("blocks_at", 10), ("slots_at", 12), ("buckets", 14), ("blocks", 15), ("slots", 16)):
        yield "changes_" + name, index_input(lease[:8], how=1, moves=[change(0, 1, word, 0x100000)])
        yield "changes_" + name + "_soon", index_input(lease[:8], how=1, moves=[change(1, 1, word, 0x100000)])
    yield "changes_slots", index_input(lease, how=3, moves=[change(9, 2, 16 * n, 1 << 20) for n in range(8, 16)])
    head = u32(8) + u32(16)
    yield "leases", index_input([], leases=head)
    yield "leases_many", index_input([], leases=u32(0xFFFFFFFF) + u32(1 << 31))
    yield "leases_none", index_input([], leases=u32(0) + u32(16))
    yield "leases_odd", index_input([], leases=u32(8) + u32(15))


# ------------------------------------------------------------------------------------------------- values, trace


def values():
    for i, text in enumerate(("4096", "64KiB", "1.5GiB", "8M", "0.5t", "17b", "18446744073709551615", "1e3", "-1", "inf",
                              "16777216T", "")):
        yield f"size_{i}", u8(0) + text.encode()
    for i, text in enumerate(("250ms", "30s", "2m", "1.5", "4294967296ms", "5h")):
        yield f"duration_{i}", u8(1) + text.encode()
    for i, text in enumerate(("3", "1000", "1001", "99999999999999999999", "12x", " 5")):
        yield f"number_{i}", u8(2) + text.encode()
    yield "key", u8(3) + b"model/layer\\3"
    yield "key_bytes", u8(3) + bytes(range(256))
    yield "key_utf8", u8(3) + "Schlüssel".encode()
    yield "hex", u8(4) + b"00ff7Fab"
    yield "hex_odd", u8(4) + b"00f"
    line = lambda *arguments: u8(5) + "\n".join(arguments).encode()
    yield "arguments_none", line()
    yield "arguments", line("--dir", "/run/kvbell", "--pool=64GiB", "-w", "4", "--spin-us=50", "-ldebug")
    yield "arguments_limits", line("--staging=16MiB", "--fragment=1MiB", "--ring-entries=512", "--max-sessions=32",
                                   "--max-objects=100000", "--lease-cells=64", "--max-open=1GiB",
                                   "--transfer-timeout=5s", "--high-watermark=80", "--low-watermark=70")
    yield "arguments_who", line("--trust-uid=1000", "--trust-gid=1000", "--allow-uid", "0", "--allow-gid=4294967294")
    yield "arguments_stop", line("--populate=require", "--start-wait=1m", "--drain-timeout=250ms", "--ready-fd=3")
    yield "arguments_wrong", line("--pool=much", "--ring-entries=100", "--log-level=loud", "word", "--", "--x")
    yield "arguments_ids", line(*(["--allow-uid=7"] * 66))
    yield "arguments_fragment", line("--fragment=5GiB", "--populate=maybe", "--spin-us=2000000")


def trace():
    yield "one", b'{"hash_ids": [1, 2, 3]}\n'
    yield "several", b'{"timestamp": 1, "hash_ids": [1, 2]}\n\n{"hash_ids": []}\n{"hash_ids": [9], "input_length": 4096}'
    yield "largest", b'{"hash_ids": [9223372036854775807, 0]}\n'
    yield "beyond", b'{"hash_ids": [9223372036854775808]}\n'
    yield "negative", b'{"hash_ids": [-1]}\n'
    yield "real", b'{"hash_ids": [1.5]}\n'
    yield "text", b'{"hash_ids": "1 2"}\n'
    yield "no_ids", b'{"ids": [1]}\n'
    yield "no_object", b"[1, 2]\n"
    yield "no_json", b"timestamp,hash_ids\n"
    yield "cut", b'{"hash_ids": [1, 2'
    yield "escapes", b'{"a": "\\u00e9\\ud83d\\ude00\\n", "hash_ids": [1], "b": {"c": [true, null, 1e3]}}\n'
    yield "zero_byte", b'{"hash_ids": [1]}\0 more\n'
    yield "nested", b'{"hash_ids": ' + b"[" * 40 + b"]" * 40 + b"}\n"
    yield "many_chunks", b'{"hash_ids": [' + b"0," * 1100 + b"0]}\n"
    yield "many", b'{"hash_ids": [7]}\n' * 66


def main():
    folder = Path(sys.argv[1])
    for make in (door, control, ring, completions, answers, index, values, trace):
        target = folder / make.__name__
        target.mkdir(parents=True, exist_ok=True)
        for old in target.glob("seed_*"):
            old.unlink()
        for name, data in make():
            (target / f"seed_{name}").write_bytes(data)


main()
