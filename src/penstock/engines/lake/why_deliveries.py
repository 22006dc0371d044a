"""The tables `deliveries` and `positions`, as `why` reads them: a few row groups, chosen by bounds.

A row is what became of an interval of a stream, or of an item, for one recipient. Manifests and footers say between
which values a file's recipients, ids and keys lie: what cannot have the row is not opened. Of the positions of a
recipient only the first that reaches an entry says something about it; so files of these are read in the order of
the ids that they were folded from, and no further than to that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from penstock.core.ledger import LedgerEvent
from penstock.engines.lake.reader import READ, LakeReader
from penstock.wire.ledger import CONFIRMED, COVERED

if TYPE_CHECKING:
    from penstock.engines.lake.event_rows import Footer, ParquetRows
    from penstock.iceberg.reading import ColumnBounds

_ROW: Final = (
    "door", "recipient", "stream", "first", "last", "key", "month", "number", "state", "reason", "last_time",
    "sent_time", "acked_time", "expires_at",
)  # fmt: skip

_POSITION: Final = ("door", "recipient", "stream", "upto", "time")


class Deliveries:
    """`core.why.Folded` over a lake."""

    def __init__(self, lake: LakeReader) -> None:
        self._lake = lake

    async def folded_upto(self) -> int:
        return (await self._lake.record("ledger")).done

    async def of_entry(self, stream: str, id: int, recipient: str | None) -> list[LedgerEvent]:
        return await self._lake.ask("ledger", lambda: self._find_all(stream, id, recipient))

    async def of_item(self, key: str, recipient: str | None) -> list[LedgerEvent]:
        return await self._lake.ask("ledger", lambda: list(self._find_item(key, recipient)))

    # ── in the lake's threads ─────────────────────────────────────────────────────────────────

    def _find_all(self, stream: str, id: int, recipient: str | None) -> list[LedgerEvent]:
        found = list(self._find_entry(stream, id, recipient))
        doors = {event.door for event in found if event.state in COVERED}  # that a position would say something about
        if recipient is None:
            found += self._find_positions(stream, id, None)
        elif doors or not found:
            for position in self._find_positions(stream, id, recipient):
                found.append(position)
                doors.discard(position.door)
                if not doors:
                    break
        return found

    def _find_positions(self, stream: str, id: int, recipient: str | None) -> Iterator[LedgerEvent]:
        """Where the recipient said that it had come to this entry, or beyond it; the first time first."""
        import pyarrow.compute as pc  # type: ignore[import-untyped]

        def reaching(bounds: ColumnBounds) -> bool:
            return _may_be_about(bounds, recipient) and bounds.most("upto") >= id

        found: list[dict[str, Any]] = []
        for footer, group in self._groups("positions", reaching):
            table = self._reader.table(footer, group, _POSITION)
            rows = table.filter(_of(table, recipient, pc.greater_equal(table.column("upto"), id))).to_pylist()
            found += (row for row in rows if row["stream"] in ("", stream))
        for row in sorted(found, key=lambda row: row["time"]):  # files have them by recipient and id, not by time
            at = _ms(row["time"]) or 0
            yield LedgerEvent(at, CONFIRMED, "", row["door"], row["recipient"], row["stream"], 0, row["upto"])

    def _find_entry(self, stream: str, id: int, recipient: str | None) -> Iterator[LedgerEvent]:
        import pyarrow.compute as pc

        def around(bounds: ColumnBounds) -> bool:
            return _may_be_about(bounds, recipient) and bounds.least("first") <= id <= bounds.most("last")

        def chosen(rows: Any) -> Any:
            inside = pc.and_(pc.less_equal(rows.column("first"), id), pc.greater_equal(rows.column("last"), id))
            return _of(rows, recipient, pc.and_(inside, pc.equal(rows.column("stream"), stream)))

        return self._events(around, ("recipient", "stream", "first", "last"), chosen)

    def _find_item(self, key: str, recipient: str | None) -> Iterator[LedgerEvent]:
        import pyarrow.compute as pc

        def keyed(bounds: ColumnBounds) -> bool:
            return _may_be_about(bounds, recipient) and bounds.may_have("key", key)

        def chosen(rows: Any) -> Any:
            return _of(rows, recipient, pc.equal(rows.column("key"), key))

        return self._events(keyed, ("recipient", "key"), chosen)

    def _groups(self, table: str, may_matter: Callable[[ColumnBounds], bool]) -> Iterator[tuple[Footer, int]]:
        """The row groups of a table that may matter by the bounds of their file, and by their own."""
        for file in self._lake.files("ledger", table).all:
            if may_matter(file.bounds):
                footer = self._reader.footer(file.path)
                for group in range(footer.metadata.num_row_groups):
                    if may_matter(self._reader.column_bounds(footer, group, READ["ledger"][table])):
                        yield footer, group

    @cached_property
    def _reader(self) -> ParquetRows:
        from penstock.engines.lake.event_rows import ParquetRows

        return ParquetRows(self._lake.store, footers=8192)

    def _events(
        self, may_matter: Callable[[ColumnBounds], bool], by: tuple[str, ...], chosen: Callable[[Any], Any]
    ) -> Iterator[LedgerEvent]:
        """What the rows say that are *chosen* by a few columns; only of those all columns are read."""
        import pyarrow.compute as pc

        for footer, group in self._groups("deliveries", may_matter):
            places = pc.indices_nonzero(chosen(self._reader.table(footer, group, by)))
            if len(places):
                for row in self._reader.table(footer, group, _ROW).take(places).to_pylist():
                    yield from _told(row)


def _may_be_about(bounds: ColumnBounds, recipient: str | None) -> bool:
    return recipient is None or bounds.may_have("recipient", recipient)


def _of(rows: Any, recipient: str | None, chosen: Any) -> Any:
    """Those of the chosen rows that are about *recipient*; all of them without one."""
    import pyarrow.compute as pc

    return chosen if recipient is None else pc.and_(chosen, pc.equal(rows.column("recipient"), recipient))


def _told(row: dict[str, Any]) -> Iterator[LedgerEvent]:
    """What one row says happened, in order."""
    what = (row["stream"] or "", row["first"] or 0, row["last"] or 0, row["key"] or "", row["month"] or "")
    expires = _ms(row["expires_at"])

    def event(state: str, reason: str, ms: int) -> LedgerEvent:
        return LedgerEvent(ms, state, reason, row["door"], row["recipient"], *what, row["number"] or 0, expires)

    sent, acked = _ms(row["sent_time"]), _ms(row["acked_time"])
    state, reason, last = row["state"], row["reason"] or "", _ms(row["last_time"]) or 0
    if sent is not None and (state, last) != ("sent", sent):
        yield event("sent", "", sent)
    if acked is not None:
        yield event("acked", reason if state == "acked" else "", acked)
    if state != "acked":
        yield event(state, reason, last)


def _ms(moment: Any) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)
