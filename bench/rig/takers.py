"""Readers that take bytes as fast as they come, in one process: sockets and one epoll.

    python -m bench.rig.takers PORT COUNT REQUEST SIZE

Every `take` on standard input is one round: COUNT connections are opened and send the request in the file; `{"open"}`
is answered then, and `{"bytes"}` when each of them has got SIZE bytes at least.
"""

from __future__ import annotations

import select
import socket
import sys
from pathlib import Path

from bench.rig.child import reply
from bench.rig.requests import load


def take(port: int, count: int, request: bytes, size: int) -> None:
    """One round."""
    sockets: dict[int, socket.socket] = {}
    left: dict[int, int] = {}
    poll, buffer = select.epoll(), bytearray(512 * 1024)
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(request)
        sockets[one.fileno()], left[one.fileno()] = one, size
        poll.register(one, select.EPOLLIN)
    reply(open=count)
    total = 0
    while left:
        for fd, _ in poll.poll():
            got = sockets[fd].recv_into(buffer)
            if not got:
                raise SystemExit(f"a reader was cut {left.get(fd, 0)} bytes before the end")
            total += got
            left[fd] = left.get(fd, 0) - got
            if left[fd] <= 0:
                del left[fd]
                poll.unregister(fd)
    reply(bytes=total)
    for one in sockets.values():
        one.close()


def main(port: str, count: str, request: str, size: str) -> None:
    [asked] = load(Path(request))
    for _command in sys.stdin:
        take(int(port), int(count), asked, int(size))


if __name__ == "__main__":
    main(*sys.argv[1:])
