"""The least that a durable publish over HTTP takes in Python: a parser, one INSERT, a group commit, an answer.

    python -m bench.rig.bare_publish FILE [SECONDS]

With SECONDS each commit waits so long for others to share it. Answers `{"port"}`. Everything that makes a server of it
is missing: no routes, no tokens, no limits, no names, no indexes, no followers, no ledger. What a real one adds is what
the comparison shows.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
import time
from queue import Empty, SimpleQueue
from typing import cast

import httptools
import uvloop

from bench.rig.child import reply

_ANSWER = b'{"id":%d,"stream":"/bench/append","index":%d,"cursor":"/bench/append:0:%d:127.0.0.1"}'
_HEAD = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
_GROUP = 512  # events of a commit at most


class Peer(asyncio.Protocol):
    """One connection."""

    def __init__(self, events: SimpleQueue[Event]) -> None:
        self._events, self._parser = events, httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body = body

    def on_message_complete(self) -> None:
        self._events.put((self, self._body))

    def answer(self, id: int) -> None:
        body = _ANSWER % (id, id, 250 * id)
        self._transport.write(_HEAD % (len(body), body))


Event = tuple[Peer, bytes]


def write(file: str, events: SimpleQueue[Event], loop: asyncio.AbstractEventLoop, gather: float) -> None:
    """Store what waits, in one transaction; then answer. For ever."""
    database = sqlite3.connect(file, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, stream INTEGER, body BLOB)")
    last = 0
    while True:
        group = take(events, gather)
        numbered = list(enumerate(group, last + 1))
        database.execute("BEGIN")
        database.executemany("INSERT INTO events VALUES (?, 1, ?)", [(id, body) for id, (_, body) in numbered])
        database.execute("COMMIT")
        last += len(group)
        loop.call_soon_threadsafe(answer, [(peer, id) for id, (peer, _) in numbered])


def take(events: SimpleQueue[Event], gather: float) -> list[Event]:
    """All that waits, one at least."""
    group = [events.get()]
    if gather:
        time.sleep(gather)
    try:
        while len(group) < _GROUP:
            group.append(events.get_nowait())
    except Empty:
        return group
    return group


def answer(numbered: list[tuple[Peer, int]]) -> None:
    for peer, id in numbered:
        try:
            peer.answer(id)
        except RuntimeError:  # this one has left; the others wait
            continue


async def serve(file: str, gather: str = "0") -> None:
    loop = asyncio.get_running_loop()
    events: SimpleQueue[Event] = SimpleQueue()
    threading.Thread(target=write, args=(file, events, loop, float(gather)), daemon=True).start()
    server = await loop.create_server(lambda: Peer(events), "127.0.0.1", 0, backlog=4096)
    reply(port=server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
