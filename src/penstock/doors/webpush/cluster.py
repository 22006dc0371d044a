"""Brings a notification to the node of its user agent.

    PUT /push/<uaid>                       take this notification: 200, 503 busy, 404 not connected here
    PUT /notif/<uaid>                      look into the storage: 200, 202 later, 404
    DELETE /notif/<uaid>/<connected_at>    that session is not the newest any more: 200

The same three go over the bus to a node that has no internal listener. A node that does not answer counts as
unreachable: then the message is stored, unless its TTL is 0.
"""

from __future__ import annotations

import hmac
import logging
from typing import Protocol

import msgspec

from penstock.core.bus import Bus
from penstock.core.clock import Clock
from penstock.core.node_calls import Calls
from penstock.doors.webpush.router_table import RouterRecord
from penstock.errors import InputInvalid, Unauthenticated
from penstock.http.client import OutgoingError, Target, parse_url
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import PUSH_BODY_READ
from penstock.wire.webpush import NodeAnswer, PushMessage, is_uaid, pass_on, passed_on

log = logging.getLogger("penstock.webpush")

_ADDRESSES = 1_000  # of nodes, former ones too, that connections are kept to


class LocalAgents(Protocol):
    """The user agents that are connected to this node."""

    def push(self, message: PushMessage) -> NodeAnswer: ...
    def notified(self, uaid: str, month: str) -> NodeAnswer: ...
    def superseded(self, uaid: str, connected_at: int) -> None: ...


class _Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question over the bus. The body is empty for a hint to look into the storage."""

    uaid: str
    body: msgspec.Raw = msgspec.Raw(b"null")
    month: str = ""
    superseded: int = 0


class Cluster:
    """Talks to the node that a router record names, this one included."""

    def __init__(self, local: LocalAgents, bus: Bus, clock: Clock, *, token: str, timeout: float) -> None:
        self._local, self._bus, self._clock = local, bus, clock
        self._token, self._timeout = token, timeout
        self._targets: dict[str, Target] = {}
        self._calls = Calls(bus, "webpush", self._hear)

    def close(self) -> None:
        """Let go of connections."""
        for target in self._targets.values():
            target.close()
        self._targets.clear()

    async def push(self, record: RouterRecord, message: PushMessage) -> NodeAnswer:
        """Have the notification delivered where the user agent is connected."""
        if record.node == self._bus.node:
            return self._local.push(message)
        body = pass_on(message, self._clock.now_ms())
        if record.address:
            return await self._request(record.address, "PUT", f"/push/{message.uaid}", body)
        return await self._ask(record.node, _Question(message.uaid, msgspec.Raw(body)))

    async def notify(self, record: RouterRecord, uaid: str, month: str) -> NodeAnswer:
        """Have the storage looked into, that *month* among it."""
        if record.node == self._bus.node:
            return self._local.notified(uaid, month)
        if record.address:
            return await self._request(record.address, "PUT", f"/notif/{uaid}?month={month}")
        return await self._ask(record.node, _Question(uaid, month=month))

    async def supersede(self, record: RouterRecord, uaid: str) -> None:
        """Say that the session of this record is over: the user agent is connected elsewhere."""
        if record.node == self._bus.node:
            self._local.superseded(uaid, record.connected_at)
        elif record.address:
            await self._request(record.address, "DELETE", f"/notif/{uaid}/{record.connected_at}")
        else:
            await self._ask(record.node, _Question(uaid, superseded=record.connected_at))

    # ── over HTTP ─────────────────────────────────────────────────────────────────────────────

    async def _request(self, address: str, method: str, path: str, body: bytes = b"") -> NodeAnswer:
        target = self._targets.get(address)
        if target is None:
            if len(self._targets) >= _ADDRESSES:
                self.close()
            target = self._targets[address] = Target(
                parse_url(address), allow_private=True, timeout=self._timeout, connect_timeout=self._timeout
            )
        try:
            answer = await target.post(body, (("Authorization", f"Bearer {self._token}"),), path=path, method=method)
            return NodeAnswer(answer.status)
        except (OutgoingError, ValueError) as error:
            log.info("node.unreachable", extra={"address": address, "error": str(error)})
            return NodeAnswer.UNREACHABLE

    def routes(self) -> list[Route]:
        """Rows of the internal listener's table."""
        whole = WHOLE(2 * PUSH_BODY_READ)
        return [
            Route("PUT", "/push/*", self._handle_push, body=whole, admit=self._admit, door="webpush"),
            Route("PUT", "/notif/*", self._handle_notify, door="webpush"),
            Route("DELETE", "/notif/*/*", self._handle_superseded, door="webpush"),
        ]

    def _admit(self, request: Request) -> None:
        given = request.header(b"authorization") or b""
        if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            raise Unauthenticated("the internal listener has a token of its own")

    def _handle_push(self, request: Request) -> Response:
        self._admit(request)
        try:
            message = passed_on(_uaid(request), request.body)
        except (ValueError, msgspec.MsgspecError) as error:
            raise InputInvalid("body", str(error)) from None
        return _answer(self._local.push(message))

    def _handle_notify(self, request: Request) -> Response:
        self._admit(request)
        return _answer(self._local.notified(_uaid(request), request.params.get("month", "")))

    def _handle_superseded(self, request: Request) -> Response:
        self._admit(request)
        if not request.captures[1].isdecimal():
            raise InputInvalid("connected_at", "is not a number")
        self._local.superseded(_uaid(request), int(request.captures[1]))
        return Response(200, content_type="")

    # ── over the bus ──────────────────────────────────────────────────────────────────────────

    async def _ask(self, node: str, asked: _Question) -> NodeAnswer:
        outcome = await self._calls.ask(node, msgspec.json.encode(asked), lambda answer: NodeAnswer(int(answer)))
        return outcome or NodeAnswer.UNREACHABLE

    async def _hear(self, question: bytes) -> bytes:
        return b"%d" % self._decide(msgspec.json.decode(question, type=_Question)).value

    def _decide(self, asked: _Question) -> NodeAnswer:
        if asked.superseded:
            self._local.superseded(asked.uaid, asked.superseded)
            return NodeAnswer.TAKEN
        if asked.month:
            return self._local.notified(asked.uaid, asked.month)
        return self._local.push(passed_on(asked.uaid, bytes(asked.body)))


def _uaid(request: Request) -> str:
    if not is_uaid(request.captures[0]):
        raise InputInvalid("uaid", "is not 32 hexadecimal digits")
    return request.captures[0]


def _answer(outcome: NodeAnswer) -> Response:
    return Response(outcome.value, content_type="")
