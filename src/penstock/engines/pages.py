"""How engines cut pages, and show entries whose time has run out: the same in each of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.limits import PAGE_BYTES, PAGE_ENTRIES
from penstock.values import Entry, Kind, Page

SHORT_ENTRIES: Final = 16
"""A page of at most so many entries is no long read."""


class Look(NamedTuple):
    """How a page is to be read."""

    upto: int  # an id: nothing beyond it
    limit: int
    limit_bytes: int
    meta: bool  # meta entries and tombstones, too
    now_ms: int


def look_within(upto: int, limit: int, limit_bytes: int, meta: bool, now_ms: int) -> Look:
    """A look within the limits of any page."""
    return Look(upto, min(limit, PAGE_ENTRIES), min(limit_bytes, PAGE_BYTES), meta, now_ms)


def is_over(entry: Entry, now_ms: int) -> bool:
    """Whether a live entry's time has run out."""
    return entry.expires_ms is not None and entry.expires_ms <= now_ms and entry.kind in (Kind.DATA, Kind.PART)


def tombstone(entry: Entry, kind: Kind) -> Entry:
    """What is left of an entry: its coordinates."""
    return replace(entry, kind=kind, type="", attributes="", body=b"")


def shown(entries: Iterable[Entry], now_ms: int, *, meta: bool) -> list[Entry]:
    """Entries as a reader sees them: those whose time has run out as tombstones, without *meta* not at all."""
    seen = [tombstone(entry, Kind.EXPIRED) if is_over(entry, now_ms) else entry for entry in entries]
    return seen if meta else [entry for entry in seen if entry.kind in (Kind.DATA, Kind.PART)]


def fitting(entries: list[Entry], limit: int, limit_bytes: int) -> list[Entry]:
    """The first entries within both limits, and within those of any page; one always fits."""
    total, limit, limit_bytes = 0, min(limit, PAGE_ENTRIES), min(limit_bytes, PAGE_BYTES)
    for count, entry in enumerate(entries[:limit]):
        total += len(entry.body)
        if count and total > limit_bytes:
            return entries[:count]
    return entries[:limit]


def page_of_stream(found: list[Entry], limit: int, limit_bytes: int, followed: int) -> Page:
    """A page of one stream. It never separates an entry from its parts."""
    count = len(fitting(found, limit, limit_bytes))
    while 0 < count < len(found) and found[count].size == 0:
        count += 1
    more = count < len(found)
    return Page(tuple(found[:count]), found[count - 1].id if more else followed, more)
