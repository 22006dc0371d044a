"""What happened to entries and items for a recipient, recorded in columns.

Doors call `sent` for each flush of a wire, `confirm` when a recipient says how far it has come, and `record` or
`record_item` when something else was decided: a state of the table in `wire/ledger.py`. Records are buffered and
appended to the stream `/_ledger`, one entry per batch:

    {"node":"n1","epoch":3,"sequence":17,"mark":"","lost":0,
     "rows":[[ms,state,reason,stream,first,last,group],…],
     "who":[[door,recipient],…],
     "items":[[ms,state,reason,door,recipient,key,month,number,expires],…],
     "groups":[count,…]} newline
    count little-endian 32-bit numbers per group: indexes into "who"

A row says what happened to an interval of entries for all recipients of a group. A fan-out gives one event after the
other to the same wires: a batch names them and their group once, and has one row for each event (or for 512 wires).
So a batch can be read without any other, whatever was trimmed or lost before it. (Batches of before 2026-11-17 have no
"groups": there a row ends with the count of its own numbers.) The attributes of the entry hold the smallest and the
greatest id it speaks of, so that a reader can pass over it without decoding.

A position ("has everything up to here") is one cumulative row: state `confirmed`, from 0 to the id, of one stream or,
without a name, of all. It says nothing about what was sent; whoever reads joins it with the rows that do
(`core/why.py`).

Crash contract: batches are numbered (node, epoch, sequence) without a gap; an epoch begins with a
batch marked "open" and ends with one marked "close". `sent` waits up to `ledger.flush_ms` and may be lost
in a crash; an epoch without its "close" tells which interval is unknown. `acked` and `confirmed` are durable before
their effect is visible: record them, then await `flush`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Final

import msgspec

from penstock.core.background import Tasks
from penstock.core.clock import Clock
from penstock.core.log import Log
from penstock.core.names import is_system
from penstock.core.registry import NEW, Registry
from penstock.core.throughput import Throughput
from penstock.errors import CallerError, NotRecorded, PenstockError
from penstock.limits import LEDGER_REASON_CHARACTERS
from penstock.settings import DEFAULTS, LedgerSettings
from penstock.values import Batch, Draft, Entry, PlainEntries
from penstock.wire.ledger import CONFIRMED, RANKS, with_recipients

log = logging.getLogger("penstock.ledger")

LEDGER_WAITING: Final = 2_000_000
"""Records that wait in memory while the log takes nothing. Over it: the oldest batches are emptied
and say how many records they lost, so that an audit never takes those for undelivered."""

LEDGER_BATCH_ITEMS: Final = 1_000
"""Records of mailbox items in one batch: making one holds up the loop. Over it, and over LEDGER_BATCH_BYTES: a further
batch."""

LEDGER_BATCH_RECORDS: Final = 4_096
"""Deliveries after which a batch is made before its time: making one holds up the loop, some half a millisecond then.
Over it: the next event's deliveries go into the next batch."""

LEDGER_BATCH_BYTES: Final = 700 * 1024
"""Bytes of one batch of ledger records, as encoded: it must fit into one entry. Over it: a further batch. One record
alone that is longer than an entry: an empty batch says that it is lost, and who waits for it gets an error."""

STREAM = "/_ledger"
_RETRY_SECONDS = 1.0


