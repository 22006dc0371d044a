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
from penstock.engines.local.frames import LogFrame, encode, error_of
from penstock.errors import EngineGone, InputInvalid
from penstock.values import Appended, Batch, Place

log = logging.getLogger("penstock.link")

GONE: Final = "the log process of this machine is gone"
_UNSENDABLE: Final = (UnicodeEncodeError, OverflowError, TypeError, ValueError)


class Call(Promise[Any]):
    """One call that waits for its answer."""

    __slots__ = ("batch", "decoder", "number", "weight")

    def __init__(self, decoder: msgspec.msgpack.Decoder[Any], batch: Batch | None = None, weight: int = 0) -> None:
        Promise.__init__(self)
        self.decoder, self.batch, self.weight = decoder, batch, weight
        self.number = 0


class LogCalls(FramedSocket):
    """The log process, as a worker sees it."""

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._open: dict[int, Call] = {}
        self.queued = self.queued_bytes = 0  # batches that are not stored yet
        self._forget()
        self.hear: Callable[[LogFrame], None] = lambda frame: None  # what the log process tells, before its answers
        self.on_letter: Callable[[str, bytes], bool] = lambda topic, message: False
        self.on_lost: Callable[[], None] = lambda: None

    def _forget(self) -> None:
        self._wishes: list[tuple[int, str]] = []
        self._types: list[str] = []
        self._appends: list[tuple[int, msgspec.Raw]] = []
        self._calls: list[tuple[int, str, msgspec.Raw]] = []
        self._hints: list[tuple[str, bytes]] = []
        self._taken: list[tuple[int, bool]] = []
        self._given_up: list[int] = []

    # ── what is told ───────────────────────────────────────────────────────────────────────────

    def make(self) -> object:
        parts = (self._wishes, self._types, self._appends, self._calls, self._hints, self._taken, self._given_up)
        self._forget()
        return parts

    def append(self, batch: Batch, weight: int) -> Promise[Appended]:
        """Have *batch* stored."""
        try:
            encoded = msgspec.Raw(encode(batch))
        except _UNSENDABLE as error:
            return failed(InputInvalid("batch", str(error)))
        call = self._new(Call(_ANY, batch, weight))
        self._appends.append((call.number, encoded))
        return call

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
        self._calls.append((self._new(call).number, name, encoded))
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

    def _new(self, call: Call) -> Call:
        self._number += 1
        call.number = self._number
        if self.is_open:
            self._open[self._number] = call
            self.queued += call.batch is not None
            self.queued_bytes += call.weight
            self.book()
        else:
            call.fail(EngineGone(GONE))
        return call

    def wish(self, pattern: str) -> int:
        """Say that what *pattern* covers is wanted; returns the number under which it is answered."""
        self._number += 1
        self._wishes.append((self._number, pattern))
        self.book()
        return self._number

    def unwish(self, pattern: str) -> None:
        """Say that it is not wanted any more."""
        self._wishes.append((0, pattern))
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

    def take(self, frame: memoryview) -> None:
        said = _frames.decode(frame)
        self.hear(said)
        for number, id, index, chunk, end, whole in said.appended:
            call = self._open.pop(number)
            if whole is None:
                place = Place(id, call.batch.drafts[0].stream, index, chunk, end)  # type: ignore[union-attr]
                whole = Appended(1, place, place)
            call.value = whole
            self._settle(call)
        for number, answer in said.answers:
            call = self._open.pop(number)
            call.value = call.decoder.decode(answer)
            self._settle(call)
        for failure in said.failures:
            call = self._open.pop(failure.number)
            call.error = error_of(failure)
            self._settle(call)
        for number, topic, message in said.letters:
            given = self.on_letter(topic, message)
            if number:
                self._taken.append((number, given))
                self.book()

    def _settle(self, call: Call) -> None:
        self.queued -= call.batch is not None
        self.queued_bytes -= call.weight
        try:
            call.settle()
        except Exception as error:  # noqa: BLE001 - a caller's defect must not leave others waiting
            self._loop.call_exception_handler({"message": "a caller raised at its result", "exception": error})

    def connection_lost(self, error: Exception | None) -> None:
        waiting, self._open = self._open, {}
        self.on_lost()
        for call in waiting.values():
            call.error = EngineGone(GONE)
            self._settle(call)


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


_ANY: Final = msgspec.msgpack.Decoder()
_frames: Final = msgspec.msgpack.Decoder(LogFrame)


async def connect(path: str) -> LogCalls:
    """The link to the log process that listens at *path*."""
    try:
        _, link = await asyncio.get_running_loop().create_unix_connection(LogCalls, path)
    except OSError as error:
        raise EngineGone(f"no log process listens at {path}: {error.strerror or error}") from error
    return link
