"""The Spark data source `penstock`: batch and streaming, read and write.

    spark.read.format("penstock").option("url", …).option("token", …).option("streams", "/orders/>").load()

With the option `history` what the log has trimmed comes from the lake, through the same server.

It needs the standard library, pyarrow and pyspark, nothing else: this is what runs in Spark's workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

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

from penstock.client.http import ApiError, ServerUnreachable
from penstock.core.matching import matches
from penstock.core.names import check_name
from penstock.errors import InputInvalid, NameInvalid, OperatorError, PenstockError, Trimmed
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.source_offsets import (
    Cut,
    cuts_between,
    cuts_of,
    lost_before,
    narrow,
    offset_of,
    position_of,
)
from penstock.pipeline.source_options import read_options, start_of
from penstock.wire.table_columns import EVENT, ddl

log = logging.getLogger("penstock.pipeline")

_SIGNS: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}

CLOCK_MARGIN: Final = timedelta(hours=1)
"""Entries carry the time of their node's clock, which may be set back. A range of time becomes a range of ids that is
wider by this much on both sides, so that a clock may have been wrong by as much without any row being missed."""

MOST_NAMES: Final = 64
"""Streams that a filter may name one by one and that the server is asked for. With more of them it is not narrowed."""


ATTEMPTS: Final = 3
"""How often in a row an export may break off before its first row, until the task fails."""


class CutOff(PenstockError):
    """An export ended before its last message."""

    code = "export_cut_off"
    remedy = "Run the task again; look at the server's log if it happens often."


class RowsMissing(CutOff):
    """An export has another number of rows than its last message says. Nothing of it can be trusted."""

    code = "export_rows_missing"
    remedy = "This is a defect: report it, with the server's log."


class DataLost(OperatorError):
    """What is to be read next is no longer in the log nor, with the option `history`, in the lake."""

    code = "data_lost"

    def __init__(self, after: int, upto: int, *, history: bool) -> None:
        where = ", and the lake does not have them" if history else " before they were read"
        super().__init__(f"ids {after + 1:,} to {upto:,} were trimmed from the log{where}")
        first = "" if history else "Set the option history to true, to read them from the lake. "
        self.remedy = first + "To go on without them, set the option failOnDataLoss to false."
        self.add_note(f"{self.code}: {self.remedy}")  # all that Spark shows of an error is its traceback


class PositionBeyondLog(OperatorError):
    """The checkpoint is ahead of the log, which was restored from a backup or is another one."""

    code = "position_beyond_log"
    remedy = "Begin with a new checkpoint and a new consumer name."

    def __init__(self, position: int, newest: int) -> None:
        super().__init__(f"the checkpoint is at id {position:,}, and the log ends at {newest:,}")
        self.add_note(f"{self.code}: {self.remedy}")


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
        """The rows of a part. An export that breaks off is complete up to its last row: the rest is asked for anew."""
        if not isinstance(partition, Part):  # Spark's own stands for a read without any part
            return
        reached, failures = partition.lo, 0
        while reached < partition.hi:
            begin = reached
            try:
                for batch in read_slice(self._client, Part(Cut(begin, partition.hi)), self._asked()):
                    reached = self._last_id(batch)
                    yield batch.select(self._read.columns)
                return
            except ApiError as error:  # it came instead of the first batch
                reached = self._go_on_at(error, begin)
            except RowsMissing:
                raise
            except (CutOff, ServerUnreachable, pa.ArrowInvalid):
                failures = 0 if reached > begin else failures + 1
                if failures >= ATTEMPTS:
                    raise

    def _last_id(self, batch: pa.RecordBatch) -> int:
        return int(batch["id"][-1].as_py())

    def _asked(self) -> dict[str, str]:
        columns = self._read.columns if "id" in self._read.columns else ("id", *self._read.columns)
        return {"columns": ",".join(columns), **({"streams": self._streams} if self._streams else {}), **self._history}

    @property
    def _history(self) -> dict[str, str]:
        return {"history": "true"} if self._read.history else {}

    def _plan(self, after: int, upto: int, **limits: int) -> tuple[int, dict[str, Any]]:
        """A plan, and where it begins: at *after*, or where the rest begins if less is left and that was allowed."""
        try:
            return after, self._client.plan(after, upto, parts=self._read.partitions, **limits, **self._history)
        except ApiError as error:
            trimmed = self._go_on_at(error, after)
        return self._plan(trimmed, max(upto, trimmed), **limits)

    def _go_on_at(self, error: ApiError, after: int) -> int:
        """Where the rest begins, when *error* says that ids after *after* are gone and the read may do without them."""
        if error.code != Trimmed.code:
            raise error
        trimmed = error.facts["trimmed_upto"]
        lost = DataLost(after, trimmed, history=self._read.history)
        if self._read.fail_on_data_loss:
            raise lost from None
        log.warning("source.data_lost: %s", lost)
        return trimmed


class _OptionalPushdown:
    """`pushFilters` of a reader that also works where filters are not pushed down.

    Spark refuses a reader that defines `pushFilters` while `spark.sql.python.filterPushdown.enabled` is off, its
    default: the rows might then not be filtered. Ours hands every filter back to Spark, so they always are. What
    Spark looks at is `__func__`: it finds its own method there.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            self._reader.narrow_by(one)
        return filters


