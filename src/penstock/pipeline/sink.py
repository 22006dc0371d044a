"""The writing half of `format("penstock")`: events into streams, each batch exactly once.

Spark runs a task again when it likes, and the rows of a task may come in another order then. The server adds nothing
for a numbered request that it has seen, so what must not change is which rows a number stands for. There are two ways.

`publish=tasks`, the default: every task publishes its own rows, all tasks at once.

    write      rows become encoded requests in a file (`sink_files`), with a digest of the rows
               the task claims its partition of the batch at the server: file and digest; who is first has decided
               publish the requests under the partition's own producer, then say at the server that it is done
               a repeat publishes the file that was claimed, or its own if it has the same rows in the same order;
               if it has other rows, or can do neither, it fails with `rows_not_repeated`, and adds nothing
    commit     compare what was claimed with the tasks that count, then remember the batch at the server

`publish=commit`: for queries that give other rows when they are repeated (random numbers, new ids). Tasks only stage,
in a folder or an object store that driver and workers share, and the driver publishes:

    commit     batch not above the last one that the server remembers: nothing to do
               else write the manifest (which files, in which order) unless there is one; publish its files in
               numbered requests; then remember the batch at the server, and remove the files

A batch that is repeated long after, the checkpoint restored or not, ends at once.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.errors import ConfigInvalid, Conflict, InputInvalid
from penstock.iceberg.store import open_store
from penstock.pipeline.client import PipelineClient, RecordChanged, StoredRecord
from penstock.pipeline.publishing import EncodedRequest, send, sequence_of
from penstock.pipeline.sink_files import StagedFile, discard, is_staged, stage, staged_requests
from penstock.pipeline.source_options import known_options, number_of, required

Messages: TypeAlias = Sequence[WriterCommitMessage | None]

_WRITING: Final = frozenset(
    ("url", "token", "writer", "epoch", "stream", "staging", "batch", "publish", "checkpointlocation")
)
MOST_EPOCH: Final = 2**31
MOST_BATCH: Final = 2**42
"""A batch's number is the upper part of a producer's sequence, which has 63 bits: 20 are for its requests."""

_COLUMNS: Final = frozenset(("stream", "body", "type", "attributes"))
TASKS, COMMIT = "tasks", "commit"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_QUERY_PROPERTY: Final = "sql.streaming.queryId"


class WriterTaken(Conflict):
    """The writer's name is in use by another query."""

    code = "writer_taken"


class RowsNotRepeated(Conflict):
    """A task that was run again has other rows than before, and some of those before may have been published."""

    code = "rows_not_repeated"

    def __init__(self, writer: str, batch: int, what: str) -> None:
        super().__init__(f"batch {batch} of writer {writer!r} was repeated with {what}")
        self.remedy = (
            "What it has published stays; the rest was not added. Use publish=commit with staging that all workers "
            "share for a query whose rows differ when it is repeated, and a new epoch to go on."
        )
        self.add_note(f"{self.code}: {self.remedy}")  # all that Spark shows of an error is its traceback


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write, checked."""

    url: str
    token: str
    writer: str
    epoch: int
    stream: str
    publish: str
    staging: str  # a folder, or the address of an object store

    @property
    def key(self) -> str:
        """Where the server remembers the writer; under it, the claims of its partitions."""
        return f"pipeline/sinks/{self.writer}"

    def client(self) -> PipelineClient:
        """One connection for all that a task or a commit asks."""
        return PipelineClient(self.url, self.token, keep=True)


def sink_options(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Check and convert the options of a write. `InputInvalid` names what is wrong."""
    options = known_options(given, _WRITING)
    url, token, writer = (required(options, name) for name in ("url", "token", "writer"))
    if "/" in writer or len(writer) > 100:
        raise InputInvalid("option writer", "has a '/' or over 100 characters")
    _check_columns(schema, options.get("stream", ""))
    publish = options.get("publish", TASKS)
    if publish not in (TASKS, COMMIT):
        raise InputInvalid("option publish", f"{publish[:40]!r} is neither {TASKS} nor {COMMIT}")
    epoch = number_of(options, "epoch", least=1, most=MOST_EPOCH) or 1
    number_of(options, "batch", most=MOST_BATCH)
    PipelineClient(url, token)  # says what is wrong with the address
    return SinkOptions(url, token, writer, epoch, options.get("stream", ""), publish, _staging(options, publish))


