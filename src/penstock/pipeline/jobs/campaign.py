"""`campaign`: a list of recipients and payloads → one event each, never accepted twice.

The list is copied when a campaign of that name is run for the first time: sorted by its key, each task writing a file
of its part. Rows are numbered from 1 in that order: the campaign's record names the files, and how many rows each has.
The copy never changes, whatever becomes of the source. The server remembers an event by its number, so a campaign may
be stopped and run again at any point.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StringType

from penstock.core.names import check_name
from penstock.errors import InputInvalid
from penstock.iceberg.store import FileStore
from penstock.pipeline.jobs import JobOutcome, Workplace
from penstock.pipeline.publishing import NewEvent
from penstock.pipeline.resumable_publishing import (
    TURN_SECONDS,
    Throttle,
    begin_or_resume,
    check_job_name,
    positive,
    publish_numbered,
)

OPTIONS: Mapping[str, str] = {
    "name": "of this campaign; run it again under the same name to go on",
    "source": "a Parquet or CSV file, or a folder of them",
    "key": "the column that names the recipient; no value may come twice",
    "body": "the column with the payload (body)",
    "to": "the stream of a recipient, {key} in it (/users/{key})",
    "type": "type of the events",
    "rate": "events a second (100)",
}
FOLDER: Final = "_campaigns"
_ASKED: Final = ("source", "key", "body", "to", "type")


def transform(source: DataFrame, key: str, body: str) -> DataFrame:
    """The list as it is copied: (key, body), in order of the key's text over all partitions."""
    return source.select(F.col(key).cast("string").alias("key"), F.col(body).alias("body")).orderBy("key")


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Begin or go on with the campaign of a file, for one turn."""
    source = options.get("source", "")
    if not source:
        raise InputInvalid("--source", "is missing")
    return send(place, lambda: _read(place, source), options, seconds=TURN_SECONDS)


def send(
    place: Workplace,
    source: DataFrame | Callable[[], DataFrame],
    options: Mapping[str, str],
    *,
    seconds: float = float("inf"),
) -> JobOutcome:
    """Begin or go on with a campaign, to its end or for so many seconds.

    *source* is read only if the campaign was not begun before.
    """
    name, to = options.get("name", ""), options.get("to", "/users/{key}")
    if "{key}" not in to:
        raise InputInvalid("--to", f"{to[:80]!r} has no {{key}} in it", remedy="As in /users/{key}.")
    asked = {option: options[option] for option in _ASKED if options.get(option)}
    throttle = Throttle(positive(options, "rate", 100))
    check_job_name(name)
    store, folder = place.lake.store, f"{FOLDER}/{name}"
    job = begin_or_resume(place.client, "campaigns", name, lambda: _freeze(place, source, asked, folder), asked)
    rows = int(job.value["rows"])
    # A campaign that was begun when one task wrote all of the list has no names of files.
    parts = [ListPart(f"{folder}/{one}", int(count)) for one, count in job.value.get("files", [["list.parquet", rows]])]
    if not all(one.is_whole(store) for one in parts):
        said = f"its list of {rows:,} is not at {store.location(folder)}"
        raise InputInvalid(f"campaign {name}", said, remedy="Give the same lake.")
    events = _events(store, parts, job.done, to, options.get("type", ""))
    finished = publish_numbered(job, f"campaign~{name}", events, throttle, place.faults, seconds)
    if finished:
        job.note(rows, finished=True)
    words = f"campaign {name}: {job.done:,} of {rows:,} are published"
    return JobOutcome(words, {"done": job.done, "rows": rows, "more": not finished}, more=not finished)


# ── the list ───────────────────────────────────────────────────────────────────────────────────


def _read(place: Workplace, source: str) -> DataFrame:
    path = Path(source)
    if not path.exists():
        raise InputInvalid("--source", f"{source} is not there")
    if path.suffix == ".csv" or (path.is_dir() and any(path.glob("*.csv"))):
        return place.spark.read.option("header", "true").csv(source)
    return place.spark.read.parquet(source)


def _freeze(
    place: Workplace, source: DataFrame | Callable[[], DataFrame], asked: Mapping[str, str], folder: str
) -> dict[str, Any]:
    """Copy the list. After a crash in the middle the copy is made anew: nothing was published yet."""
    frame = source if isinstance(source, DataFrame) else source()
    key, body = asked.get("key", ""), asked.get("body", "body")
    for option, column in (("key", key), ("body", body)):
        if column not in frame.columns:
            raise InputInvalid(f"--{option}", f"there is no column {column!r}; there are {', '.join(frame.columns)}")
    _check_kind(frame, body)
    _check_keys(frame, key, asked.get("to", "/users/{key}"))
    writing = _PartWriter(place.lake.store, folder)
    with place.shuffling(frame.count()):
        parts = sorted(transform(frame, key, body).mapInArrow(writing, "part INT, name STRING, rows BIGINT").collect())
    place.lake.store.sync([f"{folder}/{row.name}" for row in parts])
    return {"rows": sum(row.rows for row in parts), "files": [[row.name, row.rows] for row in parts]}


@dataclass(frozen=True, slots=True)
class ListPart:
    """One file of the list."""

    path: str
    rows: int

    def is_whole(self, store: FileStore) -> bool:
        """Whether it is there, with all its rows."""
        if store.missing([self.path]):
            return False
        with store.files.open_input_file(store.place(self.path)) as stream:
            return int(parquet.ParquetFile(stream).metadata.num_rows) == self.rows


@dataclass(frozen=True, slots=True)
class _PartWriter:
    """Writes one partition of the list, within its task, under a name that is never used again."""

    store: FileStore
    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        some = (batch for batch in batches if batch.num_rows)
        first = next(some, None)
        if first is None:
            return
        context = TaskContext.get()
        part, rows = context.partitionId() if context else 0, 0
        name = f"list-{part:05d}-{secrets.token_hex(8)}.parquet"
        self.store.make_folder(self.folder)
        with (
            self.store.files.open_output_stream(self.store.place(f"{self.folder}/{name}")) as stream,
            parquet.ParquetWriter(stream, first.schema) as writer,
        ):
            for batch in chain((first,), some):
                writer.write_batch(batch)
                rows += batch.num_rows
        yield pa.RecordBatch.from_pydict({"part": pa.array([part], pa.int32()), "name": [name], "rows": [rows]})


def _check_kind(frame: DataFrame, body: str) -> None:
    if not isinstance(frame.schema[body].dataType, (StringType, BinaryType)):
        raise InputInvalid("--body", f"the column {body!r} is neither text nor bytes")
    empty = frame.where(F.col(body).isNull()).count()
    if empty:
        raise InputInvalid("--body", f"{empty:,} rows have no {body!r}")


def _check_keys(frame: DataFrame, key: str, to: str) -> None:
    text = F.col(key).cast("string").alias("key")
    twice = frame.groupBy(text).count().where("count > 1").orderBy("key").take(3)
    if twice:
        shown = ", ".join(str(row["key"]) for row in twice)
        raise InputInvalid("--key", f"some values of {key!r} come more than once: {shown}")
    if frame.where(F.col(key).isNull()).count():
        raise InputInvalid("--key", f"some rows have no {key!r}")
    wrong = frame.select(text).mapInArrow(_NameCheck(to), "said STRING").take(1)
    if wrong:
        raise InputInvalid("--key", wrong[0].said)


@dataclass(frozen=True, slots=True)
class _NameCheck:
    """Says what is wrong with streams that keys would make, within the tasks that have the keys."""

    to: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            said = [text for key in batch.column(0).to_pylist() if (text := self._wrong(key))]
            yield pa.RecordBatch.from_pydict({"said": pa.array(said, pa.utf8())})

    def _wrong(self, key: str) -> str:
        try:
            check_name(self.to.replace("{key}", key))
        except InputInvalid as error:
            return str(error)
        return ""


def _events(
    store: FileStore, parts: Sequence[ListPart], after: int, to: str, type: str
) -> Iterator[tuple[int, NewEvent]]:
    """What is left to publish, in the list's order, with its numbers."""
    number = 0
    for part in parts:
        if number + part.rows <= after:
            number += part.rows
            continue
        with store.files.open_input_file(store.place(part.path)) as stream:
            for batch in parquet.ParquetFile(stream).iter_batches(1000, columns=["key", "body"]):
                for row in batch.to_pylist():
                    number += 1
                    if number > after:
                        body = row["body"].encode() if isinstance(row["body"], str) else row["body"]
                        yield number, NewEvent(to.replace("{key}", row["key"]), body, type)
