from __future__ import annotations

import json
import os
import resource
import shutil
import socket
from pathlib import Path

import pytest

from penstock.api.auth import open_keys
from penstock.cli import doctor, doctor_checks
from penstock.cli.app import run
from penstock.settings import Settings
from penstock.settings_reading import load


def status_of(check: str, data: Path, settings: Settings | None = None) -> set[str]:
    return {
        one.status
        for one in doctor.examine(data, settings or load(given=["server.listen=127.0.0.1:0"]))
        if one.check == check
    }


def test_a_healthy_place_is_all_right(tmp_path: Path) -> None:
    for check in ("data", "disk", "port", "keys", "clock"):
        assert status_of(check, tmp_path / "data") == {"ok"}, check


def test_a_file_where_the_data_should_be_is_found(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")

    assert status_of("data", tmp_path / "data") == {"fail"}


def test_keys_that_others_can_read_are_found(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("[]")
    (tmp_path / "keys.json").chmod(0o644)
    assert status_of("keys", tmp_path) == {"fail"}

    (tmp_path / "keys.json").chmod(0o600)
    assert status_of("keys", tmp_path) == {"ok"}


def test_a_port_in_use_is_found(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = load(given=[f"server.listen=127.0.0.1:{other.getsockname()[1]}"])

        assert status_of("port", tmp_path, settings) == {"warn"}


def test_more_workers_than_cores_are_found(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))

    assert status_of("workers", tmp_path, load(given=[f"server.workers={cores + 1}"])) == {"warn"}
    assert status_of("workers", tmp_path, load(given=["server.workers=auto"])) == {"ok"}
    assert status_of("workers", tmp_path) == {"ok"}


@pytest.mark.parametrize(
    ("wanted", "connected", "answering", "cut", "status"),
    [(2, 2, 2, 0, "ok"), (1, 3, 3, 0, "ok"), (2, 2, 1, 0, "warn"), (3, 2, 2, 0, "warn"), (2, 2, 2, 1, "warn")],
)
def test_workers_that_are_missing_or_were_cut_are_found(
    wanted: int, connected: int, answering: int, cut: int, status: str
) -> None:
    counts = {"workers": answering, "workers_connected": connected, "workers_cut_total": cut}

    assert doctor_checks.judge_workers(wanted, counts).status == status


def test_a_machine_that_does_not_answer_is_found(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        settings = load(given=[f"server.listen=127.0.0.1:{silent.getsockname()[1]}"])
        assert status_of("machine", tmp_path, settings) == set()
        open_keys(tmp_path)
        (tmp_path / "log.sock").touch()

        assert status_of("machine", tmp_path, settings) == {"warn"}


def test_files_from_the_future_are_found(tmp_path: Path) -> None:
    file = tmp_path / "log.db"
    file.touch()
    assert status_of("clock", tmp_path) == {"ok"}

    os.utime(file, (file.stat().st_atime, file.stat().st_mtime + 3600))
    assert status_of("clock", tmp_path) == {"warn"}


def test_too_few_open_files_are_found(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = 2**31 if hard == resource.RLIM_INFINITY else hard + 1

    assert status_of("open files", tmp_path, load(given=[f"server.connections={wanted}"])) <= {"warn", "fail", "ok"}
    assert status_of("open files", tmp_path, load(given=["server.connections=1"])) == {"ok"}
    if hard != resource.RLIM_INFINITY:
        assert status_of("open files", tmp_path, load(given=[f"server.connections={wanted}"])) != {"ok"}


def test_a_full_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The disk is the system's part, not ours: only its answer is replaced
    for free, status in ((1, "fail"), (2**30, "warn"), (2**40, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: shutil._ntuple_diskusage(2**40, 0, free))
        assert status_of("disk", tmp_path) == {status}


@pytest.mark.parametrize(
    ("version", "status"), [("17.0.15", "ok"), ("21", "ok"), ("11.0.2", "warn"), ("1.8.0_402", "warn")]
)
def test_java_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, status: str) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert status_of("java", tmp_path) == {status}


def test_no_java_is_a_warning_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert status_of("java", tmp_path) == {"warn"}


def test_the_exit_code_and_the_json_tell_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "doctor",
        "--data",
        str(tmp_path),
        "--set",
        "server.listen=127.0.0.1:0",
        "--set",
        "server.connections=1",
    ]
    assert run([*arguments, "--json"]) == 0
    checks = [json.loads(line)["check"] for line in capsys.readouterr().out.splitlines()]
    assert {"data", "disk", "open files", "port", "keys", "clock", "java", "push origin"} <= set(checks)

    (tmp_path / "admin.token").touch(mode=0o644)
    assert run(arguments) == 1
    assert "chmod 600" in capsys.readouterr().out
