"""The table `rollup_hourly` for charts, and the sizes of all tables as their metadata tells them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core.hourly_figures import HourRow, HourSum, TableSize, add_up
from penstock.engines.lake.reader import LakeReader
from penstock.wire.lake_files import parse_location
from penstock.wire.table_columns import TABLES

if TYPE_CHECKING:
    from penstock.engines.lake.event_rows import ParquetRows

_COLUMNS: Final = ("hour", "door", "state", "latency_ms", "count", "bytes")


class _Snapshot(msgspec.Struct, rename="kebab"):
    snapshot_id: int
    timestamp_ms: int
    summary: dict[str, str] = {}


class _Metadata(msgspec.Struct, rename="kebab"):
    """What of a table's metadata.json tells its size."""

    current_snapshot_id: int | None = None
    snapshots: list[_Snapshot] = []

    @property
    def newest(self) -> _Snapshot | None:
        return next((one for one in self.snapshots if one.snapshot_id == self.current_snapshot_id), None)


_metadata = msgspec.json.Decoder(_Metadata)


class Figures:
    """`core.hourly_figures.LakeFigures` over a lake."""

    def __init__(self, lake: LakeReader) -> None:
        self._lake = lake

    async def hours(self, since_ms: int) -> list[HourSum]:
        return await self._lake.ask("rollup", lambda: add_up(self._rows(since_ms)))

    async def tables(self) -> list[TableSize]:
        typed = [name for name in await self._lake.tables() if name not in TABLES]
        return [await self._size(table) for table in (*TABLES, *typed)]

    async def _size(self, table: str) -> TableSize:
        found = await self._lake.table(table)
        newest = _metadata.decode(found[1]).newest if found is not None else None
        if newest is None:
            return TableSize(table, 0, 0, 0, None)
        files, rows, size = (
            int(newest.summary.get(f"total-{what}", 0)) for what in ("data-files", "records", "files-size")
        )
        return TableSize(table, files, rows, size, newest.timestamp_ms)

    # ── in the lake's threads ─────────────────────────────────────────────────────────────────

    @cached_property
    def _reader(self) -> ParquetRows:
        from penstock.engines.lake.event_rows import ParquetRows

        return ParquetRows(self._lake.store)

    def _rows(self, since_ms: int) -> list[HourRow]:
        """Sums over all streams, of the hours from a time on; files of earlier days hold none of them."""
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.compute as pc  # type: ignore[import-untyped]

        since = datetime.fromtimestamp(since_ms / 1000, UTC)
        day = f"{since - timedelta(days=1):%Y-%m-%d}"
        files = self._lake.files("rollup", "rollup_hourly").all
        footers = [self._reader.footer(one.path) for one in files if _day(one.path) >= day]
        tables = [
            self._reader.table(footer, group, _COLUMNS).select(_COLUMNS)
            for footer in footers
            for group in range(footer.metadata.num_row_groups)
        ]
        if not tables:
            return []
        whole: Any = pa.concat_tables(tables)
        whole = whole.set_column(0, "hour", pc.divide(pc.cast(whole.column("hour"), "int64"), 1000))
        whole = whole.filter(pc.greater_equal(whole.column("hour"), since_ms))
        summed = whole.group_by(["hour", "door", "state", "latency_ms"]).aggregate([("count", "sum"), ("bytes", "sum")])
        columns = ("hour", "door", "state", "latency_ms", "count_sum", "bytes_sum")
        return list(zip(*(summed.column(name).to_pylist() for name in columns), strict=True))


def _day(path: str) -> str:
    file = parse_location(path)
    return file.day if file is not None else ""
