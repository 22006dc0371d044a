"""What a program did to its files, and when it acknowledged: recorded with strace, read into values.

A crash in the middle of a program leaves what was on the disk, not what the program had written. Only the order of
writes, syncs and acknowledgements tells what could have been on the disk, and strace sees all three.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.testing import require_program
from tests.faults.children import ENVIRONMENT, command

CALLS = "openat,write,pwrite64,ftruncate,fallocate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat"


@dataclass(frozen=True)
class Create:
    """A file came to be; until its directory is synced it may be gone after a crash."""

    file: str


@dataclass(frozen=True)
class Write:
    file: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncate:
    file: str
    size: int


@dataclass(frozen=True)
class Remove:
    file: str


@dataclass(frozen=True)
class Sync:
    """Everything that was done to *file* before step *began* is on the disk. An empty name is the directory."""

    file: str
    began: int


@dataclass(frozen=True)
class Acknowledge:
    line: str


Step = Create | Write | Truncate | Remove | Sync | Acknowledge


def record(module: str, directory: Path, *arguments: str) -> list[Step]:
    """Run a Python module under strace on an empty *directory*; return what it did, in order."""
    strace = require_program("strace")
    trace = directory.with_name(directory.name + ".strace")
    directory.mkdir()
    subprocess.run(
        [
            *(strace, "-f", "-y", "-xx", "-s", "8388608", "-o", str(trace), "-e", f"trace={CALLS}"),
            *command(module, directory, *arguments),
        ],
        check=True,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        timeout=60,
    )
    return list(_Reading(directory).steps(trace.read_text()))


_LINE = re.compile(r"(\d+)\s+(.*)")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)")
_CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_DESCRIPTOR = re.compile(r"(\d+)<([^>]*)>")


class _Reading:
    """Understands the lines of one trace. Files outside the directory do not matter, nor does shared memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._known: set[str] = set()

    def steps(self, text: str) -> Iterator[Step]:
        begun: dict[str, tuple[str, int]] = {}  # what a thread is in the middle of, and since which step
        count = 0
        for line in text.splitlines():
            found = _LINE.fullmatch(line)
            if found is None:
                continue
            thread, call = found.groups()
            if call.endswith("<unfinished ...>"):
                # A write may reach the disk from its beginning on; a sync holds only at its end.
                begun[thread] = (call.removesuffix("<unfinished ...>"), count)
                if not call.startswith(("fsync", "fdatasync", "openat")):
                    call = begun[thread][0] + ") = 0"
                    begun[thread] = ("", 0)
                else:
                    continue
            began = count
            if resumed := _RESUMED.fullmatch(call):
                first, began = begun.pop(thread, ("", 0))
                if not first:
                    continue
                call = first.rstrip(" ,") + resumed.group(1)
            step = self._step(call, began)
            if step is not None:
                count += 1
                yield step

    def _step(self, line: str, began: int) -> Step | None:
        found = _CALL.match(line)
        if found is None or int(found.group(3)) < 0:
            return None
        name, arguments = found.group(1), found.group(2)
        if name == "openat":
            return self._opened(arguments)
        if name.startswith("unlink"):
            file = self._file(_text(arguments))
            self._known.discard(file or "")
            return Remove(file) if file else None
        descriptor = _DESCRIPTOR.match(arguments)
        if descriptor is None:
            return None
        if name == "write" and descriptor.group(1) == "1":
            return Acknowledge(_bytes(arguments).decode())
        file = self._file(_decoded(descriptor.group(2)).decode())
        return None if file is None else self._done_to(file, name, arguments, began)

    def _done_to(self, file: str, name: str, arguments: str, began: int) -> Step | None:
        if name in ("fsync", "fdatasync"):
            return Sync(file, began)
        if not file:
            return None
        last = int(arguments.rpartition(",")[2])
        if name == "pwrite64":
            return Write(file, last, _bytes(arguments))
        if name == "ftruncate":
            return Truncate(file, last)
        raise AssertionError(f"{name} of {file} is not understood")

    def _opened(self, arguments: str) -> Create | None:
        file = self._file(_text(arguments))
        if not file or "O_CREAT" not in arguments or file in self._known:
            return None
        self._known.add(file)
        return Create(file)

    def _file(self, path: str) -> str | None:
        """A file's name within the directory, empty for the directory itself, None for what does not matter."""
        if path == self._directory:
            return ""
        folder, _, name = path.rpartition("/")
        matters = folder == self._directory and name.startswith("penstock.db") and not name.endswith("-shm")
        return name if matters else None


def _text(arguments: str) -> str:
    return _bytes(arguments).decode()


def _bytes(arguments: str) -> bytes:
    found = _STRING.search(arguments)
    assert found is not None, arguments[:200]
    assert not found.group(2), "strace has cut a write short"
    return _decoded(found.group(1))


def _decoded(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
