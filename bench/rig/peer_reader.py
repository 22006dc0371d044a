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
_FLOW = re.compile(rb"HMSG in\.0 1 (\S+) \d+ \d+\r\nNATS/1\.0 100 FlowControl")
_ID = re.compile(rb"\r\n\$\d+\r\n(\d+-\d+)\r\n")


def from_nats(wire: socket.socket) -> Iterator[bytes]:
    """What comes, piece by piece."""
    consumer = {
        "stream_name": STREAM,
        "config": {"deliver_policy": "all", "ack_policy": "none", "deliver_subject": "in.0", "flow_control": True,
                   "idle_heartbeat": 5_000_000_000, "max_deliver": 1, "mem_storage": True, "num_replicas": 1},
    }  # fmt: skip
    asked = json.dumps(consumer).encode()
    subject = f"$JS.API.CONSUMER.CREATE.{STREAM}".encode()
    wire.sendall(HELLO + b"SUB in.0 1\r\nSUB in.1 2\r\nPUB %b in.1 %d\r\n%b\r\n" % (subject, len(asked), asked))
    held = b""
    while data := wire.recv(_LONGEST):
        yield data
        joined = held + data
        for found in _FLOW.finditer(joined):  # it waits until it hears that we are not behind
            wire.sendall(b"PUB %b 0\r\n\r\n" % found[1])
            held = b""
        held = joined[-120:] if not joined[-120:].count(b"FlowControl") else b""


def from_redis(wire: socket.socket) -> Iterator[bytes]:
    """The same, page by page."""
    after = b"0"
    while True:
        wire.sendall(resp(b"XREAD", b"COUNT", _PAGE, b"STREAMS", b"bench", after))
        page = bytearray()
        while not _is_whole(page):
            page += wire.recv(_LONGEST)
        yield bytes(page)
        ids = _ID.findall(page)
        if not ids:
            return
        after = ids[-1]


def _is_whole(page: bytearray) -> bool:
    """Whether a page of equal entries is complete: each of them has its mark, its head says how many there are."""
    found = re.match(rb"\*1\r\n\*2\r\n\$5\r\nbench\r\n\*(\d+)\r\n", page)
    if found is None:
        return page.startswith((b"*-1\r\n", b"-"))
    return page.count(MARK) == int(found[1]) and page.endswith(b"}\r\n")


def main(kind: str, port: str, events: str) -> None:
    began, cpu, seen, total = time.perf_counter(), time.process_time(), 0, 0
    with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as wire:
        for piece in (from_nats if kind == "nats" else from_redis)(wire):
            seen += piece.count(MARK)
            total += len(piece)
            if seen >= int(events):
                break
    if seen < int(events):
        raise SystemExit(f"{kind} gave {seen} of {events} events")
    reply(events=seen, seconds=time.perf_counter() - began, bytes=total, cpu=time.process_time() - cpu)


if __name__ == "__main__":
    main(*sys.argv[1:])
