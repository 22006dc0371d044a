"""The floor of fan-out: accepted sockets in a list, and `send` on one after the other.

    python -m bench.rig.bare_send COUNT SIZE

Answers `{"port"}`, then `{"open"}` when COUNT peers are there, then every `send` with how many took all.
"""

from __future__ import annotations

import socket
import sys

from bench.rig.child import reply
from bench.rig.requests import MARK

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"


def accept(listener: socket.socket, count: int) -> list[socket.socket]:
    """Let *count* peers in and answer their requests with the head of a response."""
    peers = []
    for _ in range(count):
        peer, _address = listener.accept()
        peer.recv(4096)
        peer.send(_HEAD)
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peers.append(peer)
    return peers


def send(peers: list[socket.socket], data: bytes) -> int:
    """The loop that everything is compared with."""
    size, whole = len(data), 0
    for peer in peers:
        whole += peer.send(data) == size
    return whole


def main(count: str, size: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    reply(port=listener.getsockname()[1])
    peers = accept(listener, int(count))
    reply(open=len(peers))
    data = MARK.ljust(int(size), b"x")
    for _command in sys.stdin:
        reply(whole=send(peers, data))


if __name__ == "__main__":
    main(*sys.argv[1:])
