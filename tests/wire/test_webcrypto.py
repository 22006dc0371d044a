"""The codings of RFC 8188 and RFC 8291: the RFCs' own examples, and the opinion of others' code."""

from __future__ import annotations

import http_ece
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st
from pywebpush import WebPusher

from penstock.limits import CODING_CHARACTERS
from penstock.wire import webcrypto
from penstock.wire.webcrypto import (
    OVERHEAD_BYTES,
    POINT_BYTES,
    Coding,
    CodingInvalid,
    KeyInvalid,
    decode64,
    decode_records,
    decrypt,
    encode64,
    encode_records,
    encrypt,
    load_private,
    load_public,
    parse_coding,
    point_of,
)

# RFC 8291, section 5 and appendix A
MESSAGE = b"When I grow up, I want to be a watermelon"
SENDER = load_private(decode64("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"))
SENDER_POINT = "BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8"
USER_AGENT = load_private(decode64("q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"))
USER_AGENT_POINT = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
AUTH = decode64("BTBZMqHH6r4Tts7J_aSIgg")
SALT = decode64("DGv6ra1nlYgDCS1FRnbzlw")
BODY = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6Tlz"
    "AC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
)

# RFC 8188, section 3
WALRUS = b"I am the walrus"
ONE_RECORD = "I1BsxtFttlv3u_Oo94xnmwAAEAAA-NAVub2qFgBEuQKRapoZu-IxkIva3MEB1PD-ly8Thjg"
TWO_RECORDS = "uNCkWiNYzKTnBN9ji3-qWAAAABkCYTHOG8chz_gnvgOqdGYovxyjuqRyJFjEDyoF1Fvkj6hQPdPHI51OEUKEpgz3SsLWIqS_uA"


def seal(message: bytes = MESSAGE, padding: int = 0) -> bytes:
    point = point_of(USER_AGENT)
    return encrypt(message, user_agent=point, auth=AUTH, private_key=SENDER, salt=SALT, padding=padding)


def test_the_example_of_rfc_8291() -> None:
    assert encode64(point_of(SENDER)) == SENDER_POINT
    assert encode64(point_of(USER_AGENT)) == USER_AGENT_POINT
    assert encode64(seal()) == BODY
    assert decrypt(decode64(BODY), private_key=USER_AGENT, auth=AUTH) == MESSAGE


def test_the_key_of_rfc_8291_appendix_a_opens_its_records() -> None:
    key = decode64("S4lYMb_L0FxCeq0WhDx813KgSYqU26kOyzWUdsXYyrg")

    assert decode_records(decode64(BODY), lambda _: key) == MESSAGE


def test_the_example_of_rfc_8188_with_one_record() -> None:
    key, salt = decode64("yqdlZ-tYemfogSmv7Ws5PQ"), decode64("I1BsxtFttlv3u_Oo94xnmw")

    assert encode64(encode_records(WALRUS, key=key, salt=salt)) == ONE_RECORD
    assert decode_records(decode64(ONE_RECORD), lambda _: key) == WALRUS


def test_the_example_of_rfc_8188_with_two_records_and_padding() -> None:
    key, salt = decode64("BO3ZVPxUlnLORbVGMpbT1Q"), decode64("uNCkWiNYzKTnBN9ji3-qWA")
    asked = []

    def key_of(key_id: bytes) -> bytes:
        asked.append(key_id)
        return key

    made = encode_records(WALRUS, key=key, salt=salt, key_id=b"a1", record_bytes=25, padding=1)
    assert encode64(made) == TWO_RECORDS
    assert decode_records(made, key_of) == WALRUS
    assert asked == [b"a1"]


texts = st.binary(max_size=200)
record_sizes = st.integers(18, 120)
paddings = st.integers(0, 100)
KEY = bytes(range(16))


@given(texts, record_sizes, paddings)
def test_what_was_encoded_is_decoded(text: bytes, record_bytes: int, padding: int) -> None:
    made = encode_records(text, key=KEY, salt=SALT, record_bytes=record_bytes, padding=padding)

    assert decode_records(made, lambda _: KEY) == text


@given(texts, record_sizes, paddings)
def test_others_read_our_records(text: bytes, record_bytes: int, padding: int) -> None:
    made = encode_records(text, key=KEY, salt=SALT, record_bytes=record_bytes, padding=padding)

    assert http_ece.decrypt(made, key=KEY, version="aes128gcm") == text


@given(st.binary(min_size=1, max_size=200), record_sizes)  # of no text at all they make no record
def test_we_read_the_records_of_others(text: bytes, record_bytes: int) -> None:
    made = http_ece.encrypt(text, salt=SALT, key=KEY, rs=record_bytes, version="aes128gcm")

    assert decode_records(made, lambda _: KEY) == text


