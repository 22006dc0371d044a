"""What operators ask over HTTP: backups, and how a server says that its file is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.engines.sqlite.schema import FILE_NAME
from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import Reply, ask, publish
from tests.faults.pages import PAGE, first_leaf, overwrite


def back_up(server: RunningServer, directory: str) -> Reply:
    return ask(server, "POST", "/v1/backup", json.dumps({"directory": directory}).encode())


@pytest.mark.parametrize("place", ["/proc/x/y", "/srv/\0x", "/dev/null", "/dev/null/x", "relative", ""])
def test_a_directory_that_cannot_be_used_is_refused(shared_server: RunningServer, place: str) -> None:
    reply = back_up(shared_server, place)

    assert (reply.status, reply.code) == (400, "input_invalid")
    assert "defect" not in reply.json["error"]["remedy"]


def test_the_data_directory_is_no_place_for_its_backup(shared_server: RunningServer) -> None:
    assert back_up(shared_server, str(shared_server.data / "backup")).code == "input_invalid"
    assert not (shared_server.data / "backup").exists()


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[RunningServer]:
    """A server on a file of which two pages were overwritten while it was stopped."""
    with start_server(tmp_path / "data") as server:
        for stream in ("/first", "/second"):
            publish(server, stream, b"\n".join([b"x" * 500] * 200), Content_Type="application/x-ndjson")
        server.stop()
        file = server.data / FILE_NAME
        overwrite(file, first_leaf(file, "entries"), b"\xff" * 2 * PAGE)
        server.restart()
        yield server


def test_damage_that_a_read_meets_is_told_to_everybody(damaged: RunningServer) -> None:
    assert ask(damaged, "GET", "/ready").status == 200
    met = ask(damaged, "GET", "/v1/read", stream="/first")
    wait_until(lambda: publish(damaged, "/second").status != 201)
    refused = publish(damaged, "/second")

    assert (met.status, met.code) == (refused.status, refused.code) == (503, "data_corrupt")
    assert "penstock restore" in met.json["error"]["remedy"]
    assert "damaged" in ask(damaged, "GET", "/ready").json["status"]
    assert ask(damaged, "GET", "/ready").status == 503
    assert ask(damaged, "GET", "/v1/read", stream="/second").status == 200  # what is sound can still be read
    assert b"penstock_log_trouble 1.0" in ask(damaged, "GET", "/metrics").body
    assert damaged.stop() == 0
    assert damaged.log_text().count("data.damaged") == 1
    assert f"file={damaged.data / FILE_NAME}" in damaged.log_text()


def test_a_backup_of_a_damaged_file_is_refused_and_makes_the_server_unready(
    damaged: RunningServer, tmp_path: Path
) -> None:
    reply = back_up(damaged, str(tmp_path / "backup"))

    assert (reply.status, reply.code) == (503, "data_corrupt")
    wait_until(lambda: ask(damaged, "GET", "/ready").status == 503)
    wait_until(lambda: "data.damaged" in damaged.log_text())  # a thread that finds it writes it down a moment later
