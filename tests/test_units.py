from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigInvalid
from penstock.units import measure, parse_address, parse_keep


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
