"""Where two days alternate around midnight: no compaction mixes their files up, and what one did is put right."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.ledger import Ledger, Recipient
from penstock.engines.sqlite.engine import open_sqlite
from penstock.iceberg.files import PlannedFile
from penstock.pipeline.audit_verdicts import check_files
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import TableChange
from penstock.pipeline.jobs import archive, compact, ledger, repair, rollup
from penstock.pipeline.lake import Lake, LakeHole, open_lake
from penstock.pipeline.lake_identity import bind
from penstock.pipeline.untangling import are_tangled
from penstock.pipeline.writing import CopyRows
from penstock.testing import RunningServer, start_server
from penstock.values import Batch, Draft
from tests.api.client import ask
from tests.api.lake_rig import export, trim
from tests.pipeline.by_hand import equals_the_log, make_here, stored

MIDNIGHT_MS = int(datetime(2026, 11, 16, tzinfo=UTC).timestamp() * 1000)
BOB = Recipient("sps", "bob")
TABLES = ("ledger", "deliveries", "unreadable", "rollup_hourly", "activity")
DAYS = {"two and two": "ABAB", "one within another": "ABA", "many": "ABABABA"}


def write_log(data: Path, days: str) -> None:
    """Make the data directory of a server whose clock went to and fro over midnight: B is the later day."""

    async def write() -> None:
        clock = ManualClock(MIDNIGHT_MS - 10_000)
        async with open_sqlite(data, node="n1", clock=clock) as engine:
            told = Ledger(engine.log, clock, node="n1")
            await told.open(engine.registry)
            for number, day in enumerate(days):
                clock.jump((MIDNIGHT_MS + (1_000 if day == "B" else -5_000) + number - clock.now_ms()) / 1000)
                for body in (b"one", b"two", b"three"):
                    id = (await engine.log.append(Batch((Draft("/orders", body), Draft(f"/{day}", body))))).last.id
                    told.sent(BOB, "/orders", id, id)
                await told.flush()
                await engine.log.append(Batch((Draft("/_ledger", b"\xff\xfenonsense"),)))
            await told.close()

    data.mkdir(mode=0o700, parents=True)
    asyncio.run(write())


def of_one_day(files: Sequence[PlannedFile], target: int) -> Iterator[list[PlannedFile]]:
    """What compaction once did, and the sabotage: a day's files are put together whatever ids lie between them."""
    yield list(files)


