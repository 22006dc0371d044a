"""Trickle channels as operators see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from penstock.api.context import Context
from penstock.api.recipients import DISCONNECT, Action, RecipientKind, RecipientView, WaitingPage
from penstock.doors.trickle.channel import LiveChannel
from penstock.doors.trickle.channels import Channels
from penstock.doors.trickle.requests import DOOR


class ChannelRecipients(RecipientKind):
    """The channels that are open on this node."""

    kind, actions = "channel", DISCONNECT
    known_everywhere = False

    def __init__(self, context: Context, channels: Channels) -> None:
        self._context, self._channels = context, channels

    async def each(self) -> AsyncIterator[RecipientView]:
        for channel in self._channels.all:
            yield self._view(channel)

    async def find(self, name: str) -> RecipientView | None:
        channel = self._channels.get(name)
        return self._view(channel) if channel is not None else None

    def _view(self, channel: LiveChannel) -> RecipientView:
        quiet_ms = 1000 * (self._channels.time() - channel.touched)
        stream = (channel.recorder.stream,) if channel.recorder is not None else ()
        readers = sum(len(segment.readers) for segment in channel)
        return RecipientView(
            "channel", channel.name, DOOR, "open", stream, channel.head, 0, "segments",
            since_ms=int(self._context.clock.now_ms() - quiet_ms), connections=readers, actions=DISCONNECT,
        )  # fmt: skip

    async def act(self, view: RecipientView, action: Action) -> None:
        """Close it for good, as its publisher could: readers hear of the end."""
        if (channel := self._channels.get(view.name)) is not None:
            await asyncio.shield(self._channels.close(channel))

    async def waiting(self, view: RecipientView, limit: int) -> WaitingPage:
        """Nothing: readers take segments at their own pace."""
        return WaitingPage([], words="A channel keeps no line: each reader asks for the segment it wants.")
