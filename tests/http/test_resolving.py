"""Names whose servers say nothing keep nobody else's from being looked up."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from penstock.http import resolving
from penstock.http.client import Target, Unreachable, parse_url
from penstock.http.resolving import LOOKUPS, NEW, PROVEN, SUSPECT, Resolver, addresses_of, resolver
from penstock.testing import wait_until_async

WITHIN = 20


class System:
    """A system's lookup: names of `silent.example` are answered when the test says so, `none.example` is not there."""

    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.silent = False  # also names that answered before
        self.go_on = threading.Event()

    def __call__(self, host: str) -> list[str]:
        self.asked[host] += 1
        if host.endswith("none.example"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if host.endswith("silent.example") and self.silent:
            assert self.go_on.wait(WITHIN)
        return ["127.0.0.1"]


@asynccontextmanager
async def asking(names: Resolver, system: System, count: int) -> AsyncIterator[list[asyncio.Task[list[str]]]]:
    """So many names are asked for whose servers say nothing, until the block ends."""
    system.silent = True
    tasks = [asyncio.create_task(names.find(f"{number}.silent.example")) for number in range(count)]
    try:
        await asyncio.sleep(0)
        yield tasks
    finally:
        system.go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)


async def once(names: Resolver, system: System, count: int) -> None:
    """Those names are answered once, at once."""
    for number in range(count):
        assert await names.find(f"{number}.silent.example") == ["127.0.0.1"]


class Undivided(Resolver):
    """The sabotage: who asks first has every thread, as in a loop's own."""

    def _rank(self, host: str, now: float) -> int:
        return PROVEN


Make = Callable[[System], Resolver]


@pytest.mark.parametrize(("make", "found"), [(Resolver, True), (Undivided, False)])
async def test_names_that_are_not_answered_keep_no_proven_name_waiting(make: Make, found: bool) -> None:
    system = System()
    names = make(system)
    assert await names.find("innocent.example") == ["127.0.0.1"]

    async with asking(names, system, 200):
        innocent = asyncio.create_task(names.find("innocent.example"))
        done, _ = await asyncio.wait([innocent], timeout=WITHIN if found else 0.5)
        assert bool(done) is found
        assert sum(names._running) == (LOOKUPS[NEW] if found else LOOKUPS[PROVEN])
    assert await innocent == ["127.0.0.1"]


@pytest.mark.parametrize(("make", "found"), [(Resolver, True), (Undivided, False)])
async def test_names_that_were_slow_before_keep_no_new_name_waiting(
    make: Make, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System()
    names = make(system)
    monkeypatch.setattr(resolving, "SLOW_SECONDS", -1)  # each answer was too slow
    await once(names, system, 200)

    async with asking(names, system, 200):
        innocent = asyncio.create_task(names.find("innocent.example"))
        done, _ = await asyncio.wait([innocent], timeout=WITHIN if found else 0.5)
        assert bool(done) is found
        assert names._running == ([0, 0, LOOKUPS[SUSPECT]] if found else [LOOKUPS[PROVEN], 0, 0])


async def test_a_name_is_looked_up_once_for_all_who_ask_for_it() -> None:
    system = System()
    system.silent = True
    names = Resolver(system)
    asked = [asyncio.create_task(names.find("0.silent.example")) for _ in range(50)]
    await wait_until_async(lambda: system.asked)
    asked[0].cancel()

    system.go_on.set()

    assert await asyncio.gather(*asked[1:]) == [["127.0.0.1"]] * 49
    assert system.asked == {"0.silent.example": 1}
    assert await names.find("0.silent.example") == ["127.0.0.1"]  # and anew for whoever comes later
    assert system.asked == {"0.silent.example": 2}


async def test_a_name_that_is_not_there_is_not_looked_up_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System()
    names = Resolver(system)
    for _ in range(3):
        with pytest.raises(OSError, match="not known"):
            await names.find("none.example")
    assert system.asked == {"none.example": 1}

    names._failed["none.example"] = 0.0, names._failed["none.example"][1]  # that while is over

    with pytest.raises(OSError, match="not known"):
        await names.find("none.example")
    assert system.asked == {"none.example": 2}


async def test_who_gives_up_leaves_nothing_that_is_looked_up_later() -> None:
    system = System()
    names = Resolver(system)
    async with asking(names, system, 2 * LOOKUPS[NEW]) as tasks:
        await wait_until_async(lambda: len(system.asked) == LOOKUPS[NEW])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not any(names._queues)
    await wait_until_async(lambda: names._running == [0, 0, 0])
    assert len(system.asked) == LOOKUPS[NEW]
    assert not names._under_way


async def test_what_is_remembered_of_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "NAMES_KNOWN", 10)
    names = Resolver(System())
    for number in range(30):
        with pytest.raises(OSError, match="not known"):
            await names.find(f"{number}.none.example")

    assert (len(names._failed), len(names._suspect_until)) == (10, 10)


async def test_a_defect_of_a_lookup_reaches_who_waits() -> None:
    def broken(host: str) -> list[str]:
        raise UnicodeError("label too long")

    with pytest.raises(OSError, match="label too long"):
        await Resolver(broken).find("x")


async def test_a_target_that_is_never_found_is_unreachable_in_time_and_others_are_reached() -> None:
    system = System()
    names = Resolver(system)
    system.silent = True
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    silent = [
        Target(
            parse_url(f"http://{number}.silent.example:{port}"), allow_private=True, connect_timeout=0.2, names=names
        )
        for number in range(100)
    ]
    try:
        reached = Target(parse_url(f"http://innocent.example:{port}"), allow_private=True, names=names)
        (await reached.connect(asyncio.Protocol))
        answers = await asyncio.gather(*(one.connect(asyncio.Protocol) for one in silent), return_exceptions=True)
        assert {type(answer) for answer in answers} == {Unreachable}
        (await reached.connect(asyncio.Protocol))
    finally:
        system.go_on.set()
        server.close()


async def test_the_systems_own_names_are_found_by_the_resolver_of_the_loop() -> None:
    assert "127.0.0.1" in await resolver().find("localhost")
    assert resolver() is resolver()
    with pytest.raises(OSError, match=r"."):
        addresses_of("a" * 64 + ".invalid")
