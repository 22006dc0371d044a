"""sps as values and bytes: what parameters mean, and that readers get back what publishers sent."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputInvalid
from penstock.values import Entry, Kind
from penstock.wire import sps

FORMS = {"lines": sps.JsonLines(), "sse": sps.EventStream(2000), "raw": sps.Form()}


def entry(body: bytes, id: int = 17, type: str = "", kind: Kind = Kind.DATA) -> Entry:
    return Entry(id, "/rooms/earth", 3, 0, 0, len(body), kind, type, 1_763_200_000_123, None, "", body)


# ── parameters ─────────────────────────────────────────────────────────────────────────────────


def test_both_generations_of_names_are_known() -> None:
    assert sps.named({"u": "1", "t": "phone", "r": "a", "i": "9"}, "uid", "hid", "tid", "i") == {
        "uid": "1",
        "hid": "phone",
        "tid": "a",
        "i": "9",
    }
    assert sps.named({"u": "1", "uid": "1"}, "uid") == {"uid": "1"}


@pytest.mark.parametrize("params", [{"u": "1", "uid": "2"}, {"nonsense": "1"}, {"uid": "1", "o": "2"}])
def test_what_is_unknown_or_said_twice_differently_is_refused(params: dict[str, str]) -> None:
    with pytest.raises(InputInvalid):
        sps.named(params, "uid")


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_number_of_64_bits_is_a_user(number: int) -> None:
    assert sps.user({"uid": str(number)}) == str(number)


def test_one_user_has_one_name() -> None:
    assert {sps.user({"uid": text}) for text in ("7", "+7", "007")} == {"7"}
    assert sps.user({"uid": "-0"}) == "0"


@pytest.mark.parametrize("text", ["", "abc", "1.0", " 1", "1 ", "9" * 19, str(2**63), "--1", "٣", "0x1", "1e3"])
def test_what_is_no_number_of_64_bits_is_no_user(text: str) -> None:
    with pytest.raises(InputInvalid):
        sps.user({"uid": text})


@pytest.mark.parametrize("hid", ["x" * 65, "a\nb", "a\x00", "\u2028"])
def test_a_device_has_a_short_printable_name(hid: str) -> None:
    with pytest.raises(InputInvalid):
        sps.device({"hid": hid})


def test_topics_are_trimmed_and_come_once_in_order() -> None:
    assert sps.topics({"tid": " earth, mars ,,earth,/orders/>"}) == ("earth", "mars", "/orders/>")
    assert sps.topics({}) == ()


def test_a_long_topic_is_refused_and_not_cut() -> None:
    with pytest.raises(InputInvalid):
        sps.topics({"tid": "x" * 65})


@pytest.mark.parametrize(
    ("text", "after"), [("0", 0), ("17", 17), ("", None), (None, None), (str(2**63 - 1), 2**63 - 1)]
)
def test_the_opaque_is_an_id(text: str | None, after: int | None) -> None:
    assert sps.opaque(text) == after


@pytest.mark.parametrize("text", ["-1", "x", "1 ", str(2**63), "9" * 30])
def test_a_malformed_opaque_is_refused(text: str) -> None:
    with pytest.raises(InputInvalid):
        sps.opaque(text)


@pytest.mark.parametrize(("text", "seconds"), [("1", 5), ("60", 60), ("9999", 300), ("0", 0)])
def test_seconds_are_kept_within_bounds_and_zero_is_off(text: str, seconds: float) -> None:
    assert sps.seconds({"i": text}, "i", 30, 5, 300) == seconds


def test_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputInvalid):
        sps.seconds({"i": "x"}, "i", 30, 5, 300)


# ── events ─────────────────────────────────────────────────────────────────────────────────────


@given(st.one_of(st.binary(min_size=1), st.text(min_size=1).map(lambda text: text.encode("utf-8", "replace"))))
def test_a_line_is_one_line_and_gives_the_event_back(body: bytes) -> None:
    line = FORMS["lines"].event(entry(body), "earth")
    event = json.loads(line)

    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert b"\r" not in line
    assert (event["id"], event["event"], event["tid"], event["time"]) == (17, "message", "earth", 1_763_200_000.123)
    if "data_base64" in event:
        assert base64.b64decode(event["data_base64"]) == body
    elif isinstance(event["data"], str) and event["data"] == body.decode():
        pass
    else:
        assert event["data"] == json.loads(body)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
)


@given(json_values, st.sampled_from([None, 1, 4]), st.sampled_from(["", "\n", "\r\n"]))
def test_json_comes_as_json_however_it_was_laid_out(value: object, indent: int | None, end: str) -> None:
    body = (json.dumps(value, indent=indent) + end).encode()

    assert json.loads(FORMS["lines"].event(entry(body), None))["data"] == value


@pytest.mark.parametrize("body", [b"[" * 100_000, b"NaN", b"{'a':1}", b"01", b'"\\ud800"'])
def test_what_only_looks_like_json_comes_as_text(body: bytes) -> None:
    assert json.loads(FORMS["lines"].event(entry(body), None))["data"] == body.decode()


def parse_event_stream(stream: bytes) -> list[tuple[str, str, str]]:
    """What EventSource makes of it: (id, event, data) of each event; written from the rules of the standard."""
    events, last_id, name, data = [], "", "", []
    for line in stream.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                events.append((last_id, name or "message", "\n".join(data)))
            name, data = "", []
        elif field == "id":
            last_id = value
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return events


@given(st.lists(st.text(min_size=1), min_size=1))
def test_an_event_source_gets_every_text_whole(texts: list[str]) -> None:
    bodies = [text.encode("utf-8", "replace") for text in texts]
    stream = b"".join(FORMS["sse"].event(entry(body, id), None) for id, body in enumerate(bodies, 1))
    expected = [body.decode().replace("\r\n", "\n").replace("\r", "\n") for body in bodies]

    assert parse_event_stream(stream) == [(str(id), "message", text) for id, text in enumerate(expected, 1)]


def test_an_event_source_gets_bytes_that_are_no_text_in_base64() -> None:
    [(_, _, data)] = parse_event_stream(FORMS["sse"].event(entry(b"\xff\x00"), None))

    assert base64.b64decode(json.loads(data)["data_base64"]) == b"\xff\x00"


def test_a_type_names_the_event_and_cannot_break_out_of_its_line() -> None:
    assert json.loads(FORMS["lines"].event(entry(b"x", type="sold"), None))["event"] == "sold"
    assert parse_event_stream(FORMS["sse"].event(entry(b"x", type="a\nid: 9"), None)) == [("17", "a id: 9", "x")]
    assert json.loads(FORMS["lines"].event(entry(b"x", kind=Kind.PART), None))["event"] == "part"


def test_a_stream_that_began_and_had_no_event_resumes_where_it_began() -> None:
    opened = FORMS["sse"].opened("7", "", (), 41, 41)

    assert parse_event_stream(opened + FORMS["sse"].event(entry(b"x", 42), None)) == [("42", "message", "x")]
    assert b"id: 41\n\n" in opened
    assert opened.startswith(b"retry: 2000\n")


@pytest.mark.parametrize("form", FORMS)
def test_the_sign_of_life_is_no_event(form: str) -> None:
    signs = FORMS[form].anti_idle

    assert signs.strip(b":\r\n") == b""
    assert parse_event_stream(signs) == []


def test_raw_is_the_publishers_bytes_and_no_words_about_the_wire() -> None:
    raw = FORMS["raw"]

    assert raw.event(entry(b"\x00\xff"), "earth") == b"\x00\xff"
    assert raw.opened("7", "", (), 1, 1) + raw.gap(1, 2) + raw.reset(9, 1) + raw.ended("replaced") == b""


def test_words_about_the_wire_have_no_id() -> None:
    lines = FORMS["lines"]
    said = [lines.opened("7", "p", ("a",), 3, 5), lines.gap(1, 4), lines.reset(9, 5), lines.ended("replaced")]

    assert [json.loads(line) for line in said] == [
        {"event": "open", "newest": 5, "uid": "7", "hid": "p", "tids": ["a"]},
        {"event": "gap", "from": 1, "to": 4, "oldest": 5},
        {"event": "reset", "asked": 9, "newest": 5},
        {"event": "replaced"},
    ]


@pytest.mark.parametrize(
    ("stream", "tid"),
    [("/rooms/earth", "earth"), ("/orders/eu", "/orders/eu"), ("/users/7", None), ("/all", None)],
)
def test_a_stream_is_a_topic_to_its_subscriber(stream: str, tid: str | None) -> None:
    assert sps.topic_of(stream) == tid
