"""Which node owns a thing, and what happens when that node dies, is too slow, or misses a message.

    sps/wires/7/phone     {"member": "n1:7f3a…", "number": 12, …}        one record a thing, changed by compare-and-set

    n1                         registry                       n2
    claim ──────────────────▶  n1:7f3a, version 5
                               n2:04c1, version 8  ◀──────────  claim (`NEWEST`): the version before named n1
    look  ◀───────────────────────────────────────────────────  "look: version 8" over the bus, until n1 hears or dies
    8 is above our 5: read the record, then `lost(key, mine, now)`
    look  ◀── poller: the record changed            if that message was lost: within a second

The rules:

1. The record is the truth. A message, or a change that the poller saw, only makes a node read the record. So a message
   may be lost, late, doubled or overtaken: one that is about an older version than ours is passed over. One that comes
   while a change of our own is on its way waits until we know our version.
2. An owner is a *member*: a node during one of its lives (`core/liveness.py`). With `NEWEST` the last claim wins. With
   `FREE` a claim succeeds only if nobody owns the thing, or its owner is dead: its member record is gone.
3. The fence: `holds` is False as soon as this node could not show its life for four seconds (`liveness.HOLD_SECONDS`),
   two seconds before anybody can take over from it (`liveness.DEAD_SECONDS`). Ask it before each step that
   only the owner may do.
4. A node that was taken for dead comes back under a new name and holds nothing: `lost` is called for all it had, with
   `now` None. A door that wants to go on claims again with `rule=FREE`: that fails if another node owns it by now.
5. `release` and `write` change our own version only. When they come too late nothing is changed.
6. With `swept` the first of the living removes what dead members owned, and calls it for each.
7. With `writes_alone=False` a server that is alone claims without writing anything down.

A door says how its records look (`RecordForm`): a msgspec Struct and the field in which the owner stands. Records from
before may name a node instead of a member: such an owner counts as dead.

    class WireRecord(msgspec.Struct, frozen=True):
        member: str
        number: int

    self._owned = Ownership(
        context.registry, context.members, "sps/wires/", RecordForm(WireRecord, "member"), rule=Rule.NEWEST,
        bus=context.bus, change_poller=context.change_poller, background=context.background,
        lost=self._lost, swept=self._swept,
    )
    async with self._owned:
        claimed = await self._owned.claim("7/phone", lambda before: WireRecord("", 12), seen=ABSENT)
        claimed.before            # what the record said before us, None if there was none; its owner is being told
        self._owned.holds("7/phone")
        await self._owned.release("7/phone")     # True if it was ours until now

    def _lost(self, key: str, mine: WireRecord, now: WireRecord | None) -> None:
        if now is not None and self._owned.is_elsewhere(now):
            ...                   # end what this node has
        else:
            ...                   # nobody has it: a new name, or somebody removed the record. Claim again with `FREE`

`claim` calls its function with what the record says now, and stores what the function returns. It is called again if
another node changed the record meanwhile; it may refuse (None) or raise. *seen* saves a read: pass what `look` just
returned, or `ABSENT` if there is most likely no record. To change a record that this node does not own, call
`registry.change`, then `tell`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, Final, Generic, Self, TypeVar, cast

import msgspec

from penstock.core.background import Background, Loop
from penstock.core.bus import Bus
from penstock.core.change_watch import ChangePoller, RecordChange
from penstock.core.liveness import Membership, node_of
from penstock.core.registry import NEW, Registry, delete_if, each, put_if
from penstock.errors import PenstockError

RETRY_SECONDS: Final = 0.5
RELEASE_SECONDS: Final = 2.0
AT_ONCE: Final = 32
"""Reads, and messages to losers, that are on their way at once."""

P = TypeVar("P")


class Rule(Enum):
    """Who gets a thing that somebody has."""

    NEWEST = "who claims last"
    FREE = "nobody, while its owner lives"


class RecordForm(Generic[P]):
    """How a door's records look, and where in them the owner stands."""

    def __init__(self, kind: type[P], owner: str) -> None:
        """*kind* is a msgspec Struct, *owner* its field with the member: empty if nobody owns it."""
        self._decoder, self._field = msgspec.json.Decoder(kind), owner

    def decode(self, value: bytes) -> P:
        return self._decoder.decode(value)

    def encode(self, payload: P) -> bytes:
        return msgspec.json.encode(payload)

    def owner(self, payload: P) -> str:
        """The member that has it."""
        owner: str = getattr(payload, self._field)
        return owner

    def owned(self, payload: P, member: str) -> P:
        """The same, of that member."""
        return cast("P", msgspec.structs.replace(cast("msgspec.Struct", payload), **{self._field: member}))


