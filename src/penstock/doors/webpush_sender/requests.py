"""What a caller of `/v1/webpush` asks for, checked, what it is shown, and how the push service's answer is told."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.api.auth import Caller
from penstock.api.describing import LARGEST, PATTERN_FIELD, shown_as
from penstock.doors.webpush_sender.push_client import check_endpoint
from penstock.errors import Busy, InputInvalid, NotFound, PenstockError, TooLarge
from penstock.limits import ENTRY_BYTES, URL_BYTES
from penstock.wire.webpush_sender import (
    URGENCIES,
    PushOutcome,
    PushSubscription,
    SendOptions,
    Verdict,
    check_send_options,
    check_subscription,
)


class PushOrder(msgspec.Struct, forbid_unknown_fields=True):
    """A subscription, and either a stream to bind it to or one message."""

    subscription: PushSubscription
    stream: Annotated[str, shown_as(anyOf=[PATTERN_FIELD.extra_json_schema, {"maxLength": 0}])] = ""
    after: Annotated[int, shown_as(minimum=0, maximum=LARGEST)] | None = None
    message: str | None = None
    ttl: Annotated[int, shown_as(minimum=0)] = 86_400
    urgency: Annotated[str, shown_as(enum=["", *URGENCIES])] = ""
    topic: Annotated[str, shown_as(pattern="^[A-Za-z0-9_-]{0,32}$")] = ""
    receipts: bool = False
    allow_private: bool = False

    @property
    def options(self) -> SendOptions:
        return SendOptions(self.ttl, self.urgency, self.topic)


class BindingShown(msgspec.Struct):
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


def read_order(body: bytes, caller: Caller, ttl_most: float) -> PushOrder:
    """What the body orders, if the caller may."""
    try:
        order = msgspec.json.decode(body, type=PushOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputInvalid("body", str(error), code="json_invalid") from None
    if bool(order.stream) == (order.message is not None):
        raise InputInvalid("body", "has to have either a stream or a message")
    if order.allow_private:
        caller.check_admin("web push with allow_private")
    if len(order.subscription.endpoint) > URL_BYTES:
        raise TooLarge("bytes of endpoint", len(order.subscription.endpoint), URL_BYTES)
    check_endpoint(order.subscription.endpoint)
    check_subscription(order.subscription)
    check_send_options(order.options, ttl_most)
    if order.message is not None and len(order.message.encode()) > ENTRY_BYTES:
        raise TooLarge("bytes of message", len(order.message.encode()), ENTRY_BYTES)
    if order.after is not None and not 0 <= order.after <= LARGEST:
        raise InputInvalid("after", "is not the id of an entry")
    return order


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


def check_accepted(verdict: Verdict) -> None:
    """Raise what a caller has to know, unless the push service accepted the message."""
    if verdict.forbidden:
        remedy = "Have the admin send it with allow_private, if that is meant."
        raise InputInvalid("endpoint", verdict.reason, code="address_private", remedy=remedy)
    match verdict.outcome:
        case PushOutcome.GONE:
            raise SubscriptionGone(verdict.reason)
        case PushOutcome.REFUSED:
            raise MessageRefused(verdict.reason)
        case PushOutcome.LATER:
            raise ServiceFailed(verdict)
