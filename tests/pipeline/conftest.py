"""Lakes of both kinds: in a folder, and on a real S3 server."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from penstock.pipeline.lake import Lake, open_lake

_numbers = count(1)


@pytest.fixture(params=["folder", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "folder":
        return open_lake(tmp_path / "lake")
    request.getfixturevalue("s3")
    return open_lake(f"s3://lake/lake-{next(_numbers)}")
