"""One reader that takes bytes as fast as they come, and counts events by their mark.

    python -m bench.rig.reader PORT REQUESTS EVENTS            answers {"events", "seconds", "bytes", "cpu"}
    python -m bench.rig.reader PORT REQUESTS EVENTS FILE       the same, and keeps how late each event was

Prints `{"open"}` when the answer has begun. With FILE, the time behind each mark is taken as the time at
which the event was due; nanoseconds since then go into the file, one 8-byte number each.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from array import array
from pathlib import Path

from bench.rig.child import reply
from bench.rig.requests import MARK, STAMP_DIGITS, load

_STAMP = re.compile(MARK + rb"(\d{%d})" % STAMP_DIGITS)
_LONGEST = 1024 * 1024


def open_reader(port: int, request: bytes) -> tuple[socket.socket, bytes]:
    """A socket whose answer has begun, and what came behind its head."""
    wire = socket.create_connection(("127.0.0.1", port), timeout=60)
    wire.sendall(request)
    received = b""
    while b"\r\n\r\n" not in received:
        piece = wire.recv(4096)
        if not piece:
            raise SystemExit(f"reader was closed after {received!r}")
        received += piece
    if received[9:12] != b"200":
        raise SystemExit(f"reader was answered with {received!r}")
    return wire, received.partition(b"\r\n\r\n")[2]


def count(wire: socket.socket, begun: bytes, wanted: int) -> int:
    """Receive until *wanted* marks were seen; return the bytes."""
    buffer = bytearray(_LONGEST)
    seen, total = begun.count(MARK), len(begun)
    while seen < wanted:
        size = wire.recv_into(buffer)
        if not size:
            raise SystemExit(f"reader was closed after {seen} of {wanted} events")
        seen += buffer.count(MARK, 0, size)
        total += size
    return total


def time_each(wire: socket.socket, begun: bytes, wanted: int) -> array[int]:
    """Receive *wanted* events; return how many nanoseconds after its due time each arrived."""
    late: array[int] = array("q")
    held = begun
    while len(late) < wanted:
        data = wire.recv(_LONGEST)
        now = time.monotonic_ns()
        if not data:
            raise SystemExit(f"reader was closed after {len(late)} of {wanted} events")
        data = held + data
        late.extend([now - int(due) for due in _STAMP.findall(data)])
        # A stamp that is cut in two is read with the next piece.
        cut = data.rfind(MARK)
        held = data[cut:] if cut >= 0 and len(data) - cut <= STAMP_DIGITS else b""
    return late


def main(port: str, requests: str, events: str, file: str = "") -> None:
    [request] = load(Path(requests))
    began, cpu = time.perf_counter(), time.process_time()
    wire, begun = open_reader(int(port), request)
    reply(open=1)
    if file:
        late = time_each(wire, begun, int(events))
        Path(file).write_bytes(late.tobytes())
        reply(events=len(late), cpu=time.process_time() - cpu)
        return
    total = count(wire, begun, int(events))
    seconds = time.perf_counter() - began
    reply(events=int(events), seconds=seconds, bytes=total, cpu=time.process_time() - cpu)


if __name__ == "__main__":
    main(*sys.argv[1:])
