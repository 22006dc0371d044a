"""How many days the disk lasts."""

from __future__ import annotations

from penstock.node.disk_forecast import DAY_SECONDS, DiskForecast


def test_the_days_follow_from_the_growth_since_the_start() -> None:
    now = 0.0
    forecast = DiskForecast(lambda: now)

    forecast.take(1_000, 10_000)
    assert forecast.days_until_full == float("inf")

    now = 2.0 * DAY_SECONDS
    forecast.take(3_000, 8_000)
    assert (forecast.stored_bytes, forecast.days_until_full) == (3_000, 8.0)


def test_a_log_that_shrinks_never_fills_the_disk() -> None:
    forecast = DiskForecast(lambda: 1.0)
    forecast.take(1_000, 10_000)

    forecast.take(500, 10_500)

    assert forecast.days_until_full == float("inf")
