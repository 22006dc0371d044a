"""What is asked about wires that are open: signs of life, topics, and who is online.

Any node of a cluster answers: what is about a wire of another node is done by that one (`cluster.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Final

import msgspec

from penstock.api.context import Context
from penstock.core.names import is_exact
from penstock.doors.sps.cluster import RemoteWires, WireCall
from penstock.doors.sps.presence_stream import STREAM
from penstock.doors.sps.requests import Topics, check_count, check_topics, check_user, tids_of, topics_of
from penstock.doors.sps.wire import DeviceWire, offline
from penstock.doors.sps.wires import Wires
from penstock.errors import Forbidden, InputInvalid
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.wire import sps

_encode = msgspec.json.Encoder().encode
Answered = Response | Coroutine[None, None, Response]
SHOWN_AT_ONCE: Final = 128
"""Devices of one user that are described before the loop may do something else: some 5 ms with 64 topics each."""


class WireCommands:
    """Answers about wires. A request under a device's name is a sign of its life."""

    def __init__(self, context: Context, wires: Wires) -> None:
        self._context, self._wires = context, wires
        self.remote = None if wires.owners is None else RemoteWires(context, wires.owners, self._perform)

    async def _perform(self, call: WireCall) -> bytes:
        """Do what another node asks."""
        if call.verb == "counts":
            return _encode(await self._counts(call.topics))
        if call.verb == "online":
            return _encode(await self._online(call))
        if call.verb == "subsist":
            await self._subsist(call)
            return b"null"
        return self._change(call)

    def _elsewhere(self, call: WireCall) -> RemoteWires | None:
        """Whom to ask when this node does not have the device."""
        return self.remote if self._wires.find(call.uid, call.hid) is None else None

    def _living(self, call: WireCall) -> DeviceWire:
        wire = self._wires.find(call.uid, call.hid)
        if wire is None:
            raise offline(call.uid, call.hid)
        wire.alive = self._wires.time()
        return wire

    # ── signs of life ─────────────────────────────────────────────────────────────────────────

    async def subsist(self, request: Request) -> Response:
        """The device lives; with `o` it has consumed everything up to that id, and the ledger knows it for good."""
        params = sps.named(request.params, "uid", "hid", "o")
        uid, hid, upto = sps.user(params), sps.device(params), sps.opaque(params.get("o"))
        caller = self._context.caller(request)
        check_user(caller, uid)
        call = WireCall("subsist", uid, hid, caller, upto=upto)
        if (remote := self._elsewhere(call)) is not None:
            await remote.ask_owner(call)
        else:
            await self._subsist(call)
        return Response(204)

    async def _subsist(self, call: WireCall) -> None:
        wire = self._living(call)
        if call.upto is not None:
            self._wires.confirm(wire, call.upto)
            await self._context.ledger.flush()

    # ── topics ────────────────────────────────────────────────────────────────────────────────

    def change(self, verb: str, request: Request) -> Answered:
        """Have these topics too (join), no longer (leave), or these and no others (replace)."""
        params = sps.named(request.params, "uid", "hid", "tid")
        uid, hid, named = sps.user(params), sps.device(params), topics_of(params)
        caller = self._context.caller(request)
        check_user(caller, uid)
        if verb != "leave":  # nobody needs a right to leave
            check_topics(caller, named)
        call = WireCall(verb, uid, hid, caller, named)
        if (remote := self._elsewhere(call)) is not None:
            return self._change_elsewhere(remote, call)
        return Response(200, self._change(call))

    def _change(self, call: WireCall) -> bytes:
        """Change a wire's topics in one step: what comes after the answer comes under the new ones."""
        wire = self._living(call)
        narrow = None if call.verb == "leave" else check_topics(call.caller, call.topics)
        topics = check_count(_combined(call.verb, wire.topics, call.topics))
        if topics != wire.topics:
            wire.change(topics, narrow)
        return _encode({"tids": tids_of(topics)})

    @staticmethod
    async def _change_elsewhere(remote: RemoteWires, call: WireCall) -> Response:
        return Response(200, await remote.ask_owner(call))

    # ── who is online ─────────────────────────────────────────────────────────────────────────

    async def online(self, request: Request) -> Response:
        """The devices of a user that listen, or the one named."""
        params = sps.named(request.params, "uid", "hid")
        uid, hid = sps.user(params), sps.device(params)
        caller = self._context.caller(request)
        if caller.subject != uid and not caller.may_read(STREAM):
            raise Forbidden(caller.subject, "subscribe", STREAM)
        call = WireCall("online", uid, hid, caller)
        found = await self._online(call)
        for answer in await self.remote.ask_owners(call) if self.remote else ():
            found += msgspec.json.decode(answer, type=list[dict[str, object]])
        return Response(200, _encode({"online": bool(found), "devices": found}))

    async def _online(self, call: WireCall) -> list[dict[str, object]]:
        wires = self._wires.of_user(call.uid)
        if call.hid:
            wires = [wire for wire in wires if wire.hid == call.hid]
            if call.caller.subject == call.uid and wires:
                self._living(call)
        found = []
        for begin in range(0, len(wires), SHOWN_AT_ONCE):
            found += [self._shown(wire) for wire in wires[begin : begin + SHOWN_AT_ONCE]]
            await asyncio.sleep(0)
        return found

    def _shown(self, wire: DeviceWire) -> dict[str, object]:
        since = self._context.clock.now_ms() / 1000 - self._wires.time()  # what the loop's seconds count from
        return {
            "hid": wire.hid,
            "since": round(since + wire.opened, 3),
            "last_write": round(since + wire.last_write, 3),
            "rooms": tids_of(wire.topics),
            "behind": wire.feed.lag,
        }

    async def counts(self, request: Request) -> Response:
        """How many wires listen to each of some topics, on all nodes that answer."""
        topics = topics_of(sps.named(request.params, "tid"))
        if not topics or not all(map(is_exact, topics)):
            raise InputInvalid("parameter tid", "must name topics, and no patterns")
        caller = self._context.caller(request)
        check_topics(caller, topics)
        call = WireCall("counts", "", "", caller, topics)
        answers = await self.remote.ask_everybody(call) if self.remote else []
        counts = [await self._counts(topics), *(msgspec.json.decode(answer, type=list[int]) for answer in answers)]
        sums = [sum(column) for column in zip(*counts, strict=True)]
        return Response(200, _encode({"rooms": dict(zip(tids_of(topics), sums, strict=True))}))

    async def _counts(self, topics: Topics) -> list[int]:
        counts = []
        for topic in topics:
            counts.append(len(self._wires.reading([topic])))
            await asyncio.sleep(0)  # thousands may read each
        return counts


def _combined(verb: str, has: Topics, named: Topics) -> Topics:
    if verb == "join":
        return tuple(dict.fromkeys((*has, *named)))
    return named if verb == "replace" else tuple(topic for topic in has if topic not in named)
