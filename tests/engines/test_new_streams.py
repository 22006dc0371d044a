"""A stream that is made while somebody reads on after an id is not passed over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.engines.sqlite import open_sqlite
from penstock.engines.sqlite.log import SqliteLog
from penstock.engines.sqlite.reader_threads import Readers
from penstock.engines.sqlite.stream_pages import Source
from penstock.values import Batch, Draft, Page

STREAMS = ("/new", "/also-new")


class Interrupted:
    """Readers beside which something happens, when the first stream was looked for and the second is being so."""

    def __init__(self, readers: Readers, happens: Callable[[], Awaitable[object]]) -> None:
        self._readers, self._happens, self._answers = readers, happens, 0

    async def run(self, function: Callable[[Any], Any], *, long: bool = False) -> Any:
        answer = await self._readers.run(function, long=long)
        self._answers += 1
        if self._answers == 2:
            await self._happens()
        return answer


class LooksUpLast(SqliteLog):
    """The sabotage: how far the page reaches is decided after the streams were looked up."""

    async def _sources(self, streams: Any, upto: int) -> list[Source]:
        found = await super()._sources(streams, upto)
        self.late = self.followed
        return found

    async def read_after(self, *arguments: Any, **options: Any) -> Page:
        page = await super().read_after(*arguments, **options)
        return Page(page.entries, self.late, more=False)


async def read_on_while_it_is_made(folder: Path, kind: type[SqliteLog]) -> list[bytes]:
    """What a reader of two streams gets, page by page, when one is made as its first page is read."""
    async with open_sqlite(folder, node="n") as engine:
        log = engine.log
        await log.append(Batch((Draft("/other", b"x"),)))
        log.__class__ = kind
        log._readers = Interrupted(log._readers, lambda: log.append(Batch((Draft("/new", b"first"),))))  # type: ignore[assignment]
        first = await log.read_after(STREAMS, 0)
        second = await log.read_after(STREAMS, first.upto)
        return [entry.body for page in (first, second) for entry in page.entries]


async def test_what_comes_into_a_stream_that_is_just_being_made_is_read(tmp_path: Path) -> None:
    assert await read_on_while_it_is_made(tmp_path, SqliteLog) == [b"first"]


async def test_a_log_that_looks_up_its_end_last_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        assert await read_on_while_it_is_made(tmp_path, LooksUpLast) == [b"first"]
