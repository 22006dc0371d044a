"""Who is asking, and what may they do.

Two kinds of bearer tokens: the admin token of the data directory, which may do everything, and JWTs
(HS256, ES256, EdDSA) with these claims:

    sub         the subject: a user, an app, a device; not empty, printable, and not `admin`
    exp         when it ends (required)
    publish     patterns of streams it may publish to
    subscribe   patterns of streams it may read
    grants      further rights by name: pushers, emit, sessions, webpush, export, channels

`keys.json` in the data directory holds the keys, the newest first. The first one that can sign is
used for new tokens; all of them are tried for old ones, so a key is rotated by putting a new one in
front and removing the old one when its last token has ended. The file is checked when it is read: a key
that cannot be used is refused then, and not when a stranger's token names it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.matching import covers, covers_of
from penstock.core.names import check_pattern, is_level, is_system
from penstock.errors import ConfigInvalid, Forbidden, InputInvalid, SystemStream, Unauthenticated
from penstock.limits import ADMIN_TOKEN_CHARACTERS, SECRET_BYTES, SUBJECT_BYTES

ALGORITHMS = ("HS256", "ES256", "EdDSA")
GRANTS = frozenset({"pushers", "emit", "sessions", "webpush", "export", "channels"})
ADMIN = "admin"
ADMIN_FILE, KEYS_FILE = "admin.token", "keys.json"
_CACHED_TOKENS = 10_000


class Caller(msgspec.Struct, frozen=True):
    """An authenticated caller: its subject, and what its token allows."""

    subject: str
    admin: bool = False
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    grants: frozenset[str] = frozenset()
    expires: float = float("inf")  # seconds since 1970

    @property
    def sharer(self) -> str:
        """Under whose name it takes room that all share: the admin's share is all of it."""
        return "" if self.admin else self.subject

    def check_publish(self, stream: str) -> None:
        """Raise `Forbidden` unless this caller may publish to *stream*; nobody may to a stream of the system."""
        if is_system(stream):
            raise SystemStream(self.subject, stream)
        self.check_covered(stream)

    def check_covered(self, stream: str) -> None:
        """Raise `Forbidden` unless the grants for publishing cover *stream*, of the system or not.

        For a stream that only the server writes, but on a caller's request: that of a subscription, `/_sub/…`.
        """
        if not self.admin and not self._covered(self.publish, stream):
            raise Forbidden(self.subject, "publish", stream)

    def check_subscribe(self, pattern: str) -> Callable[[str], bool] | None:
        """Raise `Forbidden` unless this caller may read *pattern*; return a check for each stream if one is needed.

        `/users/…` is never covered by a grant that does not spell it, except the caller's own; `/rooms`, where events
        for several rooms are, only by one that spells it or by grants that cover all rooms. A pattern that could
        match such streams is narrowed down stream by stream. All doors ask here. An export carries the same rule as
        values (`core.export.Selection`): change both together.
        """
        if self.admin:
            return None
        if not self._covered(self.subscribe, pattern):
            raise Forbidden(self.subject, "subscribe", pattern)
        return self.may_read if pattern.startswith((">", "/*", "/>")) else None

    def may_read(self, stream: str) -> bool:
        """Whether one stream is covered by any of the grants."""
        return self.admin or self._covered(self.subscribe, stream)

    def check_publishes(self) -> None:
        """Raise `Forbidden` if this caller may publish to no stream at all."""
        if not self.admin and not self.publish:
            raise Forbidden(self.subject, "publish", "any stream")

    def check_subscribes(self) -> None:
        """Raise `Forbidden` if this caller may read no stream at all."""
        if not self.admin and not self.subscribe:
            raise Forbidden(self.subject, "subscribe", "any stream")

    def check_grant(self, name: str) -> None:
        """Raise `Forbidden` without a further right."""
        if not self.admin and name not in self.grants:
            raise Forbidden(self.subject, "grant", name)

    def check_admin(self, what: str) -> None:
        """Raise `Forbidden` for everybody but the admin."""
        if not self.admin:
            raise Forbidden(self.subject, "admin", what)

    def _covered(self, grants: tuple[str, ...], pattern: str) -> bool:
        if not pattern.startswith("/users/"):
            return covers_of(grants, pattern)
        # A subject such as `>` or `7/phone` is nobody's name: it would mean other users' streams.
        own = pattern == f"/users/{self.subject}" and is_level(self.subject)
        return any(covers(grant, pattern) for grant in grants if own or grant.startswith("/users/"))


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

    def what_is_wrong(self) -> str:
        """Why nothing could be verified with it; empty if all is well."""
        if self.alg not in ALGORITHMS:
            return f"has the algorithm {self.alg[:40]!r}, which is none of {', '.join(ALGORITHMS)}"
        return self._wrong_secret() if self.alg == "HS256" else self._wrong_pair()

    def _wrong_secret(self) -> str:
        try:
            size = len(base64.b64decode(self.secret, validate=True))
        except (binascii.Error, ValueError):
            return "has a secret that is not base64"
        return "" if size >= SECRET_BYTES else f"has a secret of {size} bytes, fewer than {SECRET_BYTES}"

    def _wrong_pair(self) -> str:
        from cryptography.hazmat.primitives import serialization

        try:
            public = serialization.load_pem_public_key(self.public.encode())
        except Exception:  # noqa: BLE001 - whatever the library says, it is no key
            return "has no public key in PEM"
        if not _fits(self.alg, public):
            return f"has a public key that is not one of {self.alg}"
        if not self.private:
            return ""
        try:
            private: Any = serialization.load_pem_private_key(self.private.encode(), None)
        except Exception:  # noqa: BLE001
            return "has a private key that is not PEM without a password"
        own = _fits(self.alg, private.public_key()) and private.public_key() == public
        return "" if own else "has a private key that does not belong to its public key"


