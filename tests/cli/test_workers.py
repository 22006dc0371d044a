"""`serve --workers`: one address for all, signals for all, and what cannot be is refused in a line."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock.cli.doctor_checks import check_machine
from penstock.settings_reading import load
from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import Tail, ask, publish
from tests.doors.sps_client import Wire
from tests.node.test_metrics import value


def test_several_workers_are_one_server(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", "--workers", "2") as server:
        with Tail(server, "/s") as one, Tail(server, "/>") as other:
            for number in range(10):
                assert publish(server, "/s", b"%d" % number).status == 201
            assert [line["data"] for line in one.lines(10)] == [line["data"] for line in other.lines(10)]
        assert len(ask(server, "GET", "/v1/read", stream="/s").json["entries"]) == 10
        # SIGHUP is for all workers: a new key is known to each
        penstock("keys", "--data", str(server.data), "--rotate", "EdDSA")
        new = penstock("token", "--data", str(server.data), "--sub", "a", "--subscribe", "/s").stdout.strip()
        assert {ask(server, "GET", "/v1/read", token=new, stream="/s").status for _ in range(8)} == {401}
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.log_text().count("reload.done") == 2)
        assert {ask(server, "GET", "/v1/read", token=new, stream="/s").status for _ in range(8)} == {200}
        # Nobody else gets the directory or the address
        again = serve(tmp_path / "data", "--workers", "2", "--listen", "127.0.0.1:0")
        assert (again.returncode, "data_locked" in again.stderr) == (1, True)
        again = serve(tmp_path / "other", "--workers", "2", "--listen", f"127.0.0.1:{server.port}")
        assert (again.returncode, "config_invalid" in again.stderr, "--listen" in again.stderr) == (2, True, True)
        # SIGTERM ends all of them, and the log is closed well
        check_drain(server)
        assert not re.search(r"worker\.ended|ledger\.waiting|log_process\.ended", server.log_text())
        assert not (tmp_path / "data" / "log.sock").exists()
        assert not (tmp_path / "data" / "penstock.db-wal").exists()


class BegunPublish:
    """A publish of which the server has the head, and waits for the body."""

    def __init__(self, server: RunningServer, stream: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(
            f"POST /v1/publish?stream={stream} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {server.admin_token}\r\n"
            "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert b" 100 " in self._file.readline()
        assert self._file.readline() == b"\r\n"

    def __enter__(self) -> BegunPublish:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def finish(self) -> int:
        """Send the body; the id of what was published."""
        self._socket.sendall(b"begun")
        answer = self._file.read()  # the server closes the connection: it is about to end
        assert answer.startswith(b"HTTP/1.1 201 "), answer
        id: int = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]
        return id


def check_drain(server: RunningServer) -> None:
    """End a machine with SIGTERM: live wires end properly, and what has begun is answered and stored."""
    with ExitStack() as stack:
        tails = [stack.enter_context(Tail(server, "/s")) for _ in range(8)]
        wires = [stack.enter_context(Wire(server).opened()) for _ in range(4)]
        begun = [stack.enter_context(BegunPublish(server, "/s")) for _ in range(4)]
        last = publish(server, "/s", b"last").json["id"]
        for tail in tails:
            assert tail.line()["id"] == last
        server.process.send_signal(signal.SIGTERM)
        for tail in tails:
            assert tail.response.read() == b""  # raises without the last chunk
        for wire in wires:
            assert (wire.rest(), wire.hung_up()) == ([], True)
        ids = [one.finish() for one in begun]
        assert server.process.wait(60) == 0
    with closing(sqlite3.connect(server.data / "penstock.db")) as stored:
        [[count]] = stored.execute("SELECT count(*) FROM entries WHERE id IN (?, ?, ?, ?)", ids)
    assert count == len(ids)


class BrokenServer(RunningServer):
    """A machine with a sabotage."""

    module = "tests.faults.broken_machine"


def test_the_same_check_finds_workers_that_are_not_given_time_to_end(tmp_path: Path) -> None:
    server = BrokenServer(tmp_path / "data", ("--workers", "2"), {"SABOTAGE": "cutting"})
    try:
        with pytest.raises((AssertionError, OSError, http.client.HTTPException)):
            check_drain(server)
    finally:
        server.stop()


def test_a_log_process_that_does_not_end_is_killed_and_that_is_said(tmp_path: Path) -> None:
    arguments = ("--workers", "2", "--set", "server.drain_seconds=0.2")
    server = BrokenServer(tmp_path / "data", arguments, {"SABOTAGE": "unending"})
    assert publish(server, "/s").status == 201

    assert server.stop() == 1
    [killed] = re.findall(r"log_process.started pid=(\d+)", server.log_text())
    assert re.findall(r"log_process.killed pid=(\d+) had_seconds=3.2", server.log_text()) == [killed]
    assert "worker.killed" not in server.log_text()


def test_whichever_worker_is_asked_speaks_of_the_whole_machine(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", "--workers", "2") as server, ExitStack() as stack:
        names = [f"reader-{number}" for number in range(40)]  # at one worker at least there are enough for a roster
        tails = [stack.enter_context(Tail(server, "/s", consumer=name)) for name in names]
        id = publish(server, "/s", b"to all").json["id"]
        for tail in tails:
            assert tail.line()["id"] == id
        for name in names:
            assert ask(server, "GET", "/v1/why", entry=id, recipient=name).json["verdict"] == "sent"
        device = stack.enter_context(Wire(server, tid="lobby", hid="phone").opened())
        # Each connection may go to another worker
        for name in names[:6]:
            consumers = ask(server, "GET", "/v1/consumers").json["consumers"]
            assert sorted(one["recipient"] for one in consumers) == sorted([*names, f"{device.uid}/phone"])
            assert (value(server, "feeds"), value(server, "workers")) == (41, 2)
            assert value(server, "connections") >= 41
            assert ask(server, "GET", "/v1/why", entry=id, recipient=name).json["verdict"] == "sent"
            shown = ask(server, "GET", "/online", uid=device.uid).json
            assert (shown["online"], [one["hid"] for one in shown["devices"]]) == (True, ["phone"])
            assert ask(server, "GET", "/rooms", tid="lobby").json == {"rooms": {"lobby": 1}}
            unheard = publish(server, "/t").json["id"]
            told = ask(server, "GET", "/v1/why", entry=unheard, recipient=names[0]).json
            assert told["verdict"] == "not_subscribed"
        wait_until(lambda: value(server, "deliveries_total") == 40)
        page = ask(server, "GET", "/metrics").body.decode()
        shown = set(re.findall(r'penstock_process_cpu_seconds_total{process="([\w-]+)"}', page))
        assert shown == {"log", "worker-1", "worker-2"}
        # A backup is the log process's
        copied = ask(server, "POST", "/v1/backup", b'{"directory":"%b"}' % str(tmp_path / "copy").encode())
        assert (copied.status, (tmp_path / "copy" / "penstock.db").exists()) == (201, True)
        check_doctor(server)


def check_doctor(server: RunningServer) -> None:
    """The doctor asks the running machine: one that has stopped is found, which settings cannot tell."""
    settings = load(given=[f"server.listen=127.0.0.1:{server.port}"])

    def status() -> str:
        [found] = check_machine(server.data, settings)
        return found.status

    wait_until(lambda: status() == "ok")
    stopped = int(re.findall(r"worker.started worker=2 pid=(\d+)", server.log_text())[-1])
    os.kill(stopped, signal.SIGSTOP)
    try:
        assert status() == "warn"  # whichever takes the connection
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_as_many_workers_as_there_are_cores(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", server_workers="auto", log_engine="memory") as server:
        assert server.durability == "memory"
        assert publish(server, "/s").status == 201
        cores = len(os.sched_getaffinity(0))
        assert cores == 1 or value(server, "workers") == cores


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workers", "0"), "server.workers"),
        (("--workers", "many"), "--workers auto"),
        (("--workers", "2", "--engine", "nats://127.0.0.1:1"), "--workers 1"),
        (("--workers", "2", "--set", "server.tls_certificate=/nowhere"), "tls_certificate"),
        (("--workers", "2", "--doors", "nothing"), "no door"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    refused = serve(tmp_path / "data", *arguments)

    assert refused.returncode in (1, 2)
    assert said in refused.stderr
    assert not re.search(r"Traceback|ready on", refused.stderr + refused.stdout)


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, check=True)


def serve(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(data), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
