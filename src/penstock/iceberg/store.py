"""Where a lake lies. A folder of this machine, or an object store: `pyarrow.fs` opens both.

    /srv/lake                        a folder
    s3://bucket/prefix               S3 and what speaks it; keys, region and endpoint from the usual environment
    gs://… abfs://… hdfs://…         what else pyarrow opens

A file of a table is written once, under a name that nobody else uses, and is not changed afterwards. So the two things
that object stores lack, renames and locks, are not needed for tables. The few small files beside them that change
(`put`) are replaced in one step. On a folder a file is durable when `write` or `sync` returns; on an object store it is
when it is stored.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyarrow import fs  # type: ignore[import-untyped]

from penstock.errors import ConfigInvalid

TIMEOUT_SECONDS: Final = 20
ATTEMPTS: Final = 3
"""A request to an object store gives up after these; the job is then tried again as a whole, later."""

ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a store, as it is listed."""

    path: str  # below the store's root
    size: int
    modified: float  # seconds since 1970, by the store's clock


class FileStore:
    """The files below one place. Paths are relative to it; `location` gives the whole one, as tables name it."""

    def __init__(self, files: Any, root: str, scheme: str) -> None:
        self.files, self.root, self.scheme = files, root.rstrip("/"), scheme

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return self.scheme == "file"

    @property
    def url(self) -> str:
        """The place as others are told of it."""
        return f"{self.scheme}://{self.root}"

    def location(self, path: str) -> str:
        """A file's whole address."""
        return f"{self.url}/{path}"

    def relative(self, location: str) -> str:
        """The path of a file by its address; `ValueError` if it lies elsewhere."""
        if not location.startswith(f"{self.url}/"):
            raise ValueError(f"{location} is not below {self.url}")
        return location.removeprefix(f"{self.url}/")

    def place(self, path: str) -> str:
        """What `files` knows the file by."""
        return f"{self.root}/{path}"

    def read(self, path: str) -> bytes:
        """The bytes of a file; `FileNotFoundError` if there is none."""
        with self.files.open_input_file(self.place(path)) as stream:
            return bytes(stream.read())

    def write(self, path: str, data: bytes) -> None:
        """Store a file that is not there yet, durably."""
        self.make_folder(path.rpartition("/")[0])
        with self.files.open_output_stream(self.place(path)) as stream:
            stream.write(data)
        self.sync([path])

    def make_folder(self, folder: str) -> None:
        """Let files be written into *folder*. An object store has no folders, and needs none."""
        if self.is_local:
            Path(self.place(folder)).mkdir(parents=True, exist_ok=True)

    def sync(self, paths: Iterable[str]) -> None:
        """Make files durable that somebody else has written, and their names. An object store does it by itself."""
        if not self.is_local:
            return
        folders: set[Path] = set()
        for path in paths:
            place = Path(self.place(path))
            _sync(place)
            folders |= {folder for folder in place.parents if folder.is_relative_to(self.root)}
        for folder in sorted(folders, reverse=True):  # those within first: a name is durable when its folder is
            _sync(folder)

    def put(self, path: str, data: bytes) -> None:
        """Store a small file in one step, whether it is there or not: at every moment it is whole."""
        if not self.is_local:
            self.write(path, data)
            return
        fresh = f"{path}.{uuid.uuid4().hex}"
        self.write(fresh, data)
        Path(self.place(fresh)).rename(self.place(path))
        self.sync([path])

    def find(self, path: str) -> StoredFile | None:
        """The file at *path*, as it is listed; None if there is none."""
        info = self.files.get_file_info(self.place(path))
        return StoredFile(path, info.size, info.mtime_ns / 1e9) if info.type == fs.FileType.File else None

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of *paths* that are no files."""
        found = self.files.get_file_info([self.place(path) for path in paths]) if paths else []
        return [path for path, info in zip(paths, found, strict=True) if info.type != fs.FileType.File]

    def delete(self, paths: Iterable[str]) -> int:
        """Remove files; those that are gone already do not count."""
        count = 0
        for path in paths:
            with suppress(FileNotFoundError):
                self.files.delete_file(self.place(path))
                count += 1
        return count

    def folders(self, folder: str) -> Iterator[str]:
        """The names of the folders in a folder, in no order."""
        for info in self.files.get_file_info(fs.FileSelector(self.place(folder), allow_not_found=True)):
            if info.type == fs.FileType.Directory:
                yield info.base_name

    def list(self, folder: str, *, deep: bool = True) -> Iterator[StoredFile]:
        """All files below a folder, or in it, in no order."""
        chosen = fs.FileSelector(self.place(folder), allow_not_found=True, recursive=deep)
        for info in self.files.get_file_info(chosen):
            if info.type == fs.FileType.File:
                yield StoredFile(info.path.removeprefix(f"{self.root}/"), info.size, info.mtime_ns / 1e9)


def store_url(location: str | Path) -> str:
    """The address of the store at *location*, as tables name it. Nothing is opened.

    `ConfigInvalid` for a folder of another machine.
    """
    text = str(location)
    place = urlsplit(text)
    if place.scheme not in ("", "file"):
        return text.rstrip("/")
    if place.netloc not in ("", "localhost"):
        raise ConfigInvalid("lake", f"{text} is a folder of another machine")
    return f"file://{Path(unquote(place.path) if place.scheme else text).absolute()}"


def open_store(location: str | Path, *, seconds: float = TIMEOUT_SECONDS) -> FileStore:
    """The store at *location*; `ConfigInvalid` if it is none that can be opened.

    A request to an object store is given up when nothing came for *seconds*, and tried three times in all.
    """
    text = str(location)
    place = urlsplit(text)
    if place.scheme in ("", "file"):
        return FileStore(fs.LocalFileSystem(), store_url(location).removeprefix("file://"), "file")
    try:
        if place.scheme == "s3":
            return FileStore(_s3(seconds), f"{place.netloc}{place.path}", "s3")
        files, path = fs.FileSystem.from_uri(text)
    except (ValueError, OSError) as error:
        raise ConfigInvalid("lake", f"{text} cannot be opened: {error}") from error
    return FileStore(files, path, place.scheme)


def _s3(seconds: float) -> Any:
    """S3 by the environment. pyarrow reads keys and region from it, and not the endpoint."""
    endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")
    given = urlsplit(endpoint)
    address = {"endpoint_override": given.netloc, "scheme": given.scheme} if endpoint else {}
    timeouts = {"connect_timeout": seconds, "request_timeout": seconds}
    return fs.S3FileSystem(**address, **timeouts, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
