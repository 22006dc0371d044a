"""What is asked about wires that are open: signs of life, topics, and who is online.

Any node of a cluster answers: what is about a wire of another node is passed on to that one, over the bus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.core.calls import Calls
from penstock.core.members import node_of
from penstock.core.names import is_exact
from penstock.doors.sps.asking import check_topics, check_user
from penstock.doors.sps.presence import STREAM
from penstock.doors.sps.topics import check_count, chosen, shown
from penstock.doors.sps.wire import Wire, WireBehind
from penstock.doors.sps.wires import Wires
from penstock.errors import Forbidden, InputInvalid, NotFound, TooLarge
from penstock.http.exchange import Request, Response
from penstock.limits import PATTERNS
from penstock.wire import sps

_encode = msgspec.json.Encoder().encode
Topics = tuple[str, ...]
Answered = Response | Coroutine[None, None, Response]


class Asked(msgspec.Struct):
    """Something that only the node with the wire can do. Whoever asked was allowed to."""

    verb: str  # subsist, join, leave, replace, online, counts
    uid: str
    hid: str
    caller: Caller
    topics: Topics = ()
    upto: int | None = None


class Told(msgspec.Struct):
    """Its answer: a status as in HTTP, and a body."""

    status: int
    body: msgspec.Raw = msgspec.Raw(b"null")


_told = msgspec.json.Decoder(Told).decode


class Rooms:
    """Answers about wires. A request under a device's name is a sign of its life."""

    def __init__(self, context: Context, wires: Wires) -> None:
        self._context, self._wires = context, wires
        self.calls = Calls(context.bus, "sps.rooms", self._called)

    async def subsist(self, request: Request) -> Response:
        """The device lives; with `o` it has consumed everything up to that id, and the ledger knows it for good."""
        params = sps.named(request.params, "uid", "hid", "o")
        uid, hid, upto = sps.user(params), sps.device(params), sps.opaque(params.get("o"))
        caller = self._context.caller(request)
        check_user(caller, uid)
        asked = Asked("subsist", uid, hid, caller, upto=upto)
        if self._wires.find(uid, hid) is None and self._wires.claims is not None:
            return await self._pass_on(asked)
        self._living(uid, hid)
        await self._subsist(asked)
        return Response(204)

    async def _subsist(self, asked: Asked) -> None:
        wire = self._wires.find(asked.uid, asked.hid)
        if asked.upto is not None and wire is not None:
            self._wires.confirm(wire, asked.upto)
            await self._context.ledger.flush()

    def _living(self, uid: str, hid: str) -> Wire:
        wire = self._wires.find(uid, hid)
        if wire is None:
            raise _offline(uid, hid)
        wire.alive = self._wires.time()
        return wire

    # ── topics ────────────────────────────────────────────────────────────────────────────────

    def join(self, request: Request) -> Answered:
        """Have these topics, too."""
        return self._ask(request, "join")

    def leave(self, request: Request) -> Answered:
        """Have these topics no longer. Nobody needs a right to leave."""
        return self._ask(request, "leave")

    def replace(self, request: Request) -> Answered:
        """Have these topics and no others."""
        return self._ask(request, "replace")

    def _ask(self, request: Request, verb: str) -> Answered:
        params = sps.named(request.params, "uid", "hid", "tid")
        uid, hid, named = sps.user(params), sps.device(params), chosen(sps.topics(params))
        caller = self._context.caller(request)
        check_user(caller, uid)
        if verb != "leave":
            check_topics(caller, named)
        asked = Asked(verb, uid, hid, caller, named)
        if self._wires.find(uid, hid) is None and self._wires.claims is not None:
            return self._pass_on(asked)
        return Response(200, self._change(asked))

    def _change(self, asked: Asked) -> bytes:
        """Change a wire's topics in one step: what comes after the answer comes under the new ones."""
        wire = self._living(asked.uid, asked.hid)
        narrow = None if asked.verb == "leave" else check_topics(asked.caller, asked.topics)
        topics = check_count(_combined(asked.verb, wire.topics, asked.topics))
        if topics != wire.topics:
            wire.change(topics, narrow)
        return _encode({"tids": shown(topics)})

    # ── who is online ─────────────────────────────────────────────────────────────────────────

    def online(self, request: Request) -> Answered:
        """The devices of a user that listen, or the one named."""
        params = sps.named(request.params, "uid", "hid")
        uid, hid = sps.user(params), sps.device(params)
        caller = self._context.caller(request)
        if caller.subject != uid and not caller.may_read(STREAM):
            raise Forbidden(caller.subject, "subscribe", STREAM)
        asked = Asked("online", uid, hid, caller)
        if self._wires.claims is not None:
            return self._online_anywhere(asked)
        return _devices(self._online(asked))

    def _online(self, asked: Asked) -> list[dict[str, object]]:
        wires = self._wires.of_user(asked.uid)
        if asked.hid:
            wires = [wire for wire in wires if wire.hid == asked.hid]
            if asked.caller.subject == asked.uid and wires:
                self._living(asked.uid, asked.hid)
        return [self._shown(wire) for wire in wires]

    async def _online_anywhere(self, asked: Asked) -> Response:
        found = self._online(asked)
        members = self._context.members
        claims = await self._wires.claims.of_user(asked.uid) if self._wires.claims else []
        elsewhere = {claim.member for hid, claim in claims if asked.hid in ("", hid)} - {members.me}
        for member in sorted(elsewhere):
            told = await self._tell(member, asked)
            if told is not None:
                found += msgspec.json.decode(told.body, type=list[dict[str, object]])
        return _devices(found)

    def _shown(self, wire: Wire) -> dict[str, object]:
        since = self._context.clock.now_ms() / 1000 - self._wires.time()  # what the loop's seconds count from
        return {
            "hid": wire.hid,
            "since": round(since + wire.opened, 3),
            "last_write": round(since + wire.written, 3),
            "rooms": shown(wire.topics),
            "behind": wire.feed.lag,
        }

    def counts(self, request: Request) -> Answered:
        """How many wires listen to each of some topics, on all nodes that answer."""
        topics = chosen(sps.topics(sps.named(request.params, "tid")))
        if not topics or not all(map(is_exact, topics)):
            raise InputInvalid("parameter tid", "must name topics, and no patterns")
        caller = self._context.caller(request)
        check_topics(caller, topics)
        if self._wires.claims is not None:
            return self._counts_anywhere(Asked("counts", "", "", caller, topics))
        return _numbers(topics, self._counts(topics))

    def _counts(self, topics: Topics) -> list[int]:
        return [len(self._wires.reading([topic])) for topic in topics]

    async def _counts_anywhere(self, asked: Asked) -> Response:
        members = self._context.members
        others = [member for member in members.living() if member != members.me]
        told = await asyncio.gather(*(self._tell(member, asked) for member in others))
        found = [msgspec.json.decode(answer.body, type=list[int]) for answer in told if answer is not None]
        return _numbers(asked.topics, [sum(column) for column in zip(self._counts(asked.topics), *found, strict=True)])

    # ── from node to node ─────────────────────────────────────────────────────────────────────

    async def _pass_on(self, asked: Asked) -> Response:
        """Let the node with the wire do it."""
        claim = await self._wires.claims.of_device(asked.uid, asked.hid) if self._wires.claims else None
        told = await self._tell(claim.member, asked) if claim else None
        if told is None or told.status == HTTPStatus.NOT_FOUND:
            raise _offline(asked.uid, asked.hid)
        if told.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise TooLarge("topics", msgspec.json.decode(told.body, type=int), PATTERNS)
        if told.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise WireBehind
        return Response(told.status, bytes(told.body)) if told.status == HTTPStatus.OK else Response(told.status)

    async def _tell(self, member: str, asked: Asked) -> Told | None:
        asked.caller = msgspec.structs.replace(asked.caller, expires=0.0)  # checked here; JSON knows no infinity
        return await self.calls.ask(node_of(member), _encode(asked), _told)

    async def _called(self, body: bytes) -> bytes:
        """Answer another node."""
        asked = msgspec.json.decode(body, type=Asked)
        try:
            return _encode(await self._do(asked))
        except NotFound:
            return _encode(Told(404))
        except TooLarge as error:
            return _encode(Told(413, msgspec.Raw(_encode(error.size))))
        except WireBehind:
            return _encode(Told(503))

    async def _do(self, asked: Asked) -> Told:
        if asked.verb == "counts":
            return Told(200, msgspec.Raw(_encode(self._counts(asked.topics))))
        if asked.verb == "online":
            return Told(200, msgspec.Raw(_encode(self._online(asked))))
        if asked.verb != "subsist":
            return Told(200, msgspec.Raw(self._change(asked)))
        self._living(asked.uid, asked.hid)
        await self._subsist(asked)
        return Told(204)


def _combined(verb: str, has: Topics, named: Topics) -> Topics:
    if verb == "join":
        return tuple(dict.fromkeys((*has, *named)))
    return named if verb == "replace" else tuple(topic for topic in has if topic not in named)


def _devices(found: list[dict[str, object]]) -> Response:
    return Response(200, _encode({"online": bool(found), "devices": found}))


def _numbers(topics: Topics, counts: list[int]) -> Response:
    return Response(200, _encode({"rooms": dict(zip(shown(topics), counts, strict=True))}))


def _offline(uid: str, hid: str) -> NotFound:
    return NotFound("wire", f"{uid} {hid}".strip(), code="offline", remedy="Subscribe again.")
