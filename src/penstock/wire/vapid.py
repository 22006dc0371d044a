"""VAPID, RFC 8292: a sender of push messages says who it is.

    Authorization: vapid t=JWT, k=KEY                       the standard
    Authorization: WebPush JWT                              a draft, still in use; also `Bearer JWT`
    Crypto-Key: p256ecdsa=KEY

The contract, for a push service:

    credentials = parse_authorization(authorization, crypto_key)
    claims = verify(credentials, origin="https://push.example.net", now=seconds)

Both cost time (a point and a signature, some 150 µs). A service may keep `claims` for the texts of the two
headers and call `check_claims(claims, …)` instead: the signature stays true, time and audience are checked
anew. Every failure is a `VapidInvalid` whose `check` is one of `CHECKS` and whose text says what was found
and wanted.
`check_key` is for subscriptions that only one key may send to. For a sender:

    header = sign(private_key, origin=origin_of(endpoint), exp=seconds, sub="mailto:me@example.net")

Nothing here asks the clock; signatures are deterministic (RFC 6979), so nothing is random either.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from penstock.errors import Unauthenticated
from penstock.limits import VAPID_CHARACTERS, VAPID_LEEWAY_SECONDS, VAPID_SECONDS
from penstock.wire.webcrypto import KeyInvalid, PrivateKey, decode64, encode64, load_public, parameters, point_of

FARTHEST = 1e18
"""Seconds beyond which times are all alike: far too late, or far too early."""


CHECKS = {
    "authorization_missing": "Send 'Authorization: vapid t=JWT, k=KEY'.",
    "scheme_unknown": "Send 'Authorization: vapid t=JWT, k=KEY'.",
    "header_malformed": "Send 'Authorization: vapid t=JWT, k=KEY' with both parts.",
    "key_missing": "Send the public key: k= beside t=, or 'Crypto-Key: p256ecdsa=KEY' with the older form.",
    "key_invalid": "Send the P-256 public key as its 65 bytes (0x04, x, y) in base64url.",
    "token_malformed": "Send a JWT: header, claims and signature in base64url, joined by dots.",
    "algorithm_unsupported": "Sign with ES256; RFC 8292 knows no other.",
    "signature_invalid": "Sign with the private key that belongs to the public key in k=.",
    "aud_missing": "Put the endpoint's origin into the claim aud.",
    "aud_mismatch": "Put the endpoint's origin (scheme, host and port, no path) into aud; "
    "behind a proxy the server's public origin must be the one that senders see.",
    "exp_missing": "Put the time of expiry into exp, as a number of seconds since 1970.",
    "exp_past": "Sign a new token; compare the clocks if it was just made.",
    "exp_too_far": "Let exp be at most 24 hours ahead.",
    "sub_invalid": "Let sub be a 'mailto:' or 'https:' address of the sender's operator, or leave it out.",
    "key_mismatch": "Sign with the key that the subscription was made with (applicationServerKey).",
}
"""Every check that can fail, with what to do then. The names are stable."""


class VapidInvalid(Unauthenticated):
    """The sender is not who it says, or says it wrongly; *check* names what failed."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"VAPID check {check} failed: {detail}")
        self.check, self.detail = check, detail
        self.code, self.remedy = f"vapid_{check}", CHECKS[check]


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a sender showed: nothing of it is verified."""

    token: str
    key: bytes  # the public key, 65 bytes


@dataclass(frozen=True, slots=True)
class VapidClaims:
    """What the holder of *key* signed."""

    key: bytes
    audiences: tuple[str, ...]
    exp: float
    sub: str  # empty when it gave none


def parse_authorization(authorization: str, crypto_key: str = "") -> Credentials:
    """What the header `Authorization` says, in either form; in the older one the key is in `Crypto-Key`."""
    if not authorization.strip():
        raise VapidInvalid("authorization_missing", "there is no Authorization header")
    scheme, _, rest = authorization.strip().partition(" ")
    if scheme.lower() == "vapid":
        given = parameters(rest)
        token, key = given.get("t", ""), given.get("k", "")
    elif scheme.lower() in ("webpush", "bearer"):
        token, key = rest.strip(), parameters(crypto_key).get("p256ecdsa", "")
    else:
        raise VapidInvalid("scheme_unknown", f"the scheme is {scheme[:20]!r}, not vapid, WebPush or Bearer")
    if not token:
        raise VapidInvalid("header_malformed", "there is no token in it")
    if not key:
        raise VapidInvalid("key_missing", "there is no public key in it")
    return Credentials(_short(token), parse_key(key))


def _short(token: str) -> str:
    if len(token) > VAPID_CHARACTERS:
        raise VapidInvalid("token_malformed", f"a token of {len(token):,} characters is too long")
    return token


def parse_key(text: str) -> bytes:
    """The 65 bytes of a public key in base64; VapidInvalid when it is not on the curve."""
    try:
        point = decode64(text)
        load_public(point)
    except ValueError:
        raise VapidInvalid("key_invalid", "the public key is not base64url") from None
    except KeyInvalid as error:
        raise VapidInvalid("key_invalid", error.why) from None
    return point


def verify(credentials: Credentials, *, origin: str, now: float) -> VapidClaims:
    """What the sender signed, when the signature is right and the claims hold for *origin* at *now*."""
    signed, _, signature = credentials.token.rpartition(".")
    header, _, payload = signed.partition(".")
    if _object(header, "header").get("alg") != "ES256":
        raise VapidInvalid("algorithm_unsupported", "alg is not ES256")
    given = _object(payload, "claims")
    _check_signature(credentials.key, signed, signature)
    claims = _read_claims(credentials.key, given)
    check_claims(claims, origin=origin, now=now)
    return claims


def check_claims(claims: VapidClaims, *, origin: str, now: float) -> None:
    """Raise VapidInvalid unless *claims* are meant for *origin* and still hold at *now*."""
    if origin not in claims.audiences:
        shown = ", ".join(claims.audiences)[:200]
        raise VapidInvalid("aud_mismatch", f"aud is {shown!r}, but this endpoint's origin is {origin!r}")
    if claims.exp < now - VAPID_LEEWAY_SECONDS:
        raise VapidInvalid("exp_past", f"the token expired {now - claims.exp:.0f} s ago")
    if claims.exp > now + VAPID_SECONDS + VAPID_LEEWAY_SECONDS:
        raise VapidInvalid("exp_too_far", f"exp is {(claims.exp - now) / 3600:.1f} hours ahead; at most 24 are allowed")


def check_key(key: bytes, wanted_hash: bytes) -> None:
    """Raise VapidInvalid unless *wanted_hash* is the SHA-256 of the public key *key*."""
    if not hmac.compare_digest(key_hash(key), wanted_hash):
        raise VapidInvalid("key_mismatch", "the subscription belongs to another key")


def key_hash(key: bytes) -> bytes:
    """What a subscription keeps of the one key that may send to it."""
    return hashlib.sha256(key).digest()


def _object(part: str, what: str) -> dict[str, object]:
    try:
        found = msgspec.json.decode(decode64(part), type=dict[str, object])
    except (ValueError, msgspec.MsgspecError, RecursionError):  # the last: brackets a thousand deep
        raise VapidInvalid("token_malformed", f"the token's {what} are no JSON object in base64url") from None
    return found


def _check_signature(key: bytes, signed: str, signature: str) -> None:
    try:
        raw = decode64(signature)
    except ValueError:
        raw = b""
    if len(raw) != 64:
        raise VapidInvalid("token_malformed", "the signature of an ES256 token has 64 bytes in base64url")
    pair = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
    try:
        load_public(key).verify(pair, signed.encode(), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise VapidInvalid("signature_invalid", "the signature was not made with this key") from None


def _read_claims(key: bytes, given: dict[str, object]) -> VapidClaims:
    audiences = given.get("aud")
    listed = [audiences] if isinstance(audiences, str) else audiences
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) for one in listed):
        raise VapidInvalid("aud_missing", "there is no claim aud, or it is not a text")
    exp = given.get("exp")
    if not isinstance(exp, int | float) or isinstance(exp, bool):
        raise VapidInvalid("exp_missing", "there is no claim exp, or it is not a number")
    exp = max(-FARTHEST, min(exp, FARTHEST))  # an integer of hundreds of digits has no place in a float
    sub = given.get("sub", "")
    if not isinstance(sub, str) or (sub and not sub.lower().startswith(("mailto:", "https:"))):
        raise VapidInvalid("sub_invalid", f"sub is {str(sub)[:80]!r}")
    return VapidClaims(key, tuple(listed), float(exp), sub)


def origin_of(endpoint: str) -> str:
    """Scheme, host and port of a URL, the port only where it is not the scheme's own: what `aud` must be."""
    parts = urlsplit(endpoint)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port not in (None, usual) else "")


def parse_origin(text: str) -> str:
    """An origin as people write it, in the form that `aud` has. Raises `ValueError` for what is none."""
    parts = urlsplit(text)
    rest = (parts.path.removeprefix("/"), parts.query, parts.fragment, parts.username, parts.password)
    if parts.scheme not in ("http", "https") or not parts.hostname or any(rest):
        raise ValueError(f"{text!r} is no origin")
    return origin_of(text)


def sign(private_key: PrivateKey, *, origin: str, exp: int, sub: str = "") -> str:
    """The value of an `Authorization` header for the push service at *origin*, good until *exp*."""
    claims: dict[str, object] = {"aud": origin, "exp": exp, **({"sub": sub} if sub else {})}
    signed = ".".join(encode64(msgspec.json.encode(part)) for part in ({"typ": "JWT", "alg": "ES256"}, claims))
    pair = private_key.sign(signed.encode(), ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
    r, s = decode_dss_signature(pair)
    token = f"{signed}.{encode64(r.to_bytes(32) + s.to_bytes(32))}"
    return f"vapid t={token},k={encode64(point_of(private_key))}"
