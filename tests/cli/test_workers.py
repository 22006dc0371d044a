"""`serve --workers`: one address for all, signals for all, and what cannot be is refused in a line."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.testing import start_server, wait_until
from tests.api.client import Tail, ask, publish
from tests.node.test_metrics import value


def test_several_workers_are_one_server(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", "--workers", "2") as server:
        with Tail(server, "/s") as one, Tail(server, "/>") as other:
            for number in range(10):
                assert publish(server, "/s", b"%d" % number).status == 201
            assert [line["data"] for line in one.lines(10)] == [line["data"] for line in other.lines(10)]
        assert len(ask(server, "GET", "/v1/read", stream="/s").json["entries"]) == 10
        # SIGHUP is for all workers
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.log_text().count("reload.done") == 2)
        # Nobody else gets the directory or the address
        again = serve(tmp_path / "data", "--workers", "2", "--listen", "127.0.0.1:0")
        assert (again.returncode, "data_locked" in again.stderr) == (1, True)
        again = serve(tmp_path / "other", "--workers", "2", "--listen", f"127.0.0.1:{server.port}")
        assert (again.returncode, "config_invalid" in again.stderr, "--listen" in again.stderr) == (2, True, True)
        # SIGTERM ends all of them, and the log is closed well
        assert server.stop() == 0
        assert not re.search(r"worker\.ended|ledger\.waiting|log_process\.ended", server.log_text())
        assert not (tmp_path / "data" / "log.sock").exists()
        assert not (tmp_path / "data" / "penstock.db-wal").exists()


def test_whichever_worker_is_asked_speaks_of_the_whole_machine(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", "--workers", "2") as server, ExitStack() as stack:
        names = [f"reader-{number}" for number in range(12)]
        tails = [stack.enter_context(Tail(server, "/s", consumer=name)) for name in names]
        id = publish(server, "/s", b"to all").json["id"]
        for tail in tails:
            assert tail.line()["id"] == id
        # Each connection may go to another worker
        for _ in range(6):
            consumers = ask(server, "GET", "/v1/consumers").json["consumers"]
            assert sorted(one["recipient"] for one in consumers) == sorted(names)
            assert (value(server, "feeds"), value(server, "workers")) == (12, 2)
            assert value(server, "connections") >= 12
            for name in names:
                assert ask(server, "GET", "/v1/why", entry=id, recipient=name).json["verdict"] == "sent"
            unheard = publish(server, "/t").json["id"]
            told = ask(server, "GET", "/v1/why", entry=unheard, recipient=names[0]).json
            assert told["verdict"] == "not_subscribed"
        wait_until(lambda: value(server, "deliveries_total") == 12)
        page = ask(server, "GET", "/metrics").body.decode()
        shown = set(re.findall(r'penstock_process_cpu_seconds_total{process="([\w-]+)"}', page))
        assert shown == {"log", "worker-1", "worker-2"}
        # A backup is the log process's
        copied = ask(server, "POST", "/v1/backup", b'{"directory":"%b"}' % str(tmp_path / "copy").encode())
        assert (copied.status, (tmp_path / "copy" / "penstock.db").exists()) == (201, True)


def test_as_many_workers_as_there_are_cores(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", server_workers="auto", log_engine="memory") as server:
        assert server.durability == "memory"
        assert publish(server, "/s").status == 201


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


def serve(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(data), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
