"""What a Web Push message is wrapped in: records of RFC 8188, keys of RFC 8291, and the older `aesgcm` headers.

The contract, for whoever sends, relays or receives:

    key = load_private(raw)                   a P-256 key from its 32 bytes; `load_public` takes the 65 of a point
    encrypt(message, …) -> body               the body of a push message, `Content-Encoding: aes128gcm`
    decrypt(body, …) -> message               what the user agent does with it; CodingInvalid when it cannot
    parse_coding(encoding, encryption, crypto_key) -> Coding
                                              what a push service checks of a sender's headers: it sees no more

Nothing here asks the clock or makes a random number: fresh keys and salts come in as arguments, and
whoever passes them promises that no pair of the two is ever used again. A push service needs neither
keys nor `decrypt`; the signatures of senders are in wire/vapid.py.

An encrypted body of one record:

    salt 16 │ record size 4 │ length of key id 1 │ key id: the sender's public key 65 │ ciphertext, tag 16
"""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from penstock.errors import InputInvalid
from penstock.limits import CODING_CHARACTERS

AES128GCM = "aes128gcm"
AESGCM_DRAFT = "aesgcm"  # the name of a draft's coding: salt and key travel in headers, not in the body

RECORD_BYTES = 4096
POINT_BYTES = 65
SALT_BYTES = 16
AUTH_BYTES = 16
_TAG_BYTES = 16
_HEAD_BYTES = SALT_BYTES + 4 + 1
_LEAST_RECORD_BYTES = _TAG_BYTES + 2  # a delimiter and one byte: with less, a message would never end
OVERHEAD_BYTES = _HEAD_BYTES + POINT_BYTES + 1 + _TAG_BYTES
"""How much longer than its message the body of a push message is: 103 bytes."""

_TEXT64 = re.compile(r"[A-Za-z0-9_/+-]+=*")
_MORE, _LAST = b"\x01", b"\x02"  # the delimiter that ends a record's text and begins its padding

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


class KeyInvalid(InputInvalid):
    """Bytes that should be a key of the curve P-256 are none."""

    def __init__(self, why: str) -> None:
        remedy = "Send a P-256 public key as its 65 bytes (0x04, x, y) in base64url."
        super().__init__("key", why, code="key_invalid", remedy=remedy)


class CodingInvalid(InputInvalid):
    """The headers or the body do not say how the message was encrypted, or lie about it."""

    def __init__(self, why: str, remedy: str = "") -> None:
        remedy = remedy or "Encrypt by RFC 8291 and send 'Content-Encoding: aes128gcm'."
        super().__init__("coding", why, code="coding_invalid", remedy=remedy)


# ── text and keys ──


def decode64(text: str) -> bytes:
    """Bytes from base64, in either alphabet, with or without padding; ValueError for anything else."""
    wanted = text.rstrip("=").replace("+", "-").replace("/", "_")
    if not re.fullmatch(r"[A-Za-z0-9_-]*", wanted):
        raise ValueError("not base64url")
    try:
        return urlsafe_b64decode(wanted + "=" * (-len(wanted) % 4))
    except binascii.Error as error:
        raise ValueError("not base64url") from error


