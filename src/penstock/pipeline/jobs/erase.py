"""`erase`: what was erased in the log goes from `events`, too.

`POST /v1/log/erase` writes each request into the stream `/_erased`. A turn takes the requests that were archived since
the turn before. What they ask for is older than they are, so it is in the lake by then. Each file that has any of it
is written again without it, under its next edition's name, and the day's folder is exchanged.

The record `lake/erase` is like that of every table: a turn that was cut off is redone, and finds nothing to do in the
files that it has replaced already.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from penstock.errors import InputInvalid
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import Intent, Staged, StagedWrong, Turn, watermark
from penstock.pipeline.erasing import STREAM, Gone, gone, requests_in, rows_with, write_without
from penstock.pipeline.jobs import JobOutcome, Workplace, archive
from penstock.pipeline.replace_files import exchange_files, sweep
from penstock.pipeline.staging import rows_of
from penstock.wire.lake import LakeFile

OPTIONS: Mapping[str, str] = {
    "ids": "first erase these events in the log: their ids with commas",
    "stream": "first erase all that is in this stream now",
}


class Replacing(Turn):
    """A turn whose files take the place of others instead of being added."""

    def _name(self, staged: Iterable[Staged]) -> None:
        for _, of_day in groupby(staged, lambda one: one.file.day):
            made = list(of_day)
            exchange_files(self._lake, [_former(one.file) for one in made], made, self.staging, self._faults)


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Take out of the lake all that was erased; with options, erase it in the log first."""
    if options:
        place.client.call("POST", "/v1/log/erase", body=json.dumps(_wanted(options)).encode(), timeout=600)
        archive.run(place, {})
    archived, rows, files = watermark(place.client, "events"), 0, 0
    for turn, intent in place.turns("erase", archived, lambda after: Intent(after, archived, ()), Replacing):
        staged, count = _stage(place, turn, intent)
        turn.publish(staged)
        rows, files = rows + count, files + len(staged)
    words = f"erase: {rows:,} rows in {files:,} files, all that was asked for up to id {archived:,}"
    return JobOutcome(words, {"rows": rows, "files": files, "upto": archived})


def _wanted(options: Mapping[str, str]) -> dict[str, Any]:
    if len(options) > 1:
        raise InputInvalid("--ids and --stream", "exclude each other")
    if "stream" in options:
        return {"stream": options["stream"]}
    ids = options["ids"].split(",")
    if not all(id.isascii() and id.isdigit() for id in ids):
        raise InputInvalid("--ids", f"{options['ids'][:40]!r} is not a list of ids")
    return {"ids": [int(id) for id in ids]}


# ── a turn ─────────────────────────────────────────────────────────────────────────────────────


def _stage(place: Workplace, turn: Turn, intent: Intent) -> tuple[list[Staged], int]:
    """New files without what was erased, and how many rows lost something."""
    what, rows = _requested(place, intent), 0
    # A compaction may have copied erased rows and not published them yet. Sweep also when no file is left to replace:
    # a turn that was cut off after its last exchange is redone like that.
    sweep(place.lake, also_under_way=bool(what))
    staged: list[Staged] = []
    for file in place.lake.files("events") if what else ():
        if what.may_be_in(file) and (found := rows_with(place.lake.path(file), what)):
            staged.append(_without(place, turn, file, what))
            rows += found
    return sorted(staged, key=lambda one: one.file.day), rows


def _requested(place: Workplace, intent: Intent) -> Gone:
    """What the requests of this turn ask for. Mostly there are none, which the stream's head tells without a file."""
    if _last_request(place.client) <= intent.after:
        return gone(())
    after, upto = max(intent.after, place.begins_after()), intent.upto
    paths = [place.lake.path(file) for file in place.lake.covering("events", after, upto)]
    return gone(body for path in paths for body in requests_in(path, after, upto))


def _last_request(client: PipelineClient) -> int:
    body = json.dumps({"streams": [STREAM]}).encode()
    heads: list[list[Any]] = client.call("POST", "/v1/audit/heads", body=body)["heads"]
    return int(heads[0][4]) if heads else 0


def _without(place: Workplace, turn: Turn, file: LakeFile, what: Gone) -> Staged:
    source, target = place.lake.path(file), turn.staging / "events" / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    write_without(source, target, what)
    if rows_of(target) != rows_of(source):
        raise StagedWrong(f"{rows_of(target)} rows came out of {rows_of(source)} of {source}")
    hour = source.stat().st_mtime  # it stays of its hour: compaction goes by that
    os.utime(target, (hour, hour))
    return Staged(target, replace(file, edition=file.edition + 1))


def _former(file: LakeFile) -> LakeFile:
    return replace(file, edition=file.edition - 1)
