"""Which appends may go now, and which are folded into one batch. Pure: it neither sends nor waits.

A *lane* is a lock: a stream, an idempotency key or a producer, which one append at a time may change. A job
queues in all of its lanes at once, so each lane is served in order, and no two jobs can deadlock.

    lane /orders   in flight ── waiting: 7 8 9      when it is free, 7 8 9 go together as one batch,
    lane /shop     free      ── waiting: 9          as far as their other lanes allow it
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from typing import Final

import msgspec

from penstock.core.names import ROOT, parent
from penstock.engines.jetstream.stream_heads import KnownHeads
from penstock.values import Appended, Batch, Kind

GROUP_MESSAGES: Final = 1_000
"""Messages of one atomic batch: JetStream refuses more (10199)."""

GROUP_BYTES: Final = 4 * 1024 * 1024
"""Bytes of bodies that are folded together; a single batch may be as large alone."""

_PER_LANE = 5  # Created, ChildStreamCreated, Rotated, Created, the list of subscribers
_ROTATION = 3  # Rotated, Created and the list of subscribers: a chunk fills up at most once in a group


class AppendJob(msgspec.Struct, gc=False, eq=False):
    """One append on its way."""

    batch: Batch
    bytes: int
    future: asyncio.Future[Appended]
    lanes: tuple[str, ...]
    born: float = 0.0
    open: bool = True  # it counts for the limits of the queue
    begun: bool = False  # its key was stored before it: they do not fit into one batch
    looked_up: bool = False  # its key and producer were asked for
    old_keys: dict[str, int] = {}  # sequences of outdated keys whose place it takes
    plain: bool = False  # one event and nothing else, as most are

    @property
    def weight(self) -> int:
        """What it counts for the limits."""
        return len(self.batch.drafts) or 1

    @property
    def messages(self) -> int:
        """How many it becomes at most, as long as no chunk is full."""
        if len(self.lanes) == 1 and len(self.batch.drafts) == 1:
            return 1
        return len(self.batch.drafts) + 3 + _PER_LANE * len(self.lanes)


class _Lane:
    __slots__ = ("busy", "waiting")

    def __init__(self, *, busy: bool = False) -> None:
        self.busy = busy
        self.waiting: deque[AppendJob] = deque()


_HELD = _Lane(busy=True)
"""A lane that is busy and in which nobody waits, shared by all such lanes: most are of that kind."""


class Lanes:
    """Everything that waits or is in flight."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}

    def add(self, job: AppendJob) -> list[AppendJob]:
        """Let *job* wait; return the group that may go now, if it may."""
        if len(job.lanes) == 1 and job.lanes[0] not in self._lanes:
            self._lanes[job.lanes[0]] = _HELD
            return [job]
        for name in job.lanes:
            self._own(name).waiting.append(job)
        return self._group(job)

    def _own(self, name: str) -> _Lane:
        """A lane in which somebody may wait."""
        lane = self._lanes.get(name)
        if lane is None or lane is _HELD:
            lane = self._lanes[name] = _Lane(busy=lane is _HELD)
        return lane

    def free(self, names: Collection[str]) -> list[list[AppendJob]]:
        """These lanes are free again; return the groups that may go now."""
        others = []
        for name in names:
            lane = self._lanes[name]
            if lane is _HELD:
                del self._lanes[name]
            else:
                lane.busy = False
                others.append(name)
        groups = []
        for name in others:
            waiting = self._lanes[name].waiting
            if waiting and (group := self._group(waiting[0])):
                groups.append(group)
        for name in others:
            lane = self._lanes[name]
            if not lane.waiting and not lane.busy:
                del self._lanes[name]
        return groups

    def _group(self, first: AppendJob) -> list[AppendJob]:
        """Take *first* and what can be folded with it out of the lanes, and hold their lanes."""
        if not self._may_go(first, held=set()):
            return []
        group, held = [first], set(first.lanes)
        self._leave(first)
        messages, size = first.messages + _ROTATION, first.bytes
        looked = list(first.lanes)
        for name in looked:  # it grows: a folded job brings its other lanes
            waiting = self._lanes[name].waiting
            while waiting and self._may_go(waiting[0], held) and not _repeats(waiting[0], held):
                job = waiting[0]
                messages, size = messages + job.messages, size + job.bytes
                if messages > GROUP_MESSAGES or size > GROUP_BYTES:
                    break
                group.append(job)
                looked += [other for other in job.lanes if other not in held]
                held.update(job.lanes)
                self._leave(job)
        for name in held:
            self._lanes[name].busy = True
        return group

    def _may_go(self, job: AppendJob, held: set[str]) -> bool:
        for name in job.lanes:
            lane = self._lanes[name]
            if lane.waiting[0] is not job or (lane.busy and name not in held):
                return False
        return True

    def _leave(self, job: AppendJob) -> None:
        for name in job.lanes:
            self._lanes[name].waiting.popleft()


def _repeats(job: AppendJob, held: set[str]) -> bool:
    """Its key or producer is in the group already: it must wait for the first answer."""
    return any(name[1:2] == "\0" and name in held for name in job.lanes)


def is_plain(batch: Batch) -> bool:
    """Whether it is one event and nothing else."""
    drafts = batch.drafts
    return (
        len(drafts) == 1 and batch.key is None and batch.producer is None and not batch.create and batch.expect is None
        and drafts[0].kind is Kind.DATA
    )  # fmt: skip


def lanes_of(batch: Batch, known: KnownHeads) -> tuple[str, ...]:
    """What *batch* may change: its streams, those above the ones that may have to be made, its key, its producer."""
    found: dict[str, None] = {}
    streams = dict.fromkeys(draft.stream for draft in batch.drafts)
    if batch.create:
        streams[batch.create] = None
    for stream in streams:
        found[stream] = None
        while stream != ROOT and known.get(stream) is None and stream.startswith("/"):
            stream = parent(stream)
            found[stream] = None
    if batch.key:
        found["k\0" + "\0".join((batch.key.subject, batch.key.stream, batch.key.key))] = None
    if batch.producer:
        found["p\0" + "\0".join((batch.producer.subject, batch.producer.name))] = None
    return tuple(found)
