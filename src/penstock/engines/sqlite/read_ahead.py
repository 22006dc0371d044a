"""Reads the page after the one that was asked for, in the same thread, before anybody asks for it.

A replay is one page after the other. Read one by one, each of them waits until the event loop asks for it, and then
until its thread gets the interpreter lock, which the loop holds while it makes lines of the page before. A thread that
goes on by itself has its statement running by then:

    reader's thread    page 1 ─▶ page 2, in SQLite, without the lock ─▶ page 3 …
    event loop                   asks for page 2, makes lines of page 1 ─▶ asks for page 3, lines of page 2 …

It goes on only while the page it has just read was asked for, and while a thread is left for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.core.clock import Clock
from penstock.core.promise import Promise
from penstock.engines.pages import SHORT_ENTRIES
from penstock.engines.sqlite.reader import SqliteReader
from penstock.engines.sqlite.reader_threads import Readers
from penstock.errors import PenstockError
from penstock.values import Page

UNASKED: Final = 4
"""Pages that nobody has asked for yet, of all replays together. Over it: the oldest is forgotten, and read again."""
FRESH_MS: Final = 1_000
"""How old such a page may get: what has expired since it was read must not be seen."""


class ReplayKind(NamedTuple):
    """What is read, page by page."""

    patterns: tuple[str, ...]
    limit: int
    limit_bytes: int
    meta: bool


Read = Callable[[SqliteReader, int], Page]
"""Reads the page after an id."""


class PageReading(Promise[Page]):
    """A page that is on its way, or there."""

    __slots__ = ("after", "asked", "kind", "made_ms", "read", "when")

    def __init__(self, kind: ReplayKind, after: int, read: Read, when: int, *, asked: bool) -> None:
        super().__init__()
        self.kind, self.after, self.read, self.when, self.asked = kind, after, read, when, asked
        self.made_ms = 0

    def page(self, reader: SqliteReader) -> Page:
        return self.read(reader, self.after)


class Ahead:
    """The pages that are read ahead. Lives on the event loop, works in the readers' threads."""

    def __init__(self, readers: Readers, clock: Clock) -> None:
        self._readers, self._clock = readers, clock
        self._loop = asyncio.get_running_loop()
        self._unasked: dict[tuple[ReplayKind, int], PageReading] = {}
        self._when = 0  # how often everything was forgotten

    def take(self, kind: ReplayKind, after: int) -> PageReading | None:
        """The page after this id, if it was begun."""
        reading = self._unasked.pop((kind, after), None)
        if reading is None or not self._holds(reading):
            return None
        reading.asked = True
        if reading.done() and (following := self._following(reading)):
            with suppress(PenstockError):  # nobody has asked for it yet: whoever does is told what is wrong
                self._start(following)
                self._keep(following)
        return reading

    def begin(self, kind: ReplayKind, after: int, read: Read) -> PageReading:
        """Read the page after this id, and then the next one."""
        reading = PageReading(kind, after, read, self._when, asked=True)
        self._start(reading)
        return reading

    def forget(self) -> None:
        """Forget all pages that were read ahead: something was trimmed or erased."""
        self._when += 1
        self._unasked.clear()

    def _holds(self, reading: PageReading) -> bool:
        old = reading.done() and not 0 <= self._clock.now_ms() - reading.made_ms <= FRESH_MS
        return reading.when == self._when and reading.error is None and not old

    def _keep(self, reading: PageReading) -> None:
        if reading.when == self._when:
            self._unasked[reading.kind, reading.after] = reading
            if len(self._unasked) > UNASKED:
                del self._unasked[next(iter(self._unasked))]

    def _start(self, reading: PageReading) -> None:
        self._readers.start(lambda: self._work(reading), long=reading.kind.limit > SHORT_ENTRIES)

    def _following(self, reading: PageReading) -> PageReading | None:
        page = reading.value
        if page is None or not page.more or not reading.asked or self._readers.crowded:
            return None
        return PageReading(reading.kind, page.upto, reading.read, reading.when, asked=False)

    def _arrived(self, reading: PageReading, following: PageReading | None) -> None:
        if following is not None:
            self._keep(following)
        reading.settle()

    # ── in a reader's thread ──────────────────────────────────────────────────────────────────

    def _work(self, reading: PageReading) -> None:
        following: PageReading | None = reading
        while following is not None:
            reading = following
            try:
                reading.value = self._readers.here(reading.page)
            except Exception as error:  # noqa: BLE001 - whoever asks gets it
                reading.error = error
            reading.made_ms = self._clock.now_ms()
            following = self._following(reading)
            self._loop.call_soon_threadsafe(self._arrived, reading, following)
