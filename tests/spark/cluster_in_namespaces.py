"""A cluster of two workers that share neither network nor folders with the driver: a copy and a lake made on it.

    unshare --net --mount --pid --fork --kill-child --mount-proc python -m tests.spark.cluster_in_namespaces DIR

is the machine of the server, the master, the driver and the object store of the lake. Each worker has a network and
mounts of its own besides: it sees neither DIR nor this folder's source, and has Python with pyspark and pyarrow,
nothing of ours. Prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from penstock.cli.pipeline import _package_for
from penstock.pipeline import register
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import Workplace, archive, audit, ledger, rollup
from penstock.pipeline.session import open_session
from penstock.testing import RunningServer, start_s3, start_server, wait_until
from tests.spark.conftest import make_place
from tests.spark.filling import LINES, QUICK_JAVA, QUICK_START, archived, differences, fill
from tests.spark.test_jobs import tail

ROOT = Path(__file__).parents[2]
SITE = Path(pyspark.__file__).parents[1]
MINE = Path("/mnt")  # a file system of each machine's own
PYTHON = MINE / "python"
ADDRESS = "10.77.0.{}"
DRIVER = ADDRESS.format(1)
EVENTS, READ = 30_000, 10

WORKER = f"""
read _
mount -t tmpfs none {MINE}
mkdir {MINE}/site {MINE}/work
mount --bind {SITE} {MINE}/site
mount -t tmpfs none {ROOT}
mount -t tmpfs none /tmp
printf '#!/bin/sh\\nPYTHONPATH="$PYTHONPATH:{MINE}/site" exec {Path(sys.executable).resolve()} -S "$@"\\n' > {PYTHON}
chmod +x {PYTHON}
cd {MINE}
exec {MINE}/site/pyspark/bin/spark-class org.apache.spark.deploy.worker.Worker --host $SPARK_LOCAL_IP --webui-port 0 \\
    --cores 1 --memory 1100m --work-dir {MINE}/work "$1"
"""


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def prepare() -> None:
    """Make this process's network, and its folder of its own."""
    run("ip", "link", "set", "lo", "up")
    # Its address is given: else it is that of one of its ports, and changes when a worker is lost.
    run("ip", "link", "add", "bridge", "address", "02:00:00:00:00:01", "type", "bridge")
    run("ip", "address", "add", f"{DRIVER}/24", "dev", "bridge")
    run("ip", "link", "set", "bridge", "up")
    run("mount", "-t", "tmpfs", "none", str(MINE))
    PYTHON.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # where reads are planned
    PYTHON.chmod(0o755)


