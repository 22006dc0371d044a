"""Writes lakes for tests: what the pipeline's driver would have committed, without Spark."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from penstock.core import arrow
from penstock.core.export import day_name, day_of
from penstock.core.log import Log
from penstock.core.registry import Registry
from penstock.iceberg.files import WrittenFile, arrow_schema
from penstock.iceberg.store import open_store
from penstock.iceberg.tables import Table
from penstock.values import Entry
from penstock.wire.lake_files import RECORDS, LakeFile
from penstock.wire.table_columns import NAMES

NOW_MS = 1_794_700_800_000
JOBS = {table: job for job, tables in RECORDS.items() for table in tables}


async def everything(log: Log, after: int = 0) -> list[Entry]:
    """Every entry of every stream, of the system too, in order of id."""
    found = [await log.entry(id) for id in range(after + 1, log.followed + 1)]
    return [entry for entry in found if entry is not None]


class WrittenLake:
    """A lake's tables, and what its records would say. Nothing is visible before a record is put."""

    def __init__(self, url: str | Path) -> None:
        self.store = open_store(url)
        self.tables: dict[str, Table] = {}
        self.done = dict.fromkeys(RECORDS, 0)

    def write(self, file: LakeFile, rows: pa.Table, group: int = 4) -> WrittenFile:
        """One data file; *group* rows in a row group."""
        path = replace(file, unique=secrets.token_hex(4)).path
        self.store.make_folder(path.rpartition("/")[0])
        schema, footers = arrow_schema(file.table), []
        with self.store.files.open_output_stream(self.store.place(path)) as stream:
            with pq.ParquetWriter(stream, schema, metadata_collector=footers, store_schema=False) as writer:
                writer.write_table(rows.select(schema.names).cast(schema), row_group_size=group)
            size = stream.tell()
        footer = io.BytesIO()
        footers[0].write_metadata_file(footer)
        return WrittenFile(self.store.location(path), size, footer.getvalue(), rows.num_rows)

    def write_events(self, entries: Sequence[Entry], after: int, upto: int, *, group: int = 4) -> list[WrittenFile]:
        """Files for the ids in (after, upto], one for each day in turn."""
        written = []
        inside = [entry for entry in entries if after < entry.id <= upto]
        while inside:
            day = day_of(inside[0].published_ms)
            count = next((n for n, e in enumerate(inside) if day_of(e.published_ms) != day), len(inside))
            hi = inside[count - 1].id if count < len(inside) else upto
            written.append(self.write_day(inside[:count], after, hi, group=group))
            inside, after = inside[count:], hi
        return written

    def write_day(self, entries: Sequence[Entry], after: int, upto: int, *, group: int = 4) -> WrittenFile:
        """A file with these entries of one day, called after the ids in (after, upto]."""
        rows = pa.Table.from_batches([arrow.batch_of(entries, NAMES)])
        return self.write(LakeFile(after, upto, day_name(day_of(entries[0].published_ms)), "events"), rows, group)

    def prepare(
        self, table: str, added: Sequence[WrittenFile], removed: Iterable[WrittenFile] = (), now_ms: int = NOW_MS
    ) -> None:
        """Make the next state of a table; its record tells of it when it is put."""
        known = self.tables.get(table) or Table.create(self.store, table)
        gone = [one.location for one in removed]
        prepared = known.replace(added, gone, now_ms=now_ms) if gone else known.append(added, now_ms=now_ms)
        self.tables[table] = prepared.table

    def record(self, job: str) -> dict[str, Any]:
        """What the record of *job* says now."""
        tables = {table: self.tables[table].location for table in RECORDS[job] if table in self.tables}
        return {"fence": 1, "done": self.done[job], "done_ms": 1, "intent": None, "tables": tables}

    async def publish(self, registry: Registry, job: str, done: int | None = None) -> None:
        """Put the record of *job*."""
        self.done[job] = self.done[job] if done is None else done
        await registry.put(f"lake/{job}", json.dumps(self.record(job)).encode())

    def mark(self, id: str) -> None:
        """Say whose lake it is."""
        self.store.make_folder("")
        with self.store.files.open_output_stream(self.store.place("lake.json")) as stream:
            stream.write(json.dumps({"id": id}).encode())

    def remove(self, *files: WrittenFile) -> None:
        """Delete data files, as a sweep would."""
        self.store.delete(self.store.relative(one.location) for one in files)

    def damage(self, folder: str, part: str) -> None:
        """Write nonsense over all files in *folder* whose names have *part* in them."""
        for one in list(self.store.list(folder)):
            if part in one.path.rpartition("/")[2]:
                with self.store.files.open_output_stream(self.store.place(one.path)) as stream:
                    stream.write(b"PAR1 neither Parquet nor Avro nor JSON PAR1")
