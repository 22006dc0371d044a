"""A worker whose link to the log process is lost: it ends, is started again, and the other worker goes on."""

from __future__ import annotations

import http.client
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from penstock.engines.local.peer_process import PeerProcess
from penstock.engines.local.served_worker import ServedWorker
from penstock.engines.local.worker_calls import LogCalls
from penstock.node import process
from penstock.testing import RunningServer, TooLate, wait_until
from tests.api.client import Tail, publish
from tests.faults.defective_machine import start_defective
from tests.faults.test_machine_kills import pids_of

DEFECT = "/defect"


def fail_in_the_log_process() -> None:
    """The log process fails at each frame with something for one stream."""
    take = ServedWorker.take

    def failing(self: ServedWorker, frame: memoryview) -> None:
        if DEFECT.encode() in bytes(frame):
            raise RuntimeError("a defect")
        take(self, frame)

    ServedWorker.take = failing  # type: ignore[method-assign]


def fail_in_the_worker() -> None:
    """A worker fails at the frame after an event of one stream, which is perhaps its answer."""
    take, append_event = LogCalls.take, LogCalls.append_event

    def remembering(self: LogCalls, stream: str, body: bytes) -> object:
        if stream == DEFECT:
            LogCalls.take = failing  # type: ignore[method-assign]
        return append_event(self, stream, body)

    def failing(self: LogCalls, frame: memoryview) -> None:
        LogCalls.take = take  # type: ignore[method-assign]
        raise RuntimeError("a defect")

    LogCalls.append_event = remembering  # type: ignore[assignment,method-assign]


def stay() -> None:
    """Sabotage: a worker goes on without its log process."""
    process.end_at_once = lambda: None


def let_live() -> None:
    """Sabotage: the log process does not care what becomes of a worker that it has lost."""
    PeerProcess.kill = lambda self: None  # type: ignore[method-assign]


class KeptConnection:
    """One connection, over which events are published; `worker` has it."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self._connection.connect()
        self.worker = wait_until(lambda: holder_of(self._connection.sock.getsockname()[1], server))

    def __enter__(self) -> KeptConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def publish(self, stream: str, body: str) -> int:
        """The status of the answer."""
        headers = {"Authorization": f"Bearer {self._server.admin_token}"}
        self._connection.request("POST", f"/v1/publish?stream={stream}", body, headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


class KeptTail(Tail):
    """A live wire, and which worker has it."""

    def __init__(self, server: RunningServer, stream: str) -> None:
        super().__init__(server, stream)
        self.worker = holder_of(self._connection.sock.getsockname()[1], server)


def holder_of(port: int, server: RunningServer) -> int:
    """The worker that has the other end of a connection from this port; 0 until one has taken it."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = [(int(row[1].split(":")[1], 16), int(row[2].split(":")[1], 16), f"socket:[{row[9]}]") for row in rows]
    sought = {inode for own, peer, inode in ends if (own, peer) == (server.port, port)}
    for pid in pids_of(server, "worker"):
        with suppress(OSError):
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if str(file.readlink()) in sought:
                        return pid
    return 0


def check_lost_link(server: RunningServer, within: float = 60) -> None:
    """Have one worker lose its link. It is started again, and whoever is at the other one notices nothing."""
    with ExitStack() as stack:
        victim = stack.enter_context(KeptConnection(server))
        innocent = next(one for one in opened(stack, server) if one.worker != victim.worker)
        tail = next(one for one in tailing(stack, server) if one.worker == innocent.worker)
        sent = ["before"]
        assert innocent.publish("/beside", "before") == 201

        with suppress(OSError, http.client.HTTPException):
            assert victim.publish(DEFECT, "x") == 503

        def is_there_again() -> bool:
            sent.append(str(len(sent)))
            assert innocent.publish("/beside", sent[-1]) == 201
            return len(pids_of(server, "worker")) == 3

        wait_until(is_there_again, within)
        assert not Path(f"/proc/{victim.worker}/exe").exists()
        assert [publish(server, "/after").status for _ in range(20)] == [201] * 20
        assert [line["data"] for line in tail.lines(len(sent))] == sent
        assert pids_of(server, "worker").count(innocent.worker) == 1


def opened(stack: ExitStack, server: RunningServer) -> list[KeptConnection]:
    """Connections enough that each worker has some."""
    return [stack.enter_context(KeptConnection(server)) for _ in range(16)]


def tailing(stack: ExitStack, server: RunningServer) -> list[KeptTail]:
    return [stack.enter_context(KeptTail(server, "/beside")) for _ in range(16)]


@pytest.mark.parametrize("defect", [fail_in_the_log_process, fail_in_the_worker])
@pytest.mark.parametrize("without", [None, stay, let_live])
def test_a_worker_that_loses_its_link_ends_and_the_other_goes_on(tmp_path: Path, defect, without) -> None:
    defects = [defect, without] if without else [defect]
    with start_defective(tmp_path / "data", *defects) as server:
        check_lost_link(server)


def test_the_same_check_finds_a_worker_that_stays_when_nobody_ends_it(tmp_path: Path) -> None:
    lost = start_defective(tmp_path / "data", fail_in_the_log_process, stay, let_live)
    with lost as server, pytest.raises(TooLate):
        check_lost_link(server, within=3)
