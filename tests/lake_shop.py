"""A small shop's lake: rows of every table that the questions of docs/lake.md are about."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.cli.lake import print_table
from penstock.iceberg.files import arrow_schema
from penstock.iceberg.sql import SqlAnswer
from penstock.wire.lake_files import LakeFile
from penstock.wire.table_columns import TABLES
from tests.engines.lake_files import WrittenLake

PAGE = Path(__file__).parents[1] / "docs/lake.md"
QUESTIONS = re.findall(
    r"### ([^\n]+)\n(?:(?!###).)*?```sql\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL
)
"""The questions of the page: title, SQL, and the answer that it shows."""

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
DAY = "2026-11-15"


def at(seconds: float = 0, *, hours: float = 0, days: float = 0) -> datetime:
    return NOON + timedelta(seconds=seconds, hours=hours, days=days)


def _event(id: int, stream: str, index: int | None, type: str, body: bytes = b"{}") -> dict[str, Any]:
    kind = "meta" if index is None else "data"
    return {
        "id": id, "stream": stream, "index": index, "kind": kind, "type": type, "time": at(id), "body": body,
        "size": len(body), "chunk": 0, "offset": 0, "schema_version": 1,
    }  # fmt: skip


def _delivery(who: str, door: str, stream: str, id: int, state: str, **more: Any) -> dict[str, Any]:
    sent = at(id) if state not in ("accepted", "stored", "lost") else None
    known = {"reason": "", "first_time": at(id), "last_time": at(id + 1), "sent_time": sent, "attempts": 1, "upto": 99}
    acked = at(id + 1) if state == "acked" else None
    whom = {"door": door, "recipient": who, "stream": stream, "first": id, "last": id, "state": state}
    return {**known, "acked_time": acked, "key": "", "month": "", "number": 0, **whom, **more}


EVENTS = [
    _event(1, "/invoices", 0, "invoice"),
    *(_event(2 + number, "/orders", number, ("order.placed", "order.paid")[number % 2]) for number in range(6)),
    _event(8, "/campaigns/winter", 0, "news"),
    _event(9, "/_ledger", None, "", b"\xff\xfenonsense"),
]
DELIVERIES = [
    _delivery("alice", "sps", "/invoices", 1, "acked"),
    _delivery("bob", "sps", "/invoices", 1, "sent"),  # its position says that it has it
    _delivery("carol", "webpush", "/invoices", 1, "dead", reason="gone"),
    _delivery("dave", "eventhorizon", "/invoices", 1, "retried", attempts=3, reason="500"),
    *(_delivery(who, "webpush", "/campaigns/winter", 8, "acked", acked_time=at(20)) for who in ("alice", "erin")),
    _delivery("frank", "webpush", "/campaigns/winter", 8, "sent"),
    _delivery("grace", "webpush", "/campaigns/winter", 8, "accepted"),
    _delivery("heidi", "msgstream", "", 0, "expired", key="m1", month="2026_11", number=1, reason="ttl"),
    _delivery("ivan", "msgstream", "", 0, "dropped", key="m2", month="2026_11", number=2, reason="overflow"),
    _delivery("judy", "msgstream", "", 0, "dropped", key="m3", month="2026_11", number=3, reason="overflow"),
]
POSITIONS = [{"door": "sps", "recipient": "bob", "stream": "", "upto": 5, "time": at(6)}]
ROLLUP = [
    *(
        {"hour": at(), "stream": stream, "door": "", "state": "accepted", "latency_ms": None, "count": n, "bytes": size}
        for stream, n, size in (
            ("/orders", 6, 12), ("/invoices", 1, 2), ("/campaigns/winter", 1, 2), ("/_ledger", 1, 10),
        )
    ),
    *(
        {"hour": at(hours=hour), "stream": "/orders", "door": door, "state": "acked", "latency_ms": ms, "count": n}
        for hour, door, ms, n in (
            (0, "sps", 4, 950), (0, "sps", 16, 45), (0, "sps", 512, 5), (1, "sps", 8, 100), (0, "webpush", 64, 70),
            (0, "webpush", 256, 30),
        )
    ),
]  # fmt: skip
ACTIVITY = [
    {"door": door, "recipient": who, "first_time": at(days=-days - 1), "last_time": at(days=-days), "records": 3}
    for door, who, days in (("sps", "alice", 0), ("webpush", "carol", 8), ("eventhorizon", "dave", 30))
]
UNREADABLE = [{"entry": 9, "stream": "/_ledger", "reason": "it is no batch", "bytes": 10}]

ROWS = {
    "events": EVENTS, "deliveries": DELIVERIES, "positions": POSITIONS, "rollup_hourly": ROLLUP, "activity": ACTIVITY,
    "unreadable": UNREADABLE,
}  # fmt: skip


def fill_shop(written: WrittenLake) -> None:
    """Make all tables; `ledger` has no rows, and none is asked for."""
    for table in TABLES:
        rows = pa.Table.from_pylist(ROWS.get(table, []), arrow_schema(table))
        files = [written.write(LakeFile(0, 99, DAY, table), rows)] if rows.num_rows else []
        written.prepare(table, files)


def shown(table: pa.Table) -> str:
    """An answer as `lake sql` prints it."""
    with redirect_stdout(io.StringIO()) as out:
        print_table(SqlAnswer(table, cut=False))
    return out.getvalue()
