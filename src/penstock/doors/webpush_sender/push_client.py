"""Takes one message to a push service: encrypted for the user agent, signed for the service."""

from __future__ import annotations

import os
import time

from cryptography.hazmat.primitives.asymmetric import ec

from penstock.errors import InputInvalid
from penstock.http.client import AddressPrivate, OutgoingError, Target, parse_url
from penstock.wire.vapid import origin_of, sign
from penstock.wire.webcrypto import PrivateKey, encode64, encrypt, point_of
from penstock.wire.webpush_sender import PushOutcome, PushReceiver, SendOptions, Verdict, judge, push_headers

_SIGNED_SECONDS = 12 * 3600
_RENEWED_SECONDS = 3600  # before its end a signature is replaced: clocks differ, and messages wait
_SIGNED_ORIGINS = 1_024
_ANSWER_BYTES = 64 * 1024

PushTarget = Target
"""Connections to one push service."""


class PushClient:
    """Signs with one key; a signature serves all messages to one push service for half a day."""

    def __init__(self, key: PrivateKey, contact: str, timeout: float) -> None:
        self._key, self._contact, self._timeout = key, contact, timeout
        self._signed: dict[str, tuple[float, str]] = {}

    @property
    def public_key(self) -> str:
        """What a page gives to `pushManager.subscribe` as `applicationServerKey`."""
        return encode64(point_of(self._key))

    def target(self, endpoint: str, *, allow_private: bool) -> PushTarget:
        """Where the messages for an endpoint go."""
        return Target(
            parse_url(endpoint),
            allow_private=allow_private,
            timeout=self._timeout,
            connect_timeout=min(10.0, self._timeout),
            limit_bytes=_ANSWER_BYTES,
        )

    async def deliver(
        self,
        target: PushTarget,
        receiver: PushReceiver,
        message: bytes,
        options: SendOptions,
        receipt: str | None = None,
    ) -> Verdict:
        """Send *message* once, to the endpoint at *target*'s origin. Never raises for what the other side does."""
        body = encrypt(
            message,
            user_agent=receiver.key,
            auth=receiver.auth,
            private_key=ec.generate_private_key(ec.SECP256R1()),
            salt=os.urandom(16),
        )
        headers = push_headers(options, self._authorization(origin_of(receiver.endpoint)), receipt)
        try:
            path = parse_url(receiver.endpoint).target
            answer = await target.post(body, headers, path=path, content_type="application/octet-stream")
        except OutgoingError as error:
            return Verdict(PushOutcome.LATER, str(error), everybody=True, forbidden=isinstance(error, AddressPrivate))
        return judge(answer.status, answer.headers, answer.body)

    def _authorization(self, origin: str) -> str:
        now = time.time()
        until, header = self._signed.get(origin, (0.0, ""))
        if until < now + _RENEWED_SECONDS:
            if len(self._signed) >= _SIGNED_ORIGINS:
                self._signed.clear()
            until = now + _SIGNED_SECONDS
            header = sign(self._key, origin=origin, exp=int(until), sub=self._contact)
            self._signed[origin] = until, header
        return header


def check_endpoint(endpoint: str) -> str:
    """The origin of an endpoint; `InputInvalid` for a URL that nothing can be sent to."""
    try:
        parse_url(endpoint)
    except InputInvalid as error:
        raise InputInvalid("endpoint", error.why, code="subscription_invalid") from None
    return origin_of(endpoint)
