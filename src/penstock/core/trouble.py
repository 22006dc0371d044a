"""What is not delivered: deliveries that are retried, dead, dropped, expired or lost, from the ledger's newest batches.

Nothing is done until somebody asks. The first question reads the batches of the last day, up to a number of bytes; each
later question reads the batches that came since. A delivery leaves the list as soon as a record says that it was sent
or acked after all. A recipient that is only slow or silent is not listed here: its door shows it
(`doors/*/recipients.py`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.core.clock import Clock
from penstock.core.ledger import STREAM, Ledger, LedgerRow, decode_rows
from penstock.core.log import Log
from penstock.errors import Trimmed
from penstock.limits import TROUBLE_LEDGER_BYTES, TROUBLES
from penstock.values import Entry
from penstock.wire.ledger import CONFIRMED, FAILED, RANKS, UNKNOWN_RANK

WINDOW_MS: Final = 24 * 3600 * 1000
"""How far back it looks. What is older is in the lake, for queries of its own."""

_GOOD: Final = ("acked", "sent", CONFIRMED)
_STRIDE: Final = 100  # batches that are read at once, from the newest back
_FAR: Final = 5_000  # batches after which reading anew is cheaper than catching up

_Key = tuple[str, str, str, str, int]  # door, recipient, stream, message id, first id


class Trouble(msgspec.Struct):
    """A delivery, of one entry, of a few in a row, or of one message, that did not go well."""

    door: str
    recipient: str
    state: str
    reason: str
    stream: str
    first: int  # ids; 0 for a message
    last: int
    message: str
    since_ms: int  # of the first record
    ms: int  # of the last
    tries: int = 1


class TroubleFilter(msgspec.Struct, frozen=True):
    """Which deliveries are meant; what is empty leaves all."""

    state: str = ""
    reason: str | None = None
    door: str = ""
    recipient: str = ""
    search: str = ""
    entry: int = 0

    def wants(self, one: Trouble) -> bool:
        """Whether it is meant."""
        if self.reason is not None and one.reason != self.reason:
            return False
        if self.entry and not one.first <= self.entry <= one.last:
            return False
        fits = self.state in ("", one.state) and self.door in ("", one.door) and self.recipient in ("", one.recipient)
        words = self.search.casefold()
        return fits and (not words or any(words in text.casefold() for text in (one.recipient, one.stream, one.reason)))


class TroubleIndex:
    """What is in trouble now, as far as the ledger's newest batches tell."""

    def __init__(self, log: Log, ledger: Ledger, clock: Clock) -> None:
        self._log, self._ledger, self._clock = log, ledger, clock
        self._open: dict[_Key, Trouble] = {}
        self._of: dict[tuple[str, str], dict[str, _InStream]] = {}  # by door and recipient, then by stream
        self._upto = self._next_index = 0
        self._turn = asyncio.Lock()
        self.since_ms: int | None = None  # everything from then on was read
        self.forgotten = 0  # over the limit

    async def find(self, wanted: TroubleFilter) -> list[Trouble]:
        """What is in trouble, the newest first."""
        async with self._turn:
            await self._ledger.flush()
            await self._catch_up()
        self._forget_old()
        found = [one for one in self._open.values() if wanted.wants(one)]
        return sorted(found, key=lambda one: one.ms, reverse=True)

    # ── reading the ledger ────────────────────────────────────────────────────────────────────

    async def _catch_up(self) -> None:
        head = await self._log.head(STREAM)
        if head is None:
            return
        if self.since_ms is None or head.next_index - self._next_index > _FAR:
            await self._begin(head.next_index)
        more = True
        while more:
            page = await self._log.read_after((STREAM,), self._upto)
            await self._take_all(page.entries)
            self._upto, more = page.upto, page.more
        self._next_index = head.next_index

    async def _begin(self, next_index: int) -> None:
        """Read from the newest batch back, so that what is read is the newest; then take it in order."""
        self._open, self._of = {}, {}
        oldest_ms = self._clock.now_ms() - WINDOW_MS
        batches: list[Entry] = []
        begin, room = next_index, TROUBLE_LEDGER_BYTES
        while begin > 0 and room > 0 and (not batches or batches[0].published_ms > oldest_ms):
            stretch = await self._stretch(max(0, begin - _STRIDE), begin)
            if not stretch:
                break
            batches[:0] = stretch
            room -= sum(len(batch.body) for batch in stretch)
            begin = stretch[0].index or 0
        self.since_ms = batches[0].published_ms if begin > 0 and batches else oldest_ms
        self._upto = batches[-1].id if batches else 0
        await self._take_all(batches)

    async def _stretch(self, begin: int, end: int) -> list[Entry]:
        """Batches by their indexes; none if the log has them no more."""
        found: list[Entry] = []
        try:
            while begin < end:
                page = await self._log.read_index(STREAM, begin, limit=end - begin)
                if not page.entries:
                    break
                found += page.entries
                begin = (page.entries[-1].index or 0) + 1
        except Trimmed:
            return found
        return found

    async def _take_all(self, batches: Sequence[Entry]) -> None:
        for batch in batches:
            self._take(batch.body)
            await asyncio.sleep(0)

    def _take(self, body: bytes) -> None:
        concerned = bool(self._open)

        def is_wanted(row: LedgerRow) -> bool:
            """Rows of deliveries that went well are expanded only while something is in trouble."""
            nonlocal concerned
            concerned = concerned or row[1] in FAILED
            return concerned and (row[1] in FAILED or row[1] in _GOOD)

        try:
            header, rows = decode_rows(body, is_wanted)
        except (msgspec.MsgspecError, ValueError, IndexError):
            return
        before: dict[_Key, Trouble] = {}  # what this batch says was sent, and then that it failed
        for (ms, state, reason, stream, first, last, _), who in rows:
            for door, name in who:
                if state in FAILED:
                    self._add(Trouble(door, name, state, reason, stream, first, last, "", ms, ms), before)
                else:
                    self._went_well((door, name), stream, first, last, state, before)
        for ms, state, reason, door, name, key, _, _, _ in header.items:
            if state in FAILED:
                self._add(Trouble(door, name, state, reason, "", 0, 0, key, ms, ms), before)
            elif state in _GOOD:
                self._drop((door, name, "", key, 0))

    # ── what is open ──────────────────────────────────────────────────────────────────────────

    def _add(self, new: Trouble, before: dict[_Key, Trouble]) -> None:
        key = (new.door, new.recipient, new.stream, new.message, new.first)
        known = self._open.get(key)
        if known is not None and RANKS[known.state] < RANKS.get(new.state, UNKNOWN_RANK):
            return
        self._drop(key)
        if known := known or before.get(key):
            new.since_ms, new.tries = known.since_ms, known.tries + 1
        elif len(self._open) >= TROUBLES:
            self._drop(next(iter(self._open)))
            self.forgotten += 1
        self._open[key] = new
        if not new.message:
            self._of.setdefault(key[:2], {}).setdefault(new.stream, _InStream()).add(new)

    def _went_well(
        self, who: tuple[str, str], stream: str, first: int, last: int, state: str, before: dict[_Key, Trouble]
    ) -> None:
        streams = self._of.get(who, {})
        for name in (stream,) if stream else tuple(streams):
            if (troubles := streams.get(name)) is not None:
                for begin in troubles.ended(first, last, given_up=state != CONFIRMED):
                    key = (*who, name, "", begin)
                    before[key] = self._open[key]
                    self._drop(key)

    def _drop(self, key: _Key) -> None:
        one = self._open.pop(key, None)
        if one is not None and not one.message:
            streams = self._of[key[:2]]
            if streams[one.stream].remove(one):
                del streams[one.stream]
                if not streams:
                    del self._of[key[:2]]

    def _forget_old(self) -> None:
        oldest_ms = self._clock.now_ms() - WINDOW_MS
        for key in [key for key, one in self._open.items() if one.ms < oldest_ms]:
            self._drop(key)


