"""VAPID: RFC 8292's own example, py-vapid's opinion, and every check failing by its name."""

from __future__ import annotations

import base64
import json
import math

import jwt
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st
from py_vapid import Vapid02

from penstock.wire import vapid
from penstock.wire.vapid import (
    CHECKS,
    Credentials,
    VapidClaims,
    VapidInvalid,
    check_claims,
    check_key,
    key_hash,
    origin_of,
    parse_authorization,
    parse_origin,
    sign,
    verify,
)
from penstock.wire.webcrypto import PrivateKey, decode64, encode64, load_private, point_of

# RFC 8292, section 2.4
TOKEN = (
    "eyJ0eXAiOiJKV1QiLCJhbGciOiJFUzI1NiJ9.eyJhdWQiOiJodHRwczovL3B1c2guZXhhbXBsZS5uZXQiLCJleHAiOjE0NTM1MjM3Njgs"
    "InN1YiI6Im1haWx0bzpwdXNoQGV4YW1wbGUuY29tIn0.i3CYb7t4xfxCDquptFOepC9GAu_HLGkMlMuCGSK2rpiUfnK9ojFwDXb1JrErt"
    "mysazNjjvW2L9OkSSHzvoD1oA"
)
KEY = "BA1Hxzyi1RUM1b5wjxsn7nGxAszw2u61m164i3MrAIxHF6YK5h4SDYic-dRuU_RCPCfA5aq9ojSwk5Y2EmClBPs"
ORIGIN = "https://push.example.net"
EXP = 1453523768
NOW = EXP - 3600
DAY = 24 * 3600

OWN = load_private(b"\x01" * 32)
OWN_KEY = encode64(point_of(OWN))


HEADER = encode64(b'{"typ":"JWT","alg":"ES256"}')
NESTED = encode64(b'{"aud":' + b"[" * 1400 + b"]" * 1400 + b"}")  # as deep as a token is long


def token(claims: object, key: PrivateKey = OWN, algorithm: str = "ES256") -> str:
    return jwt.encode(claims, key, algorithm=algorithm)  # type: ignore[arg-type]


def header(claims: object) -> str:
    return f"vapid t={token(claims)}, k={OWN_KEY}"


def check_of(authorization: str, crypto_key: str = "", *, origin: str = ORIGIN, now: float = NOW) -> str:
    """The name of the check that fails."""
    with pytest.raises(VapidInvalid) as caught:
        verify(parse_authorization(authorization, crypto_key), origin=origin, now=now)
    assert caught.value.remedy == CHECKS[caught.value.check]
    return caught.value.check


def test_the_example_of_rfc_8292() -> None:
    claims = verify(parse_authorization(f"vapid t={TOKEN}, k={KEY}"), origin=ORIGIN, now=NOW)

    assert claims == VapidClaims(decode64(KEY), (ORIGIN,), EXP, "mailto:push@example.com")


@pytest.mark.parametrize("scheme", ["WebPush", "webpush", "Bearer"])
def test_the_older_form_has_its_key_in_another_header(scheme: str) -> None:
    crypto_key = f'dh=abc; p256ecdsa="{KEY}="'

    claims = verify(parse_authorization(f"{scheme} {TOKEN}", crypto_key), origin=ORIGIN, now=NOW)

    assert claims.key == decode64(KEY)


@pytest.mark.parametrize(
    "text", [f"VAPID t={TOKEN},k={KEY}", f"vapid k={KEY}; t={TOKEN}", f" vapid  t={TOKEN} , k={KEY}="]
)
def test_spellings_of_the_header(text: str) -> None:
    assert parse_authorization(text) == Credentials(TOKEN, decode64(KEY))


def test_py_vapid_signs_and_we_verify() -> None:
    raw = OWN.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    made = Vapid02.from_pem(raw).sign({"aud": ORIGIN, "sub": "mailto:me@example.net", "exp": NOW + 60})

    claims = verify(parse_authorization(made["Authorization"]), origin=ORIGIN, now=NOW)

    assert (claims.sub, claims.exp) == ("mailto:me@example.net", NOW + 60)


def test_we_sign_and_others_verify() -> None:
    made = sign(OWN, origin=ORIGIN, exp=NOW + 60, sub="mailto:me@example.net")

    assert Vapid02.verify(made)
    given = parse_authorization(made)
    claims = jwt.decode(
        given.token, OWN.public_key(), algorithms=["ES256"], audience=ORIGIN, options={"verify_exp": False}
    )
    assert claims == {"aud": ORIGIN, "exp": NOW + 60, "sub": "mailto:me@example.net"}
    assert made == sign(OWN, origin=ORIGIN, exp=NOW + 60, sub="mailto:me@example.net")


