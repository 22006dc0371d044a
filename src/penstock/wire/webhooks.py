"""Signatures by Standard Webhooks 1.0: HMAC-SHA256 over id, time and body.

    webhook-id: msg_2b7c…           the same for every attempt at one message
    webhook-timestamp: 1763200000   seconds; a receiver refuses what is too old
    webhook-signature: v1,K5oZ…     several are separated by spaces, while a secret is being replaced

Whoever knows the secret can make them, and nobody else.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping

from penstock.errors import InputInvalid

TOLERANCE_SECONDS = 5 * 60
_PREFIX = "whsec_"


class SignatureInvalid(Exception):
    """It was not signed with the secret, or too long ago."""


def parse_secret(text: str) -> bytes:
    """The key in a secret of the form `whsec_BASE64`; 24 to 64 bytes, as the standard demands."""
    try:
        key = b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not 24 <= len(key) <= 64:
        raise InputInvalid("secret", f"is not {_PREFIX} and 24 to 64 bytes in base64", code="secret_invalid")
    return key


def message_id(*parts: str) -> str:
    """An id that is the same whenever the same thing is sent."""
    return "msg_" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def sign(key: bytes, id: str, seconds: int, body: bytes) -> tuple[tuple[str, str], ...]:
    """The headers to send with *body*."""
    signature = "v1," + b64encode(_mac(key, id, str(seconds), body)).decode()
    return (("webhook-id", id), ("webhook-timestamp", str(seconds)), ("webhook-signature", signature))


def verify(key: bytes, headers: Mapping[str, str], body: bytes, now: float) -> None:
    """Raise *SignatureInvalid* unless one of the signatures is right, and the time is near *now*."""
    id, seconds, given = (headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not id or not (seconds.isascii() and seconds.isdigit() and len(seconds) <= 12):
        raise SignatureInvalid("webhook-id or webhook-timestamp is missing or wrong")
    if abs(now - int(seconds)) > TOLERANCE_SECONDS:
        raise SignatureInvalid(f"it was signed more than {TOLERANCE_SECONDS} s away from now")
    wanted = b64encode(_mac(key, id, seconds, body))
    for one in given.split(" "):
        version, _, signature = one.partition(",")
        if version == "v1" and hmac.compare_digest(signature.encode(), wanted):
            return
    raise SignatureInvalid("no signature matches")


def _mac(key: bytes, id: str, seconds: str, body: bytes) -> bytes:
    return hmac.digest(key, f"{id}.{seconds}.".encode() + body, "sha256")
