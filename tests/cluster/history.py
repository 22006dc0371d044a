"""What writers were promised and readers saw, and whether that can be one log.

`problems` is the checker: it takes a history and what the log holds at the end, and names everything that
must not be. It is tried on histories with a planted loss, a planted double and a planted reorder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.values import Entry


@dataclass(frozen=True, slots=True)
class Promise:
    """An append that was acknowledged. A writer numbers its bodies: `writer number`."""

    stream: str
    id: int
    index: int | None
    body: bytes


@dataclass(slots=True)
class History:
    """Everything that happened in one run."""

    promises: list[Promise] = field(default_factory=list)
    seen: dict[str, list[Entry]] = field(default_factory=dict)  # by reader: what it was given, in order

    def reader(self, name: str) -> list[Entry]:
        """Where a reader puts what it sees."""
        return self.seen.setdefault(name, [])


def problems(history: History, final: Sequence[Entry]) -> list[str]:
    """What cannot be; nothing if all is well."""
    data = [entry for entry in final if entry.index is not None]
    return [
        *_losses(history, data),
        *_doubles(data),
        *_disorder(data),
        *(problem for name, seen in history.seen.items() for problem in _reader(name, seen, final)),
    ]


def _losses(history: History, final: list[Entry]) -> list[str]:
    held = {(entry.stream, entry.id, entry.index, entry.body) for entry in final}
    return [
        f"lost: {promise}"
        for promise in history.promises
        if (promise.stream, promise.id, promise.index, promise.body) not in held
    ]


def _doubles(final: list[Entry]) -> list[str]:
    counts = Counter((entry.stream, entry.body) for entry in final)
    return [f"double: {body!r} in {stream}, {count} times" for (stream, body), count in counts.items() if count > 1]


def _disorder(final: list[Entry]) -> list[str]:
    """Ids rise, indexes count from 0, lines join, and each writer's bodies are in the order it wrote them."""
    found: list[str] = []
    if [entry.id for entry in final] != sorted({entry.id for entry in final}):
        found.append("ids do not rise")
    for stream in {entry.stream for entry in final}:
        entries = [entry for entry in final if entry.stream == stream]
        if [entry.index for entry in entries] != list(range(len(entries))):
            found.append(f"reordered: indexes of {stream} have gaps or jumps")
        for writer in {entry.body.split()[0] for entry in entries}:
            numbers = [int(entry.body.split()[1]) for entry in entries if entry.body.split()[0] == writer]
            if numbers != sorted(numbers):
                found.append(f"reordered: what {writer!r} wrote to {stream}")
    return found


def _reader(name: str, seen: list[Entry], final: Sequence[Entry]) -> list[str]:
    """A reader sees the log from where it began, without a gap: nobody has announced one."""
    if not seen:
        return []
    there = [entry.id for entry in final if seen[0].id <= entry.id <= seen[-1].id]
    if [entry.id for entry in seen] != there:
        missed = sorted(set(there) - {entry.id for entry in seen})[:3]
        return [f"{name} saw another log: missed {missed} or had others, or in another order"]
    bodies = {entry.id: entry.body for entry in final}
    return [f"{name} saw another body at {entry.id}" for entry in seen if bodies[entry.id] != entry.body]
