"""What a report of `retention` says, and which watermarks it takes for stale. No JVM is needed."""

from __future__ import annotations

import time

import pytest

from penstock.errors import InputInvalid
from penstock.pipeline.jobs import retention

TRIM = {"upto": 1_500, "trimmed": 100, "entries": 1_400, "reason": "ledger is in the lake up to id 1500"}
MONTHS = [
    {"month": "2026_09", "recipients": 7, "pending": 3, "bytes": 4_096},
    {"month": "2026_11", "recipients": 0, "pending": 0, "bytes": 0},
]


def said(*, apply: bool, stale: list[str]) -> str:
    data = {
        "trim": TRIM,
        "stale": stale,
        "months": MONTHS,
        "due": ["2026_09"],
        "unseen": {30: 2, 60: 1_000},
        "applied": apply and not stale,
    }
    return retention._words(data, apply)


def test_a_dry_run_names_months_user_agents_and_the_trim_point() -> None:
    assert said(apply=False, stale=[]).splitlines() == [
        "retention: dry run",
        "  log        could be trimmed up to id 1,500: ledger is in the lake up to id 1500",
        "  2026_09    7 recipients, 3 items of 4,096 bytes wait; due to go: ./penstock tables --apply",
        "  2026_11    0 recipients, 0 items of 0 bytes wait",
        "  unseen     2 user agents for 30 to 60 days",
        "  unseen     1,000 user agents for over 60 days",
        "  --apply trims it",
    ]


def test_a_refusal_says_which_table_stands_still() -> None:
    lines = said(apply=True, stale=["events", "ledger"]).splitlines()

    assert lines[0] == "retention: dry run"
    assert lines[1] == "  REFUSED: events and ledger of the lake stand still although the log has grown"


def state(events_seconds: float, events_lag: int) -> dict[str, object]:
    """What the server says of tables that moved so many seconds ago; `ledger` is up to date."""
    now_ms = time.time() * 1000
    events = {"done_ms": now_ms - 1000 * events_seconds, "lag": events_lag}
    return {"newest": 100, "tables": {"events": events, "ledger": {"done_ms": 1, "lag": 0}}}


@pytest.mark.parametrize(
    ("seconds", "lag", "stale"), [(10, 5, []), (4_000, 0, []), (4_000, 5, ["events"])], ids=["fresh", "idle", "stale"]
)
def test_a_watermark_is_stale_when_it_stands_still_although_there_is_more(
    seconds: float, lag: int, stale: list[str]
) -> None:
    assert retention._stale(state(seconds, lag), 3_600) == stale


def test_a_table_that_was_never_begun_is_stale() -> None:
    assert retention._stale({"newest": 5, "tables": {}}, 3_600) == ["events", "ledger"]


def test_ages_must_be_ages() -> None:
    with pytest.raises(InputInvalid, match="--keep"):
        retention._seconds("keep", "soon")
