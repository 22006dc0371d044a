"""What the command `pipeline` needs before Spark comes in."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli import java
from penstock.cli.pipeline import job_options
from penstock.errors import InputInvalid


def install_java(folder: Path, says: str) -> None:
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "wrong"),
    [
        ('openjdk version "17.0.15" 2025-04-15', False),
        ('openjdk version "21" 2023-09-19', False),
        ('java version "1.8.0_402"', True),
        ('openjdk version "11.0.2"', True),
        ("something else", True),
    ],
)
def test_a_java_is_taken_by_its_version(
    says: str, wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert bool(java.what_is_wrong()) is wrong


def test_a_machine_without_java_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_NO_SYSTEM", "1")

    assert "there is no Java" in java.see_to()


def test_what_follows_the_job_are_its_options() -> None:
    given = ["--all", "--from", "17", "--to=23", "--dry-run"]

    assert job_options(given) == {"all": "", "from": "17", "to": "23", "dry-run": ""}


def test_a_stray_word_is_refused() -> None:
    with pytest.raises(InputInvalid, match="neither an option nor its value"):
        job_options(["everything"])
