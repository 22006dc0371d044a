"""The floor of a relay: what one peer sends goes to every other with `sendall`, and nothing is kept.

    python -m bench.rig.bare_relay READERS

Answers `{"port"}`. The first READERS connections are readers, whose requests are read and answered with a head; the
next one is the publisher. When that one is through, everything is closed and the next round begins.
"""

from __future__ import annotations

import socket
import sys

from bench.rig.child import reply

_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def relay(publisher: socket.socket, readers: list[socket.socket], piece: bytes) -> None:
    """The loop that everything is compared with; *piece* came with the publisher's head."""
    while not piece.endswith(b"0\r\n\r\n"):
        for reader in readers:
            reader.sendall(piece)
        piece = publisher.recv(256 * 1024)
        if not piece:
            return
    for reader in readers:
        reader.sendall(piece)
    publisher.sendall(_ANSWER)


def accept(listener: socket.socket) -> tuple[socket.socket, bytes]:
    """A peer that has asked, and what it sent after its head."""
    peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    received = b""
    while b"\r\n\r\n" not in received:
        received += peer.recv(4096)
    return peer, received.partition(b"\r\n\r\n")[2]


def main(count: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    reply(port=listener.getsockname()[1])
    while True:
        readers = []
        for _ in range(int(count)):
            readers.append(accept(listener)[0])
            readers[-1].sendall(_HEAD)
        publisher, first = accept(listener)
        relay(publisher, readers, first)
        for peer in (publisher, *readers):
            peer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
