"""The calendar of the mailboxes. They are kept by months, which are written `2026_11`."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from penstock.errors import InputInvalid
from penstock.limits import MAILBOX_MONTHS

DAY_MS = 86_400_000
_MONTH = re.compile(r"[0-9]{4}_(0[1-9]|1[0-2])")


def month_of(ms: int) -> str:
    """The month of a time."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment.year:04d}_{moment.month:02d}"


def shifted(month: str, months: int) -> str:
    """The month so many months later, or earlier."""
    year, number = month.split("_")
    years, zero_based = divmod(int(year) * 12 + int(number) - 1 + months, 12)
    return f"{years:04d}_{zero_based + 1:02d}"


def begin_ms(month: str) -> int:
    """The time at which a month begins."""
    year, number = month.split("_")
    return int(datetime(int(year), int(number), 1, tzinfo=UTC).timestamp() * 1000)


def months_in_use(now_ms: int) -> tuple[str, str]:
    """The months whose mailboxes must be there: this one, and the next, made in advance."""
    month = month_of(now_ms)
    return month, shifted(month, 1)


def oldest_kept(now_ms: int) -> str:
    """The oldest month that stays, for a day longer than the calendar says.

    Nodes whose clocks differ, and recipients that were connected all the time, have that day to move on.
    """
    return shifted(month_of(now_ms - DAY_MS), -MAILBOX_MONTHS)


def check_month(month: str) -> str:
    """Return *month* if it is one; it becomes part of a table's name."""
    if not _MONTH.fullmatch(month):
        raise InputInvalid("month", f"{month!r} is not like 2026_11")
    return month
