"""Slices of the log as staged files: each is read and written within one task, and no row enters the JVM.

Spark decides where and when a slice is copied, and does it again when a worker is lost. The rows themselves go from
the export's Arrow to Parquet in the task's own process: a tenth of what it costs to hand them to Spark's writer
(docs/decisions/0009-archive-in-tasks.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]
from pyspark import SparkContext, TaskContext

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import Slice, StagedWrong
from penstock.pipeline.offsets import Cut
from penstock.pipeline.source import Part, read_slice
from penstock.pipeline.tables import COMPRESSION, GROUP_BYTES
from penstock.wire.columns import EVENT, NAMES

_BULKY: Final = ("attributes", "body")
_WRITING: Final[dict[str, Any]] = {
    "compression": COMPRESSION,
    # Values that hardly ever come twice fill a dictionary for nothing, and bodies make long statistics.
    "use_dictionary": [column.name for column in EVENT if column.repeats],
    "write_statistics": [name for name in NAMES if name not in _BULKY],
    # A file must not tell by whom it was written: pyarrow would read its own types back instead of Parquet's.
    "store_schema": False,
}


@dataclass(frozen=True, slots=True)
class Copy:
    """What one task does: copy the slice *number* to a file in *folder*."""

    client: PipelineClient
    number: int
    lo: int
    hi: int
    folder: str

    def run(self) -> str:
        """Write the file, complete, and return its path. A task that runs twice writes two files."""
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"part-{self.number:05d}-{_attempt()}.parquet"
        write(path, read_slice(self.client, Part(Cut(self.lo, self.hi))))
        return str(path)


def copy_slices(spark: SparkContext, client: PipelineClient, slices: Sequence[Slice], folder: Path) -> list[Path]:
    """Copy every slice, one task each; returns their files in the order of the slices."""
    copies = [Copy(client, number, one.lo, one.hi, str(folder)) for number, one in enumerate(slices)]
    return [Path(path) for path in spark.parallelize(copies, len(copies)).map(Copy.run).collect()]


def write(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write *batches* as one Parquet file with row groups of `GROUP_BYTES`."""
    gathered = _gathered(iter(batches))
    first = next(gathered, None)
    if first is None:
        raise StagedWrong(f"there are no rows for {path}")
    with parquet.ParquetWriter(path, first.schema, **_WRITING) as writer:
        writer.write_table(first)
        for table in gathered:
            writer.write_table(table)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches joined to row groups. What is in memory is one of them."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _attempt() -> int:
    """The number of this try of this task: a try that is taken for lost may still be writing."""
    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()
