"""Waiting for news: answered by an append, by the clock, or by a server that is about to stop."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.api.v1.news import NewsPolls
from penstock.engines.memory import MemoryEngine
from penstock.http.routing import Route
from penstock.http.timers import Wheel
from penstock.testing import wait_until_async
from penstock.values import Batch, Draft
from tests.http.wires import ManualTimer, Peer, Site, on_uvloop, request, site


@asynccontextmanager
async def waiting_for_news(*, drain_seconds: float = 60) -> AsyncIterator[tuple[NewsPolls, ManualTimer, Site, Peer]]:
    """A peer that waits for more than the log has."""
    timer = ManualTimer()
    async with MemoryEngine() as engine:
        news = NewsPolls(engine.log, Wheel(timer))
        route = Route("GET", "/news", lambda asked: news.ask(asked, news.log.followed, 30), timeout=None)
        async with site([route], drain_seconds=drain_seconds) as place:
            peer = await place.connect()
            peer.send(request("GET", "/news"))
            await wait_until_async(lambda: news.waiting)
            yield news, timer, place, peer


def holds_nothing(news: NewsPolls) -> bool:
    return not news.waiting and not news.wheel.armed


@on_uvloop
async def test_an_append_answers_who_waits() -> None:
    async with waiting_for_news() as (news, _, _, peer):
        appended = await news.log.append(Batch((Draft("/a", b"x"),)))

        assert json.loads((await peer.answer()).body) == {"id": appended.last.id}
        assert holds_nothing(news)


@on_uvloop
async def test_who_has_waited_long_enough_is_told_that_nothing_is_new() -> None:
    async with waiting_for_news() as (news, timer, _, peer):
        timer.advance(29)
        assert news.waiting
        timer.advance(2)

        assert json.loads((await peer.answer()).body) == {"id": 0}
        assert holds_nothing(news)


@on_uvloop
async def test_who_leaves_is_forgotten() -> None:
    async with waiting_for_news() as (news, _, _, peer):
        peer.leave()

        await wait_until_async(lambda: holds_nothing(news))


@on_uvloop
async def test_a_stop_does_not_wait_for_who_waits(caplog: pytest.LogCaptureFixture) -> None:
    async with waiting_for_news() as (news, _, place, peer):
        await place.listener.drain()

        answer = await peer.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert holds_nothing(news)
    assert [record.message for record in caplog.records] == []  # nobody was cut
