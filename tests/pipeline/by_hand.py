"""The pipeline without Spark: with few rows the archive is a single slice, which the driver copies itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from penstock.iceberg.files import read_batches
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import Faults, Intent, Turn, record_names
from penstock.pipeline.jobs import Workplace, archive, typed
from penstock.pipeline.lake import Lake, open_lake, record_of
from penstock.pipeline.lake_identity import bind
from penstock.testing import RunningServer
from penstock.wire.lake_files import tables_of
from penstock.wire.table_columns import NAMES
from tests.api.client import publish

NO_SPARK = cast("Any", None)


class Here(Workplace):
    """A workplace without Spark: what would run in tasks runs here."""

    def in_tasks(self, function: Any, items: Any) -> list[Any]:
        return [function(one) for one in items]


def make_here(client: PipelineClient, lake: Lake, faults: Faults | None = None) -> Here:
    return Here(NO_SPARK, client, lake, faults or Faults())


def archive_turn(client: PipelineClient, lake: Lake) -> int:
    """Archive what there is; returns how far. `ledger` is said to be as far: nobody looks for its rows here."""
    archive.run(make_here(client, lake), {})
    turn = Turn(client, lake, "ledger")
    newest = client.newest()
    if turn.intent is None and newest > turn.done:
        turn.intend(Intent(turn.done, newest, ()))
    if turn.intent is not None:
        turn.publish()
    else:
        turn.end()
    return turn.done


def exported(client: PipelineClient, after: int, upto: int) -> pa.Table:
    with client.open("/v1/log/arrow", {"after": after, "upto": upto}) as answer:
        return pa.ipc.open_stream(answer).read_all()


ID_AND_BODY = ("id", "body")


def archived(client: PipelineClient, lake: Lake, columns: Sequence[str] = ID_AND_BODY) -> list[tuple[Any, ...]]:
    """Rows of the lake, in order: these columns of them."""
    files = make_here(client, lake).files("events")
    rows = [batch for one in files for batch in read_batches(lake.store, one.location, tuple(columns))]
    return [tuple(row[name] for name in columns) for batch in rows for row in batch.to_pylist()]


def logged(client: PipelineClient, columns: Sequence[str] = ID_AND_BODY) -> list[tuple[Any, ...]]:
    """Rows of the log, in order: these columns of them."""
    rows = exported(client, 0, client.newest()).to_pylist()
    return [tuple(row[name] for name in columns) for row in rows]


class Crash(BaseException):
    """As if the process had ended."""


class CrashAt(Faults):
    """At a point, the first time that it is come to, or after it was *passed* some times."""

    def __init__(self, point: str, passed: int = 0) -> None:
        self._point, self._left = point, passed + 1

    def at(self, point: str) -> None:
        self._left -= point == self._point
        if point == self._point and self._left == 0:
            raise Crash(point)


class CrashAtPoint(Faults):
    """At the *number*-th point that is come to, whichever it is."""

    def __init__(self, number: int) -> None:
        self.left = number

    def at(self, point: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash(point)


def equals_the_log(client: PipelineClient, lake: Lake) -> bool:
    """In every column, with a look that has nothing in memory, as another process would have it."""
    fresh = open_lake(lake.place)
    return archived(client, fresh, NAMES) == logged(client, NAMES)


def unnamed(client: PipelineClient, lake: Lake) -> set[str]:
    """Files that nothing names."""
    fresh = open_lake(lake.place)
    named = fresh.table("events", client.get("lake/events").value).named()
    return {fresh.store.location(one.path) for one in fresh.store.list("events")} - named


def left_over(client: PipelineClient, place: str) -> set[str]:
    """Files of tables that nothing names."""
    lake = open_lake(place)
    found = set[str]()
    for name in record_names(client):
        for table in tables_of(name):
            listed = {lake.store.location(one.path) for one in lake.store.list(table)}
            found |= listed - lake.table(table, client.get(f"lake/{name}").value).named()
    return found


def with_three_files(server: RunningServer, lake: Lake) -> PipelineClient:
    """Archive entries of *server* in three turns, each a file of `events`."""
    client = PipelineClient(server.url, server.admin_token)
    bind(client, lake)
    for turn in range(3):
        for number in range(4):
            publish(server, "/orders", b"%d of %d" % (number, turn))
        archive_turn(client, lake)
    return client


SHOP = "/shop"
ORDERS = "orders"


def declare_orders(client: PipelineClient, stream: str = SHOP) -> str:
    """Declare a typed table of the shop, or of another stream; its key."""
    body = json.dumps({"streams": stream, "columns": {"item": "string"}}).encode()
    client.call("PUT", f"/v1/lake/tables/{ORDERS}", body=body)
    return next(one.key for one in client.typed_tables() if one.name == ORDERS)


def order(client: PipelineClient, item: str) -> list[int]:
    """Publish an order that fits the table, and one that does not; their ids."""
    bodies = (json.dumps({"item": item}).encode(), b"no JSON")
    return [client.call("POST", "/v1/publish", {"stream": SHOP}, body)["id"] for body in bodies]


def with_orders(client: PipelineClient, lake: Lake) -> str:
    """Make the rows of a typed table in two turns; its key."""
    key = declare_orders(client)
    for item in ("tea", "jam"):
        order(client, item)
        archive_turn(client, lake)
        typed.run(make_here(client, lake), {})
    return key


def stored(client: PipelineClient, lake: Lake, table: str) -> list[dict[str, Any]]:
    """The rows of a table, with a look that has nothing in memory."""
    fresh = open_lake(lake.place)
    files = fresh.files(table, client.get(f"lake/{record_of(table)}").value)
    return [row for one in files for batch in read_batches(fresh.store, one.location) for row in batch.to_pylist()]


def orders_in(client: PipelineClient, lake: Lake, key: str) -> tuple[list[tuple[int, str]], list[int]]:
    """The rows of the typed table, and the ids of what does not fit it."""
    misfits = [one["entry"] for one in stored(client, lake, "unreadable") if one["typed_table"] == ORDERS]
    return sorted((one["id"], one["item"]) for one in stored(client, lake, key)), sorted(misfits)


def orders_logged(client: PipelineClient) -> tuple[list[tuple[int, str]], list[int]]:
    """What `orders_in` is to say, by the log."""
    entries = [one for one in exported(client, 0, client.newest()).to_pylist() if one["stream"] == SHOP]
    data = [(one["id"], one["body"]) for one in entries if one["kind"] == "data"]
    fitting = [(id, json.loads(body)["item"]) for id, body in data if body != b"no JSON"]
    return fitting, [id for id, body in data if body == b"no JSON"]


def path_of(client: PipelineClient, lake: Lake, number: int, table: str = "events") -> Path:
    """A data file of a table, by its number, as the server's record names it."""
    return Path(make_here(client, open_lake(lake.place)).files(table)[number].location.removeprefix("file://"))


def run_pipeline(client: PipelineClient, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `penstock pipeline` as a user does."""
    known = {**os.environ, "PENSTOCK_TOKEN": client.token}
    line = [sys.executable, "-m", "penstock", "pipeline", *arguments, "--url", client.url]
    return subprocess.run(line, env=known, text=True, capture_output=True, timeout=120, check=False)
