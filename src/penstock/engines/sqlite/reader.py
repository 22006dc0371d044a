"""Reads entries. Lives in a reader's thread; every call is a few statements of one row each.

SQLite's calls release the interpreter lock, and beside a busy event loop every row fetched may wait for
a switch interval: a page of a thousand rows then takes half a second. So a page is put together
inside SQLite, as one JSON text and one blob with all bodies, and comes over with one call.
"""

# ruff: noqa: S608 - the statements are put together from the constants below; values are always bound

from __future__ import annotations

import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from penstock.core.matching import matches
from penstock.engines.pages import Look
from penstock.engines.sqlite.unfolded_entries import Spot, Spots
from penstock.values import BETWEEN_BODIES, Entry, Head, Kind, PlainColumns, PlainEntries

SCAN_ROWS: Final = 32_768
"""Entries that one `scan` looks at when nothing matches: some ten milliseconds."""
NAMES: Final = 200_000
"""Stream names and pattern decisions held in memory. Over it: they are read anew."""
DENSE: Final = 3
"""A page whose ids are no further apart than this, on average, is read as a range."""
TRIES: Final = 3
"""How often the number of entries that a page has room for is guessed, from those that were too many."""
PATTERN_SETS: Final = 64
"""Sets of patterns whose decisions are held in memory."""

