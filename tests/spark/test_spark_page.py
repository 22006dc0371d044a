"""The Python of docs/spark.md runs as it stands, from the first piece to the last."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import archive
from penstock.testing import RunningServer
from tests.api.lake_rig import server_with_lake
from tests.spark.conftest import make_place
from tests.spark.filling import publish

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BODIES = [b'{"item": "pen", "price": 2.5}', b'{"item": "desk", "price": 250, "wood": "oak"}', b"no JSON"]


@pytest.fixture
def beside_lake(tmp_path: Path) -> Iterator[RunningServer]:
    with server_with_lake(tmp_path) as server:
        yield server


def test_the_pieces_of_the_page_run(
    spark: SparkSession, beside_lake: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = beside_lake
    client = PipelineClient(server.url, server.admin_token)
    publish(client, "/orders/one", BODIES)
    archive.run(make_place(spark, server, tmp_path / "lake"), {})
    names: dict[str, Any] = {"spark": spark, "url": server.url, "token": server.admin_token, "folder": str(tmp_path)}
    pieces = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)

    for piece in pieces:
        exec(compile(piece, str(PAGE), "exec"), names)  # noqa: S102 - it is what is tested

    shown = capsys.readouterr().out
    assert "|/orders/one|    3|" in shown
    assert re.search(r'"lag": ?0', shown)
    assert "|/orders/one|desk|250.00|" in shown
    assert "wood: STRING" in shown
    assert "|/orders/one|data|      3|" in shown
    assert parquet.read_table(tmp_path / "orders").num_rows == 3
    entries = client.call("GET", "/v1/read", {"stream": "/alerts/large"})["entries"]
    assert [json.loads(entry["data"]) for entry in entries] == [{"item": "desk", "price": 250}]
