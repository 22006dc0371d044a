"""Cold reads: a log whose older part lies in the lake reads like one that was never trimmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.clock import ManualClock
from penstock.core.log import Log
from penstock.core.registry import Registry
from penstock.engines.lake import ColdLog, LakeReader, LakeUnreadable, open_lake
from penstock.engines.lake.files import CoveringFile, TableFiles
from penstock.engines.lake.reader import TablePointers
from penstock.engines.memory import MemoryEngine
from penstock.engines.pages import Look
from penstock.engines.sqlite import open_sqlite
from penstock.errors import ConfigInvalid, InputInvalid, NotFound, Trimmed
from penstock.iceberg.files import WrittenFile
from penstock.iceberg.reading import ColumnBounds, ListedFile
from penstock.values import Batch, Draft, Entry, Kind, Page
from penstock.wire.lake_files import LakeFile
from tests.engines.lake_files import WrittenLake, everything

STREAMS = ("/a", "/b", "/b/c", "/_ledger")
DAY = 24 * 3600


class BusyLake(LakeReader):
    """Lets something happen while each read of it is on its way."""

    meanwhile: Callable[[], object] | None = None

    async def read(self, patterns: Sequence[str] | None, after: int, upto: int, look: Look) -> tuple[list[Entry], int]:
        found = await super().read(patterns, after, upto, look)
        if self.meanwhile:
            await self.meanwhile()  # type: ignore[misc]
        return found


class ForgetsTheSeam(ColdLog):
    """Sabotage: says that it has looked as far as the log is trimmed by now, not as far as it did look."""

    async def _read_cold(self, patterns: Sequence[str], after: int, seam: int, look: Look) -> Page:
        page = await super()._read_cold(patterns, after, seam, look)
        return page if page.upto < seam else Page(page.entries, self._hot.trimmed_upto, page.more)


class Pair:
    """One log that keeps everything, and the same one half in a lake."""

    def __init__(self, place: str | Path, make: type[ColdLog] = ColdLog) -> None:
        self.clock = ManualClock()
        engine = MemoryEngine(clock=self.clock)
        self.whole, self.hot, self.registry = MemoryEngine(clock=self.clock).log, engine.log, engine.registry
        self.written = WrittenLake(place)
        self.lake = BusyLake(str(place), self.registry)
        self.cold = make(self.hot, self.lake, self.clock)
        self.archived = 0
        self.files: list[WrittenFile] = []

    async def append(self, *drafts: Draft) -> None:
        await self.whole.append(Batch(drafts))
        await self.hot.append(Batch(drafts))

    async def archive(self, rows: int) -> None:
        """Commit the next rows to the lake."""
        upto = min(self.hot.followed, self.archived + rows)
        await self.commit(self.archived, upto)
        self.archived = upto

    async def commit(self, after: int, upto: int, *replaced: WrittenFile) -> None:
        """Let `events` have what the log has in (after, upto], in the place of other files."""
        if fresh := self.written.write_events(await everything(self.whole, after), after, upto):
            self.written.prepare("events", fresh, replaced)
            await self.written.publish(self.registry, "events", max(upto, self.archived))
        self.files += fresh

    async def trim(self, rows: int) -> None:
        """Drop some of what is archived."""
        await self.hot.trim(min(self.archived, self.hot.trimmed_upto + rows))

    async def archive_and_trim(self) -> None:
        await self.archive(3)
        await self.trim(2)


drafts = st.builds(
    lambda stream, body, parts, expires: (stream, body, parts, expires),
    st.sampled_from(STREAMS), st.binary(max_size=8), st.integers(0, 2), st.booleans(),
)  # fmt: skip
steps = st.one_of(
    st.tuples(st.just("append"), drafts),
    st.tuples(st.just("archive"), st.integers(1, 20)),
    st.tuples(st.just("trim"), st.integers(1, 20)),
    st.tuples(st.just("pass"), st.sampled_from((5, 20, DAY))),
)


async def perform(pair: Pair, step: tuple[str, object]) -> None:
    match step:
        case ("append", (str(stream), bytes(body), int(parts), expires)):
            ends = pair.clock.now_ms() + 10_000 if expires else None
            pieces = [Draft(stream, b"part", kind=Kind.PART, expires_ms=ends)] * parts
            await pair.append(Draft(stream, body, "t", '{"n":"1"}', ends), *pieces)
        case ("archive", int(rows)):
            await pair.archive(rows)
        case ("trim", int(rows)):
            await pair.trim(rows)
        case ("pass", int(seconds)):
            pair.clock.advance(seconds)


async def by_id(log: Log, patterns: tuple[str, ...], limit: int, meta: bool) -> list[Entry]:
    found: list[Entry] = []
    after, more = 0, True
    while more:
        page = await log.read_after(patterns, after, limit=limit, meta=meta)
        assert page.upto > after or not page.more
        found += page.entries
        after, more = page.upto, page.more
    return found


async def by_index(log: Log, stream: str, limit: int, meta: bool) -> list[Entry]:
    found: list[Entry] = []
    index, more = 0, True
    while more:
        page = await log.read_index(stream, index, limit=limit, meta=meta)
        assert page.entries or not page.more
        assert not page.entries or page.entries[0].size, "a page begins with a part"
        found += page.entries
        known = [entry.index for entry in page.entries if entry.index is not None]
        if page.more and not known:
            return found + await by_index_after(log, stream, page.upto, meta)
        index, more = (known[-1] + 1 if known else index), page.more
    return found


async def by_index_after(log: Log, stream: str, after: int, meta: bool) -> list[Entry]:
    """The rest of a stream, where a page had no index to go on from: it is full of meta entries."""
    head = await log.head(stream)
    page = await log.read_after((stream,), after, meta=meta)
    assert head is not None
    return list(page.entries)


async def by_cursor(log: Log, stream: str, limit: int) -> list[Entry]:
    found: list[Entry] = []
    offset, more = 0, True
    while more:
        page = await log.read_cursor(stream, 0, offset, limit=limit)
        found += page.entries
        more = page.more and bool(page.entries)
        offset = max([offset, *(entry.end for entry in page.entries)])
    return found


async def compare(pair: Pair, limit: int) -> None:
    """Whatever one asks, both logs answer the same."""
    assert await everything(pair.cold) == await everything(pair.whole)
    for patterns in ((">",), ("/a",), ("/b", "/b/c"), ("/b/*", "/_ledger")):
        for meta in (False, True):
            assert await by_id(pair.cold, patterns, limit, meta) == await by_id(pair.whole, patterns, limit, meta)
    for stream in STREAMS:
        if await pair.whole.head(stream) is not None:
            assert await by_index(pair.cold, stream, limit, False) == await by_index(pair.whole, stream, limit, False)
            assert await by_cursor(pair.cold, stream, limit) == await by_cursor(pair.whole, stream, limit)
            full = await pair.whole.read_index(stream, 0, meta=True)
            assert (await pair.cold.read_index(stream, 0, meta=True)).entries == full.entries


async def compare_while_trimming(pair: Pair, limit: int) -> None:
    """The same, while archive and trim go on beneath each read of the lake."""
    pair.lake.meanwhile = pair.archive_and_trim
    for patterns in ((">",), ("/a",), ("/b/*", "/_ledger")):
        assert await by_id(pair.cold, patterns, limit, True) == await by_id(pair.whole, patterns, limit, True)
        await pair.trim(1)
    pair.lake.meanwhile = None


async def play(place: str | Path, script: list[tuple[str, object]], limit: int, make: type[ColdLog] = ColdLog) -> None:
    pair = Pair(place, make)
    async with pair.lake:
        for step in script:
            await perform(pair, step)
        await compare_while_trimming(pair, limit)
        await compare(pair, limit)
        await pair.archive(1000)
        await pair.trim(1000)
        await compare(pair, limit)


@settings(max_examples=60)
@given(st.lists(steps, max_size=30), st.integers(1, 6))
def test_a_log_half_in_the_lake_reads_like_one_that_keeps_everything(
    script: list[tuple[str, object]], limit: int
) -> None:
    with TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory), script, limit))


def test_the_same_check_finds_a_reader_that_forgets_the_seam(tmp_path: Path) -> None:
    script: list[tuple[str, object]] = [("append", ("/a", b"x", 0, False))] * 12
    script += [("archive", 4), ("trim", 3)]

    asyncio.run(play(tmp_path / "sound", script, 6))
    with pytest.raises(AssertionError):
        asyncio.run(play(tmp_path / "sabotaged", script, 6, ForgetsTheSeam))


async def filled(place: str | Path, rows: int = 30) -> Pair:
    """Half of it trimmed, all of it in the lake, in files of ten rows."""
    pair = Pair(place)
    for number in range(rows):
        await pair.append(Draft(f"/s/{number % 3}", b"%d" % number))
    while pair.archived < pair.hot.followed:
        await pair.archive(10)
    await pair.trim(rows // 2)
    return pair


async def test_an_engine_on_disk_is_continued_by_the_lake_too(tmp_path: Path) -> None:
    clock = ManualClock()
    url, written = str(tmp_path / "lake"), WrittenLake(tmp_path / "lake")
    async with open_sqlite(tmp_path, node="n1", clock=clock) as engine, open_lake(url, engine.registry) as lake:
        for number in range(100):
            await engine.log.append(Batch((Draft("/a", b"%d" % number),)))
        before = await everything(engine.log)
        written.prepare("events", written.write_events(before, 0, 60, group=16))
        await written.publish(engine.registry, "events", 60)
        await engine.log.trim(60)
        cold = ColdLog(engine.log, lake, clock)

        assert await everything(cold) == before
        assert await by_id(cold, (">",), 7, True) == before
        assert [entry.body for entry in await by_index(cold, "/a", 9, False)] == [b"%d" % n for n in range(100)]
        assert await by_cursor(cold, "/a", 9) == [e for e in before if e.stream == "/a"]


async def test_a_range_that_neither_has_is_a_gap_of_just_that_range(tmp_path: Path) -> None:
    pair = await filled(tmp_path)
    pair.written.prepare("events", [], [pair.files[1]])
    await pair.written.publish(pair.registry, "events")
    async with pair.lake:
        first = await pair.cold.read_after((">",), 0)
        with pytest.raises(Trimmed) as error:
            await pair.cold.read_after((">",), first.upto)

    assert first.upto == 10
    assert (error.value.after, error.value.trimmed_upto) == (10, pair.hot.trimmed_upto)


async def test_a_file_that_is_named_and_missing_is_the_operators_matter_not_a_gap(tmp_path: Path) -> None:
    pair = await filled(tmp_path)
    pair.written.remove(pair.files[1])
    async with pair.lake:
        assert (await pair.cold.read_after((">",), 0, limit=1)).upto < 10
        with pytest.raises(LakeUnreadable):
            await pair.cold.read_after((">",), 10)
        assert await pair.lake.covered_upto(0) == 10


async def test_what_compaction_replaced_is_found_in_the_new_file(tmp_path: Path) -> None:
    pair = await filled(tmp_path)
    async with pair.lake:
        before = await by_id(pair.cold, (">",), 100, True)
        small = pair.files[:2]
        await pair.commit(0, 20, *small)
        pair.written.remove(*small)

        assert await by_id(pair.cold, (">",), 100, True) == before


class MovesOn(LakeReader):
    """Says what the record said before, the first time that each question asks."""

    def __init__(self, url: str, registry: Registry) -> None:
        super().__init__(url, registry)
        self.stale: list[TablePointers] = []

    async def record(self, job: str) -> TablePointers:
        return self.stale.pop() if self.stale else await super().record(job)


async def test_a_commit_between_record_and_files_is_followed_to_what_the_record_says_then(tmp_path: Path) -> None:
    pair = await filled(tmp_path)
    async with pair.lake, MovesOn(str(tmp_path), pair.registry) as lake:
        old, small = await lake.record("events"), pair.files[:2]
        await pair.commit(0, 20, *small)
        pair.written.remove(*small)
        cold = ColdLog(pair.hot, lake, pair.clock)
        lake.stale = [old]

        assert await by_id(cold, (">",), 100, True) == await everything(pair.whole)
        assert not lake.stale

        lake.stale = [old] * 100
        with pytest.raises(LakeUnreadable):
            await cold.read_after((">",), 0)


async def test_nothing_is_told_of_a_file_that_an_erase_has_replaced(tmp_path: Path) -> None:
    """Not even where its rows are still in memory."""
    pair = await filled(tmp_path)
    async with pair.lake:
        [entry] = (await pair.cold.read_after((">",), 0, limit=1)).entries
        assert entry.body == b"0"
        await pair.whole.erase([entry.id])
        await pair.commit(0, 10, pair.files[0])

        erased = await pair.cold.entry(entry.id)

        assert erased is not None
        assert (erased.kind, erased.body) == (Kind.ERASED, b"")


async def test_files_that_claim_the_same_ids_show_no_entry_twice(tmp_path: Path) -> None:
    pair = await filled(tmp_path)
    await pair.commit(3, 7)
    async with pair.lake:
        assert await by_id(pair.cold, (">",), 100, True) == await everything(pair.whole)


class TakesEither(TableFiles):
    """Sabotage: of files that have the same ids one is read, also where they are of different days."""

    @cached_property
    def cover(self) -> list[CoveringFile]:
        cover: list[CoveringFile] = []
        for file in self.all:
            if not cover or file.hi > cover[-1].hi:
                cover.append(file)
        return cover


def test_a_file_that_reaches_into_a_tangle_is_a_part_of_it() -> None:
    ranges = [("2026-11-15", 0, 10), ("2026-11-15", 10, 30), ("2026-11-15", 20, 50), ("2026-11-16", 25, 60)]
    named = [LakeFile(lo, hi, day, "events", "a") for day, lo, hi in ranges]
    files = TableFiles.of(ListedFile(one.path, 1, 1, ColumnBounds()) for one in named)

    assert [(one.lo, one.hi) for one in files.cover] == [(0, 10), (10, 60)]
    assert files.readable_upto(0, 100) == 10


@pytest.mark.parametrize("sabotage", [False, True], ids=["honest", "sabotage: either is read"])
async def test_where_files_of_two_days_have_the_same_ids_nothing_is_shown_rather_than_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sabotage: bool
) -> None:
    """Before and after these ids all is shown, and nothing is trimmed from there on."""
    if sabotage:
        monkeypatch.setattr("penstock.engines.lake.reader.TableFiles", TakesEither)
    pair = Pair(tmp_path)
    for number in range(20):
        await pair.append(Draft("/s", b"%d" % number))
        pair.clock.jump((DAY if number % 2 else -DAY) if 4 <= number < 14 else 0)
    before = await everything(pair.whole)  # the first three are meta entries
    await pair.archive(8)
    files = [pair.written.write_day(before[8:17:2], 8, 17), pair.written.write_day(before[9:18:2], 9, 18)]
    pair.written.prepare("events", files)
    pair.archived = 18
    await pair.archive(5)
    async with pair.lake:
        assert await pair.lake.covered_upto(0) == (23 if sabotage else 8)
        await pair.hot.trim(23)
        if sabotage:
            assert await by_id(pair.cold, (">",), 100, True) != before, "rows are missing, and nobody says so"
            return
        assert list((await pair.cold.read_after((">",), 0, meta=True)).entries) == before[:8]
        assert list((await pair.cold.read_after((">",), 18)).entries) == before[18:]
        assert list((await pair.cold.read_index("/s", 16)).entries) == before[19:]
        with pytest.raises(LakeUnreadable, match=r"the ids 9 to 18; '\./penstock pipeline compact' puts them apart"):
            await pair.cold.read_after((">",), 8)
        with pytest.raises(LakeUnreadable):
            await pair.cold.read_index("/s", 9)


async def test_a_damaged_file_is_the_operators_matter_not_a_gap(tmp_path: Path) -> None:
    pair = await filled(tmp_path)
    pair.written.damage("events/data/", "e-000000000000-")
    async with pair.lake:
        with pytest.raises(LakeUnreadable):
            await pair.cold.read_after((">",), 0)


@pytest.mark.parametrize("part", [".json", "-m", "snap-"])
async def test_damaged_metadata_are_the_operators_matter_not_a_gap(tmp_path: Path, part: str) -> None:
    pair = await filled(tmp_path)
    pair.written.damage("events/metadata/", part)
    async with pair.lake:
        with pytest.raises(LakeUnreadable):
            await pair.cold.read_after((">",), 0)


async def test_cursors_that_are_wrong_are_refused_as_ever(tmp_path: Path) -> None:
    pair = await filled(tmp_path)
    async with pair.lake:
        for offset, why in ((1, "inside a line"), (100_000, "beyond the end")):
            with pytest.raises(InputInvalid, match=why):
                await pair.cold.read_cursor("/s/0", 0, offset)
        with pytest.raises(NotFound):
            await pair.cold.read_index("/nobody", 0)


async def test_times_are_found_in_the_lake(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    async with pair.lake:
        times = []
        for number in range(12):
            times.append(pair.clock.now_ms())
            await pair.append(Draft("/a", b"%d" % number))
            pair.clock.advance(3 * 3600)
        await pair.archive(5)
        await pair.archive(5)
        await pair.trim(9)
        for ms in (*times, times[0] - 5, times[-1] + 5):
            assert await pair.cold.id_before(ms) == await pair.whole.id_before(ms)


async def test_a_time_before_a_lake_that_begins_late_is_where_it_begins(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    async with pair.lake:
        for number in range(8):
            await pair.append(Draft("/a", b"%d" % number))
        before = pair.clock.now_ms() - 1
        await pair.hot.trim(3)
        assert await pair.cold.id_before(before) == 3  # there is no lake yet
        pair.archived = 3
        await pair.archive(5)
        await pair.trim(4)
        assert await pair.cold.id_before(before) == 3


@pytest.mark.parametrize("url", ["ftp://host/lake", "s3:///prefix", "relative/lake", "/dev/null", "file://other/lake"])
def test_what_is_neither_a_directory_nor_a_store_cannot_be_a_lake(url: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"lake\.url"):
        open_lake(url, MemoryEngine().registry)
