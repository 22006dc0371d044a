"""How fresh the lake is: from a publish to a snapshot that has it, as the catalog tells readers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException

import pyarrow as pa
import pyarrow.compute as pc

from bench.rig.report import Figure, median
from penstock.client.http import ApiError
from penstock.iceberg.files import read_batches
from penstock.iceberg.reading import TablePlanner
from penstock.iceberg.store import FileStore, open_store
from penstock.pipeline.client import PipelineClient

SOME, A_SECOND, BODY_BYTES = 100, 10, 200
"""Events of one request, requests of a second, and the bytes of an event."""

STREAM, READER, SAYS = "/bench", "bench", "bench-says"
"""Where it is published, who reads it, and who says each time that it has all of it."""

UPTO = {"events": "id", "ledger": "last", "deliveries": "last", "positions": "upto"}
"""The tables that name entries, each with the column that does."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What the tables have to tell of when they have a publish and all before it."""

    id: float  # of its last entry
    entries: float  # that the stream then has
    at_us: float  # when the publish began, by the wall clock

    def __le__(self, other: Mark) -> bool:
        return self.id <= other.id and self.entries <= other.entries and self.at_us <= other.at_us


def measure_freshness(client: PipelineClient, seconds: int) -> Figure:
    """From a publish to a snapshot that has it, in every table that the round writes, as the catalog tells readers.

    A thousand events a second are published and sent to one reader, and another says how far it has come, so that all
    tables but `unreadable` have something new.
    """
    eyes, waiting, ages = _CatalogReader(client), dict[Mark, float](), list[float]()
    with _reading(client):
        for _ in range(A_SECOND * seconds):
            began = time.monotonic()
            waiting[_publish_some(client)] = began
            ages += _seen(eyes, waiting)
            time.sleep(max(0.0, began + 1 / A_SECOND - time.monotonic()))
        while waiting:
            ages += _seen(eyes, waiting)
            time.sleep(1 / A_SECOND)
    p95 = sorted(ages)[int(0.95 * (len(ages) - 1))]
    detail = {"median_s": median(ages), "worst_s": max(ages), "events": SOME * len(ages)}
    name = f"freshness of all tables, {SOME * A_SECOND:,} events/s, p95"
    return Figure(name, p95, "s", None, "", 8, 5, detail=detail)


def _publish_some(client: PipelineClient) -> Mark:
    """Publish, and let a reader say that it has all of it."""
    at_ms = int(time.time() * 1000)  # in whole ones, as records have it
    ndjson = {"Content-Type": "application/x-ndjson"}
    answer = client.call("POST", "/v1/publish", {"stream": STREAM}, b"\n".join([b"x" * BODY_BYTES] * SOME), ndjson)
    last = answer["last"]
    with client.open("/v1/tail", {"streams": STREAM, "consumer": SAYS, "after": last["id"]}):
        return Mark(last["id"], last["index"] + 1, 1000 * at_ms)


@contextmanager
def _reading(client: PipelineClient) -> Iterator[None]:
    """A reader of what is published, until the block ends."""
    with client.open("/v1/tail", {"streams": STREAM, "consumer": READER}) as answer:

        def read() -> None:
            with suppress(OSError, ValueError, AttributeError, HTTPException):  # it is closed while it reads
                while answer.read1(65536):
                    pass

        threading.Thread(target=read, daemon=True).start()
        yield


class _CatalogReader:
    """Knows the tables as the REST catalog tells them, and how far each is."""

    def __init__(self, client: PipelineClient) -> None:
        self._client = client
        self._known: dict[str, tuple[str, float]] = {}
        self._planners: dict[str, tuple[FileStore, TablePlanner]] = {}

    def progress(self) -> Mark:
        """What all tables have."""
        id = min(self._of(table, column) for table, column in UPTO.items())
        return Mark(id, self._of("rollup_hourly"), self._of("activity"))

    def _of(self, table: str, column: str = "") -> float:
        try:
            loaded = self._client.call("GET", f"/iceberg/v1/namespaces/penstock/tables/{table}")
        except ApiError:  # it has never had a row
            return 0
        location, known = loaded["metadata-location"], self._known.get(table, ("", 0.0))
        if location == known[0]:
            return known[1]
        if table not in self._planners:
            store = open_store(loaded["metadata"]["location"].rpartition("/")[0])
            self._planners[table] = store, TablePlanner(store, [column] if column else [])
        store, planner = self._planners[table]
        files = planner.files(location)
        sums = [_SUMS[table](_rows(store, file.path)) for file in files] if table in _SUMS else []
        newest = sum(sums) if sums else max((file.bounds.most(column) for file in files), default=0.0)
        self._known[table] = location, newest
        return newest


def _rows(store: FileStore, path: str) -> pa.Table:
    return pa.Table.from_batches(read_batches(store, store.location(path)))


def _published(rows: pa.Table) -> float:
    """Entries of the stream, as the sums of hours have them."""
    ours = pc.and_(pc.equal(rows["stream"], STREAM), pc.equal(rows["state"], "accepted"))
    return float(pc.sum(rows.filter(ours)["count"]).as_py() or 0)


def _last_heard_of(rows: pa.Table) -> float:
    """When the reader was last sent something, in microseconds. It has one row, in one file."""
    ours = pc.equal(rows["recipient"], READER)
    return float(pc.max(rows.filter(ours)["last_time"].cast(pa.int64())).as_py() or 0)


_SUMS: dict[str, Callable[[pa.Table], float]] = {"rollup_hourly": _published, "activity": _last_heard_of}
"""How far the other tables are: added up over their files."""


def _seen(eyes: _CatalogReader, waiting: dict[Mark, float]) -> list[float]:
    done, now = eyes.progress(), time.monotonic()
    return [now - waiting.pop(mark) for mark in [mark for mark in waiting if mark <= done]]
