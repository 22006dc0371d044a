"""When something is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.retrying import LONGEST_RETRY_AFTER, RetryPolicy, parse_retry_after

POLICY = RetryPolicy(first=1, longest=60)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_retries_come_later_and_later_up_to_a_limit(failures: int, chance: float) -> None:
    delay = POLICY.delay(failures, chance)

    assert 0.5 <= delay <= 60
    assert delay <= POLICY.delay(failures, 1)
    assert delay <= 2 * POLICY.delay(failures + 1, chance)


@given(st.integers(1, 100), st.floats(0, 1), st.floats(0.01, 10**6))
def test_what_the_other_side_asks_for_counts_up_to_an_hour(failures: int, chance: float, asked: float) -> None:
    assert POLICY.delay(failures, chance, asked) == min(asked, LONGEST_RETRY_AFTER)
    assert POLICY.delay(failures, chance, 0) == POLICY.delay(failures, chance)  # nobody is asked without a pause


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("120", 120), ("", None), ("-1", None), ("1.5", None), ("٣", None), ("99999999", None),
     ("Wed, 21 Oct 2015 07:28:00 GMT", None)],
)  # fmt: skip
def test_retry_after_is_taken_in_seconds(text: str, seconds: float | None) -> None:
    assert parse_retry_after(text) == seconds
