"""Schemathesis, which somebody else wrote, reads `/openapi.json` and finds nothing that is answered otherwise.

It calls every operation as the admin, with what the document allows and with what it does not. Some of that are URLs:
the server runs under strace, which refuses it every connection to anybody, and writes down each that was tried.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.api.v1.read import ReadApi
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.testing import RunningServer
from tests.faults.children import ENVIRONMENT

HERE = Path(__file__).parent
EXAMPLES, LONG_EXAMPLES = 2, 60  # of each kind, for each operation
LIMIT_SECONDS = 850


@contextmanager
def shut_in(tmp_path: Path, kind: type[RunningServer] = RunningServer, **environment: str) -> Iterator[RunningServer]:
    """A server that can be reached and reaches nobody."""
    refuse = ("-e", "trace=connect", "-e", "inject=connect:error=ENETUNREACH", "-o", str(tmp_path / "connects"))

    class ShutIn(kind):  # type: ignore[misc, valid-type]
        before = ("strace", "-D", "-f", "-qq", "--seccomp-bpf", *refuse)

    server = ShutIn(tmp_path / "data", (), environment)
    try:
        yield server
    finally:
        server.stop()


def run_schemathesis(server: RunningServer, tmp_path: Path, examples: int, *options: str) -> str:
    """What it says at its end; `AssertionError` with all of that if it found something."""
    seed = secrets.randbelow(2**31)
    print(f"schemathesis: seed {seed}, {examples} examples")  # noqa: T201 (shown with a failure, and with -s)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml"), "run"]
    command += [f"{server.url}/openapi.json", "--header", f"Authorization: Bearer {server.admin_token}"]
    command += ["--seed", str(seed), "--max-examples", str(examples), "--phases", "coverage,fuzzing", *options]
    environment = {"SCHEMATHESIS_HOOKS": "tests.faults.schemathesis_hooks", "BACKUPS": str(tmp_path / "backups")}
    ended = subprocess.run(
        command, env={**os.environ, **ENVIRONMENT, **environment}, cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=LIMIT_SECONDS * (4 if examples == LONG_EXAMPLES else 1),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-5_000:]
    return ended.stdout


def check(tmp_path: Path, examples: int) -> None:
    with shut_in(tmp_path) as server:
        said = run_schemathesis(server, tmp_path, examples)
        assert "request.failed" not in server.log_text()
    found = re.search(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", said)
    assert found is not None, said
    assert len(set(found.groups())) == 1, said
    print(re.search(r"\d+ generated.*", said))  # noqa: T201
    tried = (tmp_path / "connects").read_text().splitlines()
    assert tried, "no outgoing connection was tried: nothing is shown"
    ended = [line for line in tried if "connect" in line and "<unfinished" not in line]  # a later line says how
    assert [line for line in ended if "(INJECTED)" not in line] == []


@pytest.mark.limit(900)
def test_every_operation_is_answered_as_it_is_described(tmp_path: Path) -> None:
    check(tmp_path, EXAMPLES)


@pytest.mark.long
def test_every_operation_is_answered_as_it_is_described_with_many_examples(tmp_path: Path) -> None:
    check(tmp_path, LONG_EXAMPLES)


# ── what it must notice ───────────────────────────────────────────────────────────────────────────


def _teapot(self: ReadApi, request: Request) -> Response:
    return Response(418, b"{}")


def _failure(self: ReadApi, request: Request) -> Response:
    raise ZeroDivisionError


def _other_answer(self: ReadApi, request: Request) -> Response:
    return Response(200, b'{"consumers":{}}')


SABOTAGES = {"418": _teapot, "500": _failure, "other": _other_answer}


class SabotagedServer(RunningServer):
    module = "tests.faults.test_openapi"


@pytest.mark.parametrize("how", SABOTAGES)
def test_an_answer_that_is_not_described_is_found(tmp_path: Path, how: str) -> None:
    with shut_in(tmp_path, SabotagedServer, SABOTAGE=how) as server, pytest.raises(AssertionError, match="ST"):
        run_schemathesis(server, tmp_path, 1, "--include-path", "/v1/consumers", "--no-shrink")


if __name__ == "__main__":
    from penstock.cli.app import run

    sabotage = SABOTAGES[os.environ["SABOTAGE"]]
    sabotage.operation = ReadApi.consumers.operation  # type: ignore[attr-defined]
    ReadApi.consumers = sabotage  # type: ignore[method-assign, assignment]
    sys.exit(run(sys.argv[1:]))
