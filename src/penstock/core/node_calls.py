"""Questions from node to node over the bus, each with one answer.

Either may be lost, as everything on the bus: then there is no answer in time, and whoever asked does without. A long
answer goes in parts, since a message of the bus may not be of any size.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, Self, TypeVar

import msgspec

from penstock.core.background import Tasks
from penstock.core.bus import UNREADABLE, Bus
from penstock.errors import PenstockError, TooLarge
from penstock.limits import NODE_ANSWER_BYTES

log = logging.getLogger("penstock.calls")

ANSWER_SECONDS: Final = 1.0
PART_BYTES: Final = 512 * 1024
"""Bytes of an answer that go in one message: NATS takes 1 MiB, if it was told nothing else."""
Answerer = Callable[[bytes], Awaitable[bytes]]
_Told = TypeVar("_Told")


class NodeSilent(PenstockError):
    """Another process or node of this server did not answer in time, so nobody knows what it has."""

    code = "node_silent"
    status = 503
    retry_after = 1
    remedy = "Try again; one that stays silent is given up within seconds, and what it had is known then."

    def __init__(self, count: int = 1) -> None:
        super().__init__(words_of_silence(count))


def words_of_silence(count: int) -> str:
    """Says that so many did not answer."""
    return f"{'one' if count == 1 else count} of the server's processes did not answer"


class _Letter(msgspec.Struct, array_like=True):
    """A question, or a part of the answer with the same number."""

    node: str  # that asks
    number: str
    body: bytes
    place: int = 0  # of so many parts
    parts: int = 1
    too_large: int = 0  # the size of an answer that was not sent for it


class _Awaited:
    """An answer, as far as it has come."""

    __slots__ = ("_parts", "whole")

    def __init__(self) -> None:
        self.whole: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._parts: dict[int, bytes] = {}

    def take(self, letter: _Letter) -> None:
        """Take a part. They may come more than once, and in any order."""
        if self.whole.done():
            return
        if letter.too_large:
            self.whole.set_exception(TooLarge("the answer of a node", letter.too_large, NODE_ANSWER_BYTES))
            return
        self._parts[letter.place] = letter.body
        if len(self._parts) == letter.parts:
            self.whole.set_result(b"".join(self._parts[place] for place in sorted(self._parts)))


class Calls:
    """One topic on which nodes ask each other. Leaving `async with` cancels the answers that are being made."""

    def __init__(self, bus: Bus, topic: str, answerer: Answerer) -> None:
        self._bus, self._topic, self._answerer = bus, topic, answerer
        self._open: dict[str, _Awaited] = {}
        self._answering = Tasks(topic)
        bus.listen(f"{topic}?", self._asked)
        bus.listen(f"{topic}!", self._answered)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._answering.close()

    async def ask(self, node: str, body: bytes, read: Callable[[bytes], _Told]) -> _Told | None:
        """What that node answers, as *read* understands it; None if it does not, not in time, or nothing readable.

        `TooLarge` if the answer is over `NODE_ANSWER_BYTES`.
        """
        number = secrets.token_hex(8)
        awaited = self._open[number] = _Awaited()
        question = msgspec.msgpack.encode(_Letter(self._bus.node, number, body))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if await self._bus.send(node, f"{self._topic}?", question):
                    return read(await awaited.whole)
        except UNREADABLE as error:
            log.warning("call.unreadable", extra={"node": node, "topic": self._topic, "error": str(error)})
        except TimeoutError:
            log.info("call.unanswered", extra={"node": node, "topic": self._topic})
        finally:
            del self._open[number]
        return None

    def _asked(self, topic: str, message: bytes) -> None:
        self._answering.start(self._answer(msgspec.msgpack.decode(message, type=_Letter)))

    async def _answer(self, question: _Letter) -> None:
        try:
            await self._give(question, await self._answerer(question.body))
        except Exception as error:  # it goes without an answer, as a question that was lost
            foreseen = isinstance(error, (PenstockError, *UNREADABLE))
            log.warning("call.failed", extra={"topic": self._topic, "error": str(error)}, exc_info=not foreseen)

    async def _give(self, question: _Letter, answer: bytes) -> None:
        """Send an answer, or that it is too large."""
        too_large = len(answer) if len(answer) > NODE_ANSWER_BYTES else 0
        if too_large:
            log.warning("call.too_large", extra={"topic": self._topic, "bytes": too_large})
            answer = b""
        parts = max(1, -(-len(answer) // PART_BYTES))
        for place in range(parts):
            body = answer[place * PART_BYTES : (place + 1) * PART_BYTES]
            letter = _Letter("", question.number, body, place, parts, too_large)
            if not await self._bus.send(question.node, f"{self._topic}!", msgspec.msgpack.encode(letter)):
                return

    def _answered(self, topic: str, message: bytes) -> None:
        letter = msgspec.msgpack.decode(message, type=_Letter)
        if awaited := self._open.get(letter.number):
            awaited.take(letter)
