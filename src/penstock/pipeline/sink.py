"""The writing half of `format("penstock")`: events into streams, each batch exactly once.

Spark tells a writer neither which batch it is in (before the commit) nor whether a task is a repeat, and the order
of rows within a partition may differ between runs. So rows are staged first and published from what was staged:

    write      an Arrow file under <checkpoint>/penstock-sink/, made durable; the message is its name and its rows
    commit     batch not above the last one that the server remembers: nothing to do
               else write the manifest (which files, in which order) unless there is one; publish its files in
               numbered requests; then remember the batch at the server, and remove the files

A batch that is repeated after a crash finds the manifest and publishes those files, with the same numbers; the
server adds nothing for numbers it has seen. A batch repeated long after, the checkpoint restored or not, ends at once.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.errors import Conflict, InputInvalid
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.offsets import known_options, number_of, required
from penstock.pipeline.publishing import NewEvent, PublishRequest, publish, requests, sequence_of
from penstock.pipeline.tables import sync, write_durably

Messages: TypeAlias = Sequence[WriterCommitMessage | None]

_WRITING: Final = frozenset(("url", "token", "writer", "epoch", "stream", "staging", "batch", "checkpointlocation"))
MOST_EPOCH: Final = 2**31
MOST_BATCH: Final = 2**42
"""A batch's number is the upper part of a producer's sequence, which has 63 bits: 20 are for its requests."""

_COLUMNS: Final = frozenset(("stream", "body", "type", "attributes"))


class WriterTaken(Conflict):
    """The writer's name is in use by another query."""

    code = "writer_taken"


@dataclass(frozen=True)
class StagedFile(WriterCommitMessage):
    """What a task has staged."""

    path: str
    rows: int
    query: str


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write, checked."""

    client: PipelineClient
    writer: str
    epoch: int
    stream: str
    staging: Path


def sink_options(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Check and convert the options of a write. `InputInvalid` names what is wrong."""
    options = known_options(given, _WRITING)
    url, token, writer = (required(options, name) for name in ("url", "token", "writer"))
    if "/" in writer or len(writer) > 100:
        raise InputInvalid("option writer", "has a '/' or over 100 characters")
    _check_columns(schema, options.get("stream", ""))
    staging = options.get("staging") or options.get("checkpointlocation", "")
    if not staging:
        raise InputInvalid("option staging", "is missing", remedy="Give a folder that driver and workers share.")
    epoch = number_of(options, "epoch", least=1, most=MOST_EPOCH) or 1
    number_of(options, "batch", most=MOST_BATCH)
    folder = _folder(staging) / "penstock-sink"
    return SinkOptions(PipelineClient(url, token), writer, epoch, options.get("stream", ""), folder)


