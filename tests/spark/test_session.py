"""The session: what it listens on, and how it is set."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.cli.pipeline import make_package
from penstock.errors import InputInvalid
from penstock.pipeline import lend_keys
from penstock.pipeline.session import given_settings, settings_for
from tests.spark.filling import QUICK_JAVA
from tests.spark.sockets import beyond_loopback, listening


def test_spark_listens_on_the_loopback_address_only(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10

    assert listening(os.getpid())
    assert beyond_loopback(os.getpid()) == set()


def test_a_socket_beyond_loopback_would_be_found() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:  # noqa: S104 - the sabotage
        assert beyond_loopback(os.getpid()) == {("0.0.0.0", listener.getsockname()[1])}  # noqa: S104


def test_the_session_is_set_as_the_lake_needs_it(spark: SparkSession) -> None:
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8m",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
    }

    assert {name: spark.conf.get(name) for name in settings} == settings
    assert spark.sparkContext.uiWebUrl is None


# ── what the user gives, and where the driver is ───────────────────────────────────────────────

HOST, BIND = "spark.driver.host", "spark.driver.bindAddress"


@pytest.mark.parametrize(
    ("master", "host"),
    [
        ("local[2]", "127.0.0.1"),
        ("local-cluster[2,1,1024]", "127.0.0.1"),
        ("spark://127.0.0.1:7077", "127.0.0.1"),
        ("spark://127.0.0.1:7077,127.0.0.2:7077", "127.0.0.1"),
        ("k8s://https://127.0.0.1:6443", "127.0.0.1"),
        ("k8s://127.0.0.1:6443", "127.0.0.1"),
        ("k8s://http://localhost", "127.0.0.1"),
        ("yarn", None),
    ],
)
def test_the_driver_is_where_the_workers_of_a_master_reach_it(master: str, host: str | None) -> None:
    made = settings_for(master, {}, {})

    assert (made.get(HOST), made.get(BIND)) == (host, host)
    assert made["spark.sql.session.timeZone"] == "UTC"


@pytest.mark.parametrize("master", ["local[2]", "spark://nobody.invalid:7077", "k8s://https://10.0.0.1:443", "yarn"])
@pytest.mark.parametrize(
    ("given", "environment"),
    [({HOST: "driver-svc"}, {}), ({BIND: "0.0.0.0"}, {}), ({}, {"SPARK_LOCAL_IP": "10.1.2.3"})],  # noqa: S104
)
def test_a_user_who_says_where_the_driver_is_has_the_last_word(
    master: str, given: dict[str, str], environment: dict[str, str]
) -> None:
    made = settings_for(master, {**given, "spark.driver.memory": "9g"}, environment)

    assert {HOST, BIND, "spark.driver.memory"} & made.keys() == set()


@pytest.mark.parametrize(
    ("master", "said"),
    [("spark://nobody.invalid:7077", "no way to nobody.invalid"), ("k8s://", "names no host"), ("spark://a:b", "port")],
)
def test_a_master_that_cannot_be_is_told(master: str, said: str) -> None:
    with pytest.raises(InputInvalid, match=said):
        settings_for(master, {}, {})


def test_what_was_given_to_spark_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# ours\nspark.master  spark://one:7077\nspark.driver.memory=3g\n\nspark.ui.enabled: true\nodd\n"
        "spark.driver.extraJavaOptions -Dx=y -Dz\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.a='1 2' -c spark.b=3=4 --driver-memory 4g x pyspark-shell")

    assert given_settings() == {
        "spark.master": "spark://one:7077",
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "true",
        "spark.driver.extraJavaOptions": "-Dx=y -Dz",
        "spark.a": "1 2",
        "spark.b": "3=4",
    }


GIVEN = """
from penstock.pipeline.session import open_session
spark = open_session(settings={"spark.sql.shuffle.partitions": "9"})
names = ("spark.driver.memory", "spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.app.name")
print("|".join(spark.conf.get(name) for name in names), spark.sparkContext.master)
spark.stop()
"""


@pytest.mark.parametrize("way", ["spark-submit", "python"])
def test_what_a_user_gives_wins_over_ours_and_what_the_caller_says_over_both(tmp_path: Path, way: str) -> None:
    (tmp_path / "given.py").write_text(GIVEN)
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.session.timeZone Europe/Paris\nspark.app.name theirs\n")
    arguments = ["--master", "local[1]", "--conf", "spark.driver.memory=700m"]
    more = [] if way == "spark-submit" else [*arguments, "pyspark-shell"]
    environment = {**os.environ, **QUICK_JAVA, "SPARK_CONF_DIR": str(tmp_path), "PYSPARK_SUBMIT_ARGS": " ".join(more)}
    environment |= {"PYSPARK_PYTHON": sys.executable}
    if not more:
        del environment["PYSPARK_SUBMIT_ARGS"]
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), *arguments]
    command = [*(submit if way == "spark-submit" else [sys.executable]), str(tmp_path / "given.py")]

    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)

    master = "local[1]" if way == "spark-submit" else "local[2]"
    assert done.stdout.strip() == f"700m|9|Europe/Paris|theirs {master}", done.stderr[-2000:]


ALONE = """
import importlib
import sys
import zipfile
sys.path[:0] = sys.argv[1:]
import pyspark_penstock
for name in zipfile.ZipFile(sys.argv[1]).namelist():
    importlib.import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
from penstock.pipeline.jobs import archive
ours = sorted({"msgspec", "uvloop", "httptools", "typer", "cryptography"} & set(sys.modules))
print(pyspark_penstock.DefaultSource.name(), ours, "penstock-spark.zip" in archive.__file__)
"""


def test_the_package_for_workers_needs_pyarrow_and_pyspark_only(tmp_path: Path) -> None:
    package = tmp_path / "penstock-spark.zip"
    make_package(package)
    # Without `site` nobody reads the .pth file that leads to this folder's source.
    command = [sys.executable, "-S", "-c", ALONE, str(package), sysconfig.get_path("purelib")]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.stdout == "penstock [] True\n", done.stderr


def test_tasks_have_the_drivers_keys_of_object_stores_and_nothing_else_of_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_TENANT_ID", "MY_AWS_SECRET"]
    for name in names:
        monkeypatch.setenv(name, "lent")
    environment = spark.sparkContext.environment
    monkeypatch.setattr(spark.sparkContext, "environment", dict(environment))  # other tests' workers stay as they are

    lend_keys(spark)

    seen = spark.sparkContext.parallelize(names, 1).map(lambda name: os.environ.get(name, "")).collect()
    assert seen == ["lent", "lent", "lent", ""]
