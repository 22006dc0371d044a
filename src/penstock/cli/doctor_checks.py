"""What the doctor looks at on every machine: data directory, disk, open files, workers, port, secrets, clock, Java."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from penstock.api.auth import KEYS_FILE, open_keys
from penstock.cli import java
from penstock.cli.serve import OTHER_FILES
from penstock.client.http import ApiError, HttpClient, ServerUnreachable
from penstock.settings import Settings
from penstock.units import parse_address, parse_workers

FREE_BYTES_FAIL, FREE_BYTES_WARN = 64 * 2**20, 2 * 2**30
"""Under 64 MiB a checkpoint of the log may not fit; 2 GiB is some minutes at full speed."""

OPEN_FILES = 4_096
"""A connection is an open file; the usual default of 1,024 is reached by a small crowd."""

EARLIEST = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
"""A clock before this was never set: tokens would not be valid yet."""

PRIVATE_FILES = ("admin.token", KEYS_FILE)

ASK_SECONDS = 5.0
"""How long a running server may take to answer; it waits a second itself for workers that are silent."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """What one check found. `status` is ok, warn or fail."""

    check: str
    status: str
    message: str
    remedy: str = ""


Check = Callable[[Path, Settings], Iterator[DoctorFinding]]


def check_data(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """The data directory is there and can be written, or can be made."""
    place = _nearest(data)
    if data.exists() and not data.is_dir():
        yield DoctorFinding("data", "fail", f"{data} is not a directory", "Give another --data.")
    elif not os.access(place, os.W_OK | os.X_OK):
        yield DoctorFinding(
            "data", "fail", f"{place} cannot be written", f"Run as its owner, or: chown {os.getuid()} {place}"
        )
    elif not data.exists():
        yield DoctorFinding("data", "ok", f"{data} is not there yet; the first start makes it")
    else:
        yield DoctorFinding("data", "ok", f"{data} can be written")


def check_disk(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """There is room for the log."""
    free = shutil.disk_usage(_nearest(data)).free
    status = "fail" if free < FREE_BYTES_FAIL else "warn" if free < FREE_BYTES_WARN else "ok"
    remedy = "" if status == "ok" else "Free some space, or set log.keep."
    yield DoctorFinding("disk", status, f"{free / 2**30:.1f} GiB free", remedy)


def check_open_files(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """The process may have enough connections. The server raises the soft limit up to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= settings.server.connections + OTHER_FILES:
        yield DoctorFinding("open files", "ok", f"{_count(hard)} allowed")
        return
    status = "fail" if hard < OPEN_FILES else "warn"
    message = f"{hard:,} allowed, server.connections is {settings.server.connections:,}"
    yield DoctorFinding("open files", status, message, "Raise 'ulimit -Hn', or lower server.connections.")


