"""The export of the log, for programs that read much of it: the contract, and planning.

    GET /v1/log/plan    blocks (sums over neighbouring entries) ──▶ slices, each of one UTC day
    GET /v1/log/arrow   one slice ──▶ an Arrow IPC stream

A reader plans once, keeps the slices, and reads each of them as often as it must: the rows of a slice
never change in number. Planning is pure but for the sums, which only the engine can make quickly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import date
from types import ModuleType
from typing import Final, Protocol

import msgspec

from penstock.core.log import Log
from penstock.core.matching import matches
from penstock.core.months import DAY_MS
from penstock.core.names import ROOMS
from penstock.errors import Busy, NotFound, PenstockError, Trimmed
from penstock.limits import PAGE_BYTES, PLAN_SLICES
from penstock.values import Entry
from penstock.wire.table_columns import NAMES

PLAN_ROWS: Final = 10_000_000
"""Rows that one plan covers at most: some three seconds of looking. Over it: the plan ends earlier."""

WINDOW_IDS: Final = 262_144
"""Ids that the engine sums up in one go: some 70 ms, during which SQLite keeps its write-ahead log."""

BLOCK_IDS: Final = 1_024
"""Ids of one sum at most: the grain in which slices are cut."""

_GRAINS: Final = 16  # sums per wanted slice, at least: slices then differ by a sixteenth
_EPOCH: Final = date(1970, 1, 1).toordinal()


class NotFollowed(Busy):
    """The range ends at an id of the log that this node has not seen. It is on its way."""

    code = "not_followed"
    remedy = "Try again in 1 s."

    def __init__(self, upto: int, followed: int) -> None:
        PenstockError.__init__(self, f"this node has followed the log up to id {followed:,}, not {upto:,}")
        self.upto, self.followed = upto, followed


class BeyondLog(NotFound):
    """No node has given out that id: it was taken from another log, or made up."""

    def __init__(self, id: int, newest: int) -> None:
        remedy = f"The log's newest id is {newest:,}: ask for ids up to that."
        super().__init__("id", str(id), code="id_beyond_log", remedy=remedy)


class Block(msgspec.Struct, frozen=True, gc=False):
    """Neighbouring entries, summed up."""

    upto: int  # the id of the last one
    rows: int
    bytes: int  # of their bodies
    first_day: int  # the earliest day of any of them, in days since 1970 UTC
    last_day: int  # the latest


class ExportSlice(msgspec.Struct, frozen=True, gc=False):
    """The rows with ids in (lo, hi]: all published on one day."""

    lo: int
    hi: int
    day: str
    rows: int
    bytes: int


class ExportPlan(msgspec.Struct, frozen=True, gc=False):
    """Slices that hold every row of (after, upto], in order. None of them is empty."""

    after: int
    upto: int
    slices: tuple[ExportSlice, ...]


class PlanQuestion(msgspec.Struct, frozen=True):
    """What a plan is asked for."""

    after: int
    upto: int
    parts: int = 1
    max_rows: int = PLAN_ROWS
    max_bytes: int = 2**63 - 1

    @property
    def step(self) -> int:
        """Ids of one sum: so few that *parts* slices come out about equal."""
        return max(1, min(BLOCK_IDS, (self.upto - self.after) // (self.parts * _GRAINS)))


class Selection(msgspec.Struct, frozen=True):
    """Which streams an export shows. As values, because it may have to travel to another process."""

    patterns: tuple[str, ...] | None = None  # None is every stream, those of the system too
    users: tuple[str, ...] | None = None  # if given, streams under /users/ must match one of these as well
    rooms: bool = True  # False leaves out the stream with events for several rooms

    def wants(self, stream: str) -> bool:
        """Whether the export shows *stream*."""
        if self.patterns is None:
            return True
        if not any(matches(pattern, stream) for pattern in self.patterns) or (stream == ROOMS and not self.rooms):
            return False
        if self.users is None or not stream.startswith("/users/"):
            return True
        return any(matches(pattern, stream) for pattern in self.users)


class ExportRange(msgspec.Struct, frozen=True):
    """What one export shows: the rows with ids in (after, upto], which this node has followed."""

    after: int
    upto: int
    columns: tuple[str, ...] = NAMES
    selection: Selection = Selection()
    rows_before: int | None = None  # it goes on with a stream that has a schema and so many rows: count these, too


class Export(Protocol):
    """What an engine can do for readers of large parts of its log."""

    async def blocks(self, after: int, upto: int, step: int) -> list[Block]:
        """Sums over (after, upto], each over at most *step* ids, in order; those without rows are left out."""
        ...

    def stream(self, wanted: ExportRange) -> AsyncGenerator[bytes, None]:
        """The bytes of an Arrow IPC stream, piece by piece. What ends without an error is complete.

        It ends with an empty batch whose metadata say `rows` and `upto`. What ends with an error is complete up to
        its last row: a reader may go on from there. A consumer that is slow to ask for the next piece stops the
        reading; memory stays bounded. Close the iterator to give up.
        """
        ...

    async def close(self) -> None:
        """Let go of everything. Streams that are open fail."""
        ...


class History(Export, Protocol):
    """The export of a log and of what went from it to the lake, as one.

    `Trimmed` names the first ids that are in neither; they need not be the first of those that were asked for.
    """

    async def begins_after(self) -> int:
        """The id after which the oldest entries begin that are left."""
        ...


# ── planning ───────────────────────────────────────────────────────────────────────────────────


class Cutter:
    """Collects blocks in order of id, up to the limits of a question, and cuts them into slices."""

    def __init__(self, question: PlanQuestion) -> None:
        self._question = question
        self._blocks: list[Block] = []
        self._rows = self._bytes = self._day_changes = 0
        self.full = False

    def add(self, block: Block) -> bool:
        """Take *block* if it lies within one day and within the limits.

        If not: a block of several rows is to be offered again row by row; after a single row it is `full`.
        """
        one_day = block.first_day == block.last_day
        if one_day and self._fits(block):
            self._take(block)
            return True
        self.full = block.rows == 1
        return False

    def _fits(self, block: Block) -> bool:
        question = self._question
        if self._day_changes >= PLAN_SLICES:
            return False
        if block.rows == 1 and not self._rows:
            return True  # however large it is: a plan must get on
        return self._rows + block.rows <= question.max_rows and self._bytes + block.bytes <= question.max_bytes

    def _take(self, block: Block) -> None:
        self._rows += block.rows
        self._bytes += block.bytes
        last = self._blocks[-1] if self._blocks else None
        if last is not None and last.last_day == block.first_day and last.rows + block.rows <= self._question.step:
            rows, size = last.rows + block.rows, last.bytes + block.bytes
            self._blocks[-1] = Block(block.upto, rows, size, block.first_day, block.last_day)
        else:
            self._day_changes += last is not None and last.last_day != block.first_day
            self._blocks.append(block)

    def plan(self, upto: int) -> ExportPlan:
        """The slices of what was taken, after all was offered up to an id."""
        question = self._question
        slices = _slices(question.after, self._blocks, question.parts)
        if slices and self.full:
            return ExportPlan(question.after, slices[-1].hi, tuple(slices))
        if slices:  # ids without entries may follow the last row; the next plan begins after them
            slices[-1] = msgspec.structs.replace(slices[-1], hi=upto)
        return ExportPlan(question.after, upto, tuple(slices))


def _slices(after: int, blocks: Sequence[Block], parts: int) -> list[ExportSlice]:
    """Join neighbours of one day, and of one of *parts* equal portions of the rows."""
    total = sum(block.rows for block in blocks)
    slices: list[ExportSlice] = []
    before, portion, day = 0, -1, -1
    for block in blocks:
        fresh = before * parts // total
        if (fresh, block.first_day) != (portion, day):
            portion, day = fresh, block.first_day
            slices.append(ExportSlice(slices[-1].hi if slices else after, block.upto, day_name(day), 0, 0))
        last = slices[-1]
        slices[-1] = ExportSlice(last.lo, block.upto, last.day, last.rows + block.rows, last.bytes + block.bytes)
        before += block.rows
    return slices


def day_of(published_ms: int) -> int:
    """The UTC day of a time, in days since 1970."""
    return published_ms // DAY_MS


def day_name(day: int) -> str:
    """A day as people write it: 2026-11-15."""
    return date.fromordinal(_EPOCH + day).isoformat()


async def make_plan(export: Export, question: PlanQuestion) -> ExportPlan:
    """Cut (after, upto] into slices, looking no further than the limits allow, nor into a hole of the lake.

    `Trimmed` if it begins with one.
    """
    cutter = Cutter(question)
    after, end = question.after, question.upto
    while after < end and not cutter.full:
        upto = min(after + WINDOW_IDS, end)
        try:
            blocks = await export.blocks(after, upto, question.step)
        except Trimmed as hole:
            if hole.after <= question.after:
                raise
            end = hole.after
            continue
        await _offer(export, cutter, after, blocks)
        after = upto
    return cutter.plan(end)


async def _offer(export: Export, cutter: Cutter, after: int, blocks: Sequence[Block]) -> None:
    for block in blocks:
        if not cutter.add(block) and not cutter.full:
            # Midnight lies in it (or several: clocks go back a little), or a limit: look at each row.
            for row in await export.blocks(after, block.upto, 1):
                if not cutter.add(row):
                    break
        if cutter.full:
            return
        after = block.upto


# ── any engine ─────────────────────────────────────────────────────────────────────────────────


class LogExport:
    """The export of any log, entry by entry: for engines without a quicker way, and as the model for theirs."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def blocks(self, after: int, upto: int, step: int) -> list[Block]:
        sums: dict[int, Block] = {}
        async for entries in self._pages(after, upto):
            for entry in entries:
                place, day = (entry.id - after - 1) // step, day_of(entry.published_ms)
                so_far = sums.get(place, Block(0, 0, 0, day, day))
                sums[place] = Block(
                    entry.id,
                    so_far.rows + 1,
                    so_far.bytes + len(entry.body),
                    min(so_far.first_day, day),
                    max(so_far.last_day, day),
                )
        return list(sums.values())

    async def stream(self, wanted: ExportRange) -> AsyncGenerator[bytes, None]:
        arrow = await asyncio.to_thread(load_arrow)
        if wanted.rows_before is None:
            yield arrow.opening(wanted.columns)
        rows = wanted.rows_before or 0
        async for entries in self._pages(wanted.after, wanted.upto):
            check_not_trimmed(self._log, wanted.after)
            shown = [entry for entry in entries if wanted.selection.wants(entry.stream)]
            rows += len(shown)
            for batch in arrow.split(arrow.batch_of(shown, wanted.columns)) if shown else ():
                yield arrow.message(batch).to_pybytes()
        yield arrow.closing(wanted.columns, rows, wanted.upto)

    async def close(self) -> None:
        return None

    async def _pages(self, after: int, upto: int) -> AsyncIterator[list[Entry]]:
        """The entries of (after, upto], no more than some MiB at a time."""
        found: list[Entry] = []
        size = 0
        for id in range(after + 1, upto + 1):
            entry = await self._log.entry(id)
            if entry is not None:
                found.append(entry)
                size += len(entry.body)
            if len(found) >= BLOCK_IDS or size >= PAGE_BYTES:
                yield found
                found, size = [], 0
        check_not_trimmed(self._log, after)
        if found:
            yield found


def load_arrow() -> ModuleType:
    """Load pyarrow, and what that loads at its first use (pandas, where it is there): a quarter of a second.

    Most servers never export; the one that does has others to serve meanwhile.
    """
    from penstock.core import arrow

    arrow.closing(NAMES, 0, 0)
    return arrow


def check_not_trimmed(log: Log, after: int) -> None:
    """Raise `Trimmed` if rows after *after* are gone, or are going. After a read: nothing was missing."""
    if after < log.trimmed_upto:
        raise Trimmed(after, log.trimmed_upto)