@settings(max_examples=50)
@given(st.binary(max_size=5000), st.integers(0, 300))
def test_a_push_message_is_one_record_that_others_read(message: bytes, padding: int) -> None:
    body = seal(message, padding)

    assert len(body) == len(message) + padding + OVERHEAD_BYTES
    assert decrypt(body, private_key=USER_AGENT, auth=AUTH) == message
    if message:  # http_ece refuses an empty one
        assert http_ece.decrypt(body, private_key=USER_AGENT, auth_secret=AUTH, version="aes128gcm") == message


@settings(max_examples=50)
@given(st.binary(min_size=1, max_size=3000))
def test_we_read_what_pywebpush_encrypts(message: bytes) -> None:
    keys = {"p256dh": USER_AGENT_POINT, "auth": encode64(AUTH)}
    pusher = WebPusher({"endpoint": "https://push.example.net/", "keys": keys})

    body = pusher.encode(message, content_encoding="aes128gcm")["body"]

    assert decrypt(body, private_key=USER_AGENT, auth=AUTH) == message


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_noticed(place: int, change: int) -> None:
    body = bytearray(decode64(BODY))
    place %= len(body)
    body[place] ^= change
    if 16 <= place < 20 and int.from_bytes(body[16:20]) >= len(body) - 86:
        # The record size is under no signature; as long as the one record fits, it means nothing.
        assert decrypt(bytes(body), private_key=USER_AGENT, auth=AUTH) == MESSAGE
        return
    with pytest.raises(CodingInvalid):
        decrypt(bytes(body), private_key=USER_AGENT, auth=AUTH)


@given(st.binary(max_size=300))
def test_garbage_is_refused_in_words(body: bytes) -> None:
    with pytest.raises(CodingInvalid):
        decrypt(body, private_key=USER_AGENT, auth=AUTH)


def test_records_that_were_cut_short_are_noticed() -> None:
    made = encode_records(WALRUS, key=KEY, salt=SALT, record_bytes=25)

    with pytest.raises(CodingInvalid, match="cut short"):
        decode_records(made[: 21 + 25], lambda _: KEY)


def test_another_user_agent_cannot_read_it() -> None:
    with pytest.raises(CodingInvalid):
        decrypt(decode64(BODY), private_key=SENDER, auth=AUTH)
    with pytest.raises(CodingInvalid):
        decrypt(decode64(BODY), private_key=USER_AGENT, auth=bytes(16))


def test_keys_that_are_none_are_refused() -> None:
    for point in (b"", bytes(65), b"\x04" + bytes(64), point_of(SENDER)[:-1], b"\x02" + point_of(SENDER)[1:33]):
        with pytest.raises(KeyInvalid):
            load_public(point)
    for raw in (b"", bytes(32), b"\xff" * 32, bytes(31)):
        with pytest.raises(KeyInvalid):
            load_private(raw)
    with pytest.raises(KeyInvalid, match="16 bytes"):
        encrypt(b"", user_agent=point_of(USER_AGENT), auth=b"short", private_key=SENDER, salt=SALT)
    assert point_of(load_public(point_of(SENDER))) == point_of(SENDER)


@pytest.mark.parametrize(("salt", "key_id", "size"), [(b"", b"", 4096), (SALT, bytes(256), 4096), (SALT, b"", 17)])
def test_records_that_cannot_be_are_refused(salt: bytes, key_id: bytes, size: int) -> None:
    with pytest.raises(CodingInvalid):
        encode_records(b"text", key=KEY, salt=salt, key_id=key_id, record_bytes=size)


def test_base64_is_read_in_every_spelling_and_written_in_one() -> None:
    assert decode64("-_8=") == decode64("+/8=") == decode64("-_8") == b"\xfb\xff"
    assert encode64(b"\xfb\xff") == "-_8"
    for wrong in ("a", "a b", "ä", "a=b"):
        with pytest.raises(ValueError, match="base64url"):
            decode64(wrong)


DH = f"dh={SENDER_POINT}"
SALT_PARAMETER = f"salt={encode64(SALT)}"


def test_the_headers_of_aes128gcm_say_nothing_more() -> None:
    assert parse_coding("aes128gcm") == Coding("aes128gcm")
    assert parse_coding(" AES128GCM ", crypto_key="p256ecdsa=whatever") == Coding("aes128gcm")


def test_the_headers_of_aesgcm_reach_the_user_agent_cleaned() -> None:
    coding = parse_coding("aesgcm", f'keyid="p256dh"; salt="{encode64(SALT)}=="', f'{DH}=; p256ecdsa="abc=", x=y')

    assert coding == Coding("aesgcm", f"keyid=p256dh; {SALT_PARAMETER}", f"{DH}; p256ecdsa=abc, x=y")