def _fits(alg: str, public: object) -> bool:
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519

    if alg == "ES256":
        return isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1)
    return isinstance(public, (ed25519.Ed25519PublicKey, ed448.Ed448PublicKey))


class SigningKeys:
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

        if wrong := what_is_wrong_with(sub):
            raise InputInvalid("subject", wrong, remedy="Name a user, an app or a device, as in --sub shop.")
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
        except (jwt.InvalidTokenError, RecursionError):
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
            except (jwt.InvalidTokenError, RecursionError, OverflowError) as error:
                reason = str(error)
            else:
                return _caller(claims)
        raise Unauthenticated(f"the token is not valid: {reason}")


def what_is_wrong_with(subject: str) -> str:
    """Why nobody may be called so; empty if all is well."""
    if subject == ADMIN:
        return f"{ADMIN!r} is the holder of the admin token"
    if not subject.isprintable() or not 0 < len(subject.encode()) <= SUBJECT_BYTES:
        return f"is not 1 to {SUBJECT_BYTES} printable bytes"
    return ""


def _caller(claims: dict[str, Any]) -> Caller:
    subject = str(claims["sub"])
    if wrong := what_is_wrong_with(subject):
        raise Unauthenticated(f"the token's subject cannot be used: {wrong}")
    try:
        publish = tuple(check_pattern(p) for p in claims.get("publish", ()))
        subscribe = tuple(check_pattern(p) for p in claims.get("subscribe", ()))
        grants = frozenset(str(g) for g in claims.get("grants", ()))
    except (TypeError, AttributeError, InputInvalid):
        raise Unauthenticated("the token's grants are not lists of patterns") from None
    return Caller(subject, False, publish, subscribe, grants, float(claims["exp"]))


class Authenticator:
    """Turns an `Authorization` header into a caller. Verified tokens are remembered until they end."""

    def __init__(self, keys: SigningKeys, admin_token: str) -> None:
        self.keys = keys
        self._admin = _Digest()
        self._admin_digest = self._admin.of(admin_token.encode())
        self._known: dict[bytes, Caller] = {self._admin_digest: Caller(ADMIN, admin=True)}

    def caller(self, authorization: bytes | None) -> Caller:
        """Who sent this header. Raises `Unauthenticated` if that cannot be told."""
        if not authorization:
            raise Unauthenticated("no bearer token was sent", sent=False)
        if authorization[:7].lower() != b"bearer ":
            raise Unauthenticated("the Authorization header is not of the form 'Bearer TOKEN'", sent=False)
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

    def replace_keys(self, keys: SigningKeys) -> None:
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


def open_keys(data: Path) -> SigningKeys:
    """The keys in *data*, made at the first call and kept with mode 0600."""
    path = data / KEYS_FILE
    if not path.exists():
        keys = SigningKeys(path, ())
        keys.rotate()
        return keys
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=tuple[StoredKey, ...])
    except msgspec.MsgspecError as error:
        raise _keys_invalid(f"{path} cannot be read: {error}") from None
    if not stored:
        raise _keys_invalid(f"{path} holds no key")
    for key in stored:
        if wrong := key.what_is_wrong():
            raise _keys_invalid(f"{path}: key {key.kid[:40]!r} {wrong}")
    return SigningKeys(path, stored)


def _keys_invalid(why: str) -> ConfigInvalid:
    remedy = f"Correct the file or take that key out; HS256 wants {SECRET_BYTES} bytes or more in base64, others PEM."
    return ConfigInvalid("auth.keys", why, remedy=remedy)


def open_admin_token(data: Path, given: str = "", file: str = "") -> str:
    """The admin token: what *file* holds, the given one, or the one kept in *data*, made at the first call.

    Raises `ConfigInvalid` for one that is empty, or could not be sent.
    """
    if file:
        return _read_admin_token("auth.admin_token_file", Path(file))
    if given:
        return _check_admin_token("auth.admin_token as given", given, "it")
    path = data / ADMIN_FILE
    if not path.exists():
        _write_private(path, secrets.token_urlsafe(24).encode())
    return _read_admin_token("--data", path)


def _read_admin_token(setting: str, path: Path) -> str:
    try:
        return _check_admin_token(setting, path.read_text().strip(), f"{path}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(setting, f"{path} cannot be read: {getattr(error, 'strerror', 'it is no text')}") from None


def _check_admin_token(setting: str, token: str, where: str) -> str:
    if not token:
        why = f"{where} is empty"
    elif not token.isascii() or not token.isprintable() or " " in token:
        why = f"{where} has characters that no token has"
    else:
        return token
    remedy = f"Give printable ASCII characters without blanks, {ADMIN_TOKEN_CHARACTERS} or more. Without any of "
    remedy += f"auth.admin_token, auth.admin_token_file and {ADMIN_FILE} the server makes one."
    raise ConfigInvalid(setting, why, remedy=remedy)


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
