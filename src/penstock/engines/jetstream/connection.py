"""One connection to NATS, and quick ways to use it.

nats-py makes a message object, parses its headers and wakes a task for each message that comes, and
validates and encodes headers for each that goes: 28,000 publishes a second with `publish_async`. The two
busy paths of this engine (publishes with their answers, and the follower) need none of that. So a parser
of ours (`frames.py`) hands their bytes over raw, answers come to one shared inbox, and what is sent in one
turn of the loop is one write. Connecting, reconnecting, TLS and credentials stay nats-py's.

    publish / request ──▶ what is sent in one turn is one write ──▶ server
    answer(headers, data) ◀── one inbox, one number per question ◀──

When the connection is lost, every open question is answered with `LOST`: its outcome is unknown, and
whoever asked decides whether asking again is safe.

What is larger than the server takes is refused before it is sent (`TooLarge`): the server would end the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Self

import msgspec
from nats.errors import Error as NatsError

from penstock.engines.jetstream.client import RawClient
from penstock.engines.jetstream.frames import NatsMessage, Receiver, frame, frames_of_batch
from penstock.errors import DiskFull, EngineGone, OperatorError, TooLarge
from penstock.settings import DEFAULTS

log = logging.getLogger("penstock.jetstream")

Answer = Callable[[bytes | None, bytes], bool]  # headers, data; returns whether it was the last one

LOST: Final = b"NATS/1.0 499 connection lost\r\n\r\n"
"""The headers of an answer that never came."""

REQUEST_SECONDS: Final = 5.0
"""For a question to be answered: longer than a change of leaders takes on a healthy network."""

ELECTING_SECONDS: Final = 30.0
"""For a stream to have a leader when a node starts: just after the start of a whole cluster nobody answers for it."""

CONNECT_SECONDS: Final = 5.0
"""For the first connection. Over it: the server does not start, and says why."""

_FULL: Final = frozenset((10023, 10047, 10054, 10077, 10122))  # of the server, the account, the stream


class JetStreamRefused(Exception):
    """JetStream said no. `code` is its `err_code`, or the status of an answer without a body."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{code}: {description}")
        self.code, self.description = code, description

    def told(self, what: str) -> OperatorError:
        """The error for a caller that wanted *what*: no room, or JetStream does not work."""
        if self.code in _FULL:
            return DiskFull(f"JetStream has no room: {self.description}")
        return EngineGone(f"JetStream does not {what}: {self}")


class PubAck(msgspec.Struct, frozen=True, gc=False):
    """Where JetStream stored a message, or the last one of a batch."""

    seq: int
    stream: str = ""
    batch: str = ""
    count: int = 1


class _ApiError(msgspec.Struct, frozen=True):
    code: int
    err_code: int = 0
    description: str = ""


class _ApiAnswer(msgspec.Struct, frozen=True):
    error: _ApiError | None = None


_answers = msgspec.json.Decoder(_ApiAnswer)
_acks = msgspec.json.Decoder(PubAck)


