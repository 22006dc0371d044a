"""The session on each door's page, run as it stands there; it prints what the page says."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.testing import start_server
from tests.shown_sessions import run_session, sessions_in, without_values

ROOT = Path(__file__).parents[2]
APP_PORT = "9000"  # of the app on Event Horizon's page; it may be somebody's


@pytest.mark.parametrize("door", ["eventhorizon", "sps", "trickle", "webpush", "msgstream"])
def test_the_session_of_the_page_prints_what_the_page_shows(tmp_path: Path, door: str) -> None:
    (shown,) = sessions_in(ROOT / "docs" / f"{door}.md")
    for name in ("penstock", ".venv", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    session = shown._replace(script=shown.script.replace(APP_PORT, port))

    with start_server(tmp_path / "penstock-data") as server:
        (server.data / "admin.token").write_text(server.admin_token)  # where `up` has it
        printed = run_session(session, tmp_path, server.url)

    assert printed == without_values(shown.shown)


def test_a_page_that_shows_something_else_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\necho 17 events\n```\n\n```\n18 events\n```\n\n```sh\necho lost\n```\n\n```\nfound\n```\n")

    same, other = sessions_in(page)

    assert run_session(same, tmp_path, "http://x") == without_values(same.shown)
    assert run_session(other, tmp_path, "http://x") != without_values(other.shown)
