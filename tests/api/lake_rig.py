"""A server beside a lake, with a pipeline's work done by hand: what it exports is committed to its tables."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from penstock.iceberg.tables import Table
from penstock.testing import RunningServer, start_server
from penstock.wire.lake_files import RECORDS, LakeFile
from tests.api.client import ask
from tests.engines.lake_files import WrittenLake


@contextmanager
def server_with_lake(folder: Path, **settings: object) -> Iterator[RunningServer]:
    """A server that reads the lake in `folder/lake`."""
    (folder / "lake").mkdir()
    with start_server(folder / "data", lake_url=folder / "lake", **settings) as server:
        yield server


def archive(server: RunningServer, lake: Path | str, upto: int | None = None) -> int:
    """Commit everything from the last watermark on to the lake's `events`, and record that; return how far."""
    written = opened(server, lake)
    written.mark("made-by-hand")
    record(server, "lake/id", {"id": "made-by-hand", "path": str(lake)})
    after = done(server, "events")
    plan = ask(server, "GET", "/v1/log/plan", after=after, **({} if upto is None else {"upto": upto})).json
    files = [
        written.write(LakeFile(one["lo"], one["hi"], one["day"], "events"), export(server, one["lo"], one["hi"]), 64)
        for one in plan["slices"]
    ]
    if files:
        written.prepare("events", files)
    for job in ("events", "ledger"):
        written.done[job] = plan["upto"]
        publish_record(server, written, job)
    return int(plan["upto"])


def opened(server: RunningServer, lake: Path | str) -> WrittenLake:
    """The lake with its tables as the server's records name them."""
    written = WrittenLake(lake)
    for job in RECORDS:
        value = value_of(server, f"lake/{job}")
        written.done[job] = value.get("done", 0)
        for table, location in value.get("tables", {}).items():
            written.tables[table] = Table.open(written.store, location)
    return written


def publish_record(server: RunningServer, written: WrittenLake, job: str) -> None:
    """Point at what was prepared."""
    record(server, f"lake/{job}", written.record(job))


def export(server: RunningServer, after: int, upto: int, **more: str) -> Any:
    """The rows with ids in (after, upto], as a table."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        headers = {"Authorization": f"Bearer {server.admin_token}"}
        asked = urlencode({"after": after, "upto": upto, **more})
        connection.request("GET", f"/v1/log/arrow?{asked}", headers=headers)
        return pa.ipc.open_stream(connection.getresponse()).read_all()
    finally:
        connection.close()


def done(server: RunningServer, table: str) -> int:
    return int(value_of(server, f"lake/{table}").get("done", 0))


def value_of(server: RunningServer, key: str) -> dict[str, Any]:
    found: dict[str, Any] = ask(server, "GET", f"/v1/pipeline/records/{key}").json["value"]
    return found


def record(server: RunningServer, key: str, value: dict[str, Any]) -> None:
    path = f"/v1/pipeline/records/{key}"
    version = ask(server, "GET", path).json["version"]
    assert ask(server, "PUT", path, json.dumps(value).encode(), expect=version).status == 200


def trim(server: RunningServer, **wanted: object) -> Any:
    """Ask for a trim, and return the answer."""
    return ask(server, "POST", "/v1/log/trim", json.dumps(wanted).encode())


__all__ = ["archive", "done", "export", "opened", "publish_record", "record", "server_with_lake", "trim", "value_of"]
