"""The jobs, one module each: `OPTIONS`, `run`, and transforms from frame to frame where there are some."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, cast

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.errors import InputInvalid, NotFound
from penstock.iceberg.files import PlannedFile, WrittenFile
from penstock.pipeline import lend_keys
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import Faults, Intent, Turn, record_names
from penstock.pipeline.file_lists import FileList, OfEachFile, RowsOfFile, list_files
from penstock.pipeline.lake import Lake, columns_in, covering, record_of
from penstock.pipeline.writing import ReadFiles
from penstock.wire.lake_files import LakeFile
from penstock.wire.table_columns import TABLES, Column, ddl

T = TypeVar("T")
R = TypeVar("R")

TASK_ROWS: Final = 500_000
"""Rows that one task of a shuffle has at most, as a rule: it holds them in memory to sort and write them."""

TASK_FILES: Final = 16
"""Files that one task reads at most, where Spark itself cannot open the store."""

_SHUFFLE: Final = "spark.sql.shuffle.partitions"

JOBS: Final = (
    "archive", "ledger", "typed", "rollup", "compact", "audit", "retention", "replay", "campaign", "erase", "repair",
)  # fmt: skip

BEGIN: Final = "pipeline/begin"
"""The record of where the lake begins, if that is not the log's first entry."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """What a job works with."""

    spark: SparkSession
    client: PipelineClient
    lake: Lake
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        """Let tasks open the store."""
        if not self.lake.store.is_local:
            lend_keys(self.spark)

    def files(self, table: str) -> list[PlannedFile]:
        """The files of *table* as it is now, in order of the ids that they cover."""
        return self.lake.files(table, self.client.get(f"lake/{record_of(table)}").value)

    def listed(self, table: str) -> FileList:
        """The same files for a job that looks at all of them: in some 40 bytes each."""
        found = self.lake.table(table, self.client.get(f"lake/{record_of(table)}").value)
        return list_files(self.lake.store, table, found.locations())

    def columns(self, table: str) -> tuple[Column, ...]:
        return TABLES.get(table) or tuple(columns_in(table, self.client.get(f"lake/{table}").value))

    def records(self) -> list[str]:
        """The names of the records that are there, those of typed tables last."""
        return [name for name in record_names(self.client) if self.client.get(f"lake/{name}").version]

    def events_in(self, after: int, upto: int) -> list[PlannedFile]:
        """The files of `events` with the ids in (after, upto]; `LakeHole` if some of those are in none."""
        found = covering("events", self.files("events"), max(after, min(self.begins_after(), upto)), upto)
        self.lake.check(found)
        return found

    def read(
        self,
        table: str,
        files: Iterable[PlannedFile | WrittenFile],
        *columns: str,
        name_as: str = "",
        streams: Sequence[str] = (),
    ) -> DataFrame:
        """The rows of these files of *table*: these *columns*, or all; *name_as* is one more, the file's name.

        Spark itself reads a folder. It cannot open other stores; there the tasks read by pyarrow, all *columns* of all
        rows, or of those of *streams*: say what is needed.
        """
        known = self.columns(table)
        names = columns or tuple(column.name for column in known)
        schema = ddl([column for name in names for column in known if column.name == name])
        schema += f", {name_as} STRING" if name_as else ""
        paths = [self.lake.store.relative(one.location) for one in files]
        return self.read_stored(paths, schema, name_as, streams, () if table in TABLES else known)

    def read_stored(
        self,
        paths: Sequence[str],
        schema: str,
        name_as: str = "",
        streams: Sequence[str] = (),
        columns: tuple[Column, ...] = (),
    ) -> DataFrame:
        """The rows of Parquet files of the store. The last column is the file's name if *name_as* says so."""
        store, names = self.lake.store, [one.split()[0].strip("`") for one in schema.split(", ")]
        if not paths:  # Spark refuses to read nothing
            return self.spark.createDataFrame([], schema)
        if store.is_local:
            own = schema.removesuffix(f", {name_as} STRING")
            frame = self.spark.read.schema(own).parquet(*map(store.place, paths))
            frame = frame.where(F.col("stream").isin(*streams)) if streams else frame
            return frame.withColumn(name_as, F.col("_metadata.file_name")) if name_as else frame
        locations = [(store.location(path),) for path in paths]
        rows = self.spark.sparkContext.parallelize(locations, self._tasks_for(len(paths)))
        wanted = tuple(name for name in names if name != name_as)
        reading = ReadFiles(store, wanted, name_as, tuple(streams), columns)
        return self.spark.createDataFrame(rows, "location STRING").mapInArrow(reading, schema)

    def read_listed(self, files: FileList, *columns: str, streams: Sequence[str] = ()) -> DataFrame:
        """The rows of these files: these *columns*, or all; of *streams* only, if some are given.

        Tasks read them by pyarrow from every store, all *columns* that are named here: say what is needed.
        """
        known = self.columns(files.table)
        wanted = [column for column in known if column.name in columns or not columns]
        names, typed = tuple(column.name for column in wanted), () if files.table in TABLES else known
        return self.in_groups(files, RowsOfFile(self.lake.store, names, tuple(streams), typed), ddl(wanted))

    def in_groups(
        self, files: FileList, work: Callable[[LakeFile], Iterator[pa.RecordBatch]], schema: str
    ) -> DataFrame:
        """What *work* makes of each file, in tasks of up to `TASK_FILES` neighbours."""
        if not len(files):
            return self.spark.createDataFrame([], schema)
        groups = [(group,) for group in files.groups(self._tasks_for(len(files)))]
        rows = self.spark.sparkContext.parallelize(groups, len(groups))
        return self.spark.createDataFrame(rows, "files STRING").mapInArrow(OfEachFile(files.table, work), schema)

    def _tasks_for(self, files: int) -> int:
        usual = 4 * self.spark.sparkContext.defaultParallelism
        return min(files, max(usual, -(-files // TASK_FILES)))

    @contextmanager
    def shuffling(self, rows: int) -> Iterator[None]:
        """Let shuffles within the block have as many tasks as *rows* need, and no fewer than usual.

        Spark puts tasks together again that turn out to be small.
        """
        usual = self.spark.conf.get(_SHUFFLE) or "1"
        self.spark.conf.set(_SHUFFLE, str(max(int(usual), -(-rows // TASK_ROWS))))
        try:
            yield
        finally:
            self.spark.conf.set(_SHUFFLE, usual)

    def in_tasks(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """What *function* makes of each item, a task for each. A single one is done here: that is quicker."""
        if len(items) < 2:
            return [function(one) for one in items]
        return self.spark.sparkContext.parallelize(items, len(items)).map(function).collect()

    def begins_after(self) -> int:
        """The id after which the lake begins: not 0 where the log had been trimmed before its first archive."""
        return int(self.client.get(BEGIN).value.get("after", 0))

    def turn(self, name: str) -> Turn:
        """A turn on the record *name*."""
        return Turn(self.client, self.lake, name, self.faults)

    def turns(
        self,
        name: str,
        upto: int,
        plan: Callable[[int], Intent],
        memory: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> Iterator[tuple[Turn, Intent]]:
        """Turns on the record *name* until it is done up to *upto*, each with its intent written down.

        *plan* says what comes after an id, *memory* what is kept beside the intent. A turn that was cut off before is
        redone, whatever they would say.
        """
        while True:
            record = self.client.get(f"lake/{name}").value  # looked at first: mostly there is nothing to do
            if record.get("intent") is None and record.get("done", 0) >= upto:
                return
            turn = self.turn(name)
            if turn.intent is None and turn.done >= upto:  # another driver has done it while this one waited
                turn.end()
                return
            if turn.intent is None:
                turn.intend(plan(turn.done), memory(turn.memory))
            yield turn, cast("Intent", turn.intent)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a job has done."""

    words: str  # for people; may have several lines
    data: Mapping[str, Any] = field(default_factory=dict)  # for programs: JSON, at most 200 KB
    exit_code: int = 0
    more: bool = False  # there is more to do right away: a limit was reached


def say_progress(line: str) -> None:
    """Tell whoever watches a long job how far it is: on standard error, which is the driver's log in `up`."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


class JobModule(Protocol):
    """What a module of this folder offers."""

    OPTIONS: Mapping[str, str]

    def run(self, place: Workplace, options: Mapping[str, str]) -> JobOutcome: ...


def find(name: str) -> JobModule:
    """The job called *name*."""
    if name not in JOBS:
        near = difflib.get_close_matches(name, JOBS, n=1, cutoff=0)
        raise NotFound("job", name, remedy=f"Did you mean {near[0]}? There are {', '.join(JOBS)}.")
    return cast("JobModule", importlib.import_module(f"{__name__}.{name}"))


def check_options(name: str, options: Mapping[str, str]) -> None:
    """Refuse options that *name* does not have."""
    known = find(name).OPTIONS
    for option in options:
        if option not in known:
            said = ", ".join(f"--{one}" for one in known) or "none"
            raise InputInvalid(f"--{option}", f"is no option of the job {name}; it has {said}")
