"""Which data files a table has, read from its metadata: for whoever reads rows and commits nothing.

    metadata.json ──▶ manifest list ──▶ manifests ──▶ data files, with the bounds of some columns

All of these are written once and never changed, so each manifest is read once and kept. What commits need
(`tables.py`) is not loaded here: `pyiceberg.io.pyarrow` alone takes longer to load than all else, and 60 MB.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile, read_manifest_list

from penstock.iceberg.store import FileStore

NO_SNAPSHOT: Final = -1
_INTEGERS: Final = {"int": "<i", "date": "<i", "long": "<q", "timestamp": "<q", "timestamptz": "<q"}

_ANY: Final = (-math.inf, math.inf)


class ColumnBounds(dict[str, tuple[Any, Any]]):
    """The least and the greatest value of columns, or values beyond them: long texts are cut. Some are unknown."""

    def may_have(self, column: str, value: Any) -> bool:
        """Whether a row may have this value in *column*."""
        known = self.get(column)
        return known is None or known[0] <= value <= known[1]

    def least(self, column: str) -> float:
        """No number in *column* is less than this."""
        return float(self.get(column, _ANY)[0])

    def most(self, column: str) -> float:
        """No number in *column* is greater than this."""
        return float(self.get(column, _ANY)[1])


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A data file of a table, as its manifest tells."""

    path: str  # below the store's root
    size: int
    rows: int
    bounds: ColumnBounds  # of the columns that were asked for


class SnapshotInfo(msgspec.Struct, rename="kebab"):
    """One state of a table."""

    snapshot_id: int
    manifest_list: str
    timestamp_ms: int
    summary: dict[str, str] = {}


class FieldInfo(msgspec.Struct):
    """A column."""

    id: int
    name: str
    type: Any
    required: bool = False


class SchemaInfo(msgspec.Struct, rename="kebab"):
    """The columns of a table at some time."""

    schema_id: int
    fields: list[FieldInfo]


class TableInfo(msgspec.Struct, rename="kebab"):
    """What a metadata.json says, as far as readers need it."""

    location: str
    current_schema_id: int
    schemas: list[SchemaInfo]
    snapshots: list[SnapshotInfo] = []
    current_snapshot_id: int | None = NO_SNAPSHOT

    @property
    def fields(self) -> list[FieldInfo]:
        """The columns of today."""
        return next(one.fields for one in self.schemas if one.schema_id == self.current_schema_id)

    @property
    def snapshot(self) -> SnapshotInfo | None:
        """The newest state; None for a table that never had a row."""
        return next((one for one in self.snapshots if one.snapshot_id == self.current_snapshot_id), None)


def read_info(metadata: bytes) -> TableInfo:
    """A metadata.json, decoded. `ValueError` if it is none."""
    return msgspec.json.decode(metadata, type=TableInfo)


class TablePlanner:
    """Tells the data files of one table. Keeps what it has read as long as the table still names it."""

    def __init__(self, store: FileStore, columns: Sequence[str] = ()) -> None:
        """*columns* are those whose bounds are wanted."""
        self._store, self._columns = store, frozenset(columns)
        self._known: dict[str, tuple[ListedFile, ...]] = {}

    def files(self, location: str) -> list[ListedFile]:
        """The data files that the metadata.json at *location* names.

        `FileNotFoundError` if a part of the metadata is gone, `ValueError` if it is damaged.
        """
        info = read_info(self._store.read(self._store.relative(location)))
        wanted = {field.id: field for field in info.fields if field.name in self._columns}
        known: dict[str, tuple[ListedFile, ...]] = {}
        try:
            for manifest in self._manifests(info.snapshot):
                path = manifest.manifest_path
                known[path] = self._known.get(path) or tuple(self._read(manifest, wanted))
        except (OSError, ValueError):
            raise
        except Exception as error:  # what the library stumbles over in a damaged file is its own affair
            raise ValueError(f"a manifest that {location} names cannot be read: {error!r}") from error
        self._known = known
        return [file for files in known.values() for file in files]

    def _manifests(self, snapshot: SnapshotInfo | None) -> Iterator[ManifestFile]:
        if snapshot is not None:
            for manifest in read_manifest_list(_StoredInput(self._store, snapshot.manifest_list)):
                if manifest.content != ManifestContent.DATA:
                    raise ValueError(f"{manifest.manifest_path} deletes rows, which no reader of ours applies")
                yield manifest

    def _read(self, manifest: ManifestFile, wanted: dict[int, FieldInfo]) -> Iterator[ListedFile]:
        entries: list[ManifestEntry] = manifest.fetch_manifest_entry(_StoreFiles(self._store))
        for entry in entries:
            file = entry.data_file
            bounds = ColumnBounds()
            for id, field in wanted.items():
                least, most = (file.lower_bounds or {}).get(id), (file.upper_bounds or {}).get(id)
                if least is not None and most is not None:
                    bounds[field.name] = _value(least, field.type), _value(most, field.type)
            path = self._store.relative(file.file_path)
            yield ListedFile(path, file.file_size_in_bytes, file.record_count, bounds)


def _value(raw: bytes, type: Any) -> Any:
    """A bound as Iceberg writes it; times are microseconds."""
    if type in _INTEGERS:
        return struct.unpack(_INTEGERS[type], raw)[0]
    return raw.decode() if type == "string" else raw


class _StoredInput(InputFile):
    """A file of a store as pyiceberg's Avro reader wants it."""

    def __init__(self, store: FileStore, location: str) -> None:
        super().__init__(location)
        self._store = store

    def __len__(self) -> int:
        return len(self._read())

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return cast("InputStream", io.BytesIO(self._read()))

    def _read(self) -> bytes:
        return self._store.read(self._store.relative(self.location))


class _StoreFiles(FileIO):
    """A store that is only read."""

    def __init__(self, store: FileStore) -> None:
        super().__init__({})
        self._store = store

    def new_input(self, location: str) -> InputFile:
        return _StoredInput(self._store, location)

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError("this store is only read")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise NotImplementedError("this store is only read")
