"""Addresses of names, looked up in threads of our own: a name that is never answered keeps few others waiting.

The loop's own threads are few, and a lookup cannot be called off: some names whose servers say nothing would hold up
all targets. Here each name is looked up once at a time, whoever asks for it, and how many are depends on what is known:

    PROVEN     answered, and in time for a while         while all together are fewer than 64
    NEW        not asked for yet                         while these and those below are fewer than 32
    SUSPECT    failed, or took long, a while ago         while these are fewer than 16

No address is kept: it is checked at each new connection (`client.py`).
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary

PROVEN, NEW, SUSPECT = range(3)
LOOKUPS: Final = (64, 32, 16)
"""Lookups that run at once, of names of each rank and those below it. Over it: they wait, as long as who asks does."""

FAILED_SECONDS: Final = 5.0
"""How long a name that could not be found is not looked up again: a target that is tried again at once has no better
chance."""

SLOW_SECONDS: Final = 2.0
"""A lookup that takes longer makes its name suspect."""

SUSPECT_SECONDS: Final = 600.0
NAMES_KNOWN: Final = 4_096
"""Names of which it is remembered how they were answered. Over it: the oldest are new again."""


def addresses_of(host: str) -> list[str]:
    """The addresses of a host, by the system's own ways."""
    return [str(one[4][0]) for one in socket.getaddrinfo(host.encode(), None, type=socket.SOCK_STREAM)]


class _Lookup:
    """One name, and those who wait for its addresses."""

    def __init__(self, host: str, rank: int, loop: asyncio.AbstractEventLoop) -> None:
        self.host, self.rank = host, rank
        self.answer: asyncio.Future[list[str] | OSError] = loop.create_future()
        self.waiting, self.begun = 0, loop.time()


class Resolver:
    """Looks names up for one event loop."""

    def __init__(self, lookup: Callable[[str], list[str]] = addresses_of) -> None:
        self._lookup = lookup
        self._under_way: dict[str, _Lookup] = {}
        self._queues: tuple[dict[str, _Lookup], ...] = ({}, {}, {})
        self._running = [0, 0, 0]
        self._suspect_until = OrderedDict[str, float]()  # of names that were answered: 0, unless that took long
        self._failed: dict[str, tuple[float, OSError]] = {}  # until when, and how

    async def find(self, host: str) -> list[str]:
        """The addresses of a host. Raises `OSError` where there are none."""
        loop = asyncio.get_running_loop()
        until, error = self._failed.get(host, (0.0, None))
        if error is not None and loop.time() < until:
            raise OSError(*error.args)
        lookup = self._under_way.get(host)
        if lookup is None:
            lookup = self._under_way[host] = _Lookup(host, self._rank(host, loop.time()), loop)
            self._queues[lookup.rank][host] = lookup
            self._begin_some()
        lookup.waiting += 1
        try:
            found = await asyncio.shield(lookup.answer)
        finally:
            lookup.waiting -= 1
            queue = self._queues[lookup.rank]
            if not lookup.waiting and queue.get(host) is lookup:  # nobody is left who wanted it
                del queue[host], self._under_way[host]
        if isinstance(found, OSError):
            raise OSError(*found.args)
        return found

    def _rank(self, host: str, now: float) -> int:
        until = self._suspect_until.get(host)
        return NEW if until is None else SUSPECT if now < until else PROVEN

    def _begin_some(self) -> None:
        for rank, queue in enumerate(self._queues):
            while queue and sum(self._running[rank:]) < LOOKUPS[rank]:
                lookup = queue.pop(next(iter(queue)))
                lookup.begun = lookup.answer.get_loop().time()
                self._running[rank] += 1
                self._begin(lookup)

    def _begin(self, lookup: _Lookup) -> None:
        # A daemon: a server that ends waits for no name.
        thread = threading.Thread(target=self._run, args=(lookup,), name="penstock-lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives us no more threads
            lookup.answer.get_loop().call_soon(self._ended, lookup, OSError(str(error)))

    def _run(self, lookup: _Lookup) -> None:
        """In a thread."""
        try:
            found: list[str] | OSError = self._lookup(lookup.host)
        except OSError as error:
            found = error
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for a word
            found = OSError(str(error))
        with suppress(RuntimeError):  # the loop has ended
            lookup.answer.get_loop().call_soon_threadsafe(self._ended, lookup, found)

    def _ended(self, lookup: _Lookup, found: list[str] | OSError) -> None:
        host, now = lookup.host, lookup.answer.get_loop().time()
        del self._under_way[host]
        self._running[lookup.rank] -= 1
        self._note(host, found, now, slow=now - lookup.begun > SLOW_SECONDS)
        lookup.answer.set_result(found)
        self._begin_some()

    def _note(self, host: str, found: list[str] | OSError, now: float, *, slow: bool) -> None:
        """A name that was slow once stays suspect for its time: else it could be quick and slow by turns."""
        self._failed.pop(host, None)
        until = self._suspect_until.pop(host, 0.0)
        if isinstance(found, OSError):
            self._failed[host] = now + FAILED_SECONDS, found
        self._suspect_until[host] = now + SUSPECT_SECONDS if slow or isinstance(found, OSError) else until
        if len(self._suspect_until) > NAMES_KNOWN:
            oldest, _ = self._suspect_until.popitem(last=False)
            self._failed.pop(oldest, None)


_RESOLVERS: WeakKeyDictionary[asyncio.AbstractEventLoop, Resolver] = WeakKeyDictionary()


def resolver() -> Resolver:
    """The one of the running loop: what it bounds is what all targets of a process take together."""
    loop = asyncio.get_running_loop()
    found = _RESOLVERS.get(loop)
    if found is None:
        found = _RESOLVERS[loop] = Resolver()
    return found