def encode64(data: bytes) -> str:
    """Base64url without padding, as every header and URL of Web Push has it."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def load_private(raw: bytes) -> PrivateKey:
    """The private key whose number is *raw*, 32 bytes."""
    try:
        if len(raw) != 32:
            raise ValueError("a private key has 32 bytes")
        return ec.derive_private_key(int.from_bytes(raw), ec.SECP256R1())
    except ValueError as error:
        raise KeyInvalid(f"this is no private key of P-256 ({error})") from None


def load_public(point: bytes) -> PublicKey:
    """The public key at *point*: 65 bytes, uncompressed."""
    if len(point) != POINT_BYTES or point[0] != 4:
        raise KeyInvalid(f"a public key of P-256 has 65 bytes and begins with 4; these are {len(point)}")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    except ValueError:
        raise KeyInvalid("the 65 bytes are no point of the curve P-256") from None


def point_of(key: PrivateKey | PublicKey) -> bytes:
    """The 65 bytes that others know a key by."""
    public = key.public_key() if isinstance(key, ec.EllipticCurvePrivateKey) else key
    return public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


# ── RFC 8291: from two key pairs and a secret to a message ──


def encrypt(
    message: bytes, *, user_agent: bytes, auth: bytes, private_key: PrivateKey, salt: bytes, padding: int = 0
) -> bytes:
    """The body of a push message for the user agent with the public key *user_agent* and the secret *auth*.

    *private_key* and *salt* (16 bytes) are made for this one message. The message stays in one record, as
    RFC 8291 demands; *padding* bytes hide how long it is.
    """
    if len(auth) != AUTH_BYTES:
        raise KeyInvalid(f"an authentication secret has {AUTH_BYTES} bytes, not {len(auth)}")
    own = point_of(private_key)
    secret = private_key.exchange(ec.ECDH(), load_public(user_agent))
    record_bytes = max(RECORD_BYTES, len(message) + padding + 1 + _TAG_BYTES)
    return encode_records(
        message,
        key=_message_key(secret, auth, user_agent, own),
        salt=salt,
        key_id=own,
        record_bytes=record_bytes,
        padding=padding,
    )


def decrypt(body: bytes, *, private_key: PrivateKey, auth: bytes) -> bytes:
    """The message in *body*, for the user agent with *private_key* and *auth*; CodingInvalid when it is for another."""

    def key_of(sender: bytes) -> bytes:
        try:
            secret = private_key.exchange(ec.ECDH(), load_public(sender))
        except KeyInvalid as error:
            raise CodingInvalid(f"the sender's key: {error.why}") from None
        return _message_key(secret, auth, point_of(private_key), sender)

    return decode_records(body, key_of)


def _message_key(shared: bytes, auth: bytes, user_agent: bytes, sender: bytes) -> bytes:
    return _derive(auth, shared, b"WebPush: info\x00" + user_agent + sender, 32)


# ── RFC 8188: records ──


def encode_records(
    text: bytes, *, key: bytes, salt: bytes, key_id: bytes = b"", record_bytes: int = RECORD_BYTES, padding: int = 0
) -> bytes:
    """*text* as an `aes128gcm` body; *padding* goes into the first records that have room for it."""
    if len(salt) != SALT_BYTES or len(key_id) > 255 or record_bytes < _LEAST_RECORD_BYTES:
        raise CodingInvalid("a salt has 16 bytes, a key id at most 255, and a record at least 18")
    cipher, nonce = _cipher(key, salt)
    pieces = [salt, record_bytes.to_bytes(4), bytes([len(key_id)]), key_id]
    for number, plain in enumerate(_cut(text, record_bytes - _TAG_BYTES - 1, padding)):
        pieces.append(cipher.encrypt(_nonce(nonce, number), plain, None))
    return b"".join(pieces)


def decode_records(body: bytes, key_of: Callable[[bytes], bytes]) -> bytes:
    """The text of an `aes128gcm` body; *key_of* finds the key for the key id in its head."""
    salt, record_bytes, key_id, records = _split_head(body)
    cipher, nonce = _cipher(key_of(key_id), salt)
    texts = []
    for number, start in enumerate(range(0, len(records), record_bytes)):
        last = start + record_bytes >= len(records)
        texts.append(_open(cipher, _nonce(nonce, number), records[start : start + record_bytes], last))
    return b"".join(texts)


def _split_head(body: bytes) -> tuple[bytes, int, bytes, bytes]:
    """Salt, record size, key id and records of *body*."""
    if len(body) < _HEAD_BYTES or len(body) <= _HEAD_BYTES + body[_HEAD_BYTES - 1]:
        raise CodingInvalid("the body ends before its first record")
    begin = _HEAD_BYTES + body[_HEAD_BYTES - 1]
    record_bytes = int.from_bytes(body[SALT_BYTES : SALT_BYTES + 4])
    if record_bytes < _LEAST_RECORD_BYTES:
        raise CodingInvalid(f"records of {record_bytes} bytes cannot hold a text")
    return body[:SALT_BYTES], record_bytes, body[_HEAD_BYTES:begin], body[begin:]


def _cut(text: bytes, room: int, padding: int) -> Iterator[bytes]:
    """Each record's text, delimiter and padding. Every record but the last is full."""
    while True:
        pad = min(padding, room if not text else room - 1)
        piece, text = text[: room - pad], text[room - pad :]
        padding -= pad
        if not text and not padding:
            yield piece + _LAST + bytes(pad)
            return
        yield piece + _MORE + bytes(room - len(piece))


