"""Makes sure that a lake and a server belong together: the same lake, and the same history of the log's ids.

`lake.json` in the lake and the record `lake/id` at the server hold the same mark, and the epoch of the log whose
entries are in the files. A log that was restored from a backup has another epoch: it gives ids again that the lake may
have already, with other rows. Its lake is used only if it holds nothing beyond what the restored log knows.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import ConfigInvalid
from penstock.pipeline.client import PipelineClient, StoredRecord
from penstock.pipeline.commit import record_names
from penstock.pipeline.jobs import BEGIN
from penstock.pipeline.lake import Lake, LakeHole
from penstock.wire.lake_files import TYPED, is_own_epoch, parse_location, tables_of
from penstock.wire.table_columns import TABLES

MARK: Final = "lake.json"
RECORD: Final = "lake/id"


class LakeMismatch(ConfigInvalid):
    """The lake and the server do not belong together."""

    code = "lake_mismatch"


@dataclass(frozen=True, slots=True)
class ServerEpoch:
    """The epoch of the server's log."""

    epoch: str
    restored: bool

    def is_own(self, other: str) -> bool:
        """Whether something with the epoch *other* is about this log's ids."""
        return is_own_epoch(self.epoch, self.restored, other)


def bind(client: PipelineClient, lake: Lake) -> None:
    """Make sure that the server's watermarks are about *lake*. An empty lake becomes the server's if it has none."""
    epoch = ServerEpoch(**client.call("GET", "/v1/pipeline")["epoch"])
    mark, record = _read_mark(lake), client.get(RECORD)
    if not mark and _may_begin(client, lake, record, epoch):
        _begin(client, lake, record, epoch)
    elif mark.get("id", "") != record.value.get("id", ""):
        raise _another(lake, record)
    else:
        _check_history(client, lake, mark, record, epoch)
    lake.epoch = epoch.epoch


def claim(client: PipelineClient, lake: Lake) -> StoredRecord:
    """Make sure that *lake* is the server's by its mark and its epoch, wherever it lies now; returns `lake/id`."""
    epoch = ServerEpoch(**client.call("GET", "/v1/pipeline")["epoch"])
    mark, record = _read_mark(lake), client.get(RECORD)
    if not mark or mark["id"] != record.value.get("id", ""):
        raise _another(lake, record)
    if not epoch.is_own(mark["epoch"]):
        said = f"{lake.place} has the ids of another history than this server's log, which was restored from a backup"
        raise LakeMismatch("lake", said, remedy="Start the server on it that it belongs to, or give an empty place.")
    lake.epoch = epoch.epoch
    return record


def settle(client: PipelineClient, lake: Lake) -> None:
    """Let the place of *lake* be the one that the server's log is archived in: its tables lie there already."""
    record = client.get(RECORD)
    if record.value["path"] != lake.place:
        client.put(RECORD, {**record.value, "path": lake.place}, expect=record.version)
    _write_mark(lake, record.value["id"], lake.epoch)


def is_here(lake: Lake, table: str, location: str) -> bool:
    """Whether the metadata.json at *location* is the one of *table* in this very lake."""
    return location.startswith(f"{lake.store.location(table)}/metadata/")


def _may_begin(client: PipelineClient, lake: Lake, record: StoredRecord, epoch: ServerEpoch) -> bool:
    """Whether an empty place may become the lake."""
    if not record.version:
        return True
    if not epoch.is_own(record.value.get("epoch", "")):
        return not any(_reached(lake, table) for table in (*TABLES, TYPED))
    # The first start was cut off between the record and the mark.
    return bool(record.value["path"] == lake.place and not client.get("lake/events").value.get("done", 0))


def _begin(client: PipelineClient, lake: Lake, record: StoredRecord, epoch: ServerEpoch) -> None:
    id = record.value.get("id") if epoch.is_own(record.value.get("epoch", "")) else None
    if record.version and id is None:  # a lake of another history: its watermarks say nothing of this one
        for key in (*(f"lake/{name}" for name in record_names(client)), BEGIN):
            client.delete(key)
    value = {"id": id or uuid.uuid4().hex, "path": lake.place, "epoch": epoch.epoch}
    client.put(RECORD, value, expect=record.version)
    _write_mark(lake, value["id"], epoch.epoch)


