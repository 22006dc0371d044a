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
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import ParseResult

import msgspec
from nats.aio.client import DEFAULT_BUFFER_SIZE, Client
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError
from nats.errors import NoServersError

from penstock.engines.jetstream.frames import Frames, Message, Receiver, frame, frames_of_batch
from penstock.errors import DiskFull, EngineGone, OperatorError

log = logging.getLogger("penstock.jetstream")

Answer = Callable[[bytes | None, bytes], bool]  # headers, data; returns whether it was the last one

LOST: Final = b"NATS/1.0 499 connection lost\r\n\r\n"
"""The headers of an answer that never came."""

REQUEST_SECONDS: Final = 5.0
"""For a question to be answered: longer than a change of leaders takes on a healthy network."""

ELECTING_SECONDS: Final = 30.0
"""For a stream to have a leader when a node starts: just after the start of a whole cluster nobody answers for it."""

DEFAULT_PORT: Final = 4222  # NATS' own

CONNECT_SECONDS: Final = 5.0
"""For the first connection. Over it: the server does not start, and says why."""

CLOSING_SECONDS: Final = 2.0
"""For the rest to be sent when a node ends. Over it: it is dropped. Whoever waited for an answer was told `LOST`."""

_FULL: Final = frozenset((10023, 10047, 10054, 10077, 10122))  # of the server, the account, the stream


class Refused(Exception):
    """JetStream said no. `code` is its `err_code`, or the status of an answer without a body."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{code}: {description}")
        self.code, self.description = code, description

    def told(self, what: str) -> OperatorError:
        """As a caller hears it, who wanted *what*: there is no room, or JetStream does not do its work."""
        if self.code in _FULL:
            return DiskFull(f"JetStream has no room: {self.description}")
        return EngineGone(f"JetStream does not {what}: {self}")


class Ack(msgspec.Struct, frozen=True, gc=False):
    """Where JetStream stored a message, or the last one of a batch."""

    seq: int
    stream: str = ""
    batch: str = ""
    count: int = 1
    duplicate: bool = False


class _Problem(msgspec.Struct, frozen=True):
    code: int
    err_code: int = 0
    description: str = ""


class _Outcome(msgspec.Struct, frozen=True):
    error: _Problem | None = None
    seq: int = 0
    stream: str = ""
    batch: str = ""
    count: int = 1
    duplicate: bool = False


_outcomes = msgspec.json.Decoder(_Outcome)


class _Noting(asyncio.StreamReaderProtocol):
    """A stream's protocol that notes its socket as soon as there is one."""

    def __init__(self, reader: asyncio.StreamReader, opened: list[asyncio.BaseTransport]) -> None:
        super().__init__(reader)
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened.append(transport)
        super().connection_made(transport)


class _Socket(TcpTransport):
    """nats-py's transport, whose sockets can be found whenever a call of it was cancelled.

    nats-py connects in a task of its own: what that has opened when its caller is cancelled belongs to nobody.
    """

    def __init__(self, opened: list[asyncio.BaseTransport]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._opened = opened

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        reader = asyncio.StreamReader(limit=buffer_size)
        async with asyncio.timeout(connect_timeout):
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(
                lambda: _Noting(reader, self._opened), uri.hostname or "", uri.port or DEFAULT_PORT
            )
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = asyncio.StreamWriter(transport, protocol, reader, loop)

    async def wait_closed(self) -> None:
        # asyncio has one future for all who wait: without a shield, one who is cancelled cancels it for the others.
        await asyncio.shield(super().wait_closed())  # type: ignore[no-untyped-call]


class _Raw(Client):
    """nats-py's client, with a way around its queues for those who want bytes, and with an end that always comes."""

    def __init__(self) -> None:
        super().__init__()
        self.receivers: dict[int, Receiver] = {}
        self._ps = Frames(self, self.receivers)
        self._opened: list[asyncio.BaseTransport] = []  # sockets that may still be open
        self._ended = False

    async def end(self) -> None:
        """Close for good, within a few seconds whatever the server does. No socket is left open."""
        self._ended = True
        # A server that reads nothing would hold nats-py in two places, without a limit.
        giving_up = asyncio.get_running_loop().call_later(CLOSING_SECONDS, self.abort)
        try:
            await self._stop_reconnecting()
            await self._send_rest()
            if self._flush_queue is not None:  # else it has not come so far that there is anything to close
                await self.close()
        finally:
            giving_up.cancel()
            self._cut()

    def _cut(self) -> None:
        # What an end that was itself cancelled has left; after any other there is nothing to do here.
        self._status = Client.CLOSED
        serving = (self._reading_task, self._ping_interval_task, self._flusher_task, self._reconnection_task)
        for task in (*serving, *(subscription._wait_for_msgs_task for subscription in self._subs.values())):
            if task is not None:
                task.cancel()
        self.abort()

    async def _stop_reconnecting(self) -> None:
        # First, and waited for: nats-py's own close looks for it a tenth of a second, and then goes on beside it.
        task = self._reconnection_task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSING_SECONDS)

    async def _send_rest(self) -> None:
        rest, self._pending, self._pending_data_size = self._pending, [], 0
        if rest and self.is_connected and self._transport is not None:
            with suppress(OSError, RuntimeError):  # the connection has ended meanwhile: its rest is lost with it
                self._transport.writelines(rest)
                await self._transport.drain()  # type: ignore[no-untyped-call]

    async def _attempt_reconnect(self) -> None:
        # A server that hangs reads nothing more: nats-py would wait for the rest to be sent before it goes elsewhere.
        self.abort()
        await super()._attempt_reconnect()

    async def _select_next_server(self) -> None:
        try:
            await super()._select_next_server()
        finally:
            if self._ended:
                self.abort()
        if self._ended:  # a cancel that nats-py has swallowed
            raise NoServersError

    async def _connect_to_server(self, s: Any) -> None:
        self.abort()  # an attempt that failed after the connection was made leaves it open
        s.last_attempt = time.monotonic()
        self._transport = _Socket(self._opened)
        await self._transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])

    def abort(self) -> None:
        """Close every socket at once; what was not sent is lost."""
        for transport in self._opened:
            transport.abort()  # type: ignore[attr-defined]  # of a stream, always
        self._opened.clear()

    def write(self, commands: Sequence[bytes]) -> None:
        """Send without waiting: the flusher that nats-py runs anyway writes it."""
        data = b"".join(commands)
        self._pending.append(data)
        self._pending_data_size += len(data)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())


