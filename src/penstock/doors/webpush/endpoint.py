"""Where senders bring their messages: `/wpush/v1/<token>`, `/wpush/v2/<token>`, and `/m/<id>` to cancel one.

By the seed's rules for endpoints: read the router record, look the channel up in the record's month, and give
the notification to the node where the user agent is connected. If that comes to nothing, store it in the
record's month, read the record again, and tell the node that it names by then to look into the storage.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from penstock.core.clock import Clock
from penstock.core.ledger import recipient
from penstock.doors.webpush.agents import Agents
from penstock.doors.webpush.peers import Outcome
from penstock.doors.webpush.records import RouterRecord
from penstock.doors.webpush.tokens import Subscription
from penstock.errors import Busy, DiskFull, EngineGone, InputInvalid, NotFound
from penstock.limits import PUSH_SENDERS_KNOWN
from penstock.server.exchange import Request, Response
from penstock.wire import vapid
from penstock.wire.webpush import Message
from penstock.wire.webpush_endpoint import RECEIPT_RELATION, Errno, Push, PushHeaders, Refused, parse_push

log = logging.getLogger("penstock.webpush")

_HOSTS_KNOWN = 256  # names under which the service is addressed
_MOVES = 3  # how often a month may move away under one message before we give up


class Endpoint:
    """Takes messages. 201 means that one was sent to its user agent, or is stored."""

    def __init__(self, agents: Agents, clock: Clock, origin: str) -> None:
        self._agents, self._clock, self._origin = agents, clock, origin
        self._settings = agents.settings
        self._direct = agents.settings.direct == "bypass"
        self._origins: dict[tuple[str, bytes], str] = {}  # by scheme and Host header
        self._senders: dict[tuple[bytes, bytes], vapid.Claims] = {}

    def origin(self, request: Request) -> str:
        """Scheme, host and port under which this service is known."""
        if self._origin:
            return self._origin
        shown = (request.scheme, request.header(b"host") or b"localhost")
        if (known := self._origins.get(shown)) is None:
            if len(self._origins) >= _HOSTS_KNOWN:
                self._origins.clear()
            known = self._origins[shown] = _origin(shown[0], shown[1].decode("latin-1"))
        return known

    # ── a send ────────────────────────────────────────────────────────────────────────────────

    def send(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        """Take one message. Without an await when its user agent is connected to this very node."""
        try:
            message, headers = self._read(request)
        except Refused as refused:
            return _refusal(refused)
        if self._direct and self._agents.alone and self._agents.push(message) is Outcome.TAKEN:
            self._accepted(message, "direct")
            return _accepted(message, headers)
        return self._send(message, headers)

    async def _send(self, message: Message, headers: tuple[tuple[str, str], ...]) -> Response:
        try:
            await self._route(message)
        except Refused as refused:
            return _refusal(refused)
        except (Busy, EngineGone, DiskFull) as error:
            errno = Errno.OVERLOADED if isinstance(error, Busy) else Errno.TEMPORARY
            return _refusal(Refused(errno, str(error)), retry_after=error.retry_after)
        return _accepted(message, headers)

    def _read(self, request: Request) -> tuple[Message, tuple[tuple[str, str], ...]]:
        """Everything that can be said about a send without asking a table."""
        version, token = request.captures if len(request.captures) == 2 else ("v1", request.captures[0])
        subscription = self._agents.tokens.subscription(version, token)
        origin = self.origin(request)
        headers: PushHeaders = request.memo.get("push") or request.memo.setdefault("push", _headers(request))
        self._check_sender(request, subscription, origin)
        push = parse_push(
            headers,
            len(request.body),
            body_limit=self._settings.body_limit,
            ttl_most=int(self._settings.ttl_most),
        )
        receipt = self._receipt(request, push, origin)
        message = self._message(subscription, push, request.body, f"{receipt} {origin}" if receipt else "")
        said = [("Location", f"{origin}/m/{message.version}"), ("TTL", str(push.ttl))]
        if receipt:
            said.append(("Link", f'<{origin}/r/{receipt}>; rel="{RECEIPT_RELATION}"'))
        if request.header(b"origin") is not None:  # a page that sends may read where its message is
            said.append(("Access-Control-Expose-Headers", "Location, TTL, Link"))
        return message, tuple(said)

    def _message(self, subscription: Subscription, push: Push, body: bytes, receipt: str) -> Message:
        coding, uaid = push.coding, subscription.uaid
        return Message(
            uaid, subscription.channel, self._agents.tokens.message_id(uaid), push.ttl,
            self._clock.now_ms() + push.ttl * 1000, body, push.topic, push.urgency,
            coding.encoding, coding.encryption, coding.crypto_key, receipt,
        )  # fmt: skip

    def _receipt(self, request: Request, push: Push, origin: str) -> str:
        if not push.respond_async:
            return ""
        asked = (request.header(b"push-receipt") or b"").decode("latin-1")
        return self._agents.receipts.choose(asked, origin)

    def _check_sender(self, request: Request, subscription: Subscription, origin: str) -> None:
        """VAPID: optional with v1, but true if given; with v2 only the key that the subscription is bound to."""
        authorization = request.header(b"authorization")
        if authorization is None:
            if subscription.key_hash:
                raise Refused(Errno.AUTHORIZATION, "this endpoint wants VAPID", vapid.CHECKS["authorization_missing"])
            return
        try:
            claims = self._claims(authorization, request.header(b"crypto-key") or b"", origin)
            if subscription.key_hash:
                vapid.check_key(claims.key, subscription.key_hash)
        except vapid.VapidInvalid as error:
            raise Refused(Errno.AUTHORIZATION, str(error), error.remedy) from None

    def _claims(self, authorization: bytes, crypto_key: bytes, origin: str) -> vapid.Claims:
        """What the sender signed. A signature that was verified is not verified again until it expires."""
        now, shown = self._clock.now_ms() / 1000, (authorization, crypto_key)
        claims = self._senders.get(shown)
        if claims is not None:
            vapid.check_claims(claims, origin=origin, now=now)
            return claims
        credentials = vapid.parse_authorization(authorization.decode("latin-1"), crypto_key.decode("latin-1"))
        claims = vapid.verify(credentials, origin=origin, now=now)
        if len(self._senders) >= PUSH_SENDERS_KNOWN:
            self._senders.clear()
        self._senders[shown] = claims
        return claims

    # ── routing ───────────────────────────────────────────────────────────────────────────────

    async def _route(self, message: Message) -> None:
        """Deliver or store; when this returns, one of them is done, or the message said that it may be dropped."""
        record = await self._check_channel(message)
        if record.node and (self._direct or not message.ttl):
            outcome = await self._agents.peers.push(record, message)
            if outcome is Outcome.TAKEN:
                self._accepted(message, "direct")
                return
            if outcome is Outcome.UNREACHABLE:
                await self._agents.router.clear(message.uaid, record)
        if not message.ttl:
            self._accepted(message, "not_connected")
            self._agents.record(recipient("webpush", message.uaid), "dropped", message.version, "", 0, "ttl_0")
            return
        await self._store(message, record)

    async def _check_channel(self, message: Message) -> RouterRecord:
        """The user agent's record, if the subscription is still there."""
        try:
            known = await self._agents.lookup.find(message.uaid)
        except NotFound:
            raise Refused(Errno.USER_AGENT_GONE, "the user agent was away too long") from None
        if known is None:
            raise Refused(Errno.USER_AGENT_GONE, "the user agent is not known")
        if message.channel not in known.channels:
            raise Refused(Errno.CHANNEL_GONE, "there is no such subscription")
        return known.record

    async def _store(self, message: Message, record: RouterRecord) -> None:
        """Store, then read the record again: whoever connected before that write is told to look."""
        for _ in range(_MOVES):
            try:
                await self._agents.store(message.uaid, record.month, (message,))
                break
            except NotFound:  # that month was dropped this moment
                self._agents.lookup.forget(message.uaid)
                record = await self._check_channel(message)
        else:
            raise Refused(Errno.TEMPORARY, "the user agent's month keeps moving")
        self._accepted(message, "stored")
        again = await self._agents.lookup.record(message.uaid)
        if again is None:
            await self._agents.drop(message.uaid, (record.month,), "dropped_meanwhile")
            raise Refused(Errno.GONE_MEANWHILE, "the user agent was dropped meanwhile")
        if again.node:
            outcome = await self._agents.peers.notify(again, message.uaid, record.month)
            if outcome is Outcome.UNREACHABLE:
                await self._agents.router.clear(message.uaid, again)

    def _accepted(self, message: Message, how: str) -> None:
        who = recipient("webpush", message.uaid)
        self._agents.record(who, "accepted", message.version, "", 0, how, message.expires_ms)
        if how != "stored":  # those are counted where all are stored
            self._agents.counts[how] += 1

    # ── cancelling ────────────────────────────────────────────────────────────────────────────

    async def cancel(self, request: Request) -> Response:
        """Delete a stored message; 204 also when there is none. Who knows the id may do it."""
        id = request.captures[0]
        try:
            uaid = self._agents.tokens.recipient_of(id)
        except Refused as refused:
            return _refusal(refused)
        found = await self._agents.router.find(uaid)
        if found is not None:
            for month in filter(None, (found.record.month, found.record.previous)):
                await self._cancel(uaid, month, id)
        return Response(204)

    async def _cancel(self, uaid: str, month: str, id: str) -> None:
        agents = self._agents
        try:
            item = await agents.mailbox.find(uaid, month, id)
            if item is not None and await agents.mailbox.confirm(uaid, month, [item.number]):
                await agents.gone(uaid, month, item, "dropped", "cancelled")
        except NotFound:
            return


