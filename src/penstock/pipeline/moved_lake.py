"""Adopts a moved lake. Its tables name their files by whole addresses, at the place where they were.

Of each record, also those of typed tables, the metadata of its tables is written again with the addresses of today,
beside what is there; then one compare-and-set points at it. Cut off anywhere, it is run again: tables that are named
rightly are left as they are, and what an earlier run has written and nothing names is swept by a later compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.iceberg.store import store_url
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import Faults, Turn, record_names
from penstock.pipeline.jobs import JobOutcome
from penstock.pipeline.lake import Lake, LakeHole
from penstock.pipeline.lake_identity import LakeMismatch, bind, claim, is_here, settle
from penstock.wire.lake_files import TYPED, shown_name

if TYPE_CHECKING:  # Spark's workers have this module, and no pyiceberg
    from penstock.iceberg.tables import Prepared

Say = Callable[[str], None]


def adopt(
    client: PipelineClient, lake: Lake, before: str, say: Say, *, dry_run: bool = False, faults: Faults | None = None
) -> JobOutcome:
    """Let the server's tables go on in *lake*, which has all the files that were at *before*."""
    claim(client, lake)
    former, files = store_url(before), 0
    tables: list[str] = []
    declared = {table.key for table in client.typed_tables()}
    for name in record_names(client):
        wanted = _moved_tables(lake, former, client.get(f"lake/{name}").value.get("tables", {}))
        if wanted and name.startswith(TYPED) and name not in declared:
            _forget_tables(client, name, dry_run=dry_run)
            continue
        for table, location in wanted.items():
            found = _check_files(lake, former, table, location)
            files += found
            say(f"{shown_name(table)}: {found:,} files are all there")
        if wanted and not dry_run:
            _point_here(client, lake, name, former, faults)
            say(f"{', '.join(map(shown_name, wanted))}: named at {lake.place}")
        tables += map(shown_name, wanted)
    if not dry_run:
        settle(client, lake)
        bind(client, lake)
    done = "would be named" if dry_run else "are named"
    words = f"repair: {files:,} files of {', '.join(tables) or 'no table'} {done} at {lake.place} instead of {before}"
    return JobOutcome(words, {"tables": tables, "files": files, "dry_run": dry_run})


def _forget_tables(client: PipelineClient, name: str, *, dry_run: bool) -> None:
    """Let a typed table that was deleted have no files: some may be gone, and the next `typed` removes what is left."""
    kept = client.get(f"lake/{name}")
    if not dry_run:
        client.put(f"lake/{name}", {**kept.value, "tables": {}}, expect=kept.version)


def _moved_tables(lake: Lake, former: str, pointers: Mapping[str, str]) -> dict[str, str]:
    """Those of the tables that are named elsewhere; `LakeMismatch` if that is not where they are said to have been."""
    away = {table: one for table, one in pointers.items() if not is_here(lake, table, one)}
    for table, location in away.items():
        if not location.startswith(f"{former}/{table}/metadata/"):
            place = location.partition(f"/{table}/metadata/")[0]
            raise LakeMismatch(
                "lake", f"{table} is named at {place}, not at {former}", remedy=f"Give --moved-from {place}."
            )
    return away


def _check_files(lake: Lake, former: str, table: str, location: str) -> int:
    """How many data files a table has. `LakeHole` unless all of them are here, whole."""
    from penstock.iceberg.relocating import open_moved

    try:
        named = open_moved(lake.store, former, location).files()
    except FileNotFoundError as error:
        raise LakeHole(f"a part of the metadata of {table} did not come along: {error}") from None
    there = {one.path: one.size for one in lake.store.list(f"{table}/data")}
    absent = [one for one in named if there.get(one.location.removeprefix(f"{former}/")) != one.size]
    if absent:
        first = absent[0].location
        raise LakeHole(f"{len(absent):,} of {len(named):,} files of {table} did not come along, or not whole: {first}")
    return len(named)


def _point_here(client: PipelineClient, lake: Lake, name: str, former: str, faults: Faults | None) -> None:
    from penstock.iceberg.relocating import relocate

    turn = Turn(client, lake, name, faults)
    wanted = _moved_tables(lake, former, turn.tables)
    prepared: dict[str, Prepared] = {table: relocate(lake.store, former, one) for table, one in wanted.items()}
    turn.point_at(prepared)
    turn.end()
