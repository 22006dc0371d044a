"""The jobs, one module each: `transform(DataFrame) → DataFrame` where there is one, `OPTIONS`, and `run`.

OPTIONS: Mapping[str, str]                                          # name → what it does
def run(place: Workplace, options: Mapping[str, str]) -> Outcome
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from pyspark.sql import SparkSession

from penstock.errors import InputInvalid, NotFound
from penstock.pipeline.client import Client
from penstock.pipeline.commit import Faults
from penstock.pipeline.tables import Lake

JOBS: Final = ("archive", "ledger", "rollup", "compact", "audit", "retention", "replay", "campaign", "erase")

BEGIN: Final = "pipeline/begin"
"""The record of where the lake begins, if that is not the log's first entry."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """What a job works with."""

    spark: SparkSession
    client: Client
    lake: Lake
    faults: Faults = field(default_factory=Faults)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job has done."""

    words: str  # for people; may have several lines
    data: Mapping[str, Any] = field(default_factory=dict)  # for programs: JSON, at most 200 KB
    exit_code: int = 0
    more: bool = False  # there is more to do right away: a limit was reached


class Job(Protocol):
    """What a module of this folder offers."""

    OPTIONS: Mapping[str, str]

    def run(self, place: Workplace, options: Mapping[str, str]) -> Outcome: ...


def find(name: str) -> Job:
    """The job called *name*."""
    if name not in JOBS:
        near = difflib.get_close_matches(name, JOBS, n=1, cutoff=0)
        raise NotFound("job", name, remedy=f"Did you mean {near[0]}? There are {', '.join(JOBS)}.")
    return cast("Job", importlib.import_module(f"{__name__}.{name}"))


def check_options(name: str, options: Mapping[str, str]) -> None:
    """Refuse options that *name* does not have."""
    known = find(name).OPTIONS
    for option in options:
        if option not in known:
            said = ", ".join(f"--{one}" for one in known) or "none"
            raise InputInvalid(f"--{option}", f"is no option of the job {name}; it has {said}")
