"""What an engine must still have after a crash: everything that was acknowledged, once, in order."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from penstock.core.names import is_system
from penstock.engines.sqlite.engine import SqliteEngine, open_sqlite
from penstock.errors import PenstockError
from penstock.values import Batch, Draft, Entry
from tests.faults.storage_child import MONTH, small_options


async def broken_promises(directory: Path, acknowledgements: Iterable[str]) -> list[str]:
    """Open what a crash left; return what is wrong with it. An empty list is the good answer."""
    promised = [json.loads(line) for line in acknowledgements]
    try:
        async with open_sqlite(directory, node="after", options=small_options()) as engine:
            return [*await _log(engine, promised), *await _others(engine, promised), *await _goes_on(engine)]
    except PenstockError as error:
        return [f"does not open: {error}"]


async def read_everything(engine: SqliteEngine) -> list[Entry]:
    found: list[Entry] = []
    more, after = True, 0
    while more:
        page = await engine.log.read_after([">"], after, meta=True)
        found += page.entries
        after, more = page.upto, page.more
    return found


async def _log(engine: SqliteEngine, promised: list[dict]) -> list[str]:
    found = await read_everything(engine)
    ids = [entry.id for entry in found]
    wrong = [] if ids == sorted(set(ids)) else ["ids are not in order, each once"]
    entries = {entry.id: entry for entry in found}
    for id, stream, index, end, body in (entry for promise in promised for entry in promise.get("entries", [])):
        entry = entries.get(id)
        if entry is None:
            wrong.append(f"entry {id} was acknowledged and is gone")
        elif (entry.stream, entry.index, entry.end, entry.body.decode()) != (stream, index, end, body):
            wrong.append(f"entry {id} is another than was acknowledged")
    return wrong + await _streams(engine, found)


async def _streams(engine: SqliteEngine, found: list[Entry]) -> list[str]:
    """Each stream has no gap, by id as well as by index and by cursor, and its head is where it ends."""
    wrong = []
    streams: dict[str, list[Entry]] = defaultdict(list)
    for entry in found:
        streams[entry.stream].append(entry)
    for name, entries in streams.items():
        indexes = [entry.index for entry in entries if entry.index is not None]
        if indexes != list(range(len(indexes))):
            wrong.append(f"{name} has a gap")
        if any(one.end != two.offset for one, two in itertools.pairwise(entries)):
            wrong.append(f"{name} has lines that do not join")
        head = await engine.log.head(name)
        if head is None or (head.next_index, head.offset) != (len(indexes), entries[-1].end):
            wrong.append(f"{name} has a head that is elsewhere")
        elif not is_system(name) and list((await engine.log.read_cursor(name, 0, 0)).entries) != entries:
            wrong.append(f"{name} reads differently by its cursor")
    return wrong


async def _others(engine: SqliteEngine, promised: list[dict]) -> list[str]:
    wrong = []
    for promise in promised:
        if "record" in promise:
            key, number, version = promise["record"]
            record = await engine.registry.get(key)
            if record is None or record.version < version or int(record.value) < number:
                wrong.append(f"record {key} lost version {version}")
        if "items" in promise:
            recipient, items = promise["items"]
            pending = [[item.number, item.message_id] for item in await engine.mailbox.take(recipient, MONTH)]
            wrong += [f"item {item} of {recipient} is gone" for item in items if item not in pending]
            if [number for number, _ in pending] != list(range(1, len(pending) + 1)):
                wrong.append(f"items of {recipient} have a gap")
    return wrong


async def _goes_on(engine: SqliteEngine) -> list[str]:
    """What is appended now gets the coordinates that follow."""
    before, followed = await engine.log.head("/s/0"), engine.log.followed
    answer = await engine.log.append(Batch((Draft("/s/0", b"after the crash"),)))
    expected = before.next_index if before else 0
    good = answer.last.index == expected and answer.last.id > followed
    return [] if good else [f"goes on at {answer.last}, not at index {expected} after id {followed}"]