_PAGE = """
SELECT json_group_array(json_array(
           id, stream, idx, chunk, offset, size, kind, type, published_ms, expires_ms, attributes, length(body)
       )),
       group_concat(CAST(body AS TEXT), '')
FROM {rows}
"""
# The same for plain events, and whether there are others. Columns that are not made into JSON are a third of the time.
_PLAIN_PAGE = """
SELECT json_group_array(json_array(id, stream, idx, chunk, offset, size, published_ms, length(body))),
       group_concat(CAST(body AS TEXT), ''), max(kind OR type != '' OR attributes != '' OR expires_ms IS NOT NULL)
FROM {rows}
"""
_FIRST = "(SELECT * FROM entries WHERE {which} ORDER BY id LIMIT :limit)"
_LIVE = "kind IN (0, 2) AND (expires_ms IS NULL OR expires_ms > :now)"
_IDS = "id IN (SELECT value FROM json_each(:ids))"
_RANGE = "id > :after AND id <= :upto"
_STREAMS = "stream IN (SELECT value FROM json_each(:streams))"
_BYTES = "SELECT ifnull(sum(length(body)), 0) FROM {rows}"
# How many of the first entries have bodies that fit; one always does.
_FITTING = """
SELECT sum(total <= :limit_bytes OR number = 1), count(*) FROM (
    SELECT sum(bytes) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS total, row_number() OVER (ORDER BY id) AS number
    FROM (SELECT id, length(body) AS bytes FROM {rows})
)
"""
# What lies in the next rows: the last id, the bytes of all bodies, and which streams.
_SURVEY = """
SELECT max(id), count(*), sum(length(body)), json_group_array(DISTINCT stream)
FROM (SELECT id, stream, body FROM entries WHERE id > ? AND id <= ? ORDER BY id LIMIT ?)
"""
# A full page of one stream in one statement, for replays: the next page can be on its way while this one is made into
# lines, because nobody has to take the interpreter lock in between. It is less than full, and of no use, if the stream
# has less in `places`, lies too far apart, or has something else than plain events. If it is too large (no body is
# longer than its line) nothing is read but its size; one that goes on in another chunk counts as twice too large.
_NEXT_PAGE = """
WITH first(idx, chunk, offset) AS MATERIALIZED (
    SELECT idx, chunk, offset FROM places WHERE stream = :stream AND id > :after ORDER BY id LIMIT 1
), last(id, bytes) AS MATERIALIZED (
    SELECT places.id, iif(
        places.chunk = first.chunk,
        places.offset + (SELECT size FROM entries WHERE id = places.id) - first.offset,
        2 * :limit_bytes
    )
    FROM places, first
    WHERE stream = :stream AND places.id = (
        SELECT id FROM places WHERE stream = :stream AND id > :after AND id <= :upto
        ORDER BY id LIMIT 1 OFFSET :limit - 1
    ) AND places.id - :after <= :dense * :limit
)
SELECT (SELECT id FROM last), (SELECT bytes FROM last), first.*, count(*),
       group_concat(id), group_concat(entries.offset + size), group_concat(published_ms),
       group_concat(CAST(body AS TEXT), char(127))
FROM entries, first
WHERE id > :after AND id <= (SELECT id FROM last WHERE bytes <= :limit_bytes) AND stream = :stream
    AND kind = 0 AND type = '' AND attributes = '' AND expires_ms IS NULL
"""
_PLACES = """
SELECT json_group_array(json_array(id, idx, chunk, offset))
FROM (SELECT * FROM places WHERE stream = :stream AND id >= {first} AND id <= :upto ORDER BY id LIMIT :limit)
"""
_IDS_AFTER = """
SELECT json_group_array(id)
FROM (SELECT id FROM places WHERE stream = ? AND id > ? AND id <= ? ORDER BY id LIMIT ?)
"""
# Within a stream id, index and position only rise, so the first place with a property is found by a binary
# search over the ids. It is one statement: between two statements a fold might add places.
_PLACES_WITH = """
WITH RECURSIVE leaps(id, leap) AS (
    VALUES (0, :leap)
    UNION ALL
    SELECT leaps.id + iif(ifnull((
        SELECT {reached} FROM places WHERE stream = :stream AND places.id >= leaps.id + leap ORDER BY places.id LIMIT 1
    ), 1), 0, leap), leap / 2 FROM leaps WHERE leap > 0
)
""" + _PLACES.format(first="(SELECT id + 1 FROM leaps WHERE leap = 0)")
_NAMES = """
SELECT json_group_array(json_array(number, name)) FROM streams WHERE number IN (SELECT value FROM json_each(?))
"""
# The same leaps over the whole log: how far it goes below a time.
_ID_BEFORE = """
WITH RECURSIVE leaps(id, leap) AS (
    VALUES (0, :leap)
    UNION ALL
    SELECT leaps.id + iif(ifnull((
        SELECT published_ms >= :ms FROM entries WHERE entries.id >= leaps.id + leap AND entries.id <= :upto
        ORDER BY entries.id LIMIT 1
    ), 1), 0, leap), leap / 2 FROM leaps WHERE leap > 0
)
SELECT id FROM leaps WHERE leap = 0
"""
_HEADS = """
SELECT s.name, ifnull(h.next_index, 0), ifnull(h.chunk, 0), ifnull(h.offset, 0), s.subscribers,
       ifnull(h.last_id, 0), ifnull(h.last_ms, 0)
FROM streams s LEFT JOIN heads h ON h.stream = s.number
WHERE s.name > ? AND s.name >= ? AND s.name < CAST(? || x'ff' AS TEXT) ORDER BY s.name LIMIT ?
"""
_HEADS_ROWS: Final = 1_000
_KINDS: Final = tuple(Kind)
_DATA: Final = Kind.DATA
_spots = msgspec.json.Decoder(list[Spot])
_numbers = msgspec.json.Decoder(list[int])
_Row = tuple[int, int, int, int, int, int, int, str, int, int | None, str, int]
_rows = msgspec.json.Decoder(list[_Row])
_PlainRow = tuple[int, int, int, int, int, int, int, int]
_plain_rows = msgspec.json.Decoder(list[_PlainRow])


class PlaceQuery(NamedTuple):
    """A property that holds from some entry of a stream on: as a query for places, and of a spot."""

    query: str
    values: dict[str, int]
    value: int | tuple[int, int]
    key: Callable[[Spot], int | tuple[int, int]]


_BY_ID = _PLACES.format(first=":id")
_BY_INDEX = _PLACES_WITH.format(reached="idx >= :idx")
_BY_CURSOR = _PLACES_WITH.format(reached="(chunk, offset) >= (:chunk, :offset)")


def from_id(id: int) -> PlaceQuery:
    """Entries with this id or a higher one."""
    return PlaceQuery(_BY_ID, {"id": id}, id, lambda spot: spot.id)


def from_index(index: int) -> PlaceQuery:
    """Entries that stand at this index or a higher one."""
    return PlaceQuery(_BY_INDEX, {"idx": index}, index, lambda spot: spot.idx)


