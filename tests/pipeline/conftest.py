"""Lakes of both kinds: in a folder, and on a real S3 server."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from penstock.pipeline.lake import Lake, open_lake
from penstock.testing import S3Server
from penstock.testing.seaweedfs import READER

_numbers = count(1)


@pytest.fixture(params=["folder", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "folder":
        return open_lake(tmp_path / "lake")
    request.getfixturevalue("s3")
    return open_lake(f"s3://lake/lake-{next(_numbers)}")


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a lake is to be that others read by the server's catalog."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    if request.param == "folder":
        return str(tmp_path / "lake")
    s3: S3Server = request.getfixturevalue("s3")
    for name, value in (("endpoint", s3.endpoint), ("region", "us-east-1"), *_reader_keys()):
        monkeypatch.setenv(f"PENSTOCK_LAKE_READER_{name}".upper(), value)
    return f"s3://lake/{tmp_path.name}"


def _reader_keys() -> list[tuple[str, str]]:
    return [(name.removeprefix("AWS_"), value) for name, value in READER.items()]
