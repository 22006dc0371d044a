"""Asks the other workers of this machine, or nodes of this cluster, so that any of them can answer a client for all.

A server of one process has nobody to ask. Who does not answer in time is counted: what it has is then unknown, which is
not the same as that it has nothing. Messages between the nodes of a cluster are small ones, so what may be large
(`/v1/consumers`) is asked among the workers of a machine alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

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


@dataclass(frozen=True, slots=True)
class Answers(Generic[Told]):
    """What the others said."""

    told: list[Told]
    silent: int = 0  # so many did not answer in time, or nothing that could be read


class OtherWorkers:
    """Sends a question to the other workers of this machine, or nodes of this cluster, and answers theirs."""

    def __init__(
        self, bus: Bus | None = None, members: Membership | None = None, find_readers: FindReaders | None = None
    ) -> None:
        """Without a bus and members there is nobody else; workers of one machine know who has a reader."""
        self._answers: dict[str, Answer] = {}
        self._members, self._find_readers = members, find_readers
        self._calls = Calls(bus, "other_workers", self._asked) if bus is not None and members is not None else None

    def answer(self, question: str, answer: Answer) -> None:
        """Answer *question* of another worker with what *answer* returns."""
        self._answers[question] = answer

    @property
    def on_this_machine(self) -> bool:
        """Whether there are other workers of this machine to ask."""
        return self._find_readers is not None

    async def ask(self, question: str, kind: type[Told], about: bytes = b"") -> Answers[Told]:
        """What all others answer within a second, and how many do not."""
        if self._members is None:
            return Answers([])
        others = [node_of(member) for member in self._members.living() if member != self._members.me]
        return await self._ask(others, question, kind, about)

    async def ask_readers(self, streams: Sequence[str], question: str, kind: type[Told], about: bytes) -> Answers[Told]:
        """As `ask`, but only of workers that have a reader of one of *streams*. Mostly there are none to ask."""
        return await self._ask(await self._find_readers(streams) if self._find_readers else (), question, kind, about)

    async def _ask(self, nodes: Sequence[str], question: str, kind: type[Told], about: bytes) -> Answers[Told]:
        if self._calls is None:
            return Answers([])
        calls, read = self._calls, msgspec.msgpack.Decoder(kind).decode
        body = msgspec.msgpack.encode((question, about))
        told = await asyncio.gather(*(calls.ask(node, body, read) for node in nodes))
        found = [one for one in told if one is not None]
        return Answers(found, len(told) - len(found))

    async def _asked(self, body: bytes) -> bytes:
        question, about = msgspec.msgpack.decode(body, type=tuple[str, bytes])
        return msgspec.msgpack.encode(await self._answers[question](about))


def consumers_of(hub: Hub, recipient: str = "") -> list[Consumer]:
    """Everybody who reads from this process now, or those of one name."""
    return [
        Consumer(feed.who.door, feed.who.name, feed.patterns, feed.reached, feed.lag, feed.behind)
        for feed in hub.feeds
        if recipient in ("", feed.who.name)
    ]


async def all_consumers(hub: Hub, other_workers: OtherWorkers, recipient: str = "") -> Answers[Consumer]:
    """Everybody who reads from this machine now; those of one name: from the whole cluster."""
    others: Answers[list[Consumer]] = Answers([])
    if recipient or other_workers.on_this_machine:
        others = await other_workers.ask(CONSUMERS, list[Consumer], recipient.encode())
    return Answers([*consumers_of(hub, recipient), *(one for some in others.told for one in some)], others.silent)
