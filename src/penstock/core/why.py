"""Why something reached a recipient, or did not: an entry, or an item of a mailbox.

What happened is recorded in batches of `/_ledger`. The pipeline folds them into the lake's table `deliveries`; what it
has not folded yet is read from the log itself. Without a lake that is all of it.

A recipient that confirms by a position has what it was *sent* up to there: `joined` tells that as `acked`, at the time
of the first position that reached the entry. A position alone proves nothing: the recipient may never have been sent
the entry, or a crash took the record of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from penstock.core.all_workers import FLUSH, Consumer, OtherWorkers, all_consumers
from penstock.core.hub import Hub
from penstock.core.ledger import STREAM, Ledger, LedgerEvent, decode
from penstock.core.log import Log
from penstock.core.matching import matches
from penstock.core.node_calls import NodeSilent, words_of_silence
from penstock.errors import NotFound, PenstockError, Trimmed
from penstock.values import Entry, Kind
from penstock.wire.eventhorizon import timestamp
from penstock.wire.ledger import CONFIRMED, COVERED, verdict


class BatchSpan(msgspec.Struct):
    """The ids that a ledger batch speaks of, and its items, from its entry's attributes."""

    min: int = 0
    max: int = 0
    items: int = 0


def span_of(attributes: str) -> BatchSpan:
    """What a batch's attributes say it speaks of; an empty span if these are not a batch's."""
    try:
        return msgspec.json.decode(attributes or "{}", type=BatchSpan, strict=False)
    except msgspec.MsgspecError:
        return BatchSpan()


def events_in(body: bytes) -> list[LedgerEvent]:
    """What a batch says happened; nothing if it cannot be read: one that is garbled hides no other."""
    try:
        return decode(body)[1]
    except (msgspec.MsgspecError, ValueError, IndexError):
        return []


class WhyAnswer(msgspec.Struct):
    """What became of one entry or item for one recipient."""

    entry: int | str  # an entry's id, or an item's message id
    stream: str
    recipient: str
    verdict: str  # a state of the ledger, or "waiting", "not_subscribed", "no_record", "unknown"
    words: str
    events: list[LedgerEvent]


class Folded(Protocol):
    """What the pipeline has made of the ledger's batches."""

    async def folded_upto(self) -> int:
        """The id of the log up to which batches are folded."""
        ...

    async def of_entry(self, stream: str, id: int, recipient: str | None) -> list[LedgerEvent]:
        """What happened to an entry for a recipient, or for all, as far as it is folded."""
        ...

    async def of_item(self, key: str, recipient: str | None) -> list[LedgerEvent]:
        """What happened to an item for a recipient, or for all, as far as it is folded."""
        ...


class Why:
    """Finds out what became of an entry or an item for one recipient, and says it in a sentence."""

    def __init__(
        self,
        log: Log,
        ledger: Ledger,
        hub: Hub,
        folded: Folded | None = None,
        other_workers: OtherWorkers | None = None,
    ) -> None:
        self._log, self._ledger, self._hub, self.folded = log, ledger, hub, folded
        self._other_workers = other_workers or OtherWorkers()

    async def entry(self, id: int, recipient: str) -> WhyAnswer:
        """What became of an entry. `NotFound` if there is no such entry, `Trimmed` if it is too late to ask."""
        entry = await self._log.entry(id)
        if entry is None:
            raise self.missing(id)
        events, silent = await self._of_entry(entry, recipient)
        story = [f"accepted and stored at {timestamp(entry.published_ms)} in {entry.stream} as id {entry.id}"]
        if entry.id <= self._log.trimmed_upto:
            story.append("it has moved from the log to the lake")
        if entry.kind is Kind.EXPIRED or entry.kind is Kind.ERASED:
            story.append(f"its body is {entry.kind.name.lower()}")
        events, position = joined(events)
        if events:
            found, reason = _verdict(events), ""
        else:
            consumers = await all_consumers(self._hub, self._other_workers, recipient)
            found, reason = _without_record(consumers.told, entry, recipient)
            silent = max(silent, consumers.silent)
        if found == "no_record" and position is not None:
            event = "it" if position.last == id else f"a later event, id {position.last},"
            reason = f"{recipient} confirmed {event} at {timestamp(position.ms)}; no record of the sending"
        if silent:
            found, reason = _with_silence(found, reason, bool(events) or position is not None, silent)
        return _answer(id, entry.stream, recipient, found, story, events, reason)

    def missing(self, id: int) -> PenstockError:
        """The error that says why there is no such entry."""
        if id > self._log.trimmed_upto:
            return NotFound("entry", str(id), remedy="Give the id that publish answered.")
        error = Trimmed(id - 1, self._log.trimmed_upto)
        error.remedy = "It is not in the lake either." if self.folded else "With lake.url set the lake is asked, too."
        return error

    async def item(self, key: str, recipient: str) -> WhyAnswer:
        """What became of an item of a mailbox, by its message id. `NotFound` if nothing was ever recorded of it."""
        events, silent = await self._of_item(key, recipient)
        if not events and silent:
            raise NodeSilent(silent)
        if not events:
            raise NotFound(
                "record of message", key, remedy="Give the id of an entry or of a message, and its recipient."
            )
        found, reason = _verdict(events), ""
        if silent:
            found, reason = _with_silence(found, reason, True, silent)
        return _answer(key, "", recipient, found, [], events, reason)

    async def _of_entry(self, entry: Entry, recipient: str) -> tuple[list[LedgerEvent], int]:
        upto, silent = await self.flushed()
        after = max(entry.id, upto)  # only batches after an entry can speak of it
        found = await self.folded.of_entry(entry.stream, entry.id, recipient) if self.folded else []
        async for span, body in self.batches(after):
            if span.min <= entry.id <= span.max:
                found += [event for event in events_in(body) if _is_about(event, entry, recipient)]
        return sorted(found, key=_ms), silent

    async def _of_item(self, key: str, recipient: str) -> tuple[list[LedgerEvent], int]:
        after, silent = await self.flushed()
        found = await self.folded.of_item(key, recipient) if self.folded else []
        async for span, body in self.batches(after):
            if span.items:
                found += [event for event in events_in(body) if (event.key, event.recipient) == (key, recipient)]
        return sorted(found, key=_ms), silent

    async def flushed(self) -> tuple[int, int]:
        """Have everything recorded; return the id up to which it need not be read from the log.

        And how many other workers or nodes did not say that they have recorded what they know.
        """
        _, others = await asyncio.gather(self._ledger.flush(), self._other_workers.ask(FLUSH, bool))
        # Asked before the table is read: what is folded in between is then read twice rather than never.
        return await self.folded.folded_upto() if self.folded else self._log.trimmed_upto, others.silent

    async def batches(self, after: int) -> AsyncIterator[tuple[BatchSpan, bytes]]:
        """The ledger's batches after an id, each with what it speaks of."""
        more = True
        while more:
            page = await self._log.read_after((STREAM,), after)
            for batch in page.entries:
                yield span_of(batch.attributes), batch.body
            after, more = page.upto, page.more