@dataclass(frozen=True, slots=True)
class OwnedRecord(Generic[P]):
    """A record as it was read; without a payload there was none."""

    payload: P | None
    version: int


ABSENT: Final[OwnedRecord[Any]] = OwnedRecord(None, NEW)


@dataclass(frozen=True, slots=True)
class Claimed(Generic[P]):
    """A claim that came through."""

    payload: P
    version: int
    before: P | None  # what the record said until then


@dataclass(frozen=True, slots=True)
class _Holding(Generic[P]):
    """What this node owns."""

    member: str  # as whom
    version: int
    payload: P


class _Look(msgspec.Struct, frozen=True):
    """Says that a record has changed."""

    key: str
    version: int


class Ownership(Generic[P]):
    """What one node owns among the records under one prefix (all wires, all sessions …).

    Use it in `async with` if another living node may take things over (`NEWEST`), or if *lost* or *swept* is given.
    """

    def __init__(
        self,
        registry: Registry,
        members: Membership,
        prefix: str,
        form: RecordForm[P],
        *,
        rule: Rule = Rule.FREE,
        bus: Bus | None = None,
        change_poller: ChangePoller | None = None,
        background: Background | None = None,
        lost: Callable[[str, P, P | None], None] | None = None,
        swept: Callable[[str, P], None] | None = None,
        writes_alone: bool = True,
    ) -> None:
        """*prefix* ends with a slash. *lost* hears the key, what we had written, and what the record says now."""
        self._registry, self._members, self._bus, self._prefix = registry, members, bus, prefix
        self._form, self._rule, self._on_lost, self._on_swept = form, rule, lost, swept
        self._background, self._writes = background or Background(), writes_alone or not members.alone
        self._me = members.me
        self._held: dict[str, _Holding[P]] = {}
        self._leaving: dict[str, _Holding[P]] = {}  # to be released: a release that failed may be tried again
        self._changing: Counter[str] = Counter()  # changes of ours that are on their way
        self._heard: dict[str, int] = {}  # the newest version that was heard of meanwhile
        self._doubted: dict[str, int] = {}  # things of ours whose record is at a newer version than we know of
        self._untold: dict[tuple[str, str], int] = {}  # member and key, and the version that the member lost it to
        self._look, self._telling, self._sweeping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._sweep_due = True
        self._loops: list[Loop] = []
        members.on_change.append(self._members_changed)
        if bus is not None:
            bus.listen(f"{prefix}look", self._told)
        if change_poller is not None:
            change_poller.on_record(prefix, self._record_changed)

    async def __aenter__(self) -> Self:
        if not self._members.alone:
            every, name = self._background.every, self._prefix.rstrip("/")
            self._loops = [
                every(RETRY_SECONDS, f"{name}.look", self._look_at_doubted, wake=self._look),
                every(RETRY_SECONDS, f"{name}.tell", self._tell_losers, wake=self._telling),
            ]
            if self._on_swept is not None:
                self._loops.append(
                    every(RETRY_SECONDS, f"{name}.sweep", self._sweep, wake=self._sweeping, at_once=True)
                )
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*(loop.stop() for loop in self._loops))

    # ── what this node owns ────────────────────────────────────────────────────────────────────

    def holds(self, key: str) -> bool:
        """Whether this node may act, now, as the owner."""
        held = self._held.get(key)
        return held is not None and held.member == self._members.me and self._members.holds

    def mine(self, key: str) -> P | None:
        """What this node has written as the owner, as far as it knows."""
        held = self._held.get(key)
        return held.payload if held is not None else None

    async def claim(
        self,
        key: str,
        decide: Callable[[P | None], P | None],
        *,
        seen: OwnedRecord[P] | None = None,
        rule: Rule | None = None,
    ) -> Claimed[P] | None:
        """Become the owner. *decide* gets the record's payload and returns the new one; None if the claim is refused.

        A server that is alone does not write a record again that is its own already and stays as it is. A call that
        raised or was cancelled may have claimed it: claim again, or release.
        """
        claimed: Claimed[P] | None = None
        with self._change_of(key):
            found, fresh = (seen, False) if seen else (await self.look(key), True)
            while True:
                me, before = self._members.me, found.payload
                if (rule or self._rule) is Rule.FREE and not await self._is_free(before):
                    return None
                if (payload := decide(before)) is None:
                    return None
                payload = self._form.owned(payload, me)
                if fresh and payload == before and self._is_at_rest(key):
                    version: int | None = found.version
                else:
                    version = await self._put(key, payload, found.version)
                if version is None:
                    found, fresh = await self.look(key), True
                    continue
                if before is not None and self.is_elsewhere(before):
                    self.tell(self._form.owner(before), key, version)
                found, fresh = OwnedRecord(payload, version), False
                claimed = claimed or Claimed(payload, version, before)
                if self._members.me == me:  # else the record names a life of this node that is over
                    self._note_held(key, _Holding(me, version, payload))
                    return Claimed(payload, version, claimed.before)

    def _is_at_rest(self, key: str) -> bool:
        """Nobody changes the record now. In a cluster only a write can tell: what was read may be of a moment ago."""
        return self._members.alone and self._changing[key] == 1 and key not in self._leaving

    async def _put(self, key: str, payload: P, version: int) -> int | None:
        """Write the record if it is at that version; returns its new one."""
        if not self._writes:
            return NEW
        record = await put_if(self._registry, self._prefix + key, self._form.encode(payload), version)
        return record.version if record is not None else None

    def _note_held(self, key: str, holding: _Holding[P]) -> None:
        before = self._held.get(key)
        if before is None or before.version <= holding.version:  # answers to two claims may overtake each other
            self._held[key] = holding
        self._leaving.pop(key, None)

    async def _is_free(self, payload: P | None) -> bool:
        if not self._members.holds:
            return False
        owner = self._form.owner(payload) if payload is not None else ""
        return owner in ("", self._members.me) or await self._members.is_dead(owner)

    async def write(self, key: str, payload: P) -> bool:
        """Change what the record of a thing of ours says; False if it is not as we knew it, and nothing was changed.

        Another node has it, and `lost` was told; or it was claimed again from here meanwhile. Where several parts of
        this node may claim a thing, each looks at `mine` before it writes or releases.
        """
        held = self._held.get(key)
        if held is None:
            return False
        payload = self._form.owned(payload, held.member)
        with self._change_of(key):
            version = await self._put(key, payload, held.version)
            if version is not None and key in self._held:
                self._note_held(key, _Holding(held.member, version, payload))
        if version is None:
            await self._look_at(key, held.version + 1)
        return version is not None

    async def release(self, key: str, leave: P | None = None) -> bool:
        """Let go of it, after it was stopped: the record is deleted, or says *leave*. True if it was ours until now.

        When it raises, the record may be ours still: release again.
        """
        held = self._held.pop(key, None) or self._leaving.get(key)
        if held is None or not self._writes:
            return held is not None
        self._leaving[key] = held
        if leave is None:
            gone = await delete_if(self._registry, self._prefix + key, held.version)
        else:
            gone = await self._put(key, leave, held.version) is not None
        if self._leaving.get(key) is held:
            del self._leaving[key]
        return gone

    def forget(self, key: str) -> None:
        """Stop owning it without writing: the record stays, and names this node until somebody changes it."""
        self._held.pop(key, None)

    async def release_all(self) -> None:
        """Let go of everything; what cannot be released in a moment is free when this node is gone."""
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                for key in [*self._held, *self._leaving]:
                    await self.release(key)

    # ── what the registry says ─────────────────────────────────────────────────────────────────

    async def look(self, key: str) -> OwnedRecord[P]:
        """The record as it is now, whoever it names."""
        if not self._writes:
            return OwnedRecord(self.mine(key), NEW)
        record = await self._registry.get(self._prefix + key)
        return ABSENT if record is None else OwnedRecord(self._form.decode(record.value), record.version)

    async def each(self, under: str = "") -> AsyncIterator[tuple[str, OwnedRecord[P]]]:
        """All records whose keys begin with *under*, whoever they name."""
        async for record in each(self._registry, self._prefix + under):
            payload = self._form.decode(record.value)
            yield record.key.removeprefix(self._prefix), OwnedRecord(payload, record.version)

    def is_elsewhere(self, payload: P) -> bool:
        """Whether another node that lives, as far as this one has seen, owns it."""
        owner = self._form.owner(payload)
        return owner != self._members.me and owner in self._members.living()

    # ── hearing that something was lost ────────────────────────────────────────────────────────

    def tell(self, member: str, key: str, version: int) -> None:
        """Have *member* look at the record, until it hears or dies."""
        if self._bus is not None:
            self._untold[member, key] = version
            self._telling.set()

    async def _tell_losers(self) -> None:
        async def tell(member: str, key: str, version: int) -> None:
            if self._bus is not None and member in self._members.living():
                look = msgspec.json.encode(_Look(key, version))
                if not await self._bus.send(node_of(member), f"{self._prefix}look", look):
                    return  # in the next round, then
            if self._untold.get((member, key)) == version:
                del self._untold[member, key]

        await _few_at_once(tell(*loser, version) for loser, version in list(self._untold.items()))

    def _told(self, topic: str, message: bytes) -> None:
        look = msgspec.json.decode(message, type=_Look)
        self._doubt(look.key, look.version)

    def _record_changed(self, change: RecordChange) -> None:
        self._doubt(change.key.removeprefix(self._prefix), change.version)

    def _doubt(self, key: str, version: int) -> None:
        """The record has reached *version*. If that is newer than what this node wrote, check who owns it now."""
        if key in self._changing:
            self._heard[key] = max(version, self._heard.get(key, NEW))
        elif (held := self._held.get(key)) is not None and held.version < version:
            self._doubted[key] = max(version, self._doubted.get(key, NEW))
            self._look.set()

    @contextmanager
    def _change_of(self, key: str) -> Iterator[None]:
        """While a change of ours is on its way, what is heard of the record may be that change: decide afterwards."""
        self._changing[key] += 1
        try:
            yield
        finally:
            self._changing[key] -= 1
            if not self._changing[key]:
                del self._changing[key]
                self._doubt(key, self._heard.pop(key, NEW))

    async def _look_at_doubted(self) -> None:
        doubted, self._doubted = self._doubted, {}
        await _few_at_once(self._look_at(key, version) for key, version in doubted.items())

    async def _look_at(self, key: str, version: int) -> None:
        held = self._held.get(key)
        if held is None:
            return
        try:
            found = await self.look(key)
        except BaseException:
            self._doubt(key, version)
            raise
        is_old = found.payload is not None and found.version < held.version  # an answer of a moment ago
        if is_old or self._held.get(key) is not held or key in self._changing:
            self._doubt(key, version)
        elif found.version != held.version:
            self._lose(key, found.payload)

    def _lose(self, key: str, now: P | None) -> None:
        held = self._held.pop(key)
        if self._on_lost is not None:
            self._on_lost(key, held.payload, now)

    def _members_changed(self) -> None:
        self._sweep_due = True
        self._sweeping.set()
        if self._members.me != self._me:  # the others took us for dead
            self._me = self._members.me
            for key in [key for key, held in self._held.items() if held.member != self._me]:
                self._lose(key, None)

    # ── members that died ──────────────────────────────────────────────────────────────────────

    async def _sweep(self) -> None:
        """Remove what dead members owned, if this node is the first of the living and there is news of members."""
        due, self._sweep_due = self._sweep_due, False
        if not due or self._members.living()[0] != self._members.me:
            return
        dead: dict[str, bool] = {}
        try:
            async for key, found in self.each():
                owner = self._form.owner(found.payload) if found.payload is not None else ""
                if owner and owner not in dead:
                    dead[owner] = await self._members.is_dead(owner)
                if dead.get(owner) and await delete_if(self._registry, self._prefix + key, found.version):
                    self._say_swept(key, found.payload)
        except BaseException:
            self._sweep_due = True
            raise

    def _say_swept(self, key: str, payload: P | None) -> None:
        if self._on_swept is not None and payload is not None:
            self._on_swept(key, payload)


async def _few_at_once(work: Iterable[Awaitable[None]]) -> None:
    """Do it all, some at a time; raises what one of them raised when all are done."""
    rest, errors = iter(work), []
    while some := list(islice(rest, AT_ONCE)):
        errors += [one for one in await asyncio.gather(*some, return_exceptions=True) if one is not None]
    if errors:
        raise errors[0]
