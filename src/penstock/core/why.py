"""Answers "did entry X reach recipient Y, and if not, why" from the log and its ledger."""

from __future__ import annotations

import msgspec

from penstock.core.hub import Hub
from penstock.core.ledger import STREAM, Event, Ledger, decode
from penstock.core.log import Log
from penstock.core.names import matches
from penstock.errors import NotFound
from penstock.values import Entry, Kind
from penstock.wire.eventhorizon import timestamp

# The state that counts is the one furthest to the left that was recorded.
_RANK = ("acked", "dead", "dropped", "expired", "lost", "unknown", "retried", "sent")


class Span(msgspec.Struct):
    """The ids that a ledger batch speaks of, from its entry's attributes."""

    min: str = "0"
    max: str = "0"


class Answer(msgspec.Struct):
    """What became of one entry for one recipient."""

    entry: int
    stream: str
    recipient: str
    verdict: str  # a state of the ledger, or "waiting", "not_subscribed", "no_record"
    words: str
    events: list[Event]


async def why(log: Log, ledger: Ledger, hub: Hub, entry_id: int, recipient: str) -> Answer:
    """Look the entry and everything recorded of it up. `NotFound` if there is no such entry."""
    entry = await log.entry(entry_id)
    if entry is None:
        raise NotFound("entry", str(entry_id), remedy="Give the id that publish answered.")
    await ledger.flush()
    events = await _recorded(log, entry, recipient)
    events.sort(key=lambda event: event.ms)
    story = [f"accepted and stored at {timestamp(entry.published_ms)} in {entry.stream} as id {entry.id}"]
    if entry.kind is Kind.EXPIRED or entry.kind is Kind.ERASED:
        story.append(f"its body is {entry.kind.name.lower()}")
    story += [_words(event) for event in events]
    verdict = min((event.state for event in events), key=_rank, default="")
    if not verdict:
        verdict, reason = _without_record(hub, entry, recipient)
        story.append(reason)
    return Answer(entry_id, entry.stream, recipient, verdict, "; ".join(story) + ".", events)


async def _recorded(log: Log, entry: Entry, recipient: str) -> list[Event]:
    """What the ledger says. Only batches after the entry can speak of it."""
    found: list[Event] = []
    after, more = max(entry.id, log.trimmed_upto), True
    while more:
        page = await log.read_after((STREAM,), after)
        for batch in page.entries:
            span = msgspec.json.decode(batch.attributes or "{}", type=Span)
            if int(span.min) <= entry.id <= int(span.max):
                found += [event for event in decode(batch.body)[1] if _is_about(event, entry, recipient)]
        after, more = page.upto, page.more
    return found


def _is_about(event: Event, entry: Entry, recipient: str) -> bool:
    return event.recipient == recipient and event.stream == entry.stream and event.first <= entry.id <= event.last


def _without_record(hub: Hub, entry: Entry, recipient: str) -> tuple[str, str]:
    feeds = [feed for feed in hub.feeds if feed.who.name == recipient]
    if not feeds:
        return "no_record", f"nothing was recorded for {recipient}, who is not connected now"
    for feed in feeds:
        if any(matches(pattern, entry.stream) for pattern in feed.patterns):
            if feed.position < entry.id:
                return "waiting", f"{recipient} is connected, and {entry.id - feed.position} ids behind it"
            return "no_record", f"{recipient} began to read after it"
    return "not_subscribed", f"{recipient} is connected, but not subscribed to {entry.stream}"


def _rank(state: str) -> int:
    return _RANK.index(state) if state in _RANK else len(_RANK)


def _words(event: Event) -> str:
    because = f" ({event.reason})" if event.reason else ""
    return f"{event.state}{because} to {event.recipient} over {event.door} at {timestamp(event.ms)}"
