"""Background loops: whatever a round raises, the next one comes, and somebody can see that it failed."""

from __future__ import annotations

import asyncio
import gc
import re
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.core.background import Background, Loop, Tasks, Work
from penstock.core.clock import ManualClock
from penstock.errors import EngineGone, PenstockError
from penstock.testing import TooLate, wait_until_async

ERRORS = (
    EngineGone("full"),
    RuntimeError("a defect"),
    KeyError("x"),
    TimeoutError(),
    OSError(28, "No space left on device"),
    asyncio.CancelledError(),  # of something that the round waited for
    ExceptionGroup("two", [ValueError("one"), EngineGone("other")]),
    MemoryError(),
    RecursionError(),
)


class Refusing:
    """Work that raises what it is told to, and counts its rounds."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.rounds = 0

    async def __call__(self) -> None:
        self.rounds += 1
        if self.error is not None:
            raise self.error


class Unguarded(Background):
    """As loops were before: they survive errors that were raised on purpose, and no other."""

    def every(
        self, seconds: float, name: str, work: Work, *, wake: asyncio.Event | None = None, at_once: bool = False
    ) -> Loop:
        return _UnguardedLoop(self, name, work, seconds, wake, at_once=at_once)


class _UnguardedLoop(Loop):
    async def _round(self) -> bool:
        try:
            await self._work()
        except PenstockError as error:
            self._home.failed(self._name, error)
            return False
        return True


@asynccontextmanager
async def loop_of(background: Background, work: Work) -> AsyncIterator[asyncio.Event]:
    """A loop that does a round whenever the event is set."""
    wake = asyncio.Event()
    loop = background.every(3600, "test", work, wake=wake, at_once=True)
    try:
        yield wake
    finally:
        await loop.stop()


async def check_it_goes_on(background: Background, error: BaseException, within: float = 20) -> None:
    work = Refusing()
    work.error = error
    async with loop_of(background, work) as wake:
        await wait_until_async(lambda: work.rounds == 1)
        wake.set()
        await wait_until_async(lambda: work.rounds == 2, within)
        assert background.failures["test"] == 2
        assert [(one.loop, one.rounds) for one in background.failing] == [("test", 2)]
        work.error = None
        wake.set()
        await wait_until_async(lambda: not background.failing)
        assert work.rounds == 3


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_loop_survives_every_error(error: BaseException) -> None:
    await check_it_goes_on(Background(), error)


async def test_the_same_check_finds_a_loop_that_ends_for_good() -> None:
    with pytest.raises((TooLate, AssertionError)):
        await check_it_goes_on(Unguarded(), RuntimeError("a defect"), within=0.5)


async def test_who_stops_a_loop_ends_it_in_the_middle_of_its_round() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    background = Background()
    loop = background.forever("test", work)
    await begun.wait()
    await loop.stop()
    assert ended.is_set()
    assert background.failures == {"test": 0}


async def test_a_failing_loop_says_since_when_and_its_metrics_say_how_often() -> None:
    clock, work = ManualClock(), Refusing()
    background, work.error = Background(clock), EngineGone("full")
    async with loop_of(background, work) as wake:
        await wait_until_async(lambda: work.rounds == 1)
        since_ms = clock.now_ms()
        clock.advance(60)
        wake.set()
        await wait_until_async(lambda: work.rounds == 2)
        assert background.failing[0].since_ms == since_ms
        counts = {(name, labels["loop"]): value for _, name, _, value, labels in background.samples()}
        assert counts == {("background_failures", "test"): 2, ("background_failing", "test"): 1}
    assert not background.failing  # who is not there is not failing


async def test_of_rounds_that_fail_alike_few_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()
    for _ in range(100):
        background.failed("test", EngineGone("full"))
    background.failed("test", ValueError("new"))
    said = [record.__dict__["rounds"] for record in caplog.records if record.message == "background.failed"]
    assert said == [1, 2, 4, 8, 16, 32, 64, 101]


async def test_work_that_waits_by_itself_is_tried_again_after_a_moment() -> None:
    work = Refusing()
    work.error = RuntimeError("once")
    background = Background()
    loop = background.forever("test", _then_wait(work))
    try:
        await wait_until_async(lambda: work.rounds == 1)
        work.error = None
        await wait_until_async(lambda: work.rounds >= 2)
    finally:
        await loop.stop()


def _then_wait(work: Refusing) -> Callable[[], asyncio.Future[None]]:
    async def once() -> None:
        await asyncio.sleep(0)
        await work()

    return lambda: asyncio.ensure_future(once())


# ── tasks that end ────────────────────────────────────────────────────────────────────────────


class Careless(Tasks):
    """As tasks are without an owner."""

    def start(self, work: Any, *, awaited: bool = False) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work)


async def until_cancelled(ended: asyncio.Event) -> None:
    """Waits for what only this task holds."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        ended.set()


