"""What the pipeline commits is what everybody reads: by the catalog, in SQL, and below the log's trim point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.iceberg.sql import ask as ask_sql
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import compact, erase
from penstock.pipeline.lake import Lake, open_lake
from penstock.pipeline.lake_identity import bind
from penstock.testing import RunningServer, start_server
from tests.api.client import ask, publish
from tests.api.lake_rig import trim, value_of
from tests.lake_readers import by_polars, by_pyiceberg, open_catalog, start_duckdb
from tests.pipeline.by_hand import archive_turn, logged, make_here

READERS = ("pyiceberg", "polars", "duckdb", "lake sql")


def read_by_all(server: RunningServer, folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Ids and bodies of `events`, in order, as each reader has them."""
    catalog = open_catalog(server.url, server.admin_token)
    lake = ask(server, "GET", "/v1/pipeline").json["lake"]
    found = {"pyiceberg": by_pyiceberg(catalog, "events"), "polars": by_polars(catalog, "events")}
    with start_duckdb() as database:
        database.attach(server.url, server.admin_token)
        found["duckdb"] = database.table("SELECT id, body FROM lake.penstock.events", folder)
    found["lake sql"] = ask_sql(lake, value_of(server, "lake/events")["tables"], "SELECT id, body FROM events").table
    return {name: sorted((row["id"], row["body"]) for row in rows.to_pylist()) for name, rows in found.items()}


def archive_some(server: RunningServer, client: PipelineClient, lake: Lake, turn: int) -> int:
    for number in range(5):
        publish(server, f"/orders/{turn}", b'{"n":%d}' % number)
    return archive_turn(client, lake)


def test_turns_and_compactions_are_what_everybody_reads(place: str, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    with start_server(tmp_path / "data", lake_url=place) as server:
        client, lake = PipelineClient(server.url, server.admin_token), open_lake(place)
        bind(client, lake)
        for turn in range(2):
            upto = archive_some(server, client, lake, turn)
            expected = [row for row in logged(client) if row[0] <= upto]
            assert read_by_all(server, tmp_path) == dict.fromkeys(READERS, expected)
        before = ask(server, "GET", "/v1/read", streams=">", after=0, limit=1000).json["entries"]

        compact.run(make_here(client, lake), {"all": ""})

        assert len(make_here(client, lake).files("events")) == 1
        assert read_by_all(server, tmp_path) == dict.fromkeys(READERS, expected)
        assert trim(server, upto=upto, apply=True).json["trimmed"] == upto
        assert ask(server, "GET", "/v1/read", streams=">", after=0, limit=1000).json["entries"] == before


def test_what_was_erased_is_read_by_nobody(place: str, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    with start_server(tmp_path / "data", lake_url=place) as server:
        client, lake = PipelineClient(server.url, server.admin_token), open_lake(place)
        bind(client, lake)
        publish(server, "/users/42", b"a secret")
        upto = archive_some(server, client, lake, 0)
        assert trim(server, upto=upto, apply=True).json["trimmed"] == upto
        read = ask(server, "GET", "/v1/read", stream="/users/42").json["entries"]
        assert [entry["data"] for entry in read] == ["a secret"]

        assert ask(server, "POST", "/v1/log/erase", b'{"stream":"/users/42"}').status == 200
        archive_turn(client, lake)
        erase.run(make_here(client, lake), {})

        assert ask(server, "GET", "/v1/read", stream="/users/42").json["entries"] == []
        for reader, rows in read_by_all(server, tmp_path).items():
            assert b"a secret" not in [body for _, body in rows], reader
            assert len(rows) > upto - 1, reader
