"""`/v1/webpush`: binds the subscriptions of browsers to streams, or sends one message.

Bindings are kept in the registry and outlive the server. The server is a sender like any other here: it
encrypts, signs and posts to whatever push service the browser named, be it ours or another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec
from cryptography.fernet import Fernet

from penstock.api.auth import Caller
from penstock.api.context import Context, integer, only
from penstock.api.describing import BOOLEAN, PATH_LEVEL, STRING, a_list, an_object, operation, text
from penstock.api.describing import limit as limit_parameter
from penstock.api.recipients import RecipientKind
from penstock.api.shares import share
from penstock.core.metering import Sample
from penstock.core.names import check_pattern
from penstock.core.registry import made_once
from penstock.doors.webpush_sender.binding import BindingRecord, binding_id
from penstock.doors.webpush_sender.bindings import BINDINGS as PREFIX
from penstock.doors.webpush_sender.bindings import Bindings
from penstock.doors.webpush_sender.push_client import PushClient, check_endpoint
from penstock.doors.webpush_sender.recipients import BindingRecipients
from penstock.doors.webpush_sender.requests import BindingShown, PushOrder, check_accepted, read_order
from penstock.doors.webpush_sender.vapid_keys import open_vapid_key
from penstock.errors import ConfigInvalid, NotFound, TooLarge
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import BINDINGS, ENTRY_BYTES, PAGE_ENTRIES
from penstock.settings import Settings
from penstock.wire.eventhorizon import timestamp
from penstock.wire.webpush_sender import check_subscription
from penstock.wire.webpush_tokens import KEYS_RECORD, EndpointTokens

_ID = (text("id", "As it was given when it was made.", pattern=PATH_LEVEL),)
_encode = msgspec.json.Encoder().encode


class WebPushSender:
    """Answers the calls; `Bindings` runs what was bound."""

    def __init__(self, context: Context, settings: Settings) -> None:
        self._context, self._settings = context, settings.webpush

    async def __aenter__(self) -> Self:
        """Go on with what the registry holds."""
        context, settings = self._context, self._settings
        if settings.contact and not settings.contact.startswith(("mailto:", "https:")):
            raise ConfigInvalid("webpush.contact", "is neither mailto:… nor https:…")
        key = await open_vapid_key(context.registry, settings.vapid_key)
        self._client = PushClient(key, settings.contact, settings.send_timeout)
        self._bindings = Bindings(context, settings, self._client, await self._tokens())
        await self._bindings.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._bindings.stop()

    async def _tokens(self) -> EndpointTokens:
        """What reads the names of this installation's receipt subscriptions; it makes none, so it needs no process."""
        if self._settings.token_keys:
            return EndpointTokens(self._settings.token_keys, b"")
        made = await made_once(self._context.registry, KEYS_RECORD, lambda: _encode([Fernet.generate_key().decode()]))
        return EndpointTokens(msgspec.json.decode(made, type=list[str]), b"")

    def routes(self) -> list[Route]:
        """Its rows of the table."""
        body = WHOLE(min(self._context.body_limit, 2 * ENTRY_BYTES))
        admit = self._context.admitting(lambda caller: caller.check_grant("webpush"))
        patience = self._settings.send_timeout + 15  # one message waits for its push service, and for the way there
        return [
            Route("POST", "/v1/webpush", self.create, body, patience, admit=admit, door="webpush"),
            Route("GET", "/v1/webpush", self.show_all, door="webpush"),
            Route("GET", "/v1/webpush/key", self.key, door="webpush"),
            Route("GET", "/v1/webpush/*", self.show, door="webpush"),
            Route("DELETE", "/v1/webpush/*", self.delete, door="webpush"),
        ]

    def samples(self) -> Iterable[Sample]:
        bindings, here = self._bindings, len(self._bindings.running)
        yield "gauge", "webpush_bindings", "Subscriptions bound to streams that this node runs.", here, {}
        yield "counter", "webpush_unbound", "Bindings ended because nobody was there.", bindings.unbound, {}
        yield "gauge", "webpush_services_failing", "Push services that take nothing now.", bindings.failing, {}

    def recipient_kinds(self) -> list[RecipientKind]:
        return [BindingRecipients(self._context, self._bindings)]

    # ── the calls ──────────────────────────────────────────────────────────────────────────────

    @operation(
        "The public key that pages subscribe with (applicationServerKey).",
        answers={200: an_object(public_key=STRING)},
        public=True,
    )
    def key(self, request: Request) -> Response:
        """The public key that pages subscribe with; no secret."""
        return Response(200, _encode({"public_key": self._client.public_key}))

    @operation(
        "Bind a browser's PushSubscription to a stream, or send it one message.",
        body=PushOrder,
        answers={200: BindingShown, 201: {"anyOf": [BindingShown, an_object(sent=BOOLEAN, location=STRING)]}},
        errors=(404, 507),
    )
    async def create(self, request: Request) -> Response:
        """Bind a subscription to a stream, or send it one message."""
        caller = self._caller(request)
        order = read_order(request.body, caller, self._settings.ttl_most)
        if order.message is not None:
            return await self._send_one(order, order.message.encode())
        return await self._bind(caller, order)

    async def _bind(self, caller: Caller, order: PushOrder) -> Response:
        stream = check_pattern(order.stream)
        caller.check_subscribe(stream)
        id = binding_id(stream, order.subscription.endpoint)
        known = await self._bindings.find(id)
        if known is not None and not _may_see(caller, known):
            raise NotFound("binding", id)
        if known is None and len(self._bindings.running) >= BINDINGS:
            raise TooLarge("bindings", len(self._bindings.running) + 1, BINDINGS)
        own = self._bindings.of_owner[caller.subject]
        if known is None and own >= share(BINDINGS, caller.sharer):
            raise TooLarge("bindings of one subject", own + 1, share(BINDINGS, caller.sharer))
        after, made_ms = self._context.hub.position, self._context.clock.now_ms()
        if order.after is not None:
            after = order.after
        if known is not None:  # it stays where it is
            after, made_ms = known.after, known.created_ms
        record = BindingRecord(
            stream, order.subscription, order.ttl, order.urgency, order.topic, order.allow_private,
            caller.subject, caller.admin, caller.subscribe, made_ms, after, order.receipts,
            known is not None and known.paused,
        )  # fmt: skip
        await self._bindings.keep(id, record)
        return Response(200 if known else 201, _encode(await self._shown(id, record)))

    async def _send_one(self, order: PushOrder, message: bytes) -> Response:
        receiver = check_subscription(order.subscription)
        target = self._client.target(receiver.endpoint, allow_private=order.allow_private)
        try:
            verdict = await self._client.deliver(target, receiver, message, order.options)
        finally:
            target.close()
        check_accepted(verdict)
        return Response(201, _encode({"sent": True, "location": verdict.location}))

    @operation(
        "List the bindings, with what became of them.",
        query=(text("after", "Ids after this one."), limit_parameter("Bindings at most.")),
        answers={200: an_object(bindings=a_list(BindingShown), more=BOOLEAN)},
    )
    async def show_all(self, request: Request) -> Response:
        """All that the caller may see, in order of their ids: the own ones, or everybody's for the admin."""
        caller = self._caller(request)
        only(request, "after", "limit")
        after, limit = (
            request.params.get("after", ""),
            integer(request, "limit", PAGE_ENTRIES, least=1, most=PAGE_ENTRIES),
        )
        shown: list[BindingShown] = []
        async for found in self._bindings.records(after=after):
            record = msgspec.json.decode(found.value, type=BindingRecord)
            if _may_see(caller, record):
                if len(shown) == limit:
                    return Response(200, _encode({"bindings": shown, "more": True}))
                shown.append(await self._shown(found.key.removeprefix(PREFIX), record))
        return Response(200, _encode({"bindings": shown, "more": False}))

    @operation("One binding.", path=_ID, answers={200: BindingShown}, errors=(404,))
    async def show(self, request: Request) -> Response:
        id, record = await self._find(request)
        return Response(200, _encode(await self._shown(id, record)))

    @operation("Unbind: send no more.", path=_ID, answers={204: None}, errors=(404, 507))
    async def delete(self, request: Request) -> Response:
        id, _ = await self._find(request)
        await self._bindings.unbind(id)
        return Response(204)

    # ── seeing them ────────────────────────────────────────────────────────────────────────────

    def _caller(self, request: Request) -> Caller:
        caller = self._context.caller(request)
        caller.check_grant("webpush")
        return caller

    async def _find(self, request: Request) -> tuple[str, BindingRecord]:
        caller = self._caller(request)
        id = request.captures[0]
        record = await self._bindings.find(id)
        if record is None or not _may_see(caller, record):
            raise NotFound("binding", id[:40])
        return id, record

    async def _shown(self, id: str, record: BindingRecord) -> BindingShown:
        """As far as this node knows it: how many were sent is known to the node that sends."""
        shown = BindingShown(
            id, record.stream, check_endpoint(record.subscription.endpoint), "elsewhere", 0, 0, 0, 0, "", "",
            record.ttl, record.urgency, record.topic, record.owner, timestamp(record.created_ms),
        )  # fmt: skip
        binding = self._bindings.running.get(id)
        if binding is None:
            shown.position = await self._bindings.position(id, record)
            return shown
        status = binding.status
        shown.state = "failing" if status.error else "sending" if binding.full else "waiting"
        shown.position, shown.sent, shown.dropped = binding.position, status.sent, status.dropped
        shown.acked, shown.error = status.acked, status.error
        shown.error_time = timestamp(status.error_ms) if status.error and status.error_ms else ""
        return shown


def _may_see(caller: Caller, record: BindingRecord) -> bool:
    return caller.admin or record.owner == caller.subject