class Connection:
    """One connection to any of several NATS servers. Lives in `async with`."""

    def __init__(
        self, servers: Sequence[str], *, name: str, credentials: str = "", prefix: str = "penstock", replicas: int = 1
    ) -> None:
        self.client = _Raw()
        self.prefix, self.replicas = prefix, replicas  # of the names and the streams that this engine makes
        self._servers, self._name, self._credentials = list(servers), name, credentials
        self._answers: dict[int, Answer] = {}
        self._number = 0
        self._out: list[bytes] = []
        self._last_error = ""
        self.leaving = False  # this node stops: without a connection nothing is worth to wait for
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def send(self, message: Message, reply: str = "") -> None:
        """Send a message with the rest of this turn. Without a connection it is dropped."""
        self._send([frame(message, reply)])

    def _send(self, frames: list[bytes]) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += frames

    def ask(self, message: Message, answer: Answer) -> int:
        """Send a question; *answer* is called until it says that it was the last. Returns its number."""
        number = self._expect(answer)
        if self.connected:
            self.send(message, f"{self._inbox}{number}")
        return number

    def _expect(self, answer: Answer) -> int:
        self._number = number = self._number + 1
        self._answers[number] = answer
        if not self.connected:
            self._loop.call_soon(self._answer, number, LOST, b"")
        return number

    def ask_batch(self, messages: Sequence[Message], batch: str, answer: Answer) -> int:
        """Send *messages* as one atomic batch under a name that was never used; one answer comes."""
        if len(messages) == 1:
            return self.ask(messages[0], answer)

        def once(headers: bytes | None, data: bytes) -> bool:
            # The first message is answered too: with nothing if it is fine, with an error if the batch is not.
            return (bool(data) or headers is not None) and answer(headers, data)

        number = self._expect(once)
        if self.connected:
            self._send(frames_of_batch(messages, batch, f"{self._inbox}{number}"))
        return number

    def forget(self, number: int) -> None:
        """Do not wait for an answer any more."""
        self._answers.pop(number, None)

    async def request(
        self, subject: str, payload: bytes = b"", *, headers: bytes = b"", within: float = REQUEST_SECONDS
    ) -> tuple[bytes | None, bytes]:
        """Ask and wait for one answer: its headers and data. `EngineGone` if none comes in time."""
        future: asyncio.Future[tuple[bytes | None, bytes]] = self._loop.create_future()

        def answer(headers: bytes | None, data: bytes) -> bool:
            if not future.done():
                future.set_result((headers, data))
            return True

        number = self.ask(Message(subject, payload, headers), answer)
        try:
            async with asyncio.timeout(within):
                found = await future
        except TimeoutError:
            raise EngineGone(f"NATS did not answer {subject} within {within:g} s") from None
        finally:
            self.forget(number)
        if status(found[0]) in (499, 503):
            raise EngineGone(f"NATS cannot answer {subject} now")
        return found

    async def publish(self, message: Message, *, within: float = REQUEST_SECONDS) -> Ack:
        """Store one message. `Refused` if JetStream said no; `EngineGone` leaves the outcome unknown."""
        return read_ack(*await self.request(message.subject, message.payload, headers=message.headers, within=within))

    async def publish_batch(self, messages: Sequence[Message], batch: str, *, within: float = REQUEST_SECONDS) -> Ack:
        """Store *messages* as one atomic batch; errors as for `publish`. The ack is the last message's."""
        future: asyncio.Future[tuple[bytes | None, bytes]] = self._loop.create_future()

        def answer(headers: bytes | None, data: bytes) -> bool:
            if not future.done():
                future.set_result((headers, data))
            return True

        number = self.ask_batch(messages, batch, answer)
        try:
            async with asyncio.timeout(within):
                return read_ack(*await future)
        except TimeoutError:
            raise EngineGone(f"NATS did not acknowledge a batch within {within:g} s") from None
        finally:
            self.forget(number)

    async def api(self, subject: str, question: object = None, *, within: float = REQUEST_SECONDS) -> bytes:
        """Ask JetStream's API (`$JS.API.` is put in front). `Refused` if it answers with an error."""
        payload = b"" if question is None else msgspec.json.encode(question)
        _, data = await self.request(f"$JS.API.{subject}", payload, within=within)
        problem = _outcomes.decode(data).error
        if problem is not None:
            raise Refused(problem.err_code or problem.code, problem.description)
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


def read_ack(headers: bytes | None, data: bytes) -> Ack:
    """What JetStream answered to a publish. `Refused`, or `EngineGone` when nobody took it for certain."""
    if found := status(headers):
        raise EngineGone("the connection was lost" if found == 499 else f"JetStream does not answer ({found})")
    outcome = _outcomes.decode(data)
    if outcome.error is not None:
        raise Refused(outcome.error.err_code or outcome.error.code, outcome.error.description)
    return Ack(outcome.seq, outcome.stream, outcome.batch, outcome.count, outcome.duplicate)