def _staging(options: Mapping[str, str], publish: str) -> str:
    """Where tasks write: what was given, else beside the checkpoint if that is a folder, else where temporary files go.

    Only a commit that publishes must find it again. It takes a checkpoint on an object store as well; others would need
    its keys for nothing.
    """
    given, checkpoint = options.get("staging", ""), options.get("checkpointlocation", "")
    place = given or checkpoint
    shared = bool(given) or publish == COMMIT
    if not place and shared:
        raise InputInvalid("option staging", "is missing", remedy="Give a place that driver and workers share.")
    if not place or not (shared or urlsplit(place).scheme in ("", "file")):
        return str(Path(tempfile.gettempdir(), "penstock-sink"))
    for alias in ("s3a://", "s3n://"):  # as Hadoop calls it
        place = place.replace(alias, "s3://", 1) if place.startswith(alias) else place
    try:
        open_store(place)
    except ConfigInvalid as error:
        raise InputInvalid("option staging", str(error), remedy="Give a folder, or s3://bucket/prefix.") from error
    return place.rstrip("/") + "/penstock-sink"


class _Sink:
    """What batch and streaming writers share. Made anew, in other processes, for tasks and for the commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._sink = sink_options(options, schema)
        self._store = open_store(self._sink.staging)

    # ── in a task ─────────────────────────────────────────────────────────────────────────────

    def write(self, batches: Iterator[pa.RecordBatch], batch: int) -> StagedFile:
        """Stage what a task got, and publish it, unless the commit does that."""
        staged = self.stage(batches)
        if not self._is_published_by_commit(batch):
            try:
                with closing(self._sink.client()) as client:
                    self._publish_partition(client, staged, batch)
            except Conflict:  # refused: no claim names this file
                self.discard([staged])
                raise
            self.discard([staged])
        return staged

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedFile:
        """Write what a task got to a file of its own, durably."""
        context = TaskContext.get()
        query = (context.getLocalProperty(_QUERY_PROPERTY) or "") if context else ""
        partition = context.partitionId() if context else 0
        return stage(self._store, map(_checked, batches), self._sink.stream, query, partition)

    def _publish_partition(self, client: PipelineClient, staged: StagedFile, batch: int) -> None:
        sink, kept = self._sink, client.get(self._sink.key).value
        self._check_writer(kept, [staged])
        if not staged.rows or (kept.get("epoch") == sink.epoch and batch <= kept["last"]):
            return
        if (claim := self._claim(client, staged, batch)) is None:
            return
        producer = f"{sink.writer}~{sink.epoch}~p{staged.partition}"
        for number, request in enumerate(staged_requests(claim.value["path"])):
            self._send(client, request, *sequence_of(producer, batch, number))
        with suppress(RecordChanged):  # another attempt has said so, or the query has gone on
            client.put(self._claim_key(staged), {**claim.value, "done": True}, expect=claim.version)
        discard([claim.value["path"]])

    def _claim_key(self, staged: StagedFile) -> str:
        return f"{self._sink.key}/{staged.partition}"

    def _claim(self, client: PipelineClient, staged: StagedFile, batch: int) -> StoredRecord | None:
        """The claim of this partition of *batch*, its path a file to be published; None if there is nothing to do."""
        sink = self._sink
        own = {"epoch": sink.epoch, "batch": batch, "query": staged.query, "path": staged.path, "order": staged.order,
               "content": staged.content, "done": False}  # fmt: skip
        while True:
            kept = client.get(self._claim_key(staged))
            held = (kept.value.get("epoch", 0), kept.value.get("batch", -1))
            if held[0] > sink.epoch:
                raise self._taken(held[0])
            if held > (sink.epoch, batch):  # this task was given up long ago, and the query has gone on without it
                return None
            if held == (sink.epoch, batch):
                return self._agreed(kept, staged, batch)
            try:
                return client.put(self._claim_key(staged), own, expect=kept.version)
            except RecordChanged:  # another attempt of this task was quicker
                continue

    def _agreed(self, claim: StoredRecord, staged: StagedFile, batch: int) -> StoredRecord | None:
        """What an earlier attempt has claimed, if this one can bring it to its end."""
        held = claim.value
        if held["query"] != staged.query:
            raise self._taken(held["epoch"])
        if held["content"] != staged.content:
            raise RowsNotRepeated(self._sink.writer, batch, f"other rows in partition {staged.partition}")
        if held["done"]:
            return None
        if is_staged(held["path"]):
            return claim
        if held["order"] != staged.order:
            what = f"rows in another order in partition {staged.partition}, and {held['path']} cannot be read here"
            raise RowsNotRepeated(self._sink.writer, batch, what)
        return StoredRecord(claim.version, {**held, "path": staged.path})

    # ── at the driver ─────────────────────────────────────────────────────────────────────────

    def commit(self, messages: Messages, batch: int) -> None:
        """Bring a batch to its end: publish it, unless the tasks have, and remember it."""
        sink, staged = self._sink, [message for message in messages if isinstance(message, StagedFile)]
        with closing(sink.client()) as client:
            kept = client.get(sink.key)
            self._check_writer(kept.value, staged)
            if sink.epoch > kept.value.get("epoch", 0) or batch > kept.value["last"]:
                files = self._finish(client, staged, batch)
                query = staged[0].query if staged else kept.value.get("query", "")
                client.put(sink.key, {"epoch": sink.epoch, "query": query, "last": batch}, expect=kept.version)
                self._store.delete([self._manifest_name(batch)])
                self.discard(files)
        self.discard(staged)

    def _finish(self, client: PipelineClient, staged: Sequence[StagedFile], batch: int) -> Sequence[StagedFile]:
        if not self._is_published_by_commit(batch):
            self._check_claims(client, staged, batch)
            return ()
        files = self._manifest(batch, staged)
        self._publish_files(client, files, batch)
        return files

    def _check_claims(self, client: PipelineClient, staged: Sequence[StagedFile], batch: int) -> None:
        """Refuse a batch whose claimed partitions are not exactly those of the tasks that Spark committed."""
        claims = client.list(self._sink.key + "/").items()
        now = {"epoch": self._sink.epoch, "batch": batch}
        claimed = {
            key.rpartition("/")[2]: one.value["content"] for key, one in claims if now.items() <= one.value.items()
        }
        if claimed != {str(one.partition): one.content for one in staged if one.rows}:
            raise RowsNotRepeated(self._sink.writer, batch, "its rows in other partitions")

    def _publish_files(self, client: PipelineClient, files: Sequence[StagedFile], batch: int) -> None:
        producer = f"{self._sink.writer}~{self._sink.epoch}"
        encoded = (request for file in files for request in staged_requests(file.path))
        for number, request in enumerate(encoded):
            self._send(client, request, *sequence_of(producer, batch, number))

    def _send(self, client: PipelineClient, request: EncodedRequest, producer: str, sequence: int) -> None:
        send(client, request, producer, sequence)

    def discard(self, staged: Sequence[StagedFile]) -> None:
        """Remove staged files."""
        discard(one.path for one in staged)

    def _check_writer(self, kept: Mapping[str, Any], staged: Sequence[StagedFile]) -> None:
        """Refuse a second query under one name: each would take the other's batches for repeats of its own."""
        if not kept or self._sink.epoch > kept["epoch"]:
            return
        other = any(one.query and one.query != kept["query"] for one in staged)
        if other or self._sink.epoch < kept["epoch"]:
            raise self._taken(kept["epoch"])

    def _taken(self, epoch: int) -> WriterTaken:
        error = WriterTaken(f"writer {self._sink.writer!r} is in use by another query, in epoch {epoch}")
        error.remedy = f"Choose another name, or set the option epoch to {epoch + 1} to take it over."
        error.add_note(f"{error.code}: {error.remedy}")
        return error

    def _is_published_by_commit(self, batch: int) -> bool:
        """A batch that a commit has begun to publish is brought to its end that way, whatever the options say now."""
        return self._sink.publish == COMMIT or not self._store.missing([self._manifest_name(batch)])

    def _manifest_name(self, batch: int) -> str:
        return f"{self._sink.writer}-{self._sink.epoch}-{batch}.json"

    def _manifest(self, batch: int, staged: Sequence[StagedFile]) -> list[StagedFile]:
        """The files of this batch: those of the first attempt that wrote the manifest."""
        name = self._manifest_name(batch)
        if self._store.missing([name]):
            self._store.put(name, json.dumps([[one.path, one.rows, one.query] for one in staged]).encode())
        return [StagedFile(*one) for one in json.loads(self._store.read(name))]


class StreamSink(DataSourceStreamArrowWriter):
    """`writeStream.format("penstock")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._sink = _Sink(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        batch = context.getLocalProperty(_BATCH_PROPERTY) if context else None
        if batch is None:
            raise InputInvalid("Spark", f"does not say in {_BATCH_PROPERTY} which batch this is")
        return self._sink.write(iterator, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._sink.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove nothing: a batch that was published in part goes on from these files, if it names them."""


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
        return self._sink.write(iterator, self._batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.commit(messages, self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove nothing, as for a stream."""


def _check_columns(schema: StructType, stream: str) -> None:
    names = set(schema.names)
    if "body" not in names:
        raise InputInvalid("column body", "is missing: a binary or a string")
    if unknown := names - _COLUMNS:
        raise InputInvalid(f"column {sorted(unknown)[0]}", f"is unknown; known are {', '.join(sorted(_COLUMNS))}")
    if ("stream" in names) == bool(stream):
        raise InputInvalid("stream", "must be either a column or an option")


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Refuse a batch with a row that names no stream, before anything of it is published."""
    if "stream" in batch.schema.names and batch.column("stream").null_count:
        raise InputInvalid("column stream", f"is null in {batch.column('stream').null_count:,} rows")
    return batch