def test_a_message_of_pywebpush_in_the_older_coding_is_described_so_that_it_can_be_read() -> None:
    keys = {"p256dh": USER_AGENT_POINT, "auth": encode64(AUTH)}
    made = WebPusher({"endpoint": "https://push.example.net/", "keys": keys}).encode(MESSAGE, content_encoding="aesgcm")
    headers = {name: made[name].decode() for name in ("salt", "crypto_key")}

    coding = parse_coding("aesgcm", f"salt={headers['salt']}", f"dh={headers['crypto_key']}")

    point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decode64(coding.crypto_key[3:]))
    salt = decode64(coding.encryption[5:])
    opened = http_ece.decrypt(
        made["body"], salt=salt, private_key=USER_AGENT, dh=point_of(point), auth_secret=AUTH, version="aesgcm"
    )
    assert opened == MESSAGE


@pytest.mark.parametrize(
    ("encoding", "encryption", "crypto_key", "why"),
    [
        ("", "", "", "is missing"),
        ("gzip", "", "", "'gzip'"),
        ("aesgcm128", SALT_PARAMETER, DH, "'aesgcm128'"),
        ("aes128gcm", SALT_PARAMETER, "", "salt is in the body"),
        ("aes128gcm", "", DH, "key is in the body"),
        ("aesgcm", "", DH, "must have salt="),
        ("aesgcm", "salt=a b", DH, "not base64url"),
        ("aesgcm", "salt=", DH, "not base64url"),
        ("aesgcm", SALT_PARAMETER, "p256ecdsa=AAAA", "must have dh="),
        ("aesgcm", SALT_PARAMETER, "dh=a.b", "not base64url"),
        ("aesgcm", SALT_PARAMETER + ";" * CODING_CHARACTERS, "", "limit is 2048"),
        ("aesgcm", SALT_PARAMETER, DH + ";" * CODING_CHARACTERS, "limit is 2048"),
    ],
)
def test_headers_that_describe_no_coding_are_refused(encoding: str, encryption: str, crypto_key: str, why: str) -> None:
    with pytest.raises(CodingInvalid, match=why):
        parse_coding(encoding, encryption, crypto_key)


@pytest.mark.parametrize(
    ("encryption", "crypto_key", "kept"),
    [
        ("salt=AAAA", "dh=AAAAAAAAAAAAAAAAAAAAAA==", ("salt=AAAA", "dh=AAAAAAAAAAAAAAAAAAAAAA")),
        ("salt=A", "dh=A", ("salt=A", "dh=A")),
        (SALT_PARAMETER, "", (SALT_PARAMETER, "")),
    ],
)
def test_how_long_a_draft_s_salt_and_key_are_is_the_browser_s_to_judge(
    encryption: str, crypto_key: str, kept: tuple[str, str]
) -> None:
    assert parse_coding("aesgcm", encryption, crypto_key) == Coding("aesgcm", *kept)


def test_sabotage_a_service_that_judges_the_length_of_a_draft_s_key(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = webcrypto._require

    def judge(given: dict[str, str], name: str, header: str, text: str) -> None:
        honest(given, name, header, text)
        if name == "dh" and len(decode64(given["dh"])) != POINT_BYTES:
            raise CodingInvalid("dh= is no point")

    monkeypatch.setattr(webcrypto, "_require", judge)
    with pytest.raises(CodingInvalid, match="no point"):
        test_how_long_a_draft_s_salt_and_key_are_is_the_browser_s_to_judge(
            "salt=AAAA", "dh=AAAA", ("salt=AAAA", "dh=AAAA")
        )


def test_sabotage_a_service_that_demands_the_header_crypto_key(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = webcrypto._parse_draft

    def demand(salts: dict[str, str], keys: dict[str, str], encryption: str, crypto_key: str) -> Coding:
        webcrypto._require(keys, "dh", "Crypto-Key", crypto_key)
        return honest(salts, keys, encryption, crypto_key)

    monkeypatch.setattr(webcrypto, "_parse_draft", demand)
    with pytest.raises(CodingInvalid, match="must have dh="):
        test_how_long_a_draft_s_salt_and_key_are_is_the_browser_s_to_judge(SALT_PARAMETER, "", (SALT_PARAMETER, ""))


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=80))
def test_any_headers_are_a_coding_or_refused(encoding: str, encryption: str, crypto_key: str) -> None:
    for name in (encoding, "aesgcm", "aes128gcm"):
        try:
            parse_coding(name, encryption, crypto_key)
        except CodingInvalid as error:
            assert error.remedy  # noqa: PT017 (either outcome is right; an error must help)
