"""Where senders bring their messages: `/wpush/v1/<token>`, `/wpush/v2/<token>`, and `/m/<id>` to cancel one.

By the seed's rules for endpoints: read the router record, look the channel up in the record's month, and give
the notification to the node where the user agent is connected. If that comes to nothing, store it in the
record's month, read the record again, and tell the node that it names by then to look into the storage.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from penstock.core.clock import Clock
from penstock.core.ledger import Recipient
from penstock.core.promise import pending
from penstock.doors.webpush.agents import Agents
from penstock.doors.webpush.error_form import autopush_form
from penstock.doors.webpush.requests import EndpointRequest, EndpointRequestReader
from penstock.doors.webpush.router_table import RouterRecord
from penstock.errors import NotFound
from penstock.http.problems import error_response
from penstock.http.requests import Request
from penstock.http.responses import Headers, Later, Response
from penstock.values import Item
from penstock.wire.webpush import NodeAnswer, PushMessage, to_item
from penstock.wire.webpush_endpoint import RECEIPT_RELATION
from penstock.wire.webpush_errors import EndpointRefused, Errno

_MOVES = 3  # how often a month may move away under one message before we give up


class Endpoint:
    """Takes messages. 201: it was sent to its user agent, or is stored; with TTL 0 it may also have been dropped."""

    def __init__(self, agents: Agents, clock: Clock, origin: str) -> None:
        self._agents, self._clock = agents, clock
        settings = agents.settings
        self._direct = settings.direct == "bypass"
        self._reader = EndpointRequestReader(
            agents.tokens, clock, origin=origin, body_limit=settings.body_limit, ttl_most=int(settings.ttl_most)
        )
        self.origin = self._reader.origin

    # ── a send ────────────────────────────────────────────────────────────────────────────────

    def send(self, request: Request) -> Response | Later | Coroutine[Any, Any, Response]:
        """Take one message.

        On a node that is alone, and knows the user agent, that takes no task: the message goes to the session
        at once, or is stored with the others of this turn of the loop.
        """
        asked = self._reader.read(request)
        message = self._message(asked, request.body)
        if not self._agents.alone:
            return self._send(message, asked)
        if self._direct and self._agents.push(message) is NodeAnswer.TAKEN:
            self._accepted(asked.who, message, "direct")
            return _answer(message, asked)
        known = self._agents.lookup.known(message.uaid)
        if known is None or not message.ttl or message.topic or message.channel not in known.channels:
            return self._send(message, asked)
        messages = self._agents.messages
        storing = messages.mailbox.put(message.uaid, known.record.month, (to_item(message),), room=messages.room)
        return Later(
            pending(storing),
            partial(self._stored_at_once, message, asked, known.record),
            partial(self._not_stored, message, asked),
        )

    def unknown(self, request: Request) -> Response:
        """A path that looks like an endpoint's, and is none."""
        raise EndpointRefused(Errno.TOKEN, "an endpoint's path is /wpush/VERSION/TOKEN")

    def _stored_at_once(
        self, message: PushMessage, asked: EndpointRequest, record: RouterRecord, items: Sequence[Item]
    ) -> Response | Coroutine[Any, Any, Response]:
        """`_store` from where the message is stored, as long as nothing has to be waited for."""
        self._agents.messages.stored(asked.who, record.month, items)
        self._accepted(asked.who, message, "stored")
        again = self._agents.lookup.known(message.uaid)
        if again is None:
            return self._told(message, asked, record)
        if again.record.node:
            self._agents.notified(message.uaid, record.month)
        return _answer(message, asked)

    def _not_stored(
        self, message: PushMessage, asked: EndpointRequest, error: BaseException
    ) -> Response | Coroutine[Any, Any, Response]:
        if isinstance(error, NotFound):  # that month was dropped this moment
            self._agents.lookup.forget(message.uaid)
            return self._send(message, asked)
        return error_response(error, autopush_form)

    async def _told(self, message: PushMessage, asked: EndpointRequest, record: RouterRecord) -> Response:
        await self._tell(message, record)
        return _answer(message, asked)

    async def _send(self, message: PushMessage, asked: EndpointRequest) -> Response:
        await self._route(message)
        return _answer(message, asked)

    def _message(self, asked: EndpointRequest, body: bytes) -> PushMessage:
        push, subscription = asked.push, asked.subscription
        coding, uaid, now_ms = push.coding, subscription.uaid, self._clock.now_ms()
        return PushMessage(
            uaid, subscription.channel, self._agents.tokens.message_id(uaid, now_ms), push.ttl,
            now_ms + push.ttl * 1000, body, push.topic, push.urgency,
            coding.encoding, coding.encryption, coding.crypto_key, self._receipt(asked) if push.respond_async else "",
        )  # fmt: skip

    def _receipt(self, asked: EndpointRequest) -> str:
        """Which receipt subscription hears of the message, and how its URL begins."""
        return f"{self._agents.receipts.choose(asked.receipt, asked.origin)} {asked.origin}"

    # ── routing ───────────────────────────────────────────────────────────────────────────────

    async def _route(self, message: PushMessage) -> None:
        """Deliver or store; when this returns, one of them is done, or the message said that it may be dropped."""
        record, who = await self._check_channel(message), Recipient("webpush", message.uaid)
        if record.node and (self._direct or not message.ttl):
            outcome = await self._agents.cluster.push(record, message)
            if outcome is NodeAnswer.TAKEN:
                self._accepted(who, message, "direct")
                return
            if outcome is NodeAnswer.UNREACHABLE:
                await self._agents.router.clear(message.uaid, record)
        if not message.ttl:
            self._accepted(who, message, "not_connected")
            self._agents.messages.record(who, "dropped", message.version, reason="ttl_0")
            return
        await self._store(message, record)

    async def _check_channel(self, message: PushMessage) -> RouterRecord:
        """The user agent's record, if the subscription is still there."""
        try:
            known = await self._agents.lookup.find(message.uaid)
        except NotFound:
            raise EndpointRefused(Errno.USER_AGENT_GONE, "the user agent was away too long") from None
        if known is None:
            raise EndpointRefused(Errno.USER_AGENT_GONE, "the user agent is not known")
        if message.channel not in known.channels:
            raise EndpointRefused(Errno.CHANNEL_GONE, "there is no such subscription")
        return known.record

    async def _store(self, message: PushMessage, record: RouterRecord) -> None:
        """Store, then read the record again: whoever connected before that write is told to look."""
        messages = self._agents.messages
        for _ in range(_MOVES):
            try:
                await messages.store(message.uaid, record.month, (message,), room=messages.room)
                break
            except NotFound:  # that month was dropped this moment
                self._agents.lookup.forget(message.uaid)
                record = await self._check_channel(message)
        else:
            raise EndpointRefused(Errno.TEMPORARY, "the user agent's month keeps moving")
        self._accepted(Recipient("webpush", message.uaid), message, "stored")
        await self._tell(message, record)

    async def _tell(self, message: PushMessage, record: RouterRecord) -> None:
        """Have whoever connected meanwhile look into the storage."""
        again = await self._agents.lookup.record(message.uaid)
        if again is None:
            await self._agents.drop(message.uaid, (record.month,), "dropped_meanwhile")
            raise EndpointRefused(Errno.GONE_MEANWHILE, "the user agent was dropped meanwhile")
        if again.node:
            outcome = await self._agents.cluster.notify(again, message.uaid, record.month)
            if outcome is NodeAnswer.UNREACHABLE:
                await self._agents.router.clear(message.uaid, again)

    def _accepted(self, who: Recipient, message: PushMessage, how: str) -> None:
        self._agents.messages.record(who, "accepted", message.version, "", 0, how, message.expires_ms)
        if how != "stored":  # those are counted where all are stored
            self._agents.counts[how] += 1

    # ── cancelling ────────────────────────────────────────────────────────────────────────────

    async def cancel(self, request: Request) -> Response:
        """Delete a stored message; 204 also when there is none. Who knows the id may do it."""
        id = request.captures[0]
        uaid = self._agents.tokens.recipient_of(id)
        record = await self._agents.router.find(uaid)
        if record is not None:
            for month in filter(None, (record.month, record.previous)):
                await self._agents.messages.cancel(uaid, month, id)
        return Response(204)


def _answer(message: PushMessage, asked: EndpointRequest) -> Response:
    said: Headers = (("Location", f"{asked.origin}/m/{message.version}"), ("TTL", str(message.ttl)))
    if message.receipt:
        id = message.receipt.partition(" ")[0]
        said = (*said, ("Link", f'<{asked.origin}/r/{id}>; rel="{RECEIPT_RELATION}"'))
    if asked.from_page:  # it may read where its message is
        said = (*said, ("Access-Control-Expose-Headers", "Location, TTL, Link"))
    return Response(202 if message.receipt else 201, content_type="", headers=said)
