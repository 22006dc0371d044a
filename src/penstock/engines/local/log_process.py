"""The log process's side: gives the contracts to its workers, and each entry to those that want it.

    worker ── wanted, appends, calls ──▶ ServedWorker ──▶ the engine that keeps the log
    worker ◀── entries, answers ──────── ServedWorker ◀── one frame for each turn of the loop

A worker that reads nothing does not slow down the others: what waits for it is bounded, and over that it is *cut*. Its
process is killed, so that it cannot go on with what only a member may do. `serve` starts it again; its wires reconnect
to the other workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Self

import msgspec

from penstock.core.background import Background, Loop
from penstock.core.change_watch import MailboxChange
from penstock.core.matching import Interest
from penstock.core.storage import Storage
from penstock.engines.local.framed_socket import BEAT_SECONDS, SocketPath
from penstock.engines.local.frames import encode
from penstock.engines.local.served_worker import NewestIds, ServedWorker
from penstock.values import Entry, Kind

POSITION_SECONDS: Final = 0.005
"""After which a worker hears that the log has moved on without an entry for it."""

_META = Kind.META
_STARTED: Final = "workers/started"  # put and deleted at each start, to learn the registry's newest version


class LogServer:
    """Gives one engine to all workers of this machine. Lives in `async with`."""

    def __init__(self, engine: Storage, path: Path, background: Background | None = None) -> None:
        self.engine, self._path = engine, path
        self.background = background or Background()
        self.interest: Interest[ServedWorker] = Interest()
        self.links: dict[ServedWorker, None] = {}  # all who have said who they are
        self.followed = engine.log.followed
        self.newest = NewestIds(self.followed)
        self._version = 0  # no record is at a higher one
        self._listening: asyncio.Server | None = None
        self._later: asyncio.TimerHandle | None = None
        self._beat: Loop | None = None
        self._looked = 0.0
        self.cut = 0  # workers that were cut
        self.appended = 0

    async def __aenter__(self) -> Self:
        self._version = (await self.engine.registry.put(_STARTED, b"")).version + 1
        await self.engine.registry.delete(_STARTED)
        self.engine.log.follow(self._follow)
        self._socket = SocketPath(self._path)
        with suppress(FileNotFoundError):
            self._path.unlink()
        self._listening = await asyncio.get_running_loop().create_unix_server(
            partial(ServedWorker, self), self._socket.short
        )
        self._path.chmod(0o600)
        self._looked = asyncio.get_running_loop().time()
        self._beat = self.background.every(BEAT_SECONDS, "workers", self._look_after)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._beat is not None:
            await self._beat.stop()
        if self._later is not None:
            self._later.cancel()
        if self._listening is not None:
            self._listening.close()
        for link in list(self.links):
            link.close()
        with suppress(FileNotFoundError):
            self._path.unlink()
        self._socket.close()

    # ── members ────────────────────────────────────────────────────────────────────────────────

    def joined(self, link: ServedWorker) -> None:
        """A worker has said who it is. One of the same name is an older life of it."""
        for other in [one for one in self.links if one.node == link.node]:
            other.cut("another one of its name has come")
            self.gone(other)
        self.links[link] = None
        self._members_changed()

    def gone(self, link: ServedWorker) -> None:
        """A worker has no connection any more: it is no member from now on."""
        if link in self.links:
            del self.links[link]
            self._members_changed()

    def members(self) -> list[str]:
        """Everybody who is connected."""
        return sorted(link.member for link in self.links)

    def _members_changed(self) -> None:
        for link in self.links:
            link.members_changed = True
            link.book()

    def link_of(self, node: str) -> ServedWorker | None:
        """The worker of that name."""
        return next((link for link in self.links if link.node == node), None)

    async def _look_after(self) -> None:
        now, trouble = asyncio.get_running_loop().time(), self.engine.trouble
        stood_still = now - self._looked > 3 * BEAT_SECONDS  # this process itself: what workers said is still unread
        self._looked = now
        for link in list(self.links):
            if stood_still:
                link.heard = now
            else:
                link.cut_if_silent(now)
            if link.told_trouble != trouble:
                link.book()

    # ── entries ────────────────────────────────────────────────────────────────────────────────

    def _follow(self, entries: Sequence[Entry]) -> None:
        """Give each entry once to every worker that has somebody for it."""
        newest = {entry.stream: entry.id for entry in entries}
        wanting = {stream: self.interest.find(stream) for stream in newest}
        everything = [link for link in self.links if link.everything]
        if everything or any(wanting.values()) or None in [entry.index for entry in entries]:
            self._give(entries, wanting, everything)
        self.followed = entries[-1].id
        self.newest.add(newest, self.followed)
        self.appended += len(entries)
        if self._later is None and self.links:
            self._later = asyncio.get_running_loop().call_later(POSITION_SECONDS, self._tell_position)

    def _give(
        self, entries: Sequence[Entry], found: dict[str, Collection[ServedWorker]], everything: list[ServedWorker]
    ) -> None:
        for entry in entries:
            wanting = found[entry.stream]
            if entry.index is None and entry.kind is _META and (more := self._want_type(entry)):
                wanting = found[entry.stream] = [*wanting, *more]
            if everything:
                wanting = [*wanting, *everything]
            if wanting:
                encoded = msgspec.Raw(encode(entry))
                for link in wanting:
                    if link.given != entry.id:
                        link.given = entry.id
                        link.give(encoded)

    def _want_type(self, entry: Entry) -> list[ServedWorker]:
        """Workers that want this type of meta entry from any stream; they also get this stream's later entries now."""
        wanting = [link for link in self.links if entry.type in link.types]
        for link in wanting:
            link.want(entry.stream)
        return wanting

    def _tell_position(self) -> None:
        self._later = None
        for link in self.links:
            if link.told < self.followed:
                link.book()

    # ── changes ────────────────────────────────────────────────────────────────────────────────

    def record_changed(self, key: str, version: int | None) -> None:
        """A record was put, or deleted (None)."""
        told = self._version = max(self._version, version) if version is not None else self._version + 1
        for link in self.links:
            link.note_record(key, version or told)

    async def mailbox_changed(self, recipient: str, month: str, next_number: int | None = None) -> None:
        """Something was put into a mailbox, or its head has changed."""
        if next_number is None:
            next_number = (await self.engine.mailbox.head(recipient, month)).next_number
        for link in self.links:
            link.note_mailbox(MailboxChange(recipient, month, next_number))
