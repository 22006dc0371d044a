"""Reading: by index, by cursor, by id, and heads (core/log.py, promise 5)."""

from __future__ import annotations

import pytest

from penstock.core.log import prepare
from penstock.errors import InputInvalid, NameInvalid, NotFound
from penstock.limits import BATCH_ENTRIES
from penstock.values import Batch, Draft, Kind
from penstock.wire import eventhorizon


async def fill(log, stream: str, count: int, size: int = 0) -> None:
    for number in range(count):
        await log.append(Batch((Draft(stream, b"%d" % number + b"x" * size),)))


async def subscribe(log, stream: str, who: str = "/_sub/a") -> None:
    payload = eventhorizon.subscribed(who, eventhorizon.timestamp(0))
    await log.append(Batch((Draft(stream, payload, type="Subscribed", kind=Kind.META),)))


def numbers(page) -> list[int]:
    return [int(entry.body) for entry in page.entries]


async def test_the_newest_id_is_the_last_that_was_given(open_engine):
    async with open_engine() as engine:
        assert await engine.log.newest() == engine.log.followed

        appended = await engine.log.append(Batch((Draft("/a", b"1"), Draft("/b", b"2"))))

        assert await engine.log.newest() == appended.last.id == engine.log.followed


# ── by index ───────────────────────────────────────────────────────────────────────────────────


async def test_reading_by_index_begins_exactly_there(open_engine):
    async with open_engine() as engine:
        await fill(engine.log, "/s", 10)
        await fill(engine.log, "/other", 3)

        page = await engine.log.read_index("/s", 4)

        assert numbers(page) == [4, 5, 6, 7, 8, 9]
        assert (page.upto, page.more) == (engine.log.followed, False)


async def test_reading_at_or_beyond_the_end_finds_nothing(open_engine):
    async with open_engine() as engine:
        await fill(engine.log, "/s", 3)

        for index in (3, 4, 1000):
            page = await engine.log.read_index("/s", index)
            assert (page.entries, page.more) == ((), False)


async def test_a_page_by_index_is_limited_and_says_that_there_is_more(open_engine):
    async with open_engine() as engine:
        await fill(engine.log, "/s", 10)

        page = await engine.log.read_index("/s", 2, limit=3)
        last = await engine.log.read_index("/s", 7, limit=3)

        assert (numbers(page), page.more, page.upto) == ([2, 3, 4], True, page.entries[-1].id)
        assert (numbers(last), last.more) == ([7, 8, 9], False)


async def test_a_page_is_limited_in_bytes_but_one_entry_always_fits(open_engine):
    async with open_engine() as engine:
        await fill(engine.log, "/s", 5, size=1000)

        some = await engine.log.read_index("/s", 0, limit_bytes=2500)
        one = await engine.log.read_index("/s", 0, limit_bytes=10)

        assert (len(some.entries), some.more) == (2, True)
        assert (len(one.entries), one.more) == (1, True)


async def test_meta_entries_are_shown_only_on_demand(open_engine):
    async with open_engine() as engine:
        await fill(engine.log, "/s", 2)
        await subscribe(engine.log, "/s")
        await fill(engine.log, "/s", 1)

        plain = await engine.log.read_index("/s", 0)
        whole = await engine.log.read_index("/s", 0, meta=True)
        later = await engine.log.read_index("/s", 2, meta=True)

        assert [entry.index for entry in plain.entries] == [0, 1, 2]
        assert [entry.type for entry in whole.entries] == ["Created", "", "", "Subscribed", ""]
        assert [entry.type for entry in later.entries] == ["Subscribed", ""]


async def test_many_meta_entries_do_not_hide_what_follows(open_engine):
    async with open_engine() as engine:
        await fill(engine.log, "/s", 1)
        for number in range(12):
            await subscribe(engine.log, "/s", f"/_sub/{number}")
        await fill(engine.log, "/s", 1)

        page = await engine.log.read_index("/s", 1, limit=2)

        assert [entry.index for entry in page.entries] == [1]


