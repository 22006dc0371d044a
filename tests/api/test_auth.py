"""Who is asking, and what may they do."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.api.auth import ALGORITHMS, Authenticator, Caller, SigningKeys, make_key, open_admin_token, open_keys
from penstock.errors import ConfigInvalid, Forbidden, InputInvalid, NameInvalid, SystemStream, Unauthenticated


@pytest.fixture
def keys(tmp_path: Path) -> SigningKeys:
    return open_keys(tmp_path)


def bearer(token: str) -> bytes:
    return b"Bearer " + token.encode()


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_token_of_each_algorithm_is_known_again(keys: SigningKeys, alg: str) -> None:
    keys.rotate(alg)
    authenticator = Authenticator(keys, "admin")

    caller = authenticator.caller(
        bearer(keys.issue("alice", publish=("/orders/*",), subscribe=(">",), grants=("emit",)))
    )

    assert (caller.subject, caller.admin, caller.publish, caller.subscribe) == ("alice", False, ("/orders/*",), (">",))
    assert caller.grants == {"emit"}


def test_a_rotated_key_still_vouches_for_older_tokens(keys: SigningKeys) -> None:
    token = keys.issue("alice")
    keys.rotate("EdDSA")

    assert Authenticator(keys, "admin").caller(bearer(token)).subject == "alice"


def test_a_removed_key_does_not(keys: SigningKeys) -> None:
    token = keys.issue("alice")
    keys.rotate("EdDSA")
    authenticator = Authenticator(keys, "admin")
    authenticator.caller(bearer(token))

    authenticator.replace_keys(SigningKeys(Path("unused"), keys.stored[:1]))

    with pytest.raises(Unauthenticated):
        authenticator.caller(bearer(token))


@pytest.mark.parametrize(
    "header", [None, b"", b"Basic YTpi", b"Bearer", b"Bearer ", b"Bearer nonsense", b"Bearer a.b.c", b"Bearer \xff\xfe"]
)
def test_what_is_no_token_is_refused(keys: SigningKeys, header: bytes | None) -> None:
    with pytest.raises(Unauthenticated):
        Authenticator(keys, "admin").caller(header)


def test_the_admin_token_may_do_everything_and_its_neighbours_nothing(keys: SigningKeys) -> None:
    authenticator = Authenticator(keys, "s3cret")

    assert authenticator.caller(b"bearer s3cret").admin
    for wrong in (b"Bearer s3cre", b"Bearer s3crets", b"Bearer S3cret"):
        with pytest.raises(Unauthenticated):
            authenticator.caller(wrong)


def test_an_expired_token_is_refused_also_when_it_was_known(keys: SigningKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    authenticator = Authenticator(keys, "admin")
    token = bearer(keys.issue("alice", ttl=60))
    authenticator.caller(token)
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)

    with pytest.raises(Unauthenticated, match="expired"):
        authenticator.caller(token)


def test_a_token_signed_by_another_server_or_by_nobody_is_refused(keys: SigningKeys, tmp_path: Path) -> None:
    authenticator = Authenticator(keys, "admin")
    other = open_keys(tmp_path / "other")
    claims = {"sub": "alice", "exp": int(time.time()) + 60}
    unsigned = jwt.encode(claims, None, algorithm="none")
    # A public key used as an HMAC secret is the classic confusion of algorithms.
    elliptic = keys.rotate("ES256")
    confused = _hs256_with_public_key(claims, elliptic.public, elliptic.kid)

    for token in (other.issue("alice"), unsigned, confused):
        with pytest.raises(Unauthenticated):
            authenticator.caller(bearer(token))


def _hs256_with_public_key(claims: dict[str, object], public: str, kid: str) -> str:
    import base64
    import hashlib
    import hmac
    import json

    def part(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    signed = part({"alg": "HS256", "typ": "JWT", "kid": kid}) + b"." + part(claims)
    mac = hmac.new(public.encode(), signed, hashlib.sha256).digest()
    return (signed + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


@pytest.mark.parametrize("missing", ["sub", "exp"])
def test_a_token_without_subject_or_end_is_refused(keys: SigningKeys, missing: str) -> None:
    claims = {"sub": "alice", "exp": int(time.time()) + 60}
    del claims[missing]
    token = jwt.encode(claims, keys.stored[0].signing(), algorithm="HS256")

    with pytest.raises(Unauthenticated):
        Authenticator(keys, "admin").caller(bearer(token))


@pytest.mark.parametrize("grants", [{"publish": 5}, {"publish": ["no-slash"]}, {"subscribe": [7]}, {"grants": 3}])
def test_a_token_with_nonsense_for_grants_is_refused(keys: SigningKeys, grants: dict[str, object]) -> None:
    token = jwt.encode(
        {"sub": "a", "exp": int(time.time()) + 60, **grants}, keys.stored[0].signing(), algorithm="HS256"
    )
    with pytest.raises(Unauthenticated):
        Authenticator(keys, "admin").caller(bearer(token))


@pytest.mark.parametrize(
    ("grant", "stream", "allowed"),
    [
        ("/orders/*", "/orders/eu", True),
        ("/orders/*", "/orders", False),
        (">", "/orders", True),
        (">", "/_ledger", False),
        ("/_ledger", "/_ledger", True),
        (">", "/users/bob", False),
        (">", "/users/alice", True),
        ("/*/bob", "/users/bob", False),
        ("/users/*", "/users/bob", True),
        ("/users/bob", "/users/bob", True),
        ("/users/>", "/users/bob/phone", True),
    ],
)
def test_a_grant_allows_what_it_says(grant: str, stream: str, allowed: bool) -> None:
    caller = Caller("alice", publish=(grant,), subscribe=(grant,))
    if allowed:
        caller.check_covered(stream)
        caller.check_subscribe(stream)
        assert caller.may_read(stream)
    else:
        with pytest.raises(Forbidden):
            caller.check_covered(stream)
        with pytest.raises(Forbidden):
            caller.check_subscribe(stream)
        assert not caller.may_read(stream)


def test_no_grant_lets_anybody_publish_into_a_stream_of_the_system() -> None:
    for caller in (Caller("alice", publish=("/_ledger", "/_ledger/>")), Caller("admin", admin=True)):
        for stream in ("/_ledger", "/_ledger/x"):
            with pytest.raises(SystemStream):
                caller.check_publish(stream)
        if caller.admin:
            caller.check_publish("/a/_ledger")


@pytest.mark.parametrize("subject", [">", "*", "7/phone", "", ".."])
def test_a_subject_that_is_no_name_has_no_stream_of_its_own(subject: str) -> None:
    caller = Caller(subject, publish=(">",), subscribe=(">",))

    with pytest.raises(Forbidden):
        caller.check_subscribe(f"/users/{subject}")
    with pytest.raises(Forbidden):
        caller.check_publish(f"/users/{subject}")
    assert not caller.may_read("/users/7")
    assert not caller.may_read("/users/7/phone")


UNFIT = ["", "admin", "a\tb", "a\x00b", "a\u2028b", "\ud800", "x" * 257]


@pytest.mark.parametrize("subject", UNFIT)
def test_nobody_is_given_a_subject_that_cannot_be_used(keys: SigningKeys, subject: str) -> None:
    with pytest.raises(InputInvalid, match="subject"):
        keys.issue(subject)


@pytest.mark.parametrize("subject", UNFIT)
def test_a_signed_token_with_such_a_subject_is_refused(keys: SigningKeys, subject: str) -> None:
    token = jwt.encode({"sub": subject, "exp": int(time.time()) + 60}, keys.stored[0].signing(), algorithm="HS256")

    with pytest.raises(Unauthenticated, match="subject"):
        Authenticator(keys, "admin").caller(bearer(token))


@pytest.mark.parametrize(
    ("grant", "pattern", "allowed"),
    [
        (">", ">", True), (">", "/orders/>", True), ("/orders/>", "/orders/*", True), ("/orders/*", "/orders/>", False),
        ("/orders/*", ">", False), (">", "/_sub/*", False), ("/users/*", "/users/*", True), (">", "/users/*", False),
    ],
)  # fmt: skip
def test_a_pattern_is_allowed_when_a_grant_covers_it(grant: str, pattern: str, allowed: bool) -> None:
    caller = Caller("alice", subscribe=(grant,))
    if allowed:
        caller.check_subscribe(pattern)
    else:
        with pytest.raises(Forbidden):
            caller.check_subscribe(pattern)


@pytest.mark.parametrize("pattern", [">", "/*/*", "/>"])
def test_a_pattern_that_could_show_other_users_is_narrowed_stream_by_stream(pattern: str) -> None:
    check = Caller("alice", subscribe=(">",)).check_subscribe(pattern)

    assert check is not None
    assert check("/orders/eu")
    assert check("/users/alice")
    assert not check("/users/bob")


def test_rights_by_name() -> None:
    Caller("a", grants=frozenset({"emit"})).check_grant("emit")
    Caller("admin", admin=True).check_grant("emit")
    with pytest.raises(Forbidden):
        Caller("a").check_grant("emit")
    with pytest.raises(Forbidden):
        Caller("a", grants=frozenset({"emit"})).check_admin("backup")


def test_tokens_for_nonsense_are_not_made(keys: SigningKeys) -> None:
    with pytest.raises(NameInvalid):
        keys.issue("alice", publish=("orders",))
    with pytest.raises(InputInvalid):
        keys.issue("alice", grants=("everything",))


def test_keys_and_admin_token_are_made_once_and_are_private(tmp_path: Path) -> None:
    first, second = open_keys(tmp_path), open_keys(tmp_path)
    token = open_admin_token(tmp_path)

    assert first.stored == second.stored
    assert open_admin_token(tmp_path) == token
    assert open_admin_token(tmp_path, "given" * 4) == "given" * 4
    (tmp_path / "other").write_text("in-a-file-of-its-own\n")
    assert open_admin_token(tmp_path, "given" * 4, str(tmp_path / "other")) == "in-a-file-of-its-own"
    (tmp_path / "other").unlink()
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "keys.json": 0o600,
        "admin.token": 0o600,
    }


@pytest.mark.parametrize("token", ["", "with a blank inside it", "not-ascii-ä-not-ascii-ä"])
def test_an_admin_token_that_nobody_can_send_is_refused(tmp_path: Path, token: str) -> None:
    (tmp_path / "file").write_text(token)
    (tmp_path / "admin.token").write_text(token)

    with pytest.raises(ConfigInvalid, match="admin_token_file"):
        open_admin_token(tmp_path, "", str(tmp_path / "file"))
    with pytest.raises(ConfigInvalid, match=r"admin\.token"):
        open_admin_token(tmp_path)
    if token:
        with pytest.raises(ConfigInvalid, match="as given"):
            open_admin_token(tmp_path, token)


def stored(**fields: str) -> str:
    return json.dumps([{"kid": "a", **fields}])


ELLIPTIC, OTHER, EDWARDS = make_key("ES256"), make_key("ES256"), make_key("EdDSA")
P384 = (
    ec.generate_private_key(ec.SECP384R1())
    .public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    .decode()
)


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", stored(alg="none"), stored(alg="HS256"), stored(alg="HS256", secret="!!"),
        stored(alg="HS256", secret="abc"), stored(alg="HS256", secret=base64.b64encode(b"x" * 31).decode()),
        stored(alg="HS256", secret=base64.urlsafe_b64encode(b"\xff" * 32).decode()), stored(alg="ES256"),
        stored(alg="ES256", public="x"), stored(alg="ES256", public=EDWARDS.public), stored(alg="ES256", public=P384),
        stored(alg="EdDSA", public=ELLIPTIC.public), stored(alg="EdDSA", private=EDWARDS.private),
        stored(alg="ES256", public=ELLIPTIC.public, private="x"),
        stored(alg="ES256", public=ELLIPTIC.public, private=OTHER.private),
        stored(alg="EdDSA", public=EDWARDS.public, private=ELLIPTIC.private),
    ],
)  # fmt: skip
def test_a_key_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys.json").write_text(content)
    with pytest.raises(ConfigInvalid, match=r"auth\.keys"):
        open_keys(tmp_path)


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_key_of_each_algorithm_is_read_again(tmp_path: Path, alg: str) -> None:
    open_keys(tmp_path).rotate(alg)

    assert [key.alg for key in open_keys(tmp_path).stored] == [alg, "HS256"]


def test_a_public_key_alone_verifies_what_its_owner_signed(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(stored(alg="ES256", public=ELLIPTIC.public))
    token = jwt.encode({"sub": "alice", "exp": int(time.time()) + 60}, ELLIPTIC.private, algorithm="ES256")

    assert Authenticator(open_keys(tmp_path), "admin").caller(bearer(token)).subject == "alice"
    with pytest.raises(ConfigInvalid, match="no key that can sign"):
        open_keys(tmp_path).issue("alice")


def test_only_the_three_algorithms_make_keys() -> None:
    with pytest.raises(ConfigInvalid):
        make_key("RS256")
