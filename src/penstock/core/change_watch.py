"""Sees what other nodes have changed, whether or not a message told of it.

Messages between nodes may be lost, late, doubled or out of order (`core/bus.py`). What they tell of is in the registry
and in the mailboxes by then, so twice a second a node asks the engine which records and mailboxes have changed, and
tells its doors. A door that got the message before finds nothing new. So a lost message costs about a second, and a
node with ten thousand idle connections asks no more often than one with none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, Self, TypeVar

from penstock.core.background import Background, Loop

Change = TypeVar("Change")
LOOK_SECONDS: Final = 0.5


class RecordChange(NamedTuple):
    """A record was put or deleted."""

    key: str
    version: int  # of the record, or one that is above all it had


class MailboxChange(NamedTuple):
    """Something was put into a mailbox, or its channels or position were changed."""

    recipient: str
    month: str
    next_number: int


class Changes(Protocol):
    """What an engine that several nodes share tells each of them."""

    async def look(self, prefixes: Sequence[str]) -> tuple[list[RecordChange], list[MailboxChange]]:
        """What has changed since the last call that returned, of records with these prefixes and of all mailboxes.

        Of several changes of one thing only the last is told. One that was made a moment ago may be told by the
        next call. Prefixes end with a slash, and are the same in every call.
        """
        ...


HearRecord = Callable[[RecordChange], None]
HearMailbox = Callable[[MailboxChange], None]


class ChangePoller:
    """Polls the engine for changes, and calls the registered functions. Register all of them before you enter it."""

    def __init__(
        self, changes: Changes | None = None, background: Background | None = None, seconds: float = LOOK_SECONDS
    ) -> None:
        """Without *changes* nobody else can change anything: the server is alone."""
        self._changes, self._background, self._seconds = changes, background or Background(), seconds
        self._records: dict[str, list[HearRecord]] = {}
        self._mailboxes: list[HearMailbox] = []
        self._loop: Loop | None = None

    async def __aenter__(self) -> Self:
        if self._changes is not None:
            self._loop = self._background.every(self._seconds, "change_poller", self.look)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._loop is not None:
            await self._loop.stop()

    def on_record(self, prefix: str, hear: HearRecord) -> None:
        """Call *hear* when a record has changed whose key begins with *prefix*; own changes are told as well."""
        self._records.setdefault(prefix, []).append(hear)

    def on_mailbox(self, hear: HearMailbox) -> None:
        """Call *hear* when a mailbox has changed; own changes are told as well."""
        self._mailboxes.append(hear)

    async def look(self) -> None:
        """Ask once, and tell everybody; raises what one of them raised when all have heard."""
        if self._changes is None:
            return
        records, mailboxes = await self._changes.look(tuple(self._records))
        errors: list[Exception] = []
        for record in records:
            for prefix, hearers in self._records.items():
                if record.key.startswith(prefix):
                    _tell(hearers, record, errors)
        for mailbox in mailboxes:
            _tell(self._mailboxes, mailbox, errors)
        if errors:
            raise errors[0]


def _tell(hearers: Sequence[Callable[[Change], None]], change: Change, errors: list[Exception]) -> None:
    for hear in hearers:
        try:
            hear(change)
        except Exception as error:  # noqa: BLE001 - raised when the others have heard
            errors.append(error)
