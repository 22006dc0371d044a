"""Frames between the log process and its workers: how they are cut does not matter, and errors arrive as they were."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.export import NotFollowed
from penstock.engines.local.contracts import METHODS
from penstock.engines.local.frames import FrameCutter, error_of, failure, framed
from penstock.errors import (
    EngineGone,
    InputInvalid,
    MailboxFull,
    NotFound,
    PenstockError,
    PositionMismatch,
    Trimmed,
    VersionMismatch,
)

ERRORS = [
    InputInvalid("cursor", "is inside a line", code="cursor_invalid"), NotFound("stream", "/s", code="stream_missing"),
    PositionMismatch("/s", "index 3", "index 4"), VersionMismatch("a", None, 7), Trimmed(3, 9),
    MailboxFull("phone", "items", 10), NotFollowed(7, 5), EngineGone("closed"),
]  # fmt: skip


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 400), max_size=20))
def test_how_the_bytes_are_cut_does_not_matter(bodies: list[bytes], sizes: list[int]) -> None:
    sent = b"".join(bytes(framed([body])) for body in bodies)
    cutter, received, begin = FrameCutter(), [], 0
    for size in [*sizes, len(sent) + 1]:
        received += [msgspec.msgpack.decode(frame) for frame in cutter.cut(sent[begin : begin + size])]
        begin += size

    assert received == [[body] for body in bodies]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_it_was_raised(error: PenstockError) -> None:
    sent = msgspec.msgpack.encode(failure(7, error))
    again = error_of(msgspec.msgpack.decode(sent, type=type(failure(0, error))))

    assert type(again) is type(error)
    assert (str(again), vars(again), again.code, again.remedy) == (str(error), vars(error), error.code, error.remedy)


def test_a_defect_arrives_as_an_engine_that_is_gone() -> None:
    assert isinstance(error_of(failure(1, KeyError("x"))), EngineGone)


def test_a_call_that_no_contract_has_is_refused_before_it_is_sent() -> None:
    method = METHODS["log.read_index"]

    assert method.arguments(("/s", 3), {"limit": 5})[:3] == ["/s", 3, 5]
    for given_wrongly, named in (((), {}), (("/s",), {}), (("/s", 3), {"unknown": 1}), (("/s", 3, 1, 1, True, 1), {})):
        with pytest.raises(TypeError):
            method.arguments(given_wrongly, dict(named))
