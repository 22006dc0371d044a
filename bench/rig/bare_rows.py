"""The floor of replay: rows of SQLite in the order of their key, joined and sent down a socket.

    python -m bench.rig.bare_rows FILE ROWS SIZE

Makes the file if it is not there, answers `{"port"}`, and sends all rows to each peer that connects.
"""

from __future__ import annotations

import socket
import sqlite3
import sys
from pathlib import Path

from bench.rig.child import reply
from bench.rig.requests import event

_PAGE = 1000
_HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def make(file: Path, rows: int, size: int) -> None:
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA journal_mode=OFF")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("CREATE TABLE entries (id INTEGER PRIMARY KEY, stream INTEGER, body BLOB)")
    body = event(size)
    connection.executemany("INSERT INTO entries VALUES (?, 1, ?)", ((number, body) for number in range(rows)))
    connection.commit()
    connection.close()


def send_all(connection: sqlite3.Connection, peer: socket.socket) -> None:
    """Page by page, as any reader must that does not hold everything in memory."""
    after = -1
    query = "SELECT id, body FROM entries WHERE id > ? ORDER BY id LIMIT ?"
    while rows := connection.execute(query, (after, _PAGE)).fetchall():
        after = rows[-1][0]
        peer.sendall(b"\n".join([body for _, body in rows]) + b"\n")


def main(file: str, rows: str, size: str) -> None:
    if not Path(file).exists():
        make(Path(file), int(rows), int(size))
    connection = sqlite3.connect(file)
    listener = socket.create_server(("127.0.0.1", 0))
    reply(port=listener.getsockname()[1])
    while True:
        peer, _address = listener.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(_HEAD)
            send_all(connection, peer)
            peer.recv(1)  # until the reader has everything and leaves


if __name__ == "__main__":
    main(*sys.argv[1:])
