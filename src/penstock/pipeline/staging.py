"""Frames into staged files: one file per slice, checked against the plan before it gets a name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as parquet  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from penstock.pipeline.commit import Slice, Staged, StagedWrong
from penstock.wire.lake import LakeFile


def stage_slices(frame: DataFrame, folder: Path, table: str, slices: Sequence[Slice]) -> list[Staged]:
    """Write *frame*, whose partition k is slice k, by Spark's own writer."""
    frame.write.mode("overwrite").parquet(str(folder))
    return staged_slices(sorted(folder.glob("part-*.parquet")), table, slices)


def staged_slices(parts: Sequence[Path], table: str, slices: Sequence[Slice]) -> list[Staged]:
    """The files of *slices*, in their order, each checked against the plan: it has as many rows, and a whole footer."""
    if len(parts) != len(slices):
        raise StagedWrong(f"{len(parts)} files were staged for {len(slices)} slices")
    staged = []
    for path, one in zip(parts, slices, strict=True):
        if rows_of(path) != one.rows:
            raise StagedWrong(f"{path} has {rows_of(path)} rows, but ({one.lo}, {one.hi}] has {one.rows}")
        staged.append(Staged(path, LakeFile(one.lo, one.hi, one.day, table)))
    return staged


def stage_one(frame: DataFrame, folder: Path, table: str, one: Slice, *, empty: bool = False) -> list[Staged]:
    """Write *frame* as the one file of a slice; no file when there are no rows, unless *empty* ones are wanted."""
    frame.coalesce(1).write.mode("overwrite").parquet(str(folder))
    written = sorted(folder.glob("part-*.parquet"))
    parts = [path for path in written if rows_of(path)] or (written[:1] if empty else [])
    if len(parts) > 1:
        raise StagedWrong(f"{len(parts)} files were staged for one slice")
    return [Staged(path, LakeFile(one.lo, one.hi, one.day, table)) for path in parts]


def rows_of(path: Path) -> int:
    """The rows of a Parquet file, from its footer: a file without a whole footer is an error."""
    return int(parquet.read_metadata(path).num_rows)
