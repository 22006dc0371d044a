from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.testing import RunningServer, start_server
from tests.forked_servers import ForkedServer


def test_a_forked_server_is_a_child_of_ours_and_differs_in_nothing_that_it_reads(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", environment={"PENSTOCK_SERVER_NODE": "mine"}) as server:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        assert isinstance(server.process, ForkedServer)
        assert f"PPid:\t{os.getpid()}\n" in status
        assert Path(f"/proc/{server.process.pid}/fd/2").readlink() == server.log

    assert server.process.returncode == 0
    assert "server.stopping" in server.log_text()


@pytest.mark.parametrize("environment", [{"PYTHONHASHSEED": "1"}, {"LD_BIND_NOW": "1"}])
def test_what_python_or_a_library_reads_needs_a_start_of_its_own(tmp_path: Path, environment: dict[str, str]) -> None:
    server = RunningServer(tmp_path / "data", (), environment)

    assert server.stop() == 0
    assert not isinstance(server.process, ForkedServer)
