"""Rows without what was erased: they equal an archive of the log as it is afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import arrow
from penstock.core.clock import ManualClock
from penstock.core.log import Log
from penstock.engines.memory import MemoryEngine
from penstock.iceberg.files import PlannedFile
from penstock.pipeline.erased_rows import ErasedRows, emptied, gone
from penstock.values import Batch, Draft, Kind
from penstock.wire.lake_files import LakeFile
from penstock.wire.table_columns import NAMES
from tests.engines.lake_files import everything

STREAMS = ("/a", "/b", "/users/1")
bodies = st.tuples(st.sampled_from(STREAMS), st.binary(max_size=8), st.integers(0, 2))
erased = st.lists(st.one_of(st.sets(st.integers(1, 40), min_size=1), st.sampled_from(STREAMS)), min_size=1, max_size=3)


async def archive_and_erase(
    drafts: Sequence[tuple[str, bytes, int]], wanted: Sequence[set[int] | str]
) -> tuple[pa.Table, pa.Table, list[bytes]]:
    """The rows of the log as it was, those of the log as it is after the erasing, and what was asked for."""
    async with MemoryEngine(clock=ManualClock()) as engine:
        log = engine.log
        for stream, body, parts in drafts:
            await log.append(Batch((Draft(stream, body, "t"), *[Draft(stream, body, kind=Kind.PART)] * parts)))
        before = await rows_of(log)
        asked = [await erase(log, one) for one in wanted]
        after = await rows_of(log)
    return before, after, asked


async def rows_of(log: Log) -> pa.Table:
    return pa.Table.from_batches([arrow.batch_of(await everything(log), NAMES)])


async def erase(log: Log, wanted: set[int] | str) -> bytes:
    """Erase some entries, or those of a stream, as the server does; returns what it leaves for the lake."""
    ids, pieces, entries = set(), [], await everything(log)
    last: dict[str, int] = {}  # the data entry of each stream that parts belong to
    for entry in entries:
        chosen = entry.stream == wanted if isinstance(wanted, str) else entry.id in wanted
        if entry.kind is Kind.DATA:
            last[entry.stream] = entry.id
            ids |= {entry.id} if chosen else set()
        if last.get(entry.stream) in ids:
            pieces.append(entry.id)
    await log.erase(sorted(ids))
    said = {"stream": wanted, "upto": log.followed} if isinstance(wanted, str) else {"ids": pieces}
    return json.dumps(said).encode()


@given(st.lists(bodies, min_size=1, max_size=12), erased)
@settings(max_examples=30, deadline=None)
def test_rows_without_what_was_erased_are_those_of_the_log_as_it_is(
    drafts: list[tuple[str, bytes, int]], wanted: list[set[int] | str]
) -> None:
    before, after, asked = asyncio.run(archive_and_erase(drafts, wanted))
    what = gone(asked)

    made = pa.Table.from_batches([emptied(batch, what) for batch in before.to_batches()])

    assert made.equals(after.cast(before.schema))
    changed = sum(kind == "erased" for kind in after["kind"].to_pylist())
    assert count(before, what) == changed
    assert count(made, what) == 0, "a second time there is nothing to do"


def count(rows: pa.Table, what: ErasedRows) -> int:
    return sum(what.count_in(batch) for batch in rows.to_batches())


def test_names_and_bounds_tell_which_files_cannot_have_it() -> None:
    def planned(lo: int, *streams: str) -> PlannedFile:
        return PlannedFile(LakeFile(lo, lo + 10, "2026-11-15", "events"), "", 1, 1, {"stream": streams})

    files = [planned(0, "/a", "/b"), planned(10, "/0", "/z"), planned(20, "/a", "/a"), planned(0, "/b", "/c")]
    by_id = gone([b'{"ids":[10,25]}'])
    by_stream = gone([b'{"stream":"/a","upto":15}', b'{"stream":"/a","upto":11}'])

    assert [by_id.may_be_in(file) for file in files] == [True, False, True, True]
    assert [by_stream.may_be_in(file) for file in files] == [True, True, False, False]
    assert not gone([])
    parts = [by_id.part_in(file.file).ids for file in files]
    assert parts == [(10,), (), (25,), (10,)], "a task is given what its own file may have"
