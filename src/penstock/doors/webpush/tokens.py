"""What endpoints, messages and receipts are called: texts that only this service can read.

An endpoint's token holds the user agent and the channel, so no table has to be asked which those are; and
nobody else can tell that two endpoints belong to one user agent, as the seed demands. It is a Fernet token
as autopush makes them. A message's id holds the time and the user agent, in 59 characters:

    base64url( 8 bytes µs | 4 bytes of this process | AES-GCM of the UAID's 16 bytes )

Who knows an id may cancel the message: it cannot be guessed.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.core.clock import Clock
from penstock.core.registry import NEW, Registry
from penstock.errors import ConfigInvalid, VersionMismatch
from penstock.limits import PUSH_TOKENS_KNOWN
from penstock.wire.webpush_endpoint import Errno, Refused

KEYS_RECORD = "webpush/keys"
_NONCE = 12
_MESSAGE, _RECEIPT = b"message", b"receipt"


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """Where an endpoint leads."""

    uaid: str
    channel: str
    key_hash: bytes = b""  # SHA-256 of the one key that may send to it; empty when anybody may


async def open_keys(registry: Registry, given: Sequence[str]) -> list[str]:
    """The keys of the settings, or those of this installation, made at the first start and kept for ever."""
    if given:
        return list(given)
    while (record := await registry.get(KEYS_RECORD)) is None:
        try:
            await registry.put(KEYS_RECORD, msgspec.json.encode([Fernet.generate_key().decode()]), expect=NEW)
        except VersionMismatch:
            await asyncio.sleep(0)  # another node was first: its keys are ours
    return msgspec.json.decode(record.value, type=list[str])


class Tokens:
    """Makes and reads them. The first key encrypts, all decrypt."""

    def __init__(self, keys: Sequence[str], clock: Clock) -> None:
        try:
            self._fernet = MultiFernet([Fernet(key) for key in keys])
        except ValueError:
            raise ConfigInvalid(
                "webpush.token_keys",
                "a key is not 32 bytes in base64url",
                remedy="Make one with 'head -c 32 /dev/urandom | base64 | tr +/ -_'.",
            ) from None
        self._ciphers = [AESGCM(hashlib.sha256(b"penstock id " + key.encode()).digest()) for key in keys]
        self._clock = clock
        self._process = secrets.token_bytes(4)
        self._stamp = 0
        self._known: dict[str, Subscription] = {}

    def endpoint(self, subscription: Subscription) -> str:
        """The path of a new endpoint; every call makes another that leads to the same place."""
        plain = bytes.fromhex(subscription.uaid) + bytes.fromhex(subscription.channel.replace("-", ""))
        version = "v2" if subscription.key_hash else "v1"
        token = self._fernet.encrypt(plain + subscription.key_hash).decode().rstrip("=")
        return f"/wpush/{version}/{token}"

    def subscription(self, version: str, token: str) -> Subscription:
        """Where the endpoint with this version and token leads. Raises `Refused`."""
        found = self._known.get(token)
        if found is None:
            found = self._read(token)
            if len(self._known) >= PUSH_TOKENS_KNOWN:
                self._known.clear()
            self._known[token] = found
        if version not in ("v1", "v2") or bool(found.key_hash) != (version == "v2"):
            raise Refused(Errno.TOKEN, f"this token is not for /wpush/{version[:8]}/")
        return found

    def _read(self, token: str) -> Subscription:
        try:
            plain = self._fernet.decrypt(token.encode() + b"=" * (-len(token) % 4))
        except (InvalidToken, UnicodeEncodeError):
            raise Refused(Errno.TOKEN, "the endpoint's token cannot be read") from None
        if len(plain) not in (32, 64):
            raise Refused(Errno.TOKEN, "the endpoint's token has the wrong length")
        channel = plain[16:32].hex()
        dashed = "-".join((channel[:8], channel[8:12], channel[12:16], channel[16:20], channel[20:]))
        return Subscription(plain[:16].hex(), dashed, plain[32:])

    def message_id(self, uaid: str) -> str:
        """A new id for a message to this user agent."""
        return self._seal(bytes.fromhex(uaid), _MESSAGE)

    def recipient_of(self, message_id: str) -> str:
        """The user agent that a message is for. Raises `Refused` for what is no message's id."""
        plain = self._open(message_id, _MESSAGE)
        if plain is None:
            raise Refused(Errno.MESSAGE_UNKNOWN, "the message's id cannot be read")
        return plain.hex()

    def receipt_id(self) -> str:
        """A new name for a receipt subscription; in which shard its outcomes are is sealed in."""
        return self._seal(secrets.token_bytes(1), _RECEIPT)

    def receipt_shard(self, text: str) -> int | None:
        """In which shard the outcomes of a receipt subscription are; None for a name that we did not give."""
        plain = self._open(text, _RECEIPT)
        return None if plain is None else int.from_bytes(plain[:1])

    def _seal(self, plain: bytes, purpose: bytes) -> str:
        # Strictly rising within the process, and its own among processes: no nonce comes twice.
        self._stamp = max(self._stamp + 1, self._clock.now_ms() * 1000)
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