def mix_up(here: Midnight, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lake be as an earlier version has made it."""
    with monkeypatch.context() as sabotaged:
        sabotaged.setattr(compact, "_neighbours", of_one_day)
        here.run(compact)
    assert are_tangled(make_here(here.client, here.lake).listed("events")), "the sabotage mixes files up"


class Midnight:
    """A server with such a log, and its lake: a file for each time that the day changes."""

    def __init__(self, server: RunningServer, lake: Lake) -> None:
        self.server, self.lake = server, lake
        self.client = PipelineClient(server.url, server.admin_token)
        bind(self.client, lake)
        self.run(archive, ledger, rollup)
        self.shown = self.read()
        self.made = {table: self.rows(table) for table in TABLES}

    def run(self, *jobs: Any) -> None:
        for job in jobs:
            job.run(make_here(self.client, self.lake), {"all": ""} if job is compact else {})

    def repair(self, **options: str) -> Any:
        fresh = open_lake(self.lake.place)
        fresh.epoch = self.lake.epoch
        return repair.run(make_here(self.client, fresh), options)

    def files(self) -> list[PlannedFile]:
        return make_here(self.client, open_lake(self.lake.place)).files("events")

    def ranges(self) -> list[tuple[int, int]]:
        return [(one.file.lo, one.file.hi) for one in self.files()]

    def read(self) -> dict[str, Any]:
        """What readers get of all there is: by id, by index, and as an export."""
        upto = self.client.newest()
        by_id = ask(self.server, "GET", "/v1/read", streams="/orders,/A,/B", after=0, limit=1000).json
        by_index = ask(self.server, "GET", "/v1/read", stream="/orders", **{"from": 1}).json
        rows = export(self.server, 0, upto, history="true", streams="/orders,/A,/B").to_pylist()
        plan = ask(self.server, "GET", "/v1/log/plan", after=0, upto=upto, history="true").json
        return {"id": by_id, "index": by_index, "rows": rows, "days": [one["day"] for one in plan["slices"]]}

    def rows(self, table: str) -> list[Any]:
        return sorted(stored(self.client, self.lake, table), key=str)

    def trim(self) -> int:
        """Have the log keep nothing that is in the lake; returns how far it went."""
        answer = trim(self.server, upto=self.files()[-1].file.hi, apply=True)
        return int(ask(self.server, "GET", "/v1/pipeline").json["trimmed"]) if answer.status in (200, 409) else -1


@contextmanager
def midnight(folder: Path, days: str) -> Iterator[Midnight]:
    write_log(folder / "data", days)
    (folder / "lake").mkdir()
    with start_server(folder / "data", lake_url=folder / "lake") as server:
        yield Midnight(server, open_lake(folder / "lake"))


@pytest.mark.parametrize("days", DAYS.values(), ids=list(DAYS))
def test_no_compaction_mixes_up_the_files_of_two_days(tmp_path: Path, days: str) -> None:
    with midnight(tmp_path, days) as here:
        before = here.ranges()
        assert [one.file.day[-2:] for one in here.files()][: len(days)] == [{"A": "15", "B": "16"}[day] for day in days]

        here.run(compact)

        assert here.ranges() == before
        assert not list(check_files((one.file for one in here.files()), before[-1][1]))
        assert here.trim() == before[-1][1]
        assert here.read() == here.shown


@pytest.mark.parametrize("days", DAYS.values(), ids=list(DAYS))
def test_what_was_mixed_up_is_not_trimmed_nor_half_shown_and_the_next_compaction_puts_it_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: str
) -> None:
    with midnight(tmp_path, days) as here:
        mix_up(here, monkeypatch)
        assert equals_the_log(here.client, here.lake) is False, "in order of their names, rows are in no order"
        assert here.trim() == 0

        here.run(compact)

        assert not list(check_files((one.file for one in here.files()), here.files()[-1].file.hi))
        assert equals_the_log(here.client, here.lake)
        assert here.trim() == here.files()[-1].file.hi
        assert here.read() == here.shown
        here.run(compact)
        assert here.read() == here.shown


@pytest.mark.parametrize("days", DAYS.values(), ids=list(DAYS))
def test_all_tables_are_made_again_from_files_that_are_mixed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: str
) -> None:
    with midnight(tmp_path, days) as here:
        mix_up(here, monkeypatch)

        for table in ("ledger", "rollup_hourly"):
            here.repair(table=table)

        assert {table: here.rows(table) for table in here.made} == here.made


def test_what_was_trimmed_before_is_refused_until_it_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with midnight(tmp_path, "ABA") as here:
        here.trim()
        mix_up(here, monkeypatch)

        refused = ask(here.server, "GET", "/v1/read", streams="/orders", after=0, limit=1000)
        assert (refused.status, refused.code) == (503, "lake_unreadable")

        here.run(compact)
        assert here.read() == here.shown


@pytest.mark.parametrize("number", [0, 1], ids=["the one around", "the one within"])
def test_a_file_that_is_gone_while_files_are_mixed_up_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with midnight(tmp_path, "ABA") as here:
        mix_up(here, monkeypatch)
        gone = here.files()[number]
        Path(gone.location.removeprefix("file://")).unlink()
        with pytest.raises(LakeHole):
            here.run(compact)

        assert here.repair().exit_code == 0

        assert equals_the_log(here.client, here.lake)
        here.run(compact)
        assert here.trim() == here.files()[-1].file.hi
        assert here.read() == here.shown


def test_ids_within_what_is_mixed_up_are_made_again_unless_a_file_there_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with midnight(tmp_path, "ABAB") as here:
        mix_up(here, monkeypatch)
        first, second = here.files()[:2]
        wanted = {"from": str(second.file.lo + 2), "to": str(second.file.lo + 3), "table": "events"}
        place = Path(second.location.removeprefix("file://"))
        place.rename(place.with_suffix(".kept"))
        with pytest.raises(LakeHole):
            here.repair(**wanted)
        place.with_suffix(".kept").rename(place)

        assert here.repair(**wanted).exit_code == 0

        assert equals_the_log(here.client, here.lake)
        assert first.file.overlaps(second.file.lo, second.file.hi)


def test_a_table_whose_metadata_is_lost_is_made_of_all_files_that_are_mixed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One within another has rows of its own: not as with two of one day."""
    with midnight(tmp_path, "ABA") as here:
        here.trim()
        mix_up(here, monkeypatch)
        shutil.rmtree(tmp_path / "lake/events/metadata")

        assert here.repair().exit_code == 0

        here.run(compact)
        assert here.read() == here.shown


def copy(here: Midnight, file: PlannedFile) -> None:
    """Have the rows of a file twice."""
    turn = make_here(here.client, here.lake).turn("events")
    again = CopyRows(here.lake.store, file.location, file.file.lo, file.file.hi, file.file, file.rows).run()
    turn.replace([TableChange("events", [again])])
    turn.end()


def test_two_files_of_one_day_with_the_same_ids_are_left_as_they_are(tmp_path: Path) -> None:
    """They have the same rows: readers take one of them, and the audit names them."""
    with midnight(tmp_path, "ABA") as here:
        copy(here, here.files()[0])
        before = here.ranges()

        here.run(compact)

        assert here.ranges() == before
        found = list(check_files((one.file for one in here.files()), before[-1][1]))
        assert [one.verdict for one in found] == ["double"]
        assert here.trim() == before[-1][1]
        assert here.read() == here.shown


@pytest.mark.parametrize("number", [0, 1])
def test_where_they_are_mixed_up_with_another_day_their_rows_are_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with midnight(tmp_path, "ABA") as here:
        mix_up(here, monkeypatch)
        copy(here, here.files()[number])

        here.run(compact)

        assert equals_the_log(here.client, here.lake)
        assert not list(check_files((one.file for one in here.files()), here.files()[-1].file.hi))
