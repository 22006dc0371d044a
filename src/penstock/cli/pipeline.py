"""`pipeline`: jobs on Spark, by the warm driver of a running `up` when there is one, else in a session of their own."""

from __future__ import annotations

import json as json_text
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.options import Json, Token, Url, find_token, server_url
from penstock.errors import InputInvalid, OperatorError

if TYPE_CHECKING:
    from penstock.pipeline.client import PipelineClient
    from penstock.pipeline.jobs import JobOutcome, Workplace
    from penstock.pipeline.lake import Lake

LOOPING: Final = ("archive", "ledger", "typed", "rollup")
"""Jobs that go on until they are ended, unless --once is given."""

SOURCE: Final = Path(__file__).parents[2]
PACKAGED: Final = (
    "pyspark_penstock.py",
    "penstock/__init__.py",
    "penstock/errors.py",
    "penstock/limits.py",
    "penstock/units.py",
    "penstock/client/__init__.py",
    "penstock/client/http.py",
    "penstock/core/__init__.py",
    "penstock/core/matching.py",
    "penstock/core/names.py",
    "penstock/iceberg/__init__.py",
    "penstock/iceberg/files.py",
    "penstock/iceberg/relocating.py",
    "penstock/iceberg/schemas.py",
    "penstock/iceberg/snapshots.py",
    "penstock/iceberg/store.py",
    "penstock/iceberg/tables.py",
    "penstock/wire/__init__.py",
    "penstock/wire/table_columns.py",
    "penstock/wire/lake_files.py",
    "penstock/wire/ledger.py",
    "penstock/wire/retrying.py",
    "penstock/wire/typed_tables.py",
    "penstock/wire/urls.py",
    "penstock/pipeline/**/*.py",
)
"""What Spark's workers need."""


LakeFolder = Annotated[
    str, typer.Option("--lake", metavar="PLACE", help="A folder, or s3://…; else the one that the server knows.")
]
Master = Annotated[str, typer.Option("--master", metavar="MASTER", help="Spark's master; local[2] by default.")]

Conf = Annotated[
    list[str],
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's; may be repeated. Wins over all others."),
]

DRIVER: Final = '''"""What spark-submit runs: the driver in the .zip beside it."""

import sys

from penstock.pipeline.driver import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
'''


class SparkMissing(OperatorError):
    """pyspark or Java is not there."""

    code = "spark_missing"

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy


def pipeline(
    context: typer.Context,
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="archive, ledger, typed, rollup, compact, audit, repair, migrate … or package."
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Do what there is to do, and end.")] = False,
    url: Url = "",
    token: Token = "",
    lake: LakeFolder = "",
    master: Master = "",
    own: Annotated[bool, typer.Option("--own", help="Never hand the job to a running driver.")] = False,
    conf: Conf = [],  # noqa: B006 - typer copies it
    json: Json = False,
) -> int:
    """Run a job of the data pipeline on Spark.

    Where './penstock up' runs, its warm driver does the job. Elsewhere, and with --master or --conf, a session of
    its own does; spark-defaults.conf and PYSPARK_SUBMIT_ARGS count for it. archive, ledger, typed and rollup go on
    until they are ended, unless --once is given. Further options belong to the job: docs/pipeline.md lists them.

    \b
    ./penstock pipeline archive --once --lake ./lake
    ./penstock pipeline compact
    ./penstock pipeline archive --master spark://127.0.0.1:7077 --lake s3://bucket/lake
    What the lake has lost, again from the log and from its other tables (--dry-run: only say what):
      ./penstock pipeline repair
      ./penstock pipeline repair --table events --from 1001 --to 2000
    A lake that was moved, and one of the version before Iceberg:
      ./penstock pipeline repair --moved-from /srv/lake --lake s3://bucket/lake
      ./penstock pipeline migrate /srv/old-lake /srv/lake
    The code for Spark's workers, as a .zip:
      ./penstock pipeline package penstock-spark.zip
    """
    if job == "package":
        return _package(Path(context.args[0] if context.args else "penstock-spark.zip"))
    require_spark()
    from penstock.pipeline.client import PipelineClient
    from penstock.pipeline.jobs import check_options

    if job == "migrate":
        client = PipelineClient(server_url(url), find_token(token))
        return _print(_migrate(client, context.args, SparkPlace(master, spark_settings(conf))), json=json)
    client = PipelineClient(server_url(url), find_token(token))
    options = with_whole_paths(job_options(context.args))
    check_options(job, options)
    location = _location(client, lake)
    if "moved-from" in options:
        return _print(_adopt_moved(client, location, options), json=json)
    place = SparkPlace(master, spark_settings(conf), own)
    while (outcome := _run(client, job, options, location, place, once)).data.get("more"):
        print(outcome.words, file=sys.stderr)  # it has given way to others, and goes on
    return _print(outcome, json=json)


