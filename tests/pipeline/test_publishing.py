from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.http import ApiError
from penstock.limits import BATCH_BYTES, BATCH_ENTRIES
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.publishing import NewEvent, PublishRequest, publish, requests
from penstock.testing import RunningServer

events = st.lists(
    st.builds(
        NewEvent,
        st.sampled_from(["/a", "/b"]),
        st.binary(max_size=12) | st.just(b"x" * 900_000),
        st.sampled_from(["", "t"]),
    ),
    max_size=60,
)


@given(events)
def test_requests_hold_every_event_once_and_in_order(given: list[NewEvent]) -> None:
    assert [event for request in requests(given) for event in request.events] == given


@given(events)
def test_the_same_events_give_the_same_requests(given: list[NewEvent]) -> None:
    assert [request.events for request in requests(given)] == [request.events for request in requests(iter(given))]


@given(events)
def test_what_travels_together_is_of_one_stream_and_within_the_limits(given: list[NewEvent]) -> None:
    for request in requests(given):
        assert len({event.kin for event in request.events}) == 1
        assert len(request.events) == 1 or all(event.is_line for event in request.events)
        assert len(request.events) <= BATCH_ENTRIES
        assert request.size == sum(len(event.body) for event in request.events) <= BATCH_BYTES


def test_a_thousand_lines_are_one_request_and_one_more_is_another() -> None:
    assert [len(request.events) for request in requests([NewEvent("/a", b"x")] * 1_001)] == [1_000, 1]


def test_a_number_that_is_behind_adds_nothing_to_whatever_stream(shared_server: RunningServer) -> None:
    client, job = PipelineClient(shared_server.url, shared_server.admin_token, patience=0), uuid.uuid4().hex

    def send(stream: str, sequence: int) -> None:
        publish(client, PublishRequest([NewEvent(f"/{job}/{stream}", b"x")]), job, sequence)

    send("a", 3)
    send("b", 7)
    send("a", 3)
    send("a", 5)  # the server knows no answer of 5, and that of 7 is of another stream

    heads = [client.call("GET", "/v1/read", {"stream": f"/{job}/{name}"})["entries"] for name in "ab"]
    assert [len(entries) for entries in heads] == [1, 1]


def test_a_number_that_another_request_has_used_is_an_error(shared_server: RunningServer) -> None:
    client, job = PipelineClient(shared_server.url, shared_server.admin_token, patience=0), uuid.uuid4().hex
    publish(client, PublishRequest([NewEvent(f"/{job}/a", b"x")]), job, 3)

    with pytest.raises(ApiError, match="producer_sequence_reused"):
        publish(client, PublishRequest([NewEvent(f"/{job}/b", b"x")]), job, 3)
