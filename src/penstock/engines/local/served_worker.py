"""One worker, as the log process sees it: what it wants, the calls it makes, and what waits for it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast, runtime_checkable

import msgspec

from penstock.core.background import Background, Failing
from penstock.core.change_watch import MailboxChange, RecordChange
from penstock.core.export import ExportRange
from penstock.core.followers import followers_failed
from penstock.core.matching import Interest, quick_cover
from penstock.core.metering import Sample, process_samples
from penstock.core.names import is_exact
from penstock.core.promise import Pending, Promise
from penstock.core.storage import Storage
from penstock.engines.local.contracts import CALLS_AT_ONCE as AT_ONCE
from penstock.engines.local.contracts import LETTER, METHODS, PAGE, SCAN, cost_of
from penstock.engines.local.framed_socket import FramedSocket
from penstock.engines.local.frames import AppendAnswer, Failure, Welcome, WorkerFrame, encode, failure
from penstock.engines.local.peer_process import PeerProcess
from penstock.errors import EngineGone, PenstockError
from penstock.values import Appended, Batch, Draft, Entry, PlainEvent

log = logging.getLogger("penstock.workers")

SILENT_SECONDS: Final = 10.0
"""A worker says something each second. One that was silent for so long has stopped, or hangs: it is cut."""
WAITING_BYTES: Final = 256 * 1024 * 1024
"""Bytes that wait for one worker. Over it the worker is cut: it has stopped, or cannot keep up with what it wants."""
UNHURRIED_BYTES: Final = 8 * 1024 * 1024
"""While so many bytes wait for a worker, its next calls are not begun: pages are what is largest."""
PROMISED_BYTES: Final = WAITING_BYTES // 4
"""Bytes that the answers of its calls that have begun may have together. Over it: its next large reads wait. Looked at
one by one, none of them waits for anything, and all of their answers come at once."""
CHANGES: Final = 200_000
"""Records and mailboxes that changed since a worker last looked, which it does twice a second. Over it: it is cut."""
REMEMBERED: Final = 8_192
"""Streams whose newest id is known without a read; twice as many just before the older half is forgotten."""

GIVEN_UP: Final = "nobody waits for it any more"


@runtime_checkable
class AppendsMany(Protocol):
    """A log that has a cheaper way for the appends of one frame."""

    def append_many(self, appends: Sequence[PlainEvent | Batch]) -> Pending[list[Entry | Appended | Exception]]:
        """Append each by itself; one that is refused has its error in its place, a plain event mostly its entry."""
        ...


class QueuedCall(NamedTuple):
    """A call that has not begun."""

    name: str
    arguments: msgspec.Raw
    answer_bytes: int  # of its answer at most, where that can be large


class NewestIds:
    """The newest id of the streams that had an entry lately."""

    def __init__(self, followed: int) -> None:
        self._newer: dict[str, int] = {}
        self._older: dict[str, int] = {}
        self._newer_after = self._older_after = followed

    def add(self, newest: dict[str, int], followed: int) -> None:
        """Note the newest ids of some streams, of entries up to *followed*."""
        self._newer |= newest
        if len(self._newer) >= REMEMBERED:
            self._older, self._older_after = self._newer, self._newer_after
            self._newer, self._newer_after = {}, followed

    def of(self, stream: str) -> int:
        """An id above which the stream has nothing."""
        return self._newer.get(stream) or self._older.get(stream) or self._older_after


class WorkersHome(Protocol):
    """What a worker's link needs of the server that it belongs to (`engines/local/log_process.py`)."""

    engine: Storage
    background: Background
    interest: Interest[ServedWorker]
    links: dict[ServedWorker, None]
    newest: NewestIds
    followed: int
    appended: int
    cut: int

    def joined(self, link: ServedWorker) -> None: ...
    def gone(self, link: ServedWorker) -> None: ...
    def members(self) -> list[str]: ...
    def link_of(self, node: str) -> ServedWorker | None: ...
    def record_changed(self, key: str, version: int | None) -> None: ...
    async def mailbox_changed(self, recipient: str, month: str, next_number: int | None = None) -> None: ...