async def test_parts_come_with_the_entry_they_belong_to(open_engine):
    async with open_engine() as engine:
        parts = tuple(Draft("/s", b"part %d" % n, kind=Kind.PART) for n in range(BATCH_ENTRIES - 1))
        answer = await engine.log.append(Batch((Draft("/s", b"first"), *parts)))
        await fill(engine.log, "/s", 2)

        page = await engine.log.read_index("/s", 0, limit=1)
        after = await engine.log.read_index("/s", 1, limit=1)
        cursor = await engine.log.read_cursor("/s", 0, page.entries[0].offset, limit=1)
        beyond = await engine.log.read_cursor("/s", 0, page.entries[0].end, limit=1)

        assert answer.count == 1
        assert len(page.entries) == len(cursor.entries) == BATCH_ENTRIES
        assert page.more
        assert [entry.kind for entry in page.entries] == [Kind.DATA] + [Kind.PART] * (BATCH_ENTRIES - 1)
        assert all(entry.index is None and entry.size == 0 for entry in page.entries[1:])
        assert [(entry.index, entry.kind) for entry in after.entries] == [(1, Kind.DATA)]
        assert [entry.index for entry in beyond.entries] == [1]


async def test_a_stream_that_does_not_exist_is_not_found(open_engine):
    async with open_engine() as engine:
        await prepare(engine.log)

        with pytest.raises(NotFound):
            await engine.log.read_index("/none", 0)
        with pytest.raises(NotFound):
            await engine.log.read_cursor("/none", 0, 0)
        assert await engine.log.head("/none") is None
        assert (await engine.log.read_after(["/none"], 0)).entries == ()


# ── by cursor ──────────────────────────────────────────────────────────────────────────────────


async def test_reading_by_cursor_goes_from_line_to_line(open_engine):
    async with open_engine() as engine:
        await fill(engine.log, "/s", 4)

        offset, found = 0, []
        while True:
            page = await engine.log.read_cursor("/s", 0, offset, limit=1)
            if not page.entries:
                break
            found.append(page.entries[0])
            offset = found[-1].end

        assert [entry.type for entry in found] == ["Created", "", "", "", ""]
        assert offset == (await engine.log.head("/s")).offset


async def test_a_cursor_must_be_at_the_beginning_of_a_line(open_engine):
    async with open_engine() as engine:
        await fill(engine.log, "/s", 2)
        head = await engine.log.head("/s")

        for offset in (-1, 1, head.offset - 1, head.offset + 1, 10**9):
            with pytest.raises(InputInvalid):
                await engine.log.read_cursor("/s", 0, offset)
        for chunk in (-1, 1, 10**6):
            with pytest.raises(NotFound):
                await engine.log.read_cursor("/s", chunk, 0)


async def test_a_chunk_is_never_read_beyond_its_end(open_engine):
    line = b"x" * 65_000
    async with open_engine() as engine:
        while (await engine.log.append(Batch((Draft("/s", line),) * 60))).last.chunk == 0:
            if (await engine.log.head("/s")).chunk == 1:
                break
        await fill(engine.log, "/s", 2)

        offset, types, pages = 0, [], 0
        while page := (await engine.log.read_cursor("/s", 0, offset)).entries:
            assert {entry.chunk for entry in page} == {0}
            types += [entry.type for entry in page]
            offset = page[-1].end
            pages += 1
        second = await engine.log.read_cursor("/s", 1, 0)

        assert (types[0], types[-1]) == ("Created", "Rotated")
        assert pages > 1
        assert [entry.type for entry in second.entries] == ["Created", "", ""]
        for wrong in (offset - 1, offset + 1):
            with pytest.raises(InputInvalid):
                await engine.log.read_cursor("/s", 0, wrong)


# ── by id ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("patterns", "streams"),
    [
        ([">"], {"/a", "/a/b", "/a/c", "/d"}),
        (["/a"], {"/a"}),
        (["/a/*"], {"/a/b", "/a/c"}),
        (["/a/b", "/d", "/none"], {"/a/b", "/d"}),
        (["/d", "/a/>"], {"/d", "/a/b", "/a/c"}),
        (["/_hidden"], {"/_hidden"}),
        (["/none/>"], set()),
        ([], set()),
    ],
)
async def test_reading_by_id_finds_the_streams_that_match(open_engine, patterns, streams):
    async with open_engine() as engine:
        for number in range(3):
            for stream in ("/a", "/a/b", "/a/c", "/d", "/_hidden"):
                await engine.log.append(Batch((Draft(stream, b"%d" % number),)))

        page = await engine.log.read_after(patterns, 0)

        assert {entry.stream for entry in page.entries} == streams
        assert len(page.entries) == 3 * len(streams)
        assert [entry.id for entry in page.entries] == sorted(entry.id for entry in page.entries)
        assert (page.upto, page.more) == (engine.log.followed, False)


