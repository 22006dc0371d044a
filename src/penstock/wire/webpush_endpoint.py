"""What a sender says to an endpoint (RFC 8030), checked. How it is refused: `webpush_errors.py`."""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.wire.webcrypto import Coding, CodingInvalid, parse_coding
from penstock.wire.webpush_errors import EndpointRefused, Errno

URGENCIES = ("very-low", "low", "normal", "high")
RECEIPT_RELATION = "urn:ietf:params:push:receipt"

_INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")  # whatever is too long to wait for is cut
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,32}=*")


class PushOptions(NamedTuple):
    """What the headers of a send say."""

    ttl: int  # as it is kept, after cutting
    topic: str
    urgency: str
    coding: Coding
    respond_async: bool


class PushHeaders(NamedTuple):
    """The headers that mean something to an endpoint, as they came."""

    ttl: str | None = None
    topic: str | None = None
    urgency: str = ""
    content_encoding: str = ""
    encryption: str = ""
    crypto_key: str = ""
    prefer: str = ""


NO_CODING, USUAL_CODING = Coding(""), Coding("aes128gcm")


def parse_push(headers: PushHeaders, body_bytes: int, *, body_limit: int, ttl_most: int) -> PushOptions:
    """Check everything about a send but who sends it. Raises `EndpointRefused`."""
    if body_bytes > body_limit:
        raise EndpointRefused(Errno.BODY_TOO_LARGE, f"the body has {body_bytes:,} bytes, the limit is {body_limit:,}")
    ttl = min(parse_ttl(headers.ttl), ttl_most)
    coding = _parse_coding(headers) if body_bytes else NO_CODING
    topic = _parse_topic(headers.topic)
    urgency = headers.urgency if headers.urgency in URGENCIES else ""
    return PushOptions(ttl, topic, urgency, coding, _prefers_async(headers.prefer))


def parse_ttl(text: str | None) -> int:
    """Seconds for which a message is kept."""
    if text is None:
        raise EndpointRefused(Errno.TTL_MISSING, "there is no TTL header")
    number = text.strip(" \t")
    if not _INTEGER.fullmatch(number):
        raise EndpointRefused(Errno.TTL_INVALID, f"TTL {text[:20]!r} is not a whole number")
    if int(number) < 0:
        raise EndpointRefused(Errno.TTL_NEGATIVE, f"TTL {number[:20]} is negative")
    return int(number)


def _parse_coding(headers: PushHeaders) -> Coding:
    if headers.content_encoding == "aes128gcm" and not headers.encryption and not headers.crypto_key:
        return USUAL_CODING
    try:
        return parse_coding(headers.content_encoding, headers.encryption, headers.crypto_key)
    except CodingInvalid as error:
        raise EndpointRefused(Errno.CODING, str(error), error.remedy) from None


def _parse_topic(text: str | None) -> str:
    if text is None:
        return ""
    if len(text) > 32 or not _TOPIC.fullmatch(text):
        raise EndpointRefused(Errno.TOPIC, f"Topic {text[:40]!r} is not 1 to 32 characters of base64url")
    return text


def _prefers_async(prefer: str) -> bool:
    return any(part.strip().lower() == "respond-async" for part in prefer.split(","))
