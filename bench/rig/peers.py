"""Other push servers, as they come: each with a configuration of its own in a folder of its own, on a free port.

A `Peer` says how to speak to it in bytes, so that the same wires, posters and readers serve all of them.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.rig import nchan, requests
from bench.rig.load import Target
from penstock.testing import wait_until
from penstock.testing.nats import NatsFailed, find_nats_server
from penstock.testing.programs import find_program

_SECONDS = 15  # until a peer accepts connections
SYNCED = "synced to disk before each answer"


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that runs. What it cannot do is empty."""

    name: str
    version: str
    protocol: str
    target: Target
    delivers: str = "from memory"  # where an event is when it goes out to wires
    keeps: str = ""  # where one is that was acknowledged
    subscribe: bytes = b""  # what a wire sends
    subscribed: bytes = b""  # what its answer then ends with
    greeting: bytes = b""  # what a publisher sends first; {n} is the number of its connection
    greeted: bytes = b""
    publish: bytes = b""  # one event to all wires
    published: bytes = b""  # what stands in the answer to it; empty if there is none
    append: bytes = b""  # one event, to be acknowledged when it is durable


Start = Callable[[Path, bytes], AbstractContextManager[Peer]]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def run(command: list[str], port: int, log: Path) -> Iterator[Target]:
    """Run a server until the block ends; it accepts connections when the block begins."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(lambda: _accepts(port) or process.poll() is not None, within=_SECONDS)
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended: {log.read_text()[-2000:]}")
        yield Target(port, process.pid)
    finally:
        process.terminate()
        process.wait()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _version(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
    return found[0] if found else ""


# ── nginx with nchan ──────────────────────────────────────────────────────────────────────────────


@contextmanager
def run_nchan(folder: Path, event: bytes) -> Iterator[Peer]:
    """Messages are in memory that its workers share."""
    with nchan.running(folder) as target:
        yield Peer(
            "nchan", f"nginx {_version([find_program('nginx') or 'nginx', '-v'])}", "HTTP, chunked", target,
            subscribe=requests.nchan_subscribe(nchan.SUBSCRIBE), subscribed=b"\r\n\r\n",
            publish=requests.post(nchan.PUBLISH, event), published=b"HTTP/1.1 20",
        )  # fmt: skip


# ── Mosquitto ─────────────────────────────────────────────────────────────────────────────────────

_MOSQUITTO = """
listener {port} 127.0.0.1
allow_anonymous true
persistence false
set_tcp_nodelay true
max_queued_messages 0
{user}
"""


def _packet(kind: int, content: bytes) -> bytes:
    """A packet of MQTT 3.1.1."""
    size, length = len(content), b""
    while True:
        size, low = divmod(size, 128)
        length += bytes([low | (128 if size else 0)])
        if not size:
            return bytes([kind]) + length + content


def _text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


_CONNECT = _packet(0x10, _text(b"MQTT") + b"\x04\x02\x00\x00" + _text(b""))  # a clean session, without keep-alive
_CONNACK, _SUBACK = b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x00"


@contextmanager
def run_mosquitto(folder: Path, event: bytes) -> Iterator[Peer]:
    """Messages of quality 0: given to who is there, and forgotten."""
    folder.mkdir()
    port, program = free_port(), find_program("mosquitto") or "mosquitto"
    file = folder / "mosquitto.conf"
    file.write_text(_MOSQUITTO.format(port=port, user="user root" if os.geteuid() == 0 else ""))
    with run([program, "-c", str(file)], port, folder / "log") as target:
        yield Peer(
            "Mosquitto", _version([program, "-h"]), "MQTT 3.1.1, quality 0", target,
            subscribe=_CONNECT + _packet(0x82, b"\x00\x01" + _text(b"bench") + b"\x00"), subscribed=_SUBACK,
            greeting=_CONNECT, greeted=_CONNACK, publish=_packet(0x30, _text(b"bench") + event),
        )  # fmt: skip


# ── NATS ──────────────────────────────────────────────────────────────────────────────────────────

_NATS = """
listen: "127.0.0.1:{port}"
ping_interval: "60m"
max_pending: 256MB
jetstream {{ store_dir: "{folder}/store", sync_interval: {sync} }}
"""
HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
_PONG = b"PONG\r\n"
STREAM = "BENCH"


def find_nats() -> str | None:
    """The program, if there is one."""
    try:
        return find_nats_server()
    except NatsFailed:
        return None


@contextmanager
def run_nats(folder: Path, event: bytes, sync: str = "always") -> Iterator[Peer]:
    """Subscribers of the core are given what comes while they are there; JetStream keeps it in files."""
    folder.mkdir()
    port, program = free_port(), find_nats() or "nats-server"
    file = folder / "nats.conf"
    file.write_text(_NATS.format(port=port, folder=folder, sync=sync if sync == "always" else f'"{sync}"'))
    with run([program, "-c", str(file)], port, folder / "log") as target:
        made = ask_nats(
            port, f"$JS.API.STREAM.CREATE.{STREAM}",
            {"name": STREAM, "subjects": ["kept.>"], "storage": "file", "retention": "limits", "discard": "old",
             "num_replicas": 1, "duplicate_window": 0},
        )  # fmt: skip
        if "error" in made:
            raise RuntimeError(f"NATS made no stream: {made}")
        size = b"%d" % len(event)
        yield Peer(
            "NATS", _version([program, "--version"]), "NATS", target, keeps=SYNCED if sync == "always" else "in files",
            subscribe=HELLO + b"SUB bench 1\r\nPING\r\n", subscribed=_PONG,
            greeting=HELLO + b"SUB in.{n} 1\r\nPING\r\n", greeted=_PONG,
            publish=b"PUB bench " + size + b"\r\n" + event + b"\r\n",
            append=b"PUB kept.bench in.{n} " + size + b"\r\n" + event + b"\r\n",
        )  # fmt: skip


def ask_nats(port: int, subject: str, question: Any) -> dict[str, Any]:
    """One question to a NATS server, and its answer."""
    body = json.dumps(question).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wire:
        wire.sendall(HELLO + b"SUB in.0 1\r\nPUB %b in.0 %d\r\n%b\r\n" % (subject.encode(), len(body), body))
        received = b""
        while (found := re.search(rb"MSG in\.0 1 (\d+)\r\n", received)) is None or (
            len(received) < found.end() + int(found[1])
        ):
            received += wire.recv(65_536)
    answer: dict[str, Any] = json.loads(received[found.end() : found.end() + int(found[1])])
    return answer


# ── Redis ─────────────────────────────────────────────────────────────────────────────────────────


def resp(*words: bytes) -> bytes:
    """A command as Redis reads it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


@contextmanager
def run_redis(folder: Path, event: bytes, sync: str = "always") -> Iterator[Peer]:
    """A stream, with each append in the file and synced before it is answered, or every second."""
    folder.mkdir()
    port, program = free_port(), find_program("redis-server") or "redis-server"
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", sync, "--auto-aof-rewrite-percentage", "0"]
    with run(command, port, folder / "log") as target:
        yield Peer(
            "Redis", _version([program, "--version"]), "RESP, streams", target,
            keeps=SYNCED if sync == "always" else "in files",
            greeting=resp(b"PING"), greeted=b"+PONG\r\n", append=resp(b"XADD", b"bench", b"*", b"e", event),
        )  # fmt: skip


def installed() -> dict[str, Start]:
    """Those that can be run here."""
    have: dict[str, tuple[object, Start]] = {
        "nchan": (nchan.available(), run_nchan),
        "mosquitto": (find_program("mosquitto"), run_mosquitto),
        "nats": (find_nats(), run_nats),
        "redis": (find_program("redis-server"), run_redis),
    }
    return {name: start for name, (there, start) in have.items() if there}