def _answer(
    what: int | str, stream: str, recipient: str, found: str, story: list[str], events: list[LedgerEvent], reason: str
) -> WhyAnswer:
    known = list({(event.ms, event.state, event.door, event.reason): event for event in events}.values())
    told = [*story, *(_words(event) for event in known), *([reason] if reason else [])]
    return WhyAnswer(what, stream, recipient, found, "; ".join(told) + ".", known)


def _is_about(event: LedgerEvent, entry: Entry, recipient: str) -> bool:
    about = event.stream == entry.stream or (event.state == CONFIRMED and not event.stream)
    return about and event.recipient == recipient and event.first <= entry.id <= event.last


def joined(events: Sequence[LedgerEvent]) -> tuple[list[LedgerEvent], LedgerEvent | None]:
    """What happened to one entry, in order, with positions told as `acked`; and the first position, if there is one.

    *events* are in order. Each door is looked at by itself: it may know another recipient by the same name.
    """
    positions = [event for event in events if event.state == CONFIRMED]
    told = [event for event in events if event.state != CONFIRMED]
    for door, position in {position.door: position for position in reversed(positions)}.items():
        same = [event for event in told if event.door == door]
        sent = next((event for event in same if event.state in COVERED), None)
        if sent is not None and _verdict(same) in COVERED:
            told.append(msgspec.structs.replace(sent, ms=position.ms, state="acked", reason=""))
    return sorted(told, key=_ms), positions[0] if positions else None


def _without_record(consumers: Sequence[Consumer], entry: Entry, recipient: str) -> tuple[str, str]:
    feeds = [one for one in consumers if one.recipient == recipient]
    if not feeds:
        return "no_record", f"nothing was recorded for {recipient}, who is not connected now"
    for feed in feeds:
        if any(matches(pattern, entry.stream) for pattern in feed.streams):
            if feed.position < entry.id:
                return "waiting", f"{recipient} is connected, and {entry.id - feed.position} ids behind it"
            return "no_record", f"{recipient} began to read after it"
    return "not_subscribed", f"{recipient} is connected, but not subscribed to {entry.stream}"


def _with_silence(found: str, reason: str, recorded: bool, silent: int) -> tuple[str, str]:
    """What can be said while *silent* processes may have records or readers that nobody else knows of."""
    silence = words_of_silence(silent)
    if recorded or found == "waiting":  # that much is true, whatever they have
        return found, f"{reason}; {silence}, and may know more" if reason else f"{silence}, and may know more"
    return "unknown", f"whether it was sent is not known: {silence}"


def _verdict(events: list[LedgerEvent]) -> str:
    return verdict(((event.door, event.month, event.number), event.state, event.ms) for event in events)


def _ms(event: LedgerEvent) -> int:
    return event.ms


def _words(event: LedgerEvent) -> str:
    because = f" ({event.reason})" if event.reason else ""
    return f"{event.state}{because} to {event.recipient} over {event.door} at {timestamp(event.ms)}"