def _origin(scheme: str, host: str) -> str:
    try:
        return vapid.origin_of(f"{scheme}://{host}")
    except ValueError:
        raise InputInvalid("Host", "is no name of a host", remedy="Address the service by its name.") from None


def _headers(request: Request) -> PushHeaders:
    found = dict(reversed(request.headers))  # of several with one name the first counts
    text = {name.decode("latin-1"): value.decode("latin-1") for name, value in found.items() if name in _WANTED}
    return PushHeaders(
        text.get("ttl"), text.get("topic"), text.get("urgency", ""), text.get("content-encoding", ""),
        text.get("encryption", ""), text.get("crypto-key", ""), text.get("prefer", ""),
    )  # fmt: skip


_WANTED = frozenset((b"ttl", b"topic", b"urgency", b"content-encoding", b"encryption", b"crypto-key", b"prefer"))


def _accepted(message: Message, headers: tuple[tuple[str, str], ...]) -> Response:
    return Response(202 if message.receipt else 201, content_type="", headers=headers)


def _refusal(refused: Refused, retry_after: int = 0) -> Response:
    headers: tuple[tuple[str, str], ...] = ()
    if refused.status == 410:
        headers = (("Cache-Control", "max-age=86400"),)
    elif refused.status == 401:
        headers = (("WWW-Authenticate", "vapid"),)
    elif retry_after:
        headers = (("Retry-After", str(retry_after)),)
    return Response(refused.status, refused.body(), headers=headers)
