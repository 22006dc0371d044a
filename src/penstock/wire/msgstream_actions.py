"""What a session of the message stream is made of, and what its state machine asks for (`msgstream_session.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec

from penstock.values import Entry, Item


class SessionRecord(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A session as the registry keeps it."""

    digest: str  # of the secret half of its key
    created_ms: int
    expires_ms: int
    ttl: int  # seconds
    month: str  # of its mailbox
    base: int  # an item's number less its pack's id
    after: int  # the log id up to which followed entries are in the mailbox, if its head says no more
    owner: str = msgspec.field(default="", name="node")  # the member that serves its connections
    follow: tuple[str, ...] = ()
    meta: msgspec.Raw = msgspec.Raw(b"null")
    former: str = ""  # the month it left: another node may have put something there at the last moment
    ended: str = ""  # why it is over; what is left of it is being cleared away


class SessionRules(msgspec.Struct, frozen=True):
    """What is the same for all sessions of a node."""

    packs: int  # that wait in a session; then it takes no more
    bytes: int  # of emitted ones
    resend_all: bool = False  # a WebSocket gets all that is unconfirmed with each new pack

    def has_room(self, packs: int, size: int, new_bytes: int) -> bool:
        """An emitted pack of so many bytes may wait beside so many others. One that is alone always may."""
        return packs < self.packs and (packs == 0 or size + new_bytes <= self.bytes)


class PendingPack(msgspec.Struct, frozen=True, gc=False):
    """What is known of a pack that waits to be confirmed: all but its text."""

    message_id: str
    stream: str  # of a followed entry; empty for an emitted pack
    entry_id: int
    size: int


Numbered = tuple[int, PendingPack]
Body = tuple[int, bytes | Entry]  # a pack's number, and its text or the entry it is made of


def pending(item: Item) -> Numbered:
    """A pack without its text."""
    return item.number, PendingPack(item.message_id, item.channel, item.entry_id or 0, len(item.body))


class StreamConnection(Protocol):
    """A client's connection. A poll takes one delivery of all that waits; a short one does not wait for it."""

    @property
    def transport(self) -> str:
        """SHORT, LONG or WEBSOCKET: this is all that decisions are made by."""
        ...

    @property
    def full(self) -> bool:
        """It takes nothing now; its session is told when it does."""
        ...

    def send(self, delivery: bytes, packs: Sequence[Numbered]) -> None: ...
    def wait(self) -> None: ...
    def end(self, reason: str, error: Exception | None) -> None: ...


# ── actions ────────────────────────────────────────────────────────────────────────────────────


class SendPacks(NamedTuple):
    """Give packs to a connection; for a poll that is the end."""

    connection: StreamConnection
    bodies: list[Body]
    packs: list[Numbered]


class WaitForPacks(NamedTuple):
    """Let a long poll wait."""

    connection: StreamConnection


class EndConnection(NamedTuple):
    """End a connection: another took its place, or the session ended for a reason, or something went wrong."""

    connection: StreamConnection
    reason: str = ""
    error: Exception | None = None


class StartFeed(NamedTuple):
    """Read the followed streams after an id."""

    after: int


class RefreshPacks(NamedTuple):
    """Read what the mailbox has after a number."""

    after: int


class ConfirmPacks(NamedTuple):
    """Tell the ledger that packs are `acked`, and when that is durable remove them from the mailbox."""

    packs: list[Numbered]


class ChangeMonth(NamedTuple):
    """Go on in another month's mailbox, unless packs come meanwhile."""

    month: str


class StoreEntries(NamedTuple):
    """Make packs of entries and move the read position behind them, if it is where it was."""

    entries: Sequence[Entry]
    expect: int


class FetchPacks(NamedTuple):
    """Read the texts of packs after a number: all of them, or a page."""

    connection: StreamConnection
    after: int
    upto: int  # the newest pack there is
    whole: bool


class PlainAction(Enum):
    """Actions that need nothing to be said about them."""

    WRITE_LIFE = "write down how long the session lives"
    RESUME_FEED = "the session takes entries again"
    STOP_FEED = "it takes none any more"
    BECOME_QUIET = "nobody is connected any more"
    FORGET = "the session is over here"


Action = (
    SendPacks | WaitForPacks | EndConnection | StartFeed | RefreshPacks | ConfirmPacks | ChangeMonth | StoreEntries
    | FetchPacks | PlainAction
)  # fmt: skip
