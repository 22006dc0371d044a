"""Penstock itself, as the benchmarks use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.rig import requests
from bench.rig.child import Child
from bench.rig.load import Target
from bench.rig.poster import Poster
from penstock.testing import RunningServer, start_server


class LogIncomplete(Exception):
    """The log does not hold what was acknowledged."""


@contextmanager
def penstock(data: Path, **settings: object) -> Iterator[tuple[RunningServer, Target]]:
    """A server with its defaults, but for *settings*."""
    with start_server(data, environment=None, **settings) as server:
        yield server, Target(server.port, server.process.pid)


_LINES_BYTES = 200_000  # of a batch


def fill(
    server: RunningServer, folder: Path, events: int, stream: str, event_bytes: int = requests.EVENT_BYTES
) -> None:
    """Publish at least *events* as batches of lines."""
    lines = max(1, min(events, _LINES_BYTES // event_bytes))
    body = b"\n".join([requests.event(event_bytes)] * lines) + b"\n"
    file = requests.save(folder / "fill.json", requests.publish(stream, body, server.admin_token, lines=True))
    with Child("publishers", server.port, 4, file, "total", -(-events // lines)) as child:
        child.answer()


def confirm(server: RunningServer, stream: str, acknowledged: int) -> None:
    """Every acknowledged event of a stream has its index: the next one's tells how many there are."""
    with Poster(server.port, requests.publish(stream, requests.event(), server.admin_token)) as poster:
        stored = poster.post()["index"]
    if stored < acknowledged:
        raise LogIncomplete(f"{stream} has {stored} events, {acknowledged} were acknowledged")
