"""Tells subscriptions which of their streams moved: one `SubscriptionActivity` event per subscriber and tick.

An announcement is made after the streams moved and before it is noted as made, so a crash at any point
leads to one announcement too many at worst. That is harmless: an app that has the position already is not
behind.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.clock import Clock
from penstock.core.duties import Duties
from penstock.core.log import Log
from penstock.doors.eventhorizon.subscriptions import Subscriptions
from penstock.limits import BATCH_BYTES, BATCH_ENTRIES, LINE_BYTES
from penstock.values import Batch, Draft, Kind
from penstock.wire.eventhorizon import subscription_activity, timestamp

DUTY = "eventhorizon/announcements"
_TYPE = "SubscriptionActivity"
_ROOM = LINE_BYTES - 128  # of one line, beside its type, its time and JSON's own marks


class Activity:
    """Announces moved streams at each tick. One node of a cluster does so; others note what is not announced yet."""

    def __init__(self, target: Log, subscriptions: Subscriptions, clock: Clock, duties: Duties | None = None) -> None:
        self._log, self._subscriptions, self._clock = target, subscriptions, clock
        self._duties = duties

    async def round(self) -> None:
        """Announce what moved, if this node is the one to do it."""
        if await self._is_ours():
            await self.tick()

    async def _is_ours(self) -> bool:
        if self._duties is None:
            return True
        if not self._duties.should(DUTY):
            await self._duties.release(DUTY)
            return False
        return await self._duties.take(DUTY)

    async def tick(self) -> None:
        """Announce everything that moved until now. If that fails, it stays to be announced."""
        moved, self._subscriptions.moved = self._subscriptions.moved, {}
        if not moved:
            return
        upto = self._log.followed
        try:
            for batch in _batches(self._drafts(moved)):
                await self._log.append(batch)
        except BaseException:
            self._put_back(moved)
            raise
        await self._subscriptions.announced(upto)

    def _drafts(self, moved: dict[str, set[str]]) -> Iterator[Draft]:
        ts = timestamp(self._clock.now_ms())
        for id in sorted(moved):
            for cursors in _fitting(self._newest(moved[id])):
                yield Draft(id, subscription_activity(cursors, ts), _TYPE, kind=Kind.META)

    def _newest(self, streams: set[str]) -> list[str]:
        ordered = sorted(streams, key=str.encode)
        return [str(cursor) for stream in ordered if (cursor := self._subscriptions.newest(stream))]

    def _put_back(self, moved: dict[str, set[str]]) -> None:
        for id, streams in moved.items():
            still = streams & self._subscriptions.streams(id)
            if still:
                self._subscriptions.moved.setdefault(id, set()).update(still)


def _fitting(cursors: list[str]) -> Iterator[list[str]]:
    """Cut a list so that each part fits into a line that readers can read."""
    part: list[str] = []
    size = 0
    for cursor in cursors:
        cost = 6 * len(cursor.encode()) + 3 if not cursor.isascii() or set(cursor) & set('<>&"\\') else len(cursor) + 3
        if part and size + cost > _ROOM:
            yield part
            part, size = [], 0
        part.append(cursor)
        size += cost
    if part:
        yield part


def _batches(drafts: Iterator[Draft]) -> Iterator[Batch]:
    part: list[Draft] = []
    size = 0
    for draft in drafts:
        if part and (len(part) == BATCH_ENTRIES or size + len(draft.body) > BATCH_BYTES):
            yield Batch(tuple(part))
            part, size = [], 0
        part.append(draft)
        size += len(draft.body)
    if part:
        yield Batch(tuple(part))
