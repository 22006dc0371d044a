"""The Spark data source `penstock`: batch and streaming, read and write.

    spark.read.format("penstock").option("url", …).option("token", …).option("streams", "/orders/>").load()

It needs the standard library, pyarrow and pyspark, nothing else: this is what runs in Spark's workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.errors import InputInvalid, PenstockError
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.offsets import (
    Cut,
    cuts_between,
    cuts_of,
    narrow,
    offset_of,
    position_of,
    read_options,
    start_of,
)
from penstock.wire.columns import EVENT, NAMES, ddl

_SIGNS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


class CutOff(PenstockError):
    """An export ended before its last message. The task fails, and is run again from its beginning."""

    code = "export_cut_off"
    remedy = "Run the task again; look at the server's log if it happens often."


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, cut: Cut) -> None:
        self.lo, self.hi = cut.lo, cut.hi


class PenstockSource(DataSource):
    """`format("penstock")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        wanted = read_options(self.options).columns
        return ddl(column for column in EVENT if column.name in wanted)

    def reader(self, schema: StructType) -> LogReader:
        return LogReader(self.options, schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 - Spark's name
        return LogStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from penstock.pipeline.sink import BatchSink

        return BatchSink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from penstock.pipeline.sink import StreamSink

        return StreamSink(self.options, schema)


class _Reader:
    """What batch and streaming reads share. Any worker may read any part, any number of times."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._read = read_options(options)
        if schema.names != list(self._read.columns):
            raise InputInvalid("schema", "is fixed; choose columns with the option columns")
        self._client = PipelineClient(self._read.url, self._read.token)
        self._streams = self._read.streams

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):  # what Spark makes of a read without any part
            return iter(())
        return read_slice(self._client, partition, self._read.columns, self._streams)


class LogReader(_Reader, DataSourceReader):
    """A batch read: the ids in (after, upto], as far as the log went when it was planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._bounds: list[tuple[str, int]] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the range by what is said about `id`, and the streams by what is said about `stream`.

        Every filter is handed back: Spark looks at the rows again, so a filter misread here costs time only.
        """
        for one in filters:
            attribute = getattr(one, "attribute", ())
            if attribute == ("id",) and type(one) in _SIGNS:
                self._bounds.append((_SIGNS[type(one)], int(one.value)))  # type: ignore[attr-defined]
            elif attribute == ("stream",) and not self._streams:
                self._streams = _exactly(one)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        client, read = self._client, self._read
        if read.cuts:  # planned before, and written down: not to be planned again
            return [Part(cut) for cut in read.cuts]
        newest = client.newest()
        after = client.position(read.since) if read.since else read.after or 0
        upto = client.position(read.until) if read.until else newest if read.upto is None else read.upto
        after, upto = narrow(after, upto, self._bounds)
        cuts: list[Cut] = []
        while after < upto:
            plan = client.plan(after, upto, parts=read.partitions)
            cuts += cuts_of(plan["slices"])
            after = plan["upto"]
        return [Part(cut) for cut in cuts]


class LogStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. The server decides once where a consumer begins; an offset carries its cuts."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._end: int | None = None
        if not self._read.consumer:
            raise InputInvalid(
                "option consumer",
                "is missing",
                remedy="Name the query: the server remembers under that name where it began.",
            )

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return offset_of(self._client.begin(self._read.consumer, start_of(self._read)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._read.max_rows is not None:
            return ReadMaxRows(self._read.max_rows)
        return ReadMaxBytes(self._read.max_bytes) if self._read.max_bytes is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._end = self._client.newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch. Waits at the server when there is nothing new."""
        after = position_of(start)
        upto = self._client.newest(after, wait=self._read.wait) if self._end is None else self._end
        if upto <= after:
            return start
        plan = self._client.plan(after, upto, parts=self._read.partitions, **self._limits(limit))
        return offset_of(plan["upto"], cuts_of(plan["slices"]) or [Cut(after, plan["upto"])])

    def _limits(self, limit: ReadLimit) -> dict[str, int]:
        if isinstance(limit, ReadMaxRows):
            return {"max_rows": limit.max_rows, **_given(max_bytes=self._read.max_bytes)}
        return {"max_bytes": limit.max_bytes} if isinstance(limit, ReadMaxBytes) else {}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Part(cut) for cut in cuts_between(start, end)]


def read_slice(
    client: PipelineClient, part: Part, columns: Sequence[str] = NAMES, streams: str = ""
) -> Iterator[pa.RecordBatch]:
    """The rows of one cut. Fails rather than giving fewer: see `CutOff`."""
    asked: dict[str, object] = {"after": part.lo, "upto": part.hi, "columns": ",".join(columns)}
    if streams:
        asked["streams"] = streams
    with client.open("/v1/log/arrow", asked) as answer:
        yield from _checked(pa.ipc.open_stream(answer), part)


def _checked(reader: Any, part: Part) -> Iterator[pa.RecordBatch]:
    """The batches up to the last message, which must say how many rows there were."""
    rows = 0
    while True:
        try:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            raise CutOff(f"the export of ({part.lo}, {part.hi}] was cut off after {rows} rows") from None
        if metadata is not None:
            break
        rows += batch.num_rows
        yield batch
    if rows != int(metadata[b"rows"]) or part.hi != int(metadata[b"upto"]):
        raise CutOff(f"the export of ({part.lo}, {part.hi}] gave {rows} rows of {metadata[b'rows'].decode()}")


def _exactly(one: Filter) -> str:
    """Streams that a filter names one by one, as the server takes them."""
    names = [one.value] if isinstance(one, EqualTo) else list(one.value) if isinstance(one, In) else []
    return ",".join(names) if len(names) <= 64 and all(isinstance(name, str) for name in names) else ""


def _given(**limits: int | None) -> dict[str, int]:
    return {name: value for name, value in limits.items() if value is not None}
