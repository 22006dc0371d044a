"""Passes requests on to a server, and remembers what was asked for; answers may be changed on their way back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from penstock.testing import RunningServer


@dataclass(slots=True)
class Recording:
    """What came through."""

    url: str
    change: Callable[[bytes], bytes] | None  # what becomes of the bytes of answers; an OSError cuts the connection
    asking: Callable[[str], None] | None  # sees each request's first line before the server does, and may wait
    connections: int = 0
    lines: list[str] = field(default_factory=list)

    def asked(self, path: str) -> list[dict[str, str]]:
        """The parameters of each request to *path*, in the order in which they came."""
        targets = [urlsplit(line.split()[1]) for line in self.lines]
        return [
            {name: values[0] for name, values in parse_qs(target.query).items()}
            for target in targets
            if target.path == path
        ]

    def ids(self) -> int:
        """How many ids the server was asked to export."""
        return sum(int(one["upto"]) - int(one["after"]) for one in self.asked("/v1/log/arrow"))


@contextmanager
def recording(
    server: RunningServer,
    change: Callable[[bytes], bytes] | None = None,
    asking: Callable[[str], None] | None = None,
) -> Iterator[Recording]:
    """A server at another address that answers as *server* does, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = Recording(f"http://127.0.0.1:{listener.getsockname()[1]}", change, asking)
        accepting = threading.Thread(target=_accept, args=(listener, server.port, kept), daemon=True)
        accepting.start()
        yield kept
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which then ends
        accepting.join()


def _accept(listener: socket.socket, port: int, kept: Recording) -> None:
    passing = []
    with suppress(OSError):  # it was closed
        while True:
            here, _ = listener.accept()
            kept.connections += 1
            passing.append(threading.Thread(target=_pass_on, args=(here, port, kept), daemon=True))
            passing[-1].start()
    for thread in passing:
        thread.join()


def _pass_on(here: socket.socket, port: int, kept: Recording) -> None:
    with here, socket.create_connection(("127.0.0.1", port)) as there:
        back = threading.Thread(target=_pump, args=(there, here, kept.change), daemon=True)
        back.start()
        _pump(here, there, lambda data: _noted(data, kept))
        back.join()


def _noted(data: bytes, kept: Recording) -> bytes:
    if data[:4] in (b"GET ", b"POST", b"PUT "):  # our client sends a request's head in one piece
        line = data.split(b"\r\n", 1)[0].decode()
        kept.lines.append(line)
        if kept.asking:
            kept.asking(line)
    return data


def _pump(here: socket.socket, there: socket.socket, change: Callable[[bytes], bytes] | None) -> None:
    with suppress(OSError):
        while data := here.recv(65536):
            there.sendall(change(data) if change else data)
    for one in (here, there):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
