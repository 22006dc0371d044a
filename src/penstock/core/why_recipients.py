"""What became of one entry or message for each of its recipients: counts by state, and a list that can be searched.

`core/why.py` answers for one recipient, in sentences. This answers for thousands, from the same records. A recipient is
a door and a name. A reader of the stream that has not come to the entry yet is `waiting`; only readers that are
connected to this node are seen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Final

import msgspec

from penstock.core.hub import Hub
from penstock.core.ledger import LedgerEvent, LedgerRow, decode_rows
from penstock.core.log import Log
from penstock.core.node_calls import NodeSilent
from penstock.core.why import Why
from penstock.errors import NotFound
from penstock.limits import WAY_LEDGER_BYTES, WAY_RECIPIENTS
from penstock.values import Entry
from penstock.wire.ledger import CONFIRMED, COVERED, FAILED, STATES, verdict

WAITING: Final = "waiting"
ORDER: Final = (*FAILED, WAITING, *(state.name for state in reversed(STATES) if not state.failed))
"""States in the order in which they are listed: what needs a look comes first, what is done last."""

AT_ONCE: Final = 2_000
"""Recipients that are looked at before the loop may do something else: some milliseconds."""

_RANK: Final = {state: rank for rank, state in enumerate(ORDER)}

_Record = tuple[int, str, str, Hashable]  # time, state, reason, and the place of an item
_Name = tuple[str, str]  # door and recipient


class WayStep(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened on the way to a recipient."""

    ms: int
    state: str
    reason: str = ""


class RecipientWay(msgspec.Struct, gc=False):
    """What became of it for one recipient, in order of time."""

    door: str
    recipient: str
    state: str
    steps: list[WayStep]


class WayFilter(msgspec.Struct, frozen=True):
    """Which recipients are listed: a part of the name, a state, a door; and which page of them."""

    search: str = ""
    state: str = ""
    door: str = ""
    begin: int = 0
    limit: int = 100

    def wants(self, door: str, recipient: str, state: str) -> bool:
        """Whether a recipient is listed."""
        if (self.state and state != self.state) or (self.door and door != self.door):
            return False
        return not self.search or self.search.casefold() in recipient.casefold()


class WayAnswer(msgspec.Struct):
    """An entry or a message, and what became of it for everybody."""

    entry: int | str  # an entry's id, or a message id
    stream: str
    accepted_ms: int | None  # when it was accepted and stored; None for a message
    kind: str  # data, expired, erased …; "message" for a message
    cold: bool  # it has moved from the log to the lake
    complete: bool  # False: the ledger has more than one answer reads, or one of the server's processes was silent
    states: dict[str, int]  # of all recipients, in the order of the list
    doors: dict[str, int]
    total: int
    found: int  # recipients that the filter leaves
    recipients: list[RecipientWay]


class _Fanout:
    """What the ledger says of one thing, by recipient."""

    def __init__(self, entry: Entry | None, key: str) -> None:
        self._entry, self._key = entry, key
        self.records: dict[_Name, list[_Record]] = {}
        self.read_bytes = 0

    @property
    def full(self) -> bool:
        return self.read_bytes >= WAY_LEDGER_BYTES or len(self.records) >= WAY_RECIPIENTS

    def add_event(self, event: LedgerEvent) -> None:
        record = (event.ms, event.state, event.reason, (event.month, event.number))
        self.records.setdefault((event.door, event.recipient), []).append(record)

    def add_batch(self, body: bytes) -> None:
        """Take what a batch says of it; nothing of one that cannot be read."""
        self.read_bytes += len(body)
        try:
            header, rows = decode_rows(body, self._speaks_of_it)
        except (msgspec.MsgspecError, ValueError, IndexError):
            return
        records = self.records
        for (ms, state, reason, *_), who in rows:
            record = (ms, state, reason, None)
            for name in who:
                known = records.get(name)
                if known is None:
                    records[name] = [record]
                else:
                    known.append(record)
        for ms, state, reason, door, recipient, key, month, number, _ in header.items if self._key else ():
            if key == self._key:
                records.setdefault((door, recipient), []).append((ms, state, reason, (month, number)))

    def _speaks_of_it(self, row: LedgerRow) -> bool:
        _, state, _, stream, first, last, _ = row
        entry = self._entry
        if entry is None or not first <= entry.id <= last:
            return False
        return stream == entry.stream or (state == CONFIRMED and not stream)

    def told(self) -> Iterator[tuple[_Name, str, list[_Record]]]:
        """Each recipient that something happened for, with the state that counts; a position alone tells nothing."""
        for name, records in self.records.items():
            positions = [record for record in records if record[1] == CONFIRMED]
            if not positions:
                yield name, _state(records), records
                continue
            others = [record for record in records if record[1] != CONFIRMED]
            if others:
                state = _state(others)
                if state in COVERED:
                    state, others = "acked", [*others, (min(positions)[0], "acked", "", None)]
                yield name, state, others


