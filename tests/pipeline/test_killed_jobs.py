"""`repair` and `migrate` are ended by SIGKILL at chosen points, and run again. No JVM is needed.

`tests/spark/test_migrate.py` and `tests/spark/test_repair.py` do so where Spark makes the rows.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import AFTER_COMMIT, Faults, TableChange, Turn
from penstock.pipeline.jobs import compact, repair
from penstock.pipeline.lake import Lake, open_lake
from penstock.pipeline.old_lake import AdoptFile, migrate
from penstock.testing import RunningServer, start_server
from tests.pipeline.by_hand import (
    Crash,
    CrashAt,
    left_over,
    logged,
    make_here,
    orders_in,
    orders_logged,
    with_orders,
    with_three_files,
)
from tests.pipeline.earlier import hashes, unpack
from tests.pipeline.test_old_lake import equals_the_old, old_digest, stored
from tests.pipeline.test_repair import SPOILED, fix, middle, seen, spoil

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


def end_here() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillAtPoint(Faults):
    """Ends the process at the *number*-th point that is come to, whichever it is."""

    def __init__(self, number: int, end: Callable[[], None] = end_here) -> None:
        self._left, self._end = number, end

    def at(self, point: str) -> None:
        self._left -= 1
        if self._left == 0:
            self._end()


def run_killed(job: Callable[..., None], *arguments: object) -> None:
    """Run *job* in a process of its own, which is killed on the way."""
    process = _PROCESSES.Process(target=job, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


# ── repair ─────────────────────────────────────────────────────────────────────────────────────


def repair_killed(
    url: str, token: str, place: str, epoch: str, options: dict[str, str], number: int, in_two: bool = False
) -> None:
    """A repair that ends at a point; sabotaged, with *in_two* commits."""
    if in_two:
        Turn.replace = replace_in_two_commits(Turn.replace)  # type: ignore[method-assign]
    lake = open_lake(place)
    lake.epoch = epoch
    repair.run(make_here(PipelineClient(url, token), lake, KillAtPoint(number)), options)


def replace_in_two_commits(replace: Any) -> Any:
    def replaced(turn: Turn, changes: Sequence[TableChange], memory: Mapping[str, Any] | None = None) -> None:
        replace(turn, [TableChange(one.table, [], one.removed) for one in changes], memory)
        replace(turn, [TableChange(one.table, one.added) for one in changes], memory)

    return replaced


@pytest.fixture
def repaired(server: RunningServer, tmp_path: Path) -> tuple[PipelineClient, Lake]:
    lake = open_lake(tmp_path / "lake")
    return with_three_files(server, lake), lake


def killed_in_a_range(client: PipelineClient, lake: Lake, number: int, *, in_two: bool = False) -> bool:
    """Kill the repair of a range whose rows are wrong; whether readers see all of it then, or nothing of it."""
    first, last = middle(client, lake)
    spoil(client, lake)
    before, options = seen(client, lake), {"table": "events", "from": str(first), "to": str(last)}
    after = {id: body if first <= id <= last else SPOILED for id, body in logged(client) if id in before}
    run_killed(repair_killed, client.url, client.token, lake.place, lake.epoch, options, number, in_two)
    whole = seen(client, lake) in (before, after)
    fix(client, lake, **options)
    assert seen(client, lake) == after
    return whole


def test_a_repair_that_is_killed_and_run_again_loses_and_doubles_nothing(repaired: tuple[PipelineClient, Lake]) -> None:
    client, lake = repaired
    # Before its commit, after it, and before the record is given back
    assert all(killed_in_a_range(client, lake, number) for number in (2, 3, 5))
    # And the same check finds a repair in two commits
    assert not killed_in_a_range(client, lake, 3, in_two=True)

    # A typed table: when `unreadable` is told anew, and before its own commit
    key = with_orders(client, lake)
    assert fix(client, lake, table="events", **{"from": "1"}).exit_code == 0
    for number in (3, 10):
        shutil.rmtree(Path(lake.place, key, "metadata"))
        run_killed(repair_killed, client.url, client.token, lake.place, lake.epoch, {}, number)
        fix(client, lake)
        assert orders_in(client, lake, key) == orders_logged(client), number
    assert left_over(client, lake.place)
    compact.run(make_here(client, open_lake(lake.place)), {})
    assert left_over(client, lake.place) == set()


# ── migrate ────────────────────────────────────────────────────────────────────────────────────

IN_A_COPY, BEFORE_ITS_COMMIT = 0, 2


def migrate_killed(url: str, token: str, old: Path, new: Path, number: int) -> None:
    """A takeover to another file system that ends at a point, or in the middle of the first copy."""

    def link_nothing(*_: object) -> None:
        raise OSError("another file system")

    def copy_half(source: Any, target: Any, _: int) -> None:
        whole = source.read()
        target.write(whole[: len(whole) // 2])
        end_here()

    os.link = link_nothing
    if number == IN_A_COPY:
        shutil.copyfileobj = copy_half  # type: ignore[assignment]
    migrate(make_here(PipelineClient(url, token), open_lake(new), KillAtPoint(number)), old)


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[tuple[PipelineClient, Path, Path]]:
    """A client of a server with a lake of the earlier version, that lake, and where the new one is to be."""
    old = unpack(tmp_path)
    with start_server(tmp_path / "data") as server:
        yield PipelineClient(server.url, server.admin_token), old, tmp_path / "new"


def is_taken_over(client: PipelineClient, old: Path, new: Path, *kills: int) -> bool:
    """Take over `events` after some kills. The other tables need Spark."""
    for number in kills:
        run_killed(migrate_killed, client.url, client.token, old, new, number)
    try:
        with pytest.raises(Crash):
            migrate(make_here(client, open_lake(new), CrashAt(AFTER_COMMIT)), old)
    except (OSError, ValueError):  # of half a file
        return False
    return equals_the_old(client, old, new)


def test_a_takeover_that_is_killed_and_run_again_loses_and_doubles_nothing(
    earlier: tuple[PipelineClient, Path, Path],
) -> None:
    client, old, new = earlier
    before = hashes(old)

    assert is_taken_over(client, old, new, IN_A_COPY, BEFORE_ITS_COMMIT)

    assert hashes(old) == before
    assert left_over(client, str(new)), "metadata of the run that was killed before its commit"
    lake = open_lake(new)
    turn = Turn(client, lake, "events")
    turn.sweep()
    turn.end()
    assert left_over(client, str(new)) == set()


def test_sabotage_a_takeover_that_takes_what_is_there_for_whole_ends_with_half_a_file(
    earlier: tuple[PipelineClient, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdoptFile, "_stored_digest", lambda task, path: stored(task, path) and old_digest(task))

    assert not is_taken_over(*earlier, IN_A_COPY)
