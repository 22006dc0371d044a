"""What a session of a user agent has done for it: values between `webpush_session.py` and whoever performs them.

An `Action` is done at once. A `Job` has to be waited for: the session's worker does one at a time and says how it went
with the method of the session that the job names.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from penstock.wire.webpush import Close, PushMessage


class PushSessionRules(msgspec.Struct, frozen=True):
    """What the settings say. Times are seconds, and 0 stands for never."""

    window: int
    msg_limit: int
    hello_timeout: float
    ping_interval: float
    ping_timeout: float
    ping_least: float


class AgentIdentity(msgspec.Struct, frozen=True):
    """Who a user agent turned out to be, and what the node knows of it."""

    uaid: str
    connected_at: int
    month: str
    previous: str = ""
    channels: frozenset[str] = frozenset()
    saved: bool = False  # it has a router record: from its first register on
    moves: bool = False  # it came with an old month, and goes on to this one when that is empty
    waiting_upto: int = 0  # the highest number in its month when it came: what lay there, and not what came since
    crowded: bool = False  # its mailbox is full: no direct ones until it is empty: unacked ones would be stored, too


class Unacked(msgspec.Struct, frozen=True, gc=False):
    """A notification that waits for its acknowledgement."""

    message: PushMessage
    month: str = ""  # empty for a direct one, of which the storage knows nothing
    number: int = 0


# ── actions ───────────────────────────────────────────────────────────────────────────────────────


class Signal(Enum):
    """Actions that need no more words."""

    START_WORKER = auto()
    AWAIT_WORKER = auto()  # the session ends when its worker has done what was received; the next session waits for it
    PING = auto()
    JOIN_BROADCASTS = auto()
    COUNT_NACK = auto()


class SendFrame(msgspec.Struct, frozen=True, gc=False):
    """Give these bytes to the socket."""

    frame: bytes


class RecordState(msgspec.Struct, frozen=True, gc=False):
    """Tell the ledger what happened to a message."""

    state: str
    version: str
    month: str = ""
    number: int = 0
    reason: str = ""


class Arm(msgspec.Struct, frozen=True, gc=False):
    """Call `expired` in so many seconds."""

    seconds: float


class Leave(msgspec.Struct, frozen=True):
    """The session is over: store what went past the storage and was not acknowledged."""

    unsaved: tuple[PushMessage, ...] = ()


class CloseSocket(msgspec.Struct, frozen=True):
    """Begin the closing handshake."""

    code: Close
    reason: str


Action = Signal | SendFrame | RecordState | Arm | Leave | CloseSocket


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


class Greet(msgspec.Struct, frozen=True):
    """Find out who this is, be its one session: then `identified` and `greeted`. No *uaid*: it is a new one."""

    uaid: str
    broadcasts: dict[str, str]


class SaveChannel(msgspec.Struct, frozen=True):
    """Write the channel down, make its endpoint: then `registered`."""

    channel: str
    key_hash: bytes


class RemoveChannel(msgspec.Struct, frozen=True):
    """Delete the channel with what is stored for it: then `unregistered`."""

    channel: str


class SubscribeBroadcasts(msgspec.Struct, frozen=True):
    """Tell which versions the broadcasts have: then `subscribed`."""

    asked: dict[str, str]


class Settle(msgspec.Struct, frozen=True):
    """Make these acks durable, delete what is stored, tell who wants a receipt: then `settled`."""

    acked: tuple[Unacked, ...]


class ReadPage(msgspec.Struct, frozen=True):
    """Read on in a month: then `page`, or `month_gone`."""

    month: str
    after: int


class Discard(msgspec.Struct, frozen=True):
    """Delete messages by month: their channels are gone, or had more than they may."""

    numbers: dict[str, list[int]]


class MoveMonth(msgspec.Struct, frozen=True):
    """Copy the channels of the month and write the new one into the router record: then `moved`."""

    month: str


class DropAgent(msgspec.Struct, frozen=True):
    """Forget the user agent: it left too many messages of its one channel unread. Then `dropped`."""

    months: tuple[str, ...]


Job = Greet | SaveChannel | RemoveChannel | SubscribeBroadcasts | Settle | ReadPage | Discard | MoveMonth | DropAgent
