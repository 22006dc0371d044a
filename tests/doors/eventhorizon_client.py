"""What tests of the Event Horizon door need: its calls, lines with their sizes, and apps that do as they are told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.testing import RunningServer
from tests.api.client import Reply, ask


def call(server: RunningServer, path: str, token: str = "", **fields: object) -> Reply:
    """Post one JSON object; fields are named as the protocol names them."""
    return ask(server, "POST", path, json.dumps(fields).encode(), token=token)


def create(server: RunningServer, *names: str) -> None:
    for name in names:
        assert call(server, "/writer/create_stream", Name=name).status == 201


def append(server: RunningServer, stream: str, *lines: str) -> str:
    reply = call(server, "/writer/append", Stream=stream, Lines=lines)
    assert reply.status == 201, reply.body
    offset: str = reply.json["Offset"]
    return offset


def subscribe(server: RunningServer, stream: str, id: str) -> None:
    reply = call(server, "/writer/subscribe", Stream=stream, SubscriptionId=id)
    assert (reply.status, reply.body) == (200, b"OK\n")


def lines(server: RunningServer, cursor: str) -> list[dict[str, Any]]:
    """All lines from a cursor on, through the chunks."""
    found: list[dict[str, Any]] = []
    while True:
        reply = call(server, "/reader/read", Cursor=cursor)
        assert reply.status == 200, reply.body
        found += reply.json["Lines"]
        if not reply.json["More"]:
            return found
        cursor = found[-1]["PtrAfter"]


def offsets(found: list[dict[str, Any]]) -> list[int]:
    """Where each line ends, had every time three digits of milliseconds: clocks end in a zero now and then."""
    missing, ends = 0, []
    for line in found:
        if line["MetaType"]:
            missing += len("2017-03-27T16:53:51.655Z") - len(line["MetaPayload"]["ts"])
        ends.append(int(line["PtrAfter"].split(":")[2]) + missing)
    return ends


def add_pusher(server: RunningServer, url: str, **fields: object) -> str:
    reply = call(server, "/v1/pushers", url=url, **({"allow_private": True} | fields))
    assert reply.status == 201, reply.body
    id: str = reply.json["id"]
    return id


def pusher(server: RunningServer, id: str) -> dict[str, Any]:
    shown: dict[str, Any] = ask(server, "GET", f"/v1/pushers/{id}").json
    return shown


Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]


class ScriptedApp:
    """An HTTP endpoint whose answers a function decides; what came in is kept."""

    def __init__(self, decide: Callable[[dict[str, Any]], Answer], port: int = 0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.decide = decide
        app = self

        class Endpoint(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                app.bodies.append(body)
                app.headers.append({name.lower(): value for name, value in self.headers.items()})
                app.requests.append(json.loads(body))
                status, said, *more = app.decide(app.requests[-1])
                raw = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                for name, value in (more[0] if more else {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Endpoint)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/_eventhorizon_push?auth=8c382056"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def pushes(self, stream: str) -> list[dict[str, Any]]:
        """Pushes of one stream that had lines."""
        sent = [request["Push"] for request in self.requests if request["Push"]["Lines"]]
        return [push for push in sent if push["FromOffset"].startswith(stream + ":")]


@contextmanager
def scripted(decide: Callable[[dict[str, Any]], Answer], port: int = 0) -> Iterator[ScriptedApp]:
    app = ScriptedApp(decide, port)
    try:
        yield app
    finally:
        app.close()


class Model:
    """An app by the rules of the protocol, in memory; tests bend it."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.offsets: dict[str, str] = {}
        self.applied: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def __call__(self, request: dict[str, Any]) -> Answer:
        with self._lock:
            return 200, self.answer(request)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["SubscriptionId"] != self.id:
            return {"Code": "incorrect_subscription_id", "CorrectSubscriptionId": self.id}
        push = request["Push"]
        stream = push["FromOffset"].split(":")[0]
        own = self.own(stream)
        if self.place(push["FromOffset"]) != self.place(own):
            return {"Code": "incorrect_base_offset", "AcceptedOffset": own}
        behind: dict[str, str] = {}
        for line in push["Lines"]:
            if line["MetaType"] == "SubscriptionActivity":
                for cursor in line["MetaPayload"]["activity"]:
                    other = cursor.split(":")[0]
                    if self.place(cursor) > self.place(self.own(other)):
                        behind.setdefault(other, self.own(other))
            if not behind:
                own = line["PtrAfter"]
                if not line["MetaType"]:
                    self.applied.setdefault(stream, []).append(line["Content"])
        self.offsets[stream] = own
        return {"Code": "success", "AcceptedOffset": own, "BehindCursors": list(behind.values())}

    def own(self, stream: str) -> str:
        return self.offsets.get(stream, f"{stream}:0:0:?")

    @staticmethod
    def place(cursor: str) -> tuple[int, int]:
        _, chunk, offset, *_ = cursor.split(":")
        return int(chunk), int(offset)
