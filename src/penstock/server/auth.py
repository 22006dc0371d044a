"""Who is asking, and what may they do.

Two kinds of bearer tokens: the admin token of the data directory, which may do everything, and JWTs
(HS256, ES256, EdDSA) with these claims:

    sub         the subject: a user, an app, a device
    exp         when it ends (required)
    publish     patterns of streams it may publish to
    subscribe   patterns of streams it may read
    grants      further rights by name: pushers, emit, sessions, webpush, export, channels

`keys.json` in the data directory holds the keys, the newest first. The first one that can sign is
used for new tokens; all of them are tried for old ones, so a key is rotated by putting a new one in
front and removing the old one when its last token has ended.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.names import check_pattern, covers
from penstock.errors import ConfigInvalid, Forbidden, InputInvalid, Unauthenticated

ALGORITHMS = ("HS256", "ES256", "EdDSA")
GRANTS = frozenset({"pushers", "emit", "sessions", "webpush", "export", "channels"})
ADMIN_FILE, KEYS_FILE = "admin.token", "keys.json"
_CACHED_TOKENS = 10_000


class Caller(msgspec.Struct, frozen=True):
    """Somebody we know."""

    subject: str
    admin: bool = False
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    grants: frozenset[str] = frozenset()
    expires: float = float("inf")  # seconds since 1970

    def check_publish(self, stream: str) -> None:
        """Raise `Forbidden` unless this caller may publish to *stream*."""
        if not self.admin and not any(self._covers(grant, stream) for grant in self.publish):
            raise Forbidden(self.subject, "publish", stream)

    def check_subscribe(self, pattern: str) -> Callable[[str], bool] | None:
        """Raise `Forbidden` unless this caller may read *pattern*; return a check for each stream if one is needed.

        `/users/…` is never covered by a grant that does not spell it, except the caller's own: a
        pattern that could match other users is narrowed down stream by stream.
        """
        if self.admin:
            return None
        if pattern.startswith("/users/") or pattern == "/users":
            if not any(self._covers(grant, pattern) for grant in self.subscribe):
                raise Forbidden(self.subject, "subscribe", pattern)
            return None
        if not any(covers(grant, pattern) for grant in self.subscribe):
            raise Forbidden(self.subject, "subscribe", pattern)
        return self.may_read if pattern.startswith((">", "/*", "/>")) else None

    def may_read(self, stream: str) -> bool:
        """Whether one stream is covered by any of the grants."""
        return self.admin or any(self._covers(grant, stream) for grant in self.subscribe)

    def check_grant(self, name: str) -> None:
        """Raise `Forbidden` without a further right."""
        if not self.admin and name not in self.grants:
            raise Forbidden(self.subject, "grant", name)

    def check_admin(self, what: str) -> None:
        """Raise `Forbidden` for everybody but the admin."""
        if not self.admin:
            raise Forbidden(self.subject, "grant", what)

    def _covers(self, grant: str, pattern: str) -> bool:
        if pattern.startswith("/users/") and not grant.startswith("/users/"):
            return pattern == f"/users/{self.subject}" and covers(grant, pattern)
        return covers(grant, pattern)


class StoredKey(msgspec.Struct, frozen=True):
    """A key as `keys.json` holds it: a secret in base64, or PEM."""

    kid: str
    alg: str
    secret: str = ""
    private: str = ""
    public: str = ""

    def verifying(self) -> Any:
        return base64.b64decode(self.secret) if self.alg == "HS256" else self.public

    def signing(self) -> Any:
        return base64.b64decode(self.secret) if self.alg == "HS256" else self.private


class Keys:
    """The keys of one data directory."""

    def __init__(self, path: Path, stored: tuple[StoredKey, ...]) -> None:
        self._path = path
        self.stored = stored

    def issue(
        self,
        sub: str,
        *,
        publish: tuple[str, ...] = (),
        subscribe: tuple[str, ...] = (),
        grants: tuple[str, ...] = (),
        ttl: float = 3600,
        now: float | None = None,
    ) -> str:
        """A signed token for *sub*."""
        import jwt  # here and below: a tenth of a second that a start need not wait for

        for pattern in (*publish, *subscribe):
            check_pattern(pattern)
        if unknown := set(grants) - GRANTS:
            raise InputInvalid("grant", f"{sorted(unknown)[0]!r} is not one of {', '.join(sorted(GRANTS))}")
        key = next((k for k in self.stored if k.signing()), None)
        if key is None:
            raise ConfigInvalid("auth.keys", f"{self._path} has no key that can sign")
        issued = int(time.time() if now is None else now)
        claims: dict[str, object] = {"sub": sub, "iat": issued, "exp": issued + int(ttl)}
        claims |= {n: list(v) for n, v in (("publish", publish), ("subscribe", subscribe), ("grants", grants)) if v}
        return jwt.encode(claims, key.signing(), algorithm=key.alg, headers={"kid": key.kid})

    def rotate(self, alg: str = "HS256") -> StoredKey:
        """Put a new signing key in front; the older ones go on verifying."""
        key = make_key(alg)
        self.stored = (key, *self.stored)
        _write_private(self._path, msgspec.json.format(msgspec.json.encode(self.stored), indent=1))
        return key

    def verify(self, token: str) -> Caller:
        """Who holds this token. Raises `Unauthenticated` if no key vouches for it."""
        import jwt

        try:
            kid = jwt.get_unverified_header(token).get("kid")
        except jwt.InvalidTokenError:
            raise Unauthenticated("the token is not a JWT of this server") from None
        reason = "no key of this server signed it"
        for key in self.stored:
            if kid is not None and kid != key.kid:
                continue
            try:
                claims = jwt.decode(
                    token,
                    key.verifying(),
                    algorithms=[key.alg],
                    options={"require": ["exp", "sub"], "verify_aud": False},
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.InvalidTokenError as error:
                reason = str(error)
            else:
                return _caller(claims)
        raise Unauthenticated(f"the token is not valid: {reason}")


def _caller(claims: dict[str, Any]) -> Caller:
    try:
        publish = tuple(check_pattern(p) for p in claims.get("publish", ()))
        subscribe = tuple(check_pattern(p) for p in claims.get("subscribe", ()))
        grants = frozenset(str(g) for g in claims.get("grants", ()))
    except (TypeError, AttributeError, InputInvalid):
        raise Unauthenticated("the token's grants are not lists of patterns") from None
    return Caller(str(claims["sub"]), False, publish, subscribe, grants, float(claims["exp"]))


class Gate:
    """Turns an `Authorization` header into a caller. Verified tokens are remembered until they end."""

    def __init__(self, keys: Keys, admin_token: str) -> None:
        self.keys = keys
        self._admin = _Digest()
        self._admin_digest = self._admin.of(admin_token.encode())
        self._known: dict[bytes, Caller] = {self._admin_digest: Caller("admin", admin=True)}

    def caller(self, authorization: bytes | None) -> Caller:
        """Who sent this header. Raises `Unauthenticated` if that cannot be told."""
        if not authorization:
            raise Unauthenticated("no bearer token was sent")
        if authorization[:7].lower() != b"bearer ":
            raise Unauthenticated("the Authorization header is not of the form 'Bearer TOKEN'")
        return self.caller_of(authorization[7:].strip())

    def caller_of(self, token: bytes) -> Caller:
        """Who holds this token."""
        # Looked up by a keyed digest: how long that takes says nothing about tokens that exist.
        digest = self._admin.of(token)
        found = self._known.get(digest)
        if found is None:
            found = self._verify(token)
            if len(self._known) >= _CACHED_TOKENS:
                self._forget_all_but_admin()
            self._known[digest] = found
        if found.expires <= time.time():
            del self._known[digest]
            raise Unauthenticated("the token has expired")
        return found

    def _verify(self, token: bytes) -> Caller:
        try:
            return self.keys.verify(token.decode("ascii"))
        except UnicodeDecodeError:
            raise Unauthenticated("the token has characters that no token has") from None

    def _forget_all_but_admin(self) -> None:
        self._known = {self._admin_digest: self._known[self._admin_digest]}

    def replace_keys(self, keys: Keys) -> None:
        """Use other keys from now on; tokens are checked anew."""
        self.keys = keys
        self._forget_all_but_admin()


class _Digest:
    """A digest with a key of this process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, token: bytes) -> bytes:
        return hashlib.blake2b(token, key=self._key, digest_size=16).digest()


