"""Which streams are busy, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core import busy_streams
from penstock.core.busy_streams import StreamTraffic
from penstock.core.metering import BOUNDS, Histogram, quantile
from penstock.values import Entry, Kind


def entry(stream: str, index: int | None = 0) -> Entry:
    return Entry(1, stream, index, 0, 0, 1, Kind.DATA if index is not None else Kind.META, "", 0, None, "", b"")


def test_rates_rise_to_what_is_published_and_fade() -> None:
    counted = StreamTraffic()
    for _ in range(300):
        counted.follow([entry("/busy")] * 10 + [entry("/_ledger")] * 5 + [entry("/busy", None)])
        counted.fold(1.0)

    assert round(counted.rates["/busy"], 1) == 10.0
    assert list(counted.rates) == ["/busy"]
    assert counted.published == 3000
    counted.fold(busy_streams.HALF_LIFE_SECONDS)
    assert round(counted.rates["/busy"], 1) == 5.0
    counted.fold(3600)
    assert counted.rates == {}


def test_memory_stays_bounded_and_the_busiest_stay_in_it() -> None:
    counted = StreamTraffic()
    for number in range(3 * busy_streams.COUNTED):
        counted.follow([entry("/busy"), entry(f"/once/{number}")])
    counted.fold(1.0)

    assert len(counted.rates) == busy_streams.KEPT
    assert max(counted.rates, key=counted.rates.__getitem__) == "/busy"
    assert counted.published == 6 * busy_streams.COUNTED  # what found no room in the table is in the sum


@given(st.lists(st.floats(0, 6), min_size=1, max_size=200), st.sampled_from((0.0, 0.5, 0.9, 0.99, 1.0)))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(times: list[float], share: float) -> None:
    histogram = Histogram()
    for one in times:
        histogram.observe(one)
    found = quantile(histogram.counts, share)

    true = sorted(times)[max(0, -(-int(share * 1000) * len(times) // 1000) - 1)]
    low = max((bound for bound in BOUNDS if bound < true), default=0.0)
    high = min((bound for bound in BOUNDS if bound >= true), default=BOUNDS[-1])
    assert found is not None
    assert low <= found <= high


def test_nothing_has_no_quantile() -> None:
    assert quantile(Histogram().counts, 0.5) is None
