"""`erase`: what the log has erased goes from `events`, the typed tables and the store.

`POST /v1/log/erase` writes each request into the stream `/_erased`. A turn takes the requests that were archived since
the turn before. What they ask for is older than they are, so it is in the lake by then. Each file that has any of it
is written again without it, within a task. The commit that puts the new files in place forgets all earlier snapshots:
nothing names the old files, nor the manifests with their bounds, and they are deleted at once, not after some minutes.
There is such a commit also where an earlier snapshot alone may have it: after a repair from the log, for one.

`memory.erased` in the record `lake/events` says how far the requests are done. It moves when the bytes are gone. A turn
that was cut off is redone: it finds nothing left to replace, and deletes what is still there. Typed tables follow, each
with such a memory of its own: rows that they get after that come from files of `events` without what was erased.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import InputInvalid
from penstock.iceberg.files import PlannedFile
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import TableChange, Turn, watermark
from penstock.pipeline.erased_rows import STREAM, ErasedRows, EraseFrom, FindRequests, gone
from penstock.pipeline.jobs import JobOutcome, Workplace, archive
from penstock.pipeline.lake import columns_in, covering
from penstock.pipeline.typed_rows import RemoveRows
from penstock.units import parse_whole
from penstock.wire.lake_files import TYPED

OPTIONS: Mapping[str, str] = {
    "ids": "first erase these events in the log: their ids with commas",
    "stream": "first erase all that is in this stream now",
}


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Take out of the lake all that was erased; with options, erase it in the log first."""
    if options:
        place.client.call("POST", "/v1/log/erase", body=json.dumps(_wanted(options)).encode(), timeout=600)
        archive.run(place, {})
    asked, archived = _last_request(place.client), watermark(place.client, "events")
    rows = files = typed = 0
    if erased_upto(place.client) < min(asked, archived):
        turn = place.turn("events")
        change, rows = _change(place, turn)
        turn.replace([change])
        turn.sweep()
        turn.end({**turn.memory, "erased": turn.done})
        files = len(change.added)
    for table, record in place.client.list(f"lake/{TYPED}").items():
        if record.value.get("memory", {}).get("erased", archived) < erased_upto(place.client):
            typed += _erase_typed(place, table.removeprefix("lake/"), erased_upto(place.client))
    words = f"erase: {rows:,} rows in {files:,} files, all that was asked for up to id {archived:,}"
    words += f"; {typed:,} rows of typed tables" if typed else ""
    return JobOutcome(words, {"rows": rows, "files": files, "typed": typed, "upto": archived})


def erased_upto(client: PipelineClient) -> int:
    """The id up to which all requests are done."""
    return int(client.get("lake/events").value.get("memory", {}).get("erased", 0))


def _wanted(options: Mapping[str, str]) -> dict[str, Any]:
    if len(options) > 1:
        raise InputInvalid("--ids and --stream", "exclude each other")
    if "stream" in options:
        return {"stream": options["stream"]}
    return {"ids": [parse_whole("--ids", id) for id in options["ids"].split(",")]}


# ── a turn ─────────────────────────────────────────────────────────────────────────────────────


def _change(place: Workplace, turn: Turn) -> tuple[TableChange, int]:
    """New files in the place of those that have what was erased, and how many rows lose something."""
    files = sorted(turn.table("events").files(), key=lambda one: one.file)
    what = _requested(place, int(turn.memory.get("erased", 0)), turn.done, files)
    tasks = [EraseFrom(place.lake.store, one, what.part_in(one.file)) for one in files if what.may_be_in(one)]
    done = place.in_tasks(EraseFrom.run, tasks)
    added = [written for _, written in done if written]
    removed = [task.file.location for task, (_, written) in zip(tasks, done, strict=True) if written]
    change = _forgetting(TableChange("events", added, removed), turn, what)
    return change, sum(count for count, _ in done)


def _forgetting(change: TableChange, turn: Turn, what: ErasedRows) -> TableChange:
    """The change, keeping no earlier snapshot where it takes something away, or where one may still have it."""
    kept = any(map(what.may_be_in, turn.table(change.table).former_files()))
    return replace(change, forget=bool(change.removed) or kept)


def _requested(place: Workplace, after: int, upto: int, files: list[PlannedFile]) -> ErasedRows:
    """What the requests with ids in (after, upto] ask for. Most files cannot have any, as their bounds tell."""
    after = max(after, place.begins_after())
    inside = covering("events", files, min(after, upto), upto)
    likely = [one for one in inside if _may_have(one, STREAM)]
    place.lake.check(likely)
    tasks = [FindRequests(place.lake.store, one.location, after, upto) for one in likely]
    return gone(body for found in place.in_tasks(FindRequests.run, tasks) for body in found)


def _erase_typed(place: Workplace, table: str, upto: int) -> int:
    """Remove the rows of what the requests up to *upto* ask for; returns how many."""
    turn = place.turn(table)
    columns, events = columns_in(table, {"memory": turn.memory}), place.files("events")
    what = _requested(place, int(turn.memory.get("erased", 0)), upto, events)
    files = [one for one in turn.table(table).files() if what.may_be_in(one)]
    place.lake.check(files)
    tasks = [RemoveRows(place.lake.store, one, columns, what.part_in(one.file).named) for one in files]
    change, rows = rows_removed(place, table, tasks)
    turn.replace([_forgetting(change, turn, what)])
    turn.sweep()
    turn.end({**turn.memory, "erased": upto})
    return rows


def rows_removed(place: Workplace, table: str, tasks: Sequence[RemoveRows]) -> tuple[TableChange, int]:
    """What a commit does to a table whose files lose rows, and how many they lose."""
    done = place.in_tasks(RemoveRows.run, tasks)
    removed = [task.file.location for task, (count, _) in zip(tasks, done, strict=True) if count]
    added = [written for _, written in done if written]
    return TableChange(table, added, removed), sum(count for count, _ in done)


def _may_have(file: PlannedFile, stream: str) -> bool:
    least, greatest = file.bounds("stream")
    return (least is None or least <= stream) and (greatest is None or stream <= greatest)


def _last_request(client: PipelineClient) -> int:
    body = json.dumps({"streams": [STREAM]}).encode()
    heads: list[list[Any]] = client.call("POST", "/v1/audit/heads", body=body)["heads"]
    return int(heads[0][4]) if heads else 0
