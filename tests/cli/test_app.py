from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.app import run


def test_no_command_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2

    shown = capsys.readouterr()
    for command in ("up", "serve", "publish", "tail", "streams", "why", "token", "backup", "doctor", "bench", "test"):
        assert f" {command} " in shown.out


@pytest.mark.parametrize(
    "command",
    ["up", "serve", "publish", "tail", "streams", "why", "token", "backup", "restore", "doctor", "bench", "test"],
)
def test_every_help_teaches_by_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"./penstock {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "start", "part"),
    [
        (["doctr"], "penstock: usage: ", "'doctor'"),
        (["token"], "penstock: usage: ", "./penstock token --help"),
        (["token", "--sub", "a", "--publish", "bad"], "penstock: stream_name_invalid: ", "/orders/eu"),
        (["token", "--sub", "a", "--grant", "everything"], "penstock: input_invalid: ", "webpush"),
        (["token", "--sub", "a", "--ttl", "soon"], "penstock: input_invalid: --ttl", "soon"),
        (["serve", "--set", "server.lisen=1"], "penstock: config_invalid: ", "server.listen"),
        (["serve", "--listen", "8800"], "penstock: config_invalid: ", "127.0.0.1:8800"),
        (["serve", "--config", "nowhere.toml"], "penstock: config_invalid: ", "nowhere.toml"),
        (["up", "--set", "hub.tail=0"], "penstock: config_invalid: ", "hub.tail"),
        (["streams", "--url", "ftp://x"], "penstock: input_invalid: url", "ftp://x"),
        (["tail", ">", "--after", "3", "--from-start"], "penstock: input_invalid: --after", "--from-start"),
        (["bench", "appendd"], "penstock: not_found: ", "appendd"),
        (["publish", "/a", "x", "--url", "http://127.0.0.1:99999"], "penstock: input_invalid: url", "--url"),
        (["publish", "/a", "x", "--url", "http://[::1"], "penstock: input_invalid: url", "IPv6"),
        (["streams", "--url", "http://x..y:1"], "penstock: input_invalid: url", "x..y"),
        (["publish", "/a", "x", "--type", "a\nb"], "penstock: input_invalid: header Event-Type", "line break"),
        (["publish", "/a", "x", "--token", "a\nb"], "penstock: input_invalid: the token given", "line break"),
        (["publish", "/a", "x", "--ndjson", "lines"], "penstock: input_invalid: BODY", "--ndjson"),
        (["serve", "--data", ""], "penstock: input_invalid: the directory", "'.'"),
        (["token", "--sub", "a", "--data", ""], "penstock: input_invalid: the directory", "'.'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str],
    start: str,
    part: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run(arguments) == 2

    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(start)
    assert part in lines[-1]
    assert " — " in lines[-1]
    assert "Traceback" not in "".join(lines)


def test_a_server_that_is_not_there_is_no_mistake_but_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    # Port 1 is reserved: nothing listens there
    assert run(["streams", "--url", "http://127.0.0.1:1"]) == 1

    assert capsys.readouterr().err.startswith("penstock: unreachable: no answer from http://127.0.0.1:1: ")


def test_a_token_in_an_error_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    run(["streams", "--url", "http://127.0.0.1:1/?access_token=hidden-thing"])

    assert "hidden-thing" not in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    from penstock import __version__

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {__version__}\n"


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    command = f"'{sys.executable}' -m penstock --help | true"

    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)

    assert done.stderr == ""