class ServedWorker(FramedSocket):
    """One worker, as the log process sees it."""

    def __init__(self, server: WorkersHome) -> None:
        super().__init__()
        self._server, self._engine = server, server.engine
        # Looked up once: to ask whether something keeps to a protocol takes as long as ten appends.
        self._appends_many = server.engine.log if isinstance(server.engine.log, AppendsMany) else None
        self.node = self.member = ""
        self.everything = False
        self.types: set[str] = set()
        self.given = self.told = 0  # the newest entry in `_entries`; the position that was told
        self.told_trouble = ""
        self.members_changed = False
        self.heard = self._loop.time()
        self._peer: PeerProcess | None = None
        self._leaving = False
        self._patterns: dict[str, None] = {}
        self._covers: Counter[str] = Counter()  # patterns that stand for some of these, and for how many
        self._forget()
        # By what a call waits for, then by its number.
        self._queues: dict[str, OrderedDict[int, QueuedCall]] = {kind: OrderedDict() for kind in AT_ONCE}
        self._promised_bytes = 0
        self._running: dict[str, dict[int, asyncio.Task[None]]] = {kind: {} for kind in AT_ONCE}
        self._records: dict[str, int] = {}
        self._mailboxes: dict[tuple[str, str], MailboxChange] = {}
        self._prefixes: tuple[str, ...] | None = None
        self._exports: dict[int, AsyncGenerator[bytes, None]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._letters_sent: dict[int, Promise[bool]] = {}
        self._letter = 0

    def _forget(self) -> None:
        self._covered: list[tuple[int, int]] = []
        self._entries: list[msgspec.Raw] = []
        self._appended: list[AppendAnswer] = []
        self._answers: list[tuple[int, msgspec.Raw]] = []
        self._failures: list[Failure] = []
        self._letters: list[tuple[int, str, bytes]] = []

    # ── the socket ─────────────────────────────────────────────────────────────────────────────

    @property
    def pid(self) -> int:
        """Of its process; 0 when it is gone."""
        return self._peer.pid if self._peer is not None else 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = self._peer = PeerProcess(transport.get_extra_info("socket"))
        if peer.user not in (0, os.getuid()):
            log.error("worker.refused", extra={"pid": peer.pid, "uid": peer.user})
            self.abort()
        # uvloop tells `resume_writing` when less waits than this.
        cast("asyncio.WriteTransport", transport).set_write_buffer_limits(UNHURRIED_BYTES)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.gone(self)
        for pattern in (*self._patterns, *self._covers):
            self._server.interest.remove(pattern, self)
        for promise in self._letters_sent.values():
            promise.value = False
            promise.settle()
        under_way = [task for running in self._running.values() for task in running.values()]
        for kind in self._running:
            self._queues[kind].clear()
        for task in under_way:
            task.cancel()
        if self._exports:
            self._closing = self._loop.create_task(self._close_exports(under_way))
        self._forget()
        log.info("worker.gone", extra={"worker": self.node, "pid": self.pid})
        self._end_peer()

    def _end_peer(self) -> None:
        """A worker that has not said good-bye may still run, and have clients: nothing that it does counts any more."""
        if self._peer is not None:
            if self.member and not self._leaving:
                self._peer.kill()
            self._peer.close()
            self._peer = None

    def close(self) -> None:
        self._leaving = True
        super().close()

    def resume_writing(self) -> None:
        for kind in AT_ONCE:
            self._begin_calls(kind)

    def cut(self, why: str) -> None:
        """End this worker: it may not go on as a member."""
        self._server.cut += 1
        log.error("worker.cut", extra={"worker": self.node, "pid": self.pid, "why": why})
        if self._peer is not None:
            self._peer.kill()
        self.abort()

    def cut_if_silent(self, now: float) -> None:
        """End a worker that has said nothing for too long."""
        if now - self.heard > SILENT_SECONDS:
            self.cut(f"it was silent for {SILENT_SECONDS:g} s")

    def make(self) -> object:
        server = self._server
        members = server.members() if self.members_changed else None
        self.told, self.members_changed, self.told_trouble = server.followed, False, self._engine.trouble
        parts = (
            server.followed, self._engine.log.trimmed_upto, self.told_trouble, members, self._covered, self._entries,
            self._appended, self._answers, self._failures, self._letters,
        )  # fmt: skip
        self._forget()
        return parts

    def flush(self) -> None:
        super().flush()
        if self.waiting_bytes > WAITING_BYTES:
            self.cut(f"{WAITING_BYTES:,} bytes wait for it")

    def give(self, entry: msgspec.Raw) -> None:
        """Send it an entry."""
        self._entries.append(entry)
        self.book()

    # ── what it says ───────────────────────────────────────────────────────────────────────────

    def take(self, frame: memoryview) -> None:
        said = _frames.decode(frame)
        self.heard = self._loop.time()
        for number, pattern in said.wanted:
            self._want(number, pattern)
        self.types.update(said.types)
        numbers, streams, bodies = said.events
        events = list(zip(streams, bodies, strict=True))
        if len(events) != len(numbers):
            raise ValueError(f"{len(numbers)} numbers for {len(events)} events")
        if said.appends:
            self._append_in_order([*zip(numbers, events, strict=True), *said.appends])
        elif numbers:
            self._append(numbers, events)
        for topic, message in said.hints:
            for other in self._server.links:
                if other is not self:
                    other.deliver(0, topic, message)
        for number, given in said.taken:
            if promise := self._letters_sent.pop(number, None):
                promise.value = given
                promise.settle()
        for number, name, arguments in said.calls:
            kind, answer_bytes = cost_of(name, arguments)
            self._queues[kind][number] = QueuedCall(name, arguments, answer_bytes)
            self._begin_calls(kind)
        for number in said.given_up:
            self._give_up(number)
        self._leaving = said.leaving

    def want(self, pattern: str) -> None:
        """Send it what *pattern* covers from now on, or more: one that takes long to look up is looked up as another.

        All workers wait for the log process, and the worker itself finds out which of it its readers want.
        """
        cover = quick_cover(pattern)
        if cover != pattern and pattern not in self._patterns:
            self._covers[cover] += 1
        self._patterns[pattern] = None
        self._server.interest.add(cover, self)

    def _want_no_more(self, pattern: str) -> None:
        cover = quick_cover(pattern)
        if self._patterns.pop(pattern, 0) is None and cover != pattern:
            self._covers[cover] -= 1
        if cover not in self._patterns and not self._covers[cover]:
            self._covers.pop(cover, None)
            self._server.interest.remove(cover, self)

    def _want(self, number: int, pattern: str) -> None:
        server = self._server
        if number:
            self.want(pattern)
            since = server.newest.of(pattern) if is_exact(pattern) else server.followed
            self._covered.append((number, since))
            self.book()
        else:
            self._want_no_more(pattern)

    def deliver(self, number: int, topic: str, message: bytes) -> None:
        """Give it a message of another worker."""
        self._letters.append((number, topic, message))
        self.book()

    def _append_in_order(self, numbered: list[tuple[int, PlainEvent | Batch]]) -> None:
        numbered.sort(key=_number)
        self._append([number for number, _ in numbered], [append for _, append in numbered])

    def _append(self, numbers: list[int], appends: Sequence[PlainEvent | Batch]) -> None:
        if self._appends_many is not None:
            self._appends_many.append_many(appends).add_done_callback(partial(self._many_appended, numbers))
        else:
            for number, append in zip(numbers, appends, strict=True):
                batch = Batch((Draft(*append),)) if isinstance(append, tuple) else append
                self._engine.log.append(batch).add_done_callback(partial(self._one_appended, number))

    def _many_appended(self, numbers: list[int], done: Pending[list[Entry | Appended | Exception]]) -> None:
        try:
            answers = done.result()
        except Exception as error:  # noqa: BLE001 - it is told to all who made the calls
            answers = [error] * len(numbers)
        answered = self._appended
        for number, answer in zip(numbers, answers, strict=True):
            if isinstance(answer, Entry):
                answered.append((number, answer.id, answer.index, answer.chunk, answer.offset + answer.size, None))
            else:
                self._appended_at(number, answer)
        self.book()

    def _one_appended(self, number: int, done: Pending[Appended]) -> None:
        try:
            self._appended_at(number, done.result())
        except Exception as error:  # noqa: BLE001 - as above
            self._appended_at(number, error)
        self.book()

    def _appended_at(self, number: int, answer: Appended | Exception) -> None:
        if isinstance(answer, Exception):
            self._failures.append(failure(number, answer))
            return
        place = answer.last
        whole = None if answer.first is place and not answer.repeated else answer
        self._appended.append((number, place.id, place.index, place.chunk, place.end, whole))

    # ── calls ──────────────────────────────────────────────────────────────────────────────────

    def _begin_calls(self, kind: str) -> None:
        queue, running, most = self._queues[kind], self._running[kind], AT_ONCE[kind]
        while queue and len(running) < most and self.waiting_bytes < UNHURRIED_BYTES:
            number, call = next(iter(queue.items()))
            if call.answer_bytes and self._promised_bytes + call.answer_bytes > PROMISED_BYTES:
                return
            del queue[number]
            self._promised_bytes += call.answer_bytes
            task = running[number] = self._loop.create_task(self._answer(number, call.name, call.arguments))
            task.add_done_callback(partial(self._call_done, kind, number, call.answer_bytes))

    def _call_done(self, kind: str, number: int, answer_bytes: int, task: asyncio.Task[None]) -> None:
        del self._running[kind][number]
        self._promised_bytes -= answer_bytes
        if task.cancelled():  # perhaps before its first step, of which it does not know itself
            self._fail(number, EngineGone(GIVEN_UP))
        for one in AT_ONCE if answer_bytes else (kind,):  # what waits for bytes may be of any kind
            self._begin_calls(one)

    def _give_up(self, number: int) -> None:
        """Nobody waits for a call any more: do no more for it. Those that may change something are short."""
        for kind in (PAGE, SCAN, LETTER):
            if self._queues[kind].pop(number, None):
                self._fail(number, EngineGone(GIVEN_UP))
            elif task := self._running[kind].get(number):
                task.cancel()

    def _fail(self, number: int, error: Exception) -> None:
        self._failures.append(failure(number, error))
        self.book()

    async def _answer(self, number: int, name: str, arguments: msgspec.Raw) -> None:
        try:
            answer = msgspec.Raw(encode(await self._perform(name, arguments)))
        except Exception as error:  # whatever it is, who called hears of it
            if not isinstance(error, PenstockError | ValueError):
                log.exception("call.failed", extra={"call": name})
            self._fail(number, error)
        else:
            self._answers.append((number, answer))
            self.book()

    async def _perform(self, name: str, arguments: msgspec.Raw) -> object:
        if (method := METHODS.get(name)) is None:
            kind, call = OTHER_CALLS[name]
            return await call(self, *msgspec.msgpack.decode(arguments, type=kind))
        part = getattr(self._engine, name.partition(".")[0])
        values = method.read(arguments)
        answer = await method.call(part, values)
        await self._note(name, values, answer)
        return answer

    async def _note(self, name: str, values: tuple[Any, ...], answer: Any) -> None:
        """Tell all workers what a call has changed."""
        if name == "registry.put":
            self._server.record_changed(values[0], answer.version)
        elif name == "registry.delete" and answer:
            self._server.record_changed(values[0], None)
        elif name in CHANGING_MAILBOXES:
            next_number = answer[-1].number + 1 if name == "mailbox.put" and answer else None
            await self._server.mailbox_changed(values[0], values[1], next_number)

    async def hello(self, node: str, member: str, everything: bool) -> Welcome:
        self.node, self.member, self.everything = node, member, everything
        self._server.joined(self)
        source = self._engine.log
        return Welcome(
            source.durability, source.server, self._server.followed, source.trimmed_upto, self._server.members()
        )

    async def send(self, node: str, topic: str, message: bytes) -> bool:
        """Give a message to the worker of that name; whether somebody there has listened."""
        other = self._server.link_of(node)
        if other is None:
            return False
        other._letter += 1
        promise = other._letters_sent[other._letter] = Promise()
        other.deliver(other._letter, topic, message)
        return await promise

    async def is_member(self, member: str) -> bool:
        return member in self._server.members()

    async def find_readers(self, streams: Sequence[str]) -> list[str]:
        """The other workers that want any of these streams."""
        server = self._server
        wanting = {link for stream in streams for link in server.interest.find(stream)}
        return [link.node for link in server.links if link is not self and (link in wanting or link.everything)]

    async def counts(self) -> list[Sample]:
        """What the log process has counted."""
        server = self._server
        return [
            ("counter", "appended", "Entries that came into the log.", server.appended, {}),
            ("gauge", "log_queue", "Batches that wait for the writer.", self._engine.queued, {}),
            ("gauge", "workers_connected", "Workers that the log process knows.", len(server.links), {}),
            ("counter", "workers_cut", "Workers that were ended: silent, or too slow.", server.cut, {}),
            followers_failed(self._engine.log.followers),
            *server.background.samples(),
            *process_samples("log"),
        ]

    async def failing(self) -> list[Failing]:
        """The background loops of the log process whose last round failed."""
        return self._server.background.failing

    async def backup(self, directory: str) -> object:
        return await self._engine.backup(Path(directory))

    # ── what has changed ───────────────────────────────────────────────────────────────────────

    def note_record(self, key: str, version: int) -> None:
        if self._prefixes is None or key.startswith(self._prefixes):
            self._records[key] = version
            self._check_changes()

    def note_mailbox(self, change: MailboxChange) -> None:
        self._mailboxes[change.recipient, change.month] = change
        self._check_changes()

    def _check_changes(self) -> None:
        if len(self._records) + len(self._mailboxes) > CHANGES:
            self._records, self._mailboxes = {}, {}
            self.cut(f"it has not looked at {CHANGES:,} changes")

    async def look(self, prefixes: tuple[str, ...]) -> tuple[list[RecordChange], list[MailboxChange]]:
        """What has changed since it looked the last time."""
        self._prefixes = prefixes
        records, self._records = self._records, {}
        mailboxes, self._mailboxes = self._mailboxes, {}
        found = [RecordChange(*pair) for pair in records.items() if pair[0].startswith(prefixes)]
        return found, list(mailboxes.values())

    # ── exports ────────────────────────────────────────────────────────────────────────────────

    async def blocks(self, after: int, upto: int, step: int) -> object:
        return await self._engine.export.blocks(after, upto, step)

    async def export_open(self, number: int, wanted: ExportRange) -> None:
        self._exports[number] = self._engine.export.stream(wanted)

    async def export_next(self, number: int) -> bytes | None:
        """The next piece, when the worker asks for it: so no more than one waits here."""
        return await anext(self._exports[number], None)

    async def export_close(self, number: int) -> None:
        if (stream := self._exports.pop(number, None)) is not None:
            await stream.aclose()

    async def _close_exports(self, calls: Sequence[asyncio.Task[None]]) -> None:
        """The worker is gone: end its exports, which pin the log's file. None is closed while it makes a piece."""
        await asyncio.gather(*calls, return_exceptions=True)
        for number in list(self._exports):
            await self.export_close(number)


CHANGING_MAILBOXES: Final = frozenset(
    f"mailbox.{name}" for name in ("put", "set_channels", "add_channel", "remove_channel", "forget")
)
OTHER_CALLS: Final[dict[str, tuple[Any, Callable[..., Awaitable[object]]]]] = {
    "hello": (tuple[str, str, bool], ServedWorker.hello),
    "send": (tuple[str, str, bytes], ServedWorker.send),
    "is_member": (tuple[str], ServedWorker.is_member),
    "look": (tuple[tuple[str, ...]], ServedWorker.look),
    "backup": (tuple[str], ServedWorker.backup),
    "counts": (tuple[()], ServedWorker.counts),
    "failing": (tuple[()], ServedWorker.failing),
    "find_readers": (tuple[tuple[str, ...]], ServedWorker.find_readers),
    "blocks": (tuple[int, int, int], ServedWorker.blocks),
    "export_open": (tuple[int, ExportRange], ServedWorker.export_open),
    "export_next": (tuple[int], ServedWorker.export_next),
    "export_close": (tuple[int], ServedWorker.export_close),
}
"""Calls that belong to no contract of `core/`, or not in its words: what they are given, and who answers."""

_frames: Final = msgspec.msgpack.Decoder(WorkerFrame)
_number: Final = itemgetter(0)
