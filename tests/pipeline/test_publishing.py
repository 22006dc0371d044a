from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.limits import BATCH_BYTES, BATCH_ENTRIES
from penstock.pipeline.publishing import Event, requests

events = st.lists(
    st.builds(
        Event,
        st.sampled_from(["/a", "/b"]),
        st.binary(max_size=12) | st.just(b"x" * 900_000),
        st.sampled_from(["", "t"]),
    ),
    max_size=60,
)


@given(events)
def test_requests_hold_every_event_once_and_in_order(given: list[Event]) -> None:
    assert [event for request in requests(given) for event in request.events] == given


@given(events)
def test_the_same_events_give_the_same_requests(given: list[Event]) -> None:
    assert [request.events for request in requests(given)] == [request.events for request in requests(iter(given))]


@given(events)
def test_what_travels_together_is_of_one_stream_and_within_the_limits(given: list[Event]) -> None:
    for request in requests(given):
        assert len({event.kin for event in request.events}) == 1
        assert len(request.events) == 1 or all(event.is_line for event in request.events)
        assert len(request.events) <= BATCH_ENTRIES
        assert request.size == sum(len(event.body) for event in request.events) <= BATCH_BYTES


def test_a_thousand_lines_are_one_request_and_one_more_is_another() -> None:
    assert [len(request.events) for request in requests([Event("/a", b"x")] * 1_001)] == [1_000, 1]
