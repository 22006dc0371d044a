"""The writer thread: limits, failures, and one job's mistake beside the others."""

from __future__ import annotations

import asyncio
import errno

import pytest

from penstock import settings_reading
from penstock.engines.sqlite import entry_rows, open_sqlite
from penstock.engines.sqlite.engine import SqliteOptions
from penstock.engines.sqlite.writer import Limits
from penstock.errors import Busy, DiskFull, EngineGone, VersionMismatch
from penstock.values import Batch, Draft, Key


def one(body: bytes = b"x", stream: str = "/s", **more) -> Batch:
    return Batch((Draft(stream, body),), **more)


class Failing:
    """Raises at a named point, as often as asked."""

    def __init__(self, point: str, error: Exception, times: int = 1) -> None:
        self._point, self._error, self._left = point, error, times

    def at(self, point: str) -> None:
        if point == self._point and self._left:
            self._left -= 1
            raise self._error


@pytest.mark.parametrize("limits", [Limits(queue_jobs=1), Limits(queue_bytes=100)])
async def test_who_is_refused_is_told_a_setting_that_there_is(tmp_path, limits):
    async with open_sqlite(tmp_path, node="n", options=SqliteOptions(limits=limits)) as engine:
        _, refused = await asyncio.gather(
            *(engine.log.append(one(b"x" * 90)) for _ in range(2)), return_exceptions=True
        )

    assert refused.limit in settings_reading.KNOWN
    assert refused.limit in refused.remedy


async def outcomes(futures) -> list[type]:
    return [type(answer) for answer in await asyncio.gather(*futures, return_exceptions=True)]


async def test_more_jobs_than_the_queue_holds_are_refused(tmp_path):
    async with open_sqlite(tmp_path, node="n", options=SqliteOptions(limits=Limits(queue_jobs=5))) as engine:
        found = await outcomes([engine.log.append(one()) for _ in range(8)])

        assert found[5:] == [Busy] * 3
        assert Busy not in found[:5]
        assert (await engine.log.append(one())).last.index == 5


async def test_more_bytes_than_the_queue_holds_are_refused_but_one_batch_always_fits(tmp_path):
    async with open_sqlite(tmp_path, node="n", options=SqliteOptions(limits=Limits(queue_bytes=1000))) as engine:
        found = await outcomes([engine.log.append(one(b"x" * size)) for size in (5000, 10, 10)])

        assert found[1:] == [Busy, Busy]
        assert (await engine.log.append(one(b"x" * 900))).last.index == 1


async def test_publishes_wait_for_each_other_where_that_is_asked_for(tmp_path):
    async with open_sqlite(tmp_path, node="n", options=SqliteOptions(limits=Limits(gather_ms=20))) as engine:
        await engine.log.append(one())
        groups: list[int] = []
        engine.log.follow(lambda entries: groups.append(len(entries)))
        first = engine.log.append(one())
        await asyncio.sleep(0)  # the turn of the loop would have been the end of the group
        # When somebody asks for something else than an append, nothing waits any longer
        second, record = engine.log.append(one()), engine.registry.put("a", b"")
        await asyncio.gather(first, second, record)

        assert groups == [2]
        assert [future.result().last.index for future in (first, second)] == [1, 2]


async def test_as_many_as_a_group_holds_wait_for_nobody_however_they_came(tmp_path):
    limits = Limits(gather_ms=60_000, group_jobs=10)
    async with open_sqlite(tmp_path, node="n", options=SqliteOptions(limits=limits)) as engine:
        writer = engine.log._writer
        for count in (9, 10):
            many = engine.log.append_many([("/s", b"x")] * 9)
            assert len(writer._gathered) == 1
            rest = [engine.log.append(one()) for _ in range(count - 8)]
            # Handed over with the tenth; what comes after it waits for others again
            assert len(writer._gathered) == count - 9
            writer._hand_over()
            await asyncio.gather(many, *rest)


