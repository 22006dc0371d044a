"""Pages of one stream, or of a few. Runs in a reader's thread."""

from __future__ import annotations

from itertools import takewhile

from penstock.engines.pages import Look
from penstock.engines.sqlite.reader import PlaceQuery, SqliteReader, from_cursor, from_id, from_index
from penstock.engines.sqlite.unfolded_entries import Spot, Spots
from penstock.errors import InputInvalid, NotFound, Trimmed
from penstock.limits import BATCH_BYTES, BATCH_ENTRIES
from penstock.values import Entry, Head, Kind, Page


class Source:
    """One stream as a read found it: its number, its head, its unfolded spots, the trim point."""

    __slots__ = ("head", "number", "recent", "trimmed_upto")

    def __init__(self, number: int, head: Head, recent: Spots, trimmed_upto: int) -> None:
        self.number, self.head, self.recent, self.trimmed_upto = number, head, recent, trimmed_upto

    def spots(self, reader: SqliteReader, where: PlaceQuery, look: Look, limit: int) -> list[Spot]:
        return reader.spots(self.number, self.recent, where, look.upto, limit)

    def check_not_trimmed(self, spot: Spot) -> None:
        if spot.id <= self.trimmed_upto:
            raise Trimmed(spot.id - 1, self.trimmed_upto)


def by_index(reader: SqliteReader, source: Source, index: int, look: Look) -> Page:
    """Entries of a stream from an index on."""
    spots = source.spots(reader, from_index(index), look, look.limit + 1)
    if index < source.head.next_index:
        if not spots or spots[0].idx != index:
            raise Trimmed(source.trimmed_upto - 1, source.trimmed_upto)
        source.check_not_trimmed(spots[0])
    page = _page(reader, source, spots, look)
    if page.entries and page.entries[0].size == 0:
        raise Trimmed(source.trimmed_upto - 1, source.trimmed_upto)  # a part whose first piece is gone
    while page.more and not page.entries:  # only hidden ones so far: the caller could not go on from that
        page = _page(reader, source, source.spots(reader, from_id(page.upto + 1), look, look.limit + 1), look)
    return page


def by_cursor(reader: SqliteReader, source: Source, chunk: int, offset: int, look: Look) -> Page:
    """Entries of one chunk from a byte position on."""
    head = source.head
    if not 0 <= chunk <= head.chunk:
        raise NotFound("chunk", f"{head.stream}:{chunk}", code="chunk_missing")
    if chunk == head.chunk and offset >= head.offset:
        if offset > head.offset:
            raise _beyond(head.stream, chunk, offset, head.offset)
        return Page((), look.upto, more=False)
    if offset < 0:
        raise InputInvalid("cursor", f"{head.stream}:{chunk}:{offset} is no position", code="cursor_invalid")
    spots = _lines_from(reader, source, chunk, offset, look)
    if not spots or (spots[0].chunk, spots[0].offset) != (chunk, offset):
        _check_chunk_end(reader, source, chunk, offset, spots, look)
        return Page((), look.upto, more=False)
    source.check_not_trimmed(spots[0])
    return _page(reader, source, [spot for spot in spots if spot.chunk == chunk], look)


def by_ids(reader: SqliteReader, sources: list[Source], after: int, look: Look) -> Page:
    """Entries of a few streams after an id, in order of id."""
    if len(sources) == 1 and (full := reader.next_page(sources[0].number, after, look)):
        plain, last = full
        return Page(plain, last, more=last < look.upto)
    found = [
        id
        for source in sources
        for id in reader.ids_after(source.number, source.recent, after, look.upto, look.limit + 1)
    ]
    found.sort()
    numbers = [source.number for source in sources]
    entries, whole = reader.entries_of(numbers, found[: look.limit], look)
    if not whole:
        return Page(tuple(entries), entries[-1].id, more=True)
    if len(found) > look.limit:
        return Page(tuple(entries), found[look.limit - 1], more=True)
    return Page(tuple(entries), look.upto, more=False)


def _page(reader: SqliteReader, source: Source, spots: list[Spot], look: Look) -> Page:
    """A page of these spots; the one beyond the limit, if there, says that there are more."""
    looked = spots[: look.limit]
    if not looked:
        return Page((), look.upto, more=False)
    entries, whole = reader.entries([spot.id for spot in looked], look)
    last = looked[-1].id if whole else entries[-1].id
    rest = [spot for spot in spots if spot.id > last]
    if rest and entries and entries[-1].id == last:
        parts = _parts_after(reader, source, entries[-1], rest, look)
        entries += parts
        last = parts[-1].id if parts else last
        rest = rest[-1:] if rest[-1].id > last else source.spots(reader, from_id(last + 1), look, 1)
    return Page(tuple(entries), last if rest else look.upto, more=bool(rest))


def _parts_after(reader: SqliteReader, source: Source, entry: Entry, rest: list[Spot], look: Look) -> list[Entry]:
    """The further parts of a page's last entry.

    A page never separates an entry from its parts: the next read begins at the next index or line, and would miss them.
    """
    if entry.kind is Kind.META:
        return []
    index = source.spots(reader, from_id(entry.id), look, 1)[0].idx
    if rest[0].idx != index:
        return []
    following = source.spots(reader, from_id(entry.id + 1), look, BATCH_ENTRIES)
    ids = [spot.id for spot in takewhile(lambda spot: spot.idx == index, following)]
    return reader.entries(ids, look._replace(limit_bytes=2 * BATCH_BYTES))[0]


def _lines_from(reader: SqliteReader, source: Source, chunk: int, offset: int, look: Look) -> list[Spot]:
    """Spots from a position on, without the parts that belong to the line before it."""
    spots = source.spots(reader, from_cursor(chunk, offset), look, look.limit + 2)
    here = [spot for spot in spots if (spot.chunk, spot.offset) == (chunk, offset)]
    if len(here) < 2:
        return spots
    # Parts have no line: of several spots at one position only the last can be one.
    here = [
        spot
        for spot in source.spots(reader, from_id(here[0].id), look, BATCH_ENTRIES + 1)
        if (spot.chunk, spot.offset) == (chunk, offset)
    ]
    return source.spots(reader, from_id(here[-1].id), look, look.limit + 1)


def _check_chunk_end(
    reader: SqliteReader, source: Source, chunk: int, offset: int, following: list[Spot], look: Look
) -> None:
    """Raise unless the position is the end of a sealed chunk."""
    next_id = following[0].id if following else source.head.last_id + 1
    previous = reader.before(source.number, source.recent, next_id)
    if previous is None or previous.id <= source.trimmed_upto:
        raise Trimmed(source.trimmed_upto - 1, source.trimmed_upto)
    entries, _ = reader.entries([previous.id], look)
    if not entries:
        raise Trimmed(previous.id - 1, previous.id)
    end = entries[0].end
    if previous.chunk == chunk and offset > end:
        raise _beyond(source.head.stream, chunk, offset, end)
    if (previous.chunk, end) != (chunk, offset):
        raise InputInvalid("cursor", f"{source.head.stream}:{chunk}:{offset} is inside a line", code="cursor_invalid")


def _beyond(stream: str, chunk: int, offset: int, end: int) -> InputInvalid:
    return InputInvalid("cursor", f"{stream}:{chunk}:{offset} is beyond the end at {end}", code="cursor_invalid")


def by_scan(reader: SqliteReader, patterns: tuple[str, ...], after: int, look: Look) -> Page:
    """Entries after an id whose streams match, from the log as a whole."""
    entries, upto = reader.scan(patterns, after, look)
    return Page(tuple(entries), upto, more=upto < look.upto)
