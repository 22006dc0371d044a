"""What is recorded once for many wires is told of each of them: by `why` from the log, and from the lake."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock.limits import ENTRY_BYTES
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import archive, ledger
from penstock.pipeline.lake import Lake, open_lake
from penstock.pipeline.lake_identity import bind
from penstock.testing import RunningServer, wait_until
from tests.api.client import ask, publish
from tests.api.wire_forms import FORMS, Got
from tests.pipeline.by_hand import make_here, stored

NAMES = [f"reader-{number}" for number in range(40)]
SLOW = NAMES[7]
LARGE = ENTRY_BYTES - 1024
KERNEL_BYTES = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])  # what a server's socket holds at most


class ForgetfulServer(RunningServer):
    """Its ledger leaves out one of each group."""

    module = "tests.forgetful_ledger"


class Reader:
    """An open tail that is read when the test says so."""

    def __init__(self, server: RunningServer, name: str, form: str) -> None:
        self._form, self._data = FORMS[form], bytearray()
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", server.port))
        self.socket.sendall(self._form.request(name, "/s,/large" if name == SLOW else "/s", token=server.admin_token))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.socket.recv(1)
        assert head.startswith(b"HTTP/1.1 200 "), head

    def read(self, upto: int) -> Got:
        """All entries until that one has come."""
        named, got = b'"id":%d,' % upto, self._form.read(bytes(self._data))
        while not got or got[-1][0] < upto:
            piece = self.socket.recv(1 << 20)
            assert piece, "the server has ended it"
            self._data += piece
            if named in self._data[-len(piece) - len(named) - 100 :]:  # else to decode it is work for nothing
                got = self._form.read(bytes(self._data))
        return got


class Scene:
    """A server with a lake, forty tails in two framings, and three events of which one tail has none yet."""

    def __init__(self, server: RunningServer, lake: Lake, readers: dict[str, Reader]) -> None:
        self.server, self.readers = server, readers
        self.client = PipelineClient(server.url, server.admin_token)
        self.lake = lake
        first = publish(server, "/s", b"first").json["id"]
        for reader in readers.values():
            reader.read(first)  # it is live from here on
        for _ in range(KERNEL_BYTES // LARGE + 3):
            assert publish(server, "/large", bytes(b"x" * LARGE)).status == 201
        self.ids = [publish(server, "/s", b"%d" % number).json["id"] for number in range(3)]
        for name, reader in readers.items():
            if name != SLOW:
                assert [id for id, _ in reader.read(self.ids[-1])] == [first, *self.ids]

    def told(self) -> Counter[tuple[str, str]]:
        """What `why` says of each event and reader: how often each verdict, of the slow one and of all others."""
        found: Counter[tuple[str, str]] = Counter()
        for id in self.ids:
            for name in NAMES:
                found["slow" if name == SLOW else "others", self.verdict(id, name)] += 1
        return found

    def verdict(self, id: int, name: str) -> str:
        """What `why` says of one of them."""
        answer: dict[str, str] = self.client.call("GET", "/v1/why", {"entry": id, "recipient": name})
        return answer["verdict"]

    def folded(self) -> Counter[tuple[str, int]]:
        """How many deliveries of each event to each reader the lake has, once all is folded."""
        assert ask(self.server, "POST", "/v1/audit/cut").status in (200, 201)
        bind(self.client, self.lake)
        for job in (archive, ledger):
            job.run(make_here(self.client, self.lake), {})
        rows = [row for row in stored(self.client, self.lake, "deliveries") if row["stream"] == "/s"]
        assert {row["state"] for row in rows} == {"sent"}
        return Counter((row["recipient"], id) for row in rows for id in self.ids if row["first"] <= id <= row["last"])


@contextmanager
def scene(folder: Path, kind: type[RunningServer]) -> Iterator[Scene]:
    lake = open_lake(folder / "lake")
    with ExitStack() as stack:
        server = kind(folder / "data", ("--set", f"lake.url={lake.place}"), {})
        stack.callback(server.stop)
        readers = {}
        for number, name in enumerate(NAMES):
            readers[name] = Reader(server, name, ("chunked", "plain")[number % 2])
            stack.callback(readers[name].socket.close)
        yield Scene(server, lake, readers)


def test_each_of_a_group_is_told_from_log_and_lake(tmp_path: Path) -> None:
    with scene(tmp_path, RunningServer) as here:
        assert here.told() == {("others", "sent"): 3 * 39, ("slow", "waiting"): 3}
        assert here.folded() == {(name, id): 1 for name in NAMES if name != SLOW for id in here.ids}
        # From the lake, and what has come since from the log
        here.readers[SLOW].read(here.ids[-1])
        wait_until(lambda: here.verdict(here.ids[-1], SLOW) == "sent")
        assert here.told() == {("others", "sent"): 3 * 39, ("slow", "sent"): 3}
        assert here.folded() == {(name, id): 1 for name in NAMES for id in here.ids}


def test_both_find_a_ledger_that_leaves_one_out(tmp_path: Path) -> None:
    with scene(tmp_path, ForgetfulServer) as here:
        assert here.told()["others", "sent"] < 3 * 39
        assert 0 < sum(here.folded().values()) < 3 * 39