def audit(
    url: Url = "",
    token: Token = "",
    lake: LakeFolder = "",
    master: Master = "",
    full: Annotated[bool, typer.Option("--full", help="Read every file again, not only what is new.")] = False,
    conf: Conf = [],  # noqa: B006 - typer copies it
    json: Json = False,
) -> int:
    """Prove that nothing is missing and nothing is there twice; ends with 0 if that is so.

    Compares the lake with the heads of all streams, the mailboxes and the ledger's own numbering. docs/pipeline.md
    says what each verdict means.

    \b
    ./penstock audit --json
    """
    require_spark()
    from penstock.pipeline.client import PipelineClient

    client = PipelineClient(server_url(url), find_token(token))
    options = {"full": ""} if full else {}
    place = SparkPlace(master, spark_settings(conf))
    return _print(_run(client, "audit", options, _location(client, lake), place, once=True), json=json)


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """Where a job is to run, as the command line says it."""

    master: str
    settings: dict[str, str]
    own: bool = False

    @property
    def may_be_handed_over(self) -> bool:
        """Whether a driver that runs already may do it."""
        return not (self.own or self.master or self.settings)


def spark_settings(given: list[str]) -> dict[str, str]:
    """`--conf NAME=VALUE` as a mapping."""
    pairs = [one.partition("=") for one in given]
    for name, equals, _ in pairs:
        if not equals or not name.startswith("spark."):
            raise InputInvalid("--conf", f"{name[:40]!r} is not spark.NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _run(
    client: PipelineClient, job: str, options: dict[str, str], lake: str, place: SparkPlace, once: bool
) -> JobOutcome:
    from penstock.pipeline import handed_jobs

    if place.may_be_handed_over and handed_jobs.warm_driver(client, lake):
        return handed_jobs.hand_over(client, job, options)
    from penstock.pipeline.jobs import JobOutcome
    from penstock.pipeline.lake import open_lake
    from penstock.pipeline.lake_identity import bind
    from penstock.pipeline.loop import PERIOD_SECONDS, Heartbeat, JobLoop

    opened = open_lake(lake)
    bind(client, opened)
    with _workplace(place, job, client, opened) as work:
        if once or job not in LOOPING:
            return _to_its_end(work, job, options)
        loop = JobLoop(work, {job: PERIOD_SECONDS})
        with Heartbeat(client, loop.state):
            loop.run(lambda: False)
        return JobOutcome("ended")


def _adopt_moved(client: PipelineClient, lake: str, options: dict[str, str]) -> JobOutcome:
    """Needs no Spark: no row is read."""
    from penstock.pipeline.jobs import say_progress
    from penstock.pipeline.lake import open_lake
    from penstock.pipeline.moved_lake import adopt

    if others := options.keys() - {"moved-from", "dry-run"}:
        raise InputInvalid("--moved-from", f"does not go with --{min(others)}")
    return adopt(client, open_lake(lake), options["moved-from"], say_progress, dry_run="dry-run" in options)


def _migrate(client: PipelineClient, arguments: list[str], place: SparkPlace) -> JobOutcome:
    """Never by a running driver: that one refuses the old lake."""
    from penstock.pipeline import old_lake
    from penstock.pipeline.jobs import JobOutcome
    from penstock.pipeline.lake import open_lake

    options = job_options([one for one in arguments if one.startswith("--")])
    places = [one for one in arguments if not one.startswith("--")]
    if len(places) != 2 or options.keys() - {"dry-run"}:
        raise InputInvalid("arguments", "must be OLD and NEW", remedy="./penstock pipeline migrate OLD NEW [--dry-run]")
    old, new = Path(places[0]).absolute(), open_lake(places[1])
    if "dry-run" in options:
        found = old_lake.plan(client, old, new)
        lines = [f"{table}: {len(files):,} files" for table, files in found.items()]
        return JobOutcome("\n".join([f"migrate: to {new.place} would be taken over", *lines]), {"dry_run": True})
    with _workplace(place, "migrate", client, new) as work:
        return old_lake.migrate(work, old)


