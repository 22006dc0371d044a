"""The archive's turn without Spark: what the export says is staged by hand, and published by the commit protocol."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import Intent, Slice, Staged, Turn
from penstock.pipeline.tables import Lake
from penstock.wire.lake import LakeFile


def archive_turn(client: PipelineClient, lake: Lake) -> int:
    """Archive what there is; returns how far. `ledger` is said to be as far: nobody looks for its rows here."""
    for name in ("events", "ledger"):
        turn = Turn(client, lake, name)
        if turn.intent is None:
            plan = client.plan(turn.done, parts=1)
            slices = tuple(Slice(one["lo"], one["hi"], one["day"], one["rows"]) for one in plan["slices"])
            turn.intend(Intent(turn.done, plan["upto"], slices))
        staged = [_staged(client, turn, one) for one in turn.intent.slices] if turn.intent else []
        turn.publish(staged if name == "events" else [])
    return turn.done


def _staged(client: PipelineClient, turn: Turn, one: Slice) -> Staged:
    turn.staging.mkdir(parents=True, exist_ok=True)
    path = turn.staging / f"{one.lo}.parquet"
    parquet.write_table(exported(client, one.lo, one.hi), path)
    return Staged(path, LakeFile(one.lo, one.hi, one.day, "events"))


def exported(client: PipelineClient, after: int, upto: int) -> pa.Table:
    with client.open("/v1/log/arrow", {"after": after, "upto": upto}) as answer:
        return pa.ipc.open_stream(answer).read_all()


def archived(lake: Lake) -> list[tuple[Any, ...]]:
    """Ids and bodies of the lake, in order."""
    tables = [parquet.ParquetFile(lake.path(file)).read(columns=["id", "body"]) for file in lake.files("events")]
    return [(row["id"], row["body"]) for table in tables for row in table.to_pylist()]


def logged(client: PipelineClient) -> list[tuple[Any, ...]]:
    """Ids and bodies of the log, in order."""
    return [(row["id"], row["body"]) for row in exported(client, 0, client.newest()).to_pylist()]