def check_workers(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """There is a core for each worker."""
    workers, cores = parse_workers(settings.server.workers), len(os.sched_getaffinity(0))
    if workers > cores:
        message = f"{workers} workers on {cores} cores: more processes than can run at once"
        yield DoctorFinding("workers", "warn", message, "Use --workers auto, unless connections need more processes.")
    elif workers == 1:
        yield DoctorFinding("workers", "ok", f"one process; this machine has {cores} cores (--workers auto uses them)")
    else:
        yield DoctorFinding("workers", "ok", f"{workers} workers and a log process on {cores} cores")


def check_machine(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """All workers answer, if several run on this directory now."""
    host, port = parse_address(settings.server.listen)
    if not (data / "log.sock").exists() or not port or not os.access(data / KEYS_FILE, os.R_OK):
        return
    url = f"{'https' if settings.server.tls_certificate else 'http'}://{reachable(host)}:{port}"
    token = open_keys(data).issue("doctor", ttl=60)  # without a right: whoever has the port may be another server
    try:
        with HttpClient(url, token, timeout=ASK_SECONDS) as client:
            page = client.send("GET", "/metrics").decode()
    except ServerUnreachable as error:
        remedy = "Nothing to do if it was killed; else give its settings, or look for worker.cut in its log."
        yield DoctorFinding("machine", "warn", f"no worker answers at {url}: {error.why}", remedy)
    except ApiError as error:
        remedy = "Give the settings of the server on this directory; after keys --rotate, send it SIGHUP."
        yield DoctorFinding("machine", "warn", f"{url} answers {error.status}", remedy)
    else:
        counts = {name: int(float(value)) for name, value in re.findall(r"^penstock_(workers\w*) (\S+)$", page, re.M)}
        yield judge_workers(parse_workers(settings.server.workers), counts)


def judge_workers(wanted: int, counts: dict[str, int]) -> DoctorFinding:
    """What *counts* of a running server say; *wanted* is 1 where the doctor was not told of workers."""
    if "workers" not in counts:
        return DoctorFinding("machine", "warn", "a server without workers answers", "Give the settings of the server.")
    answering, cut = counts["workers"], counts["workers_cut_total"]
    expected = max(wanted, counts["workers_connected"])
    message = f"{answering} of {expected} workers answer, {cut} were ended because they were silent or too slow"
    if answering < expected:
        return DoctorFinding("machine", "warn", message, "Look for worker.ended and worker.cut in the log.")
    if cut:
        return DoctorFinding("machine", "warn", message, "Look for worker.cut in the log: it says why.")
    return DoctorFinding("machine", "ok", message)


def check_port(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """The port is free, or a server of ours has it."""
    host, port = parse_address(settings.server.listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            remedy = "Nothing to do if that is your server; else choose another --listen."
            yield DoctorFinding("port", "warn", f"{host}:{port}: {error.strerror}", remedy)
        else:
            yield DoctorFinding("port", "ok", f"{host}:{port} is free")


def check_keys(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """Secrets are readable by their owner alone."""
    kept = [data / name for name in PRIVATE_FILES if (data / name).exists()]
    for path in kept:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield DoctorFinding("keys", "fail", f"{path} has mode {mode:04o}: others can read it", f"chmod 600 {path}")
        else:
            yield DoctorFinding("keys", "ok", f"{path} is private")
    if not kept:
        yield DoctorFinding("keys", "ok", "none yet; the first start makes them")


def check_clock(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """The clock was set, and does not stand before what the log has seen."""
    now = time.time()
    newest = max((path.stat().st_mtime for path in _files(data)), default=0.0)
    shown = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if now < EARLIEST:
        yield DoctorFinding("clock", "fail", f"{shown} cannot be right", "Set the clock; tokens depend on it.")
    elif newest > now + 60:
        yield DoctorFinding(
            "clock", "warn", f"{shown} is {newest - now:.0f} s before the newest file in {data}", "Check NTP."
        )
    else:
        yield DoctorFinding("clock", "ok", shown)


def check_java(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """Java is for the pipeline only."""
    if problem := java.what_is_wrong():
        yield DoctorFinding("java", "warn", f"{problem}; only the pipeline needs it", java.REMEDY)
    else:
        yield DoctorFinding("java", "ok", f"{java.find()} is new enough for the pipeline")


MACHINE_CHECKS: tuple[Check, ...] = (
    check_data,
    check_disk,
    check_open_files,
    check_workers,
    check_machine,
    check_port,
    check_keys,
    check_clock,
    check_java,
)


def reachable(host: str) -> str:
    """An address that reaches a listener on *host* from here."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"[{host}]" if ":" in host else host


def _nearest(path: Path) -> Path:
    """*path*, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def _files(data: Path) -> Iterator[Path]:
    return (path for path in data.iterdir() if path.is_file()) if data.is_dir() else iter(())


def _count(limit: int) -> str:
    return "any number" if limit == resource.RLIM_INFINITY else f"{limit:,}"
