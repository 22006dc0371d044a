"""`campaign`: a list of recipients and payloads → one event each, never accepted twice.

The list is copied when a campaign of that name is run for the first time: sorted by its key and numbered. The copy
never changes, whatever becomes of the source. The server remembers an event by its number, so a campaign may be
stopped and run again at any point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Window
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
_NOBODY: Final = pa.RecordBatch.from_pydict(
    {"number": pa.array([], pa.int32()), "key": pa.array([], pa.utf8()), "body": pa.array([], pa.utf8())}
)
_ASKED: Final = ("source", "key", "body", "to", "type")


def transform(source: DataFrame, key: str, body: str) -> DataFrame:
    """The list as it is copied: (number, key, body), numbered from 1 in order of the key's text."""
    kept = source.select(F.col(key).cast("string").alias("key"), F.col(body).alias("body"))
    return kept.withColumn("number", F.row_number().over(Window.orderBy("key"))).select("number", "key", "body")


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
    store, path = place.lake.store, f"{FOLDER}/{name}/list.parquet"
    job = begin_or_resume(place.client, "campaigns", name, lambda: _freeze(source, asked, store, path), asked)
    rows = int(job.value["rows"])
    if store.missing([path]) or _rows(store, path) != rows:
        said = f"its list of {rows:,} is not at {store.location(path)}"
        raise InputInvalid(f"campaign {name}", said, remedy="Give the same lake.")
    events = _events(store, path, job.done, to, options.get("type", ""))
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
    source: DataFrame | Callable[[], DataFrame], asked: Mapping[str, str], store: FileStore, path: str
) -> dict[str, Any]:
    """Copy the list. After a crash in the middle the copy is made anew: nothing was published yet."""
    frame = source if isinstance(source, DataFrame) else source()
    key, body = asked.get("key", ""), asked.get("body", "body")
    for option, column in (("key", key), ("body", body)):
        if column not in frame.columns:
            raise InputInvalid(f"--{option}", f"there is no column {column!r}; there are {', '.join(frame.columns)}")
    _check_kind(frame, body)
    _check_keys(frame, key, asked.get("to", "/users/{key}"))
    numbered = transform(frame, key, body).coalesce(1).sortWithinPartitions("number")
    rows = numbered.mapInArrow(_Copying(store, path), "rows BIGINT").agg(F.sum("rows")).collect()[0][0]
    store.sync([path])
    return {"rows": rows or 0}


@dataclass(frozen=True, slots=True)
class _Copying:
    """Writes the list, within the one task that has its rows in order."""

    store: FileStore
    path: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.store.make_folder(self.path.rpartition("/")[0])
        first = next(batches, _NOBODY)
        rows, place = first.num_rows, self.store.place(self.path)
        with (
            self.store.files.open_output_stream(place) as stream,
            parquet.ParquetWriter(stream, first.schema) as writer,
        ):
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        yield pa.RecordBatch.from_pydict({"rows": [rows]})


def _rows(store: FileStore, path: str) -> int:
    with store.files.open_input_file(store.place(path)) as stream:
        return int(parquet.ParquetFile(stream).metadata.num_rows)


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
    for row in frame.select(text).toLocalIterator():
        check_name(to.replace("{key}", row["key"]))


def _events(store: FileStore, path: str, after: int, to: str, type: str) -> Iterator[tuple[int, NewEvent]]:
    """What is left to publish, in the list's order."""
    with store.files.open_input_file(store.place(path)) as stream:
        for batch in parquet.ParquetFile(stream).iter_batches(1000):
            for row in batch.to_pylist():
                if row["number"] > after:
                    body = row["body"].encode() if isinstance(row["body"], str) else row["body"]
                    yield row["number"], NewEvent(to.replace("{key}", row["key"]), body, type)
