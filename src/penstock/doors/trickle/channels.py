"""The channels that are open on this node: made, found, swept and closed here; and the feed of their changes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

import msgspec

from penstock.api.context import Context
from penstock.api.shares import SharedRoom, share
from penstock.core.waking import Waking
from penstock.doors.trickle.channel import LiveChannel, Recorder, size_in_log
from penstock.doors.trickle.cluster import ChannelOwners, ChannelRecord, ChannelState, KnownChannel
from penstock.errors import Busy, PenstockError
from penstock.http.timers import Timed
from penstock.limits import BATCH_BYTES
from penstock.settings import TrickleSettings
from penstock.wire import trickle
from penstock.wire.trickle import stream_of
from penstock.wire.trickle_channel import ABANDONED, CLOSED, Keep

log = logging.getLogger("penstock.trickle")

CHANGES_SEGMENTS: Final = 1_000
"""Messages of `_changes` that are kept: a burst of channels must not outrun who reads it. Over it: the oldest go."""

SWEEP_SECONDS = 1.0
CHANGES = "_changes"


class Channels(Timed):
    """All channels of this node. Lives in `async with`."""

    kind: type[LiveChannel] = LiveChannel
    recording: type[Recorder] = Recorder
    ownership: type[ChannelOwners] = ChannelOwners

    def __init__(self, context: Context, settings: TrickleSettings, time: Callable[[], float] | None = None) -> None:
        super().__init__()
        self._context, self.settings, self.wheel = context, settings, context.wheel
        self.time = time or asyncio.get_running_loop().time
        self.owners = self.ownership(context.registry, context.members, self._lost)
        self._open: dict[str, LiveChannel] = {}
        self._left: OrderedDict[str, LiveChannel] = OrderedDict()  # closed a moment ago, in that order
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._places = SharedRoom("trickle.channels", settings.channels)  # of open channels, and of those to come
        self.changed: Callable[[tuple[str, ...], tuple[str, ...]], None] = _nobody  # hears what was added, removed
        self.readers = SharedRoom("trickle.waiting", settings.waiting)  # that wait for a first byte
        self.waking = Waking()  # of readers, when their segment grows
        self.posting = 0  # publishers that are connected to a segment
        self.held = 0  # memory of all channels, as of the last sweep
        self._held_by = Counter[str]()  # and of those of each payer
        self.relayed = 0
        self.timeouts = 0
        self._slow = 0  # of channels that are gone

    async def __aenter__(self) -> Self:
        for record in await self.owners.left_open() if self._context.members.alone else ():
            await self._resume(await self.owners.look(record.name))
        return self

    async def __aexit__(self, *error: object) -> None:
        self.wheel.forget(self)
        with suppress(TimeoutError, PenstockError):
            async with asyncio.timeout(5):
                await self._stop_recording()
        for task in self._closing.values():
            task.cancel()
        await asyncio.gather(*self._closing.values(), return_exceptions=True)

    async def _stop_recording(self) -> None:
        """What is complete goes into the log; the channels stay open, for the next start."""
        for channel in self._open.values():
            if channel.recorder is not None:
                await channel.recorder.emptied()
                channel.recorder.close()

    # ── finding and making ────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self._open)

    def get(self, name: str) -> LiveChannel | None:
        """A channel that is open here."""
        return self._open.get(name)

    def left(self, name: str) -> LiveChannel | None:
        """One that was closed a moment ago: what it has can still be read."""
        return self._left.get(name)

    @property
    def all(self) -> list[LiveChannel]:
        return list(self._open.values())

    def segment_limit(self, channel: LiveChannel) -> int:
        """Bytes that one of its segments may have: a recorded one must fit into a batch."""
        return min(self.settings.segment_bytes, channel.keep.bytes, BATCH_BYTES if channel.record.record else 1 << 62)

    @property
    def slow(self) -> int:
        """Readers that were too slow for their window."""
        return self._slow + sum(channel.slow for channel in self._open.values())

    async def find(self, name: str) -> LiveChannel | KnownChannel:
        """The channel, opened again if it was recorded here or by a node that is gone; else what is known of it."""
        while (channel := self._open.get(name)) is None:
            if (closing := self._closing.get(name)) is not None:
                await asyncio.wait([closing])
                continue
            found = await self.owners.look(name)
            if name in self._closing:
                continue  # it was open, and closed, while we looked
            if found.state is not ChannelState.FREE:
                return self._open.get(name) or found
            channel = await self._resume(found)
            if channel is not None:
                return channel
        return channel

    async def create(self, record: ChannelRecord, *, passing: bool = False) -> LiveChannel | KnownChannel:
        """Open a channel as *record* wants it, unless there is one. Raises `Busy` when there are too many.

        *passing* says that it is gone again if nothing is ever written to it, unless somebody else wants it for good.
        """
        while True:
            found = await self.find(record.name)
            if isinstance(found, LiveChannel):
                found.passing = found.passing and passing
                return found
            if found.state is ChannelState.ELSEWHERE:
                return found
            self._places.check(record.payer)
            # Once a channel was recorded its record stays, and with it the count of its epochs.
            kept = found.record.epoch if found.record is not None else 0
            wanted = msgspec.structs.replace(record, epoch=kept + 1)
            self._places.take(record.payer)
            try:
                claimed = await self.owners.claim(wanted, found)
            finally:
                self._places.leave(record.payer)
            if claimed:
                made = self.kind(wanted, self.time(), gaps=self.settings.gaps)
                made.passing = passing
                return self._open.get(record.name) or self._add(made)

    async def _resume(self, found: KnownChannel) -> LiveChannel | None:
        """Go on with a recorded channel where the log ends; None if somebody else does."""
        record = found.record
        if record is None or not await self.owners.claim(record, found):
            return None
        stream = stream_of(record.name, record.epoch)
        found_head = await self._context.log.head(stream)
        head = found_head.next_index if found_head else 0
        newest = await size_in_log(self._context.log, stream, head - 1) if head else None
        if (channel := self._open.get(record.name)) is not None:
            return channel
        log.info("trickle.resumed", extra={"channel": record.name, "epoch": record.epoch})
        resumed = self.kind(record, self.time(), head=head)
        resumed.newest_in_log = newest
        return self._add(resumed)

    def add_own(self, name: str, mime: str, keep: Keep) -> LiveChannel:
        """A channel that only this server writes, and only this node has."""
        record = ChannelRecord(name, 1, "", keep.segments, keep.bytes, keep.seconds, mime)
        return self._add(self.kind(record, self.time()))

    def _add(self, channel: LiveChannel) -> LiveChannel:
        name = channel.name
        if channel.record.record:
            context = self._context
            channel.recorder = self.recording(
                context.log, context.ledger, self.wheel, stream_of(name, channel.epoch), channel.mime, channel.head,
                lambda: self._taken(channel),
            )  # fmt: skip
        self._open[name] = channel
        self._places.take(channel.record.payer)
        self._left.pop(name, None)
        self.wheel.arm(self, SWEEP_SECONDS)
        self.changed((name,), ())
        return channel

    # ── closing ───────────────────────────────────────────────────────────────────────────────

    def drop_unused(self, channel: LiveChannel) -> None:
        """A segment was refused, or its publisher left: a channel that it made and nobody uses goes with it."""
        if channel.passing and channel.unused:
            self.close(channel)

    def close(self, channel: LiveChannel, reason: str = CLOSED) -> asyncio.Task[None]:
        """Close a channel for good. The task is done when all of it is in the log and its record says so.

        Until then it cannot be opened again: two recorders must not write one epoch. *reason* is the end of segments
        that have begun and are not complete.
        """
        self._forget(channel, reason)
        task = self._closing.get(channel.name)
        if task is None:
            task = self._closing[channel.name] = asyncio.create_task(self._finish(channel))
            task.add_done_callback(lambda task: self._closed(channel.name, task))
        return task

    async def _finish(self, channel: LiveChannel) -> None:
        if channel.recorder is not None:
            await channel.recorder.emptied()
            channel.recorder.close()
        await self.owners.release(channel.name, channel.epoch)

    def _closed(self, name: str, task: asyncio.Task[None]) -> None:
        del self._closing[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("trickle.not_closed", extra={"channel": name, "error": str(error)})

    def _forget(self, channel: LiveChannel, reason: str) -> None:
        if self._open.get(channel.name) is not channel:
            return
        del self._open[channel.name]
        self._places.leave(channel.record.payer)
        channel.closed_at = self.time()
        unused = channel.passing and channel.unused
        channel.close(channel.closed_at, reason)
        self._slow += channel.slow
        channel.slow = 0
        if self.settings.linger and not unused:
            self._left[channel.name] = channel
            # Closed channels are limited like open ones: else a client could fill the memory with ever new names.
            if len(self._left) > self.settings.channels:
                self._left.popitem(last=False)
        self.changed((), (channel.name,))

    def _taken(self, channel: LiveChannel) -> None:
        """Another node has written this epoch on: here it is over."""
        log.error("trickle.lost_channel", extra={"channel": channel.name, "epoch": channel.epoch})
        self._forget(channel, ABANDONED)

    # ── what time does ────────────────────────────────────────────────────────────────────────

    def expired(self) -> None:
        """Once a second, while there is anything."""
        self.wheel.arm(self, SWEEP_SECONDS)  # first: what may fail below must not end it for good
        now, settings = self.time(), self.settings
        for channel in list(self._open.values()):
            channel.sweep(now, settings.abandon)
            if settings.idle and now - channel.touched > settings.idle and not channel.name.startswith("_"):
                log.info("trickle.idle", extra={"epoch": channel.epoch, "head": channel.head})
                self.close(channel, ABANDONED)
        while self._left and now - next(iter(self._left.values())).closed_at > settings.linger:
            self._left.popitem(last=False)
        self._weigh()
        if not self._open and not self._left:
            self.wheel.disarm(self)

    def _weigh(self) -> None:
        self._held_by.clear()
        for channel in (*self._open.values(), *self._left.values()):
            self._held_by[channel.record.payer] += channel.memory
        self.held = self._held_by.total()

    def check_memory(self, channel: LiveChannel) -> None:
        """Raise `Busy` while all channels, or those that whoever made this one has made, take too much."""
        most, payer = self.settings.memory_bytes, channel.record.payer
        if self.held >= most:
            raise Busy("trickle.memory_bytes", most)
        if self._held_by[payer] >= share(most, payer):
            raise Busy("the share of one subject in trickle.memory_bytes", share(most, payer))

    def _lost(self, record: ChannelRecord) -> None:
        """The others took this node for dead: what it had is theirs."""
        channel = self._open.get(record.name)
        if channel is not None and channel.epoch == record.epoch:
            self._taken(channel)


def _nobody(added: tuple[str, ...], removed: tuple[str, ...]) -> None:
    """No feed of changes is wanted."""


class ChangeFeed:
    """Writes the channel `_changes`: which channels come and go, one JSON segment each, first of all itself."""

    def __init__(self, home: Channels) -> None:
        self._home = home
        keep = Keep(CHANGES_SEGMENTS, home.settings.window_bytes, 0)
        self._channel = home.add_own(CHANGES, "application/json", keep)
        home.changed = self.write
        self.write((CHANGES,), ())

    def cut(self, reason: str) -> None:
        """The server itself writes the feed: there is no publisher to tell."""

    def write(self, added: tuple[str, ...], removed: tuple[str, ...]) -> None:
        """Add one message."""
        now = self._home.time()
        segment = self._channel.take(-1, self, now)
        self._channel.write(segment, trickle.changed(added, removed), now)
        self._channel.finish(segment, now)
