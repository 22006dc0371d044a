"""The line before a push service: slots, and what a failure holds up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from penstock.doors.webpush_sender.service_queue import ServiceQueue
from penstock.http.client import Target, parse_url
from penstock.http.timers import Wheel
from penstock.testing import wait_until_async


class Member:
    """Waits for its turn as often as it has work, and does what it is told then."""

    def __init__(self, work: int = 1, told: tuple[list[str], str] = ([], "")) -> None:
        self.work, self.served = work, 0
        self._order, self._name = told
        self.go_on = asyncio.Event()

    @property
    def has_work(self) -> bool:
        return self.work > 0

    async def serve(self) -> None:
        self.served += 1
        self._order.append(self._name)
        await self.go_on.wait()
        self.work -= 1


class Place:
    """A service, and the tasks that serve."""

    def __init__(self, slots: int) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        target = Target(parse_url("http://127.0.0.1:9/"))
        self.wheel = Wheel(asyncio.get_running_loop(), tick_seconds=0.01)
        self.service = ServiceQueue(target, self.wheel, self._spawn, slots)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        return task

    async def end(self) -> None:
        self.wheel.close()
        await asyncio.gather(*self.tasks)


async def test_as_many_are_served_at_once_as_there_are_slots() -> None:
    place, members = Place(2), [Member() for _ in range(5)]
    for member in members:
        place.service.enqueue(member)
        place.service.enqueue(member)  # once is enough
    await wait_until_async(lambda: place.service.running == 2)
    await wait_until_async(lambda: sum(member.served for member in members) == 2)
    for member in members:
        member.go_on.set()
    await wait_until_async(lambda: all(member.served == 1 and not member.work for member in members))
    await place.end()


async def test_who_has_more_to_send_goes_to_the_end_of_the_line() -> None:
    order: list[str] = []
    place, busy, other = Place(1), Member(work=3, told=(order, "busy")), Member(told=(order, "other"))
    for member in (busy, other):
        member.go_on.set()
        place.service.enqueue(member)
    await wait_until_async(lambda: not busy.work)
    assert order == ["busy", "other", "busy", "busy"]
    await place.end()


async def test_failures_that_come_together_count_as_one() -> None:
    place = Place(8)
    for _ in range(8):
        place.service.hold(60)
    assert (place.service.failures, place.service.held) == (1, True)
    await place.end()


async def test_a_service_that_failed_is_felt_for_with_one() -> None:
    place, members = Place(8), [Member() for _ in range(5)]
    place.service.hold(0.01)
    for member in members:
        place.service.enqueue(member)
    assert place.service.running == 0
    # When the time is up one is tried, and the others when that one was answered
    await wait_until_async(lambda: place.service.running == 1)
    place.service.answered()
    members[0].go_on.set()
    await wait_until_async(lambda: place.service.running == 4)
    for member in members:
        member.go_on.set()
    await wait_until_async(lambda: not any(member.work for member in members))
    await place.end()


async def test_nobody_is_served_by_a_service_that_nobody_belongs_to() -> None:
    place, member = Place(1), Member()
    place.service.hold(0.01)
    place.service.enqueue(member)
    place.service.close()
    assert place.wheel.armed == 0
    await place.end()
    assert member.served == 0
