"""Results of appends that come later, thousands a second.

    append ─▶ Promise ◀─ settle            by whoever has the result, on the event loop
                 ├─ await                  a coroutine goes on, as with a future
                 └─ add_done_callback      is called within `settle`, not in a later turn of the loop

A future does the same and costs more: each callback is booked with the loop, as a handle and a context of its own,
and the loop comes to it after everything else that is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, Protocol, Self, TypeVar, cast

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """What a promise and a future have in common."""

    def __await__(self) -> Generator[Any, None, T_co]: ...

    def add_done_callback(self, callback: Callable[[Any], None], /) -> None:
        """Have *callback* called with this, on the loop, when it is done."""
        ...

    def done(self) -> bool: ...

    def result(self) -> T_co:
        """The result of what is done; raises what it failed with."""
        ...


class Promise(Generic[T]):
    """A result, or an error, that somebody sets and then settles. It cannot be cancelled; a task that awaits it can."""

    __slots__ = ("_settled", "_then", "error", "value")

    def __init__(self) -> None:
        self.value: T | None = None
        self.error: Exception | None = None
        self._settled = False
        self._then: Callable[[Any], None] | None = None

    def settle(self) -> None:
        """Tell whoever waits. `value` or `error` is set, by any thread; this is called on the loop, once."""
        self._settled = True
        then, self._then = self._then, None
        if then is not None:
            then(self)

    def fail(self, error: Exception) -> None:
        """Settle with *error*."""
        self.error = error
        self.settle()

    def done(self) -> bool:
        return self._settled

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return cast("T", self.value)

    def add_done_callback(self, callback: Callable[[Self], None], /) -> None:
        if self._settled:
            asyncio.get_running_loop().call_soon(callback, self)
        elif self._then is None:
            self._then = callback
        else:
            self._then = _Both(self._then, callback)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._settled:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
            yield from waiter
        return self.result()


def pending(awaitable: Awaitable[T]) -> Pending[T]:
    """*awaitable* itself if it is a promise; else a task that awaits it."""
    return awaitable if isinstance(awaitable, Promise) else asyncio.ensure_future(awaitable)


def failed(error: Exception) -> Promise[Any]:
    """A promise that has failed already."""
    promise: Promise[Any] = Promise()
    promise.fail(error)
    return promise


class _Both:
    """Two callbacks of one promise, which is rare."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Callable[[Any], None], second: Callable[[Any], None]) -> None:
        self._first, self._second = first, second

    def __call__(self, settled: Any) -> None:
        try:
            self._first(settled)
        finally:
            self._second(settled)
