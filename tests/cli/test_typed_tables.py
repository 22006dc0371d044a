"""`./penstock lake declare`, `tables` and `drop`, as docs/lake.md shows them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import typed
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.testing import RunningServer, start_server
from tests.pipeline.by_hand import archive_turn, make_here
from tests.shown_sessions import run_session, sessions_in, without_values

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("page")
    for name in ("penstock", ".venv", "src"):
        (made / name).symlink_to(ROOT / name)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    (folder / "lake").mkdir()
    with start_server(folder / "penstock-data", lake_url=folder / "lake") as started:
        (started.data / "admin.token").write_text(started.admin_token)
        yield started


def make_rows(server: RunningServer, lake: Path) -> None:
    """What `up` does every few seconds."""
    client, opened = PipelineClient(server.url, server.admin_token), open_lake(lake)
    bind(client, opened)
    archive_turn(client, opened)
    typed.run(make_here(client, opened), {})


def test_the_session_of_the_page_prints_what_the_page_shows(folder: Path, server: RunningServer) -> None:
    declared, asked = sessions_in(ROOT / "docs/lake.md")

    assert run_session(declared, folder, server.url) == without_values(declared.shown)
    make_rows(server, folder / "lake")
    assert run_session(asked, folder, server.url) == without_values(asked.shown)

    make_rows(server, folder / "lake")
    assert "orders  /orders/*  up to id" in (told := run(server, "tables").stdout)
    assert "nothing behind" in told
    assert "city                     string  at to.city" in told
    assert json.loads(run(server, "drop", "orders", "--json").stdout) == {"dropped": "orders"}
    assert json.loads(run(server, "tables", "--json").stdout) == {"tables": []}


def run(server: RunningServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PENSTOCK_URL": server.url, "PENSTOCK_TOKEN": server.admin_token}
    return subprocess.run(
        [ROOT / "penstock", "lake", *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("declare", "orders", "--column", "item=string"), "input_invalid"),
        (("declare", "orders", "--streams", "/orders", "--column", "item"), "input_invalid"),
        (("declare", "orders", "--streams", "/orders", "--column", "item=list"), "table_invalid"),
        (("drop", "orders"), "table_unknown"),
    ],
)
def test_mistakes_are_one_line(server: RunningServer, arguments: tuple[str, ...], code: str) -> None:
    done = run(server, *arguments)

    assert done.returncode == 2
    assert done.stderr.startswith(f"penstock: {code}: ")
    assert done.stderr.count("\n") == 1