def test_without_a_contact_there_is_no_sub() -> None:
    made = parse_authorization(sign(OWN, origin=ORIGIN, exp=NOW + 60))

    assert verify(made, origin=ORIGIN, now=NOW).sub == ""


@pytest.mark.parametrize(
    ("authorization", "crypto_key", "check"),
    [
        ("", "", "authorization_missing"),
        ("Basic abc", "", "scheme_unknown"),
        ("vapid", "", "header_malformed"),
        (f"vapid k={KEY}", "", "header_malformed"),
        ("Bearer ", f"p256ecdsa={KEY}", "header_malformed"),
        (f"vapid t={TOKEN}", "", "key_missing"),
        (f"WebPush {TOKEN}", "dh=abc", "key_missing"),
        (f"vapid t={TOKEN}, k=a b", "", "key_invalid"),
        (f"vapid t={TOKEN}, k={KEY[:-4]}", "", "key_invalid"),
        (f"vapid t=abc, k={KEY}", "", "token_malformed"),
        (f"vapid t=a.b.c, k={KEY}", "", "token_malformed"),
        (f"vapid t={TOKEN}A, k={KEY}", "", "token_malformed"),
        (f"vapid t={'A' * 5000}, k={KEY}", "", "token_malformed"),
        (f"vapid t={NESTED}.e30.AA, k={KEY}", "", "token_malformed"),
        (f"vapid t={HEADER}.{NESTED}.AA, k={KEY}", "", "token_malformed"),
        (f"vapid t={TOKEN}, k={OWN_KEY}", "", "signature_invalid"),
    ],
)
def test_a_header_that_is_wrong_says_what_is_wrong(authorization: str, crypto_key: str, check: str) -> None:
    assert check_of(authorization, crypto_key) == check


@pytest.mark.parametrize(
    ("exp", "check"),
    [
        ("9" * 400, "exp_too_far"),
        ("-" + "9" * 400, "exp_past"),
        ("9" * 1500, "exp_too_far"),
        ("1e400", "token_malformed"),
    ],
)
def test_an_expiry_of_hundreds_of_digits_is_refused_like_any_other(exp: str, check: str) -> None:
    claims = f'{{"aud":"{ORIGIN}","exp":{exp}}}'
    signed = f"{HEADER}.{encode64(claims.encode())}"
    r, s = decode_dss_signature(OWN.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))

    assert check_of(f"vapid t={signed}.{encode64(r.to_bytes(32) + s.to_bytes(32))}, k={OWN_KEY}") == check


@pytest.mark.parametrize("exp", ["9" * 400, "-" + "9" * 400])
def test_sabotage_an_expiry_that_is_not_bounded_before_it_becomes_a_float(
    exp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vapid, "FARTHEST", math.inf)

    with pytest.raises(OverflowError):
        test_an_expiry_of_hundreds_of_digits_is_refused_like_any_other(exp, "exp_too_far")


@pytest.mark.parametrize("token", [f"{NESTED}.e30.AA", f"{HEADER}.{NESTED}.AA"], ids=["header", "claims"])
def test_sabotage_nested_brackets_that_nobody_expects(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vapid, "RecursionError", ValueError, raising=False)  # the module catches another one instead

    with pytest.raises(RecursionError):
        test_a_header_that_is_wrong_says_what_is_wrong(f"vapid t={token}, k={KEY}", "", "token_malformed")


GOOD = {"aud": ORIGIN, "exp": NOW + 60, "sub": "mailto:me@example.net"}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"aud": None}, "aud_missing"),
        ({"aud": 5}, "aud_missing"),
        ({"aud": []}, "aud_missing"),
        ({"aud": "https://other.example.net"}, "aud_mismatch"),
        ({"aud": ORIGIN + "/"}, "aud_mismatch"),
        ({"exp": None}, "exp_missing"),
        ({"exp": NOW - 61}, "exp_past"),
        ({"exp": NOW + DAY + 61}, "exp_too_far"),
        ({"sub": "me@example.net"}, "sub_invalid"),
        ({"sub": 5}, "sub_invalid"),
    ],
)
def test_a_claim_that_is_wrong_says_which(change: dict[str, object], check: str) -> None:
    claims = {name: value for name, value in {**GOOD, **change}.items() if value is not None}

    assert check_of(signed_by_hand(claims)) == check