@contextmanager
def daemon(command: list[str], log: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of Spark's daemons, in a process group of its own, until the block ends."""
    environment = {**os.environ, **QUICK_JAVA, "SPARK_LOCAL_IP": address}
    environment.pop("SPARK_HOME", None)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment, start_new_session=True
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()


def start_worker(stack: ExitStack, folder: Path, number: int, master: str) -> subprocess.Popen[bytes]:
    log, address = folder / f"worker-{number}.log", ADDRESS.format(10 + number)
    command = ["unshare", "--net", "--mount", "sh", "-ec", WORKER, "worker", master]
    worker = stack.enter_context(daemon(command, log, address))
    wait_until(lambda: Path(f"/proc/{worker.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink(), within=10)
    run("ip", "link", "add", f"veth{number}", "type", "veth", "peer", "name", "eth0", "netns", str(worker.pid))
    run("ip", "link", "set", f"veth{number}", "master", "bridge", "up")
    inside = ("nsenter", "--target", str(worker.pid), "--net", "ip")
    run(*inside, "link", "set", "lo", "up")
    run(*inside, "address", "add", f"{address}/24", "dev", "eth0")
    run(*inside, "link", "set", "eth0", "up")
    assert worker.stdin
    worker.stdin.write(b"\n")
    worker.stdin.flush()
    wait_until(lambda: "Successfully registered" in log.read_text() or worker.poll() is not None, within=180)
    assert worker.poll() is None, log.read_text()
    return worker


def look_around(folder: str, source: str) -> Any:
    """What a task on a worker sees."""

    def look(_: int) -> tuple[str, bool, bool, str]:
        import penstock

        return (
            os.environ["SPARK_LOCAL_IP"],
            os.path.exists(folder),  # noqa: PTH110 - as little as possible is imported there
            os.path.exists(source),  # noqa: PTH110
            str(penstock.__file__),
        )

    return look


@contextmanager
def open_cluster(master: str) -> Iterator[SparkSession]:
    """A session as the command line makes it for a master elsewhere."""
    os.environ["PYSPARK_PYTHON"] = str(PYTHON)
    with _package_for(master, {}) as files:
        spark = open_session(master, settings={**QUICK_START, **files})
        try:
            yield spark
        finally:
            spark.stop()


def copy_through(spark: SparkSession, client: PipelineClient, server: RunningServer, folder: Path, lost: Any) -> Any:
    """Read the log on the cluster and write it back as a stream; one worker is lost on the way."""
    register(spark)
    reading = {"url": client.url, "token": client.token, "streams": "/load/*", "partitions": "4"}
    rows = spark.read.format("penstock").options(**reading, columns="id,kind").load().where("kind = 'data'").count()
    source = spark.readStream.format("penstock").options(**reading, columns="stream,kind,body", consumer="copy").load()
    copy = source.where("kind = 'data'").selectExpr("concat('/copy', stream) AS stream", "body")
    writing = copy.writeStream.format("penstock").options(url=client.url, token=client.token, writer="copy")
    query = writing.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    # Given tasks that have published something, and cannot get on
    wait_until(lambda: has_copies(client) or not query.isActive, within=120)
    server.process.send_signal(signal.SIGSTOP)
    active = query.isActive
    end(lost)
    server.process.send_signal(signal.SIGCONT)
    query.awaitTermination()
    return {"rows": rows, "active": active}


def archive_through(place: Workplace) -> None:
    """Archive what is in the log, and what one reader was sent of it, by tasks on both workers."""
    tail(place, "/load/0", "alice", READ)
    wait_until(lambda: place.client.call("POST", "/v1/audit/cut")["upto"] > EVENTS)
    archive.FEW_ROWS = 1_000
    for job in (archive, ledger, rollup):
        job.run(place, {})


def audit_through(place: Workplace) -> dict[str, Any]:
    """Bring the lake up to date on the worker that is left, and look at it."""
    client, lake = place.client, place.lake.place
    outcome = audit.run(place, {})
    deliveries = archived(client, lake, "deliveries").to_pylist()
    sent = {(row["first"], row["last"]) for row in deliveries if row["recipient"] == "alice"}
    sums = archived(client, lake, "rollup_hourly").to_pylist()
    return {
        "audit": outcome.words,
        "passes": outcome.exit_code == 0,
        "differences": differences(client, lake),
        "delivered": [len(sent), len(deliveries)],
        "counted": sum(row["count"] for row in sums if row["state"] == "sent"),
    }


def has_copies(client: PipelineClient) -> bool:
    return bool(client.call("GET", "/v1/streams", {"pattern": "/copy/>"}).get("streams"))


def bodies(client: PipelineClient, prefix: str) -> list[tuple[str, str]]:
    """Streams and bodies below a prefix, in the order of each stream."""
    found = []
    for stream in (f"{prefix}/load/{number}" for number in range(EVENTS // LINES)):
        begin = 0
        while True:
            page = client.call("GET", "/v1/read", {"stream": stream, "from": begin, "limit": 1000})["entries"]
            found += [(stream.removeprefix(prefix), entry["data"]) for entry in page]
            begin += len(page)
            if not page:
                break
    return found


def main(folder: Path) -> None:
    prepare()
    with ExitStack() as stack:
        server = stack.enter_context(start_server(folder / "data", "--insecure", "--listen", f"{DRIVER}:0"))
        client = PipelineClient(server.url, server.admin_token)
        fill(client, EVENTS)
        log = folder / "master.log"
        command = [str(SITE / "pyspark/bin/spark-class"), "org.apache.spark.deploy.master.Master"]
        command += ["--host", DRIVER, "--port", "0", "--webui-port", "0"]
        stack.enter_context(daemon(command, log, DRIVER))
        master = wait_until(lambda: re.search(rf"spark://{re.escape(DRIVER)}:\d+", log.read_text()), within=60)[0]
        workers = [start_worker(stack, folder, number, master) for number in (1, 2)]
        os.environ.update(stack.enter_context(start_s3(folder / "s3", DRIVER)).environment)
        spark = stack.enter_context(open_cluster(master))
        look = look_around(str(folder), str(ROOT / "src"))
        seen = sorted({*spark.sparkContext.parallelize(range(8), 8).map(look).collect()})
        found = {"seen": seen, "driver": spark.conf.get("spark.driver.host")}
        place = make_place(spark, server, "s3://lake/cluster")
        archive_through(place)
        found |= copy_through(spark, client, server, folder, workers[0])
        found |= audit_through(place)
        source, copy = bodies(client, ""), bodies(client, "/copy")
        found |= {"events": len(source), "copied": len(copy), "same": sorted(source) == sorted(copy)}
        print(json.dumps(found))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(Path(sys.argv[1]))
