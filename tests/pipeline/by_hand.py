"""The pipeline without Spark: with few rows the archive is a single slice, which the driver copies itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from penstock.iceberg.files import read_batches
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import Faults, Intent, Turn
from penstock.pipeline.jobs import Workplace, archive
from penstock.pipeline.lake import Lake, open_lake
from penstock.pipeline.lake_identity import bind
from penstock.testing import RunningServer
from tests.api.client import publish

NO_SPARK = cast("Any", None)


class Here(Workplace):
    """A workplace without Spark: what would run in tasks runs here."""

    def in_tasks(self, function: Any, items: Any) -> list[Any]:
        return [function(one) for one in items]


def make_here(client: PipelineClient, lake: Lake, faults: Faults | None = None) -> Here:
    return Here(NO_SPARK, client, lake, faults or Faults())


def archive_turn(client: PipelineClient, lake: Lake) -> int:
    """Archive what there is; returns how far. `ledger` is said to be as far: nobody looks for its rows here."""
    archive.run(make_here(client, lake), {})
    turn = Turn(client, lake, "ledger")
    newest = client.newest()
    if turn.intent is None and newest > turn.done:
        turn.intend(Intent(turn.done, newest, ()))
    if turn.intent is not None:
        turn.publish()
    else:
        turn.end()
    return turn.done


def exported(client: PipelineClient, after: int, upto: int) -> pa.Table:
    with client.open("/v1/log/arrow", {"after": after, "upto": upto}) as answer:
        return pa.ipc.open_stream(answer).read_all()


def archived(client: PipelineClient, lake: Lake) -> list[tuple[Any, ...]]:
    """Ids and bodies of the lake, in order."""
    files = make_here(client, lake).files("events")
    rows = [batch for one in files for batch in read_batches(lake.store, one.location, ("id", "body"))]
    return [(row["id"], row["body"]) for batch in rows for row in batch.to_pylist()]


def logged(client: PipelineClient) -> list[tuple[Any, ...]]:
    """Ids and bodies of the log, in order."""
    return [(row["id"], row["body"]) for row in exported(client, 0, client.newest()).to_pylist()]


class Crash(BaseException):
    """As if the process had ended."""


class CrashAt(Faults):
    def __init__(self, point: str) -> None:
        self._point, self.reached = point, False

    def at(self, point: str) -> None:
        if point == self._point and not self.reached:
            self.reached = True
            raise Crash(point)


def equals_the_log(client: PipelineClient, lake: Lake) -> bool:
    """With a look that has nothing in memory, as another process would have it."""
    fresh = open_lake(lake.place)
    return archived(client, fresh) == logged(client)


def unnamed(client: PipelineClient, lake: Lake) -> set[str]:
    """Files that nothing names."""
    fresh = open_lake(lake.place)
    named = fresh.table("events", client.get("lake/events").value).named()
    return {fresh.store.location(one.path) for one in fresh.store.list("events")} - named


def with_three_files(server: RunningServer, lake: Lake) -> PipelineClient:
    """Archive entries of *server* in three turns, each a file of `events`."""
    client = PipelineClient(server.url, server.admin_token)
    bind(client, lake)
    for turn in range(3):
        for number in range(4):
            publish(server, "/orders", b"%d of %d" % (number, turn))
        archive_turn(client, lake)
    return client


def path_of(client: PipelineClient, lake: Lake, number: int) -> Path:
    """A data file of `events`, by its number, as the server's record names it."""
    return Path(make_here(client, open_lake(lake.place)).files("events")[number].location.removeprefix("file://"))


def run_pipeline(client: PipelineClient, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `penstock pipeline` as a user does."""
    known = {**os.environ, "PENSTOCK_TOKEN": client.token}
    line = [sys.executable, "-m", "penstock", "pipeline", *arguments, "--url", client.url]
    return subprocess.run(line, env=known, text=True, capture_output=True, timeout=120, check=False)
