"""The whole of `./penstock demo`, with the pipeline's audit at its end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client.api import Client
from penstock.testing import start_server, wait_until
from tests.cli.running_demo import started
from tests.faults.children import ENVIRONMENT
from tests.spark.filling import QUICK_JAVA


@pytest.mark.limit(400)
def test_the_whole_story_is_archived_and_audited(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "demo", "--no-wait", "--data", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**ENVIRONMENT, **QUICK_JAVA},
    )

    assert done.returncode == 0, (done.stdout, done.stderr)
    assert re.search(r"audit +up to id [\d,]+: passes\n", done.stdout), done.stdout
    assert "the audit agrees" in done.stdout.replace("\n" + " " * 21, " ")
    assert max(map(len, done.stdout.splitlines())) <= 80
    # And what it has told is what is in the log that it has left
    acknowledged = int(re.search(r"([\d,]+) orders and", done.stdout)[1].replace(",", ""))
    with start_server(folder / "server") as server, Client(server.url, server.admin_token) as client:
        assert next(client.streams("/orders")).next_index == acknowledged


def test_ctrl_c_ends_spark_too(tmp_path: Path) -> None:
    with started(tmp_path, "penstock", "demo", **QUICK_JAVA) as demo:
        demo.wait_for("spark     starts")
        wait_until(lambda: "java" in " ".join(demo.commands()))
        demo.interrupt()
        code = demo.wait()
    assert code == 130, demo.said
    assert demo.left_behind() == []


def test_without_java_the_story_is_told_and_says_that_it_was_not_audited(tmp_path: Path) -> None:
    nowhere = {**ENVIRONMENT, "PATH": "/nonexistent", "JAVA_HOME": "/nonexistent", "PENSTOCK_NO_SYSTEM": "1"}

    done = subprocess.run(
        [sys.executable, "-m", "penstock", "demo", "--no-wait"],
        capture_output=True,
        text=True,
        check=False,
        env=nowhere,
    )

    assert done.returncode == 0, (done.stdout, done.stderr)
    told = " ".join(done.stdout.split())
    assert "spark left out: there is no Java, which the pipeline on Spark needs (Run: apt-get install" in told
    assert "not audited (there is no Java" in told
