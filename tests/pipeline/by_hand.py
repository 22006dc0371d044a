"""The pipeline without Spark: with few rows the archive is a single slice, which the driver copies itself."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from penstock.iceberg.files import read_batches
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import Faults, Intent, Turn
from penstock.pipeline.jobs import Workplace, archive
from penstock.pipeline.tables import Lake

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
