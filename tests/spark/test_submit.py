"""`spark-submit` with what `pipeline package` makes, where nothing of ours is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.cli.app import run
from penstock.pipeline.client import PipelineClient
from penstock.testing import RunningServer, wait_until
from tests.spark.filling import differences, fill
from tests.spark.sockets import beyond_loopback
from tests.spark.test_standalone import HOME, cluster, end

__all__ = ["cluster"]
ELSEWHERE = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "numpy.libs", "dateutil", "pytz", "six.py")
ICEBERG = (
    "pyiceberg", "pydantic", "pydantic_core", "annotated_types", "typing_extensions.py", "typing_inspection", "mmh3",
    "mmh3.cpython-311-x86_64-linux-gnu.so", "fsspec", "cachetools", "strictyaml", "pyparsing", "tenacity", "requests",
    "urllib3", "idna", "certifi", "charset_normalizer", "zstandard", "click", "rich", "pyroaring",
    "pyroaring.cpython-311-x86_64-linux-gnu.so",
)  # fmt: skip
"""pyiceberg and what it needs: the driver has it, the workers have not."""


def other_python(folder: Path) -> dict[str, str]:
    """The environment of a machine that has Python with pyarrow, pandas and pyspark, and no Penstock."""
    worker = make_python(folder / "worker", ELSEWHERE)
    driver = make_python(folder / "driver", (*ELSEWHERE, *ICEBERG))
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    own = {"PYSPARK_PYTHON": str(worker), "PYSPARK_DRIVER_PYTHON": str(driver), "SPARK_HOME": str(HOME)}
    return {**environment, "PYTHONPATH": "", **own}


def make_python(folder: Path, names: tuple[str, ...]) -> Path:
    """A Python that finds these packages of ours, and no other."""
    packages, program = folder / "packages", folder / "python"
    packages.mkdir(parents=True)
    for name in names:
        found = Path(pyspark.__file__).parents[1] / name
        if found.exists():
            (packages / name).symlink_to(found)
    # Without `site` nothing of this environment is found; workers of a cluster get no PYTHONPATH of ours.
    path, python = f'PYTHONPATH="$PYTHONPATH:{packages}"', Path(sys.executable).resolve()
    program.write_text(f'#!/bin/sh\n{path} exec {python} -S "$@"\n')
    program.chmod(0o755)
    return program


@pytest.mark.long
@pytest.mark.parametrize("master", ["local[2]", "standalone"])
def test_the_package_runs_where_nothing_of_ours_is_installed(
    server: RunningServer, tmp_path: Path, request: pytest.FixtureRequest, master: str
) -> None:
    client, lake = PipelineClient(server.url, server.admin_token), tmp_path / "lake"
    fill(client, 20_000)
    environment = other_python(tmp_path)
    absent = subprocess.run([environment["PYSPARK_PYTHON"], "-c", "import penstock"], env=environment, check=False)
    assert absent.returncode == 1
    # Given what the command makes
    package = tmp_path / "penstock-spark.zip"
    assert run(["pipeline", "package", str(package)]) == 0
    where = master if master != "standalone" else request.getfixturevalue("cluster")[0]
    # When Spark runs it
    command = [str(HOME / "bin" / "spark-submit"), "--master", where, "--py-files", str(package)]
    command += [str(package.with_suffix(".py")), "--url", server.url, "--lake", str(lake), "--once"]
    with (tmp_path / "submit.log").open("wb") as out:
        job = subprocess.Popen(
            [*command, "--jobs", "archive,ledger,audit"],
            env={**environment, "PENSTOCK_TOKEN": server.admin_token},
            stdout=out,
            stderr=out,
            cwd=tmp_path,
            start_new_session=True,
        )
    try:
        wait_until(lambda: (lake / "events").exists() and any((lake / "events").iterdir()), within=120)
        assert beyond_loopback(job.pid) == set()
        # Then it ends well, and the lake equals the log
        assert job.wait(180) == 0, (tmp_path / "submit.log").read_text()[-3000:]
    finally:
        end(job)
    assert "passes" in (tmp_path / "submit.log").read_text()
    assert differences(client, lake) == []
