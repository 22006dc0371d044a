"""Moved tables. Their metadata names files where they were.

Data files stay as they are. Manifests, manifest lists and metadata.json are written again, beside the former ones and
under new names, with the addresses of today. Snapshots keep their ids, so that time travel goes on.
"""

from __future__ import annotations

import secrets
from typing import Final

from pyiceberg.io import InputFile
from pyiceberg.manifest import ManifestFile, read_manifest_list, write_manifest, write_manifest_list
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.snapshots import Snapshot

from penstock.iceberg.store import FileStore
from penstock.iceberg.tables import CODEC, Prepared, StoreIO, Table

_FILE_PATH: Final = 1  # the place of `file_path` among the fields of a data file


def open_moved(store: FileStore, before: str, location: str) -> Table:
    """The table as its metadata has it, with the addresses of before."""
    files = _MovedFiles(store, before)
    return Table(files, files.metadata(location), location)


def relocate(store: FileStore, before: str, location: str) -> Prepared:
    """The table whose metadata.json was at *location*, with all addresses below *before* changed to the store's own.

    `FileNotFoundError` if a part of the metadata is not there, `ValueError` if it names files elsewhere.
    """
    return _Relocation(_MovedFiles(store, before), location).prepare()


class _MovedFiles(StoreIO):
    """A store whose files are asked for where they were before."""

    def __init__(self, store: FileStore, before: str) -> None:
        super().__init__(store)
        self._before = before

    def here(self, location: str) -> str:
        """Where a file is now."""
        if not location.startswith(f"{self._before}/"):
            raise ValueError(f"{location} is not below {self._before}")
        return self.store.url + location.removeprefix(self._before)

    def metadata(self, location: str) -> TableMetadataV2:
        """The metadata.json that was at *location*."""
        return TableMetadataV2.model_validate_json(self.store.read(self.store.relative(self.here(location))))

    def new_input(self, location: str) -> InputFile:
        return super().new_input(self.here(location))


class _Relocation:
    """One table on its way."""

    def __init__(self, files: _MovedFiles, location: str) -> None:
        self._files, self._mark = files, secrets.token_hex(4)
        self._metadata = files.metadata(location)
        self._manifests: dict[str, ManifestFile] = {}  # by their former paths; several snapshots share most of them
        self._made: list[str] = []
        self._sequence = location.rpartition("/")[2].partition("-")[0]

    def prepare(self) -> Prepared:
        files, metadata = self._files, self._metadata
        moved = metadata.model_copy(
            update={
                "location": files.here(metadata.location),
                "snapshots": [self._snapshot(one) for one in metadata.snapshots],
                "metadata_log": [],
            }
        )
        location = self._new(f"{moved.location}/metadata/{self._sequence}.metadata.json")
        with files.new_output(location).create() as stream:
            stream.write(moved.model_dump_json(exclude_none=True).encode())
        files.store.sync(map(files.store.relative, self._made))
        return Prepared(location, Table.open(files.store, location), tuple(self._made), ())

    def _snapshot(self, snapshot: Snapshot) -> Snapshot:
        manifests = [self._manifest(one) for one in read_manifest_list(self._files.new_input(snapshot.manifest_list))]
        location = self._new(self._files.here(snapshot.manifest_list))
        parent, sequence = snapshot.parent_snapshot_id, snapshot.sequence_number or 0
        output = self._files.new_output(location)
        with write_manifest_list(2, output, snapshot.snapshot_id, parent, sequence, CODEC) as writer:
            writer.add_manifests(manifests)
        return snapshot.model_copy(update={"manifest_list": location})

    def _manifest(self, former: ManifestFile) -> ManifestFile:
        if known := self._manifests.get(former.manifest_path):
            return known
        output = self._files.new_output(self._new(self._files.here(former.manifest_path)))
        metadata, snapshot = self._metadata, former.added_snapshot_id or 0
        with write_manifest(2, metadata.spec(), metadata.schema(), output, snapshot, CODEC) as writer:
            for entry in former.fetch_manifest_entry(self._files):
                entry.data_file[_FILE_PATH] = self._files.here(entry.data_file.file_path)
                writer.add_entry(entry)
        made = self._manifests[former.manifest_path] = writer.to_manifest_file()
        made.sequence_number = former.sequence_number
        return made

    def _new(self, location: str) -> str:
        """A name beside the former one that was never used."""
        folder, _, name = location.rpartition("/")
        stem, dot, ending = name.partition(".")
        made = f"{folder}/{stem}-{self._mark}{dot}{ending}"
        self._made.append(made)
        return made
