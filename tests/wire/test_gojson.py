"""Requests in JSON, as leniently as clients of the original may rely on."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputInvalid
from penstock.wire.gojson import decode


class Wanted(msgspec.Struct, rename="pascal"):
    subscription_id: str = ""
    lines: list[str] = []
    count: int = 0


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"SubscriptionId":"a"}', Wanted("a")),
        (b'{"subscriptionid":"a","LINES":["b"]}', Wanted("a", ["b"])),
        (b'{"SubscriptionId":null,"Lines":null}', Wanted()),
        (b'{"Other":{"x":1},"Count":3}', Wanted(count=3)),
        (b' {"Lines":["\\ud800","\\ud83d\\ude00","a\\udc00b"]} ', Wanted(lines=["\ufffd", "😀", "a\ufffdb"])),
    ],
)
def test_keys_in_any_case_nulls_and_halves_of_characters_are_taken(body: bytes, wanted: Wanted) -> None:
    assert decode(body, Wanted) == wanted


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b'"a"', b"{", b'{"Lines":"a"}', b'{"Lines":[1]}', b"\xff", b"{}}"]
)
def test_what_is_no_such_object_is_refused(body: bytes) -> None:
    with pytest.raises(InputInvalid):
        decode(body, Wanted)


@given(
    st.one_of(
        st.binary(max_size=100),
        st.text(alphabet='{}[]",:\\ud8nulltrSubscriptionIdLines1.e-', max_size=60).map(str.encode),
    )
)
def test_any_bytes_are_taken_or_refused(body: bytes) -> None:
    with contextlib.suppress(InputInvalid):
        decode(body, Wanted)


def test_a_deep_nest_is_refused_and_nothing_breaks() -> None:
    with pytest.raises(InputInvalid):
        decode(b'{"Lines":' + b"[" * 100_000 + b"]" * 100_000 + b"}", Wanted)
