#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client of kvbell written from docs/protocol.md alone. It uses no libkvbell, only the portable
carrier. As a script, `portable_client.py DIRECTORY`, it checks a running server. Errors of the
server become OSError with the errno; after any other exception the client is of no use."""
import errno
import fcntl
import mmap
import os
import random
import socket
import struct
import sys
import time
from collections import namedtuple

import msgpack
import zmq

HELLO, WELCOME, GOODBYE, ATTACH, PING, SUBMIT = 1, 2, 3, 1, 2, 6
NOP, PUT, GET, EXISTS, DELETE, ABORT = range(6)
MAGIC, ABI, OPEN, ALWAYS, REVOKED, DIED, DEADLINE_S = 0x4C42564B, 1, 1, 2, 3, 0x40000000, 20
STATE, CQ_TAIL, CQ_HEAD, CQ_SLEEPING = (at // 4 for at in (32, 512, 640, 768))
Request = namedtuple("Request", "op flags transfer offset total length key data",
                     defaults=(0, 0, 0, 0, 0, b"", b""))
Answer = namedtuple("Answer", "result value payload")


def expect(condition, what):
    if not condition:
        raise RuntimeError(what)


class Client:
    def __init__(self, directory):
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.settimeout(DEADLINE_S)
        self.door.connect(f"{directory}/door.sock")
        self.door.send(struct.pack("<IHHIi32s16x", MAGIC, ABI, HELLO, 0, -1, b"portable_client"))
        record, fds, flags, _ = socket.recv_fds(self.door, 4096, 4)
        if not fds:
            self._ended(record)
        expect(len(record) == 256 and len(fds) == 4 and not flags & socket.MSG_CTRUNC, "WELCOME")
        expect(struct.unpack_from("<IHH", record) == (MAGIC, ABI, WELCOME), "magic, ABI or type")
        (self.boot, token, self.session, memory_bytes, life_bytes, self.cq_entries, self.cq_offset,
         staging_at, self.staging_bytes, self.fragment, self.payload_max) = struct.unpack_from(
             "<8x 16s16sQ 8x QQ 4x I 8x Q 24x QQI 4x Q", record)
        memory_fd, life_fd, _, self.bell = fds  # the third, the kick, is for the fast carrier
        self.memory = self._map(memory_fd, memory_bytes, 0x7, mmap.PROT_READ | mmap.PROT_WRITE)
        life = self._map(life_fd, life_bytes, 0x17, mmap.PROT_READ)
        start = struct.pack("<II16sQ", MAGIC, ABI, self.boot, self.session)
        expect(self.memory[:32] == start, "the header of the segment")
        expect(life[:6] == start[:6] and life[8:24] == self.boot, "the life page")
        expect(0 < self.cq_entries <= (memory_bytes - self.cq_offset) // 32 and self.fragment > 0
               and 0 < self.staging_bytes <= memory_bytes - staging_at, "impossible sizes")
        self.staging = self.memory[staging_at:staging_at + self.staging_bytes]
        self.step = min(self.fragment, self.staging_bytes)
        # A view cast to "I" loads and stores a whole word at once; struct does not.
        self.words, self.life = self.memory[:896].cast("I"), life[128:132].cast("I")
        self.user_data = self.uses = self.calls = 0
        self.words[CQ_SLEEPING] = ALWAYS
        self.control = zmq.Context.instance().socket(zmq.DEALER)
        self.control.linger = 0
        self.control.connect(f"ipc://{directory}/control.sock")
        self.call(ATTACH, {"token": token})

    @staticmethod
    def _map(fd, size, seals, protection):
        expect(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals == seals, "a memfd lacks seals")
        expect(os.fstat(fd).st_size == size, "a memfd has another size than WELCOME says")
        return memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, protection))

    @staticmethod
    def _ended(record):
        if len(record) != 256 or struct.unpack_from("<H", record, 6)[0] != GOODBYE:
            raise ConnectionResetError(errno.ECONNRESET, "the server hung up")
        reason, error = struct.unpack_from("<Ii", record, 8)
        text = record[64:].split(b"\0")[0].decode()
        raise OSError(-error or errno.ECONNRESET, f"GOODBYE {reason}: {text}")

    def _wait(self, source):
        """Sleeps until `source`, the bell or the control socket, is readable."""
        poller, ready, deadline = zmq.Poller(), {}, time.monotonic() + DEADLINE_S
        poller.register(source, zmq.POLLIN)
        poller.register(self.door.fileno(), zmq.POLLIN)
        while source not in ready:
            expect(time.monotonic() < deadline, "no answer in time")
            ready = dict(poller.poll(1000))
            if self.door.fileno() in ready:
                self._ended(self.door.recv(4096))
            life = self.life[0]
            if life == 0 or life & DIED or self.words[STATE] == REVOKED:
                raise ConnectionResetError(errno.ECONNRESET, "the session has ended")

    def call(self, kind, body):
        """Sends one control message; returns the body of its reply."""
        self.calls, request = self.calls + 1, None
        header = struct.pack("<IHHQ16sQ24x", MAGIC, ABI, kind, self.calls, self.boot, self.session)
        self.control.send_multipart([header, msgpack.packb(body)], zmq.NOBLOCK)
        while request != self.calls:
            self._wait(self.control)
            header, reply = self.control.recv_multipart()
            request, status = struct.unpack_from("<8xQ24xi", header)
        if status < 0:
            raise OSError(-status, msgpack.unpackb(reply)["error"])
        return msgpack.unpackb(reply)

    def run(self, requests, *allowed):
        """Runs requests in order, in batches as large as staging and credit allow, up to the batch
        in which one fails; raises its error unless allowed. Nothing is in flight afterwards."""
        answers, deadline = [], time.monotonic() + DEADLINE_S
        while len(answers) < len(requests) and not any(a.result for a in answers):
            batch, done, used = {}, {}, 0
            for r in requests[len(answers):len(answers) + self.cq_entries]:
                if used + r.length > self.staging_bytes:
                    break
                self.staging[used:used + len(r.data)] = r.data
                self.user_data += 1
                batch[self.user_data] = used, r
                used += r.length
            body = [[r.op, r.flags, r.transfer, tag, r.offset, r.total, at, r.length, r.key]
                    for tag, (at, r) in batch.items()]
            taken = list(batch)[:self.call(SUBMIT, body)["accepted"]]
            while len(done) < len(taken):
                while (head := self.words[CQ_HEAD]) == self.words[CQ_TAIL]:
                    self._wait(self.bell)
                    os.eventfd_read(self.bell)  # clear it first, look after that
                at = self.cq_offset + 32 * (head % self.cq_entries)
                tag, result, _, value, length = struct.unpack_from("<QiIQI", self.memory, at)
                expect(tag in taken and tag not in done, f"a completion too many: {tag}")
                at, r = batch[tag]
                done[tag] = Answer(result, value, bytes(self.staging[at:at + length]))
                self.words[CQ_HEAD] = (head + 1) & 0xFFFFFFFF  # only after the copies
            answers += [done[tag] for tag in taken]
            expect(taken or time.monotonic() < deadline, "the server accepts nothing")
        for r, a in zip(requests, answers):
            if a.result and -a.result not in allowed:
                if r.transfer and not r.flags & OPEN:  # perhaps its error has ended it, perhaps not
                    self.run([Request(ABORT, 0, r.transfer)], errno.ESTALE)
                raise OSError(-a.result, os.strerror(-a.result))
        return answers

    def transfer(self):
        self.uses = self.uses % 0xFFFFFF + 1
        return self.uses << 8  # always slot 0

    def put(self, key, payload):
        size, step = len(payload), self.step
        transfer = self.transfer() if size > step else 0
        self.run([Request(PUT, 0 if at else OPEN, transfer, at, size, min(step, size - at),
                          b"" if at else key, payload[at:at + step])
                  for at in range(0, size, step) or [0]])

    def get(self, key):
        transfer, step = self.transfer(), self.step
        opening = Request(GET, OPEN, transfer, 0, self.payload_max, step, key)
        first, = self.run([opening], errno.ENOENT)
        if first.result:
            return None
        rest = self.run([Request(GET, 0, transfer, at, 0, min(step, first.value - at))
                         for at in range(len(first.payload), first.value, step)])
        return b"".join(answer.payload for answer in [first] + rest)

    def exists(self, key):
        return self.run([Request(EXISTS, key=key)], errno.ENOENT)[0].result == 0

    def delete(self, key):
        self.run([Request(DELETE, key=key)])


def checks(client):
    edge, prefix, rng = client.fragment, b"portable-%d-" % os.getpid(), random.Random(1)
    for size in 0, 1, 5, edge - 1, edge, edge + 1, 3 << 20 | 7, client.staging_bytes * 2 + 12345:
        key, payload = prefix + b"%d" % size, rng.randbytes(size)
        client.put(key, payload)
        yield f"put and get of {size} bytes", client.get(key) == payload and client.exists(key)
        client.delete(key)
        yield "delete, and get of nothing", client.get(key) is None and not client.exists(key)
    answer, = client.run([Request(DELETE, key=prefix)], errno.ENOENT)
    yield "delete of a missing key", answer.result == -errno.ENOENT
    head, calls, answers = client.words[CQ_HEAD], client.calls, client.run([Request(NOP)] * 200)
    yield "200 NOPs in one SUBMIT", client.calls == calls + 1 and len(answers) == 200
    client.call(PING, {})
    yield "exactly 200 completions", (head + 200) % 2**32 == client.words[CQ_TAIL]
    answer, = client.run([Request(255)], errno.EOPNOTSUPP)
    yield "an unknown op", answer.result == -errno.EOPNOTSUPP
    try:
        client.call(SUBMIT, [[NOP] * 8])
        expect(False, "a request of 8 fields was taken")
    except OSError as error:
        yield "a request of 8 fields", error.errno == errno.EINVAL
    yield "still usable", client.run([Request(NOP)])[0].result == 0


if __name__ == "__main__":
    for passed, (name, good) in enumerate(checks(Client(sys.argv[1])), 1):
        expect(good, name)
        print("ok:", name)
    print(f"all {passed} checks passed")
