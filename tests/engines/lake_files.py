"""Writes lakes for tests: what the archive would have written, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from penstock.core import arrow
from penstock.core.export import day_name, day_of
from penstock.core.log import Log
from penstock.values import Entry
from penstock.wire.columns import NAMES
from penstock.wire.lake import LakeFile


async def everything(log: Log, after: int = 0) -> list[Entry]:
    """Every entry of every stream, of the system too, in order of id."""
    found = [await log.entry(id) for id in range(after + 1, log.followed + 1)]
    return [entry for entry in found if entry is not None]


def write_events(lake: Path, entries: Sequence[Entry], after: int, upto: int, *, group: int = 4) -> list[Path]:
    """Files for the ids in (after, upto], one for each day in turn; *group* rows in a row group."""
    written = []
    inside = [entry for entry in entries if after < entry.id <= upto]
    while inside:
        day = day_of(inside[0].published_ms)
        count = next((n for n, e in enumerate(inside) if day_of(e.published_ms) != day), len(inside))
        hi = inside[count - 1].id if count < len(inside) else upto
        written.append(write_file(lake, inside[:count], LakeFile(after, hi, day_name(day), "events"), group))
        inside, after = inside[count:], hi
    return written


def write_file(lake: Path, entries: Sequence[Entry], file: LakeFile, group: int = 4) -> Path:
    """One file of `events`, complete before it gets its name."""
    path = lake / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_batches([arrow.batch_of(entries, NAMES)])
    staged = path.with_suffix(".staged")
    pq.write_table(table, staged, row_group_size=group, compression="zstd")
    staged.rename(path)
    return path