def _check_history(
    client: PipelineClient, lake: Lake, mark: dict[str, Any], record: StoredRecord, epoch: ServerEpoch
) -> None:
    """Refuse a lake with ids that this log has not given, or has given to other entries."""
    goes_on = (mark.get("epoch"), record.value.get("epoch")) == (epoch.epoch, epoch.epoch)
    for name in record_names(client):
        tables, known = tables_of(name), client.get(f"lake/{name}").value
        away = any(not is_here(lake, table, location) for table, location in known.get("tables", {}).items())
        if any(one.path.startswith(f"{table}/day=") for table in tables for one in lake.store.list(table)):
            raise _older(lake, record, taken_over=away)
        if away:
            raise _moved(lake, record)
        upto = max(known.get("done", 0), (known.get("intent") or {}).get("upto", 0))
        beyond = max(_reached(lake, table) for table in tables)
        if beyond > upto:
            raise _newer(lake, name, beyond, upto, epoch)
        if not goes_on:
            _check_pointers(lake, tables, known)
    if not goes_on:
        client.put(RECORD, {**record.value, "epoch": epoch.epoch}, expect=record.version)
        _write_mark(lake, mark["id"], epoch.epoch)


def _reached(lake: Lake, table: str) -> int:
    """The highest id that the name of a file of *table* speaks of, whether anything points at that file or not."""
    folder = f"{table}/data" if table != TYPED else TYPED.rstrip("/")  # the latter has all typed tables
    files = (parse_location(one.path) for one in lake.store.list(folder))
    return max((file.hi for file in files if file), default=0)


def _check_pointers(lake: Lake, tables: Iterable[str], known: Mapping[str, Any]) -> None:
    """Refuse pointers of a restored log whose files have been compacted or erased since the backup."""
    for table in tables:
        try:
            lake.check(lake.files(table, known))
        except LakeHole as hole:
            said = f"{lake.place} has gone on since the backup: {hole}"
            raise LakeMismatch(
                "lake", said, remedy="Give an empty place. Keep the old lake: it has all rows."
            ) from None


def _another(lake: Lake, record: StoredRecord) -> LakeMismatch:
    remedy = "It belongs to another server: give an empty folder."
    if record.version:
        remedy = f"Give the lake at {record.value['path']}, or an empty folder to a server that has none."
    return LakeMismatch("lake", f"{lake.place} is not the lake that this server's log is archived in", remedy=remedy)


def _moved(lake: Lake, record: StoredRecord) -> LakeMismatch:
    before = record.value["path"]
    said = f"{lake.place} was moved: its tables name their files at {before}"
    remedy = f"Run './penstock pipeline repair --moved-from {before} --lake {lake.place}', or put it back there."
    return LakeMismatch("lake", said, remedy=remedy)


def _older(lake: Lake, record: StoredRecord, *, taken_over: bool) -> LakeMismatch:
    said = f"{lake.place} is a lake of an earlier version, whose files no table names"
    if taken_over and record.value["path"] != lake.place:
        return LakeMismatch("lake", said, remedy=f"It was taken over: give {record.value['path']}.")
    remedy = f"Run './penstock pipeline migrate {lake.place} NEW': it is taken over to a new place, and stays as it is."
    return LakeMismatch("lake", said, remedy=remedy)


def _newer(lake: Lake, name: str, beyond: int, upto: int, epoch: ServerEpoch) -> LakeMismatch:
    how = "was restored from a backup" if epoch.restored else "is older than it"
    said = f"{lake.place} has {name} up to id {beyond:,}, this log, which {how}, knows of {upto:,} only"
    remedy = "The ids in between stand for other entries now. Start the newer server on it, or give an empty folder."
    return LakeMismatch("lake", said, remedy=remedy + " Keep the old lake: it has what was trimmed, and what was lost.")


def _read_mark(lake: Lake) -> dict[str, Any]:
    try:
        text = lake.store.read(MARK)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigInvalid("lake", f"{lake.place} cannot be read: {error}") from error
    try:
        mark = json.loads(text)
        return {"id": str(mark["id"]), "epoch": str(mark.get("epoch", ""))}
    except (ValueError, KeyError, TypeError, AttributeError):
        said = f"{lake.store.location(MARK)} cannot be read"
        raise LakeMismatch("lake", said, remedy='Put it back: {"id": …} as in the record lake/id.') from None


def _write_mark(lake: Lake, id: str, epoch: str) -> None:
    try:
        lake.store.put(MARK, json.dumps({"id": id, "epoch": epoch}).encode())
    except OSError as error:
        raise ConfigInvalid("lake", f"{lake.place} cannot be written: {error}") from error
