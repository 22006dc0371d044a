"""`./penstock up` with its pipeline, as an operator sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench import pipeline as bench
from bench.rig.report import Report
from penstock.pipeline.client import PipelineClient
from penstock.testing import wait_until
from tests.spark.filling import QUICK_JAVA, differences, publish
from tests.spark.sockets import beyond_loopback, family

START_SECONDS = 240
NOWHERE = "spark://nobody.invalid:7077"


@contextmanager
def up(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], PipelineClient]]:
    data, output = tmp_path / "data", tmp_path / "up.out"
    command = [sys.executable, "-m", "penstock", "up", "--data", str(data), "--listen", "127.0.0.1:0", *arguments]
    with output.open("wb") as out, (tmp_path / "up.log").open("wb") as log:
        environment = {**os.environ, **QUICK_JAVA, "PENSTOCK_NO_SYSTEM": "1"}
        process = subprocess.Popen(command, stdout=out, stderr=log, env=environment)
    try:
        url = wait_until(lambda: output.read_text().partition("ready on ")[2].partition(" ")[0], within=30)
        yield process, PipelineClient(url, (data / "admin.token").read_text().strip())
    finally:
        process.terminate()
        process.wait(30)


def driver(client: PipelineClient) -> Any:
    found = client.call("GET", "/v1/pipeline")["driver"]
    return found if found and found["alive"] else None


def is_running(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_up_archives_by_itself_restarts_its_driver_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark's own settings name a cluster that is not there: the driver of `up` runs on this machine all the same
    (tmp_path / "spark-defaults.conf").write_text(f"spark.master {NOWHERE}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)  # a session of this process sets it: no way is looked for then
    with up(tmp_path) as (process, client):
        first = wait_until(lambda: driver(client), within=START_SECONDS)
        assert first["master"] == "local[2]"
        publish(client, "/orders", [b"one", b"two"])
        newest = client.newest()
        wait_until(lambda: caught_up(client, newest), within=START_SECONDS)
        assert differences(client, tmp_path / "data" / "lake") == []
        assert beyond_loopback(process.pid) == set()

        # The benchmark of `up` measures it
        report = Report("pipeline", as_json=True)
        bench.measure_up(report, process.pid, client, 2, {"freshness", "idle"})
        assert {figure.met for figure in report.figures} <= {"must", "aim", "no"}
        assert all(figure.value > 0 for figure in report.figures)

        # A job is handed to the driver that is there: nothing is started for it
        compact = ("pipeline", "compact", "--all", "--url", client.url, "--token", client.token)
        assert command(*compact).startswith("compact: ")
        assert driver(client)["pid"] == first["pid"]

        # One with a setting of its own is not: it gets a session, where Spark's own settings say
        told = run(*compact, "--conf", "spark.driver.memory=900m")
        assert (told.returncode, "no way to nobody.invalid" in told.stderr) == (2, True)

        # A driver that is killed is replaced
        os.killpg(first["pid"], signal.SIGKILL)
        second = wait_until(lambda: (found := driver(client)) and found["pid"] != first["pid"] and found, START_SECONDS)
        assert client.call("GET", "/v1/pipeline")["supervisor"]["restarts"] == 1

        # Everything ends with `up`, even when that gets no chance to see to it
        started = family(process.pid) - {process.pid}
        assert second["pid"] in started
        process.kill()
        wait_until(lambda: not [pid for pid in started if is_running(pid)], within=60)


def caught_up(client: PipelineClient, newest: int) -> bool:
    tables = client.call("GET", "/v1/pipeline")["tables"]
    return all(tables.get(name, {}).get("done", 0) >= newest for name in ("events", "ledger"))


def command(*arguments: str) -> str:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_java_the_server_runs_and_one_line_says_how_to_add_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with up(tmp_path) as (process, client):
        wait_until(lambda: "apt-get install openjdk" in (tmp_path / "up.log").read_text())
        state = client.call("GET", "/v1/pipeline")
        assert state["supervisor"]["state"] == "missing"
        assert state["driver"] is None
        assert process.poll() is None
    lines = [line for line in (tmp_path / "up.log").read_text().splitlines() if line.startswith("penstock: ")]
    assert len(lines) == 1


def test_without_a_pipeline_there_is_none(tmp_path: Path) -> None:
    with up(tmp_path, "--no-pipeline") as (_, client):
        assert client.call("GET", "/v1/pipeline")["supervisor"] is None
    assert not (tmp_path / "data" / "lake").exists()


def test_package_makes_the_code_for_workers(tmp_path: Path) -> None:
    said = command("pipeline", "package", str(tmp_path / "workers.zip"))

    assert "--py-files" in said
    assert (tmp_path / "workers.zip").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("archiv", "--lake", "/tmp/x"), "Did you mean archive?"),  # noqa: S108
        (("archive", "--lake", "ftp://place/x", "--own", "--once"), "cannot be opened"),
        (("compact", "--everything", "--lake", "/tmp/x"), "is no option of the job compact"),  # noqa: S108
        (("archive", "--lake", "/tmp/x", "--conf", "memory=1g"), "'memory' is not spark.NAME=VALUE"),  # noqa: S108
    ],
)
def test_mistakes_are_told_in_one_line(arguments: tuple[str, ...], said: str, shared_server: Any) -> None:
    environment = {**os.environ, "PENSTOCK_URL": shared_server.url, "PENSTOCK_TOKEN": shared_server.admin_token}
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )

    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
