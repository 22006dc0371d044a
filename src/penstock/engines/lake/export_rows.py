"""Rows of `events` as an export shows them, and their sums. Blocks: lives in the lake's threads.

This module loads pyarrow; import it only where the lake is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.core import arrow
from penstock.core.export import Block, ExportRange, Selection
from penstock.core.months import DAY_MS
from penstock.core.names import is_exact
from penstock.engines.lake.event_rows import LIVE, Footer, ParquetRows, are_live
from penstock.engines.lake.files import CoveringFile, TableFiles
from penstock.errors import Trimmed

SCAN_GROUPS: Final = 16
"""Row groups that one step looks at while none has a stream that is wanted. Then it stands in line again."""

_DAY_US: Final = pa.scalar(DAY_MS * 1000, pa.int64())
_NEEDED: Final = ("id", "stream", "kind", "expires_at")
_EMPTIED: Final = ("type", "attributes", "body")
_SUMS: Final = (("id", "max"), ("id", "count"), ("bytes", "sum"), ("day", "min"), ("day", "max"))


class FoundRows(NamedTuple):
    """A part of an export."""

    pieces: list[bytes]  # of the Arrow stream; where its first rows are, its schema comes before them
    rows: int | None  # of the stream so far; None as long as it has none
    upto: int  # the id up to which all rows were looked at


class ExportRows:
    """Reads what the files hold for an export."""

    def __init__(self, rows: ParquetRows) -> None:
        self._rows = rows

    # ── sums ──────────────────────────────────────────────────────────────────────────────────

    def blocks(self, files: TableFiles, after: int, upto: int, step: int) -> list[Block]:
        """Sums over (after, upto], as `core.export.Export.blocks` has them. `Trimmed` names the first hole.

        A body counts with the mean of its row group: none is read for it.
        """
        measured = []
        for begin, file in _covering(files, after, upto):
            footer = self._rows.footer(file.path)
            for group in self._rows.groups(footer, begin, upto, None):
                rows = _between(self._rows.table(footer, group, ("id", "time")), begin, upto)
                measured.append(_measured(rows, after, step, _mean_body(footer, group)))
        if not measured:
            return []
        table = pa.concat_tables(measured).group_by("block", use_threads=False).aggregate(list(_SUMS))
        columns = [table.sort_by("block").column(f"{name}_{sum}").to_pylist() for name, sum in _SUMS]
        return [Block(last, rows, round(size), *days) for last, rows, size, *days in zip(*columns, strict=True)]

    # ── rows ──────────────────────────────────────────────────────────────────────────────────

    def next_rows(self, files: TableFiles, wanted: ExportRange, now_ms: int) -> FoundRows:
        """The next rows of an export, those of one row group. `Trimmed` if it begins in a hole."""
        exact, looked, upto = _exact(wanted.selection), 0, wanted.after
        for begin, file in _covering_first(files, wanted.after, wanted.upto):
            for footer, group in self._groups(file, begin, wanted.upto, exact):
                looked += 1
                rows, last = self._shown(footer, group, begin, wanted, now_ms)
                if rows.num_rows or looked >= SCAN_GROUPS:
                    return _found(rows, wanted, min(last, wanted.upto))
            upto = min(file.hi, wanted.upto)
        return FoundRows([], wanted.rows_before, upto)

    def _groups(
        self, file: CoveringFile, after: int, upto: int, exact: frozenset[str] | None
    ) -> Iterator[tuple[Footer, int]]:
        if exact and not any(file.bounds.may_have("stream", stream) for stream in exact):
            return
        footer = self._rows.footer(file.path)
        for group in self._rows.groups(footer, after, upto, exact):
            yield footer, group

    def _shown(self, footer: Footer, group: int, after: int, wanted: ExportRange, now_ms: int) -> tuple[Any, int]:
        """The wanted rows of a row group as an export shows them, and the group's last id."""
        keys = self._rows.read(footer, group, ("id", "stream"))
        last = int(keys.column("id")[-1].as_py())
        names = None
        if wanted.selection.patterns is not None:
            names = [name for name in pc.unique(keys.column("stream")).to_pylist() if wanted.selection.wants(name)]
            if not names:
                return keys.slice(0, 0), last
        table = self._rows.read(footer, group, tuple(dict.fromkeys((*_NEEDED, *wanted.columns))))
        rows = _between(table, after, wanted.upto)
        if names is not None:
            rows = rows.filter(pc.is_in(rows.column("stream"), pa.array(names, pa.utf8())))
        return _selected(_buried(rows, now_ms), wanted.columns), last


