"""The document describes what is answered."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.api.describing import declared
from penstock.node.node import Node
from penstock.settings_reading import load
from penstock.testing import RunningServer
from tests.api.client import Tail, ask, publish


@pytest.fixture
def document(shared_server: RunningServer) -> dict[str, Any]:
    found: dict[str, Any] = ask(shared_server, "GET", "/openapi.json", token=None).json
    return found


def fits(document: dict[str, Any], schema: dict[str, Any], value: Any) -> bool:
    """Whether *value* is what the schema says, in as much of JSON Schema as the document uses."""
    if "$ref" in schema:
        return fits(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], value)
    if ways := schema.get("oneOf") or schema.get("anyOf"):
        return any(fits(document, one, value) for one in ways)
    kinds = schema.get("type", [])
    python = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": float,
        "boolean": bool,
        "null": type(None),
    }
    if kinds and type(value) not in [python[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds)]:
        return False
    if isinstance(value, list):
        return all(fits(document, schema["items"], one) for one in value)
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        complete = set(schema["required"]) <= set(value) <= set(known)
        return complete and all(fits(document, known[name], one) for name, one in value.items())
    return True


def answer(document: dict[str, Any], method: str, path: str, status: int) -> dict[str, Any]:
    response = document["paths"][path][method]["responses"][str(status)]
    if "$ref" in response:
        response = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
    [(_, content)] = response["content"].items()
    schema: dict[str, Any] = content["schema"]
    return schema


def test_answers_are_as_they_are_described(shared_server: RunningServer, document: dict[str, Any]) -> None:
    one = publish(shared_server, "/described", b"\xff", Event_Attributes='{"a":"b"}', Expires_In="60")
    many = publish(shared_server, "/described", b"1\n2\n", Content_Type="application/x-ndjson")
    refused = publish(shared_server, "no name")
    for reply in (one, many, refused):
        assert fits(document, answer(document, "post", "/v1/publish", reply.status), reply.json), reply.json
    for path, params in (
        ("/v1/read", {"streams": "/described", "meta": "true"}), ("/v1/streams", {}), ("/v1/streams", {"limit": 1}),
        ("/v1/streams", {"sort": "traffic"}), ("/v1/stats", {}),
        ("/v1/consumers", {}),
    ):  # fmt: skip
        shown = ask(shared_server, "GET", path, **params).json
        assert fits(document, answer(document, "get", path, 200), shown), shown
        assert not fits(document, answer(document, "get", path, 200), {"other": shown})
    with Tail(shared_server, "/described", after=0) as tail:
        assert fits(document, answer(document, "get", "/v1/tail", 200), tail.line())


def test_numbers_are_numbers_and_lines_are_a_way_to_publish(document: dict[str, Any]) -> None:
    read = {one["name"]: one["schema"]["type"] for one in document["paths"]["/v1/read"]["get"]["parameters"]}

    assert (read["stream"], read["from"], read["limit"], read["meta"]) == ("string", "integer", "integer", "boolean")
    body = document["paths"]["/v1/publish"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/octet-stream", "application/x-ndjson"}


def test_errors_of_every_request_are_named(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert {"408", "414", "429", "431"} <= set(operation["responses"]), (method, path)


def test_what_needs_no_token_says_so(shared_server: RunningServer, document: dict[str, Any]) -> None:
    public = {path for path, found in document["paths"].items() for one in found.values() if one.get("security") == []}

    assert public == {"/health", "/ready", "/__heartbeat__", "/__lbheartbeat__", "/v1/webpush/key"}
    assert {ask(shared_server, "GET", path, token=None).status for path in public} == {200}


NO_JSON = (b'{"\xc9\xd1F":1}', b"\xff", b"[" * 50_000, b'{"a":' * 10_000, b"{" + b'"a":{' * 2_000 + b"}" * 2_001)


def test_no_bytes_of_a_body_are_a_failure_of_the_server(shared_server: RunningServer, document: dict[str, Any]) -> None:
    operations = [(path, method, one) for path, found in document["paths"].items() for method, one in found.items()]
    taking = [(path, method) for path, method, one in operations if "application/json" in _content(one)]
    assert len(taking) > 10
    for path, method in taking:
        for body in NO_JSON:
            filled = path.format(space="lake", name="x", id="x", actor="x") + ("?expect=0" if method == "put" else "")
            assert ask(shared_server, method.upper(), filled, body).status in (400, 413), (method, path, body[:20])


def _content(operation: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = operation.get("requestBody", {}).get("content", {})
    return found


async def test_every_path_of_the_api_is_described(tmp_path: Path) -> None:
    async with Node(load(given=["server.listen=127.0.0.1:0"]), tmp_path) as node:
        silent = [row.path for row in node.routes if row.path.startswith("/v1/") and not declared(row.handler)]

    assert silent == []
    assert len([row for row in node.routes if declared(row.handler)]) > 50


GOOD = {
    "stream": "/described", "streams": "/described", "after": "0", "upto": "0", "entry": "1", "recipient": "a",
    "name": "a", "kind": "wire", "prefix": "lake/", "month": "2026_11", "expect": "0", "time": "2026-11-15T12:00:00Z",
}  # fmt: skip
"""Values of parameters that some operation needs."""


def takes_nothing(schema: dict[str, Any]) -> bool:
    """Whether an empty value of a parameter is one that the schema allows."""
    if "enum" in schema:
        return "" in schema["enum"]
    if schema["type"] != "string" or schema.get("minLength") or "format" in schema:
        return False
    return re.search(schema["pattern"], "") is not None


def test_an_empty_parameter_is_refused_where_the_document_has_none(
    shared_server: RunningServer, document: dict[str, Any]
) -> None:
    publish(shared_server, "/described", b"one")
    tried = 0
    for path, operations in document["paths"].items():
        for method, about in operations.items():
            asked = [one for one in about.get("parameters", []) if one["in"] == "query"]
            needed = {one["name"]: GOOD[one["name"]] for one in asked if one.get("required")}
            for one in asked:
                if not takes_nothing(one["schema"]):
                    given = {**needed, one["name"]: ""}
                    answered = ask(shared_server, method.upper(), re.sub(r"\{\w+\}", "a", path), b"{}", **given)
                    assert answered.status in (400, 404), (method, path, one["name"], answered.status)
                    tried += 1
    assert tried > 40