class Way:
    """Looks up what became of one thing for everybody."""

    def __init__(self, log: Log, hub: Hub, why: Why) -> None:
        self._log, self._hub, self._why = log, hub, why

    async def entry(self, id: int, wanted: WayFilter) -> WayAnswer:
        """The way of an entry. `NotFound` if there is no such entry, `Trimmed` if it is too late to ask."""
        entry = await self._log.entry(id)
        if entry is None:
            raise self._why.missing(id)
        upto, silent = await self._why.flushed()
        fanout, after = _Fanout(entry, ""), max(id, upto)
        if self._why.folded is not None:
            for event in await self._why.folded.of_entry(entry.stream, id, None):
                fanout.add_event(event)
        complete = await self._read(fanout, after, id) and not silent
        for feed in self._hub.readers(entry.stream):
            name = (feed.who.door, feed.who.name)
            if feed.lag and feed.position < id and not feed.away and name not in fanout.records:
                fanout.records[name] = [(entry.published_ms, WAITING, f"{id - feed.position} ids behind it", None)]
        cold = id <= self._log.trimmed_upto
        answer = WayAnswer(
            id, entry.stream, entry.published_ms, entry.kind.name.lower(), cold, complete, {}, {}, 0, 0, []
        )
        return await _filled(answer, fanout, wanted)

    async def message(self, key: str, wanted: WayFilter) -> WayAnswer:
        """The way of a message of mailboxes, by its message id. `NotFound` if nothing was ever recorded of it."""
        fanout = _Fanout(None, key)
        after, silent = await self._why.flushed()
        if self._why.folded is not None:
            for event in await self._why.folded.of_item(key, None):
                fanout.add_event(event)
        complete = await self._read(fanout, after, None) and not silent
        if not fanout.records and silent:
            raise NodeSilent(silent)
        if not fanout.records:
            raise NotFound("record of message", key, remedy="Give the id of an entry or of a message.")
        answer = WayAnswer(key, "", None, "message", False, complete, {}, {}, 0, 0, [])
        return await _filled(answer, fanout, wanted)

    async def _read(self, fanout: _Fanout, after: int, id: int | None) -> bool:
        """Read the ledger's batches after an id; False if there were more than one answer reads."""
        async for span, body in self._why.batches(after):
            if fanout.full:
                return False
            if span.items if id is None else span.min <= id <= span.max:
                fanout.add_batch(body)
                await asyncio.sleep(0)
        return True


async def _filled(answer: WayAnswer, fanout: _Fanout, wanted: WayFilter) -> WayAnswer:
    """Count everybody, and show the page that is wanted."""
    states: Counter[str] = Counter()
    doors: Counter[str] = Counter()
    found: list[tuple[int, str, str, str, list[_Record]]] = []
    for number, ((door, name), state, records) in enumerate(fanout.told()):
        states[state] += 1
        doors[door] += 1
        if wanted.wants(door, name, state):
            found.append((_RANK.get(state, len(ORDER)), door, name, state, records))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    found.sort(key=lambda one: one[:3])
    answer.states = {state: states[state] for state in sorted(states, key=lambda one: _RANK.get(one, len(ORDER)))}
    answer.doors = dict(sorted(doors.items()))
    answer.total, answer.found = states.total(), len(found)
    page = found[wanted.begin : wanted.begin + wanted.limit]
    answer.recipients = [RecipientWay(door, name, state, _steps(records)) for _, door, name, state, records in page]
    return answer


def _state(records: list[_Record]) -> str:
    if len(records) == 1 and records[0][1] != "moved":
        return records[0][1]
    if any(state == WAITING for _, state, _, _ in records):
        return WAITING
    return verdict((place, state, ms) for ms, state, _, place in records)


def _steps(records: list[_Record]) -> list[WayStep]:
    """In order of time, each once: what is folded meanwhile may have been read twice."""
    known = dict.fromkeys((ms, state, reason) for ms, state, reason, _ in records)
    return [WayStep(*one) for one in sorted(known, key=lambda one: one[0])]
