"""Looks at everything around a server that can be wrong, and says what to do about it."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from penstock.cli.doctor_webpush import WEB_PUSH_CHECKS
from penstock.cli.findings import Check, Finding
from penstock.cli.serving import OTHER_FILES
from penstock.settings import Settings
from penstock.units import parse_address

FREE_BYTES_FAIL, FREE_BYTES_WARN = 64 * 2**20, 2 * 2**30
"""Under 64 MiB a checkpoint of the log may not fit; 2 GiB is some minutes at full speed."""

OPEN_FILES = 4_096
"""A connection is an open file; the usual default of 1,024 is reached by a small crowd."""

EARLIEST = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
"""A clock before this was never set: tokens would not be valid yet."""

PRIVATE_FILES = ("admin.token", "keys.json")


def examine(data: Path, settings: Settings) -> list[Finding]:
    """All findings, in the order of the table below."""
    return [finding for check in CHECKS for finding in check(data, settings)]


def check_data(data: Path, settings: Settings) -> Iterator[Finding]:
    """The data directory is there and can be written, or can be made."""
    place = _nearest(data)
    if data.exists() and not data.is_dir():
        yield Finding("data", "fail", f"{data} is not a directory", "Give another --data.")
    elif not os.access(place, os.W_OK | os.X_OK):
        yield Finding(
            "data", "fail", f"{place} cannot be written", f"Run as its owner, or: chown {os.getuid()} {place}"
        )
    elif not data.exists():
        yield Finding("data", "ok", f"{data} is not there yet; the first start makes it")
    else:
        yield Finding("data", "ok", f"{data} can be written")


def check_disk(data: Path, settings: Settings) -> Iterator[Finding]:
    """There is room for the log."""
    free = shutil.disk_usage(_nearest(data)).free
    status = "fail" if free < FREE_BYTES_FAIL else "warn" if free < FREE_BYTES_WARN else "ok"
    remedy = "" if status == "ok" else "Free some space, or set log.keep."
    yield Finding("disk", status, f"{free / 2**30:.1f} GiB free", remedy)


def check_open_files(data: Path, settings: Settings) -> Iterator[Finding]:
    """The process may have enough connections. The server raises the soft limit up to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= settings.server.connections + OTHER_FILES:
        yield Finding("open files", "ok", f"{_count(hard)} allowed")
        return
    status = "fail" if hard < OPEN_FILES else "warn"
    message = f"{hard:,} allowed, server.connections is {settings.server.connections:,}"
    yield Finding("open files", status, message, "Raise 'ulimit -Hn', or lower server.connections.")


def check_port(data: Path, settings: Settings) -> Iterator[Finding]:
    """The port is free, or a server of ours has it."""
    host, port = parse_address(settings.server.listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            remedy = "Nothing to do if that is your server; else choose another --listen."
            yield Finding("port", "warn", f"{host}:{port}: {error.strerror}", remedy)
        else:
            yield Finding("port", "ok", f"{host}:{port} is free")


def check_keys(data: Path, settings: Settings) -> Iterator[Finding]:
    """Secrets are readable by their owner alone."""
    kept = [data / name for name in PRIVATE_FILES if (data / name).exists()]
    for path in kept:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield Finding("keys", "fail", f"{path} has mode {mode:04o}: others can read it", f"chmod 600 {path}")
        else:
            yield Finding("keys", "ok", f"{path} is private")
    if not kept:
        yield Finding("keys", "ok", "none yet; the first start makes them")


def check_clock(data: Path, settings: Settings) -> Iterator[Finding]:
    """The clock was set, and does not stand before what the log has seen."""
    now = time.time()
    newest = max((path.stat().st_mtime for path in _files(data)), default=0.0)
    shown = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if now < EARLIEST:
        yield Finding("clock", "fail", f"{shown} cannot be right", "Set the clock; tokens depend on it.")
    elif newest > now + 60:
        yield Finding(
            "clock", "warn", f"{shown} is {newest - now:.0f} s before the newest file in {data}", "Check NTP."
        )
    else:
        yield Finding("clock", "ok", shown)


def check_java(data: Path, settings: Settings) -> Iterator[Finding]:
    """Java is for the pipeline only."""
    version = java_version()
    if version and version >= 17:
        yield Finding("java", "ok", f"Java {version}")
        return
    found = f"Java {version} is too old" if version else "there is no Java"
    yield Finding(
        "java", "warn", f"{found}; only the Spark pipeline needs it", "apt-get install openjdk-17-jre-headless"
    )


CHECKS: tuple[Check, ...] = (
    check_data,
    check_disk,
    check_open_files,
    check_port,
    check_keys,
    check_clock,
    check_java,
    *WEB_PUSH_CHECKS,
)


def java_version() -> int | None:
    """The major version of the Java on PATH, if there is one."""
    java = shutil.which("java")
    if not java:
        return None
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    found = re.search(r'version "(\d+)', shown)
    return int(found[1]) if found else None


def _nearest(path: Path) -> Path:
    """*path*, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def _files(data: Path) -> Iterator[Path]:
    return (path for path in data.iterdir() if path.is_file()) if data.is_dir() else iter(())


def _count(limit: int) -> str:
    return "any number" if limit == resource.RLIM_INFINITY else f"{limit:,}"
