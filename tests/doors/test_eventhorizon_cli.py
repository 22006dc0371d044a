"""The commands `stream …` and `pusher`, each as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import ask, publish
from tests.doors.eventhorizon_client import Answer, Model, append, create, lines, scripted, subscribe


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("cli") / "data", eventhorizon_activity_interval=0.1) as running:
        yield running


def environment(server: RunningServer) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_URL": server.url, "PENSTOCK_TOKEN": server.admin_token}


def penstock(server: RunningServer, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "penstock", *arguments]
    done = subprocess.run(command, env=environment(server), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@contextmanager
def pusher(server: RunningServer, url: str, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "penstock", "pusher", url, "--retry", "0.05", "--repeat", "0.3", *options]
    with log.open("ab") as out:
        process = subprocess.Popen(command, env=environment(server), stdin=subprocess.PIPE, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        if process.stdin:
            process.stdin.close()
        process.wait(60)


def test_streams_are_made_filled_subscribed_and_read(server: RunningServer, tmp_path: Path) -> None:
    penstock(server, "stream", "create", "/cli")
    penstock(server, "stream", "create", "/_sub/cli")
    penstock(server, "stream", "subscribe", "/cli", "/_sub/cli")
    offset = penstock(server, "stream", "append", "/cli", "hello").strip()
    assert offset == lines(server, "/cli:0:0")[-1]["PtrAfter"]
    penstock(server, "stream", "append", "/cli", "late", "--expect", "/cli:0:0", code=2)
    file = tmp_path / "events.txt"
    file.write_bytes(b"one\r\ntwo\n\n" + b"many\n" * 2500 + b"last without a newline")
    said = penstock(server, "stream", "append-from-file", "/cli", str(file))
    assert said.startswith("appended 2,504 lines to /cli; it is at /cli:0:")
    penstock(server, "stream", "unsubscribe", "/cli", "/_sub/cli")

    shown = penstock(server, "stream", "read", "/cli", "--lines", "6").split("\n")
    assert shown[0].startswith('/Created {"subscription_ids":[]')
    assert shown[2:6] == ["hello", "one", "two", ""]
    everything = penstock(server, "stream", "read", "/cli", "--lines", "100000", "--json").splitlines()
    assert len(everything) == 2504 + 4
    assert penstock(server, "stream", "read", offset, "--lines", "2") == "one\ntwo\n"


def test_a_mistake_is_one_line(server: RunningServer) -> None:
    assert penstock(server, "stream", "create", "/no/parent", code=2).startswith("penstock: parent_missing: ")
    assert penstock(server, "stream", "append", "/nope", "x", code=2).startswith("penstock: stream_missing: ")
    assert penstock(server, "pusher", "nonsense", code=2).startswith("penstock: url_invalid: ")


def test_a_pusher_by_itself_delivers_at_once_and_keeps_the_ledger(server: RunningServer, tmp_path: Path) -> None:
    create(server, "/_sub/alone", "/alone")
    subscribe(server, "/alone", "/_sub/alone")
    model = Model("/_sub/alone")
    with scripted(model) as app, pusher(server, app.url, tmp_path / "pusher.log"):
        wait_until(lambda: model.offsets.get("/alone"))
        entry = publish(server, "/alone", b"x").json["id"]
        wait_until(lambda: model.applied.get("/alone") == ["x"])

        def verdict() -> str:
            told: str = ask(server, "GET", "/v1/why", entry=entry, recipient="/_sub/alone").json["verdict"]
            return told

        wait_until(lambda: verdict() == "acked")


def test_a_pusher_by_itself_outlives_the_server(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", eventhorizon_activity_interval=0.1) as server:
        create(server, "/_sub/out", "/out")
        subscribe(server, "/out", "/_sub/out")
        model = Model("/_sub/out")
        with scripted(model) as app, pusher(server, app.url, tmp_path / "pusher.log"):
            append(server, "/out", "before")
            wait_until(lambda: model.applied.get("/out") == ["before"])
            server.kill()
            server.restart()
            append(server, "/out", "after")
            wait_until(lambda: model.applied.get("/out") == ["before", "after"])


def test_a_pusher_by_itself_ends_as_it_is_told(server: RunningServer, tmp_path: Path) -> None:
    create(server, "/_sub/ends", "/ends")
    subscribe(server, "/ends", "/_sub/ends")
    model = Model("/_sub/ends")
    with scripted(model) as app:
        with pusher(server, app.url, tmp_path / "a.log") as process:
            wait_until(lambda: app.requests)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        with pusher(server, app.url, tmp_path / "b.log", "--stop-on-eof") as process:
            count = len(app.requests)
            wait_until(lambda: len(app.requests) > count)
            assert process.stdin
            process.stdin.close()
            process.stdin = None
            assert process.wait(60) == 0

    def gone(request: dict[str, Any]) -> Answer:
        return 410, b""

    with scripted(gone) as app, pusher(server, app.url, tmp_path / "c.log") as process:
        assert process.wait(60) == 1
        assert "the app answered 410" in (tmp_path / "c.log").read_text()