async def test_groups_are_cut_at_their_limit(tmp_path):
    async with open_sqlite(tmp_path, node="n", options=SqliteOptions(limits=Limits(group_jobs=3))) as engine:
        groups: list[int] = []
        engine.log.follow(lambda entries: groups.append(len([e for e in entries if e.index is not None])))

        await asyncio.gather(*(engine.log.append(one()) for _ in range(10)))

        assert max(groups) <= 3
        assert sum(groups) == 10


@pytest.mark.parametrize(
    ("error", "expected"), [(OSError(errno.ENOSPC, "full"), DiskFull), (OSError(errno.EIO, "broken"), EngineGone)]
)
async def test_a_commit_that_fails_stores_nothing_of_its_group_and_the_next_one_goes_on(tmp_path, error, expected):
    key = Key("me", "/s", "k", b"d")
    async with open_sqlite(tmp_path, node="n") as engine:
        first = await engine.log.append(one(b"before"))
    async with open_sqlite(tmp_path, node="n", faults=Failing("before commit", error)) as engine:
        seen: list[int] = []
        engine.log.follow(lambda entries: seen.extend(entry.id for entry in entries))
        failed = await outcomes([engine.log.append(one(b"lost", "/new/stream", key=key))])
        head, missing = await engine.log.head("/s"), await engine.log.head("/new/stream")

        again = await engine.log.append(one(b"again", "/new/stream", key=key))

        assert failed == [expected]
        assert (head.next_index, missing) == (1, None)
        assert (again.repeated, again.last.index) == (False, 0)
        assert seen == list(range(first.last.id + 1, again.last.id + 1))
    async with open_sqlite(tmp_path, node="n") as engine:
        page = await engine.log.read_after([">"], 0)
        assert [entry.body for entry in page.entries] == [b"before", b"again"]


async def test_a_fold_that_fails_is_begun_anew(tmp_path):
    faults = Failing("in fold", OSError(errno.ENOSPC, "full"), times=3)
    options = SqliteOptions(limits=Limits(fold_entries=5, fold_rows=2))
    async with open_sqlite(tmp_path, node="n", faults=faults, options=options) as engine:
        found = await outcomes([engine.log.append(one()) for _ in range(4)])
        for _ in range(30):
            found += await outcomes([engine.log.append(one())])

        stored = len([answer for answer in found if answer is not DiskFull])
        page = await engine.log.read_index("/s", 0)
        assert [entry.index for entry in page.entries] == list(range(stored))
        assert stored >= 31


async def test_one_refused_job_does_not_spoil_its_group(tmp_path):
    async with open_sqlite(tmp_path, node="n") as engine:
        await engine.registry.put("k", b"1")
        found = await outcomes(
            [
                engine.log.append(one()),
                engine.registry.put("k", b"2", expect=99),
                engine.registry.put("l", b"3"),
                engine.log.append(Batch()),
                engine.log.append(one()),
            ]
        )

        assert (found[1], found[3]) == (VersionMismatch, ValueError)
        assert (await engine.log.head("/s")).next_index == 2
        assert (await engine.registry.get("l")).value == b"3"
        assert (await engine.registry.get("k")).value == b"1"


async def test_a_closed_engine_says_so(tmp_path):
    async with open_sqlite(tmp_path, node="n") as engine:
        waiting = engine.log.append(one())
    assert (await waiting).last.index == 0

    assert await outcomes(
        [engine.log.append(one()), engine.log.read_after([">"], 0), engine.registry.put("k", b"")]
    ) == [
        EngineGone,
        EngineGone,
        EngineGone,
    ]


@pytest.mark.parametrize("total", [0, 1, 127, 128, 129, 255, 256, 400, 1000, 5000])
def test_rows_are_cut_into_few_statements(total):
    cut = entry_rows.counts(total)

    assert sum(cut) == total
    assert len(cut) <= 5 + total // 512
    assert all(1 <= count <= 128 or count in (256, 512) for count in cut)
