"""Frames between the log process and its workers: one for each turn, cut in any way, and errors arrive as they were."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.export import NotFollowed
from penstock.engines.local.contracts import METHODS
from penstock.engines.local.framed_socket import FramedSocket
from penstock.engines.local.frames import FrameCutter, LogFrame, WorkerFrame, error_of, failure, framed
from penstock.engines.local.served_worker import ServedWorker
from penstock.engines.local.worker_calls import LogCalls
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
from penstock.testing import wait_until_async
from penstock.values import Batch, Draft
from tests.engines.test_local_workers import Reader, one, started

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


# ── one frame for each turn of a loop ─────────────────────────────────────────────────────────


class Counted:
    """How many appends, entries and answers were in each frame that had some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.appends: list[int] = []
        self.entries: list[int] = []
        self.answers: list[int] = []
        take_of_worker, take_of_log = ServedWorker.take, LogCalls.take

        def by_the_log(link: ServedWorker, frame: memoryview) -> None:
            said = msgspec.msgpack.decode(frame, type=WorkerFrame)
            self.appends += [count] if (count := len(said.events[0]) + len(said.appends)) else []
            take_of_worker(link, frame)

        def by_a_worker(link: LogCalls, frame: memoryview) -> None:
            said = msgspec.msgpack.decode(frame, type=LogFrame)
            self.entries += [len(said.entries)] if said.entries else []
            self.answers += [len(said.appended)] if said.appended else []
            take_of_log(link, frame)

        monkeypatch.setattr(ServedWorker, "take", by_the_log)
        monkeypatch.setattr(LogCalls, "take", by_a_worker)


@pytest.mark.parametrize(("durable", "hasty"), [(False, None), (True, None), (False, LogCalls), (False, ServedWorker)])
async def test_what_is_said_in_one_turn_goes_in_one_frame(
    tmp_path: Path, durable: bool, hasty: type[FramedSocket] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path, durable=durable) as machine:
        a, b = await machine.worker("a"), await machine.worker("b")
        reader = Reader()
        feed = (await machine.hub(b)).start(reader, ("/s",))
        await a.log.append(one("/s", b"first"))
        await wait_until_async(lambda: len(reader.got) == 1 and not feed.behind)
        if hasty:
            # The sabotage: one end tells everything at once
            monkeypatch.setattr(hasty, "book", FramedSocket.flush)
        # When a hundred callers append in one turn of the loop, half of them more than a plain event
        counted = Counted(monkeypatch)
        plain = [one("/s", b"%d" % number) for number in range(50)]
        typed = [Batch((Draft("/s", b"%d" % number, "Typed"),)) for number in range(50)]
        await asyncio.gather(*map(a.log.append, (*plain, *typed)))
        await wait_until_async(lambda: len(reader.got) == 101)

        # Then the log process hears it in one frame, and each worker what comes of it
        assert counted.appends == ([1] * 100 if hasty is LogCalls else [100])
        if hasty is not LogCalls:
            expected = [1] * 100 if hasty else [100]
            assert (counted.entries, counted.answers) == (expected, expected)
