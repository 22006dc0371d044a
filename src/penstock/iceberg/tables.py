"""Tables of Apache Iceberg. They are written file by file, in version 2 of the format.

pyiceberg is used as a format library: manifests, manifest lists, metadata, statistics. Its own transactions are not:
each copies all of the metadata (3.3 s of CPU for a commit after 1,000 commits; here it is some 10 ms, and stays so).

    data files ──▶ manifest ──▶ manifest list ──▶ metadata.json ──▶ `Prepared`
                      │                                                 │
                      └── sixteen of a level are merged into one        └── the caller points at it by compare-and-set,
                                                                            or discards it

Nothing that is written here is visible until somebody points at the new metadata.json. There is no retry: a commit is
made on the state that its turn began with, so a driver that was overtaken cannot add its rows to another's.
"""

# pyiceberg's models are made by the names of their fields; mypy knows them by their aliases in JSON only.
# mypy: disable-error-code="call-arg"

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import (
    PyArrowFile,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV2, new_table_metadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import (
    MetadataLogEntry,
    Operation,
    Snapshot,
    SnapshotLogEntry,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import PrimitiveType

from penstock.iceberg.files import PlannedFile, WrittenFile
from penstock.iceberg.schemas import partitions_of, properties_of, schema_of
from penstock.iceberg.snapshots import kept_log, kept_snapshots
from penstock.iceberg.store import FileStore
from penstock.wire.lake_files import parse_location
from penstock.wire.table_columns import TABLES, Column

MERGE: Final = 16
"""Manifests of one level that become one of the next. After 10,000 commits there are 16 to 48."""

MERGE_ENTRIES: Final = 2_000
"""Manifests with more entries in all are left as they are: merging them would hold up a commit."""

MOST_MANIFESTS: Final = 64
"""Where files are replaced here and there the levels get mixed up. Over this the small manifests become one."""

CODEC: Final = "deflate"
_MAIN: Final = "main"
_Manifests = dict[str, ManifestFile]  # by their locations, in the order of a manifest list


@dataclass(frozen=True, slots=True)
class Prepared:
    """A commit whose files are all there, durably, and which nobody sees yet."""

    location: str  # of its metadata.json
    table: Table  # as it will be
    made: tuple[str, ...]  # files of metadata that it has written: to be deleted if it never becomes visible
    gone: tuple[str, ...]  # files that nothing names any more when it is visible


class StoreIO(FileIO):
    """A store as pyiceberg wants it."""

    def __init__(self, store: FileStore) -> None:
        super().__init__({})
        self.store = store

    def new_input(self, location: str) -> InputFile:
        return self._file(location)

    def new_output(self, location: str) -> OutputFile:
        return self._file(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self.store.delete([self.store.relative(location if isinstance(location, str) else location.location)])

    def _file(self, location: str) -> PyArrowFile:
        return PyArrowFile(location, self.store.place(self.store.relative(location)), self.store.files)


class Table:
    """One state of a table. It never changes: a commit makes another."""

    def __init__(
        self, files: StoreIO, metadata: TableMetadataV2, location: str = "", before: Table | None = None
    ) -> None:
        """*location* is that of its metadata.json. What the state *before* has read is not read again."""
        self._files, self.metadata, self.location = files, metadata, location
        self.is_written = bool(location)  # its metadata.json is there, and has all of its columns
        known: Mapping[str, _Manifests] = before._all_lists() if before else {}
        self._lists: dict[str, _Manifests] = {  # by the location of the manifest list
            one.manifest_list: known.get(one.manifest_list) or _read(files, one.manifest_list)
            for one in metadata.snapshots
        }
        self._former: dict[str, str] = {}  # former metadata.json → manifest list; what was not looked up is missing
        if before:
            self._remember(before)
        paths = {path for manifests in self._lists.values() for path in manifests}
        self._entries: dict[str, list[ManifestEntry]] = {}  # by the manifest's location, as the next
        self._planned: dict[str, list[PlannedFile]] = {}
        if before:
            self._entries |= {path: one for path, one in before._entries.items() if path in paths}
            self._planned |= {path: one for path, one in before._planned.items() if path in paths}
        schema = metadata.schema()
        self._statistics = compute_statistics_plan(schema, metadata.properties)
        self._ids = parquet_path_to_id_mapping(schema)

    @classmethod
    def create(cls, store: FileStore, name: str, columns: Sequence[Column] = ()) -> Table:
        """The lake's table *name*, empty. Nothing is written yet. *columns* are those of a typed table."""
        made = columns or TABLES[name]
        described = new_table_metadata(
            schema_of(made), partitions_of(name, made), UNSORTED_SORT_ORDER, store.location(name), properties_of(made)
        )
        return cls(StoreIO(store), TableMetadataV2.model_validate(described.model_dump()))

    @classmethod
    def open(cls, store: FileStore, location: str, columns: Sequence[Column] = ()) -> Table:
        """The table as the metadata.json at *location* has it; `FileNotFoundError` if that is gone.

        Columns that were declared since are part of it: the next commit writes them down. *columns* are those of a
        typed table; without them it is as it was written.
        """
        metadata = TableMetadataV2.model_validate_json(store.read(store.relative(location)))
        found = _with_new_columns(metadata, columns)
        table = cls(StoreIO(store), found, location)
        table.is_written = found is metadata
        return table

    def has(self, columns: Sequence[Column]) -> bool:
        """Whether these are its columns."""
        return self.metadata.schema().as_struct() == schema_of(columns).as_struct()

    @property
    def manifests(self) -> tuple[ManifestFile, ...]:
        """Of the newest snapshot."""
        newest = self.metadata.current_snapshot()
        return tuple(self._lists[newest.manifest_list].values()) if newest else ()

    def files(self) -> list[PlannedFile]:
        """The files that have the table's rows."""
        return [one for manifest in self.manifests for one in self._planned_in(manifest)]

    def locations(self) -> Iterator[str]:
        """Where these files are. One manifest is read at a time, and none is kept."""
        for manifest in self.manifests:
            known = self._entries.get(manifest.manifest_path) or manifest.fetch_manifest_entry(self._files)
            yield from (entry.data_file.file_path for entry in known)

    def _planned_in(self, manifest: ManifestFile) -> list[PlannedFile]:
        known = self._planned.get(manifest.manifest_path)
        if known is None:
            known = [_planned(self.metadata.schema(), entry.data_file) for entry in self._entries_of(manifest)]
            self._planned[manifest.manifest_path] = known
        return known

    def named(self) -> set[str]:
        """Every file, of data and of metadata, that this state needs, or a snapshot or former state that is kept."""
        manifests = self._all_manifests()
        former = {one.metadata_file for one in self.metadata.metadata_log}
        return {self.location, *former, *self._all_lists(), *manifests, *self._paths(manifests.values())}

    def former_files(self) -> list[PlannedFile]:
        """The files that a snapshot or former state has which is kept, and the table itself has no more."""
        present, manifests = {one.location for one in self.files()}, self._all_manifests()
        planned = {one.location: one for manifest in manifests.values() for one in self._planned_in(manifest)}
        return [one for location, one in planned.items() if location not in present]

    # ── former states ──────────────────────────────────────────────────────────────────────────

    def _remember(self, before: Table) -> None:
        """Take over what is known of the former states. The one before is the newest of them."""
        present = before.metadata.current_snapshot()
        known = {**before._former, before.location: present.manifest_list if present else ""}
        for one in self.metadata.metadata_log:
            manifest_list = known.get(one.metadata_file)
            if manifest_list is not None:
                self._former[one.metadata_file] = manifest_list
                self._lists.setdefault(manifest_list, before._lists.get(manifest_list, {}))

    def _all_lists(self) -> dict[str, _Manifests]:
        """The manifest lists of the snapshots and former states that are kept. A process reads each once, at most."""
        for one in self.metadata.metadata_log:
            if one.metadata_file not in self._former:
                self._former[one.metadata_file] = manifest_list = self._list_of(one.metadata_file)
                if manifest_list not in self._lists:
                    self._lists[manifest_list] = self._read_if_there(manifest_list)
        return {location: manifests for location, manifests in self._lists.items() if location}

    def _all_manifests(self) -> _Manifests:
        return {path: one for manifests in self._all_lists().values() for path, one in manifests.items()}

    def _list_of(self, location: str) -> str:
        """The manifest list of the state whose metadata.json is at *location*; empty if there is none."""
        try:
            with self._files.new_input(location).open() as stream:
                said = json.loads(stream.read())
        except FileNotFoundError:
            return ""
        present = said.get("current-snapshot-id")
        return next((one["manifest-list"] for one in said["snapshots"] if one["snapshot-id"] == present), "")

    def _read_if_there(self, manifest_list: str) -> _Manifests:
        try:
            return _read(self._files, manifest_list) if manifest_list else {}
        except FileNotFoundError:  # builds that kept no former states have deleted it
            return {}

    def _entries_of(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """What a manifest names. It never changes, so it is read once. Nothing, if it was lost and is a former one."""
        known = self._entries.get(manifest.manifest_path)
        if known is None:
            known = self._entries[manifest.manifest_path] = self._read_entries(manifest)
        return known

    def _read_entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        try:
            return manifest.fetch_manifest_entry(self._files)
        except FileNotFoundError:
            if manifest in self.manifests:
                raise
            return []

    # ── commits ────────────────────────────────────────────────────────────────────────────────

    def append(self, added: Sequence[WrittenFile], *, now_ms: int) -> Prepared:
        return self._commit(Operation.APPEND, added, frozenset(), now_ms)

    def replace(
        self, added: Sequence[WrittenFile], removed: Iterable[str], *, now_ms: int, forget: bool = False
    ) -> Prepared:
        """Put data files in the place of others, which are named by their locations.

        *forget*: no earlier snapshot is kept, so that nothing names the others any more.
        """
        return self._commit(Operation.OVERWRITE, added, frozenset(removed), now_ms, forget=forget)

    def _commit(
        self,
        how: Operation,
        added: Sequence[WrittenFile],
        removed: frozenset[str],
        now_ms: int,
        *,
        forget: bool = False,
    ) -> Prepared:
        before, change = self.metadata.current_snapshot(), _Change(self._files, self.metadata, self._entries_of)
        described = [self._described(one) for one in added]
        kept, dropped = change.without(self.manifests, removed) if removed else (list(self.manifests), [])
        if len(dropped) != len(removed):
            raise ValueError(f"{len(removed) - len(dropped)} of the files to be replaced are not in the table")
        if described:
            kept.append(change.manifest([change.added(one) for one in described]))
        parent = before.snapshot_id if before else None
        snapshot = Snapshot(
            snapshot_id=change.id,
            parent_snapshot_id=parent,
            sequence_number=change.sequence,
            timestamp_ms=max(now_ms, self.metadata.last_updated_ms),
            manifest_list=change.manifest_list(change.merged(kept), parent),
            summary=self._summary(how, described, dropped, before),
            schema_id=self.metadata.current_schema_id,
        )
        metadata = _with_snapshot(self.metadata, snapshot, self.location, forget=forget)
        location = change.metadata_file(metadata)
        self._files.store.sync(map(self._files.store.relative, change.made))
        table = Table(self._files, metadata, location, self)
        return Prepared(location, table, tuple(change.made), tuple(self._gone(table)))

    def _described(self, written: WrittenFile) -> DataFile:
        """The entry of a manifest for a data file, from its footer alone."""
        statistics = data_file_statistics_from_parquet_metadata(written.metadata, self._statistics, self._ids)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=written.location,
            file_format=FileFormat.PARQUET,
            partition=statistics.partition(self.metadata.spec(), self.metadata.schema()),
            file_size_in_bytes=written.size,
            sort_order_id=None,
            spec_id=self.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def _summary(
        self, how: Operation, added: Sequence[DataFile], dropped: Sequence[DataFile], before: Snapshot | None
    ) -> Summary:
        collector = SnapshotSummaryCollector()
        for one in added:
            collector.add_file(one, self.metadata.schema(), self.metadata.spec())
        for one in dropped:
            collector.remove_file(one, self.metadata.schema(), self.metadata.spec())
        totals = before.summary.additional_properties if before and before.summary else None
        return update_snapshot_summaries(Summary(operation=how, **collector.build()), totals)

    def _gone(self, after: Table) -> Iterator[str]:
        """Files that this state has needed, and *after* does not."""
        old, new, needed = self._all_lists(), after._all_lists(), after._all_manifests()
        expired = [location for location in old if location not in new]
        data, seen = set[str](), set(needed)
        for mine in (old[location] for location in expired):
            left = [one for path, one in mine.items() if path not in seen]
            if left:
                data |= self._paths(left) - after._paths(_elsewhere(needed, mine))
            seen |= mine.keys()
        yield from (*data, *(seen - needed.keys()), *expired)
        named = {one.metadata_file for one in after.metadata.metadata_log}
        former = [one.metadata_file for one in self.metadata.metadata_log]
        yield from (one for one in (*former, self.location) if one and one not in named)

    def _paths(self, manifests: Iterable[ManifestFile]) -> set[str]:
        return {entry.data_file.file_path for one in manifests for entry in self._entries_of(one)}


def _elsewhere(needed: _Manifests, mine: _Manifests) -> list[ManifestFile]:
    """The manifests that may have what is in a manifest of an expired list, all of whose manifests are *mine*.

    Entries move from manifest to manifest, so what counts is whether any that is still *needed* has them. A list names
    a data file once: its other manifests need no look. The rest are those written since, and what an older list that is
    kept had in their place: as many as were changed in between, however large the table is.
    """
    return [one for path, one in needed.items() if path not in mine]


def _planned(schema: Schema, file: DataFile) -> PlannedFile:
    name = parse_location(file.file_path)
    if name is None:
        raise ValueError(f"{file.file_path} is not named like a file of the lake")
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    bounds = {
        field.name: tuple(
            from_bytes(cast("PrimitiveType", field.field_type), one[field.field_id]) if field.field_id in one else None
            for one in (lower, upper)
        )
        for field in schema.fields
        if field.field_id in lower or field.field_id in upper
    }
    return PlannedFile(name, file.file_path, file.file_size_in_bytes, file.record_count, bounds)


def _read(files: StoreIO, manifest_list: str) -> _Manifests:
    return {one.manifest_path: one for one in read_manifest_list(files.new_input(manifest_list))}


def _with_new_columns(metadata: TableMetadataV2, columns: Sequence[Column]) -> TableMetadataV2:
    """The metadata with the columns that were declared since it was written."""
    columns = columns or TABLES.get(metadata.location.rpartition("/")[2], ())
    declared = schema_of(columns)
    if not columns or metadata.schema().as_struct() == declared.as_struct():
        return metadata
    number = 1 + max(one.schema_id for one in metadata.schemas)
    return metadata.model_copy(
        update={
            "schemas": [*metadata.schemas, Schema(*declared.fields, schema_id=number)],
            "current_schema_id": number,
            "last_column_id": max(metadata.last_column_id, declared.highest_field_id),
            "properties": {**metadata.properties, **properties_of(columns)},
        }
    )


def _with_snapshot(before: TableMetadataV2, snapshot: Snapshot, location: str, *, forget: bool) -> TableMetadataV2:
    """The metadata with one snapshot more, and without those that are too old. Nothing in it is copied."""
    former = [MetadataLogEntry(metadata_file=location, timestamp_ms=before.last_updated_ms)] if location else []
    branch = SnapshotRef(snapshot_id=snapshot.snapshot_id, snapshot_ref_type=SnapshotRefType.BRANCH)
    kept = [snapshot] if forget else kept_snapshots([*before.snapshots, snapshot])
    moments = [SnapshotLogEntry(snapshot_id=one.snapshot_id, timestamp_ms=one.timestamp_ms) for one in kept]
    return before.model_copy(
        update={
            "last_sequence_number": snapshot.sequence_number,
            "last_updated_ms": snapshot.timestamp_ms,
            "current_snapshot_id": snapshot.snapshot_id,
            "snapshots": kept,
            "snapshot_log": moments,
            "metadata_log": [] if forget else kept_log([*before.metadata_log, *former], snapshot.timestamp_ms),
            "refs": {_MAIN: branch},
        }
    )


class _Change:
    """The files of metadata that one commit writes."""

    def __init__(
        self, files: StoreIO, metadata: TableMetadataV2, entries: Callable[[ManifestFile], list[ManifestEntry]]
    ) -> None:
        self._files, self._metadata, self._entries_of = files, metadata, entries
        self.id, self.sequence = secrets.randbits(62) + 1, metadata.last_sequence_number + 1
        self.made: list[str] = []
        self._manifests = 0
        files.store.make_folder(files.store.relative(f"{metadata.location}/metadata"))

    def added(self, file: DataFile) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED, snapshot_id=self.id, sequence_number=None, file_sequence_number=None,
            data_file=file,
        )  # fmt: skip

    def manifest(self, entries: Iterable[ManifestEntry]) -> ManifestFile:
        self._manifests += 1
        output = self._files.new_output(self._new(f"{self.id:x}-m{self._manifests}.avro"))
        metadata = self._metadata
        with write_manifest(2, metadata.spec(), metadata.schema(), output, self.id, CODEC) as writer:
            for entry in entries:
                (writer.add if entry.snapshot_id == self.id else writer.existing)(entry)
        return writer.to_manifest_file()

    def without(
        self, manifests: Iterable[ManifestFile], removed: frozenset[str]
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """The manifests without the files that are *removed*, and those files."""
        kept: list[ManifestFile] = []
        dropped: list[DataFile] = []
        for manifest in manifests:
            entries = self._entries_of(manifest)
            left = [entry for entry in entries if entry.data_file.file_path not in removed]
            if len(left) == len(entries):
                kept.append(manifest)
                continue
            dropped += (entry.data_file for entry in entries if entry.data_file.file_path in removed)
            if left:
                kept.append(self.manifest(left))
        return kept, dropped

    def merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """As long as the last sixteen are of one level, they become one of the next."""
        while len(manifests) >= MERGE:
            tail = manifests[-MERGE:]
            if len({_level(one) for one in tail}) > 1 or sum(map(_entries, tail)) > MERGE_ENTRIES:
                break
            manifests = [*manifests[:-MERGE], self._merge(tail)]
        if len(manifests) <= MOST_MANIFESTS:
            return manifests
        small = [one for one in manifests if _entries(one) < MERGE_ENTRIES // MERGE]
        return [*(one for one in manifests if one not in small), self._merge(small)]

    def _merge(self, manifests: Sequence[ManifestFile]) -> ManifestFile:
        merged = self.manifest(entry for one in manifests for entry in one.fetch_manifest_entry(self._files))
        for one in manifests:
            self._take_back(one.manifest_path)
        return merged

    def _take_back(self, location: str) -> None:
        """Delete what this very commit has written and merged again: nobody will ever name it."""
        if location in self.made:
            self.made.remove(location)
            self._files.delete(location)

    def manifest_list(self, manifests: Sequence[ManifestFile], parent: int | None) -> str:
        location = self._new(f"snap-{self.id:x}.avro")
        output = self._files.new_output(location)
        with write_manifest_list(2, output, self.id, parent, self.sequence, CODEC) as writer:
            writer.add_manifests(list(manifests))
        return location

    def metadata_file(self, metadata: TableMetadataV2) -> str:
        location = self._new(f"{self.sequence:08d}-{self.id:x}.metadata.json")
        with self._files.new_output(location).create() as stream:
            stream.write(metadata.model_dump_json(exclude_none=True).encode())
        return location

    def _new(self, name: str) -> str:
        location = f"{self._metadata.location}/metadata/{name}"
        self.made.append(location)
        return location


def _entries(manifest: ManifestFile) -> int:
    return int(manifest.added_files_count or 0) + int(manifest.existing_files_count or 0)


def _level(manifest: ManifestFile) -> int:
    """How often its entries have been merged, by how many they are."""
    level, entries = 0, _entries(manifest)
    while entries >= MERGE:
        level, entries = level + 1, entries // MERGE
    return level