class _Sink:
    """What batch and streaming writers share. Made anew, in other processes, for tasks and for the commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._sink = sink_options(options, schema)

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedFile:
        """Write what a task got to a file of its own, durably."""
        folder = self._sink.staging
        folder.mkdir(parents=True, exist_ok=True)
        path, rows = folder / f"{uuid.uuid4().hex}.arrow", 0
        writer = None
        with path.open("wb") as file:
            for batch in batches:
                _check_streams(batch)
                writer = writer or pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
                rows += batch.num_rows
            if writer:
                writer.close()
        sync(path)
        sync(folder)
        return StagedFile(str(path), rows, _query())

    def publish(self, messages: Messages, batch: int) -> None:
        """Publish what the winning tasks have staged, once."""
        sink, staged = self._sink, [message for message in messages if isinstance(message, StagedFile)]
        key = f"pipeline/sinks/{sink.writer}"
        kept = sink.client.get(key)
        self._check_writer(kept.value, staged)
        fresh = sink.epoch > kept.value.get("epoch", 0)
        if fresh or batch > kept.value["last"]:
            files = self._manifest(batch, staged)
            self._publish_files(files, batch)
            query = staged[0].query if staged else kept.value.get("query", "")
            sink.client.put(key, {"epoch": sink.epoch, "query": query, "last": batch}, expect=kept.version)
            self._manifest_path(batch).unlink(missing_ok=True)
            self.discard(files)
        self.discard(staged)

    def discard(self, messages: Messages | Sequence[StagedFile]) -> None:
        """Remove staged files."""
        for message in messages:
            if isinstance(message, StagedFile):
                Path(message.path).unlink(missing_ok=True)

    def _check_writer(self, kept: Mapping[str, Any], staged: Sequence[StagedFile]) -> None:
        """Refuse a second query under one name: each would take the other's batches for repeats of its own."""
        if not kept or self._sink.epoch > kept["epoch"]:
            return
        other = next((one.query for one in staged if one.query and one.query != kept["query"]), "")
        if other or self._sink.epoch < kept["epoch"]:
            error = WriterTaken(f"writer {self._sink.writer!r} is in use by another query, in epoch {kept['epoch']}")
            error.remedy = f"Choose another name, or set the option epoch to {kept['epoch'] + 1} to take it over."
            raise error

    def _manifest_path(self, batch: int) -> Path:
        return self._sink.staging / f"{self._sink.writer}-{self._sink.epoch}-{batch}.json"

    def _manifest(self, batch: int, staged: Sequence[StagedFile]) -> list[StagedFile]:
        """The files of this batch: those of the first attempt that wrote the manifest."""
        path = self._manifest_path(batch)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, json.dumps([[one.path, one.rows, one.query] for one in staged]))
        return [StagedFile(*one) for one in json.loads(path.read_text())]

    def _publish_files(self, files: Sequence[StagedFile], batch: int) -> None:
        producer = f"{self._sink.writer}~{self._sink.epoch}"
        events = (event for file in files if file.rows for event in _events(file, self._sink.stream))
        for number, request in enumerate(requests(events)):
            self._send(request, *sequence_of(producer, batch, number))

    def _send(self, request: PublishRequest, producer: str, sequence: int) -> None:
        publish(self._sink.client, request, producer, sequence)


class StreamSink(DataSourceStreamArrowWriter):
    """`writeStream.format("penstock")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._sink = _Sink(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._sink.publish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove nothing: a batch that was published in part goes on from these files, if its manifest names them."""


class BatchSink(DataSourceArrowWriter):
    """`write.format("penstock")`.

    The option `batch` numbers the writer's batches; a number not above the last is a repeat and adds nothing.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InputInvalid("mode", "cannot be overwrite: a log is only added to", remedy='Write .mode("append").')
        self._sink = _Sink(options, schema)
        self._batch = number_of({name.lower(): value for name, value in options.items()}, "batch") or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.publish(messages, self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove nothing, as for a stream."""


def _events(file: StagedFile, stream: str) -> Iterator[NewEvent]:
    with pa.OSFile(file.path) as source:
        for batch in pa.ipc.open_stream(source):
            names = batch.schema.names
            columns = {name: batch.column(name).to_pylist() for name in names}
            for row in range(batch.num_rows):
                body = columns["body"][row]
                yield NewEvent(
                    columns["stream"][row] if "stream" in columns else stream,
                    body.encode() if isinstance(body, str) else bytes(body or b""),
                    (columns["type"][row] or "") if "type" in columns else "",
                    (columns["attributes"][row] or "") if "attributes" in columns else "",
                )


def _check_columns(schema: StructType, stream: str) -> None:
    names = set(schema.names)
    if "body" not in names:
        raise InputInvalid("column body", "is missing: a binary or a string")
    if unknown := names - _COLUMNS:
        raise InputInvalid(f"column {sorted(unknown)[0]}", f"is unknown; known are {', '.join(sorted(_COLUMNS))}")
    if ("stream" in names) == bool(stream):
        raise InputInvalid("stream", "must be either a column or an option")


def _check_streams(batch: pa.RecordBatch) -> None:
    """Refuse a batch with a row that names no stream, before anything of it is published."""
    if "stream" in batch.schema.names and batch.column("stream").null_count:
        raise InputInvalid("column stream", f"is null in {batch.column('stream').null_count:,} rows")


def _folder(location: str) -> Path:
    place = urlsplit(location)
    if place.scheme not in ("", "file"):
        raise InputInvalid("option staging", f"{location} is not a folder", remedy="Give one that all workers share.")
    return Path(unquote(place.path) if place.scheme else location).absolute()


def _query() -> str:
    """The query that this task works for; empty in a batch write."""
    context = TaskContext.get()
    return (context.getLocalProperty("sql.streaming.queryId") or "") if context else ""
