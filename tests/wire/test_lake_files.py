from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.lake_files import LETTERS, LakeFile, parse_location

files = st.builds(
    LakeFile, st.integers(0, 2**62), st.integers(0, 2**62), st.dates().map(str), st.sampled_from(sorted(LETTERS)),
    st.text("0123456789abcdefz", min_size=1, max_size=32),
)  # fmt: skip


@given(files, st.sampled_from(["", "file:///srv/lake/", "s3://bucket/prefix/events/data/"]))
def test_a_name_says_what_it_was_made_of(file: LakeFile, place: str) -> None:
    assert parse_location(place + file.path) == file


@given(files, files)
def test_names_sort_like_ids(one: LakeFile, other: LakeFile) -> None:
    if max(one.lo, other.lo) < 10**12 and one.table == other.table and one.lo != other.lo:
        assert (one.name < other.name) == (one.lo < other.lo)


@pytest.mark.parametrize(
    "path",
    [
        "events/data/day=2026-11-15/e-1.parquet",
        "events/data/day=2026-11-15/l-0-1-ab.parquet",
        "events/data/day=2026-11-15/e-0-1-ab.parquet.crc",
        "events/data/day=2026-11-15/.e-0-1-ab.parquet",
        "events/data/day=2026-11-15/e-0-1-.parquet",
        "events/data/day=2026-11-15/e-0-1-A.parquet",
        "events/data/day=2026-1-1/e-0-1-ab.parquet",
        "events/day=2026-11-15/e-0-1-ab.parquet",
        "others/data/day=2026-11-15/e-0-1-ab.parquet",
        "",
    ],
)
def test_other_names_are_none_of_ours(path: str) -> None:
    assert parse_location(path) is None