def _to_its_end(place: Workplace, job: str, options: dict[str, str]) -> JobOutcome:
    """In a session of its own a job goes on at once after each of its turns."""
    from penstock.pipeline.loop import perform

    while (outcome := perform(place, job, options)).more:
        print(outcome.words, file=sys.stderr)
    return outcome


@contextmanager
def _workplace(place: SparkPlace, job: str, client: PipelineClient, lake: Lake) -> Iterator[Workplace]:
    """A session of its own for one job, until the block ends."""
    from penstock.pipeline.jobs import Workplace
    from penstock.pipeline.session import given_settings, open_session

    with place_of_session(place, given_settings()) as (master, settings):
        spark = open_session(master, name=f"penstock-{job}", settings=settings)
        try:
            yield Workplace(spark, client, lake)
        finally:
            spark.stop()


@contextmanager
def place_of_session(place: SparkPlace, given: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The master of a job and its settings, with our code for workers elsewhere; *given* is what Spark was given."""
    from penstock.pipeline.session import LOCAL

    named = (place.settings.get("spark.master"), place.master, given.get("spark.master"), LOCAL)
    master = next(one for one in named if one)
    with _package_for(master, {**given, **place.settings}) as files:
        yield master, {**place.settings, **files}


@contextmanager
def _package_for(master: str, given: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Settings that give workers in other processes our code, as a .zip beside what they are given anyway."""
    if master.startswith("local"):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        file = Path(folder, "penstock-spark.zip")
        make_package(file)
        theirs = given.get("spark.submit.pyFiles", "")
        yield {"spark.submit.pyFiles": f"{theirs},{file}" if theirs else str(file)}


def job_options(arguments: list[str]) -> dict[str, str]:
    """`--name value`, `--name=value` and `--flag` as a mapping."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name = rest.pop(0)
        if not name.startswith("--"):
            raise InputInvalid("argument", f"{name!r} is neither an option nor its value")
        name, equals, value = name.removeprefix("--").partition("=")
        if not equals and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        options[name] = value
    return options


def with_whole_paths(options: dict[str, str]) -> dict[str, str]:
    """Files are named from here: the driver that does the job may have been started elsewhere."""
    source = options.get("source")
    return {**options, "source": str(Path(source).absolute())} if source else options


def _location(client: PipelineClient, given: str) -> str:
    """Where the lake is, as a whole path or URL, so that it can be compared."""
    known = given or str(client.call("GET", "/v1/pipeline")["lake"])
    if not known:
        raise InputInvalid("--lake", "is missing", remedy="Say where the lake is, or is to be: a folder, or s3://…")
    return known if "://" in known else str(Path(known).absolute())


def _print(outcome: JobOutcome, *, json: bool) -> int:
    print(json_text.dumps(dict(outcome.data)) if json else outcome.words)
    return outcome.exit_code


def _package(file: Path) -> int:
    make_package(file)
    driver = file.with_suffix(".py")
    driver.write_text(DRIVER)
    print(f"made {file} and {driver}; they run where neither server nor command line is installed:")
    print(f"  PENSTOCK_TOKEN=… spark-submit --master MASTER --py-files {file} {driver} \\")
    print("    --url URL --lake PLACE --jobs archive,ledger --once")
    return 0


def make_package(file: Path) -> None:
    """Write the .zip for workers that have nothing but Python, pyarrow and pyspark."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        for pattern in PACKAGED:
            for path in sorted(SOURCE.glob(pattern)):
                package.write(path, path.relative_to(SOURCE))


def require_spark() -> None:
    """Make sure of pyspark and of Java, installing the latter where that is allowed; else say what to do."""
    import importlib.util

    from penstock.cli import java

    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing("pyspark is not installed", "Run './penstock install pipeline'.")
    if problem := java.ensure():
        raise SparkMissing(problem, java.REMEDY)
