"""Which sockets a process and its children listen on."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_LISTEN = "0A"


def listening(root: int) -> set[tuple[str, int]]:
    """Addresses and ports that *root* and everything it has started listen on."""
    inodes = {inode for pid in family(root) for inode in _sockets(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                found.add(_address(fields[1]))
    return found


def beyond_loopback(root: int) -> set[tuple[str, int]]:
    """Those of them that others can reach."""
    return {(host, port) for host, port in listening(root) if not _is_loopback(host)}


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def family(root: int) -> set[int]:
    """*root* and everything that it has started, directly or not."""
    parents = {int(path.name): _parent(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    members = {root}
    while fresh := {pid for pid, parent in parents.items() if parent in members} - members:
        members |= fresh
    return members


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0  # it has ended meanwhile


def _sockets(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it has ended meanwhile
        for path in Path("/proc", str(pid), "fd").iterdir():
            with suppress(OSError):  # it was closed meanwhile
                name = str(path.readlink())
                if name.startswith("socket:["):
                    yield name[8:-1]


def _address(text: str) -> tuple[str, int]:
    host, port = text.split(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    return str(ipaddress.ip_address(b"".join(words))), int(port, 16)
