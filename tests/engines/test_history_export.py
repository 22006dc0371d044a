"""The export of a log whose older part is in the lake equals that of a log that was never trimmed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.export import ExportRange, LogExport, PlanQuestion, Selection, make_plan
from penstock.engines.lake import HistoryExport
from penstock.engines.lake import export_rows as exporting
from penstock.engines.lake.export_rows import FoundRows
from penstock.errors import Trimmed
from penstock.values import Draft
from penstock.wire.table_columns import NAMES
from tests.api.export_site import collect, read_export
from tests.engines.test_lake import DAY, Pair, perform, steps

SELECTIONS = (Selection(), Selection(("/a",)), Selection(("/b/>",)), Selection(("/nobody",)))


class LeavesOut(HistoryExport):
    """Sabotage: the lake is read up to the id before the seam."""

    async def _read_cold(self, rest: ExportRange, seam: int) -> FoundRows:
        found = await super()._read_cold(rest, max(rest.after, seam - 1))
        return found._replace(upto=seam) if found.upto >= seam - 1 else found


class Doubles(HistoryExport):
    """Sabotage: at the seam the lake is read once more."""

    doubled = False

    async def _read_cold(self, rest: ExportRange, seam: int) -> FoundRows:
        found = await super()._read_cold(rest, seam)
        if self.doubled or found.upto < seam:
            return found
        self.doubled = True
        return found._replace(upto=seam - 1)


def history(pair: Pair, make: type[HistoryExport] = HistoryExport) -> HistoryExport:
    return make(pair.hot, LogExport(pair.hot), pair.lake, pair.clock)


async def check_like_whole(pair: Pair, export: HistoryExport, columns: tuple[str, ...] = NAMES) -> None:
    """Rows and plans of (after, upto] are those of the log that keeps everything, wherever the range begins."""
    whole, upto = LogExport(pair.whole), pair.whole.followed
    middle = pair.hot.trimmed_upto
    for after in {0, max(0, middle - 1), middle, upto}:
        for selection in SELECTIONS:
            wanted = ExportRange(after, upto, columns, selection)
            found, expected = read_export(await collect(export, wanted)), read_export(await collect(whole, wanted))
            assert found == expected
        plan = await make_plan(export, PlanQuestion(after, upto, parts=3))
        expected_plan = await make_plan(whole, PlanQuestion(after, upto, parts=3))
        assert [(one.lo, one.hi, one.day, one.rows) for one in plan.slices] == [
            (one.lo, one.hi, one.day, one.rows) for one in expected_plan.slices
        ]
        assert plan.upto == expected_plan.upto


async def play(place: str | Path, script: list[tuple[str, object]]) -> None:
    pair = Pair(place)
    async with pair.lake:
        for step in script:
            await perform(pair, step)
        await check_like_whole(pair, history(pair))


@settings(max_examples=30)
@given(st.lists(steps, max_size=25))
def test_an_export_over_the_seam_equals_one_of_a_log_that_keeps_everything(script: list[tuple[str, object]]) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(play(folder, script))


@asynccontextmanager
async def half_trimmed(place: str | Path) -> AsyncIterator[Pair]:
    """Forty entries of two days: thirty of them in the lake, twenty of these trimmed."""
    pair = Pair(place)
    async with pair.lake:
        for number in range(40):
            ends = pair.clock.now_ms() + 10_000 if number % 7 == 0 else None
            await pair.append(Draft("/a" if number % 3 else "/b/c", b"%d" % number, "t", '{"n":"1"}', ends))
            if number == 25:
                pair.clock.advance(DAY)
        await pair.archive(30)
        await pair.trim(20)
        yield pair


@pytest.mark.parametrize("columns", [NAMES, ("id",), ("body", "kind")])
async def test_the_seam_cannot_be_seen_in_any_columns(tmp_path: Path, columns: tuple[str, ...]) -> None:
    async with half_trimmed(tmp_path) as pair:
        await check_like_whole(pair, history(pair), columns)


@pytest.mark.parametrize("make", [LeavesOut, Doubles])
async def test_the_same_check_finds_a_seam_that_is_one_id_off(tmp_path: Path, make: type[HistoryExport]) -> None:
    async with half_trimmed(tmp_path) as pair:
        with pytest.raises(AssertionError):
            await check_like_whole(pair, history(pair, make))


async def test_an_export_goes_on_while_the_log_is_trimmed_under_it(tmp_path: Path) -> None:
    async with half_trimmed(tmp_path) as pair:
        wanted, pieces = ExportRange(0, pair.whole.followed), []
        async for piece in history(pair).stream(wanted):
            pieces.append(piece)
            if len(pieces) == 2:  # rows of the lake have come, none of the log: it is trimmed up to the lake's end
                await pair.trim(10)

        expected = await collect(LogExport(pair.whole), wanted)
        assert read_export(b"".join(pieces)) == read_export(expected)


async def test_an_export_that_has_begun_with_the_log_breaks_off_with_all_rows_up_to_there(tmp_path: Path) -> None:
    async with half_trimmed(tmp_path) as pair:
        stream = history(pair).stream(ExportRange(pair.hot.trimmed_upto, pair.whole.followed))
        assert await anext(stream)  # the schema
        await pair.trim(10)
        with pytest.raises(Trimmed):  # and no row, as others may be missing before it
            await anext(stream)


async def test_a_plan_ends_before_what_neither_has_and_the_next_one_names_it(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    async with pair.lake:
        export = history(pair)
        for number in range(16):
            await pair.append(Draft("/a", b"%d" % number))
        for _ in range(3):
            await pair.archive(4)
        await pair.trim(12)
        pair.written.prepare("events", [], [pair.files[1]])  # a file is lost
        await pair.written.publish(pair.registry, "events")

        plan = await make_plan(export, PlanQuestion(0, 16))
        assert (plan.upto, [(one.lo, one.hi) for one in plan.slices]) == (4, [(0, 4)])
        for ask in (make_plan(export, PlanQuestion(4, 16)), collect(export, ExportRange(4, 16))):
            with pytest.raises(Trimmed) as error:
                await ask
            assert (error.value.after, error.value.trimmed_upto) == (4, 8)
        assert (await make_plan(export, PlanQuestion(8, 16))).upto == 16
        # And where the lake itself begins late, that is the beginning of all there is
        pair.written.prepare("events", [], [pair.files[0]])
        await pair.written.publish(pair.registry, "events")
        assert await export.begins_after() == 8


async def test_streams_that_are_not_wanted_are_passed_over_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "SCAN_GROUPS", 1)
    async with half_trimmed(tmp_path) as pair:
        await check_like_whole(pair, history(pair))