def make_key(alg: str) -> StoredKey:
    """A new key of one of the three algorithms."""
    kid = secrets.token_hex(4)
    if alg == "HS256":
        return StoredKey(kid, alg, secret=base64.b64encode(secrets.token_bytes(32)).decode())
    if alg not in ALGORITHMS:
        raise ConfigInvalid("auth.keys", f"algorithm {alg!r} is not one of {', '.join(ALGORITHMS)}")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    private: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
    private = ec.generate_private_key(ec.SECP256R1()) if alg == "ES256" else ed25519.Ed25519PrivateKey.generate()
    return StoredKey(
        kid,
        alg,
        private=private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
        public=private.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode(),
    )


def open_keys(data: Path) -> Keys:
    """The keys in *data*, made at the first call and kept with mode 0600."""
    path = data / KEYS_FILE
    if not path.exists():
        keys = Keys(path, ())
        keys.rotate()
        return keys
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=tuple[StoredKey, ...])
    except msgspec.MsgspecError as error:
        raise ConfigInvalid("auth.keys", f"{path} cannot be read: {error}") from None
    if not stored or any(key.alg not in ALGORITHMS for key in stored):
        raise ConfigInvalid("auth.keys", f"{path} needs at least one key, each of {', '.join(ALGORITHMS)}")
    return Keys(path, stored)


def open_admin_token(data: Path, given: str = "") -> str:
    """The admin token: the given one, or the one kept in *data*, made at the first call."""
    if given:
        return given
    path = data / ADMIN_FILE
    if not path.exists():
        _write_private(path, secrets.token_urlsafe(24).encode())
    return path.read_text().strip()


def _write_private(path: Path, content: bytes) -> None:
    """Replace a file in one step, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
