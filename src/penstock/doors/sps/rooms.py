"""What is asked about wires that are open: signs of life, topics, and who is online."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.core.names import is_exact
from penstock.doors.sps.asking import check_topics, check_user
from penstock.doors.sps.presence import STREAM
from penstock.doors.sps.topics import check_count, chosen, shown
from penstock.doors.sps.wire import Narrow, Wire
from penstock.doors.sps.wires import Wires
from penstock.errors import Forbidden, InputInvalid, NotFound
from penstock.server.auth import Caller
from penstock.server.context import Context
from penstock.server.exchange import Request, Response
from penstock.wire import sps

_encode = msgspec.json.Encoder().encode
Topics = tuple[str, ...]


class Rooms:
    """Answers about the wires of this node. A request under a device's name is a sign of its life."""

    def __init__(self, context: Context, wires: Wires) -> None:
        self._context, self._wires = context, wires

    async def subsist(self, request: Request) -> Response:
        """The device lives; with `o` it has consumed everything up to that id, and the ledger knows it for good."""
        params = sps.named(request.params, "uid", "hid", "o")
        uid, hid, upto = sps.user(params), sps.device(params), sps.opaque(params.get("o"))
        check_user(self._context.caller(request), uid)
        wire = self._living(uid, hid)
        if upto is not None:
            self._wires.confirm_open(wire, upto)
            await self._context.ledger.flush()
        return Response(204)

    def _living(self, uid: str, hid: str) -> Wire:
        wire = self._wires.find(uid, hid)
        if wire is None:
            raise NotFound("wire", f"{uid} {hid}".strip(), code="offline", remedy="Subscribe again.")
        wire.alive = self._wires.time()
        return wire

    # ── topics ────────────────────────────────────────────────────────────────────────────────

    def join(self, request: Request) -> Response:
        """Have these topics, too."""
        return self._change(request, lambda has, named: tuple(dict.fromkeys((*has, *named))), check_topics)

    def leave(self, request: Request) -> Response:
        """Have these topics no longer. Nobody needs a right to leave."""
        return self._change(request, lambda has, named: tuple(t for t in has if t not in named), _no_check)

    def replace(self, request: Request) -> Response:
        """Have these topics and no others."""
        return self._change(request, lambda has, named: named, check_topics)

    def _change(
        self,
        request: Request,
        combine: Callable[[Topics, Topics], Topics],
        check: Callable[[Caller, Topics], Narrow | None],
    ) -> Response:
        """Change a wire's topics in one step: what comes after the answer comes under the new ones."""
        params = sps.named(request.params, "uid", "hid", "tid")
        uid, hid, named = sps.user(params), sps.device(params), chosen(sps.topics(params))
        caller = self._context.caller(request)
        check_user(caller, uid)
        narrow = check(caller, named)
        wire = self._living(uid, hid)
        topics = check_count(combine(wire.topics, named))
        if topics != wire.topics:
            wire.change(topics, narrow)
        return Response(200, _encode({"tids": shown(topics)}))

    # ── who is online ─────────────────────────────────────────────────────────────────────────

    def online(self, request: Request) -> Response:
        """The devices of a user that listen here, or the one named."""
        params = sps.named(request.params, "uid", "hid")
        uid, hid = sps.user(params), sps.device(params)
        caller = self._context.caller(request)
        if caller.subject != uid and not caller.may_read(STREAM):
            raise Forbidden(caller.subject, "subscribe", STREAM)
        wires = self._wires.of_user(uid)
        if hid:
            wires = [wire for wire in wires if wire.hid == hid]
            if caller.subject == uid and wires:
                self._living(uid, hid)
        return Response(200, _encode({"online": bool(wires), "devices": [self._shown(wire) for wire in wires]}))

    def _shown(self, wire: Wire) -> dict[str, object]:
        since = self._context.clock.now_ms() / 1000 - self._wires.time()  # what the loop's seconds count from
        return {
            "hid": wire.hid,
            "since": round(since + wire.opened, 3),
            "last_write": round(since + wire.written, 3),
            "rooms": shown(wire.topics),
            "behind": wire.feed.lag,
        }

    def counts(self, request: Request) -> Response:
        """How many wires listen to each of some topics."""
        topics = chosen(sps.topics(sps.named(request.params, "tid")))
        if not topics or not all(map(is_exact, topics)):
            raise InputInvalid("parameter tid", "must name topics, and no patterns")
        caller = self._context.caller(request)
        check_topics(caller, topics)
        counts = [len(self._wires.reading([topic])) for topic in topics]
        return Response(200, _encode({"rooms": dict(zip(shown(topics), counts, strict=True))}))


def _no_check(caller: Caller, topics: Topics) -> None:
    """Anything goes."""