class LogReader(_Reader, DataSourceReader):
    """A batch read: the ids in (after, upto], as far as the log went when it was planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._bounds: list[tuple[str, int]] = []
        self._times: list[tuple[str, datetime]] = []
        self._nothing = False

    @property
    def pushFilters(self) -> Callable[[list[Filter]], Iterable[Filter]]:  # noqa: N802 - Spark's name
        return _OptionalPushdown(self)

    def narrow_by(self, one: Filter) -> None:
        """Ask the server for less, by what a filter says of `id`, `time` or `stream`. Spark looks at the rows again."""
        attribute, value, sign = getattr(one, "attribute", ()), getattr(one, "value", None), _SIGNS.get(type(one))
        if attribute == ("id",) and sign and isinstance(value, int):
            self._bounds.append((sign, value))
        elif attribute == ("time",) and sign and isinstance(value, datetime):
            self._times.append((sign, value))
        elif attribute == ("stream",) and isinstance(one, (EqualTo, In)):
            self._narrow_streams([one.value] if isinstance(one, EqualTo) else list(one.value))

    def _narrow_streams(self, names: list[Any]) -> None:
        patterns = self._streams.split(",") if self._streams else []
        wanted = [name for name in names if _is_name(name)]
        if patterns:
            wanted = [name for name in wanted if any(matches(pattern.strip(), name) for pattern in patterns)]
        self._nothing = self._nothing or not wanted
        if 0 < len(wanted) <= MOST_NAMES:
            self._streams = ",".join(sorted(set(wanted)))

    def partitions(self) -> Sequence[InputPartition]:
        client, read = self._client, self._read
        if read.cuts:  # planned before, and written down: not to be planned again
            return [Part(cut) for cut in read.cuts]
        newest = client.newest()
        after = client.position(read.since) if read.since else read.after or 0
        upto = client.position(read.until) if read.until else newest if read.upto is None else read.upto
        after, upto = narrow(after, upto, [*self._bounds, *self._ids_of_times()])
        cuts: list[Cut] = []
        while after < upto and not self._nothing:
            _, plan = self._plan(after, upto)
            cuts += cuts_of(plan["slices"])
            after = plan["upto"]
        return [Part(cut) for cut in cuts]

    def _ids_of_times(self) -> Iterator[tuple[str, int]]:
        for sign, moment in self._times:
            if sign != "<" and sign != "<=":
                yield ">", self._client.position(_text(moment - CLOCK_MARGIN))
            if sign != ">" and sign != ">=":
                yield "<=", self._client.position(_text(moment + CLOCK_MARGIN))


class LogStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. The server decides once where a consumer begins; an offset carries its cuts."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._end: int | None = None
        self._planned = 0
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
        after = self._planned = position_of(start)
        upto = self._client.newest(after, wait=self._read.wait) if self._end is None else self._end
        if upto < after:
            self._check_in_log(after, upto)
        if upto <= after:
            return start
        begin, plan = self._plan(after, upto, **self._limits(limit))
        self._planned = plan["upto"]
        cuts = cuts_of(plan["slices"]) or ([Cut(begin, self._planned)] if begin < self._planned else [])
        return offset_of(self._planned, cuts, lost_before(after, begin))

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The end of the log, and how many ids the query is behind it: `latestOffset` in its progress."""
        newest = self._client.newest()
        return {"upto": newest, "lag": max(0, newest - self._planned)}

    def _check_in_log(self, position: int, newest: int) -> None:
        """Refuse a position that the log never had. A node that only lags behind is waited for."""
        try:
            self._client.plan(position, position, **self._history)
        except ApiError as error:
            if error.status == 404:
                raise PositionBeyondLog(position, newest) from None
            raise

    def _limits(self, limit: ReadLimit) -> dict[str, int]:
        if isinstance(limit, ReadMaxRows):
            return {"max_rows": limit.max_rows, **_given(max_bytes=self._read.max_bytes)}
        return {"max_bytes": limit.max_bytes} if isinstance(limit, ReadMaxBytes) else {}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Part(cut) for cut in cuts_between(start, end)]


def read_slice(client: PipelineClient, part: Part, asked: Mapping[str, str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of one cut. Fails rather than giving fewer: see `CutOff`."""
    with client.open("/v1/log/arrow", {"after": part.lo, "upto": part.hi, **(asked or {})}) as answer:
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
        raise RowsMissing(f"the export of ({part.lo}, {part.hi}] gave {rows} rows of {metadata[b'rows'].decode()}")


def _is_name(value: object) -> bool:
    """Whether a stream may be called so. If not there is none, and the server need not be asked."""
    try:
        return isinstance(value, str) and bool(check_name(value))
    except NameInvalid:
        return False


def _text(moment: datetime) -> str:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


def _given(**limits: int | None) -> dict[str, int]:
    return {name: value for name, value in limits.items() if value is not None}
