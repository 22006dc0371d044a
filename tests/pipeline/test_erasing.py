"""Files without what was erased: they equal an archive of the log as it is afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as parquet
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.clock import ManualClock
from penstock.core.log import Log
from penstock.engines.memory import MemoryEngine
from penstock.pipeline.erasing import gone, rows_with, write_without
from penstock.values import Batch, Draft, Kind
from penstock.wire.lake import LakeFile
from tests.engines.lake_files import everything, write_events

STREAMS = ("/a", "/b", "/users/1")
bodies = st.tuples(st.sampled_from(STREAMS), st.binary(max_size=8), st.integers(0, 2))
erased = st.lists(st.one_of(st.sets(st.integers(1, 40), min_size=1), st.sampled_from(STREAMS)), min_size=1, max_size=3)


async def archive_and_erase(
    folder: Path, drafts: Sequence[tuple[str, bytes, int]], wanted: Sequence[set[int] | str]
) -> tuple[Path, Path, list[bytes]]:
    """A file of the log as it was, one of the log as it is after the erasing, and what was asked for."""
    async with MemoryEngine(clock=ManualClock()) as engine:
        log = engine.log
        for stream, body, parts in drafts:
            await log.append(Batch((Draft(stream, body, "t"), *[Draft(stream, body, kind=Kind.PART)] * parts)))
        (before,) = write_events(folder / "before", await everything(log), 0, log.followed)
        asked = [await erase(log, one) for one in wanted]
        (after,) = write_events(folder / "after", await everything(log), 0, log.followed)
    return before, after, asked


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


def rows(path: Path) -> pa.Table:
    return parquet.ParquetFile(path).read()


@given(st.lists(bodies, min_size=1, max_size=12), erased)
@settings(max_examples=30, deadline=None)
def test_a_file_without_what_was_erased_is_one_of_the_log_as_it_is(
    drafts: list[tuple[str, bytes, int]], wanted: list[set[int] | str]
) -> None:
    with TemporaryDirectory() as folder:
        before, after, asked = asyncio.run(archive_and_erase(Path(folder), drafts, wanted))
        what = gone(asked)

        write_without(before, Path(folder, "made.parquet"), what)

        assert rows(Path(folder, "made.parquet")).equals(rows(after).cast(rows(before).schema))
        changed = sum(kind == "erased" for kind in rows(after)["kind"].to_pylist())
        assert rows_with(before, what) == changed
        assert rows_with(Path(folder, "made.parquet"), what) == 0, "a second time there is nothing to do"


def test_names_tell_which_files_cannot_have_it() -> None:
    day = "2026-11-15"
    files = [LakeFile(lo, lo + 10, day, "events") for lo in (0, 10, 20)]
    by_id = gone([b'{"ids":[10,25]}'])
    by_stream = gone([b'{"stream":"/a","upto":15}', b'{"stream":"/a","upto":11}'])

    assert [by_id.may_be_in(file) for file in files] == [True, False, True]
    assert [by_stream.may_be_in(file) for file in files] == [True, True, False]
    assert not gone([])
