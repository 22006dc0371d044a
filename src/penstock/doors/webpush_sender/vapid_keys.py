"""The key that the sender signs with: a subscription made with it takes messages of nobody else.

It is kept in the registry, so every node of a cluster signs alike and a backup has it: a lost key means that
every browser must subscribe anew.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric import ec

from penstock.core.registry import Registry, made_once
from penstock.errors import ConfigInvalid, InputInvalid
from penstock.wire.webcrypto import PrivateKey, decode64, encode64, load_private

_RECORD = "webpush/vapid"


async def open_vapid_key(registry: Registry, given: str) -> PrivateKey:
    """The key of the setting *given*, or the one that is kept, made at the first call."""
    if given:
        return open_given(given)
    return open_given((await made_once(registry, _RECORD, lambda: make_key().encode())).decode())


def make_key() -> str:
    """A new private key: 32 bytes in base64url."""
    number = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value
    return encode64(number.to_bytes(32))


def open_given(text: str) -> PrivateKey:
    """The key in the setting's text; `ConfigInvalid` when there is none in it."""
    try:
        return load_private(decode64(text))
    except (InputInvalid, ValueError):
        remedy = "'./penstock webpush keys --new' prints a pair; set the private one, or leave the setting empty."
        raise ConfigInvalid("webpush.vapid_key", "is not 32 bytes in base64url", remedy=remedy) from None
