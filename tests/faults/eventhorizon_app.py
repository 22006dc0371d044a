"""An app that goes wrong in every way it can, by seed: `python -m tests.faults.eventhorizon_app OPTIONS`.

It applies lines through a `Receiver` to the table `applied`. On request it commits position and data apart,
which is what no app should do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sqlite3
from pathlib import Path
from typing import Any

from penstock.client.asgi_server import serve
from penstock.client.receiver import Line, Receiver

FAULTS = {
    "refuse": 0.06,  # 500
    "hang": 0.01,
    "garbage": 0.06,
    "lose": 0.06,  # apply it, then answer garbage
    "die before": 0.008,
    "die between": 0.016,  # after the lines are written, before the position is
    "die after": 0.008,  # before the answer
}
TABLE = "CREATE TABLE IF NOT EXISTS applied (number {serial}, stream VARCHAR(200), content VARCHAR(200))"


fault = ""  # what goes wrong with the request in progress


class Together(Receiver):
    """As it should be, with a place to die at."""

    graves: Path  # it dies there for certain until there are three files in here, one for each death

    def _call_handler(self, stream: str, lines: list[Line]) -> None:
        super()._call_handler(stream, lines)
        self.before_position()
        if all(line.meta_type for line in lines):
            return
        deaths = len(list(self.graves.iterdir()))
        if deaths < 3:
            (self.graves / str(deaths)).touch()
        dying("die between", certain=deaths < 3)

    def before_position(self) -> None:
        """The lines are written, their position is not."""


class Apart(Together):
    """The sabotage: the data is committed by itself."""

    def before_position(self) -> None:
        self._offsets.connection.commit()


def dying(where: str, *, certain: bool = False) -> None:
    if fault == where or certain:
        os._exit(9)


def connect(database: str) -> Any:
    if database.startswith("host="):
        import psycopg

        return psycopg.connect(database)
    return sqlite3.connect(database, timeout=20)


def make_table(database: str) -> None:
    serial = "SERIAL" if database.startswith("host=") else "INTEGER PRIMARY KEY"
    connection = connect(database)
    connection.cursor().execute(TABLE.format(serial=serial))
    connection.commit()
    connection.close()


class Faulty:
    """Around the receiver: decides for each request what goes wrong."""

    def __init__(self, receiver: Receiver, chance: random.Random) -> None:
        self._receiver, self._chance = receiver, chance

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        global fault
        fault = self._draw()
        dying("die before")
        if fault == "hang":
            await asyncio.Event().wait()
        if fault in ("refuse", "garbage"):
            await _answer(send, 500 if fault == "refuse" else 200, b"\x00garbage")
            return
        sent: list[Any] = []

        async def keep(message: Any) -> None:
            sent.append(message)

        await self._receiver(scope, receive, keep)
        dying("die after")
        if fault == "lose":
            await _answer(send, 200, b'{"Code":"suc')
            return
        for message in sent:
            await send(message)

    def _draw(self) -> str:
        number = self._chance.random()
        for name, share in FAULTS.items():
            number -= share
            if number < 0:
                return name
        return ""


async def _answer(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--database", "--subscription", "--port", "--seed"):
        parser.add_argument(name, required=True)
    parser.add_argument("--graves", type=Path, required=True)
    parser.add_argument("--apart", action="store_true")
    options = parser.parse_args()
    make_table(options.database)
    mark = "%s" if options.database.startswith("host=") else "?"
    insert = f"INSERT INTO applied (stream, content) VALUES ({mark}, {mark})"

    def handle(stream: str, line: Line, connection: Any) -> None:
        if not line.meta_type:
            connection.cursor().execute(insert, (stream, line.content))

    kind = Apart if options.apart else Together
    receiver = kind(options.subscription, lambda: connect(options.database), handle)
    receiver.graves = options.graves
    server = await serve(Faulty(receiver, random.Random(int(options.seed))), port=int(options.port))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
