"""Asks the other workers of this machine, so that any worker can answer a client for all of them.

A server of one process has nobody to ask. Nodes of a cluster do not ask each other: each answers for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from penstock.core.bus import Bus
from penstock.core.hub import Hub
from penstock.core.liveness import Membership, node_of
from penstock.core.node_calls import Calls

Told = TypeVar("Told")
Answer = Callable[[bytes], Awaitable[Any]]
"""Gives an answer; it is told what the question is about, if that was said."""
FindReaders = Callable[[Sequence[str]], Awaitable[list[str]]]
"""Tells which other nodes have a reader of any of these streams."""
CONSUMERS: Final = "consumers"
FLUSH: Final = "flush"


class Consumer(msgspec.Struct, frozen=True):
    """A live reader of the log: who it is, what it reads, and how far behind it is."""

    door: str
    recipient: str
    streams: tuple[str, ...]
    position: int
    lag: int
    behind: bool


class OtherWorkers:
    """Sends a question to the other workers of this machine, and answers theirs."""

    def __init__(
        self, bus: Bus | None = None, members: Membership | None = None, find_readers: FindReaders | None = None
    ) -> None:
        """Without a bus and members there is nobody else."""
        self._answers: dict[str, Answer] = {}
        self._members, self._find_readers = members, find_readers
        self._calls = Calls(bus, "other_workers", self._asked) if bus is not None and members is not None else None

    def answer(self, question: str, answer: Answer) -> None:
        """Answer *question* of another worker with what *answer* returns."""
        self._answers[question] = answer

    @property
    def alone(self) -> bool:
        """Whether there is nobody to ask: this server is one process."""
        return self._calls is None

    async def ask(self, question: str, kind: type[Told]) -> list[Told]:
        """What all others answer. One that is silent for a second is left out."""
        if self._members is None:
            return []
        others = [node_of(member) for member in self._members.living() if member != self._members.me]
        return await self._ask(others, question, kind)

    async def ask_readers(self, streams: Sequence[str], question: str, kind: type[Told], about: bytes) -> list[Told]:
        """As `ask`, but only of workers that have a reader of one of *streams*. Mostly there are none to ask."""
        return await self._ask(await self._find_readers(streams) if self._find_readers else (), question, kind, about)

    async def _ask(self, nodes: Sequence[str], question: str, kind: type[Told], about: bytes = b"") -> list[Told]:
        if self._calls is None:
            return []
        calls, read = self._calls, msgspec.msgpack.Decoder(kind).decode
        body = msgspec.msgpack.encode((question, about))
        told = await asyncio.gather(*(calls.ask(node, body, read) for node in nodes))
        return [one for one in told if one is not None]

    async def _asked(self, body: bytes) -> bytes:
        question, about = msgspec.msgpack.decode(body, type=tuple[str, bytes])
        return msgspec.msgpack.encode(await self._answers[question](about))


def consumers_of(hub: Hub) -> list[Consumer]:
    """Everybody who reads from this process now."""
    return [
        Consumer(feed.who.door, feed.who.name, feed.patterns, feed.reached, feed.lag, feed.behind) for feed in hub.feeds
    ]


async def all_consumers(hub: Hub, other_workers: OtherWorkers) -> list[Consumer]:
    """Everybody who reads from this machine now."""
    others = await other_workers.ask(CONSUMERS, list[Consumer])
    return [*consumers_of(hub), *(one for some in others for one in some)]
