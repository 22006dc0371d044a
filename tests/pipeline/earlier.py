"""A data directory and a lake that the version before Iceberg has made: `earlier_lake/README.md` says how."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

MADE = Path(__file__).with_name("earlier_lake") / "made.tar.gz"


def unpack(folder: Path) -> Path:
    """`data` and `lake` in *folder*; returns the lake's."""
    with tarfile.open(MADE) as packed:
        packed.extractall(folder, filter="data")
    return folder / "lake"


def old_rows(lake: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table of the old lake, as its files have them."""
    files = sorted(lake.glob(f"{table}/day=*/*.parquet"))
    found: list[dict[str, Any]] = pa.concat_tables(map(parquet.read_table, files)).to_pylist() if files else []
    return found


def hashes(lake: Path) -> dict[str, str]:
    """What is in a folder, down to the last byte."""
    files = [path for path in sorted(lake.rglob("*")) if path.is_file()]
    return {str(path.relative_to(lake)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
