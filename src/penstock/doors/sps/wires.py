"""All open wires: one per user and device, replaced in one step, found by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock.api.context import Context
from penstock.core.ledger import Recipient
from penstock.doors.sps.cluster import WireOwners
from penstock.doors.sps.frames import Audiences, EventFrames
from penstock.doors.sps.presence_stream import Presence
from penstock.doors.sps.requests import SubscribeRequest, name_of, patterns_for, tids_of, user_stream
from penstock.doors.sps.wire import DeviceWire
from penstock.http.requests import Request
from penstock.http.timers import Timed
from penstock.settings import SpsSettings
from penstock.wire.http_chunks import chunk
from penstock.wire.sps import FORMATS, REPLACED

DOOR = "sps"

CLAIM_SECONDS: Final = 2.0
"""In a cluster, what a new wire has to say waits until its device is claimed, and no longer than this: a device gets
its events although the nodes cannot agree for a while who has it."""


class UnclaimedWire(Timed):
    """A wire that sends nothing until its device is claimed for this node.

    A device that sees its wire open may at once open another one at another node. If the first claim were still on its
    way then, it could be made after the second claim, and the older wire would win.
    """

    __slots__ = ("_home", "_wire")

    def __init__(self, home: Wires, wire: DeviceWire) -> None:
        super().__init__()
        self._home, self._wire = home, wire

    def expired(self) -> None:
        """It has waited long enough."""
        self._home.let_through(self._wire)


class Reached(msgspec.Struct, frozen=True):
    """An event, and which wires it is for."""

    id: int
    streams: tuple[str, ...]  # that they read
    name: str = ""  # of the one device, if it is for one


class Wires:
    """The wires of this node.

    Everything here happens on the loop without an await, so a subscribe that replaces another is one
    step: there is no moment with two wires, or with none.
    """

    kind: type[DeviceWire] = DeviceWire

    def __init__(
        self, context: Context, settings: SpsSettings, presence: Presence, time: Callable[[], float] | None = None
    ) -> None:
        """*time* is the wheel's, which is the loop's."""
        self.hub, self.ledger, self.wheel = context.hub, context.ledger, context.wheel
        self.time, self.now_ms = time or asyncio.get_running_loop().time, context.clock.now_ms
        self._presence = presence
        self.audiences = Audiences()
        self._open: dict[str, DeviceWire] = {}
        # A server that is alone claims nothing.
        self.owners = None if context.members.alone else WireOwners(context, presence, self)
        self._numbers: dict[str, int] = {}  # of open wires
        self._unclaimed: dict[DeviceWire, UnclaimedWire] = {}
        self._opened = 0
        self._frames = {
            (name, chunked): EventFrames(
                form, chunk if chunked else bytes, self.audiences, self.ledger, self.time,
                limit=settings.encoded, limit_bytes=settings.encoded_bytes,
            )
            for name, form in ((name, make(settings.retry_ms)) for name, make in FORMATS.items())
            for chunked in (True, False)
        }  # fmt: skip

    def __len__(self) -> int:
        return len(self._open)

    # ── finding ───────────────────────────────────────────────────────────────────────────────

    @property
    def all(self) -> list[DeviceWire]:
        """Every open wire of this node."""
        return list(self._open.values())

    def named(self, name: str) -> DeviceWire | None:
        """The wire of the recipient of that name."""
        return self._open.get(name)

    def find(self, uid: str, hid: str) -> DeviceWire | None:
        """The wire of one device."""
        return self._open.get(name_of(uid, hid))

    def number(self, uid: str, hid: str) -> int | None:
        """The number of a device's wire here, if it has one."""
        return self._numbers.get(name_of(uid, hid))

    def claimed(self, uid: str, hid: str) -> None:
        """This node has the device, if it has a wire of it."""
        if (wire := self.find(uid, hid)) is not None:
            self.let_through(wire)

    def replace(self, uid: str, hid: str, number: int) -> None:
        """End that wire: there is a newer one on another node."""
        wire = self.find(uid, hid)
        if wire is not None and self.number(uid, hid) == number:
            wire.end(REPLACED)

    def of_user(self, uid: str) -> list[DeviceWire]:
        """The wires of all devices of a user."""
        return [wire for wire in self.reading([user_stream(uid)]) if wire.uid == uid]

    def reading(self, streams: Iterable[str]) -> list[DeviceWire]:
        """The wires that read any of these streams, each once."""
        feeds = dict.fromkeys(feed for stream in streams for feed in self.hub.readers(stream))
        wires = (self._open.get(feed.who.name) for feed in feeds if feed.who.door == DOOR)
        return [wire for wire in wires if wire is not None]

    def count_reached(self, reached: Reached) -> int:
        """How many wires here have that event, or will in a moment."""
        name = reached.name
        return sum(wire.has(reached.id) for wire in self.reading(reached.streams) if name in ("", wire.who.name))

    # ── opening ───────────────────────────────────────────────────────────────────────────────

    def open(self, request: Request, asked: SubscribeRequest) -> DeviceWire:
        """Begin the answer to a subscribe that passed every check."""
        name = name_of(asked.uid, asked.hid)
        before = self._open.get(name)
        wire = self._make(asked, before.who if before else Recipient(DOOR, name))
        wire.frames = self._frames[asked.form, not request.http10]
        headers = (
            ("Content-Type", wire.frames.form.content_type),
            ("Cache-Control", "no-store"),
            ("X-Accel-Buffering", "no"),
        )
        wire.began = self.beginning(asked.after)
        if before is not None:
            before.tap.step_aside()  # a device that comes back must not be kept out by its own former wire
        wire.tap = request.open(200, headers, owner=wire, watch=self.ledger.enabled)
        self._open[name] = wire
        if self.owners is not None:
            self._hold_back(wire)
            self._opened += 1
            self._numbers[name] = self._opened
            self.owners.changed(asked.uid, asked.hid)
        elif before is None:
            self._presence.note("online", asked.uid, asked.hid, wire.began)
        if before is not None:
            wire.confirmed = before.confirmed
            before.end(REPLACED)
        self.confirm(wire, asked.after or 0)
        self._start(wire, asked.after)
        return wire

    def _hold_back(self, wire: DeviceWire) -> None:
        """Let nothing out before the device is claimed."""
        if wire.tap.hold_back():
            waiting = self._unclaimed[wire] = UnclaimedWire(self, wire)
            self.wheel.arm(waiting, CLAIM_SECONDS)

    def let_through(self, wire: DeviceWire) -> None:
        """Hold back no longer what a wire has to say."""
        if (waiting := self._unclaimed.pop(wire, None)) is not None:
            self.wheel.forget(waiting)
            wire.tap.let_through()

    def beginning(self, after: int | None) -> int:
        """The id after which a wire is fed when its device names *after*, or nothing."""
        return self.hub.position if after is None else min(after, self.hub.position)

    def _make(self, asked: SubscribeRequest, who: Recipient) -> DeviceWire:
        wire = self.kind(self, who, user_stream(asked.uid), asked.hid, asked.topics)
        wire.anti_idle, wire.patience = asked.anti_idle, asked.patience
        wire.narrow(asked.narrow)
        return wire

    def _start(self, wire: DeviceWire, after: int | None) -> None:
        newest = self.hub.position
        form, words = wire.frames.form, wire.frames.words
        wire.say(words(form.opened(wire.uid, wire.hid, tids_of(wire.topics), wire.began, newest)))
        if after is not None and after > newest:
            wire.say(words(form.reset(after, newest)))
        wire.feed = wire.tap.reader = self.hub.start_wire(wire, patterns_for(wire.own, wire.topics), after=wire.began)
        wire.watch_patterns()
        wire.written = wire.opened  # a replay of one event may have been encoded long before
        wire.arm()

    # ── ends and confirmations ────────────────────────────────────────────────────────────────

    def ended(self, wire: DeviceWire) -> None:
        """A wire is over. One that was replaced is not registered any more, and takes nobody offline."""
        name = wire.who.name
        self.let_through(wire)
        if self._open.get(name) is wire:
            del self._open[name]
            if self.owners is None:
                self._presence.note("offline", wire.uid, wire.hid)
            else:
                self._numbers.pop(name, None)
                self.owners.changed(wire.uid, wire.hid)

    def confirm(self, wire: DeviceWire, upto: int) -> None:
        """A device has everything that it was sent up to an id, on whatever node; the ledger keeps that as a position.

        An id that the log has not reached confirms no more than there is.
        """
        upto = min(upto, self.hub.position)
        if upto > wire.confirmed:
            wire.confirmed = upto
            self.ledger.confirm(wire.who, upto)
