"""What a send asks for, as far as that can be said without asking a table: where to, from whom, and how.

A sender that comes again with the very same head has its answer ready (`Request.memo`): only what time changes,
a signature's validity, is looked at anew.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.core.clock import Clock
from penstock.core.ledger import Recipient
from penstock.errors import InputInvalid
from penstock.http.requests import Request
from penstock.wire import vapid
from penstock.wire.webpush_endpoint import PushHeaders, PushOptions, parse_push
from penstock.wire.webpush_errors import EndpointRefused, Errno
from penstock.wire.webpush_tokens import EndpointSubscription, EndpointTokens

PUSH_SENDERS_KNOWN: Final = 4_096
"""VAPID tokens remembered as verified, until they expire. Over it: all are forgotten, and verified again."""

_HOSTS_KNOWN = 256  # names under which the service is addressed
_SAID = (b"ttl", b"topic", b"urgency", b"content-encoding", b"encryption", b"crypto-key", b"prefer")


class EndpointRequest(msgspec.Struct, frozen=True, gc=False):
    """A send whose head is in order."""

    who: Recipient
    subscription: EndpointSubscription
    push: PushOptions
    origin: str  # under which the service was addressed
    authorization: bytes | None
    crypto_key: bytes
    receipt: str  # the receipt subscription that is named
    from_page: bool
    scheme: str  # what is said here holds for requests with this scheme
    body_bytes: int  # … and a body of this length


class EndpointRequestReader:
    """Reads sends."""

    def __init__(self, tokens: EndpointTokens, clock: Clock, *, origin: str, body_limit: int, ttl_most: int) -> None:
        self._tokens, self._clock, self._origin = tokens, clock, origin
        self._body_limit, self._ttl_most = body_limit, ttl_most
        self._origins: dict[tuple[str, bytes], str] = {}  # by scheme and Host header
        self._senders: dict[tuple[bytes, bytes], vapid.VapidClaims] = {}
        self._pushes: dict[tuple[bool, tuple[bytes | None, ...]], PushOptions] = {}

    def read(self, request: Request) -> EndpointRequest:
        """What the request asks for, if its sender may. `EndpointRefused` if not, `InputInvalid` for a strange Host."""
        known: EndpointRequest | None = request.memo.get("push")
        if known is None or known.body_bytes != len(request.body) or known.scheme != request.scheme:
            known = request.memo["push"] = self._read(request)
        else:
            self._check_sender(known.subscription, known.authorization, known.crypto_key, known.origin)
        return known

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

    def _read(self, request: Request) -> EndpointRequest:
        version, token = request.captures if len(request.captures) == 2 else ("v1", request.captures[0])
        subscription = self._tokens.subscription(version, token)
        origin, header = self.origin(request), dict(reversed(request.headers)).get  # of several the first counts
        authorization, crypto_key = header(b"authorization"), header(b"crypto-key") or b""
        self._check_sender(subscription, authorization, crypto_key, origin)
        push = self._push(len(request.body), tuple(map(header, _SAID)))
        receipt = (header(b"push-receipt") or b"").decode("latin-1")
        return EndpointRequest(
            Recipient("webpush", subscription.uaid), subscription, push, origin, authorization, crypto_key, receipt,
            header(b"origin") is not None, request.scheme, len(request.body),
        )  # fmt: skip

    def _push(self, body_bytes: int, said: tuple[bytes | None, ...]) -> PushOptions:
        """What the headers *said* ask for: to each of its endpoints a sender says the same."""
        key = body_bytes > 0, said
        push = self._pushes.get(key)
        if push is None or body_bytes > self._body_limit:
            push = parse_push(_text(said), body_bytes, body_limit=self._body_limit, ttl_most=self._ttl_most)
            if len(self._pushes) >= PUSH_SENDERS_KNOWN:
                self._pushes.clear()
            self._pushes[key] = push
        return push

    def _check_sender(
        self, subscription: EndpointSubscription, authorization: bytes | None, crypto_key: bytes, origin: str
    ) -> None:
        """VAPID: optional with v1, but true if given; with v2 only the key that the subscription is bound to."""
        if authorization is None:
            if subscription.key_hash:
                raise EndpointRefused(
                    Errno.AUTHORIZATION, "this endpoint wants VAPID", vapid.CHECKS["authorization_missing"]
                )
            return
        try:
            claims = self._claims(authorization, crypto_key, origin)
            if subscription.key_hash:
                vapid.check_key(claims.key, subscription.key_hash)
        except vapid.VapidInvalid as error:
            raise EndpointRefused(Errno.AUTHORIZATION, str(error), error.remedy) from None

    def _claims(self, authorization: bytes, crypto_key: bytes, origin: str) -> vapid.VapidClaims:
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


def _origin(scheme: str, host: str) -> str:
    try:
        return vapid.origin_of(f"{scheme}://{host}")
    except ValueError:
        raise InputInvalid("Host", "is no name of a host", remedy="Address the service by its name.") from None


def _text(said: tuple[bytes | None, ...]) -> PushHeaders:
    ttl, topic, *others = (None if value is None else value.decode("latin-1") for value in said)
    return PushHeaders(ttl, topic, *(value or "" for value in others))
