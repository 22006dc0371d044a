from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigInvalid, InputInvalid
from penstock.units import measure, parse_address, parse_keep, parse_moment, parse_whole


@pytest.mark.parametrize("text", ["0", "7", "007", "9223372036854775807"])
def test_a_whole_number_is_read(text: str) -> None:
    assert parse_whole("x", text) == int(text)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.0", "1e3", " 1", "1_0", "²", "٣", "9223372036854775808", "9" * 5000]
)
def test_what_is_no_whole_number_is_refused_whatever_its_digits(text: str) -> None:
    with pytest.raises(InputInvalid, match=r"x: .* is not a whole number from 0 to 9223372036854775807"):
        parse_whole("x", text)


def test_a_whole_number_has_its_bounds() -> None:
    assert [parse_whole("x", text, least=1, most=3) for text in ("1", "3")] == [1, 3]
    for text in ("0", "4"):
        with pytest.raises(InputInvalid, match="from 1 to 3"):
            parse_whole("x", text, least=1, most=3)


def test_a_moment_is_in_utc_unless_it_says_otherwise() -> None:
    same = ["2026-11-15T12:00:00Z", "2026-11-15T12:00", "2026-11-15T13:00:00+01:00"]
    assert {parse_moment("x", text) for text in same} == {datetime(2026, 11, 15, 12, tzinfo=UTC)}
    for text in ("", "yesterday", "2026-13-01", "1763208000"):
        with pytest.raises(InputInvalid, match="is not like 2026-11-15T12:00:00Z"):
            parse_moment("x", text)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [("30", "s", 30), ("24h", "s", 86_400), ("1.5 d", "s", 129_600), ("4MiB", "bytes", 2**22), ("3kB", "bytes", 3000)],
)
def test_a_measure_is_read_in_its_unit(text: str, unit: str, value: float) -> None:
    assert measure(text, unit) == value


@pytest.mark.parametrize("text", ["", "h", "1h30", "5 parsec", "1e3", "٣s", "--5", "_5"])
def test_what_is_no_measure_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        measure(text, "s")


@pytest.mark.parametrize(
    ("listen", "parts"), [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:8800", ("::1", 8800)), ("host:1", ("host", 1))]
)
def test_an_address_is_host_and_port(listen: str, parts: tuple[str, int]) -> None:
    assert parse_address(listen) == parts


@pytest.mark.parametrize("keep", [("30d", (2_592_000.0, None)), ("50GiB", (None, 50 * 2**30)), ("", (None, None))])
def test_keep_is_an_age_or_a_size(keep: tuple[str, object]) -> None:
    assert parse_keep(keep[0]) == keep[1]


@pytest.mark.parametrize("keep", [("1s", (1.0, None)), ("1KiB", (None, 2**10))])
def test_the_least_that_can_be_kept_is_kept(keep: tuple[str, object]) -> None:
    assert parse_keep(keep[0]) == keep[1]


@pytest.mark.parametrize("keep", ["-1d", "0d", "30ms", "0GiB", "-5GiB", "1B", "-0s"])
def test_a_keep_that_would_empty_the_log_is_refused(keep: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"log\.keep.*less than"):
        parse_keep(keep)


@given(st.text())
def test_any_other_text_is_refused_or_read_but_never_breaks(text: str) -> None:
    for read in (parse_address, parse_keep):
        try:
            read(text)
        except ConfigInvalid as refused:
            assert refused.remedy  # noqa: PT017
