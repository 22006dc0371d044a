"""An app at the end of a pusher: every line becomes a row, in one transaction with its position.

python -m bench.rig.push_app DATABASE SUBSCRIPTION      prints {"port"}

count N         answers {"applied", "at_ns"} when so many lines were committed
late            answers {"late_ns": […]}: for each line, how long after the time behind its mark it was
                committed; and forgets them
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
import time
from typing import Any

import uvloop

from bench.rig.child import reply
from bench.rig.requests import MARK, STAMP_DIGITS
from penstock.client.asgi_server import serve
from penstock.client.receiver import Line, Receiver, Reply

_STAMP = re.compile(MARK.decode() + rf"(\d{{{STAMP_DIGITS}}})")


class App(Receiver):
    """Counts what was committed, and when."""

    def __init__(self, subscription: str, database: str) -> None:
        super().__init__(subscription, lambda: connect(database), self.handle)
        self.applied, self.at_ns = 0, 0
        self.late_ns: list[int] = []
        self._pending: list[str] = []

    def handle(self, stream: str, line: Line, connection: sqlite3.Connection) -> None:
        if not line.meta_type:
            connection.execute("INSERT INTO applied VALUES (?, ?)", (stream, line.content))
            self._pending.append(line.content)

    def answer(self, query: str, headers: dict[str, str], body: bytes) -> Reply:
        self._pending.clear()
        answer = super().answer(query, headers, body)
        if self._pending and answer.status == 200:
            self.at_ns = time.monotonic_ns()
            self.applied += len(self._pending)
            if len(self._pending) < 10:
                stamps = [_STAMP.search(content) for content in self._pending]
                self.late_ns += [self.at_ns - int(stamp[1]) for stamp in stamps if stamp]
        return answer


def connect(database: str) -> sqlite3.Connection:
    """As SQLite's makers recommend it for an app: a write-ahead log, synced at its checkpoints."""
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE IF NOT EXISTS applied (stream TEXT, content TEXT)")
    connection.commit()
    return connection


async def command(app: App, line: str) -> dict[str, Any]:
    match line.split():
        case ["count", wanted]:
            while app.applied < int(wanted):  # noqa: ASYNC110 - the receiver's thread counts
                await asyncio.sleep(0.001)
            return {"applied": app.applied, "at_ns": app.at_ns}
        case ["late"]:
            late, app.late_ns = app.late_ns, []
            return {"late_ns": late}
    raise SystemExit(f"push_app does not know {line!r}")


async def main(database: str, subscription: str) -> None:
    app = App(subscription, database)
    server = await serve(app)
    reply(port=server.sockets[0].getsockname()[1])
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        reply(**await command(app, line))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
