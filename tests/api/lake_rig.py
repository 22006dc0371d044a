"""A server beside a lake, with a pipeline's work done by hand: what it exports is written as its files."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.testing import RunningServer, start_server
from penstock.wire.lake import LakeFile
from tests.api.client import ask


@contextmanager
def server_with_lake(folder: Path, **settings: object) -> Iterator[RunningServer]:
    """A server that reads the lake in `folder/lake`."""
    with start_server(folder / "data", lake_url=folder / "lake", **settings) as server:
        yield server


def archive(server: RunningServer, lake: Path, upto: int | None = None) -> int:
    """Write everything from the last watermark on into files of the lake, and record that; return how far."""
    (lake / "events").mkdir(parents=True, exist_ok=True)
    (lake / "lake.json").write_text('{"id":"made-by-hand"}')
    record(server, "lake/id", {"id": "made-by-hand", "path": str(lake)})
    after = done(server, "events")
    plan = ask(server, "GET", "/v1/log/plan", after=after, **({} if upto is None else {"upto": upto})).json
    for one in plan["slices"]:
        rows = export(server, one["lo"], one["hi"])
        path = lake / LakeFile(one["lo"], one["hi"], one["day"], "events").path
        path.parent.mkdir(exist_ok=True)
        pq.write_table(rows, path.with_suffix(".staged"), row_group_size=64)
        path.with_suffix(".staged").rename(path)
    for table in ("events", "ledger"):
        record(server, f"lake/{table}", {"fence": 1, "done": plan["upto"], "done_ms": 1, "intent": None})
    return int(plan["upto"])


def export(server: RunningServer, after: int, upto: int) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        headers = {"Authorization": f"Bearer {server.admin_token}"}
        connection.request("GET", f"/v1/log/arrow?after={after}&upto={upto}", headers=headers)
        return pa.ipc.open_stream(connection.getresponse()).read_all()
    finally:
        connection.close()


def done(server: RunningServer, table: str) -> int:
    return int(ask(server, "GET", f"/v1/pipeline/records/lake/{table}").json["value"].get("done", 0))


def record(server: RunningServer, key: str, value: dict[str, Any]) -> None:
    path = f"/v1/pipeline/records/{key}"
    version = ask(server, "GET", path).json["version"]
    assert ask(server, "PUT", path, json.dumps(value).encode(), expect=version).status == 200


def trim(server: RunningServer, **wanted: object) -> Any:
    """Ask for a trim, and return the answer."""
    return ask(server, "POST", "/v1/log/trim", json.dumps(wanted).encode())


__all__ = ["archive", "done", "export", "record", "server_with_lake", "trim"]