def _open(cipher: AESGCM, nonce: bytes, record: bytes, last: bool) -> bytes:
    try:
        plain = cipher.decrypt(nonce, record, None).rstrip(b"\x00")
    except InvalidTag:
        raise CodingInvalid("a record was damaged, or is for somebody else") from None
    if plain[-1:] != (_LAST if last else _MORE):
        raise CodingInvalid("the records were cut short or put together wrongly")
    return plain[:-1]


def _cipher(key: bytes, salt: bytes) -> tuple[AESGCM, int]:
    content_key = _derive(salt, key, b"Content-Encoding: aes128gcm\x00", 16)
    return AESGCM(content_key), int.from_bytes(_derive(salt, key, b"Content-Encoding: nonce\x00", 12))


def _nonce(base: int, number: int) -> bytes:
    return (base ^ number).to_bytes(12)


def _derive(salt: bytes, secret: bytes, info: bytes, size: int) -> bytes:
    """HKDF with SHA-256, for at most 32 bytes: then the second step is a single round."""
    extracted = hmac.digest(salt, secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")[:size]


# ── what a push service reads of a sender's headers ──


@dataclass(frozen=True, slots=True)
class Coding:
    """How a message was encrypted: what the user agent is told beside the body."""

    encoding: str
    encryption: str = ""  # header texts, without quotes and padding; empty when the body says it all
    crypto_key: str = ""


def parse_coding(content_encoding: str, encryption: str = "", crypto_key: str = "") -> Coding:
    """The coding that these three headers of a message with a body describe; CodingInvalid says what is wrong."""
    name = content_encoding.strip().lower()
    salts, keys = parameters(encryption), parameters(crypto_key)
    if name == AES128GCM:
        return _parse_final(salts, keys)
    if name == AESGCM_DRAFT:
        return _parse_draft(salts, keys, encryption, crypto_key)
    shown = f"{content_encoding[:40]!r}" if name else "missing"
    raise CodingInvalid(f"Content-Encoding is {shown}; it must be aes128gcm or aesgcm")


def _parse_final(salts: dict[str, str], keys: dict[str, str]) -> Coding:
    if "salt" in salts:
        raise CodingInvalid("with aes128gcm the salt is in the body", "Leave the Encryption header out.")
    if "dh" in keys:
        raise CodingInvalid("with aes128gcm the sender's key is in the body", "Leave dh= out of Crypto-Key.")
    return Coding(AES128GCM)


def _parse_draft(salts: dict[str, str], keys: dict[str, str], encryption: str, crypto_key: str) -> Coding:
    """The lengths of salt and key are not checked, as in Mozilla's server: the browser checks them."""
    _require(salts, "salt", "Encryption", encryption)
    if crypto_key.strip():
        _require(keys, "dh", "Crypto-Key", crypto_key)
    return Coding(AESGCM_DRAFT, _clean(encryption), _clean(crypto_key))


def _require(given: dict[str, str], name: str, header: str, text: str) -> None:
    remedy = f"Send '{header}: {name}=…' in base64url, or encrypt as aes128gcm."
    if len(text) > CODING_CHARACTERS:
        raise CodingInvalid(
            f"the header {header} has {len(text):,} characters, the limit is {CODING_CHARACTERS}", remedy
        )
    if name not in given:
        raise CodingInvalid(f"with aesgcm the header {header} must have {name}=", remedy)
    if not _TEXT64.fullmatch(given[name]):
        raise CodingInvalid(f"{name}= in {header} is not base64url", remedy)


def parameters(header: str) -> dict[str, str]:
    """The `name=value` pairs of a header, whether `,` or `;` stands between them; the first of a name counts."""
    found: dict[str, str] = {}
    for part in re.split(r"[,;]", header):
        name, equals, value = part.partition("=")
        if equals:
            found.setdefault(name.strip().lower(), value.strip().strip('"'))
    return found


def _clean(header: str) -> str:
    """*header* without quotes and without base64 padding, which user agents do not want."""
    return re.sub(r"=+\s*(?=[,;]|$)", "", header.replace('"', "")).strip()