async def fail(error: Exception) -> None:
    raise error


def said_of_tasks(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, bool]]:
    found = [record for record in caplog.records if record.message == "task.failed"]
    return [(record.__dict__["tasks"], record.__dict__["error"], record.exc_info is not None) for record in found]


async def check_tasks_are_looked_after(tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()
    held = weakref.ref(tasks.start(until_cancelled(ended)))
    tasks.start(fail(RuntimeError("a defect")))
    tasks.start(fail(EngineGone("full")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()

    assert held() is not None
    assert not ended.is_set()
    assert said_of_tasks(caplog) == [
        ("test", "RuntimeError: a defect", True),
        ("test", f"EngineGone: {EngineGone('full')}", False),
    ]
    await tasks.close()
    assert ended.is_set()
    assert len(tasks) == 0


async def test_tasks_are_held_their_failures_are_said_and_they_end_with_their_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await check_tasks_are_looked_after(Tasks("test"), caplog)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_the_same_check_finds_tasks_that_nobody_owns(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AssertionError):
        await check_tasks_are_looked_after(Careless("test"), caplog)


async def test_a_failure_is_said_by_whoever_awaits_the_task(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EngineGone):
        await Tasks("test").start(fail(EngineGone("full")), awaited=True)
    assert said_of_tasks(caplog) == []


async def test_what_tasks_begin_while_they_end_ends_with_them() -> None:
    tasks, ended = Tasks("test"), asyncio.Event()

    async def begin_another() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            tasks.start(until_cancelled(ended))

    task = tasks.start(begin_another())
    await asyncio.sleep(0)
    await tasks.close()
    assert task.cancelled()
    assert ended.is_set()
    assert len(tasks) == 0


async def test_who_finishes_waits_for_what_tasks_begin_meanwhile() -> None:
    tasks, done = Tasks("test"), []

    async def step(number: int) -> None:
        await asyncio.sleep(0)
        done.append(number)
        if number:
            tasks.start(step(number - 1))

    tasks.start(step(3))
    await tasks.finish()
    assert done == [3, 2, 1, 0]


ONE_SHOT = {
    "core/hub.py": "one page, or the newest id, for one feed",
    "core/promise.py": "makes one awaitable a future",
    "doors/eventhorizon/pusher.py": "one push",
    "doors/eventhorizon/cluster.py": "a pusher's life, which begins again whatever ends it",
    "doors/msgstream/backend.py": "one emit",
    "doors/trickle/channels.py": "the end of one channel",
    "http/shared.py": "one request",
    "api/v1/publish.py": "one publish",
    "engines/local/served_worker.py": "one call of a worker",
    "engines/sqlite/export.py": "the end of one export process",
}
"""Files that start tasks by themselves, and what each task does before it ends. They await each, or hold it by a name
of their own. What nobody awaits belongs to `Tasks`, and what never ends is a loop of `Background`."""


BOOKED = {
    "core/ledger.py": "one flush, booked by the next record",
    "core/liveness.py": "the end of one lease",
    "doors/sps/presence_stream.py": "one entry, booked by the next change",
    "engines/jetstream/client.py": "the end of one closing",
    "engines/local/log_process.py": "one position, booked by the next entry",
    "engines/sqlite/export.py": "the end of one idle process",
    "engines/sqlite/writer.py": "one handing over, booked by the next job",
    "http/flushing.py": "one flush, booked by the next output; guarded connection by connection",
    "http/shared.py": "the end of one second's Date header",
    "http/timers.py": "the wheel, which books itself: guarded deadline by deadline, and named in `/ready`",
}
"""Files that book a call for later, and who books the next one."""


def files_that(call: str) -> set[str]:
    source = Path(penstock.__file__).parent
    rooms = [source / room for room in ("api", "core", "doors", "engines", "http", "node")]
    files = (file for room in rooms for file in room.rglob("*.py"))
    return {str(file.relative_to(source)) for file in files if re.search(call, file.read_text())}


def test_only_the_owner_of_loops_starts_tasks_that_do_not_end() -> None:
    assert files_that(r"\b(create_task|ensure_future)\(") == {*ONE_SHOT, "core/background.py"}


def test_what_books_calls_for_later_is_known() -> None:
    assert files_that(r"(?<!def )\bcall_(later|at)\(") == {*BOOKED}
