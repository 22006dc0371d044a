"""The calendar of the mailboxes, which nothing else computes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.core.months import begin_ms, check_month, month_of, months_in_use, oldest_kept, shifted
from penstock.errors import InputInvalid

SOURCE = Path(penstock.__file__).parent
times = st.integers(0, begin_ms("9998_01") - 1)


@given(times, st.integers(-40, 40))
def test_months_follow_each_other(ms: int, by: int) -> None:
    month = check_month(month_of(ms))

    assert begin_ms(month) <= ms < begin_ms(shifted(month, 1))
    assert shifted(shifted(month, by), -by) == month
    assert months_in_use(ms) == (month, month_of(begin_ms(shifted(month, 1))))


def test_a_month_is_kept_for_a_day_longer() -> None:
    begin = begin_ms("2026_11")

    assert oldest_kept(begin + 86_399_999) == "2026_09"
    assert oldest_kept(begin + 86_400_000) == "2026_10"


@pytest.mark.parametrize("text", ["", "2026_13", "2026_00", "2026-11", "26_11", "2026_1", "2026_11; DROP"])
def test_what_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(InputInvalid):
        check_month(text)


def test_nothing_else_computes_months() -> None:
    computing = re.compile(r"(year|month)\w*\)? \* 12\b|\(0\[1-9\]\|1\[0-2\]\)|%Y_%m|\.month\b.*02d")
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if computing.search(path.read_text())}

    assert found == {"core/months.py"}
