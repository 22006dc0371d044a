"""The worker's side of the link: calls that are answered later, and what the log process tells by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from penstock.core.promise import Promise, failed
from penstock.engines.local.contracts import METHODS
from penstock.engines.local.framed_socket import FramedSocket
from penstock.engines.local.frames import LogFrame, PlainEvents, encode, error_of
from penstock.errors import EngineGone, InputInvalid
from penstock.values import Appended, Batch, Place

log = logging.getLogger("penstock.link")

GONE: Final = "the log process of this machine is gone"
_UNSENDABLE: Final = (UnicodeEncodeError, OverflowError, TypeError, ValueError)


class Call(Promise[Any]):
    """One call that waits for its answer."""

    __slots__ = ("decoder", "number")

    def __init__(self, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        Promise.__init__(self)
        self.decoder, self.number = decoder, 0


class PendingAppend(Promise[Appended]):
    """One batch that waits to be stored."""

    __slots__ = ("stream", "weight")

    stream: str  # of its first draft
    weight: int


class LogCalls(FramedSocket):
    """The log process, as a worker sees it."""

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._calls_open: dict[int, Call] = {}
        self.appending: dict[int, PendingAppend] = {}  # batches that are not stored yet
        self.appending_bytes = 0
        self._leaving = False
        self._forget()
        self._unheard: list[LogFrame] = []  # one: before the welcome nothing is told, and with it comes `listen`
        self.hear: Callable[[LogFrame], None] = self._unheard.append
        self.on_letter: Callable[[str, bytes], bool] = lambda topic, message: False
        self.on_lost: Callable[[], None] = lambda: None

    def _forget(self) -> None:
        self._wanted: list[tuple[int, str]] = []
        self._types: list[str] = []
        self._events: PlainEvents = ([], [], [])
        self._appends: list[tuple[int, msgspec.Raw]] = []
        self._calls: list[tuple[int, str, msgspec.Raw]] = []
        self._hints: list[tuple[str, bytes]] = []
        self._taken: list[tuple[int, bool]] = []
        self._given_up: list[int] = []

    # ── what is told ───────────────────────────────────────────────────────────────────────────

    def make(self) -> object:
        parts = (
            self._wanted, self._types, self._events, self._appends, self._calls, self._hints, self._taken,
            self._given_up, self._leaving,
        )  # fmt: skip
        self._forget()
        return parts

    def close(self) -> None:
        """Say good-bye, and end: the log process kills a worker that goes without a word."""
        self._leaving = True
        self.book()
        super().close()

    def append_event(self, stream: str, body: bytes) -> Promise[Appended]:
        """Have an event stored that asks for nothing else. The name of *stream* is ASCII, so it can be sent."""
        numbers, streams, bodies = self._events
        numbers.append(self._number + 1)
        streams.append(stream)
        bodies.append(body)
        return self._wait_for_append(stream, len(body))

    def append(self, batch: Batch, weight: int) -> Promise[Appended]:
        try:
            self._appends.append((self._number + 1, msgspec.Raw(encode(batch))))
        except _UNSENDABLE as error:
            return failed(InputInvalid("batch", str(error)))
        return self._wait_for_append(batch.drafts[0].stream if batch.drafts else "", weight)

    def _wait_for_append(self, stream: str, weight: int) -> Promise[Appended]:
        self._number += 1
        waiting = self.appending[self._number] = PendingAppend()
        waiting.stream, waiting.weight = stream, weight
        self.appending_bytes += weight
        if not self._booked:
            self.book()
        return waiting

    def contract(self, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """Call a method of a contract."""
        method = METHODS[name]
        return self._begin(name, method.arguments(given, named), method.answer)

    def call(self, name: str, kind: Any, *given: object) -> Call:
        """Call something else, which answers with a *kind*."""
        return self._begin(name, given, msgspec.msgpack.Decoder(kind))

    def _begin(self, name: str, arguments: object, decoder: msgspec.msgpack.Decoder[Any]) -> Call:
        call = Call(decoder)
        try:
            encoded = msgspec.Raw(encode(arguments))
        except _UNSENDABLE as error:  # text that is no text, a number that no log has
            call.fail(InputInvalid(name, str(error)))
            return call
        if not self.is_open:
            call.fail(EngineGone(GONE))
            return call
        self._number = call.number = self._number + 1
        self._calls_open[call.number] = call
        self._calls.append((call.number, name, encoded))
        self.book()
        return call

    async def wait_for(self, call: Call) -> Any:
        """The answer. The log process does no more for a read whose only caller is cancelled here."""
        try:
            return await call
        except asyncio.CancelledError:
            self.give_up(call)
            raise

    def give_up(self, call: Call) -> None:
        """Say that nobody waits for a call any more. What changes something is done nevertheless."""
        if not call.done():
            self._given_up.append(call.number)
            self.book()

    def want(self, pattern: str) -> int:
        """Say that what *pattern* covers is wanted; returns the number under which it is answered."""
        self._number += 1
        self._wanted.append((self._number, pattern))
        self.book()
        return self._number

    def unwant(self, pattern: str) -> None:
        """Say that it is not wanted any more."""
        self._wanted.append((0, pattern))
        self.book()

    def want_types(self, types: tuple[str, ...]) -> None:
        """Say that meta entries of these types are wanted wherever they come."""
        self._types += types
        self.book()

    def hint(self, topic: str, message: bytes) -> None:
        """Give a message to all others."""
        self._hints.append((topic, message))
        self.book()

    # ── what is heard ──────────────────────────────────────────────────────────────────────────

    def listen(self, hear: Callable[[LogFrame], None]) -> None:
        """Have *hear* told of each frame before its answers are given, those that have come included."""
        for frame in self._unheard:
            hear(frame)
        self._unheard.clear()
        self.hear = hear

    def take(self, frame: memoryview) -> None:
        said = _frames.decode(frame)
        self.hear(said)
        for number, id, index, chunk, end, whole in said.appended:
            stored = self.appending.pop(number)
            self.appending_bytes -= stored.weight
            if whole is None:
                place = Place(id, stored.stream, index, chunk, end)
                whole = Appended(1, place, place)
            stored.value = whole
            try:
                stored.settle()
            except Exception as error:  # noqa: BLE001 - a caller's defect must not leave others waiting
                self._report(error)
        for number, answer in said.answers:
            call = self._calls_open.pop(number)
            call.value = call.decoder.decode(answer)
            self._settle(call)
        for failure in said.failures:
            self._fail(failure.number, error_of(failure))
        for number, topic, message in said.letters:
            given = self.on_letter(topic, message)
            if number:
                self._taken.append((number, given))
                self.book()

    def _fail(self, number: int, error: Exception) -> None:
        refused = self.appending.pop(number, None)
        if refused is not None:
            self.appending_bytes -= refused.weight
        waiting = self._calls_open.pop(number) if refused is None else refused
        waiting.error = error
        self._settle(waiting)

    def _settle(self, waiting: Promise[Any]) -> None:
        try:
            waiting.settle()
        except Exception as error:  # noqa: BLE001 - as above
            self._report(error)

    def _report(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "a caller raised at its result", "exception": error})

    def connection_lost(self, error: Exception | None) -> None:
        self.on_lost()
        for number in sorted((*self.appending, *self._calls_open)):
            self._fail(number, EngineGone(GONE))


class Remote:
    """A contract whose every call goes over the link."""

    def __init__(self, link: LogCalls, part: str) -> None:
        self._link, self._part = link, part

    def __getattr__(self, name: str) -> Callable[..., Any]:
        link, full = self._link, f"{self._part}.{name}"
        if full not in METHODS:
            raise AttributeError(name)

        if name == "put" and self._part == "mailbox":  # the one that is awaited by callbacks

            def put(*given: Any, **named: Any) -> Promise[Any]:
                return link.contract(full, given, named)

            return put

        async def call(*given: Any, **named: Any) -> Any:
            return await link.wait_for(link.contract(full, given, named))

        return call


_frames: Final = msgspec.msgpack.Decoder(LogFrame)


async def connect(path: str) -> LogCalls:
    """The link to the log process that listens at *path*."""
    try:
        _, link = await asyncio.get_running_loop().create_unix_connection(LogCalls, path)
    except OSError as error:
        raise EngineGone(f"no log process listens at {path}: {error.strerror or error}") from error
    return link
