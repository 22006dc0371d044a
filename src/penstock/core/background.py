"""The owner of a node's background loops: housekeeping, memberships, sweeps, duties. And of tasks that end.

A loop does its round again and again until it is stopped. Whatever a round raises, the next one comes: a loop that
ended would be missed weeks later, when months are not made or nothing is trimmed. A round that failed is counted, is
logged when it is news, and the loop is `failing` until a round succeeds. Only cancellation ends a loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeVar

from penstock.core.clock import Clock, WallClock
from penstock.core.metering import Sample
from penstock.errors import PenstockError

log = logging.getLogger("penstock.background")

RETRY_SECONDS: Final = 0.5
"""After a round that failed, of a loop that does not wait by itself."""

T = TypeVar("T")
Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Failing:
    """A loop whose last round failed."""

    loop: str
    since_ms: int  # when the first of the rounds that failed in a row did
    rounds: int  # that failed in a row
    error: str


_name_of: Final = attrgetter("loop")


class Background:
    """Starts loops and knows how they go. Whoever starts one stops it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or WallClock()
        self._failing: dict[str, Failing] = {}
        self.failures: Counter[str] = Counter()  # rounds that failed, by loop; a loop that never failed has a 0
        self.failing_in_log_process: Sequence[Failing] = ()  # as a worker of it has heard

    def every(
        self, seconds: float, name: str, work: Work, *, wake: asyncio.Event | None = None, at_once: bool = False
    ) -> Loop:
        """Do *work* every so often, and when *wake* is set; the first time after a wait, or *at_once*."""
        return Loop(self, name, work, seconds, wake, at_once=at_once)

    def forever(self, name: str, work: Work) -> Loop:
        """Do *work*, which waits by itself for something to do, again and again."""
        return Loop(self, name, work, None, None, at_once=True)

    @property
    def failing(self) -> list[Failing]:
        """Loops whose last round failed, by name, those of the log process included."""
        return sorted([*self._failing.values(), *self.failing_in_log_process], key=_name_of)

    def samples(self) -> Iterator[Sample]:
        """What `/metrics` shows of them."""
        for name in sorted(self.failures):
            failures, failing = self.failures[name], int(name in self._failing)
            yield "counter", "background_failures", "Rounds of a background loop that failed.", failures, {"loop": name}
            yield "gauge", "background_failing", "1 while a loop's last round failed.", failing, {"loop": name}

    def began(self, name: str) -> None:
        """There is such a loop."""
        self.failures[name] += 0

    def failed(self, name: str, error: BaseException) -> None:
        """Note that a round failed. Of many in a row that fail alike the first, second, fourth … are logged."""
        self.failures[name] += 1
        before = self._failing.get(name)
        since_ms, rounds = (before.since_ms, before.rounds + 1) if before else (self._clock.now_ms(), 1)
        said = f"{type(error).__name__}: {error}"
        self._failing[name] = Failing(name, since_ms, rounds, said)
        kind = said.partition(":")[0]
        if before is None or before.error.partition(":")[0] != kind or rounds & (rounds - 1) == 0:
            trace = None if isinstance(error, PenstockError) else error
            log.warning("background.failed", extra={"loop": name, "error": said, "rounds": rounds}, exc_info=trace)

    def succeeded(self, name: str) -> None:
        """Note that a round is done."""
        if before := self._failing.pop(name, None):
            log.info("background.works_again", extra={"loop": name, "rounds": before.rounds})

    def stopped(self, name: str) -> None:
        """Forget that it was failing: it was stopped."""
        self._failing.pop(name, None)


class Loop:
    """One background loop. It runs from when it is made until `stop`."""

    __slots__ = ("_home", "_name", "_seconds", "_task", "_wake", "_work")

    def __init__(
        self, home: Background, name: str, work: Work, seconds: float | None, wake: asyncio.Event | None, *,
        at_once: bool,
    ) -> None:  # fmt: skip
        self._home, self._name, self._work, self._seconds, self._wake = home, name, work, seconds, wake
        home.began(name)
        self._task = asyncio.get_running_loop().create_task(self._run(at_once=at_once))

    async def stop(self) -> None:
        """End it, in the middle of its round if it has to be."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._home.stopped(self._name)

    async def _run(self, *, at_once: bool) -> None:
        if not at_once:
            await self._wait()
        while True:
            succeeded = await self._round()
            await self._wait(failed=not succeeded)

    async def _round(self) -> bool:
        """Do the work once; whether it succeeded."""
        try:
            await self._work()
        except asyncio.CancelledError as error:
            if self._is_stopping():
                raise
            self._home.failed(self._name, error)  # something that it waited for was cancelled, not this loop
        except Exception as error:  # noqa: BLE001 - whatever it is, the next round comes
            self._home.failed(self._name, error)
        else:
            self._home.succeeded(self._name)
            return True
        return False

    @staticmethod
    def _is_stopping() -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    async def _wait(self, *, failed: bool = False) -> None:
        if self._seconds is None:
            if failed:
                await asyncio.sleep(RETRY_SECONDS)
        elif self._wake is None:
            await asyncio.sleep(self._seconds)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._wake.wait()
            self._wake.clear()


class Tasks:
    """Work that somebody begins and does not wait for. It runs until it ends, or until its owner is closed.

    The loop itself would forget a task that nobody holds, and say what became of it when it is too late.
    """

    __slots__ = ("_name", "_running")

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, T], *, awaited: bool = False) -> asyncio.Task[T]:
        """Begin *work*. A failure is logged, unless the task is *awaited*: then whoever does hears of it."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard if awaited else self._ended)
        return task

    async def finish(self) -> None:
        """Wait for all of it, and for what it begins meanwhile."""
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)

    async def close(self) -> None:
        """End all of it where it is, and what it begins by ending."""
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            trace = None if isinstance(error, PenstockError) else error
            said = f"{type(error).__name__}: {error}"
            log.error("task.failed", extra={"tasks": self._name, "error": said}, exc_info=trace)
