"""A plain HTTP client for tests: what was sent and what came back, nothing hidden."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from penstock.testing import RunningServer


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error."""
        code: str = self.json["error"]["code"]
        return code


def ask(
    server: RunningServer,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    token: str | None = "",
    **params: object,
) -> Reply:
    """Send one request on a connection of its own. An empty token is the admin's; None sends none."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    sent = dict(headers or {})
    if token is not None:
        sent["Authorization"] = f"Bearer {token or server.admin_token}"
    try:
        connection.request(method, path + ("?" + urlencode(params) if params else ""), body, sent)
        answer = connection.getresponse()
        return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def publish(server: RunningServer, stream: str, body: bytes = b"x", **headers: str) -> Reply:
    """Publish one event; headers are given with underscores."""
    return ask(server, "POST", "/v1/publish", body, {k.replace("_", "-"): v for k, v in headers.items()}, stream=stream)


def declare_at_once(servers: Sequence[RunningServer], names: Sequence[str]) -> Counter[int]:
    """Declare typed tables at the same time, each at one of these servers; how often each status was answered."""

    def declare(number: int) -> int:
        body = b'{"streams": "/orders/*", "columns": {"item": "string"}}'
        return ask(servers[number % len(servers)], "PUT", f"/v1/lake/tables/{names[number]}", body).status

    with ThreadPoolExecutor(len(names)) as threads:
        return Counter(threads.map(declare, range(len(names))))


class Tail:
    """An open `/v1/tail`, read line by line."""

    def __init__(self, server: RunningServer, streams: str, token: str = "", **params: object) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self._connection.request(
            "GET",
            "/v1/tail?" + urlencode({"streams": streams, **params}),
            headers={"Authorization": f"Bearer {token or server.admin_token}"},
        )
        self.response = self._connection.getresponse()
        self.status = self.response.status

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def line(self) -> Any:
        """The next entry."""
        return json.loads(self.response.readline())

    def lines(self, count: int) -> list[Any]:
        return [self.line() for _ in range(count)]
