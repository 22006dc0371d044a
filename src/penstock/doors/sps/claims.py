"""One wire per user and device over all nodes of a cluster.

A wire opens on its node at once, and then claims its device: a registry record under compare-and-set.

    sps/wires/<uid>/<hid>      {member, number, since_ms}

Whoever writes the record last has the device. It tells the node it took it from, over the bus, and that one
ends its wire with `replaced`. If the message is lost, the node's lookout sees that the record has changed. And it
looks again when it wants to let go, and finds that the record is not its own any more. So a late end of an old
wire never takes the new one offline. When a message comes while the wire's own claim is still on its way, the
versions of the two tell who is newer.

Claims of a node that died count for nothing; the first of the living removes them, and says `offline`.
A server that is alone claims nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

import msgspec

from penstock.core.background import Background, Loop
from penstock.core.bus import Bus
from penstock.core.clock import Clock
from penstock.core.lookout import Lookout, RecordChange
from penstock.core.members import Membership, node_of
from penstock.core.registry import NEW, Registry
from penstock.doors.sps.presence import Presence
from penstock.errors import VersionMismatch
from penstock.limits import PAGE_ENTRIES

log = logging.getLogger("penstock.sps")

PREFIX: Final = "sps/wires/"
REPLACED: Final = "sps.replaced"
WORKERS: Final = 32
"""Claims that are on their way at once; the others wait in line, one place for each device."""
RETRY_SECONDS: Final = 0.5
STOP_SECONDS: Final = 3.0
TELLINGS: Final = 20
_encode = msgspec.json.Encoder().encode


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which member has a device's wire."""

    member: str
    number: int  # of the wire, on its node
    since_ms: int


class _Replaced(msgspec.Struct):
    """Says that a device has a newer wire elsewhere."""

    uid: str
    hid: str
    version: int


class _Held(NamedTuple):
    version: int
    number: int


class Local(Protocol):
    """What is needed of the wires of this node."""

    def number(self, uid: str, hid: str) -> int | None:
        """The number of a device's wire here, if it has one."""
        ...

    def replace(self, uid: str, hid: str, number: int) -> None:
        """End that wire: there is a newer one elsewhere."""
        ...


Device = tuple[str, str]  # uid, hid


