"""`/v1/webpush`: binds the subscriptions of browsers to streams, or sends one message.

Bindings are kept in the registry and outlive the server. The server is a sender like any other here: it
encrypts, signs and posts to whatever push service the browser named, be it ours or another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context, integer, only
from penstock.api.describing import (
    BOOLEAN,
    LARGEST,
    PATH_LEVEL,
    PATTERN_FIELD,
    STRING,
    a_list,
    an_object,
    operation,
    shown_as,
    text,
)
from penstock.api.describing import limit as limit_parameter
from penstock.core.metering import Sample
from penstock.core.names import check_pattern
from penstock.doors.webpush.bindings import Kept, binding_id
from penstock.doors.webpush.courier import Courier, check_endpoint
from penstock.doors.webpush.roster import BINDINGS as PREFIX
from penstock.doors.webpush.roster import Roster
from penstock.doors.webpush.vapid_keys import open_vapid_key
from penstock.errors import Busy, ConfigInvalid, InputInvalid, NotFound, PenstockError, TooLarge
from penstock.http.exchange import Request, Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import BINDINGS, ENTRY_BYTES, PAGE_ENTRIES, URL_BYTES
from penstock.settings import WebPushSettings
from penstock.wire.eventhorizon import timestamp
from penstock.wire.pushing import URGENCIES, Outcome, PushSubscription, Verdict, Wish, check_subscription, check_wish

T = TypeVar("T")
_ID = (text("id", "As it was given when it was made.", pattern=PATH_LEVEL),)
_encode = msgspec.json.Encoder().encode


class SubscriptionGone(NotFound):
    """The push service says that nobody is there."""

    def __init__(self, reason: str) -> None:
        remedy = "Forget this subscription; the page subscribes anew when it is opened."
        super().__init__("subscription", reason, code="subscription_gone", remedy=remedy)


class MessageRefused(InputInvalid):
    """The push service will never take this message."""

    def __init__(self, reason: str) -> None:
        super().__init__("message", f"the push service answered {reason}", code="push_refused")


class ServiceFailed(Busy):
    """The push service did not take it now."""

    code = "push_service_failed"

    def __init__(self, verdict: Verdict) -> None:
        PenstockError.__init__(self, f"the push service did not take it: {verdict.reason}")
        self.retry_after = int(verdict.retry_after or 5)
        self.remedy = f"Nothing is kept of it: send it again in {self.retry_after} s, or bind the subscription."


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """What somebody asks for: a stream to bind to, or one message."""

    subscription: PushSubscription
    stream: Annotated[str, shown_as(anyOf=[PATTERN_FIELD.extra_json_schema, {"maxLength": 0}])] = ""
    after: Annotated[int, shown_as(minimum=0, maximum=LARGEST)] | None = None
    message: str | None = None
    ttl: Annotated[int, shown_as(minimum=0)] = 86_400
    urgency: Annotated[str, shown_as(enum=["", *URGENCIES])] = ""
    topic: Annotated[str, shown_as(pattern="^[A-Za-z0-9_-]{0,32}$")] = ""
    receipts: bool = False
    allow_private: bool = False


class Shown(msgspec.Struct):
    """A binding as it is shown: of the endpoint only the origin, for the rest is a capability."""

    id: str
    stream: str
    service: str
    state: str  # waiting, sending or failing; elsewhere when another node of a cluster sends
    position: int
    sent: int
    acked: int  # by the user agent, as far as receipts tell
    dropped: int
    error: str
    error_time: str
    ttl: int
    urgency: str
    topic: str
    owner: str
    created: str


class Sender:
    """Answers the calls; the bindings themselves are the roster's."""

    def __init__(self, context: Context, settings: WebPushSettings) -> None:
        self._context, self._settings = context, settings
        self._roster = Roster(context, settings)

    async def start(self, shard_of: Callable[[str], int | None]) -> None:
        """Go on with what the registry holds. *shard_of* knows the receipt subscriptions of this service."""
        settings = self._settings
        if settings.contact and not settings.contact.startswith(("mailto:", "https:")):
            raise ConfigInvalid("webpush.contact", "is neither mailto:… nor https:…")
        key = await open_vapid_key(self._context.registry, settings.vapid_key)
        self._courier = Courier(key, settings.contact)
        await self._roster.start(self._courier, shard_of)

    async def stop(self) -> None:
        """End all bindings here."""
        await self._roster.stop()

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
        """What it adds to `/metrics`."""
        roster = self._roster
        yield (
            "gauge",
            "webpush_bindings",
            "Subscriptions bound to streams that this node runs.",
            len(roster.running),
            {},
        )
        yield "counter", "webpush_unbound", "Bindings ended because nobody was there.", roster.unbound, {}
        yield "gauge", "webpush_services_failing", "Push services that take nothing now.", roster.failing, {}

    # ── the calls ──────────────────────────────────────────────────────────────────────────────

    @operation(
        "The public key that pages subscribe with (applicationServerKey).",
        answers={200: an_object(public_key=STRING)},
        public=True,
    )
    def key(self, request: Request) -> Response:
        """The public key that pages subscribe with; no secret."""
        return Response(200, _encode({"public_key": self._courier.public_key}))

    @operation(
        "Bind a browser's PushSubscription to a stream, or send it one message.",
        body=Wanted,
        answers={200: Shown, 201: {"anyOf": [Shown, an_object(sent=BOOLEAN, location=STRING)]}},
        errors=(404, 507),
    )
    async def create(self, request: Request) -> Response:
        """Bind a subscription to a stream, or send it one message."""
        caller = self._caller(request)
        wanted = _decode(request.body, Wanted)
        if bool(wanted.stream) == (wanted.message is not None):
            raise InputInvalid("body", "has to have either a stream or a message")
        if wanted.allow_private:
            caller.check_admin("web push with allow_private")
        if len(wanted.subscription.endpoint) > URL_BYTES:
            raise TooLarge("bytes of endpoint", len(wanted.subscription.endpoint), URL_BYTES)
        check_endpoint(wanted.subscription.endpoint)
        check_subscription(wanted.subscription)
        wish = check_wish(Wish(wanted.ttl, wanted.urgency, wanted.topic), self._settings.ttl_most)
        if wanted.message is not None:
            return await self._send_one(wanted, wanted.message.encode(), wish)
        return await self._bind(caller, wanted)

    async def _bind(self, caller: Caller, wanted: Wanted) -> Response:
        stream = check_pattern(wanted.stream)
        caller.check_subscribe(stream)
        id = binding_id(stream, wanted.subscription.endpoint)
        known = await self._roster.find(id)
        if known is not None and not _may_see(caller, known):
            raise NotFound("binding", id)
        if known is None and len(self._roster.running) >= BINDINGS:
            raise TooLarge("bindings", len(self._roster.running) + 1, BINDINGS)
        if wanted.after is not None and not 0 <= wanted.after <= LARGEST:
            raise InputInvalid("after", "is not the id of an entry")
        after, made_ms = self._context.hub.position, self._context.clock.now_ms()
        if wanted.after is not None:
            after = wanted.after
        if known is not None:  # it stays where it is
            after, made_ms = known.after, known.created_ms
        kept = Kept(
            stream, wanted.subscription, wanted.ttl, wanted.urgency, wanted.topic, wanted.allow_private,
            caller.subject, caller.admin, caller.subscribe, made_ms, after, wanted.receipts,
        )  # fmt: skip
        await self._roster.keep(id, kept)
        return Response(200 if known else 201, _encode(await self._shown(id, kept)))

    async def _send_one(self, wanted: Wanted, message: bytes, wish: Wish) -> Response:
        if len(message) > ENTRY_BYTES:
            raise TooLarge("bytes of message", len(message), ENTRY_BYTES)
        receiver = check_subscription(wanted.subscription)
        target = self._roster.target(receiver.endpoint, wanted.allow_private)
        try:
            verdict = await self._courier.deliver(target, receiver, message, wish)
        finally:
            target.close()
        if verdict.forbidden:
            remedy = "Have the admin send it with allow_private, if that is meant."
            raise InputInvalid("endpoint", verdict.reason, code="address_private", remedy=remedy)
        if verdict.outcome is Outcome.GONE:
            raise SubscriptionGone(verdict.reason)
        if verdict.outcome is Outcome.REFUSED:
            raise MessageRefused(verdict.reason)
        if verdict.outcome is Outcome.LATER:
            raise ServiceFailed(verdict)
        return Response(201, _encode({"sent": True, "location": verdict.location}))

    @operation(
        "List the bindings, with what became of them.",
        query=(text("after", "Ids after this one."), limit_parameter("Bindings at most.")),
        answers={200: an_object(bindings=a_list(Shown), more=BOOLEAN)},
    )
    async def show_all(self, request: Request) -> Response:
        """All that the caller may see, in order of their ids: the own ones, or everybody's for the admin."""
        caller = self._caller(request)
        only(request, "after", "limit")
        after, limit = (
            request.params.get("after", ""),
            integer(request, "limit", PAGE_ENTRIES, least=1, most=PAGE_ENTRIES),
        )
        shown: list[Shown] = []
        async for record in self._roster.records(after=after):
            kept = msgspec.json.decode(record.value, type=Kept)
            if _may_see(caller, kept):
                if len(shown) == limit:
                    return Response(200, _encode({"bindings": shown, "more": True}))
                shown.append(await self._shown(record.key.removeprefix(PREFIX), kept))
        return Response(200, _encode({"bindings": shown, "more": False}))

    @operation("One binding.", path=_ID, answers={200: Shown}, errors=(404,))
    async def show(self, request: Request) -> Response:
        """One of them."""
        id, kept = await self._find(request)
        return Response(200, _encode(await self._shown(id, kept)))

    @operation("Unbind: send no more.", path=_ID, answers={204: None}, errors=(404, 507))
    async def delete(self, request: Request) -> Response:
        """Unbind it."""
        id, _ = await self._find(request)
        await self._roster.unbind(id)
        return Response(204)

    # ── seeing them ────────────────────────────────────────────────────────────────────────────

    def _caller(self, request: Request) -> Caller:
        caller = self._context.caller(request)
        caller.check_grant("webpush")
        return caller

    async def _find(self, request: Request) -> tuple[str, Kept]:
        caller = self._caller(request)
        id = request.captures[0]
        kept = await self._roster.find(id)
        if kept is None or not _may_see(caller, kept):
            raise NotFound("binding", id[:40])
        return id, kept

    async def _shown(self, id: str, kept: Kept) -> Shown:
        """As far as this node knows it: how many were sent is known to the node that sends."""
        shown = Shown(
            id, kept.stream, check_endpoint(kept.subscription.endpoint), "elsewhere", 0, 0, 0, 0, "", "",
            kept.ttl, kept.urgency, kept.topic, kept.owner, timestamp(kept.created_ms),
        )  # fmt: skip
        binding = self._roster.running.get(id)
        if binding is None:
            shown.position = await self._roster.position(id, kept)
            return shown
        status = binding.status
        shown.state = "failing" if status.error else "sending" if binding.full else "waiting"
        shown.position, shown.sent, shown.dropped = binding.position, status.sent, status.dropped
        shown.acked, shown.error = status.acked, status.error
        shown.error_time = timestamp(status.error_ms) if status.error and status.error_ms else ""
        return shown


def _may_see(caller: Caller, kept: Kept) -> bool:
    return caller.admin or kept.owner == caller.subject


def _decode(body: bytes, type: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputInvalid("body", str(error), code="json_invalid") from None
