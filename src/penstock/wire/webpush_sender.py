"""What a sender of push messages decides: who is meant, what to send, and what an answer means. Pure.

A browser's `PushSubscription` becomes a `PushReceiver`, a message for it a body (wire/webcrypto.py) and headers,
and the push service's answer a `Verdict`:

    ACCEPTED  it will try to deliver        GONE   nobody is there, ever
    REFUSED   never this message            LATER  try again, until the message is too old

What is done about each: `doors/webpush_sender/binding.py` (`_send`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

import msgspec

from penstock.errors import InputInvalid
from penstock.values import Entry
from penstock.wire.retrying import parse_retry_after
from penstock.wire.webcrypto import AUTH_BYTES, KeyInvalid, decode64, load_public

URGENCIES = ("very-low", "low", "normal", "high")
_RECEIPT = re.compile(r'<([^<>\s]+)>\s*;\s*rel="urn:ietf:params:push:receipt"')
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,32}")
_FULL = 507  # the mailbox of this one user agent: others of the service take messages all the same
_PASSING = frozenset({401, 403, 408, 425, 429})
"""Refusals that may end without the message changing: a clock is set, a key is allowed, a rate goes down."""


class PushKeys(msgspec.Struct, frozen=True):
    """What only the user agent and its site know."""

    p256dh: str
    auth: str


class PushSubscription(msgspec.Struct, frozen=True):
    """What `JSON.stringify(subscription)` gives in a browser; its `expirationTime` is passed over."""

    endpoint: str
    keys: PushKeys


@dataclass(frozen=True, slots=True)
class PushReceiver:
    """A subscription that was checked."""

    endpoint: str
    key: bytes  # the user agent's public key, 65 bytes
    auth: bytes


@dataclass(frozen=True, slots=True)
class SendOptions:
    """How a message is to be sent."""

    ttl: int  # seconds that the push service keeps it for a user agent that is away
    urgency: str = ""
    topic: str = ""  # a later message of the same topic takes the place of one that waits


class PushOutcome(Enum):
    """What an answer of a push service means for a message."""

    ACCEPTED = "accepted"
    GONE = "gone"
    REFUSED = "refused"
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer, judged."""

    outcome: PushOutcome
    reason: str = ""
    retry_after: float | None = None
    everybody: bool = False  # it concerns the service, not this message or this subscription
    forbidden: bool = False  # we may not even talk to it
    location: str = ""  # what the service calls the message
    receipt: str = ""  # where the service tells what becomes of it


def check_subscription(given: PushSubscription) -> PushReceiver:
    """The subscription with its keys as bytes; `InputInvalid` says what is wrong with it."""
    parts = urlsplit(given.endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputInvalid("endpoint", "is not the URL of a push service", code="subscription_invalid")
    try:
        key, auth = decode64(given.keys.p256dh), decode64(given.keys.auth)
        load_public(key)
    except KeyInvalid as error:
        raise InputInvalid("keys.p256dh", error.why, code="subscription_invalid") from None
    except ValueError:
        raise InputInvalid("keys", "are not base64url", code="subscription_invalid") from None
    if len(auth) != AUTH_BYTES:
        raise InputInvalid("keys.auth", f"has {len(auth)} bytes, not {AUTH_BYTES}", code="subscription_invalid")
    return PushReceiver(given.endpoint, key, auth)


def check_send_options(options: SendOptions, longest_ttl: float) -> SendOptions:
    """*options* itself; `InputInvalid` says what no push service would take."""
    if not 0 <= options.ttl <= longest_ttl:
        raise InputInvalid("ttl", f"{options.ttl} is not a number of seconds from 0 to {longest_ttl:.0f}")
    if options.urgency and options.urgency not in URGENCIES:
        raise InputInvalid("urgency", f"{options.urgency[:20]!r} is not one of {', '.join(URGENCIES)}")
    if options.topic and not _TOPIC.fullmatch(options.topic):
        raise InputInvalid("topic", "is not 1 to 32 letters, digits, - or _")
    return options


def push_headers(options: SendOptions, authorization: str, receipt: str | None = None) -> tuple[tuple[str, str], ...]:
    """What goes beside an encrypted body. *receipt* asks for one: into that subscription, or a new one if empty."""
    headers = [("TTL", str(options.ttl)), ("Content-Encoding", "aes128gcm"), ("Authorization", authorization)]
    headers += [("Urgency", options.urgency)] if options.urgency else []
    headers += [("Topic", options.topic)] if options.topic else []
    if receipt is not None:
        headers.append(("Prefer", "respond-async"))
        headers += [("Push-Receipt", f"<{receipt}>")] if receipt else []
    return tuple(headers)


def deadline_ms(entry: Entry, ttl: int) -> int:
    """When an entry is too old to be sent."""
    end = entry.published_ms + ttl * 1000
    return end if entry.expires_ms is None else min(end, entry.expires_ms)


def judge(status: int, headers: dict[str, str], body: bytes = b"") -> Verdict:
    """What the answer of a push service means; *headers* by lower-case names."""
    if 200 <= status < 300:
        found = _RECEIPT.search(headers.get("link", ""))
        return Verdict(PushOutcome.ACCEPTED, location=headers.get("location", ""), receipt=found[1] if found else "")
    said = _said(status, body)
    if status in (404, 410):
        return Verdict(PushOutcome.GONE, said)
    if status >= 500 or status in _PASSING:
        everybody = (status >= 500 and status != _FULL) or status == 429
        return Verdict(PushOutcome.LATER, said, parse_retry_after(headers.get("retry-after", "")), everybody)
    if 300 <= status < 400:
        return Verdict(PushOutcome.LATER, f"{said}; redirects are not followed")
    return Verdict(PushOutcome.REFUSED, said)


def _said(status: int, body: bytes) -> str:
    shown = " ".join(body[:160].decode(errors="replace").split())
    return f"{status} {shown}" if shown.isprintable() and shown else str(status)
