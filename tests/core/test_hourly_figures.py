"""Sums by hour and door: whatever order the rows come in, and percentiles as a list of all latencies would give."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.hourly_figures import PERCENTILES, add_up, percentiles

classes = st.dictionaries(st.sampled_from([1, 2, 4, 8, 1024]), st.integers(1, 50), min_size=1)
rows = st.lists(
    st.tuples(
        st.sampled_from([0, 3_600_000]), st.sampled_from(["", "sps", "<b>"]), st.sampled_from(["accepted", "sent"]),
        st.sampled_from([None, 1, 2, 64]), st.integers(0, 9), st.integers(0, 9),
    )
)  # fmt: skip


@given(classes)
def test_a_percentile_is_the_class_that_so_many_do_not_exceed(counts: dict[int, int]) -> None:
    everything = sorted(latency for latency, count in counts.items() for _ in range(count))
    for percent, found in zip(PERCENTILES, percentiles(counts), strict=True):
        rank = -(-len(everything) * percent // 100)  # rounded up
        assert found == everything[rank - 1]


@given(rows, st.randoms())
def test_files_may_be_added_up_in_any_order(
    given_rows: list[tuple[int, str, str, int | None, int, int]], chance: object
) -> None:
    shuffled = list(given_rows)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    found = add_up(given_rows)

    assert [(one.hour_ms, one.door) for one in found] == sorted({row[:2] for row in given_rows})
    for one, other in zip(found, add_up(shuffled), strict=True):
        assert (one.states, one.bytes, one.latency_ms) == (other.states, other.bytes, other.latency_ms)
    assert sum(sum(one.states.values()) for one in found) == sum(row[4] for row in given_rows)
