"""The log as a worker sees it: appends and reads go to the log process, entries come from there as they are wanted.

What a caller is told when the log process is gone: `worker_calls.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

from penstock.core.followers import Follower, Followers
from penstock.core.promise import Promise, failed
from penstock.core.stamp import check_batch
from penstock.core.wanted_streams import UNKNOWN, WantedStreams
from penstock.engines.local.frames import LogFrame, Welcome
from penstock.engines.local.worker_calls import GONE, Call, LogCalls, Remote
from penstock.errors import Busy, CallerError, EngineGone
from penstock.limits import ENTRY_BYTES, PAGE_BYTES, PAGE_ENTRIES
from penstock.values import Appended, Batch, Draft, Kind, Page

_DATA: Final = Kind.DATA
_READ: Final = "log.read_after"


class WorkerLog(Remote):
    """`core.log.Log` over the link to the log process."""

    def __init__(self, link: LogCalls, welcome: Welcome, *, selective: bool, queue: int, queue_bytes: int) -> None:
        super().__init__(link, "log")
        self.durability, self.server = welcome.durability, welcome.server
        self._followed, self._trimmed_upto = welcome.followed, welcome.trimmed_upto
        self._selective, self._limits = selective, (queue, queue_bytes)
        self.followers = Followers()
        self._attached: list[WantedStreams] = []
        self._wanted: dict[str, int] = {}  # how many want it
        self._since: dict[str, int] = {}
        self._asked: dict[int, str] = {}  # patterns that are not answered yet, by number
        self._asked_of: dict[str, int] = {}  # their newest number
        self._reading: dict[tuple[Any, ...], Call] = {}
        self._waiting: Counter[Call] = Counter()  # how many wait for a page

    @property
    def followed(self) -> int:
        return self._followed

    @property
    def trimmed_upto(self) -> int:
        return self._trimmed_upto

    # ── append ─────────────────────────────────────────────────────────────────────────────────

    def append(self, batch: Batch) -> Promise[Appended]:
        try:
            weight = check_batch(batch)
        except CallerError as error:
            return failed(error)
        return self._refused(weight) or self._link.append(batch, weight)

    def append_event(self, stream: str, body: bytes) -> Promise[Appended]:
        if len(body) > ENTRY_BYTES or not stream.isascii():  # the name could not be sent as it is
            return self.append(Batch((Draft(stream, body),)))
        return self._refused(len(body)) or self._link.append_event(stream, body)

    def _refused(self, weight: int) -> Promise[Appended] | None:
        """The answer to an append of so many bytes if it cannot be taken now."""
        link, (most, most_bytes) = self._link, self._limits
        if len(link.appending) >= most:
            return failed(Busy("log.queue", most))
        if link.appending_bytes + weight > most_bytes and link.appending:
            return failed(Busy("log.queue_bytes", most_bytes))
        return None if link.is_open else failed(EngineGone(GONE))

    # ── follow ─────────────────────────────────────────────────────────────────────────────────

    def follow(self, follower: Follower, wanted: WantedStreams | None = None) -> None:
        if self._selective:
            if wanted is None:
                raise TypeError("a worker's follower says what it wants")
            self._attached.append(wanted)
            wanted.attach(self)
            if wanted.types:
                self._link.want_types(wanted.types)
        self.followers.add(follower)

    def want(self, pattern: str) -> None:
        count = self._wanted[pattern] = self._wanted.get(pattern, 0) + 1
        if count == 1:
            self._since[pattern] = UNKNOWN
            number = self._asked_of[pattern] = self._link.want(pattern)
            self._asked[number] = pattern

    def unwant(self, pattern: str) -> None:
        count = self._wanted.pop(pattern)
        if count > 1:
            self._wanted[pattern] = count - 1
        else:
            self._since.pop(pattern, None)
            self._asked_of.pop(pattern, None)
            self._link.unwant(pattern)

    def since(self, pattern: str) -> int:
        return self._since.get(pattern, UNKNOWN)

    def hear(self, frame: LogFrame) -> None:
        """Take what the log process tells of the log."""
        for number, since in frame.covered:
            pattern = self._asked.pop(number)
            if self._asked_of.get(pattern) == number:  # else it was taken back, and perhaps asked for again
                del self._asked_of[pattern]
                self._since[pattern] = since
        self._trimmed_upto = frame.trimmed_upto
        if frame.entries:
            self.followers.tell(frame.entries)
        if frame.followed > self._followed:
            self._followed = frame.followed
            for wanted in self._attached:
                if wanted.moved is not None:
                    wanted.moved(frame.followed)

    # ── reads ──────────────────────────────────────────────────────────────────────────────────

    async def read_after(
        self, patterns: Sequence[str], after: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES,
        meta: bool = False, ahead: bool = False,
    ) -> Page:  # fmt: skip
        """Wires that come back together mostly ask for the same page: it is read once.

        That is for those alone who go on from where it ends. Whoever wants one page is to find in it all that was
        acknowledged before he asked, also by other workers; one that is under way may have been made earlier.
        """
        named = {"limit": limit, "limit_bytes": limit_bytes, "meta": meta, "ahead": ahead}
        if not ahead:
            return cast("Page", await self._link.wait_for(self._link.contract(_READ, (patterns, after), named)))
        asked = (tuple(patterns), after, *named.values())
        reading = self._reading.get(asked)
        if reading is None:
            reading = self._reading[asked] = self._link.contract(_READ, (patterns, after), named)
            reading.add_done_callback(partial(self._read, asked))
        self._waiting[reading] += 1
        try:
            return cast("Page", await reading)
        finally:
            self._waiting[reading] -= 1
            if not self._waiting[reading]:
                del self._waiting[reading]
                if not reading.done():
                    self._read(asked, reading)
                    self._link.give_up(reading)

    def _read(self, asked: tuple[Any, ...], reading: Call) -> None:
        if self._reading.get(asked) is reading:  # else it was given up, and perhaps begun anew
            del self._reading[asked]
