from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.names import check_name
from penstock.errors import InputInvalid
from penstock.wire import trickle
from penstock.wire.trickle import SeqInvalid, parse_capability, parse_seq

KEY = b"k" * 32


@pytest.mark.parametrize(
    ("text", "seq"), [("0", 0), ("+0", 0), ("00", 0), ("17", 17), ("-1", -1), (str(2**63 - 1), 2**63 - 1)]
)
def test_a_seq_is_a_number_as_the_original_takes_it(text: str, seq: int) -> None:
    assert parse_seq(text) == seq


@pytest.mark.parametrize("text", ["", "-", "+", "x", "1.0", " 1", "1_0", "٣", str(2**63), "9" * 40, "0x1", "next"])
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(SeqInvalid):
        parse_seq(text)


@given(st.text(min_size=1, max_size=20).filter(lambda name: name not in (".", "..")))
def test_any_name_is_a_level_of_a_stream_and_no_two_are_the_same(name: str) -> None:
    try:
        stream = trickle.stream_of(name, 3)
    except (InputInvalid, UnicodeEncodeError):
        return  # too long once it is escaped, or half of a surrogate pair
    assert check_name(stream) == stream
    assert stream.count("/") == 3
    assert (
        re.sub("(?:%[0-9A-F]{2})+", lambda found: bytes.fromhex(found.group().replace("%", "")).decode(), stream)[
            len("/channels/") : -2
        ]
        == name
    )


def test_a_name_too_long_is_refused() -> None:
    with pytest.raises(InputInvalid, match="128"):
        trickle.level_of("x" * 129)


def test_a_change_is_compact_json_as_go_writes_it() -> None:
    assert trickle.changed(added=["a<b"]) == b'{"added":["a\\u003cb"]}'
    assert trickle.changed(removed=["é"]) == '{"removed":["é"]}'.encode()


MAKER = trickle.maker_of(KEY, "alice")


@given(
    st.text(min_size=1, max_size=30), st.sets(st.sampled_from("psd"), min_size=1), st.integers(0, 10**11),
    st.sampled_from(["", MAKER]),
)  # fmt: skip
def test_a_right_in_a_name_holds_until_its_time(name: str, rights: set[str], expires: int, maker: str) -> None:
    given_rights = "".join(sorted(rights))
    try:
        sealed = trickle.seal(KEY, name, given_rights, expires, maker)
    except UnicodeEncodeError:
        return
    found = parse_capability(sealed)

    assert found is not None
    assert found._replace(mac="") == (name, given_rights, expires, "", maker)
    assert trickle.holds(found, KEY, expires - 1)
    assert trickle.holds(found, KEY, expires) is (expires == 0)
    assert not trickle.holds(found, b"another key", 0)


@pytest.mark.parametrize("maker", ["", MAKER])
@pytest.mark.parametrize(
    "changed",
    [
        {"name": "cam2"},
        {"rights": "psd"},
        {"expires": 9_999},
        {"mac": "A" * 22},
        {"maker": trickle.maker_of(KEY, "bob")},
    ],
)
def test_nothing_of_it_can_be_changed(changed: dict[str, object], maker: str) -> None:
    found = parse_capability(trickle.seal(KEY, "cam1", "s", 1000, maker))

    assert found is not None
    assert trickle.holds(found, KEY, 0)
    assert not trickle.holds(found._replace(**changed), KEY, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cam1", "cam~1", "cam1~s.0.short", "~s.0." + "A" * 22, "cam1~x.0." + "A" * 22])
def test_other_names_are_names(name: str) -> None:
    assert parse_capability(name) is None
