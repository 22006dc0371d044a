"""What an audit compares the lake with: heads, mailboxes and pushers of the server at one moment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from penstock.pipeline import audit_queries
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import Workplace

TASK_NAMES: Final = 10_000
"""Streams or mailboxes of a cut that one task compares. As many are objects of Python's while a cut is gathered."""

_ARROW: Final = {"STRING": pa.string(), "BIGINT": pa.int64(), "ARRAY<BIGINT>": pa.list_(pa.int64())}


@dataclass(frozen=True, slots=True)
class AuditCut:
    """What the server held at one moment, and the id below which all of it lies."""

    upto: int
    heads: pa.Table  # `audit_queries.HEADS`
    mailboxes: pa.Table  # `audit_queries.MAILBOXES`
    pushers: list[dict[str, Any]]


def take_cut(client: PipelineClient) -> AuditCut:
    """Mailboxes first, then the ledger's flush: an item that is not pending any more has its record in the ledger.

    Heads come last, and so include the flushed batches. What comes after that does no harm: the lake then holds more
    than the audit asks for.
    """
    boxes = (box for month in _months(client) for box in _mailboxes(client, month))
    mailboxes = gather(boxes, audit_queries.MAILBOXES)
    pushers = client.call("GET", "/v1/audit/pushers")["pushers"]
    flushed = client.call("POST", "/v1/audit/cut")["upto"]
    heads = gather(_pages(client, "/v1/audit/heads", "heads"), audit_queries.HEADS)
    return AuditCut(max(flushed, pc.max(heads["last_id"]).as_py() or 0), heads, mailboxes, pushers)


def gather(rows: Iterator[Sequence[Any]], columns: str) -> pa.Table:
    """Rows as Arrow has them, in a tenth of the memory: there may be millions of streams and mailboxes."""
    schema = pa.schema([(name, _ARROW[type]) for name, type in map(str.split, columns.split(", "))])
    pieces: list[pa.RecordBatch] = []
    while some := list(islice(rows, TASK_NAMES)):
        arrays = [pa.array(values, field.type) for values, field in zip(zip(*some, strict=True), schema, strict=True)]
        pieces.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.Table.from_batches(pieces, schema)


def frame_of(place: Workplace, rows: pa.Table, columns: str) -> DataFrame:
    """Rows of a cut as a frame, however many tasks it takes."""
    return place.spark.createDataFrame(rows) if rows.num_rows else place.spark.createDataFrame([], columns)


def _months(client: PipelineClient) -> list[str]:
    return [one["month"] for one in client.call("GET", "/v1/retention/months", timeout=600)["months"]]


def _mailboxes(client: PipelineClient, month: str) -> Iterator[tuple[str, str, int, list[int], int]]:
    for box in _pages(client, "/v1/audit/mailboxes", "mailboxes", month=month):
        name = box["recipient"].removeprefix(f"{audit_queries.FOLLOWING}/")  # as the ledger has it
        yield name, month, box["next"], box["pending"], box["expired"]


def _pages(client: PipelineClient, path: str, name: str, **parameters: str) -> Iterator[Any]:
    after: str | None = ""
    while after is not None:
        page = client.call("GET", path, {**parameters, "after": after})
        yield from page[name]
        after = page["after"]


def heads_of(client: PipelineClient, streams: Iterator[str], upto: int) -> Iterator[list[Any]]:
    """Heads of streams that no pattern covers. Those that moved on since the archive are left out."""
    while some := list(islice(streams, 500)):
        found = client.call("POST", "/v1/audit/heads", body=json.dumps({"streams": some}).encode())["heads"]
        yield from (head for head in found if head[4] <= upto)