class Recipient(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Who something happened to. A wire makes one when it opens and uses it for every record."""

    door: str
    name: str


class Recipients(list[Recipient]):
    """Those who are written the same bytes, time after time. Never changed: their names are encoded once for all."""

    @cached_property
    def encoded(self) -> bytes:
        """As they stand in a batch, without the brackets."""
        return _encode_names(self)


def _encode_names(who: Iterable[Recipient]) -> bytes:
    return msgspec.json.encode([(one.door, one.name) for one in who])[1:-1]


class LedgerEvent(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened to an interval of entries, or to an item, for one recipient."""

    ms: int
    state: str
    reason: str
    door: str
    recipient: str
    stream: str = ""
    first: int = 0  # ids of entries; 0 for an item, and where a position counts from
    last: int = 0
    key: str = ""  # the item's message id; empty for entries
    month: str = ""
    number: int = 0
    expires_ms: int | None = None


class _Row:
    """Records that differ in the recipient only."""

    __slots__ = ("first", "last", "ms", "reason", "state", "stream", "who")

    def __init__(self, ms: int, state: str, reason: str, stream: str, first: int, last: int) -> None:
        self.ms, self.state, self.reason, self.stream = ms, state, reason, stream
        self.first, self.last = first, last
        self.who: list[Recipient] = []


_NO_ROW = _Row(0, "", "", "", 0, 0)
_Item = tuple[int, str, str, str, str, str, str, int, int | None]


class Sealed(msgspec.Struct):
    """A batch that waits for the log."""

    sequence: int
    body: bytes
    attributes: str
    records: int
    emptied: bool = False  # it says how much it lost, and nothing else
    error: NotRecorded | None = None  # the log refused it for good


class _Waiter:
    """Somebody who waits until a batch is durable."""

    __slots__ = ("done", "error", "sequence")

    def __init__(self, sequence: int, done: asyncio.Future[None]) -> None:
        self.sequence, self.done = sequence, done
        self.error: NotRecorded | None = None


LedgerRow = tuple[int, str, str, str, int, int, int]
"""Time, state, reason, stream, first id, last id, and its group of recipients (`wire.ledger.with_recipients`)."""


class Header(msgspec.Struct):
    """The first line of a batch."""

    node: str
    epoch: int
    sequence: int
    mark: str = ""
    lost: int = 0
    rows: list[LedgerRow] = []
    who: msgspec.Raw = msgspec.Raw(b"[]")
    items: list[_Item] = []
    groups: list[int] | None = None


class Ledger:
    """Buffers records and appends them to `/_ledger`. `open` and `close` bracket a node's epoch."""

    def __init__(
        self, target: Log, clock: Clock, *, node: str, settings: LedgerSettings = DEFAULTS.ledger,
        throughput: Throughput | None = None,
    ) -> None:  # fmt: skip
        self._log, self._clock, self._node, self._throughput = target, clock, node, throughput
        self._flush_ms, self.enabled = int(settings.flush_ms), settings.enabled
        self._epoch, self._sequence = 0, 0
        self._rows: list[_Row] = []
        self._buffered = 0  # deliveries in all of them but the last
        self._row = _NO_ROW
        self._positions: dict[tuple[str, int], _Row] = {}  # rows of what was confirmed, by stream and id
        self._items: list[_Item] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sealed: deque[Sealed] = deque()
        self._sealed_records = 0
        self._tasks = Tasks("ledger")
        self._pumping: asyncio.Task[None] | None = None
        self._waiters: deque[_Waiter] = deque()  # in order of the sequence that they wait for
        self._looked_at: Sequence[Entry] = ()
        self._intervals: list[tuple[str, int, int]] = []
        self.recorded = 0
        self.lost = 0
        self.refused = 0

    async def open(self, registry: Registry) -> None:
        """Begin a new epoch of this node."""
        if not self.enabled:
            return
        key = f"nodes/{self._node}/epoch"
        record = await registry.get(key)
        self._epoch = 1 + (int(record.value) if record else 0)
        await registry.put(key, str(self._epoch).encode(), expect=record.version if record else NEW)
        self._seal(_Columns([]), [], mark="open")
        await self.flush()

    async def close(self) -> None:
        """End the epoch: everything buffered is appended, then the closing batch."""
        try:
            if self.enabled and self._epoch:
                self._seal_buffered()
                self._seal(_Columns([]), [], mark="close")
                await self.flush()
                self.enabled = False
        finally:
            await self._tasks.close()

    # ── recording ─────────────────────────────────────────────────────────────────────────────

    def sent(self, who: Recipient, stream: str, first: int, last: int) -> None:
        """Entries *first* to *last* of *stream* were written to this recipient's wire.

        Deliveries of system streams are not recorded: to record those of `/_ledger` would make new ones without end.

        Called once per flush and wire. A fan-out calls it with the same interval for one wire after
        another, so the row in hand nearly always fits.
        """
        row = self._row
        if first != row.first or last != row.last or stream != row.stream:
            if not self.enabled or is_system(stream):
                return
            row = self._begin_row("sent", "", stream, first, last)
        row.who.append(who)

    def sent_to_all(self, who: Recipients, stream: str, first: int, last: int) -> None:
        """As `sent`, to all of these recipients. The batch names them once, whatever number of rows speaks of them."""
        if self.enabled and not is_system(stream):
            self._begin_row("sent", "", stream, first, last).who = who
            self._row = _NO_ROW

    def intervals(self, entries: Sequence[Entry]) -> list[tuple[str, int, int]]:
        """*entries* as `sent` wants them: of each stream the first and the last id.

        A fan-out asks for the same object once per wire.
        """
        if isinstance(entries, PlainEntries):
            return [(entries.stream, entries.first_id, entries.last_id)]
        if entries is not self._looked_at:
            found: dict[str, tuple[str, int, int]] = {}
            for entry in entries:
                first = found.get(entry.stream, ("", entry.id, 0))[1]
                found[entry.stream] = (entry.stream, first, entry.id)
            self._looked_at, self._intervals = entries, list(found.values())
        return self._intervals

    def record(self, who: Recipient, state: str, stream: str, first: int, last: int, *, reason: str = "") -> None:
        """Something else happened to an interval of entries."""
        _check_state(state)
        if self.enabled:
            self._begin_row(state, reason, stream, first, last).who.append(who)
            self._row = _NO_ROW

    def confirm(self, who: Recipient, upto: int, stream: str = "") -> None:
        """This recipient has everything that it was sent up to an id, of one stream or of all.

        Thousands that come back after the same event share a row, whatever is recorded in between.
        """
        if self.enabled and upto > 0:
            row = self._positions.get((stream, upto))
            if row is None:
                row = self._positions[stream, upto] = self._begin_row(CONFIRMED, "", stream, 0, upto)
                self._row = _NO_ROW
            row.who.append(who)
            self._buffered += 1

    def record_item(
        self,
        who: Recipient,
        state: str,
        key: str,
        month: str,
        number: int,
        *,
        reason: str = "",
        expires_ms: int | None = None,
    ) -> None:
        """Something happened to an item of a mailbox."""
        _check_state(state)
        if self.enabled:
            now_ms = self._clock.now_ms()
            reason = reason[:LEDGER_REASON_CHARACTERS]
            self._items.append((now_ms, state, reason, who.door, who.name, key, month, number, expires_ms))
            self._book()

    def _begin_row(self, state: str, reason: str, stream: str, first: int, last: int) -> _Row:
        self._buffered += len(self._rows[-1].who) if self._rows else 0
        if self._buffered >= LEDGER_BATCH_RECORDS:
            self._flush_soon()
        reason = reason[:LEDGER_REASON_CHARACTERS]
        row = self._row = _Row(self._clock.now_ms(), state, reason, stream, first, last)
        self._rows.append(row)
        self._book()
        return row

    def _book(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._flush_ms / 1000, self._flush_soon)

    # ── appending ─────────────────────────────────────────────────────────────────────────────

    async def flush(self) -> None:
        """Return when all that was recorded before the call is durable.

        Raises `NotRecorded` if some of it can never be.
        """
        self._seal_buffered()
        if self._sealed:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(_Waiter(self._sealed[-1].sequence, done))
            self._begin_to_pump()
            await done

    def _flush_soon(self) -> None:
        self._seal_buffered()
        self._begin_to_pump()

    def _begin_to_pump(self) -> None:
        if self._pumping is None or self._pumping.done():
            self._pumping = self._tasks.start(self._pump())

    async def _pump(self) -> None:
        """Append what is sealed, in order of sequence. A log that takes nothing now is tried again."""
        while self._sealed:
            oldest = self._sealed[0]
            draft = Draft(STREAM, oldest.body, "ledger", oldest.attributes)
            try:
                await self._log.append(Batch((draft,)))
            except CallerError as error:
                self._refuse(oldest, error)
                if not oldest.emptied:
                    self._empty(oldest)
                    continue  # what it loses is told in its place
            except Exception as error:  # whatever it is: those who wait for this batch would wait for ever
                trace = None if isinstance(error, PenstockError) else error
                log.warning("ledger.waiting", extra={"error": str(error), "batches": len(self._sealed)}, exc_info=trace)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._sealed.popleft()
            self._sealed_records -= oldest.records
            self.recorded += oldest.records
            self._tell(oldest)

    def _refuse(self, batch: Sealed, error: CallerError) -> None:
        """The log will never take this batch: trying again would hold up all others for ever."""
        log.error("ledger.refused", extra={"error": str(error), "records": batch.records, "bytes": len(batch.body)})
        self.refused += batch.records
        batch.error = NotRecorded(batch.records, str(error))

    def _tell(self, batch: Sealed) -> None:
        """This batch is durable, or refused for good: answer the waiters that wait for no later batch."""
        if batch.error is not None:
            for waiter in self._waiters:  # those who came later wait for it as well: it was sealed before
                waiter.error = waiter.error or batch.error
        while self._waiters and self._waiters[0].sequence <= batch.sequence:
            waiter = self._waiters.popleft()
            if not waiter.done.done():
                if waiter.error is None:
                    waiter.done.set_result(None)
                else:
                    waiter.done.set_exception(waiter.error)

    def _seal_buffered(self) -> None:
        """Make batches of what is buffered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rows, self._rows, self._row, self._buffered = self._rows, [], _NO_ROW, 0
        self._positions = {}
        items, self._items = self._items, []
        if self._throughput is not None:
            if rows:
                self._throughput.sealed(rows)
            for _, state, _, door, *_ in items:
                self._throughput.sealed_item(state, door)
        if rows:
            self._seal_rows(rows)
        if items:
            self._seal_items(items)

    def _seal_rows(self, rows: list[_Row]) -> None:
        """Seal rows in batches that fit into one entry each, cut by halves."""
        columns = _Columns(rows)
        divisible = columns.divisible
        surely_too_large = divisible and columns.least_bytes > LEDGER_BATCH_BYTES
        if surely_too_large or not self._seal(columns, [], divisible=divisible):
            for half in _halves(rows) if len(rows) > 1 else _halves_of_row(rows[0]):
                self._seal_rows(half)

    def _seal_items(self, items: list[_Item]) -> None:
        for start in range(0, len(items), LEDGER_BATCH_ITEMS):
            some = items[start : start + LEDGER_BATCH_ITEMS]
            if not self._seal(_Columns([]), some, divisible=len(some) > 1):
                middle = len(some) // 2
                self._seal_items(some[:middle])
                self._seal_items(some[middle:])

    def _seal(self, columns: _Columns, items: list[_Item], *, mark: str = "", divisible: bool = False) -> bool:
        """Put one batch in the line. False, and nothing has happened, if it is too large and can be divided."""
        header = Header(self._node, self._epoch, self._sequence, mark, 0, [], msgspec.Raw(b"[]"), items)
        body, attributes = _encode(header, columns)
        if divisible and len(body) > LEDGER_BATCH_BYTES:
            return False
        self._sequence += 1
        records = columns.count + len(items)
        self._sealed.append(Sealed(header.sequence, body, attributes, records))
        self._sealed_records += records
        self._drop_over_limit()
        return True

    def _drop_over_limit(self) -> None:
        """Keep memory bounded while the log takes nothing: the oldest batches become empty ones.

        They keep their sequence and say how much they lost, so that an audit knows. The first is left
        alone: it may be on its way.
        """
        for sealed in list(self._sealed)[1:-1]:
            if self._sealed_records <= LEDGER_WAITING:
                return
            if sealed.records:
                self._empty(sealed)

    def _empty(self, sealed: Sealed) -> None:
        header = Header(self._node, self._epoch, sealed.sequence, lost=sealed.records)
        sealed.body, sealed.attributes = _encode(header, _Columns([]))
        self._sealed_records -= sealed.records
        self.lost += sealed.records
        sealed.records, sealed.emptied = 0, True


def _check_state(state: str) -> None:
    if state not in RANKS:
        raise ValueError(f"{state!r} is no state of the ledger")


class _Columns:
    """Rows turned into columns: who is named in them, and which row speaks of which group.

    Everything here is part of each delivery's cost. A fan-out sends one event after another to the same wires, so the
    recipients of a row are not looked at again when an earlier row had the same list.
    """

    __slots__ = ("_singles", "count", "encoded_names", "groups", "rows", "which")

    def __init__(self, rows: list[_Row]) -> None:
        self.rows = rows
        self.count = sum([len(row.who) for row in rows])
        self.groups: list[list[Recipient]] = []  # each once, if they are `Recipients`; others unlike their neighbours
        self.which: list[int] = []  # of them, for each row
        known: dict[int, int] = {}
        for row in rows:
            which = known.get(id(row.who), -1)
            if which < 0 and self.groups and row.who == self.groups[-1]:
                which = len(self.groups) - 1
            elif which < 0:
                which = known[id(row.who)] = len(self.groups)
                self.groups.append(row.who)
            self.which.append(which)
        self._singles = dict.fromkeys(chain.from_iterable([g for g in self.groups if not isinstance(g, Recipients)]))
        names = [_encode_names(self._singles)]
        names += [group.encoded for group in self.groups if isinstance(group, Recipients)]
        self.encoded_names = b"[" + b",".join(filter(None, names)) + b"]"

    @property
    def least_bytes(self) -> int:
        """It takes no less than this."""
        return 4 * sum(map(len, self.groups)) + len(self.encoded_names)

    @property
    def divisible(self) -> bool:
        """There are two records in it that can be told in two batches."""
        return len(self.rows) > 1 or self.count > 1

    def encoded_who(self) -> bytes:
        """The numbers of each group. Those of `Recipients` follow each other, after those who are named one by one."""
        number = dict(zip(self._singles, range(len(self._singles)), strict=True)).__getitem__
        following, columns = len(self._singles), []
        for group in self.groups:
            if isinstance(group, Recipients):
                columns.append(array("I", range(following, following + len(group))))
                following += len(group)
            else:
                columns.append(array("I", map(number, group)))
        return b"".join([_little_endian(column).tobytes() for column in columns])


def _halves(rows: list[_Row]) -> tuple[list[_Row], list[_Row]]:
    middle = len(rows) // 2
    return rows[:middle], rows[middle:]


def _halves_of_row(row: _Row) -> tuple[list[_Row], list[_Row]]:
    middle = len(row.who) // 2
    one, other = (_Row(row.ms, row.state, row.reason, row.stream, row.first, row.last) for _ in range(2))
    one.who, other.who = row.who[:middle], row.who[middle:]
    return [one], [other]


def _encode(header: Header, columns: _Columns) -> tuple[bytes, str]:
    """The body and the attributes of one batch."""
    rows = columns.rows
    header.rows = [
        (row.ms, row.state, row.reason, row.stream, row.first, row.last, group)
        for row, group in zip(rows, columns.which, strict=True)
    ]
    header.groups = list(map(len, columns.groups))
    header.who = msgspec.Raw(columns.encoded_names)
    attributes = {"node": header.node, "epoch": str(header.epoch), "sequence": str(header.sequence)}
    if rows:
        attributes["min"] = str(min(row.first for row in rows))
        attributes["max"] = str(max(row.last for row in rows))
    if header.items:
        attributes["items"] = str(len(header.items))
    body = msgspec.json.encode(header) + b"\n" + columns.encoded_who()
    return body, msgspec.json.encode(attributes).decode()


def _little_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column.byteswap()
    return column


def decode(body: bytes) -> tuple[Header, list[LedgerEvent]]:
    """Read a batch back: its header, and everything in it one by one."""
    header, found = decode_rows(body)
    events = []
    for (ms, state, reason, stream, first, last, _), who in found:
        events += [LedgerEvent(ms, state, reason, door, name, stream, first, last) for door, name in who]
    for ms, state, reason, door, name, key, month, number, expires_ms in header.items:
        events.append(LedgerEvent(ms, state, reason, door, name, "", 0, 0, key, month, number, expires_ms))
    return header, events


def decode_rows(
    body: bytes, wanted: Callable[[LedgerRow], bool] = lambda row: True
) -> tuple[Header, list[tuple[LedgerRow, list[tuple[str, str]]]]]:
    """Read those rows of a batch that are wanted, each with its recipients (door and name): cheap for a fan-out."""
    line, _, column = body.partition(b"\n")
    header = msgspec.json.decode(line, type=Header)
    numbers, found = _little_endian(array("I", column)), []
    who: list[tuple[str, str]] | None = None
    for row, group in with_recipients(header.rows, header.groups, numbers):
        if wanted(row):
            who = msgspec.json.decode(header.who, type=list[tuple[str, str]]) if who is None else who
            found.append((row, [who[number] for number in group]))
    return header, found
