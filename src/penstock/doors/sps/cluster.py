"""One wire per user and device over all nodes of a cluster, and calls to the node that has it.

A wire claims its device (`core/ownership.py`): whoever claims last has it. Its answer goes out when the claim is made
(`wires.py`), so of two wires that were opened one after the other the second wins, at whatever nodes.

    sps/wires/<uid>/<hid>      {member, number, since_ms}

The node that lost the device ends its wire with `replaced`. A wire that has ended lets go of its own claim only, so
a late end never takes the newer wire offline. The devices of a node that died go offline: the first of the
living says so. A server that is alone claims nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus
from itertools import islice
from typing import Final, Protocol, Self

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.core.all_workers import Answers
from penstock.core.liveness import node_of
from penstock.core.node_calls import Calls, NodeSilent
from penstock.core.ownership import ABSENT, RETRY_SECONDS, Ownership, RecordForm, Rule
from penstock.doors.sps.presence_stream import Presence
from penstock.doors.sps.requests import Topics
from penstock.doors.sps.wire import WireBehind, offline
from penstock.errors import NotFound, PenstockError, TooLarge
from penstock.limits import PATTERNS

AT_ONCE: Final = 32
"""Devices whose claims are on their way at once; the others wait until these are made."""
STOP_SECONDS: Final = 3.0


class WireRecord(msgspec.Struct, frozen=True):
    """Which member has a device's wire."""

    member: str
    number: int  # of the wire, on its node
    since_ms: int


class LocalWires(Protocol):
    """What is needed of the wires of this node."""

    def number(self, uid: str, hid: str) -> int | None:
        """The number of a device's wire here, if it has one."""
        ...

    def claimed(self, uid: str, hid: str) -> None:
        """The record says what is true here: if the device has a wire, it has been claimed."""
        ...

    def replace(self, uid: str, hid: str, number: int) -> None:
        """End that wire: there is a newer one elsewhere."""
        ...


class WireOwners:
    """Which node has which device. Lives in `async with`."""

    def __init__(self, context: Context, presence: Presence, local: LocalWires) -> None:
        self._members, self._clock, self._background = context.members, context.clock, context.background
        self._presence, self._local = presence, local
        self._owned = Ownership(
            context.registry, context.members, "sps/wires/", RecordForm(WireRecord, "member"), rule=Rule.NEWEST,
            bus=context.bus, change_poller=context.change_poller, background=context.background,
            lost=self._lost, swept=self._swept,
        )  # fmt: skip
        self._waiting: dict[str, None] = {}  # devices whose wires have changed
        self._busy: set[str] = set()  # devices that a worker sees to, which looks again before it is done
        self._unsure: set[str] = set()  # something failed, so the record may be ours or not: tried again
        self._former: dict[str, int] = {}  # wires whose claim counts no more: not to be taken from another node
        self._wake, self._round = asyncio.Event(), asyncio.Lock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._owned)
        loop = self._background.every(RETRY_SECONDS, "sps.claims", self._settle_all, wake=self._wake)
        self._stack.push_async_callback(loop.stop)
        return self

    async def __aexit__(self, *error: object) -> None:
        """Let go of every device whose wire has ended by now."""
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._settle_all()
        await self._stack.aclose()

    def changed(self, uid: str, hid: str) -> None:
        """A device's wire on this node has opened, or ended, or both: see what is to be done."""
        key = f"{uid}/{hid}"
        if key not in self._busy:
            self._waiting[key] = None
            self._wake.set()

    async def of_user(self, uid: str) -> dict[str, str]:
        """The members that have devices of a user, by device; living ones only."""
        living = set(self._members.living())
        found = [(key.partition("/")[2], record.payload) async for key, record in self._owned.each(f"{uid}/")]
        return {hid: record.member for hid, record in found if record is not None and record.member in living}

    async def of_device(self, uid: str, hid: str) -> str | None:
        """The living member that has this device."""
        record = (await self._owned.look(f"{uid}/{hid}")).payload
        return record.member if record is not None and record.member in self._members.living() else None

    # ── one device ─────────────────────────────────────────────────────────────────────────────

    async def _settle_all(self) -> None:
        """See to all devices that wait, some at a time; raises what went wrong with one of them."""
        errors: list[BaseException] = []
        async with self._round:
            self._waiting.update(dict.fromkeys(self._unsure))
            while not errors and (keys := list(islice(self._waiting, AT_ONCE))):
                for key in keys:
                    del self._waiting[key]
                settled = await asyncio.gather(*map(self._try_to_settle, keys), return_exceptions=True)
                errors += [one for one in settled if one is not None]
        if errors:
            raise errors[0]

    async def _try_to_settle(self, key: str) -> None:
        self._busy.add(key)
        try:
            await self._settle(key)
        except BaseException:
            self._unsure.add(key)
            raise
        finally:
            self._busy.discard(key)

    async def _settle(self, key: str) -> None:
        """Make the record say what is true on this node, unless another node knows better."""
        uid, _, hid = key.partition("/")
        if key in self._unsure and self._local.number(uid, hid) is None:
            await self._owned.claim(key, self._if_ours)
        self._unsure.discard(key)
        while True:
            number, mine = self._local.number(uid, hid), self._owned.mine(key)
            if number == (mine.number if mine else None):
                self._former.pop(key, None)
                self._local.claimed(uid, hid)
                return
            if number is None:
                if await self._owned.release(key):
                    self._presence.note("offline", uid, hid)
            elif mine is not None:
                await self._owned.write(key, self._record(number))
            else:
                await self._claim(key, number)

    def _if_ours(self, record: WireRecord | None) -> WireRecord | None:
        return record if record is not None and record.member == self._members.me else None

    def _record(self, number: int) -> WireRecord:
        return WireRecord(self._members.me, number, self._clock.now_ms())

    async def _claim(self, key: str, number: int) -> None:
        uid, _, hid = key.partition("/")
        rule = Rule.FREE if self._former.get(key) == number else Rule.NEWEST
        claimed = await self._owned.claim(key, lambda _: self._record(number), seen=ABSENT, rule=rule)
        if claimed is not None:
            if claimed.before is None or not self._owned.is_elsewhere(claimed.before):
                self._presence.note("online", uid, hid)
        elif self._members.holds:  # it went to another node while we were away
            self._local.replace(uid, hid, number)
        else:
            await asyncio.sleep(RETRY_SECONDS)

    def _lost(self, key: str, mine: WireRecord, now: WireRecord | None) -> None:
        """Another node has the device, or nobody: the others took us for dead, or somebody removed the record."""
        uid, _, hid = key.partition("/")
        if now is not None and self._owned.is_elsewhere(now):
            self._local.replace(uid, hid, mine.number)
        else:
            self._former[key] = mine.number
            self.changed(uid, hid)

    def _swept(self, key: str, record: WireRecord) -> None:
        uid, _, hid = key.partition("/")
        self._presence.note("offline", uid, hid)


