"""Lets devices confirm what was sent to them before a server ended, by `o` as well as by `/subsist?o=`.

The first device that comes back with an id makes this read the ledger, the newest batches first, in the background and
once (`former.py`); in a cluster again when another node has ended. Devices that come back meanwhile wait for it in
memory, their wires do not. What those of a moment confirm is recorded together: thousands that were sent the
same events are a few rows of the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Final, NamedTuple, Self

from penstock.core.background import Background, Loop
from penstock.core.ledger import STREAM, Ledger, Recipient, epoch_key, readable
from penstock.core.log import Log
from penstock.core.members import Membership, node_of
from penstock.core.registry import Registry
from penstock.doors.sps.former import Former, Interval, Life
from penstock.doors.sps.presence import STREAM as PRESENCE
from penstock.doors.sps.presence import Line, lines_of
from penstock.doors.sps.wire import Wire
from penstock.doors.sps.witness import Witnesses
from penstock.errors import NotFound, Trimmed
from penstock.limits import PAGE_BYTES, RECALLED_BATCHES, UNCONFIRMED_WIRES
from penstock.values import Entry

log = logging.getLogger("penstock.sps")

GATHER_SECONDS: Final = 0.05
BATCHES: Final = 200
"""Entries of the ledger, or of presence, that are looked at in one go."""
AT_ONCE: Final = 200
"""Devices whose confirmations are recorded in one turn of the loop."""


class Said(NamedTuple):
    """What a device has said it has. *wire* is there when it comes back, and says what is for it."""

    who: Recipient
    upto: int
    wire: Wire | None


class Recall:
    """Remembers for the devices what a server that has ended cannot. Lives in `async with`."""

    def __init__(
        self,
        source: Log,
        ledger: Ledger,
        registry: Registry,
        members: Membership,
        background: Background | None = None,
    ) -> None:
        self._log, self._ledger, self._registry, self._members = source, ledger, registry, members
        self._background = background or Background()
        self._former, self._witnesses = Former(), Witnesses(source, ledger.flush_ms)
        self._ends: dict[str, int] = {}  # of the ledger and of presence: what comes before these indexes is of interest
        self._changes, self._read_upto = 1, 0  # of members: lives may have ended of which nothing was read yet
        self._said: OrderedDict[str, Said] = OrderedDict()
        self._heard: OrderedDict[str, Said] = OrderedDict()  # in a cluster: nodes are found dead long after it was said
        self._work = asyncio.Event()
        self._done = asyncio.Event()
        self._loop: Loop | None = None

    async def __aenter__(self) -> Self:
        if self._ledger.enabled:
            for stream in (STREAM, PRESENCE):
                await self._look_for_end(stream)
            self._members.on_change.append(self._members_changed)
            self._loop = self._background.forever("sps.recall", self._round)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was not recorded by now is confirmed when its device comes back to the next life."""
        if self._loop is not None:
            await self._loop.stop()

    def confirm(self, who: Recipient, upto: int, wire: Wire | None = None) -> None:
        """A device has everything that it was sent up to an id, whoever sent it."""
        said = Said(who, upto, wire)
        if self._loop is None or not upto:
            return
        # While it is being read, `_former` belongs to another thread.
        if self._read_upto != self._changes or self._former.concerns(who.name, upto, witness=wire is not None):
            self._said[who.name] = said
            self._work.set()
        elif not self._members.alone:
            self._hear([said])

    async def confirmed(self) -> None:
        """Return when what was said before is recorded."""
        while self._said and self._loop is not None:
            self._done.clear()
            await self._done.wait()

    def _members_changed(self) -> None:
        self._changes += 1
        if self._heard:
            self._work.set()

    # ── in the background ─────────────────────────────────────────────────────────────────────

    async def _round(self) -> None:
        await self._work.wait()
        self._work.clear()
        await asyncio.sleep(GATHER_SECONDS)
        try:
            await self._work_off()
        except Exception:
            self._work.set()  # the next round tries again
            raise

    async def _work_off(self) -> None:
        while self._read_upto != self._changes:
            changes = self._changes
            await self._read()
            self._read_upto = changes
            self._said = self._heard | self._said
        while self._said:
            some = list(islice(self._said.values(), AT_ONCE))
            await self._settle(some)
            for said in some:
                if self._said.get(said.who.name) is said:
                    del self._said[said.who.name]
            if not self._members.alone:
                self._hear(some)
            await asyncio.sleep(0)
        self._done.set()

    def _hear(self, some: Sequence[Said]) -> None:
        """Remember what was said: a node that is dead now may be found dead later."""
        for said in some:
            self._heard[said.who.name] = Said(said.who, said.upto, None)
        while len(self._heard) > UNCONFIRMED_WIRES:
            self._heard.popitem(last=False)

    # ── reading the ledger ────────────────────────────────────────────────────────────────────

    async def _look_for_end(self, stream: str) -> None:
        head = await self._log.head(stream)
        self._ends[stream] = head.next_index if head else 0

    async def _read(self) -> None:
        """Take the batches of all lives that have ended, the newest first."""
        if self._members.alone:
            await self._read_presence()
        else:
            await self._look_for_end(STREAM)
        known, living = set(self._former.lives()), await self._living()
        end = self._ends[STREAM]
        least = max(0, end - RECALLED_BATCHES)
        while end > least and not self._former.full:
            begin = max(least, end - BATCHES)
            batches = await self._entries(STREAM, begin, end)
            await asyncio.to_thread(self._take, batches, known, living)
            end = begin if batches else 0

    async def _read_presence(self) -> None:
        """Who was online when the life before this one ended, as far as the last lines tell."""
        found: list[Line] = []
        end, size = self._ends[PRESENCE], 0
        while end > 0 and size < PAGE_BYTES and not any(line.state == "reset" for line in found):
            begin = max(0, end - BATCHES)
            entries = await self._entries(PRESENCE, begin, end)
            found[:0] = [line for entry in entries for line in lines_of(entry.body)]
            size += sum(len(entry.body) for entry in entries)
            end = begin if entries else 0
        for line in found:
            self._witnesses.take(line)

    async def _living(self) -> set[Life]:
        found = {self._ledger.life}
        for node in {node_of(member) for member in self._members.living()} - {self._ledger.life[0]}:
            record = None if self._members.alone else await self._registry.get(epoch_key(node))
            if record is not None:
                found.add((node, int(record.value)))
        return found

    async def _entries(self, stream: str, begin: int, end: int) -> list[Entry]:
        """Entries of a stream between two indexes; none if they are trimmed, or there is no such stream."""
        found: list[Entry] = []
        with suppress(Trimmed, NotFound):
            while begin < end:
                page = await self._log.read_index(stream, begin, limit=end - begin)
                if not page.entries:
                    break
                found += page.entries
                begin = 1 + max(entry.index or 0 for entry in page.entries)
        return found

    def _take(self, batches: Iterable[Entry], known: set[Life], living: set[Life]) -> None:
        """In a thread: nobody else looks at `_former` meanwhile."""
        for entry in batches:
            batch = readable(entry.body)
            if batch is not None and (life := (batch.header.node, batch.header.epoch)) not in known:
                self._former.take(entry.id, batch, ended=life not in living)

    # ── recording ─────────────────────────────────────────────────────────────────────────────

    async def _settle(self, some: Sequence[Said]) -> None:
        """Record what these devices have confirmed, those of the same interval in one row."""
        unrecorded = [await self._unrecorded(said) for said in some]
        rows: dict[Interval, list[Recipient]] = {}
        for said, others in zip(some, unrecorded, strict=True):
            for row in (*self._former.confirm(said.who.name, said.upto), *others):
                rows.setdefault(row, []).append(said.who)
            if others:
                self._former.witness(said.who.name, said.upto)
        for row, who in rows.items():
            self._ledger.record_all(who, "acked", *row)
        await self._ledger.flush()

    async def _unrecorded(self, said: Said) -> list[Interval]:
        """What a device was sent just before a crash took the records."""
        window = self._former.window(said.who.name, said.upto)
        if said.wire is None or window is None or self._former.knows(said.who.name, said.upto):
            return []
        sent = await self._witnesses.sent(said.wire, said.upto, window)
        return [Interval(entry.stream, entry.id, entry.id) for entry in sent]
