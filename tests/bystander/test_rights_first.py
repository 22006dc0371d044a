"""Rights come before bodies: who may not is refused before a byte of his body is read, and learns nothing of it."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.api.auth import open_keys
from penstock.http.routing import Route
from penstock.testing import RunningServer
from tests.api.client import ask
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

OF_DOORS = [
    ("POST", path)
    for path in (
        "/writer/create_stream", "/writer/append", "/writer/subscribe", "/writer/unsubscribe", "/writer/liveread",
        "/reader/read", "/reader/report", "/notify_to_all", "/notify_to_user?uid=1", "/notify_to_room?tid=/rooms/1",
    )
]  # fmt: skip
"""Calls that the document of the API does not describe: those of doors whose protocol others have written."""

FOR_EVERYBODY = {("POST", "/v1/capabilities")}
"""Whoever has a token may have a capability made, of rights that the token has: the body says which."""

WAITING_SECONDS = 1.0  # for an answer that does not come: a server without the guard waits for the body
SURE_SECONDS = 60


def described(server: RunningServer) -> Iterator[tuple[str, str]]:
    """Each call of the API that takes a body, with something in place of its parameters."""
    for path, operations in json.loads(ask(server, "GET", "/openapi.json").body)["paths"].items():
        for method, operation in operations.items():
            if "requestBody" in operation:
                asked = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
                query = "&".join(f"{each['name']}=/others" for each in asked if each.get("required"))
                yield method.upper(), re.sub(r"\{[^}]*\}", "lake", path) + (f"?{query}" if query else "")


def refused_at_once(server: RunningServer, method: str, path: str, seconds: float) -> bool:
    """Whether a caller without rights is refused though he sends nothing of his body."""
    token = open_keys(server.data).issue("nobody")
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Length: 4000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.settimeout(seconds)
        peer.sendall(head.encode())
        try:
            return peer.recv(12) == b"HTTP/1.1 403"
        except TimeoutError:
            return False


def bodies_before_rights() -> None:
    """The sabotage: nobody is asked before the body is there."""
    Route.admit = property(lambda _: None, lambda *_: None)  # type: ignore[assignment]


@pytest.mark.parametrize("sabotage", [None, bodies_before_rights])
def test_who_may_not_is_refused_before_a_byte_of_his_body_is_read(
    tmp_path: Path, sabotage: Callable[[], None] | None
) -> None:
    with start_sabotaged(tmp_path / "data", sabotage, log_engine="memory") as server, beside(server) as bystander:
        calls = {*described(server), *OF_DOORS} - FOR_EVERYBODY
        some = sorted(calls) if sabotage is None else sorted(calls)[:3]
        seconds = SURE_SECONDS if sabotage is None else WAITING_SECONDS
        refused = [call for call in some if refused_at_once(server, *call, seconds)]

    bystander.noticed_nothing()
    assert refused == (some if sabotage is None else [])
    assert len(calls) > 25


def test_who_may_not_learns_nothing_of_his_body(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", None, log_engine="memory") as server:
        token = open_keys(server.data).issue("nobody")
        for method, path in {*described(server), *OF_DOORS} - FOR_EVERYBODY:
            assert ask(server, method, path, b"{broken", token=token).status == 403, path