def test_an_expiry_that_is_a_text_is_none() -> None:
    assert check_of(signed_by_hand({**GOOD, "exp": str(NOW + 60)})) == "exp_missing"
    assert check_of(signed_by_hand({**GOOD, "exp": True})) == "exp_missing"


@pytest.mark.parametrize(
    "change",
    [{}, {"sub": "https://example.net/contact"}, {"aud": ["https://x", ORIGIN]}, {"exp": NOW - 59}, {"exp": NOW + DAY}],
)
def test_claims_that_hold(change: dict[str, object]) -> None:
    assert verify(parse_authorization(signed_by_hand({**GOOD, **change})), origin=ORIGIN, now=NOW)


def signed_by_hand(claims: dict[str, object]) -> str:
    """A token with claims that libraries refuse to write."""
    signature_of = jwt.get_algorithm_by_name("ES256").sign
    signed = ".".join(encode64(json.dumps(part).encode()) for part in ({"alg": "ES256"}, claims))
    return f"vapid t={signed}.{encode64(signature_of(signed.encode(), OWN))}, k={OWN_KEY}"


def test_only_es256_counts() -> None:
    none = jwt.encode(GOOD, "", algorithm="none")
    shared = jwt.encode(GOOD, OWN_KEY, algorithm="HS256")

    assert check_of(f"vapid t={none}, k={OWN_KEY}") == "algorithm_unsupported"
    assert check_of(f"vapid t={shared}, k={OWN_KEY}") == "algorithm_unsupported"


def test_a_signature_of_another_key_is_refused() -> None:
    other = token(GOOD, ec.generate_private_key(ec.SECP256R1()))

    assert check_of(f"vapid t={other}, k={OWN_KEY}") == "signature_invalid"


def test_claims_once_verified_are_checked_again_cheaply() -> None:
    claims = verify(parse_authorization(header(GOOD)), origin=ORIGIN, now=NOW)

    check_claims(claims, origin=ORIGIN, now=NOW + 100)
    for origin, now, check in ((ORIGIN, NOW + 121, "exp_past"), ("https://x", NOW, "aud_mismatch")):
        with pytest.raises(VapidInvalid) as caught:
            check_claims(claims, origin=origin, now=now)
        assert caught.value.check == check


def test_a_subscription_that_belongs_to_a_key_takes_no_other() -> None:
    check_key(point_of(OWN), key_hash(point_of(OWN)))
    with pytest.raises(VapidInvalid) as caught:
        check_key(decode64(KEY), key_hash(point_of(OWN)))
    assert caught.value.check == "key_mismatch"


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://push.example.net/wpush/v1/abc", "https://push.example.net"),
        ("https://push.example.net:443/x", "https://push.example.net"),
        ("https://Push.Example.net:8443/x", "https://push.example.net:8443"),
        ("http://127.0.0.1:8080/x?y", "http://127.0.0.1:8080"),
        ("http://[::1]:80/", "http://[::1]"),
    ],
)
def test_the_origin_of_an_endpoint(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://push.example.net", "https://push.example.net"),
        ("HTTPS://Push.Example.net:443/", "https://push.example.net"),
        ("http://[::1]:8800", "http://[::1]:8800"),
    ],
)
def test_an_origin_as_people_write_it(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    "text",
    ["", "push.example.net", "https://", "ftp://a", "https://a/path", "https://a?b", "https://u:p@a", "http://a:0x"],
)
def test_what_is_no_origin(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_origin(text)


@given(st.text(max_size=200), st.text(max_size=100))
def test_any_headers_are_refused_in_words(authorization: str, crypto_key: str) -> None:
    check_of(authorization, crypto_key)
    check_of(f"vapid t={authorization}, k={KEY}")


parts = st.one_of(
    st.binary(max_size=60),
    st.dictionaries(
        st.sampled_from(["alg", "aud", "exp", "sub"]),
        st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.lists(st.integers())),
    ).map(lambda made: json.dumps(made).encode()),
)


@given(parts, parts, st.binary(max_size=70))
def test_any_token_is_refused_in_words(head: bytes, claims: bytes, signature: bytes) -> None:
    made = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (head, claims, signature))

    check_of(f"vapid t={made}, k={KEY}")


@given(
    st.dictionaries(
        st.sampled_from(["aud", "exp", "sub"]),
        st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.lists(st.text())),
    )
)
def test_any_signed_claims_hold_or_are_refused_in_words(claims: dict[str, object]) -> None:
    try:
        verify(parse_authorization(signed_by_hand(claims)), origin=ORIGIN, now=NOW)
    except VapidInvalid as error:
        assert error.check in CHECKS  # noqa: PT017 (either outcome is right)
