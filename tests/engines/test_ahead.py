"""Replays: the next page is read before anybody asks for it, and is never an old one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.api.v1.entry_json import EntryEncoder
from penstock.core.clock import ManualClock
from penstock.engines.sqlite import open_sqlite
from penstock.engines.sqlite.log import SqliteLog
from penstock.engines.sqlite.read_ahead import UNASKED, Ahead
from penstock.errors import Busy, Trimmed
from penstock.testing import wait_until_async
from penstock.values import BETWEEN_BODIES, Batch, Draft, Page, PlainEntries

LIMIT = 4  # the first page has one event less: the stream's Created is not for everybody


@asynccontextmanager
async def filled(
    folder: Path, *, streams: int = 1, expires_in_ms: int = 0
) -> AsyncIterator[tuple[SqliteLog, ManualClock]]:
    """A log with 40 events in each stream, folded: what a replay meets."""
    clock = ManualClock()
    async with open_sqlite(folder, node="n", clock=clock) as engine:
        expires_ms = clock.now_ms() + expires_in_ms if expires_in_ms else None
        for stream in range(streams):
            drafts = [Draft(f"/s/{stream}", b"%d" % number, expires_ms=expires_ms) for number in range(40)]
            await engine.log.append(Batch(tuple(drafts)))
        await engine.log._writer.fold_now()
        yield engine.log, clock


async def read(log: SqliteLog, after: int, stream: int = 0) -> Page:
    """A page of a replay; the next one is there when this returns."""
    page = await log.read_after((f"/s/{stream}",), after, limit=LIMIT, ahead=True)
    unasked = log._ahead._unasked
    await wait_until_async(lambda: not page.more or any(kept.done() for kept in unasked.values()))
    return page


def bodies(page: Page) -> list[bytes]:
    return [entry.body for entry in page.entries]


async def test_a_replay_gets_every_entry_once_and_in_order(tmp_path: Path) -> None:
    async with filled(tmp_path) as (log, _):
        seen: list[bytes] = []
        page = await read(log, 0)
        while page.more:
            seen += bodies(page)
            page = await read(log, page.upto)
        seen += bodies(page)

        assert seen == [b"%d" % number for number in range(40)]


async def test_the_next_page_is_there_before_it_is_asked_for(tmp_path: Path) -> None:
    async with filled(tmp_path) as (log, _):
        first = await read(log, 0)

        [kept] = log._ahead._unasked.values()

        assert (kept.after, bodies(kept.result())) == (first.upto, [b"3", b"4", b"5", b"6"])


async def test_pages_that_nobody_asks_for_are_few(tmp_path: Path) -> None:
    async with filled(tmp_path, streams=3 * UNASKED) as (log, _):
        for stream in range(3 * UNASKED):
            await read(log, 0, stream)

            assert len(log._ahead._unasked) <= UNASKED


async def test_who_reads_no_further_costs_nothing_ahead(tmp_path: Path) -> None:
    async with filled(tmp_path) as (log, _):
        await log.read_after(("/s/0",), 0, limit=LIMIT)

        assert not log._ahead._unasked


async def erased_ahead(folder: Path) -> bytes:
    """The body that a replay shows of an entry that was erased when its page had been read already."""
    async with filled(folder) as (log, _):
        first = await read(log, 0)
        [kept] = log._ahead._unasked.values()
        await log.erase([kept.result().entries[0].id])
        after = await log.read_after(("/s/0",), first.upto, limit=LIMIT, ahead=True)
        return after.entries[0].body


async def test_what_was_erased_is_not_shown_from_a_page_read_before(tmp_path: Path) -> None:
    assert await erased_ahead(tmp_path) == b"4"


async def test_a_log_that_keeps_old_pages_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ahead, "forget", lambda self: None)

    assert await erased_ahead(tmp_path) == b"3"


async def test_what_was_trimmed_is_said_to_be_although_its_page_was_read_before(tmp_path: Path) -> None:
    async with filled(tmp_path) as (log, _):
        first = await read(log, 0)
        await log.trim(first.upto + 1)

        with pytest.raises(Trimmed):
            await log.read_after(("/s/0",), first.upto, limit=LIMIT, ahead=True)


async def test_what_has_expired_since_its_page_was_read_is_not_shown(tmp_path: Path) -> None:
    async with filled(tmp_path, expires_in_ms=5000) as (log, clock):
        first = await read(log, 0)
        clock.advance(6)

        page = await log.read_after(("/s/0",), first.upto, limit=LIMIT, ahead=True)

        assert len(first.entries) == LIMIT - 1
        assert page.entries == ()


async def test_an_append_after_the_replay_began_is_reached(tmp_path: Path) -> None:
    async with filled(tmp_path) as (log, _):
        page = await read(log, 0)
        await log.append(Batch((Draft("/s/0", b"late"),)))
        seen: list[bytes] = []
        while page.more:
            page = await read(log, page.upto)
            seen += bodies(page)

        assert seen[-1] == b"late"
        assert page.upto == log.followed


async def test_a_page_that_cannot_be_begun_ahead_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    async with filled(tmp_path) as (log, _):
        first = await read(log, 0)
        start = log._readers.start

        def refuse(work: Callable[[], None], *, long: bool) -> None:
            raise Busy("reads at once", 0)

        log._readers.start = refuse  # type: ignore[method-assign]
        second = await log.read_after(("/s/0",), first.upto, limit=LIMIT, ahead=True)
        log._readers.start = start  # type: ignore[method-assign]
        third = await asyncio.wait_for(log.read_after(("/s/0",), second.upto, limit=LIMIT, ahead=True), 20)

        assert bodies(second) + bodies(third) == [b"%d" % number for number in range(3, 11)]


TEXTS = [chr(number).encode() for number in range(0x7F)] + [
    '"\\"\u2028 é 🜁 \ufeff'.encode(),
    b'{"a":"\\n"}',
    b"x" * 5000,
    b"",
]
MIXED = [BETWEEN_BODIES, b"a" + BETWEEN_BODIES, b"b"]
BINARY = [b"\xff", b"\xc3", "\ud800".encode("utf-8", "surrogatepass")]


async def shown_in_a_replay(folder: Path, bodies: list[bytes]) -> tuple[list[Page], list[bytes], list[bytes]]:
    """Pages of a replay, their lines, and those of the same entries read one by one."""
    shown = EntryEncoder("n")
    async with open_sqlite(folder, node="n", clock=ManualClock()) as engine:
        first = await engine.log.append(Batch((Draft("/s", b"first"),)))
        await engine.log.append(Batch(tuple(Draft("/s", body) for body in bodies)))
        await engine.log._writer.fold_now()
        page = await engine.log.read_after(("/s",), first.last.id, limit=LIMIT, ahead=True)
        pages = [page]
        while page.more:
            page = await engine.log.read_after(("/s",), page.upto, limit=LIMIT, ahead=True)
            pages.append(page)
        found = [await engine.log.entry(entry.id) for page in pages for entry in page.entries]
        lines = b"".join([shown.lines(page.entries) for page in pages])
        single = b"".join([shown.lines([entry]) for entry in found if entry])
        assert [entry for page in pages for entry in page.entries] == found
        return pages, lines.splitlines(), single.splitlines()


async def test_lines_of_a_replay_say_what_lines_of_the_entries_say(tmp_path: Path) -> None:
    pages, lines, single = await shown_in_a_replay(tmp_path, TEXTS)

    assert sum(isinstance(page.entries, PlainEntries) for page in pages) == len(TEXTS) // LIMIT
    assert [json.loads(line) for line in lines] == [json.loads(line) for line in single]


async def test_a_page_of_large_events_has_as_many_as_there_is_room_for(tmp_path: Path) -> None:
    sizes = [5_000] * 150 + [50] * 150 + [20_000] * 120
    async with open_sqlite(tmp_path, node="n", clock=ManualClock()) as engine:
        bodies = [b"%d" % number + b"x" * size for number, size in enumerate(sizes)]
        await engine.log.append(Batch((Draft("/s", b"first"),)))
        for begin in range(0, len(bodies), 50):
            await engine.log.append(Batch(tuple(Draft("/s", body) for body in bodies[begin : begin + 50])))
        await engine.log._writer.fold_now()
        pages: list[Page] = []
        while not pages or pages[-1].more:
            after = pages[-1].upto if pages else 2  # behind what tells that the stream was made
            pages.append(await engine.log.read_after(("/s",), after, limit=100, limit_bytes=100_000, ahead=True))

    read = [entry.body for page in pages for entry in page.entries if entry.index]
    assert read == bodies
    assert all(sum(len(entry.body) for entry in page.entries) <= 100_000 for page in pages)
    # Whatever they have room for, nearly all pages are read with one statement
    assert sum(isinstance(page.entries, PlainEntries) for page in pages) > 0.8 * len(pages)


async def test_bodies_that_are_no_text_are_shown_as_such_in_a_replay(tmp_path: Path) -> None:
    _, lines, single = await shown_in_a_replay(tmp_path, BINARY * LIMIT)

    assert lines == single
    assert {"data_base64" in json.loads(line) for line in lines} == {True}


async def test_bodies_with_what_stands_between_bodies_are_not_cut_there(tmp_path: Path) -> None:
    _, lines, single = await shown_in_a_replay(tmp_path, MIXED * LIMIT)

    assert [json.loads(line) for line in lines] == [json.loads(line) for line in single]


@pytest.mark.parametrize("bodies", [BINARY, MIXED])
async def test_a_reader_that_takes_all_bytes_for_texts_is_found_out(
    bodies: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engines.sqlite.reader._are_texts", lambda bodies, count: True)

    with pytest.raises(ValueError, match=r"codec|sequence|zip"):  # not UTF-8, or more pieces than events
        await shown_in_a_replay(tmp_path, bodies * LIMIT)
