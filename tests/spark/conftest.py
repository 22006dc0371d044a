"""One Spark session for all tests of this group, and the pieces they share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline import register
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import Faults
from penstock.pipeline.jobs import Workplace
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.pipeline.session import open_session
from penstock.testing import RunningServer
from tests.spark.filling import QUICK_START
from tests.spark.jvm_classes import end, make_classes


@pytest.fixture(scope="session", autouse=True)
def _classes() -> None:
    """What makes every JVM of this group start sooner."""
    make_classes()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session, warm. It takes some 20 s to come up: there is only this one."""
    session = open_session("local[2]", name="penstock-tests", settings=QUICK_START)
    register(session)
    yield session
    end(session)


@pytest.fixture
def place(spark: SparkSession, server: RunningServer, tmp_path: Path) -> Workplace:
    """An empty lake for the test's own server."""
    return make_place(spark, server, tmp_path / "lake")


def make_place(spark: SparkSession, server: RunningServer, lake: Path | str, faults: Faults | None = None) -> Workplace:
    client = PipelineClient(server.url, server.admin_token)
    opened = open_lake(lake)
    bind(client, opened)
    return Workplace(spark, client, opened, faults or Faults())
