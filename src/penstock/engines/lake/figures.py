"""The table `rollup_hourly` for charts, and the sizes of all tables, from the files' footers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from penstock.core.hourly import HourRow, HourSum, TableSize, add_up
from penstock.engines.lake.files import Files
from penstock.engines.lake.lake import LakeReader
from penstock.wire.lake import LETTERS

_COLUMNS: Final = ("hour", "door", "state", "latency_ms", "count", "bytes")
FOOTERS: Final = 50_000
"""Footers that are remembered for the sizes of tables: rows and bytes of each, nothing else. Over it: all are read
again."""


class Figures:
    """`core.hourly.LakeFigures` over a lake."""

    def __init__(self, lake: LakeReader) -> None:
        self._lake = lake
        self._files = {table: Files(lake.directory, table) for table in LETTERS}
        self._sizes: dict[Path, tuple[int, int, int]] = {}  # rows, bytes and time of a file

    async def hours(self, since_ms: int) -> list[HourSum]:
        return await self._lake.run(lambda: add_up(self._rows(since_ms)))

    async def tables(self) -> list[TableSize]:
        return await self._lake.run(lambda: [self._size(table) for table in LETTERS])

    # ── in the lake's threads ─────────────────────────────────────────────────────────────────

    def _rows(self, since_ms: int) -> list[HourRow]:
        """Sums over all streams, of the hours from a time on; files of earlier days hold none of them."""
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.compute as pc  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        since = datetime.fromtimestamp(since_ms / 1000, UTC)
        day, files = f"{since - timedelta(days=1):%Y-%m-%d}", self._files["rollup_hourly"]
        files.refresh()
        tables = [
            pq.read_table(files.path(file), columns=list(_COLUMNS), partitioning=None)
            for file in files.cover
            if file.day >= day
        ]
        if not tables:
            return []
        whole: Any = pa.concat_tables(tables)
        whole = whole.set_column(0, "hour", pc.divide(pc.cast(whole.column("hour"), "int64"), 1000))
        whole = whole.filter(pc.greater_equal(whole.column("hour"), since_ms))
        summed = whole.group_by(["hour", "door", "state", "latency_ms"]).aggregate([("count", "sum"), ("bytes", "sum")])
        columns = ("hour", "door", "state", "latency_ms", "count_sum", "bytes_sum")
        return list(zip(*(summed.column(name).to_pylist() for name in columns), strict=True))

    def _size(self, table: str) -> TableSize:
        files = self._files[table]
        files.refresh()
        known = [self._size_of(files.path(file)) for file in files.cover]
        rows, size = sum(one[0] for one in known), sum(one[1] for one in known)
        return TableSize(table, len(known), rows, size, max((one[2] for one in known), default=None))

    def _size_of(self, path: Path) -> tuple[int, int, int]:
        import pyarrow.parquet as pq

        found = self._sizes.get(path)
        if found is None:
            if len(self._sizes) >= FOOTERS:
                self._sizes.clear()
            status = path.stat()
            found = (pq.read_metadata(path).num_rows, status.st_size, status.st_mtime_ns // 1_000_000)
            self._sizes[path] = found
        return found
