"""Which contents a disk may have after a crash at some step of a trace.

What was synced is there. Of what was not, each sector may or may not be: writes get lost, are torn in the middle,
and reach the disk in another order than they were made, within a file and between files.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.traces import Acknowledge, Create, Remove, Step, Sync, Truncate, Write

SECTOR = 512


@dataclass
class File:
    """What of a file is safe, and what was done to it since."""

    safe: bytes | None = None  # None: not there
    pending: list[tuple[int, Step]] = field(default_factory=list)

    def sync(self, began: int) -> None:
        done = [step for number, step in self.pending if number < began]
        self.pending = [(number, step) for number, step in self.pending if number >= began]
        self.safe = applied(self.safe, done)

    def survivors(self, how: str, chance: random.Random) -> bytes | None:
        """The content when only some of what is pending reached the disk."""
        steps = [step for _, step in self.pending]
        match how:
            case "nothing":
                steps = []
            case "torn" if steps:
                steps[-1] = torn(steps[-1], chance)
            case "scattered":
                steps = [piece for step in steps for piece in sectors(step) if chance.random() < 0.5]
        return applied(self.safe, steps)

    def near_misses(self) -> Iterator[tuple[str, bytes | None]]:
        """Contents when the disk kept the order and stopped somewhere, or lost just one of the writes."""
        steps = [step for _, step in self.pending]
        for count in range(1, len(steps)):
            yield f"the first {count}", applied(self.safe, steps[:count])
        for lost in range(len(steps)):
            yield f"all but number {lost}", applied(self.safe, steps[:lost] + steps[lost + 1 :])


@dataclass(frozen=True)
class CrashState:
    """One possible disk, and what had been acknowledged by then."""

    name: str
    files: dict[str, bytes]
    acknowledged: tuple[str, ...]

    def write(self, directory: Path) -> None:
        directory.mkdir()
        for name, content in self.files.items():
            (directory / name).write_bytes(content)


def crash_states(steps: list[Step], points: list[int], seed: int, *, thorough: bool = False) -> Iterator[CrashState]:
    """Possible disks after crashes right before the steps numbered *points*; if *thorough*, many more for each."""
    chance = random.Random(seed)
    files: dict[str, File] = {}
    acknowledged: list[str] = []
    wanted = set(points)
    for number, step in enumerate(steps):
        if number in wanted:
            yield from _states(number, files, tuple(acknowledged), chance)
            if thorough:
                yield from _near_misses(number, files, tuple(acknowledged))
        if isinstance(step, Acknowledge):
            acknowledged += step.line.splitlines()
        elif isinstance(step, Sync):
            _sync(files, step)
        else:
            files.setdefault(step.file, File()).pending.append((number, step))
    yield from _states(len(steps), files, tuple(acknowledged), chance)


def _sync(files: dict[str, File], step: Sync) -> None:
    if step.file:
        files.setdefault(step.file, File()).sync(step.began)
        return
    # The directory: which names there are, not what is in them.
    for file in files.values():
        there = [s for n, s in file.pending if n < step.began and isinstance(s, Create | Remove)]
        file.pending = [(n, s) for n, s in file.pending if (n, s) and not (n < step.began and s in there)]
        if there:
            file.safe = None if isinstance(there[-1], Remove) else file.safe or b""


def _states(
    number: int, files: dict[str, File], acknowledged: tuple[str, ...], chance: random.Random
) -> Iterator[CrashState]:
    names = sorted(files)
    choices = [dict.fromkeys(names, how) for how in ("nothing", "everything", "torn", "scattered", "scattered")]
    choices += [{name: "everything" if name == only else "nothing" for name in names} for only in names]
    for choice in choices:
        contents = {name: files[name].survivors(how, chance) for name, how in choice.items()}
        there = {name: content for name, content in contents.items() if content is not None}
        yield CrashState(f"step {number}, {choice}", there, acknowledged)


def _near_misses(number: int, files: dict[str, File], acknowledged: tuple[str, ...]) -> Iterator[CrashState]:
    """One file after the other as it may be, the rest as if everything had arrived."""
    whole = {name: applied(file.safe, [step for _, step in file.pending]) for name, file in files.items()}
    for name, file in files.items():
        for how, content in file.near_misses():
            there = {n: c for n, c in {**whole, name: content}.items() if c is not None}
            yield CrashState(f"step {number}, {how} of {name}", there, acknowledged)


def applied(content: bytes | None, steps: list[Step]) -> bytes | None:
    """A file's content after *steps*."""
    data = None if content is None else bytearray(content)
    for step in steps:
        if isinstance(step, Remove):
            data = None
            continue
        data = bytearray() if data is None else data
        if isinstance(step, Truncate):
            del data[step.size :]
            data.extend(bytes(step.size - len(data)))
        elif isinstance(step, Write):
            data.extend(bytes(max(0, step.offset - len(data))))
            data[step.offset : step.offset + len(step.data)] = step.data
    return None if data is None else bytes(data)


def torn(step: Step, chance: random.Random) -> Step:
    """A write of which only the first sectors arrived."""
    if not isinstance(step, Write) or len(step.data) <= SECTOR:
        return step
    whole = len(step.data) // SECTOR
    return Write(step.file, step.offset, step.data[: chance.randrange(whole) * SECTOR])


def sectors(step: Step) -> list[Step]:
    """A write as pieces that reach the disk each by itself, none across the border of a sector."""
    if not isinstance(step, Write):
        return [step]
    pieces, begin = [], 0
    while begin < len(step.data):
        end = begin + SECTOR - (step.offset + begin) % SECTOR
        pieces.append(Write(step.file, step.offset + begin, step.data[begin:end]))
        begin = end
    return list(pieces)
