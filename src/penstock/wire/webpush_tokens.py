"""What endpoints, messages and receipts are called: texts that only this service can read.

An endpoint's token holds the user agent and the channel, so no table has to be asked which those are; and
nobody else can tell that two endpoints belong to one user agent, as the seed demands. It is a Fernet token
as autopush makes them. A message's id holds the time and the user agent, in 59 characters:

    base64url( 8 bytes µs | 4 bytes of this process | AES-GCM of the UAID's 16 bytes )

Who knows an id may cancel the message: it cannot be guessed. Time and random bytes come in as arguments; the
initialisation vector of a Fernet token alone is drawn by the library.

Outcomes of messages are entries of 256 streams that all receipt subscriptions share. The name of a receipt subscription
holds which one its outcomes are in.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.errors import ConfigInvalid
from penstock.wire.webpush_errors import EndpointRefused, Errno

PUSH_TOKENS_KNOWN: Final = 50_000
"""Endpoint tokens remembered as read. Over it: all are forgotten, and read again."""

KEYS_RECORD = "webpush/keys"
"""Where the registry keeps the keys of an installation that has none in its settings."""

_NONCE = 12
_MESSAGE, _RECEIPT = b"message", b"receipt"


class EndpointSubscription(msgspec.Struct, frozen=True, gc=False):
    """Where an endpoint leads."""

    uaid: str
    channel: str
    key_hash: bytes = b""  # SHA-256 of the one key that may send to it; empty when anybody may


def receipt_stream(shard: int) -> str:
    """Where the outcomes of all receipt subscriptions of one shard are."""
    return f"/_receipts/{shard:02x}"


class EndpointTokens:
    """Makes and reads them. The first key encrypts, all decrypt. *process* is 4 bytes by chance."""

    def __init__(self, keys: Sequence[str], process: bytes) -> None:
        try:
            self._fernet = MultiFernet([Fernet(key) for key in keys])
        except ValueError:
            raise ConfigInvalid(
                "webpush.token_keys",
                "a key is not 32 bytes in base64url",
                remedy="Make one with 'head -c 32 /dev/urandom | base64 | tr +/ -_'.",
            ) from None
        self._ciphers = [AESGCM(hashlib.sha256(b"penstock id " + key.encode()).digest()) for key in keys]
        self._process = process
        self._stamp = 0
        self._known: dict[str, EndpointSubscription] = {}

    def endpoint(self, subscription: EndpointSubscription) -> str:
        """The path of a new endpoint; every call makes another that leads to the same place."""
        plain = bytes.fromhex(subscription.uaid) + bytes.fromhex(subscription.channel.replace("-", ""))
        version = "v2" if subscription.key_hash else "v1"
        token = self._fernet.encrypt(plain + subscription.key_hash).decode().rstrip("=")
        return f"/wpush/{version}/{token}"

    def subscription(self, version: str, token: str) -> EndpointSubscription:
        """Where the endpoint with this version and token leads. Raises `EndpointRefused`."""
        found = self._known.get(token)
        if found is None:
            found = self._read(token)
            if len(self._known) >= PUSH_TOKENS_KNOWN:
                self._known.clear()
            self._known[token] = found
        if version not in ("v1", "v2") or bool(found.key_hash) != (version == "v2"):
            raise EndpointRefused(Errno.TOKEN, f"this token is not for /wpush/{version[:8]}/")
        return found

    def _read(self, token: str) -> EndpointSubscription:
        try:
            plain = self._fernet.decrypt(token.encode() + b"=" * (-len(token) % 4))
        except (InvalidToken, UnicodeEncodeError):
            raise EndpointRefused(Errno.TOKEN, "the endpoint's token cannot be read") from None
        if len(plain) not in (32, 64):
            raise EndpointRefused(Errno.TOKEN, "the endpoint's token has the wrong length")
        channel = plain[16:32].hex()
        dashed = "-".join((channel[:8], channel[8:12], channel[12:16], channel[16:20], channel[20:]))
        return EndpointSubscription(plain[:16].hex(), dashed, plain[32:])

    def message_id(self, uaid: str, now_ms: int) -> str:
        """A new id for a message to this user agent."""
        return self._seal(bytes.fromhex(uaid), _MESSAGE, now_ms)

    def recipient_of(self, message_id: str) -> str:
        """The user agent that a message is for. Raises `EndpointRefused` for what is no message's id."""
        plain = self._open(message_id, _MESSAGE)
        if plain is None:
            raise EndpointRefused(Errno.MESSAGE_UNKNOWN, "the message's id cannot be read")
        return plain.hex()

    def receipt_id(self, shard: int, now_ms: int) -> str:
        """A new name for a receipt subscription whose outcomes are in *shard*, from 0 to 255."""
        return self._seal(shard.to_bytes(1), _RECEIPT, now_ms)

    def receipt_shard(self, text: str) -> int | None:
        """In which shard the outcomes of a receipt subscription are; None for a name that we did not give."""
        plain = self._open(text, _RECEIPT)
        return None if plain is None else int.from_bytes(plain[:1])

    def _seal(self, plain: bytes, purpose: bytes, now_ms: int) -> str:
        # Strictly rising within the process: there no nonce comes twice. Another process has the same 4 bytes by one
        # chance in 4 billion, and would have to be at the same microsecond as well.
        self._stamp = max(self._stamp + 1, now_ms * 1000)
        nonce = self._stamp.to_bytes(8) + self._process
        sealed = self._ciphers[0].encrypt(nonce, plain, purpose)
        return urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def _open(self, text: str, purpose: bytes) -> bytes | None:
        try:
            raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            return None
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(raw[:_NONCE], raw[_NONCE:], purpose)
            except (InvalidTag, ValueError):
                continue
        return None
