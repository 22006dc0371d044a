"""Lakes of both kinds: in a folder, and on a real S3 server that the tests of a module share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.pipeline.lake import Lake, open_lake
from penstock.testing import start_s3
from penstock.testing.seaweedfs import S3Server

_numbers = count(1)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with start_s3(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            environment.delenv(name)
        for name, value in server.environment.items():
            environment.setenv(name, value)
        yield server


@pytest.fixture(params=["folder", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "folder":
        return open_lake(tmp_path / "lake")
    request.getfixturevalue("s3")
    return open_lake(f"s3://lake/lake-{next(_numbers)}")