@pytest.mark.parametrize("patterns", [[">"], ["/a", "/b"], ["/*"]])
async def test_pages_by_id_join_without_a_gap_or_a_double(open_engine, patterns):
    async with open_engine() as engine:
        for number in range(25):
            await engine.log.append(Batch((Draft("/a", b"%d" % number), Draft("/b", b"x" * 50))))

        found, after, more = [], 0, True
        while more:
            page = await engine.log.read_after(patterns, after, limit=7, limit_bytes=200)
            assert page.upto > after
            found += page.entries
            after, more = page.upto, page.more

        assert after == engine.log.followed
        assert [(e.stream, e.index) for e in found] == [(s, n) for n in range(25) for s in ("/a", "/b")]


async def test_reading_by_id_from_the_end_finds_what_comes_later(open_engine):
    async with open_engine() as engine:
        await fill(engine.log, "/s", 3)
        end = await engine.log.read_after([">"], engine.log.followed)
        await fill(engine.log, "/s", 1)

        page = await engine.log.read_after([">"], end.upto)

        assert (end.entries, end.more) == ((), False)
        assert [entry.index for entry in page.entries] == [3]


async def test_a_pattern_that_is_none_is_refused(open_engine):
    async with open_engine() as engine:
        with pytest.raises(NameInvalid):
            await engine.log.read_after(["no slash"], 0)
        with pytest.raises(NameInvalid):
            await engine.log.heads("/a/>/b")


async def test_one_entry_is_found_by_its_id(open_engine):
    async with open_engine() as engine:
        answer = await engine.log.append(Batch((Draft("/s", b"1"),)))

        assert (await engine.log.entry(answer.last.id)).body == b"1"
        assert (await engine.log.entry(1)).kind is Kind.META
        for id in (0, -1, answer.last.id + 1):
            assert await engine.log.entry(id) is None


async def test_a_time_leads_to_an_id(open_engine, clock):
    async with open_engine() as engine:
        times = [clock.now_ms()]
        ids = [0]
        for number in range(5):
            answer = await engine.log.append(Batch((Draft("/s", b"%d" % number),)))
            clock.advance(1)
            times.append(clock.now_ms())
            ids.append(answer.last.id)

        assert [await engine.log.id_before(ms) for ms in times] == ids
        assert await engine.log.id_before(times[-1] + 10**6) == ids[-1]
        # When some of them were trimmed nobody knows how old those were: the answer is never below the trim point
        await engine.log.trim(ids[3])
        assert [await engine.log.id_before(ms) for ms in times] == [ids[3]] * 4 + ids[4:]
        await engine.log.trim(ids[-1])
        assert {await engine.log.id_before(ms) for ms in times} == {engine.log.trimmed_upto}


# ── heads ──────────────────────────────────────────────────────────────────────────────────────


async def test_heads_are_listed_by_name_and_in_pages(open_engine):
    names = ["/a", "/a/b", "/a/\u00e9", "/a/\U0001f600", "/z"]
    async with open_engine() as engine:
        for name in reversed(names):
            await fill(engine.log, name, 1)

        heads = await engine.log.heads("/a/*")
        listed, after = [], ""
        while page := await engine.log.heads(">", after=after, limit=2):
            assert len(page) <= 2
            listed += [head.stream for head in page]
            after = listed[-1]

        assert [head.stream for head in heads] == ["/a/b", "/a/\u00e9", "/a/\U0001f600"]
        assert heads == [await engine.log.head(head.stream) for head in heads]
        assert listed == ["/", *names]


async def test_a_head_says_when_the_stream_was_last_written(open_engine, clock):
    async with open_engine() as engine:
        await fill(engine.log, "/a/b", 1)
        before = clock.now_ms()
        clock.advance(5)
        await fill(engine.log, "/a/b", 1)

        assert (await engine.log.head("/a/b")).last_ms == before + 5000
        assert (await engine.log.head("/a")).last_ms == before
