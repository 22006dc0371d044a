"""Moving an app to another server while orders come in: two databases follow one stream, and end equal."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.client.receiver import Line, Receiver
from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import ask
from tests.doors.eventhorizon_client import Answer, add_pusher, append, create, scripted, subscribe

TABLE = "CREATE TABLE orders (number INTEGER PRIMARY KEY, position TEXT, content TEXT)"


@contextmanager
def app(server: RunningServer, database: Path, id: str) -> Iterator[str]:
    """An app with a database of its own, pushed to; gives its pusher."""
    with sqlite3.connect(database) as connection:
        connection.execute(TABLE)

    def place(stream: str, line: Line, connection: sqlite3.Connection) -> None:
        if not line.meta_type:
            connection.execute("INSERT INTO orders (position, content) VALUES (?, ?)", (line.ptr_after, line.content))

    receiver = Receiver(id, lambda: sqlite3.connect(database, timeout=20), place)

    def decide(request: dict[str, Any]) -> Answer:
        reply = receiver._thread.submit(receiver.answer, "", {}, json.dumps(request).encode()).result()
        return reply.status, reply.body

    with scripted(decide) as endpoint:
        yield add_pusher(server, endpoint.url)
    receiver.close()


def orders(database: Path) -> list[tuple[str, str]]:
    connection = sqlite3.connect(database, timeout=20)
    rows = connection.execute("SELECT position, content FROM orders ORDER BY number").fetchall()
    connection.close()
    return rows


def test_two_databases_that_follow_one_stream_end_equal(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    with start_server(tmp_path / "data", eventhorizon_activity_interval=0.1) as server:
        create(server, "/orders", "/_sub/old", "/_sub/new")
        stop, placed = threading.Event(), list[str]()

        def shop() -> None:
            while not stop.is_set():
                append(server, "/orders", f"order {len(placed)}")
                placed.append(f"order {len(placed)}")

        subscribe(server, "/orders", "/_sub/old")
        customers = threading.Thread(target=shop)
        customers.start()
        try:
            with app(server, old, "/_sub/old") as first:
                wait_until(lambda: len(orders(old)) > 100)
                # When the new app joins from nothing, while orders come in
                subscribe(server, "/orders", "/_sub/new")
                with app(server, new, "/_sub/new"):
                    wait_until(lambda: len(orders(new)) > 200)
                    # And the old one is switched off and on again in between
                    ask(server, "POST", f"/v1/pushers/{first}/pause")
                    seen = len(orders(old))
                    wait_until(lambda: len(orders(new)) > seen + 50)
                    ask(server, "POST", f"/v1/pushers/{first}/resume")
                    stop.set()
                    customers.join()
                    wait_until(lambda: len(orders(old)) == len(orders(new)) == len(placed))
        finally:
            stop.set()
            customers.join()
    # Then both have every order, once, in the order in which they were placed
    assert orders(old) == orders(new)
    assert [content for _, content in orders(new)] == placed
