"""The tables `deliveries` and `positions`, as `why` reads them: a few row groups, chosen by names and footers.

A row is what became of an interval of a stream, or of an item, for one recipient; its file is named by the ids of the
ledger's batches that it was folded from. So all that can speak of an entry lies in files that end after it. Rows of
the same delivery may lie in several files: the caller takes them all. Of the positions of a recipient only the first
that reaches an entry says something about it, so files of these are read in order, and no further than to that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from penstock.core.ledger import LedgerEvent
from penstock.core.registry import Registry
from penstock.core.trimming import Watermark
from penstock.engines.lake.files import Files
from penstock.engines.lake.lake import LakeReader
from penstock.wire.ledger import CONFIRMED, COVERED

_CHOSEN_BY: Final = ("recipient", "stream", "first", "last", "key")
_ROW: Final = (
    "door", "recipient", "stream", "first", "last", "key", "month", "number", "state", "reason", "last_time",
    "sent_time", "acked_time", "expires_at",
)  # fmt: skip

_POSITION: Final = ("door", "recipient", "stream", "upto", "time")


class Deliveries:
    """`core.why.Folded` over a lake."""

    def __init__(self, lake: LakeReader, registry: Registry) -> None:
        self._lake, self._registry = lake, registry
        self._files, self._positions = Files(lake.directory, "deliveries"), Files(lake.directory, "positions")
        self._rows: Any = None

    async def folded_upto(self) -> int:
        record = await self._registry.get("lake/ledger")
        return msgspec.json.decode(record.value, type=Watermark).done if record else 0

    async def of_entry(self, stream: str, id: int, recipient: str | None) -> list[LedgerEvent]:
        upto = await self.folded_upto()
        return await self._lake.run(lambda: self._find_all(stream, id, recipient, upto))

    async def of_item(self, key: str, recipient: str | None) -> list[LedgerEvent]:
        upto = await self.folded_upto()
        return await self._lake.run(lambda: list(self._find_item(key, recipient, upto)))

    # ── in the lake's threads ─────────────────────────────────────────────────────────────────

    def _find_all(self, stream: str, id: int, recipient: str | None, upto: int) -> list[LedgerEvent]:
        found = list(self._find_entry(stream, id, recipient, upto))
        doors = {event.door for event in found if event.state in COVERED}  # that a position would say something about
        if recipient is None:
            found += self._find_positions(stream, id, None, upto)
        elif doors or not found:
            for position in self._find_positions(stream, id, recipient, upto):
                found.append(position)
                doors.discard(position.door)
                if not doors:
                    break
        return found

    def _find_positions(self, stream: str, id: int, recipient: str | None, upto: int) -> Iterator[LedgerEvent]:
        """Where the recipient said that it had come to this entry, or beyond it; of each file in order."""
        for footer in self._footers(self._positions, id, upto):
            rows = [row for row in self._positions_in(footer, id, recipient) if row["stream"] in ("", stream)]
            for row in sorted(rows, key=lambda row: row["time"]):
                at = _ms(row["time"]) or 0
                yield LedgerEvent(at, CONFIRMED, "", row["door"], row["recipient"], row["stream"], 0, row["upto"])

    def _positions_in(self, footer: Any, id: int, recipient: str | None) -> Iterator[dict[str, Any]]:
        import pyarrow.compute as pc  # type: ignore[import-untyped]

        reader = self._reader()
        for group in range(footer.metadata.num_row_groups):
            names, reached = reader.bounds(footer, group, "recipient"), reader.bounds(footer, group, "upto")
            mine = recipient is None or names is None or names[0] <= recipient <= names[1]
            if mine and (reached is None or reached[1] >= id):
                table = reader.table(footer, group, _POSITION)
                inside = pc.greater_equal(table.column("upto"), id)
                yield from table.filter(_of(table, recipient, inside)).to_pylist()

    def _find_entry(self, stream: str, id: int, recipient: str | None, upto: int) -> Iterator[LedgerEvent]:
        import pyarrow.compute as pc

        def chosen(rows: Any) -> Any:
            inside = pc.and_(pc.less_equal(rows.column("first"), id), pc.greater_equal(rows.column("last"), id))
            return _of(rows, recipient, pc.and_(inside, pc.equal(rows.column("stream"), stream)))

        reader = self._reader()
        for footer in self._footers(self._files, id, upto):
            for group in range(footer.metadata.num_row_groups):
                first, last = reader.bounds(footer, group, "first"), reader.bounds(footer, group, "last")
                if (first is None or first[0] <= id) and (last is None or last[1] >= id):
                    yield from self._events(footer, group, chosen)

    def _find_item(self, key: str, recipient: str | None, upto: int) -> Iterator[LedgerEvent]:
        import pyarrow.compute as pc

        def chosen(rows: Any) -> Any:
            return _of(rows, recipient, pc.equal(rows.column("key"), key))

        reader = self._reader()
        for footer in self._footers(self._files, 0, upto):
            for group in range(footer.metadata.num_row_groups):
                keys = reader.bounds(footer, group, "key")
                if keys is None or keys[0] <= key <= keys[1]:
                    yield from self._events(footer, group, chosen)

    def _footers(self, files: Files, after: int, upto: int) -> Iterator[Any]:
        """The footers of all files that were folded from batches after an id, up to the watermark.

        What lies beyond that may be of a history that this log has not had: it was restored from a backup.
        """
        files.refresh()
        for file in files.overlapping(after, upto):
            yield self._reader().footer(files.path(file))

    def _reader(self) -> Any:
        if self._rows is None:
            from penstock.engines.lake.rows import ParquetRows

            self._rows = ParquetRows(footers=8192)
        return self._rows

    def _events(self, footer: Any, group: int, chosen: Callable[[Any], Any]) -> Iterator[LedgerEvent]:
        import pyarrow.compute as pc

        reader = self._reader()
        places = pc.indices_nonzero(chosen(reader.table(footer, group, _CHOSEN_BY)))
        if len(places):
            for row in reader.table(footer, group, _ROW).take(places).to_pylist():
                yield from _told(row)


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
