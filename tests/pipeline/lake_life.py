"""Entries that readers get, some of them again, and what the tables are to say of all that by the log alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline import ledger_rows
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import watermark
from penstock.pipeline.jobs import Workplace, archive, compact, ledger, rollup
from penstock.pipeline.lake import Lake, open_lake
from penstock.testing import RunningServer
from penstock.wire.table_columns import NAMES
from tests.api.client import Tail, ask, publish
from tests.pipeline.by_hand import exported, make_here, stored

IN_ORDER = {"archive": archive, "ledger": ledger, "rollup": rollup, "compact": compact}

_streams = count(1)


class Life:
    """A stream, and a reader who begins at its first entry each time: what it was sent is sent to it again."""

    def __init__(self, server: RunningServer) -> None:
        self._server, self._stream = server, f"/life/{next(_streams)}"
        self._newest, self._there = 0, 0

    def goes_on(self) -> None:
        """Two more entries. The reader gets all there are before and after, and another one says how far it has come.

        So each turn tells of deliveries that an earlier one has told of.
        """
        self._read("alice", after=0, lines=self._there)
        for _ in range(2):
            self._newest, self._there = publish(self._server, self._stream, b"12345").json["id"], self._there + 1
        self._read("alice", after=0, lines=self._there)
        self._read("bob", after=self._newest - 1, lines=1)
        ask(self._server, "POST", "/v1/audit/cut")  # all of it is in the log then

    def _read(self, reader: str, after: int, lines: int) -> None:
        if lines:
            with Tail(self._server, self._stream, after=after, consumer=reader) as tail:
                assert len(tail.lines(lines)) == lines


class OtherDriver:
    """All jobs, with a lake of its own in memory, as another process would have it."""

    def __init__(self, client: PipelineClient, lake: Lake) -> None:
        own = open_lake(lake.place)
        own.epoch = lake.epoch
        self._place: Workplace = make_here(client, own)

    def run(self, *names: str) -> None:
        """Run these jobs, or all."""
        for name in names or IN_ORDER:
            IN_ORDER[name].run(self._place, options_of(name))


def options_of(job: str) -> Mapping[str, str]:
    """What a job is run with here: `compact` is to put files of today together, too."""
    return {"all": ""} if job == "compact" else {}


def tables_of_the_log(client: PipelineClient, upto: int) -> dict[str, pa.Table]:
    """What all tables must hold up to an id: made of the log in one step, without a turn or a file."""
    events = exported(client, 0, upto)
    system = events.filter(pc.equal(events["stream"], ledger_rows.STREAM))
    records = pa.Table.from_batches(ledger_rows.decode(system.to_batches(), []))
    entries = events.select(rollup._ENTRY.names).cast(rollup._ENTRY).sort_by("id")
    sums = pa.concat_tables([rollup.accepted(events), rollup.delivered(records, entries)], promote_options="permissive")
    return {
        "events": events.select(NAMES),
        "ledger": records,
        "deliveries": ledger.fold_deliveries(ledger.deliveries_of(records)),
        "positions": ledger.first_positions(ledger.positions_of(records)),
        "rollup_hourly": rollup.add_up(sums),
        "activity": rollup.merge_activity(rollup.heard_of(records)),
    }


def wrong_tables(client: PipelineClient, lake: Lake) -> list[str]:
    """The tables that do not hold what the log says up to where `events` is, or are not as far."""
    upto = watermark(client, "events")
    late = [name for name in ("ledger", "rollup") if watermark(client, name) != upto]
    expected = tables_of_the_log(client, upto)
    wrong = [
        table for table in expected if in_order(stored(client, lake, table)) != in_order(expected[table].to_pylist())
    ]
    return [*late, *wrong]


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    """Rows that can be compared, whatever order they have in files."""
    return sorted(repr(sorted(row.items())) for row in rows)
