"""Three nodes on three NATS servers: delivery from one node to another, and wires of a killed node that come back."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack
from pathlib import Path

from bench.rig.report import Figure, Report, arguments, median, reporting, say, settle
from penstock.http.event_loop import run_loop
from penstock.testing import RunningServer, start_nodes
from penstock.testing.nats import start_nats

WIRES = 1_000
EVENTS = 200


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    given = arguments("nodes", "Several nodes: latency across them, and the death of one.").parse_args(argv)
    wires, events = (50, 20) if given.quick else (WIRES, EVENTS)
    rounds = 1 if given.quick else given.rounds
    with reporting("nodes", given) as (report, folder):
        there: list[float] = []
        here: list[float] = []
        back: list[float] = []
        floors: list[float] = []
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            settle(given)
            with ExitStack() as stack:
                nats = stack.enter_context(start_nats(folder / f"nats-{number}", servers=3))
                nodes = _nodes(stack, folder / f"round-{number}", nats.url)
                same, other = run_loop(_latency(nodes, events))
                opening, returning = run_loop(_death(nodes, wires))
            here.append(same)
            there.append(other)
            floors.append(opening)
            back.append(returning)
        _add(report, median(there), median(here), median(back), median(floors), wires)
    return 0


def _nodes(stack: ExitStack, folder: Path, engine: str) -> list[RunningServer]:
    folder.mkdir()
    return start_nodes(stack, folder, engine, log_synced=True)


def _add(report: Report, there: float, here: float, back: float, opening: float, wires: int) -> None:
    report.add(
        Figure("publish on one node → wire on another, p50", 1000 * there, "ms", 1000 * here, "both on one node, p50")
    )
    report.add(
        Figure(
            f"{wires:,} wires of a killed node open on others", back, "s", opening, "the same wires opened at first",
            5, 2, detail={"wires": wires},
        )
    )  # fmt: skip


class Wire:
    """A device that goes to the next node when its wire breaks."""

    def __init__(self, uid: int, token: str) -> None:
        self.uid, self._token, self.last = uid, token, 0
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, node: RunningServer) -> None:
        """Subscribe, and read the first line."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", node.port)
        head = f"GET /subscribe?uid={self.uid}&o={self.last} HTTP/1.0\r\nAuthorization: Bearer {self._token}\r\n\r\n"
        self._writer.write(head.encode())
        await self._reader.readuntil(b"\r\n\r\n")
        assert (await self.line())["event"] == "open"  # noqa: S101 (a benchmark is its own check)

    async def line(self) -> dict[str, object]:
        """The next line that says something."""
        while not (text := await self._reader.readline()).strip():
            if not text:
                raise ConnectionResetError
        found: dict[str, object] = json.loads(text)
        return found

    async def come_back(self, nodes: list[RunningServer]) -> None:
        """Wait for the end, then open on one of *nodes*."""
        try:
            await self.line()
        except (ConnectionResetError, asyncio.IncompleteReadError):
            self.close()
        await self.open(nodes[self.uid % len(nodes)])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


async def _publish(node: RunningServer, uid: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    head = f"POST /notify_to_user?uid={uid} HTTP/1.0\r\nAuthorization: Bearer {node.admin_token}\r\n"
    writer.write(head.encode() + b"Content-Length: 1\r\n\r\nx")
    await reader.read()
    writer.close()


async def _latency(nodes: list[RunningServer], events: int) -> tuple[float, float]:
    """Seconds from a publish to its receipt, at the median: on the publishing node, and on another."""
    wire = Wire(1, nodes[0].admin_token)
    await wire.open(nodes[0])
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(events):
        for node, taken in zip(nodes, found, strict=False):
            begun = time.perf_counter()
            sending = asyncio.create_task(_publish(node, 1))
            await wire.line()
            taken.append(time.perf_counter() - begun)
            await sending
    wire.close()
    return median(found[0]), median(found[1])


async def _death(nodes: list[RunningServer], count: int) -> tuple[float, float]:
    """Seconds to open *count* wires on a node, and from its death until they are open on others."""
    wires = [Wire(1000 + number, nodes[0].admin_token) for number in range(count)]
    begun = time.perf_counter()
    await asyncio.gather(*(wire.open(nodes[2]) for wire in wires))
    opening = time.perf_counter() - begun
    returning = asyncio.gather(*(wire.come_back(nodes[:2]) for wire in wires))
    await asyncio.sleep(1)  # claims are settled, and nobody is in the middle of anything
    nodes[2].kill()
    begun = time.perf_counter()
    await returning
    taken = time.perf_counter() - begun
    for wire in wires:
        wire.close()
    return opening, taken
