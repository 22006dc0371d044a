"""The jobs, one module each: `OPTIONS`, `run`, and transforms from frame to frame where there are some."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import InputInvalid, NotFound
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import Faults, Intent, Turn
from penstock.pipeline.tables import SCHEMAS, Lake
from penstock.wire.lake import LakeFile

JOBS: Final = ("archive", "ledger", "rollup", "compact", "audit", "retention", "replay", "campaign", "erase")

BEGIN: Final = "pipeline/begin"
"""The record of where the lake begins, if that is not the log's first entry."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """What a job works with."""

    spark: SparkSession
    client: PipelineClient
    lake: Lake
    faults: Faults = field(default_factory=Faults)

    def read(self, table: str, files: Iterable[LakeFile]) -> DataFrame:
        """The rows of these files of *table*."""
        paths = [str(self.lake.path(file)) for file in files]
        if not paths:  # Spark refuses to read nothing
            return self.spark.createDataFrame([], SCHEMAS[table])
        return self.spark.read.schema(SCHEMAS[table]).parquet(*paths)

    def begins_after(self) -> int:
        """The id after which the lake begins: not 0 where the log had been trimmed before its first archive."""
        return int(self.client.get(BEGIN).value.get("after", 0))

    def turns(
        self, name: str, upto: int, plan: Callable[[int], Intent], kind: type[Turn] = Turn
    ) -> Iterator[tuple[Turn, Intent]]:
        """Turns on the record *name* until it is done up to *upto*, each with its intent written down.

        *plan* says what comes after an id. A turn that was cut off before is redone, whatever *plan* would say.
        """
        while True:
            record = self.client.get(f"lake/{name}").value  # looked at first: mostly there is nothing to do
            if record.get("intent") is None and record.get("done", 0) >= upto:
                return
            turn = kind(self.client, self.lake, name, self.faults)
            if turn.intent is None:
                turn.intend(plan(turn.done))
            yield turn, cast("Intent", turn.intent)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a job has done."""

    words: str  # for people; may have several lines
    data: Mapping[str, Any] = field(default_factory=dict)  # for programs: JSON, at most 200 KB
    exit_code: int = 0
    more: bool = False  # there is more to do right away: a limit was reached


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
