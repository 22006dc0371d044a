from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.lake import LETTERS, LakeFile, parse_folder, parse_name

files = st.builds(
    LakeFile, st.integers(0, 2**62), st.integers(0, 2**62), st.dates().map(str), st.sampled_from(sorted(LETTERS)),
    st.integers(0, 999),
)  # fmt: skip


@given(files)
def test_a_name_says_what_it_was_made_of(file: LakeFile) -> None:
    table, folder, name = file.path.split("/")

    assert parse_name(table, parse_folder(folder) or "", name) == file


@given(files, files)
def test_names_sort_like_ids(one: LakeFile, other: LakeFile) -> None:
    if max(one.lo, other.lo) < 10**12 and one.table == other.table and one.lo != other.lo:
        assert (one.name < other.name) == (one.lo < other.lo)


@pytest.mark.parametrize(
    "name",
    [
        "e-1.parquet",
        "l-0-1.parquet",
        "e-0-1.parquet.crc",
        ".e-0-1.parquet",
        "e-0-1.tmp",
        "e-0-1-0.parquet",
        "e-0-1-x.parquet",
        "",
    ],
)
def test_other_names_are_none_of_ours(name: str) -> None:
    assert parse_name("events", "2026-11-15", name) is None


@pytest.mark.parametrize("name", ["day=2026-1-1", "2026-11-15", "day=2026-11-15x", "_staging"])
def test_other_folders_are_none_of_ours(name: str) -> None:
    assert parse_folder(name) is None