class Claims:
    """Sees to the records of this node's wires. Lives in `async with`."""

    def __init__(
        self,
        registry: Registry,
        bus: Bus,
        members: Membership,
        clock: Clock,
        presence: Presence,
        local: Local,
        background: Background | None = None,
        lookout: Lookout | None = None,
    ) -> None:
        self._doubted: set[Device] = set()  # whose records are at a version that is not ours
        self._background = background or Background()
        self._registry, self._bus, self._members, self._clock = registry, bus, members, clock
        self._presence, self._local = presence, local
        self._held: dict[Device, _Held] = {}
        self._waiting: dict[Device, None] = {}
        self._busy: set[Device] = set()
        self._work = asyncio.Semaphore(0)
        self._loops: list[Loop] = []
        self._sweep, self._idle = asyncio.Event(), asyncio.Event()
        self._stopping = False
        self._late: dict[Device, int] = {}  # versions that replaced ours before we knew that it was ours
        self._me = members.me
        self._again: set[Device] = set()  # claimed in a former life of this node
        bus.listen(REPLACED, self._told)
        if lookout is not None:
            lookout.on_record(PREFIX, self._record_changed)

    async def __aenter__(self) -> Self:
        self._members.on_change.append(self._members_changed)
        self._sweep.set()
        forever = self._background.forever
        self._loops = [forever("sps.claims", self._work_once) for _ in range(WORKERS)]
        self._loops.append(forever("sps.sweep", self._sweep_when_due))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of every device whose wire has ended by now."""
        self._stopping = True
        if self._waiting or self._busy:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._idle.wait()
        await asyncio.gather(*(loop.stop() for loop in self._loops))

    def changed(self, uid: str, hid: str) -> None:
        """A device's wire on this node has opened, or ended, or both: see what is to be done."""
        if (uid, hid) not in self._waiting:
            self._waiting[uid, hid] = None
            self._work.release()

    def _members_changed(self) -> None:
        self._sweep.set()
        if self._members.me != self._me:  # the others took us for dead, and what we held counts for nothing
            self._me = self._members.me
            held, self._held = self._held, {}
            for device in held:
                self._again.add(device)
                self.changed(*device)

    async def of_user(self, uid: str) -> list[tuple[str, Claim]]:
        """The devices of a user, on living nodes, with their claims."""
        living = set(self._members.living())
        records = await self._registry.list(f"{PREFIX}{uid}/")
        found = [(record.key.split("/", 3)[3], msgspec.json.decode(record.value, type=Claim)) for record in records]
        return [(hid, claim) for hid, claim in found if claim.member in living]

    async def of_device(self, uid: str, hid: str) -> Claim | None:
        """Which living node has this device."""
        record = await self._registry.get(_key(uid, hid))
        claim = msgspec.json.decode(record.value, type=Claim) if record else None
        return claim if claim and claim.member in self._members.living() else None

    # ── one device ─────────────────────────────────────────────────────────────────────────────

    async def _work_once(self) -> None:
        await self._work.acquire()
        device = next((one for one in self._waiting if one not in self._busy), None)
        if device is None:  # all that wait are being worked on: whoever does it looks again
            return
        del self._waiting[device]
        self._busy.add(device)
        try:
            await self._settle(*device)
        except Exception:
            self._waiting[device] = None
            await asyncio.sleep(RETRY_SECONDS)  # nobody else tries it before
            raise
        finally:
            self._busy.discard(device)
            if device in self._waiting:
                self._work.release()
            elif self._stopping and not self._waiting and not self._busy:
                self._idle.set()

    async def _settle(self, uid: str, hid: str) -> None:
        """Make the record say what is true on this node, unless another node knows better."""
        while True:
            number, held = self._local.number(uid, hid), self._held.get((uid, hid))
            if number == (held.number if held else None):
                self._late.pop((uid, hid), None)
                if (uid, hid) not in self._doubted:
                    return
                await self._check(uid, hid, held)
                continue
            if number is None:
                await self._let_go(uid, hid)
            else:
                await self._take(uid, hid, number, held)

    async def _take(self, uid: str, hid: str, number: int, held: _Held | None) -> None:
        claim = Claim(self._members.me, number, self._clock.now_ms())
        before: Claim | None = None
        expect = held.version if held else NEW
        while True:
            try:
                record = await self._registry.put(_key(uid, hid), _encode(claim), expect=expect)
                break
            except VersionMismatch:
                found = await self._registry.get(_key(uid, hid))
                before = msgspec.json.decode(found.value, type=Claim) if found else None
                expect = found.version if found else NEW
                if (uid, hid) in self._again and before and self._is_elsewhere(before):
                    self._again.discard((uid, hid))  # it went to another node while we were away
                    self._local.replace(uid, hid, number)
                    return
        self._again.discard((uid, hid))
        self._held[uid, hid] = _Held(record.version, number)
        if before is not None and self._is_elsewhere(before):
            await self._tell(before.member, _Replaced(uid, hid, record.version))
        elif held is None or before is not None:
            self._presence.note("online", uid, hid)
        if self._late.pop((uid, hid), 0) > record.version:
            self._local.replace(uid, hid, number)

    def _is_elsewhere(self, claim: Claim) -> bool:
        return claim.member != self._members.me and claim.member in self._members.living()

    async def _tell(self, member: str, replaced: _Replaced) -> None:
        """Tell a node that it lost a device, until it hears it or dies; one that does neither stays untold."""
        for _ in range(TELLINGS):
            if member not in self._members.living():
                return
            if await self._bus.send(node_of(member), REPLACED, _encode(replaced)):
                return
            await asyncio.sleep(RETRY_SECONDS)
        log.warning("sps.replaced_untold", extra={"member": member})

    async def _let_go(self, uid: str, hid: str) -> None:
        """The wire has ended. Only whoever has the device can take it offline."""
        held = self._held[uid, hid]
        try:
            gone = await self._registry.delete(_key(uid, hid), expect=held.version)
        except VersionMismatch:
            gone = False
        self._held.pop((uid, hid), None)
        if gone:
            self._presence.note("offline", uid, hid)

    def _told(self, topic: str, message: bytes) -> None:
        told = msgspec.json.decode(message, type=_Replaced)
        held = self._held.get((told.uid, told.hid))
        number = self._local.number(told.uid, told.hid)
        if held is not None and number == held.number:
            if held.version < told.version:
                self._local.replace(told.uid, told.hid, number)
        elif (told.uid, told.hid) in self._busy:
            # Our own claim is on its way, and may have come before that one or after it: its version will tell.
            self._late[told.uid, told.hid] = max(told.version, self._late.get((told.uid, told.hid), 0))

    def _record_changed(self, change: RecordChange) -> None:
        """What a message may have told already: look at the record if its version is not ours."""
        uid, _, hid = change.key.removeprefix(PREFIX).partition("/")
        held = self._held.get((uid, hid))
        if held is not None and held.version < change.version:
            self._doubted.add((uid, hid))
            self.changed(uid, hid)

    async def _check(self, uid: str, hid: str, held: _Held | None) -> None:
        """End the wire if another node has its device."""
        found = await self._registry.get(_key(uid, hid))
        self._doubted.discard((uid, hid))
        claim = msgspec.json.decode(found.value, type=Claim) if found else None
        if found is None or claim is None or claim.member == self._members.me:
            return
        if held is not None and found.version > held.version:
            self._local.replace(uid, hid, held.number)

    # ── nodes that died ────────────────────────────────────────────────────────────────────────

    async def _sweep_when_due(self) -> None:
        await self._sweep.wait()
        self._sweep.clear()
        try:
            await self._sweep_once()
        except Exception:
            self._sweep.set()  # the next round tries again
            raise

    async def _sweep_once(self) -> None:
        if self._members.living()[0] != self._members.me:
            return
        async for key, version, member in self._claims():
            if member not in self._members.living():
                try:
                    gone = await self._registry.delete(key, expect=version)
                except VersionMismatch:
                    continue
                _, _, uid, hid = key.split("/", 3)
                if gone:
                    self._presence.note("offline", uid, hid)

    async def _claims(self) -> AsyncIterator[tuple[str, int, str]]:
        after = ""
        while records := await self._registry.list(PREFIX, after=after, limit=PAGE_ENTRIES):
            after = records[-1].key
            for record in records:
                yield record.key, record.version, msgspec.json.decode(record.value, type=Claim).member


def _key(uid: str, hid: str) -> str:
    return f"{PREFIX}{uid}/{hid}"