# ── from node to node ──────────────────────────────────────────────────────────────────────────


class WireCall(msgspec.Struct):
    """Something that only the node with the wire can do. Whoever asked was allowed to."""

    verb: str  # subsist, join, leave, replace, online, counts
    uid: str
    hid: str
    caller: Caller
    topics: Topics = ()
    upto: int | None = None


class CallAnswer(msgspec.Struct):
    """Its answer: a status as in HTTP, and a body."""

    status: int
    body: msgspec.Raw = msgspec.Raw(b"null")


class RemoteWires:
    """Has calls performed by the nodes whose wires they are about. Lives in `async with`."""

    def __init__(self, context: Context, owners: WireOwners, perform: Callable[[WireCall], Awaitable[bytes]]) -> None:
        """*perform* does what another node asks of this one."""
        self._members, self._owners, self._perform = context.members, owners, perform
        self._calls = Calls(context.bus, "sps.rooms", self._answer)

    async def __aenter__(self) -> Self:
        await self._calls.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._calls.__aexit__(*error)

    async def ask_owner(self, call: WireCall) -> bytes:
        """What the node with the wire answers; raises what it raised. `NodeSilent` if it does not answer."""
        member = await self._owners.of_device(call.uid, call.hid)
        if member is None:
            raise offline(call.uid, call.hid)
        told = await self._ask(member, call)
        if told is None:
            raise NodeSilent
        if told.status == HTTPStatus.NOT_FOUND:
            raise offline(call.uid, call.hid)
        if told.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise TooLarge("topics", msgspec.json.decode(told.body, type=int), PATTERNS)
        if told.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise WireBehind
        return bytes(told.body)

    async def ask_owners(self, call: WireCall) -> list[bytes]:
        """The answers of the other nodes that have the user's devices, or the one named. `NodeSilent` without one."""
        devices = await self._owners.of_user(call.uid)
        answers = await self._ask_all({member for hid, member in devices.items() if call.hid in ("", hid)}, call)
        if answers.silent:
            raise NodeSilent(answers.silent)
        return answers.told

    async def ask_everybody(self, call: WireCall) -> list[bytes]:
        """The answers of all other nodes, as far as they answer."""
        return (await self._ask_all(set(self._members.living()), call)).told

    async def _ask_all(self, members: set[str], call: WireCall) -> Answers[bytes]:
        others = sorted(members - {self._members.me})
        told = await asyncio.gather(*(self._ask(member, call) for member in others))
        found = [bytes(answer.body) for answer in told if answer is not None]
        return Answers(found, len(told) - len(found))

    async def _ask(self, member: str, call: WireCall) -> CallAnswer | None:
        call.caller = msgspec.structs.replace(call.caller, expires=0.0)  # checked here; JSON knows no infinity
        return await self._calls.ask(node_of(member), msgspec.json.encode(call), _read_answer)

    async def _answer(self, body: bytes) -> bytes:
        """Answer another node."""
        try:
            done = await self._perform(msgspec.json.decode(body, type=WireCall))
            answer = CallAnswer(200, msgspec.Raw(done))
        except NotFound:
            answer = CallAnswer(404)
        except TooLarge as error:
            answer = CallAnswer(413, msgspec.Raw(msgspec.json.encode(error.size)))
        except WireBehind:
            answer = CallAnswer(503)
        return msgspec.json.encode(answer)


_read_answer = msgspec.json.Decoder(CallAnswer).decode