class _InStream:
    """The troubles of one recipient in one stream, sorted, so that a range of ids is found without looking at each."""

    __slots__ = ("_given_up", "_retried")

    def __init__(self) -> None:
        self._given_up: list[tuple[int, int]] = []  # first ids, twice
        self._retried: list[tuple[int, int]] = []  # last ids, and first ones

    def _place(self, one: Trouble) -> tuple[list[tuple[int, int]], tuple[int, int]]:
        return (self._retried, (one.last, one.first)) if one.state == "retried" else (self._given_up, (one.first,) * 2)

    def add(self, one: Trouble) -> None:
        some, place = self._place(one)
        insort(some, place)

    def remove(self, one: Trouble) -> bool:
        """Whether nothing is left."""
        some, place = self._place(one)
        del some[bisect_left(some, place)]
        return not self._retried and not self._given_up

    def ended(self, first: int, last: int, *, given_up: bool) -> list[int]:
        """The first ids of those that are in trouble no more when entries from *first* to *last* went well.

        Retries are made in order: if an id went well, all retried ones before it did, too. Of those that were given up
        only those within the range count.
        """
        found = self._retried[: bisect_left(self._retried, (last + 1,))]
        if given_up:
            found += self._given_up[bisect_left(self._given_up, (first,)) : bisect_left(self._given_up, (last + 1,))]
        return [begin for _, begin in found]


def by_recipient(troubles: Iterable[Trouble]) -> dict[tuple[str, str], list[Trouble]]:
    """Troubles by door and recipient."""
    found: dict[tuple[str, str], list[Trouble]] = {}
    for one in troubles:
        found.setdefault((one.door, one.recipient), []).append(one)
    return found