class NatsConnection:
    """One connection to any of several NATS servers. Lives in `async with`."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        name: str,
        credentials: str = "",
        prefix: str = DEFAULTS.log.prefix,
        replicas: int = 1,
    ) -> None:
        self.client = RawClient()
        self.prefix, self.replicas = prefix, replicas  # of the names and the streams that this engine makes
        self._servers, self._name, self._credentials = list(servers), name, credentials
        self._answers: dict[int, Answer] = {}
        self._number = 0
        self._out: list[bytes] = []
        self._last_error = ""
        self.leaving = False  # this node stops: nobody waits for a connection any more
        self.on_lost: list[Callable[[], None]] = []
        self.on_back: list[Callable[[], None]] = []

    async def __aenter__(self) -> Self:
        options: dict[str, Any] = {"reconnect_time_wait": 0.1}  # its type says int, but a wait is any number
        if self._credentials:
            options["user_credentials"] = self._credentials
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self.client.connect(
                    self._servers, name=self._name, connect_timeout=2,
                    max_reconnect_attempts=-1, ping_interval=1, max_outstanding_pings=2, error_cb=self._note,
                    disconnected_cb=self._lost, reconnected_cb=self._back, pending_size=64 << 20, **options,
                )  # fmt: skip
            self._loop = asyncio.get_running_loop()
            self._inbox = self.client.new_inbox() + "."
            self._inbox_size = len(self._inbox)
            await self.listen(self._inbox + "*", self._answered)
        except BaseException as error:  # a start that is cancelled leaves no socket, either
            await self.client.end()
            if isinstance(error, NatsError | OSError | TimeoutError):
                raise self._gone(error) from error
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self._flush()
        try:
            await self.client.end()
        finally:
            self._fail_all()

    @property
    def connected(self) -> bool:
        """Whether there is a server at the other end now."""
        return bool(self.client.is_connected)

    @property
    def hopeless(self) -> bool:
        """This node stops, and no server is there: whoever waits for one is told now."""
        return self.leaving and not self.connected

    @property
    def max_payload(self) -> int:
        """The largest message that the server takes, headers included."""
        return int(self.client.max_payload)

    @property
    def trouble(self) -> str:
        """Why nothing can be sent now; empty when all is well."""
        return "" if self.connected else f"no connection to NATS ({self._last_error or 'trying'})"

    # ── receiving ──────────────────────────────────────────────────────────────────────────────

    async def listen(self, subject: str, receiver: Receiver) -> int:
        """Call *receiver* with the raw parts of each message; returns a number for `unlisten`.

        It must be quick and must not raise. The subscription survives a reconnect.
        """
        subscription = await self.client.subscribe(subject, cb=_ignored)
        number = int(subscription._id)
        self.client.receivers[number] = receiver
        return number

    async def unlisten(self, number: int) -> None:
        """End a subscription."""
        self.client.receivers.pop(number, None)
        subscription = self.client._subs.get(number)
        if subscription is not None and not self.client.is_closed:
            await subscription.unsubscribe()

    # ── sending ────────────────────────────────────────────────────────────────────────────────

    def send(self, message: NatsMessage, reply: str = "") -> None:
        """Send a message with the rest of this turn. Without a connection it is dropped."""
        self._send([frame(message, reply)])

    def _send(self, frames: list[bytes]) -> None:
        limit = self.max_payload
        if max(map(len, frames)) > limit:
            size = max(map(_payload_size, frames))
            if size > limit:
                raise TooLarge("a message to NATS", size, limit)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += frames

    def ask(self, message: NatsMessage, answer: Answer) -> int:
        """Send a question; *answer* is called until it says that it was the last. Returns its number."""
        if self.connected:
            self.send(message, self._next_inbox)
        return self._expect(answer)

    @property
    def _next_inbox(self) -> str:
        """Where the next question's answers come."""
        return f"{self._inbox}{self._number + 1}"

    def _expect(self, answer: Answer) -> int:
        self._number = number = self._number + 1
        self._answers[number] = answer
        if not self.connected:
            self._loop.call_soon(self._answer, number, LOST, b"")
        return number

    def ask_batch(self, messages: Sequence[NatsMessage], batch: str, answer: Answer) -> int:
        """Send *messages* as one atomic batch under a name that was never used; one answer comes."""
        if len(messages) == 1:
            return self.ask(messages[0], answer)

        def once(headers: bytes | None, data: bytes) -> bool:
            # The first message is answered too: with nothing if it is fine, with an error if the batch is not.
            return (bool(data) or headers is not None) and answer(headers, data)

        if self.connected:
            self._send(frames_of_batch(messages, batch, self._next_inbox))
        return self._expect(once)

    def forget(self, number: int) -> None:
        """Do not wait for an answer any more."""
        self._answers.pop(number, None)

    async def request(
        self, subject: str, payload: bytes = b"", *, headers: bytes = b"", within: float = REQUEST_SECONDS
    ) -> tuple[bytes | None, bytes]:
        """Ask and wait for one answer: its headers and data. `EngineGone` if none comes in time."""
        message = NatsMessage(subject, payload, headers)
        found = await self._answer_to(lambda answer: self.ask(message, answer), f"answer {subject}", within)
        if status(found[0]) in (499, 503):
            raise EngineGone(f"NATS cannot answer {subject} now")
        return found

    async def publish(self, message: NatsMessage, *, within: float = REQUEST_SECONDS) -> PubAck:
        """Store one message. `JetStreamRefused` if JetStream said no; `EngineGone` leaves the outcome unknown."""
        return read_ack(*await self.request(message.subject, message.payload, headers=message.headers, within=within))

    async def publish_batch(
        self, messages: Sequence[NatsMessage], batch: str, *, within: float = REQUEST_SECONDS
    ) -> PubAck:
        """Store *messages* as one atomic batch; errors as for `publish`. The ack is the last message's."""
        asked = partial(self.ask_batch, messages, batch)
        return read_ack(*await self._answer_to(asked, "acknowledge a batch", within))

    async def _answer_to(self, ask: Callable[[Answer], int], what: str, within: float) -> tuple[bytes | None, bytes]:
        """Ask something that has one answer, and wait for it. `EngineGone` if none comes in time."""
        future: asyncio.Future[tuple[bytes | None, bytes]] = self._loop.create_future()

        def answer(headers: bytes | None, data: bytes) -> bool:
            if not future.done():
                future.set_result((headers, data))
            return True

        number = ask(answer)
        try:
            async with asyncio.timeout(within):
                return await future
        except TimeoutError:
            raise EngineGone(f"NATS did not {what} within {within:g} s") from None
        finally:
            self.forget(number)

    async def api(self, subject: str, question: object = None, *, within: float = REQUEST_SECONDS) -> bytes:
        """Ask JetStream's API (`$JS.API.` is put in front). `JetStreamRefused` if it answers with an error."""
        payload = b"" if question is None else msgspec.json.encode(question)
        _, data = await self.request(f"$JS.API.{subject}", payload, within=within)
        _check_accepted(data)
        return data

    # ── inside ─────────────────────────────────────────────────────────────────────────────────

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self.connected:
            self.client.write(out)

    def _answered(self, subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
        self._answer(int(subject[self._inbox_size :]), headers, data)

    def _answer(self, number: int, headers: bytes | None, data: bytes) -> None:
        answer = self._answers.get(number)
        if answer is not None and answer(headers, data):
            self._answers.pop(number, None)

    def _fail_all(self) -> None:
        for number in list(self._answers):
            self._answer(number, LOST, b"")

    async def _lost(self) -> None:
        if self.client.is_closed:
            return
        log.warning("nats.lost", extra={"error": self._last_error})
        self._fail_all()
        for call in self.on_lost:
            call()

    async def _back(self) -> None:
        url = self.client.connected_url
        log.info("nats.back", extra={"server": url.netloc if url else ""})
        for call in self.on_back:
            call()

    async def _note(self, error: Exception) -> None:
        self._last_error = str(error) or type(error).__name__

    def _gone(self, error: Exception) -> EngineGone:
        gone = EngineGone(f"no NATS server answers at {', '.join(self._servers)}: {error or self._last_error}")
        gone.remedy = "Start the NATS servers, or correct log.engine and log.credentials."
        return gone


async def _ignored(message: object) -> None:
    """Raw subscriptions never get here; nats-py wants a callback."""


def _payload_size(frame: bytes) -> int:
    """Bytes of a frame that count as the message's: all but its first line and the end of the last."""
    return len(frame) - frame.index(b"\r\n") - 4


def status(headers: bytes | None) -> int:
    """The status in the first line of *headers*; 0 if there is none."""
    if headers is None or headers[8:9] != b" ":
        return 0
    digits = headers[9:12]
    return int(digits) if digits.isdigit() else 0


def header(headers: bytes | None, name: bytes) -> bytes:
    """One header's value; empty if it is not there."""
    if headers is None:
        return b""
    _, found, rest = headers.partition(b"\r\n" + name + b": ")
    return rest.partition(b"\r\n")[0] if found else b""


def read_ack(headers: bytes | None, data: bytes) -> PubAck:
    """What JetStream answered to a publish. Raises `JetStreamRefused`, or `EngineGone` if it may not be stored."""
    if found := status(headers):
        raise EngineGone("the connection was lost" if found == 499 else f"JetStream does not answer ({found})")
    if b'"error"' in data:
        _check_accepted(data)
    return _acks.decode(data)


def _check_accepted(data: bytes) -> None:
    """Raise `JetStreamRefused` if an answer of JetStream's API is an error."""
    error = _answers.decode(data).error
    if error is not None:
        raise JetStreamRefused(error.err_code or error.code, error.description)
