"""Answers that wait for a future, and routes with a form of errors of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.errors import InputInvalid
from penstock.http.problems import Problem
from penstock.http.requests import Request
from penstock.http.responses import Later, Response
from penstock.http.routing import WHOLE, Route
from penstock.testing import wait_until_async
from tests.http.wires import on_uvloop, request, site

pytestmark = pytest.mark.usefixtures("plain_and_tls")


class Waiting:
    """A handler whose answers wait for futures that the test completes."""

    def __init__(self, render: Callable[[Any], Any], failed: Callable[[BaseException], Any] | None = None) -> None:
        self._render, self._failed = render, failed
        self.futures: list[asyncio.Future[Any]] = []

    def __call__(self, asked: Request) -> Later:
        self.futures.append(asyncio.get_running_loop().create_future())
        return Later(self.futures[-1], self._render, self._failed)

    async def asked(self, times: int = 1) -> None:
        await wait_until_async(lambda: len(self.futures) >= times)


@asynccontextmanager
async def waiting_site(handler: Waiting, **settings: Any) -> AsyncIterator[Any]:
    async with site([Route("GET", "/wait", handler)], **settings) as place:
        yield place


@on_uvloop
async def test_the_answer_is_made_of_the_result() -> None:
    handler = Waiting(lambda result: Response(200, result))
    async with waiting_site(handler) as place:
        peer = await place.connect()
        peer.send(request("GET", "/wait"))
        await handler.asked()
        handler.futures[0].set_result(b"done")
        assert (await peer.answer()).body == b"done"


@on_uvloop
async def test_more_may_have_to_be_waited_for() -> None:
    more: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def go_on(result: bytes) -> Response:
        return Response(200, result + await more)

    handler = Waiting(go_on)
    async with waiting_site(handler) as place:
        peer = await place.connect()
        peer.send(request("GET", "/wait") + request("GET", "/hello"))
        await handler.asked()
        handler.futures[0].set_result(b"done")
        await asyncio.sleep(0)
        more.set_result(b", and more")
        assert (await peer.answer()).body == b"done, and more"
        assert (await peer.answer()).status == 200  # and on with the next request


@on_uvloop
async def test_a_failure_may_have_its_own_answer() -> None:
    handler = Waiting(lambda _: Response(200), lambda error: Response(418, str(error).encode()))
    async with waiting_site(handler) as place:
        peer = await place.connect()
        peer.send(request("GET", "/wait"))
        await handler.asked()
        handler.futures[0].set_exception(ValueError("short"))
        answer = await peer.answer()
        assert (answer.status, answer.body) == (418, b"short")


@on_uvloop
async def test_what_the_result_means_is_found_out_also_when_the_peer_has_left() -> None:
    """Something may have been stored: whoever waits for it elsewhere must hear of it."""
    made: list[bytes] = []

    async def go_on(result: bytes) -> Response:
        made.append(result)
        return Response(200)

    handler = Waiting(go_on)
    async with waiting_site(handler) as place:
        peer = await place.connect()
        peer.send(request("GET", "/wait"))
        await handler.asked()
        peer.reset()
        await place.connections_are(0)
        handler.futures[0].set_result(b"stored")
        await wait_until_async(lambda: made == [b"stored"])


@on_uvloop
async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_requests() -> None:
    handler = Waiting(lambda result: Response(200, result))
    async with waiting_site(handler, manual=True, request_timeout=30) as place:
        peer = await place.connect()
        peer.send(request("GET", "/wait"))
        await handler.asked()
        place.timer.advance(32)
        late = await peer.answer()
        peer.send(request("GET", "/wait"))
        await handler.asked(2)
        handler.futures[0].set_result(b"first")
        await asyncio.sleep(0)
        handler.futures[1].set_result(b"second")
        assert (late.status, json.loads(late.body)["error"]["code"]) == (503, "timeout")
        assert (await peer.answer()).body == b"second"


# ── a form of errors of its own ───────────────────────────────────────────────────────────────────


def teapot(problem: Problem) -> Response:
    return Response(418, type(problem.error).__name__.encode(), "text/plain")


def refuse(asked: Request) -> Response:
    raise InputInvalid("everything", "is wrong")


async def refuse_later(asked: Request) -> Response:
    raise InputInvalid("everything", "is wrong")


@on_uvloop
async def test_a_route_may_say_in_its_own_form_what_is_wrong() -> None:
    handler = Waiting(lambda _: Response(200))
    routes = [
        Route("GET", "/now", refuse, form=teapot),
        Route("GET", "/soon", refuse_later, form=teapot),
        Route("GET", "/later", handler, form=teapot),
        Route("GET", "/own", refuse),
    ]
    async with site(routes, manual=True, request_timeout=30) as place:
        peer = await place.connect()
        assert (await peer.get("/now")).body == b"InputInvalid"
        assert (await peer.get("/soon")).body == b"InputInvalid"
        peer.send(request("GET", "/later"))
        await handler.asked()
        place.timer.advance(32)
        assert (await peer.answer()).body == b"HandlerTimedOut"
        assert json.loads((await peer.get("/own")).body)["error"]["code"] == "input_invalid"


@on_uvloop
async def test_that_holds_for_what_is_refused_before_it_is_asked() -> None:
    routes = [Route("POST", "/small", refuse, body=WHOLE(4), form=teapot), Route("POST", "/own", refuse)]
    async with site(routes, requests_per_address=1.0) as place:
        peer = await place.connect()
        peer.send(request("POST", "/small", body=b"12345"))
        large = await peer.answer()
        peer.send(request("POST", "/own"))
        assert (await peer.answer()).status == 400
        peer.send(request("POST", "/small", body=b"1"))
        fast = await peer.answer()
        peer.send(request("POST", "/nowhere%zz"))
        nowhere = await peer.answer()

    assert (large.status, large.body) == (418, b"TooLarge")
    assert (fast.status, fast.body) == (418, b"RateExceeded")
    assert (nowhere.status, json.loads(nowhere.body)["error"]["code"]) == (429, "rate_exceeded")
