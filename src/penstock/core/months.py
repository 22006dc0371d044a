"""Months, as mailboxes are kept by them: `2026_11`."""

from __future__ import annotations

from datetime import UTC, datetime


def month_of(ms: int) -> str:
    """The month of a time."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment.year}_{moment.month:02d}"


def shifted(month: str, months: int) -> str:
    """The month so many months later, or earlier."""
    year, number = month.split("_")
    years, zero_based = divmod(int(year) * 12 + int(number) - 1 + months, 12)
    return f"{years:04d}_{zero_based + 1:02d}"
