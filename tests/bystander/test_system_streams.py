"""Nobody but the server writes into its own streams, whatever the door and whoever asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.api.auth import Caller, open_keys
from penstock.testing import RunningServer
from tests.api.client import Reply, ask, publish
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

STREAMS = ("/_ledger", "/_erased", "/_presence", "/_broadcast", "/_receipts/1", "/_sub/app", "/_mine")


def append(server: RunningServer, stream: str, token: str) -> Reply:
    body = json.dumps({"Stream": stream, "Lines": ["garbage"]}).encode()
    return ask(server, "POST", "/writer/append", body, token=token)


def create(server: RunningServer, stream: str, token: str) -> Reply:
    return ask(server, "POST", "/writer/create_stream", json.dumps({"Name": stream}).encode(), token=token)


def emit(server: RunningServer, stream: str, token: str) -> Reply:
    body = json.dumps({"streams": [stream], "messages": [["x", 1]]}).encode()
    return ask(server, "POST", "/v1/emit", body, token=token)


def notify(server: RunningServer, stream: str, token: str) -> Reply:
    return ask(server, "POST", "/notify_to_room", b"garbage", token=token, tid=stream)


def to_v1(server: RunningServer, stream: str, token: str) -> Reply:
    return ask(server, "POST", "/v1/publish", b"garbage", token=token, stream=stream)


WAYS: tuple[Callable[[RunningServer, str, str], Reply], ...] = (to_v1, append, emit, notify)


def write_everywhere(server: RunningServer) -> None:
    """Try every way into every stream of the system, as the admin and as one whose grants spell it."""
    assert create(server, "/_sub/app", "").status == 201, "an app makes its subscription"
    granted = open_keys(server.data).issue("mallory", publish=("/_ledger", "/_erased", "/_sub/>", "/_mine"))
    for token in ("", granted):
        for stream in STREAMS:
            for way in WAYS:
                reply = way(server, stream, token)
                assert reply.status == 403, (way.__name__, stream, reply)
                assert reply.code == "system_stream", (way.__name__, stream, reply)
    assert create(server, "/_mine", "").code == "system_stream"


def grants_alone_decide() -> None:
    """Whoever has the grant, or is the admin, writes into streams of the system."""
    Caller.check_publish = Caller.check_covered  # type: ignore[method-assign]


@pytest.mark.parametrize("sabotage", [None, grants_alone_decide])
def test_nobody_writes_into_a_stream_of_the_system(tmp_path: Path, sabotage: Callable[[], None] | None) -> None:
    with start_sabotaged(tmp_path / "data", sabotage) as server:
        if sabotage:
            with pytest.raises(AssertionError, match="to_v1"):
                write_everywhere(server)
            return
        with beside(server) as bystander:
            write_everywhere(server)
            # Then the server itself still does, and its own records are all there
            entry = publish(server, "/orders").json["id"]
            assert ask(server, "GET", "/v1/why", entry=entry, recipient="nobody").status == 200
        bystander.noticed_nothing()
        heads = ask(server, "GET", "/v1/audit/heads").json["heads"]
        assert {head[0] for head in heads if head[0].startswith("/_")} <= {
            "/_ledger",
            "/_sub",
            "/_sub/app",
            "/_presence",
        }
