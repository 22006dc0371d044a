from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.testing import RunningServer, wait_until

pytestmark = pytest.mark.doors


def penstock(server: RunningServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *arguments, "--url", server.url, "--token", server.admin_token]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_session_is_begun_emitted_to_and_ended(server: RunningServer) -> None:
    """On a server of its own: a broadcast is for every session, also one that begins later at an earlier entry."""
    made = penstock(server, "session", "cli", "--follow", "/cli/*", "--ttl", "60")
    assert made.stdout.startswith("cli:")

    emitted = penstock(server, "emit", "shop.purchase", '{"item":"boots"}', "--to", "cli", "--to", "nobody")
    assert emitted.stdout.splitlines() == ["cli: pack 1", "nobody: offline"]
    assert "broadcast as id" in penstock(server, "emit", "hello", "--broadcast").stdout
    assert "stored as ids" in penstock(server, "emit", "x", "1", "--stream", "/cli/a").stdout
    assert json.loads(penstock(server, "emit", "x", "--to", "cli", "--json").stdout) == {"packs": {"cli": 2}}

    assert penstock(server, "session", "cli", "--end", "loggedOut").stdout == "ended the session of cli\n"
    again = penstock(server, "session", "cli", "--end", "loggedOut")
    assert again.returncode == 2
    assert "session_unknown" in again.stderr


def test_what_is_no_json_is_refused_before_it_is_sent(shared_server: RunningServer) -> None:
    refused = penstock(shared_server, "emit", "x", "text", "--to", "cli")

    assert refused.returncode == 2
    assert "not JSON" in refused.stderr


def test_a_session_can_be_listened_to(shared_server: RunningServer) -> None:
    command = [sys.executable, "-m", "penstock", "session", "listens", "--listen", "--url", shared_server.url]
    with subprocess.Popen(
        [*command, "--token", shared_server.admin_token], stdout=subprocess.PIPE, text=True
    ) as listening:
        try:
            assert listening.stdout is not None
            assert listening.stdout.readline().startswith("listens:")
            wait_until(
                lambda: "offline" not in penstock(shared_server, "emit", "a.b", '[1,"é"]', "--to", "listens").stdout
            )
            assert listening.stdout.readline() == 'a.b [1,"é"]\n'
        finally:
            listening.kill()
