"""The engine of a worker: the contracts of `core/`, kept by the log process of the same machine.

    log process        SQLite (or memory): log, mailboxes, registry         `engines/local/log_process.py`
        │ Unix socket
    worker             connections, doors, hub, a ledger of its own         this package

Workers are members as the nodes of a cluster are. The log process knows who lives: a worker is a member from its hello
until its socket is closed, and a process whose socket is closed has ended or is being ended.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self, cast

from penstock.core.background import Background, Failing, Loop
from penstock.core.bus import Receivers
from penstock.core.change_watch import MailboxChange, RecordChange
from penstock.core.mailbox import Mailbox
from penstock.core.metering import Sample
from penstock.core.registry import Registry
from penstock.engines.local.framed_socket import BEAT_SECONDS, SocketPath
from penstock.engines.local.frames import LogFrame, Welcome
from penstock.engines.local.worker_calls import GONE, Call, LogCalls, Remote, connect
from penstock.engines.local.worker_export import WorkerExport
from penstock.engines.local.worker_log import WorkerLog
from penstock.errors import PenstockError
from penstock.settings import LogSettings

ANSWER_SECONDS: Final = 1.0


class WorkerEngine:
    """Log, mailbox, registry and bus of one worker. `async with` connects it."""

    log: WorkerLog
    mailbox: Mailbox
    registry: Registry
    bus: WorkerBus
    export: WorkerExport
    changes: WorkerChanges
    members: WorkerMembers

    def __init__(
        self, path: Path, *, node: str, settings: LogSettings, background: Background | None, selective: bool,
        on_lost: Callable[[], None],
    ) -> None:  # fmt: skip
        self._path, self._node, self._settings, self._selective = path, node, settings, selective
        self._on_lost = on_lost
        self._background = background or Background()
        self._beat: Loop | None = None
        self._asked: Call | None = None
        self.trouble = ""

    async def __aenter__(self) -> Self:
        socket = SocketPath(self._path)
        try:
            link = self._link = await connect(socket.short)
        finally:
            socket.close()
        self._member = f"{self._node}:{secrets.token_hex(4)}"
        link.on_lost = self._lost
        hello = link.call("hello", Welcome, self._node, self._member, not self._selective)
        hello.add_done_callback(self._welcomed)
        await hello
        self._beat = self._background.every(BEAT_SECONDS, "link", self._show_life)
        return self

    def _welcomed(self, hello: Call) -> None:
        """Listen from the frame on that has the welcome.

        After an `await` it would be too late for that frame, and for those that came with it. Each may say who has
        joined meanwhile, which is not said again.
        """
        if hello.error is not None:
            return
        link, settings = self._link, self._settings
        welcome: Welcome = hello.result()
        self.log = WorkerLog(
            link, welcome, selective=self._selective, queue=settings.queue, queue_bytes=settings.queue_bytes
        )
        self.mailbox = cast("Mailbox", Remote(link, "mailbox"))
        self.registry = cast("Registry", Remote(link, "registry"))
        self.bus, self.export, self.changes = WorkerBus(link, self._node), WorkerExport(link), WorkerChanges(link)
        self.members = WorkerMembers(link, self._member, welcome.members)
        link.on_letter = self.bus.give
        link.listen(self._hear)

    async def __aexit__(self, *error: object) -> None:
        if self._beat is not None:
            await self._beat.stop()
        self._link.on_lost = lambda: None
        self._link.close()

    @property
    def queued(self) -> int:
        """Batches that wait to be stored."""
        return len(self._link.appending)

    async def backup(self, directory: Path) -> object:
        """Have the log process copy everything into an empty directory."""
        return await self._link.call("backup", Any, str(directory))

    async def find_readers(self, streams: Sequence[str]) -> list[str]:
        """The other workers that have a reader of any of these streams; none, if the log process does not answer."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found: list[str] = await self._link.call("find_readers", list[str], streams)
        except (PenstockError, TimeoutError):
            return []
        return found

    async def counts(self) -> list[Sample]:
        """What the log process has counted."""
        found: list[Sample] = await self._link.call("counts", list[Sample])
        return found

    def _hear(self, frame: LogFrame) -> None:
        self.trouble = frame.trouble
        self.log.hear(frame)
        if frame.members is not None:
            self.members.hear(frame.members)

    async def _show_life(self) -> None:
        """Say something, and ask what fails in the log process: the loop that tells by itself may be what does."""
        if self._asked is None or self._asked.done():
            self._asked = self._link.call("failing", list[Failing])
            self._asked.add_done_callback(self._hear_failing)
        else:
            self._link.book()

    def _hear_failing(self, asked: Call) -> None:
        if asked.error is None:
            self._background.failing_in_log_process = asked.result()

    def _lost(self) -> None:
        self.trouble = GONE
        self._on_lost()


class WorkerBus(Receivers):
    """`core.bus.Bus` among the workers of one machine: the log process passes messages on."""

    alone = False

    def __init__(self, link: LogCalls, node: str) -> None:
        super().__init__()
        self.node, self._link = node, link

    async def send(self, node: str, topic: str, message: bytes) -> bool:
        if node == self.node:
            return self.give(topic, message)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                given: bool = await self._link.wait_for(self._link.call("send", bool, node, topic, message))
        except (PenstockError, TimeoutError):
            return False
        return given

    async def hint(self, topic: str, message: bytes) -> None:
        self.give(topic, message)
        self._link.hint(topic, message)


class WorkerMembers:
    """`core.liveness.Membership` of a worker: the log process says who lives."""

    alone = False

    def __init__(self, link: LogCalls, me: str, members: Sequence[str]) -> None:
        self._link, self.me, self._living = link, me, tuple(members)
        self.on_change: list[Callable[[], None]] = []

    @property
    def holds(self) -> bool:
        return self._link.is_open

    def living(self) -> tuple[str, ...]:
        return self._living

    async def is_dead(self, member: str) -> bool:
        return member not in self._living and not await self._link.call("is_member", bool, member)

    def hear(self, members: Sequence[str]) -> None:
        """The log process says who is connected."""
        self._living = tuple(sorted({self.me, *members}))
        for change in self.on_change:
            change()


class WorkerChanges:
    """`core.change_watch.Changes` of a worker."""

    def __init__(self, link: LogCalls) -> None:
        self._link = link

    async def look(self, prefixes: Sequence[str]) -> tuple[list[RecordChange], list[MailboxChange]]:
        found: tuple[list[RecordChange], list[MailboxChange]] = await self._link.call(
            "look", tuple[list[RecordChange], list[MailboxChange]], prefixes
        )
        return found


def open_worker_engine(
    path: Path, *, node: str, settings: LogSettings, background: Background | None = None, selective: bool = True,
    on_lost: Callable[[], None] = lambda: None,
) -> WorkerEngine:  # fmt: skip
    """The engine of a worker of the log process that listens at *path*; `async with` connects it.

    A worker that is *selective* is given only what its followers want for; else every entry. *on_lost* is called when
    the link is lost, which does not come back: the process should end.
    """
    return WorkerEngine(path, node=node, settings=settings, background=background, selective=selective, on_lost=on_lost)
