from __future__ import annotations

import http.client
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from penstock.client.api import Client, ServerUnreachable
from penstock.testing import RunningServer, ServerFailed, start_server


def test_it_is_ready_when_the_block_begins_and_gone_when_it_ends(tmp_path: Path) -> None:
    with start_server(tmp_path / "data") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()

    assert server.process.returncode == 0
    with pytest.raises(ServerUnreachable):
        Client(server.url).health()


def test_settings_reach_the_server(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", logs_format="json", logs_level="debug") as server:
        server.stop()

    assert server.log_text().startswith('{"time":')


def test_a_restart_keeps_port_token_data_and_log(tmp_path: Path) -> None:
    with start_server(tmp_path / "data") as server:
        before = server.port
        with Client(server.url, server.admin_token) as client:
            place = client.publish("/a", b"kept")
        server.kill()
        server.restart()

        assert server.port == before
        with Client(server.url, server.admin_token) as client:
            assert client.read("/a").entries[0].id == place.id


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match=r"config_invalid: setting hub\.tail"),
        start_server(tmp_path / "data", hub_tail=0),
    ):
        pass


def test_two_servers_on_one_directory_are_refused(server: RunningServer) -> None:
    with pytest.raises(ServerFailed, match="data_locked"):
        RunningServer(server.data, (), {})


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.default_int_handler], ids=["server", "still Python"])
def test_a_server_that_ctrl_c_meets_while_it_starts_passes_it_on(tmp_path: Path, handler: Any) -> None:
    def be_interrupted() -> None:
        signal.signal(signal.SIGINT, handler)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), start_server(tmp_path / "data", before_exec=be_interrupted):
        pass
