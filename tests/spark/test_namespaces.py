"""The source, the sink and the lake on a cluster whose machines share nothing but a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.cluster_in_namespaces import DRIVER, EVENTS, READ


@pytest.mark.limit(900)
def test_what_a_cluster_writes_back_and_archives_is_there_once_though_a_worker_is_lost(tmp_path: Path) -> None:
    machine = ["setpriv", "--pdeathsig", "KILL", "unshare", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    machine += ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*machine, sys.executable, "-m", "tests.spark.cluster_in_namespaces", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}

    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=880)

    assert done.returncode == 0, done.stderr[-4000:] + "".join(
        log.read_text()[-1500:] for log in tmp_path.glob("*.log")
    )
    found = json.loads(done.stdout.splitlines()[-1])
    # Workers see neither the driver's folder nor our source: all that they have of ours came with the job
    assert {(address, folder, source) for address, folder, source, _ in found["seen"]} == {
        ("10.77.0.11", False, False),
        ("10.77.0.12", False, False),
    }
    assert all("penstock-spark.zip" in file for *_, file in found["seen"])
    assert found["driver"] == DRIVER
    assert (found["rows"], found["events"]) == (EVENTS, EVENTS)
    assert found["active"], "the copy was at its end before the worker was lost"
    assert (found["copied"], found["same"]) == (EVENTS, True)
    # The lake is on the object store alone, and equals the log
    assert found["passes"], found["audit"]
    assert found["differences"] == []
    assert found["delivered"][0] == found["delivered"][1] > 0, "one row for each delivery"
    assert found["counted"] >= READ
