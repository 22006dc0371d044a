"""Trickle without a network: channels in memory, with the publisher and the subscriber of `client/trickle.py`.

    channels = LocalChannels()
    async with channels.publisher("cam1") as publisher:
        await publisher.send(b"…")
    async for segment in channels.subscriber("cam1", start=0):
        ...

The rules are those of the server: both use `wire/trickle_channel.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Self

from penstock.client.trickle import FAIL, LIVE, ChannelMissing, Closed, SegmentCut, SegmentMissing
from penstock.errors import PenstockError
from penstock.wire import trickle_channel
from penstock.wire.trickle_channel import DELETED, Channel, Keep, Segment, content

KEEP = Keep(5, 64 * 1024 * 1024, 0)


class LocalChannels:
    """Channels of this program."""

    def __init__(self, keep: Keep = KEEP, time: Callable[[], float] = monotonic) -> None:
        self._keep, self.time = keep, time
        self._open: dict[str, Channel] = {}

    def create(self, name: str) -> Channel:
        """The channel, made if there is none."""
        if name not in self._open:
            self._open[name] = Channel(name, self._keep, self.time())
        return self._open[name]

    def get(self, name: str) -> Channel:
        """The channel; raises `ChannelMissing`."""
        if name not in self._open:
            raise ChannelMissing(404, "channel_missing", f"no channel {name!r}")
        return self._open[name]

    def close(self, name: str) -> None:
        """Close a channel: its readers come to the end."""
        self.get(name).close(self.time())
        del self._open[name]

    def publisher(self, name: str, *, create: bool = True) -> LocalPublisher:
        """Somebody who writes the channel."""
        return LocalPublisher(self, name, create=create)

    def subscriber(self, name: str, *, start: int = -1, missing: str = LIVE) -> LocalSubscriber:
        """Somebody who reads it."""
        return LocalSubscriber(self, name, start=start, missing=missing)


class LocalSegment:
    """A segment that is being made."""

    def __init__(self, home: LocalChannels, channel: Channel) -> None:
        self._home, self._channel = home, channel
        self._cut = ""
        self._segment = channel.take(-1, self, home.time(), reset=True)
        self.seq = self._segment.seq

    def cut(self, reason: str) -> None:
        self._cut = reason

    async def write(self, data: bytes) -> None:
        """Add bytes; lets readers run."""
        if self._cut:
            raise Closed(409, "segment_closed", f"segment {self.seq} was {self._cut}")
        if data:
            self._channel.write(self._segment, data, self._home.time())
        await asyncio.sleep(0)

    def finish(self, reason: str = trickle_channel.COMPLETE) -> None:
        """End it."""
        self._channel.finish(self._segment, self._home.time(), reason)


class LocalPublisher:
    """Writes a channel in memory."""

    def __init__(self, home: LocalChannels, name: str, *, create: bool) -> None:
        self._home, self._name, self._create = home, name, create

    async def __aenter__(self) -> Self:
        if self._create:
            self._home.create(self._name)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open between two segments."""

    async def close(self) -> None:
        """Close the channel."""
        self._home.close(self._name)

    @property
    def seq(self) -> int:
        """Of the next segment."""
        return self._home.get(self._name).head

    @asynccontextmanager
    async def segment(self) -> AsyncIterator[LocalSegment]:
        """A segment to write to; complete when the block ends. After an error in the block it is dropped."""
        made = LocalSegment(self._home, self._home.get(self._name))
        try:
            yield made
        except BaseException:
            made.finish(DELETED)
            raise
        made.finish()

    async def send(self, data: bytes) -> int:
        """Publish a whole segment, and return its seq."""
        async with self.segment() as segment:
            await segment.write(data)
        return segment.seq


class LocalReader:
    """One segment on its way in."""

    def __init__(self, channel: Channel, segment: Segment) -> None:
        self._channel, self._segment, self.seq = channel, segment, segment.seq
        self.latest, self.size = channel.head, segment.size
        self.content_type = channel.mime
        self._at = 0
        self._event = asyncio.Event()
        self._dropped = ""
        segment.readers[self] = None

    def moved(self) -> None:
        self._event.set()

    def dropped(self, reason: str) -> None:
        self._dropped = reason
        self._event.set()

    def renumbered(self, segment: Segment) -> None:
        """The channel begins with that one."""
        self._segment, self.seq = segment, segment.seq
        segment.readers[self] = None

    async def begun(self) -> bool:
        """Wait for a first byte, or the end; False if there is nothing and will not be."""
        while not self._segment.begun:
            self._event.clear()
            await self._event.wait()
        return not self._channel.is_over(self._segment)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while not self._dropped:
                self._event.clear()
                while self._at < self._segment.size:
                    framed, self._at = self._segment.piece(self._at)
                    yield content(framed)
                if self._segment.cut:
                    raise SegmentCut(self.seq, self._segment.end)
                if self._segment.end:
                    return
                await self._event.wait()
            raise PenstockError(f"segment {self.seq}: {self._dropped}")
        finally:
            self.release()

    async def read(self) -> bytes:
        """All of it, when it is complete."""
        return b"".join([piece async for piece in self])

    def release(self) -> None:
        """Needed no more."""
        self._channel.release(self._segment, self)


class LocalSubscriber:
    """Reads a channel in memory, segment by segment, until it is closed."""

    def __init__(self, home: LocalChannels, name: str, *, start: int, missing: str) -> None:
        self._home, self._channel, self._missing = home, home.get(name), missing
        self._position = start
        self.skipped = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Whoever stops reading in the middle of a segment lets that go by itself."""

    async def __aiter__(self) -> AsyncIterator[LocalReader]:
        while (segment := await self.next()) is not None:
            yield segment

    async def next(self) -> LocalReader | None:
        """The next segment, when its first byte is there; None when the channel is closed."""
        while True:
            channel = self._channel
            seq = channel.position(self._position)
            segment = channel.find(seq, self._home.time())
            if segment is None:
                if channel.closed:
                    return None
                self._skip(seq)
                continue
            reader = LocalReader(channel, segment)
            if not await reader.begun():
                reader.release()
                return None
            self._position = reader.seq + 1
            return reader

    def seek(self, seq: int) -> None:
        """Go on with another segment."""
        self._position = seq

    def _skip(self, seq: int) -> None:
        channel = self._channel
        if self._missing == FAIL or seq > channel.head:
            raise SegmentMissing(seq, channel.head, channel.oldest)
        wanted = channel.head if self._missing == LIVE else channel.oldest
        self.skipped += wanted - seq
        self._position = wanted