def from_cursor(chunk: int, offset: int) -> PlaceQuery:
    """Entries whose lines begin at this byte or a later one."""
    values = {"chunk": chunk, "offset": offset}
    return PlaceQuery(_BY_CURSOR, values, (chunk, offset), lambda spot: (spot.chunk, spot.offset))


class StreamNames:
    """Stream names by number, and which patterns cover them. Shared by the readers."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._decisions: dict[tuple[str, ...], dict[int, bool]] = {}

    def load(self, connection: sqlite3.Connection, numbers: Collection[int]) -> dict[int, str]:
        """Names by number, for at least these *numbers*."""
        names = self._names
        missing = [number for number in numbers if number not in names]
        if missing:
            if len(names) + len(missing) > NAMES:
                names = self._names = {}
                missing = list(numbers)
            names.update(_load_names(connection, missing))
        return names

    def matching(self, connection: sqlite3.Connection, patterns: tuple[str, ...], numbers: Sequence[int]) -> list[int]:
        """Those of *numbers* whose streams any of *patterns* covers."""
        if len(self._decisions) > PATTERN_SETS:
            self._decisions = {}
        decisions = self._decisions.setdefault(patterns, {})
        if len(decisions) > NAMES:
            decisions = self._decisions[patterns] = {}
        unknown = [number for number in numbers if number not in decisions]
        if unknown:
            names = self.load(connection, unknown)
            for number in unknown:
                decisions[number] = any(matches(pattern, names[number]) for pattern in patterns)
        return [number for number in numbers if decisions[number]]


def _id(entry: Entry) -> int:
    return entry.id


def _are_texts(bodies: bytes, count: int) -> bool:
    """Whether they can be cut apart again, and are UTF-8: SQLite makes strings of any bytes."""
    between = len(bodies) - len(bodies.replace(BETWEEN_BODIES, b""))  # a quarter of what `count` takes
    try:
        return between == count - 1 and (bodies.isascii() or bool(bodies.decode()))
    except UnicodeDecodeError:
        return False


def _is_plain(entry: Entry) -> bool:
    return entry.kind is _DATA and not entry.type and not entry.attributes and entry.expires_ms is None


def _load_names(connection: sqlite3.Connection, numbers: Collection[int]) -> dict[int, str]:
    text = connection.execute(_NAMES, (msgspec.json.encode(numbers).decode(),)).fetchone()[0]
    return dict(msgspec.json.decode(text, type=list[tuple[int, str]]))


class SqliteReader:
    """One reading connection. Never looks beyond the id it is given."""

    def __init__(self, connection: sqlite3.Connection, names: StreamNames) -> None:
        self.connection, self._names = connection, names
        self._plain = True  # the last page had plain events only
        self._fitting: dict[int, int] = {}  # how many entries of the stream that was read last a page has room for
        self._mixed = 0  # the stream whose last page was not text, or had what stands between bodies

    def spots(self, stream: int, recent: Spots, where: PlaceQuery, upto: int, limit: int) -> list[Spot]:
        """The stream's first spots with a property. *recent* must have been taken before this call."""
        values = {"stream": stream, "upto": upto, "limit": limit, "leap": 1 << upto.bit_length(), **where.values}
        text = self.connection.execute(where.query, values).fetchone()[0]
        begin = bisect_left(recent, where.value, key=where.key)
        found = {spot.id: spot for spot in _spots.decode(text)}
        found |= {spot.id: spot for spot in recent[begin : begin + limit]}
        return [found[id] for id in sorted(found)[:limit]]

    def ids_after(self, stream: int, recent: Spots, after: int, upto: int, limit: int) -> list[int]:
        """As `spots`, for those who only need the ids: a replay reads little else."""
        text = self.connection.execute(_IDS_AFTER, (stream, after, upto, limit)).fetchone()[0]
        begin = bisect_right(recent, after, key=lambda spot: spot.id)
        ids, unfolded = _numbers.decode(text), [spot.id for spot in recent[begin : begin + limit]]
        return sorted({*ids, *unfolded})[:limit] if unfolded else ids

    def before(self, stream: int, recent: Spots, id: int) -> Spot | None:
        """The stream's last spot below *id*."""
        query = "SELECT id, idx, chunk, offset FROM places WHERE stream = ? AND id < ? ORDER BY id DESC LIMIT 1"
        row = self.connection.execute(query, (stream, id)).fetchone()
        found = [Spot(*row)] if row else []
        last = bisect_left(recent, id, key=lambda spot: spot.id)
        found += recent[max(0, last - 1) : last]
        return max(found, key=lambda spot: spot.id, default=None)

    def entries(self, ids: Sequence[int], look: Look) -> tuple[list[Entry], bool]:
        """The entries of these ids as far as their bodies fit (the first always does), and whether all did."""
        values = {"ids": msgspec.json.encode(ids).decode(), "now": look.now_ms, "limit": len(ids)}
        return self._page(_FIRST.format(which=_IDS if look.meta else f"{_IDS} AND {_LIVE}"), values, look)

    def entries_of(self, streams: Sequence[int], ids: Sequence[int], look: Look) -> tuple[list[Entry], bool]:
        """As `entries`, for ids that are all there are of these streams between the first and the last."""
        if not ids or ids[-1] - ids[0] > DENSE * len(ids):
            return self.entries(ids, look)
        # They lie close together: one range with a filter costs less than a look-up for each, and less without a limit.
        which = f"{_RANGE} AND {_STREAMS}" if look.meta else f"{_RANGE} AND {_STREAMS} AND {_LIVE}"
        numbers = msgspec.json.encode(streams).decode()
        values = {"after": ids[0] - 1, "upto": ids[-1], "streams": numbers, "now": look.now_ms, "limit": len(ids)}
        entries, whole = self._page(f"entries WHERE {which}", values, look)
        entries.sort(key=_id)  # they are in order already, but nobody promises it
        return entries, whole

    def next_page(self, stream: int, after: int, look: Look) -> tuple[PlainEntries, int] | None:
        """A full page of plain events and its last id, with one statement; None if it takes more than that.

        Full is one with as many entries as wanted, or with about as many as there is room for.
        """
        if not self._plain or stream == self._mixed:
            return None
        limit = min(look.limit, self._fitting.get(stream, look.limit))
        values = {"stream": stream, "after": after, "upto": look.upto, "limit_bytes": look.limit_bytes, "dense": DENSE}
        for _ in range(TRIES):
            row = self.connection.execute(_NEXT_PAGE, {**values, "limit": limit}).fetchone()
            last, size, index, chunk, offset, count, *texts = row
            if size:
                self._fitting = {stream: max(1, 9 * limit * look.limit_bytes // (10 * size))}
            if not size or size <= look.limit_bytes:
                break
            limit = min(look.limit, self._fitting[stream])
        if count < limit:
            return None
        columns = PlainColumns(*texts)
        if not _are_texts(columns.bodies, count):
            self._mixed = stream
            return None
        page = PlainEntries(self._names.load(self.connection, [stream])[stream], index, chunk, offset, columns)
        return (page, last) if page.last_id == last else None  # they are in order, but nobody promises it

    def scan(self, patterns: tuple[str, ...], after: int, look: Look) -> tuple[list[Entry], int]:
        """Matching entries after an id, and the id up to which was looked."""
        looked = 0
        while after < look.upto and looked < SCAN_ROWS:
            entries, after, rows = self._scan(patterns, after, max(look.limit, looked), look)
            looked += rows
            if entries:
                return entries, after
        return [], after

    def _scan(self, patterns: tuple[str, ...], after: int, rows: int, look: Look) -> tuple[list[Entry], int, int]:
        """Look at the next *rows* entries."""
        last, count, size, text = self.connection.execute(_SURVEY, (after, look.upto, rows)).fetchone()
        if count < rows:
            last = look.upto
        streams = self._names.matching(self.connection, patterns, _numbers.decode(text))
        if not streams:
            return [], last, count
        which = f"{_RANGE} AND {_STREAMS}" if look.meta else f"{_RANGE} AND {_STREAMS} AND {_LIVE}"
        values = {
            "after": after, "upto": last, "streams": msgspec.json.encode(streams).decode(), "now": look.now_ms,
            "limit": look.limit,
        }  # fmt: skip
        if size > look.limit_bytes:
            entries, whole = self._page(_FIRST.format(which=which), values, look)
        else:
            entries, whole = self._fetch(_FIRST.format(which=which), values, look), True
        if entries and (not whole or len(entries) == look.limit):
            last = entries[-1].id
        return entries, last, count

    def _page(self, rows: str, values: dict[str, object], look: Look) -> tuple[list[Entry], bool]:
        """Entries as far as their bodies fit, and whether all did. *rows* stands after FROM."""
        size = self.connection.execute(_BYTES.format(rows=rows), values).fetchone()[0]
        if size <= look.limit_bytes:
            return self._fetch(rows, values, look), True
        query = _FITTING.format(rows=rows)
        fitting, count = self.connection.execute(query, {**values, "limit_bytes": look.limit_bytes}).fetchone()
        if not count:
            return [], True
        first = f"(SELECT * FROM {rows} ORDER BY id LIMIT :fitting)"
        return self._fetch(first, {**values, "fitting": fitting}, look), fitting == count

    def _fetch(self, rows: str, values: dict[str, object], look: Look) -> list[Entry]:
        """The entries of a page. Those that are more than plain events are few, or come together."""
        if self._plain:
            text, bodies, special = self.connection.execute(_PLAIN_PAGE.format(rows=rows), values).fetchone()
            if not special:
                return self._plain_entries(_plain_rows.decode(text), bodies)
        text, bodies = self.connection.execute(_PAGE.format(rows=rows), values).fetchone()
        entries = self._entries(_rows.decode(text), bodies, look)
        self._plain = all(_is_plain(entry) for entry in entries)
        return entries

    def _plain_entries(self, rows: list[_PlainRow], bodies: bytes) -> list[Entry]:
        names = self._names.load(self.connection, {row[1] for row in rows})
        ends = accumulate([row[-1] for row in rows])
        return [
            Entry(id, names[stream], idx, chunk, offset, size, _DATA, "", ms, None, "", bodies[end - length : end])
            for (id, stream, idx, chunk, offset, size, ms, length), end in zip(rows, ends, strict=True)
        ]

    def _entries(self, rows: list[_Row], bodies: bytes, look: Look) -> list[Entry]:
        names = self._names.load(self.connection, {row[1] for row in rows})
        entries: list[Entry] = []
        begin = 0
        for id, stream, idx, chunk, offset, size, kind, type, published_ms, expires_ms, attributes, length in rows:
            end = begin + length
            body = bodies[begin:end]
            index: int | None = idx
            if kind or expires_ms is not None:
                index = None if kind == Kind.META or not size else idx
                if expires_ms is not None and expires_ms <= look.now_ms and kind in (Kind.DATA, Kind.PART):
                    kind, type, attributes, body = Kind.EXPIRED, "", "", b""
            entry = Entry(
                id, names[stream], index, chunk, offset, size, _KINDS[kind], type, published_ms, expires_ms, attributes,
                body,
            )  # fmt: skip
            entries.append(entry)
            begin = end
        return entries

    def id_before(self, ms: int, upto: int) -> int:
        """The highest id published before a time; 0 if there is none."""
        values = {"leap": 1 << upto.bit_length(), "ms": ms, "upto": upto}
        return int(self.connection.execute(_ID_BEFORE, values).fetchone()[0])

    def times(self, after: int, upto: int, limit: int) -> list[tuple[int, int]]:
        """Ids and times of the entries between two ids."""
        query = "SELECT id, published_ms FROM entries WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"
        return self.connection.execute(query, (after, upto, limit)).fetchall()

    def heads(self, pattern: str, after: str, limit: int) -> tuple[list[Head], str | None]:
        """Heads of matching streams in order of their names, as they were folded last, and where to look on.

        Looks at a thousand names at most; None when there are no more.
        """
        prefix = pattern.partition("*")[0].partition(">")[0]
        found: list[Head] = []
        rows = self.connection.execute(_HEADS, (after, prefix, prefix, _HEADS_ROWS)).fetchall()
        for name, next_index, chunk, offset, subscribers, last_id, last_ms in rows:
            after = name.decode()
            if matches(pattern, after):
                who = msgspec.json.decode(subscribers, type=tuple[str, ...])
                found.append(Head(after, next_index, chunk, offset, who, last_id, last_ms))
                if len(found) == limit:
                    break
        return found, after if len(rows) == _HEADS_ROWS else None
