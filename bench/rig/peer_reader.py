"""One reader that catches up with what a peer has kept, and takes bytes as fast as they come.

    python -m bench.rig.peer_reader nats|redis PORT EVENTS      answers {"events", "seconds", "bytes", "cpu"}

From NATS it is what its clients call an ordered consumer: pushed, in order, with flow control and without
acknowledgements. From Redis it is XREAD, a thousand entries at a time.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Iterator

from bench.rig.child import reply
from bench.rig.peers import HELLO, STREAM, resp
from bench.rig.requests import MARK

_LONGEST = 1024 * 1024
_PAGE = b"1000"
_ASKING = b"FlowControl"
_HELD = 120  # bytes: more than one such message has up to that word
_FLOW = re.compile(rb"HMSG in\.0 1 (\S+) \d+ \d+\r\nNATS/1\.0 100 " + _ASKING)
_HEAD = re.compile(rb"\*1\r\n\*2\r\n\$5\r\nbench\r\n\*(\d+)\r\n")
_ID = re.compile(rb"\r\n\$\d+\r\n(\d+-\d+)\r\n")


def from_nats(wire: socket.socket) -> Iterator[tuple[int, int]]:
    """How many events came, and bytes, piece by piece."""
    consumer = {
        "stream_name": STREAM,
        "config": {"deliver_policy": "all", "ack_policy": "none", "deliver_subject": "in.0", "flow_control": True,
                   "idle_heartbeat": 5_000_000_000, "max_deliver": 1, "mem_storage": True, "num_replicas": 1},
    }  # fmt: skip
    asked = json.dumps(consumer).encode()
    subject = f"$JS.API.CONSUMER.CREATE.{STREAM}".encode()
    wire.sendall(HELLO + b"SUB in.0 1\r\nSUB in.1 2\r\nPUB %b in.1 %d\r\n%b\r\n" % (subject, len(asked), asked))
    buffer = bytearray(_HELD + _LONGEST)  # the end of the piece before stands at its beginning
    view = memoryview(buffer)
    while size := wire.recv_into(view[_HELD:]):
        end = _HELD + size
        yield buffer.count(MARK, _HELD, end), size
        if buffer.find(_ASKING, 0, end) >= 0:
            for found in _FLOW.finditer(view[:end]):  # it waits until it hears that we are not behind
                wire.sendall(b"PUB %b 0\r\n\r\n" % found[1])
        buffer[:_HELD] = buffer[end - _HELD : end].replace(_ASKING, bytes(len(_ASKING)))  # it is answered once


def from_redis(wire: socket.socket) -> Iterator[tuple[int, int]]:
    """The same, page by page."""
    after, buffer = b"0", bytearray(_LONGEST)
    while True:
        wire.sendall(resp(b"XREAD", b"COUNT", _PAGE, b"STREAMS", b"bench", after))
        page, seen, count = bytearray(), 0, 0
        # Whole is a page of equal entries when each of them has its mark; its head says how many there are.
        while not count or seen < count or not page.endswith(b"}\r\n"):
            size = wire.recv_into(buffer)
            page += memoryview(buffer)[:size]
            seen += buffer.count(MARK, 0, size)
            if not size or page.startswith((b"*-1\r\n", b"-")):
                return
            if not count and (found := _HEAD.match(page)):
                count = int(found[1])
        yield seen, len(page)
        after = _ID.findall(page, len(page) - 2 * len(page) // count)[-1]


def main(kind: str, port: str, events: str) -> None:
    began, cpu, seen, total = time.perf_counter(), time.process_time(), 0, 0
    with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as wire:
        for came, size in (from_nats if kind == "nats" else from_redis)(wire):
            seen += came
            total += size
            if seen >= int(events):
                break
    if seen < int(events):
        raise SystemExit(f"{kind} gave {seen} of {events} events")
    reply(events=seen, seconds=time.perf_counter() - began, bytes=total, cpu=time.process_time() - cpu)


if __name__ == "__main__":
    main(*sys.argv[1:])
