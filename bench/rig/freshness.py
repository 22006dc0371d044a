"""How fresh the lake is: from a publish to a snapshot that has it, as the catalog tells readers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException

from bench.rig.report import Figure, median
from penstock.client.http import ApiError
from penstock.iceberg.reading import TablePlanner
from penstock.iceberg.store import open_store
from penstock.pipeline.client import PipelineClient

SOME, BODY_BYTES = 100, 200
"""Events of one request, ten times a second, and the size of each."""

UPTO = {"events": "id", "ledger": "last", "deliveries": "last"}
"""The tables of a turn, each with the column that names entries. The sums follow once a minute."""


def measure_freshness(client: PipelineClient, seconds: int) -> Figure:
    """From a publish to a snapshot that has it, in every table of a turn, as the catalog tells readers.

    A thousand events a second are published, and sent to one reader, so that all tables have something new.
    """
    eyes, waiting, ages = _CatalogReader(client), dict[int, float](), list[float]()
    with _reading(client):
        for _ in range(10 * seconds):
            began = time.monotonic()
            waiting[_publish_some(client)] = began
            ages += _seen(eyes, waiting)
            time.sleep(max(0.0, began + 0.1 - time.monotonic()))
        while waiting:
            ages += _seen(eyes, waiting)
            time.sleep(0.1)
    p95 = sorted(ages)[int(0.95 * (len(ages) - 1))]
    detail = {"median_s": median(ages), "worst_s": max(ages), "events": SOME * len(ages)}
    return Figure("freshness of the lake, p95", p95, "s", None, "", 8, 5, detail=detail)


def _publish_some(client: PipelineClient) -> int:
    """The id of the last of them."""
    ndjson = {"Content-Type": "application/x-ndjson"}
    answer = client.call("POST", "/v1/publish", {"stream": "/bench"}, b"\n".join([b"x" * BODY_BYTES] * SOME), ndjson)
    return int(answer["last"]["id"])


@contextmanager
def _reading(client: PipelineClient) -> Iterator[None]:
    """A reader of what is published, until the block ends."""
    with client.open("/v1/tail", {"streams": "/bench", "consumer": "bench"}) as answer:

        def read() -> None:
            with suppress(OSError, ValueError, AttributeError, HTTPException):  # it is closed while it reads
                while answer.read1(65536):
                    pass

        threading.Thread(target=read, daemon=True).start()
        yield


class _CatalogReader:
    """Knows the tables as the REST catalog tells them, and up to which entry each has rows."""

    def __init__(self, client: PipelineClient) -> None:
        self._client = client
        self._known: dict[str, tuple[str, float]] = {}
        self._planners: dict[str, TablePlanner] = {}

    def upto(self) -> float:
        """The entry up to which `events`, `ledger` and `deliveries` all have rows."""
        return min(self._of(table, column) for table, column in UPTO.items())

    def _of(self, table: str, column: str) -> float:
        try:
            loaded = self._client.call("GET", f"/iceberg/v1/namespaces/penstock/tables/{table}")
        except ApiError:  # it has never had a row
            return 0
        location, known = loaded["metadata-location"], self._known.get(table, ("", 0.0))
        if location == known[0]:
            return known[1]
        root = loaded["metadata"]["location"].rpartition("/")[0]
        planner = self._planners.setdefault(table, TablePlanner(open_store(root), [column]))
        newest = max((file.bounds.most(column) for file in planner.files(location)), default=0.0)
        self._known[table] = location, newest
        return newest


def _seen(eyes: _CatalogReader, waiting: dict[int, float]) -> list[float]:
    done, now = eyes.upto(), time.monotonic()
    return [now - waiting.pop(id) for id in [id for id in waiting if id <= done]]
