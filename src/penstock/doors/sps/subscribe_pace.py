"""Lets a few subscribes through in one turn of the loop, so that a storm of them does not hold up publishers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.http.requests import Request
from penstock.http.responses import Response

AT_ONCE: Final = 8
"""Subscribes in one turn: each may replay a hundred events, so this is some 3 ms."""


class Admission:
    """Passes requests on in the order in which they came. What waits is bounded by the number of connections."""

    def __init__(self, passes: Callable[[Request], Response]) -> None:
        self._passes = passes
        self._loop = asyncio.get_running_loop()
        self._passed = 0  # in this turn
        self._waiting: deque[tuple[Request, asyncio.Future[Response]]] = deque()

    def __call__(self, request: Request) -> Response | asyncio.Future[Response]:
        """Pass *request* on, now or in one of the next turns."""
        if self._passed < AT_ONCE and not self._waiting:
            self._count()
            return self._passes(request)
        answer: asyncio.Future[Response] = self._loop.create_future()
        self._waiting.append((request, answer))
        return answer

    def _count(self) -> None:
        if not self._passed:
            self._loop.call_soon(self._next_turn)
        self._passed += 1

    def _next_turn(self) -> None:
        self._passed = 0
        while self._waiting and self._passed < AT_ONCE:
            self._count()
            request, answer = self._waiting.popleft()
            if answer.done():
                continue
            try:
                answer.set_result(self._passes(request))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's answer
                answer.set_exception(error)