def _covering(files: TableFiles, after: int, upto: int) -> Iterator[tuple[int, CoveringFile]]:
    """The files that cover (after, upto], in order, each with the id after which it is read."""
    while after < upto:
        file = files.holding(after + 1)
        if file is None:
            following = files.next_after(after + 1)
            raise Trimmed(after, min(upto, following.lo) if following else upto)
        yield after, file
        after = file.hi


def _covering_first(files: TableFiles, after: int, upto: int) -> Iterator[tuple[int, CoveringFile]]:
    """The same up to the first hole, if that is not at the beginning."""
    try:
        yield from _covering(files, after, upto)
    except Trimmed as hole:
        if hole.after == after:
            raise


def _between(rows: Any, after: int, upto: int) -> Any:
    """Those of *rows* with ids in (after, upto]."""
    ids = rows.column("id")
    return rows.filter(pc.and_(pc.greater(ids, after), pc.less_equal(ids, upto)))


def _mean_body(footer: Footer, group: int) -> float:
    """About how long the bodies of a row group are, by its footer."""
    said = footer.metadata.row_group(group)
    return float(said.column(footer.columns["body"]).total_uncompressed_size / said.num_rows)


def _measured(rows: Any, after: int, step: int, body: float) -> Any:
    """What is summed up of *rows*, and in which block each of them is."""
    ids = rows.column("id")
    return pa.table(
        {
            "block": pc.divide(pc.subtract(ids, after + 1), step),
            "id": ids,
            "bytes": pa.repeat(pa.scalar(body), rows.num_rows),
            "day": pc.divide(pc.cast(rows.column("time"), pa.int64()), _DAY_US),
        }
    )


def _exact(selection: Selection) -> frozenset[str] | None:
    """The streams that are wanted, if they are named one by one."""
    patterns = selection.patterns
    return frozenset(patterns) if patterns is not None and all(map(is_exact, patterns)) else None


def _buried(rows: Any, now_ms: int) -> Any:
    """*rows* with tombstones in the place of those whose time has run out, as the log shows them."""
    over = pc.and_not(pc.is_in(rows.column("kind"), LIVE), are_live(rows, now_ms))
    if not pc.any(over).as_py():
        return rows
    for name in (name for name in ("kind", *_EMPTIED) if name in rows.column_names):
        values = rows.column(name)
        left = pa.scalar("expired" if name == "kind" else None, values.type)
        rows = rows.set_column(rows.column_names.index(name), name, pc.if_else(over, left, values))
    return rows


def _selected(rows: Any, columns: tuple[str, ...]) -> Any:
    """These columns with the types of an export. One that is younger than the file is null."""
    schema, there = arrow.schema(columns), rows.column_names
    made = [
        rows.column(field.name).cast(field.type) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(made, schema=schema)


def _found(rows: Any, wanted: ExportRange, upto: int) -> FoundRows:
    if not rows.num_rows:
        return FoundRows([], wanted.rows_before, upto)
    opening = [arrow.opening(wanted.columns)] if wanted.rows_before is None else []
    messages = (arrow.message(piece).to_pybytes() for batch in rows.to_batches() for piece in arrow.split(batch))
    return FoundRows([*opening, *messages], (wanted.rows_before or 0) + rows.num_rows, upto)
