"""A lake on an object store reads like one in a folder, and a store that is away hurts nobody but its readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.engines.lake import LakeReader, LakeUnreadable
from penstock.engines.lake import reader as lakes
from penstock.engines.lake import search as searches
from penstock.engines.lake.files import CoveringFile
from penstock.testing import S3Server, wait_until_async
from penstock.values import Draft
from tests.engines.lake_files import everything
from tests.engines.test_lake import Pair, by_cursor, by_id, by_index, filled, play

AWAY = 1.0  # seconds that a question may take while the store is paused


def place() -> str:
    return f"s3://lake/{uuid4().hex}"


@pytest.mark.usefixtures("s3")
def test_a_log_half_in_a_lake_on_s3_reads_like_one_that_keeps_everything() -> None:
    script: list[tuple[str, object]] = []
    for stream in ("/a", "/b", "/b/c", "/_ledger"):
        script += [("append", (stream, b"x", 2, False)), ("append", (stream, b"yz", 0, True)), ("pass", 20)]
    script += [("archive", 9), ("trim", 7), ("pass", 24 * 3600), ("append", ("/a", b"late", 1, False)), ("archive", 5)]

    asyncio.run(play(place(), script, 3))


@pytest.mark.usefixtures("s3")
async def test_what_was_replaced_on_s3_is_found_in_the_new_file() -> None:
    pair = await filled(place())
    async with pair.lake:
        before = await by_id(pair.cold, (">",), 100, True)
        small = pair.files[:2]
        await pair.commit(0, 20, *small)
        pair.written.remove(*small)

        assert await by_id(pair.cold, (">",), 100, True) == before
        assert await pair.lake.covered_upto(0) == pair.archived


# ── the store is away ─────────────────────────────────────────────────────────────────────────────


async def hot_reads(pair: Pair) -> None:
    """All that the engine has by itself is answered, also what is next to the seam."""
    newest = (await pair.whole.head("/hot")).next_index - 1  # type: ignore[union-attr]
    for meta in (False, True):
        page = await pair.cold.read_index("/hot", newest, meta=meta)
        assert [entry.body for entry in page.entries] == [b"last"]
    assert (await pair.cold.read_after((">",), pair.hot.trimmed_upto)).entries
    await pair.append(Draft("/hot", b"last"))


@asynccontextmanager
async def half_cold(limit: float, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    """Half of a log on S3; questions may take *limit* seconds."""
    monkeypatch.setattr(lakes, "LAKE_SECONDS", limit)
    pair = await filled(place())
    await pair.append(Draft("/hot", b"first"))
    await pair.append(Draft("/hot", b"last"))
    async with pair.lake:
        yield pair


async def read_all(pair: Pair) -> int:
    """Read every cold row in every way; what is answered is right. Returns the reads that were refused."""
    whole, refused = await everything(pair.whole), 0
    mine = [entry for entry in whole if entry.stream == "/s/0"]
    expected: list[tuple[Callable[..., object], tuple[object, ...], object]] = [
        (by_id, ((">",), 4, True), whole),
        (by_index, ("/s/0", 3, False), [entry for entry in mine if entry.index is not None]),
        (by_cursor, ("/s/0", 3), mine),
    ]
    for read, how, answer in expected:
        try:
            assert await read(pair.cold, *how) == answer  # type: ignore[misc]
        except LakeUnreadable:
            refused += 1
    return refused


async def test_a_paused_store_is_an_error_within_its_time_and_hot_reads_go_on(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with half_cold(20, monkeypatch) as pair:
        assert await read_all(pair) == 0
        monkeypatch.setattr(lakes, "LAKE_SECONDS", AWAY)
        fresh = LakeReader(pair.lake.url, pair.registry)  # has read nothing yet: all must come from the store
        pair.cold._lake = fresh
        async with fresh:
            s3.pause()
            cold = [asyncio.ensure_future(pair.cold.read_after((">",), 0)) for _ in range(20)]
            await hot_reads(pair)
            answers = await asyncio.gather(*cold, return_exceptions=True)
            assert [type(answer) for answer in answers] == [LakeUnreadable] * 20
            s3.resume()
            monkeypatch.setattr(lakes, "LAKE_SECONDS", 20)
            await wait_until_async(lambda: answered(pair), within=60)
            assert await read_all(pair) == 0


async def answered(pair: Pair) -> bool:
    try:
        return bool(await pair.cold.read_after((">",), 0))
    except LakeUnreadable:
        return False


async def test_the_same_check_finds_a_reader_that_waits_for_ever(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def unbounded(self: LakeReader) -> AsyncIterator[None]:
        yield

    async with half_cold(20, monkeypatch) as pair:
        monkeypatch.setattr(LakeReader, "_bounded", unbounded)
        s3.pause()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(AWAY):
                await pair.cold.read_after((">",), 0)
        s3.resume()


async def test_a_store_that_is_killed_and_restarted_under_reads_never_tells_wrong_rows(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with half_cold(20, monkeypatch) as pair:
        assert await outage(s3, pair)


async def outage(s3: S3Server, pair: Pair) -> bool:
    """Let the store go and come back under a reader whose caches are cold. Whether any read was refused."""
    s3.kill()
    pair.cold._lake = fresh = LakeReader(pair.lake.url, pair.registry)
    async with fresh:
        refused = await read_all(pair)
        await hot_reads(pair)
        await asyncio.to_thread(s3.restart)
        await wait_until_async(lambda: answered(pair), within=60)
        assert await read_all(pair) == 0
    return refused == 3


async def test_the_same_check_finds_a_reader_that_takes_a_lost_file_for_an_empty_one(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = searches.Search._fill

    def lenient(self: searches.Search, page: object, file: CoveringFile, after: int, upto: int) -> None:
        try:
            fill(self, page, file, after, upto)  # type: ignore[arg-type]
        except OSError:
            return

    async with half_cold(20, monkeypatch) as pair:
        assert await read_all(pair) == 0
        monkeypatch.setattr(searches.Search, "_fill", lenient)
        pair.lake._search.rows = searches.ParquetRows(pair.lake.store)  # knows the files, has none of their rows
        s3.kill()
        with pytest.raises(AssertionError):
            await read_all(pair)


def test_a_store_that_cannot_be_opened_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "x"}.items():
        monkeypatch.setenv(name, value)

    async def read() -> None:
        pair = await filled(tmp_path)
        async with LakeReader("s3://lake/x", pair.registry) as lake:
            with pytest.raises(LakeUnreadable) as error:
                await lake.mark()
            assert "\n" not in str(error.value)

    asyncio.run(read())
