"""Makes inputs for a door: real requests of it with nonsense in some places, and frames for WebSockets.

Everything comes from one `random.Random`, so that a seed repeats a run. A `Form` is a request as a real client sends
it; `Inputs.request` puts something else into a few of its places, or cuts and stirs its bytes.
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

NUMBERS = ("0", "1", "-1", "", "1e5", "٣", "0x1", "9" * 25, "nan", "9223372036854775807", "-9223372036854775808", "5")
WORDS = (
    "/f/a", "/f/a:0:0", "/f/a:0:65:127.0.0.1", "/", ">", "/f/>", "/f/*", "/_ledger", "/_sub/x", "{}", "p/1", "true",
    "latest", "7d", "2026_11", "2026-11-15T12:00:00Z", "9999-12-31T23:59:59+14:00", "lake/", "pipeline/jobs/x", "alice",
    "publish", "\0", "a" * 3000, "\u202e", "é", "𝄞", "a,b,,c", "..", ".", "~", "a~s.0.AAAAAAAAAAAAAAAAAAAAAA", "next",
)  # fmt: skip
ESCAPES = ("%", "%z", "%zz", "%ff", "%00", "%C3%28", "%2F", "%2e%2e", "+", "&", "=", ";", "%ED%A0%80", "%25")
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**63, 2**70, 10**400, 1.5, -0.0, 1e308, "", "\0", "\ud800", [], {}, [[]], [None],
    {"": 0}, ["a"] * 50, *WORDS, *NUMBERS,
)  # fmt: skip
BODIES = (
    b"", b"{}", b"[]", b"null", b"NaN", b"1e999", b"9" * 5000, b"\xef\xbb\xbf{}", b'{"a":"\\ud800"}',
    b'{"a":"\\u0000"}', b'{"a":1,"a":2}', b"[" * 5_000, b'{"a":' * 2_000, b"[" * 900 + b"]" * 900,
    b"{" + b'"a":{' * 900 + b"}" * 901,
    b'{"a":"\xff"}', b'"' + b"a" * 5000, b"1\n2\n", b"\n\n", b"\xff\xfe", b"\0" * 100,
)  # fmt: skip
HEADERS = (
    "Idempotency-Key", "Producer", "Expected-Position", "Event-Type", "Event-Attributes", "Expires-In", "Content-Type",
    "Accept", "Origin", "Accept-Encoding", "X-Anything", "Lp-Trickle-Reset", "Lp-Trickle-Offset", "Expect-Content",
    "Last-Event-ID", "TTL", "Topic", "Urgency", "Prefer", "Content-Encoding", "Crypto-Key", "Encryption",
)  # fmt: skip
STRANGERS = (
    "", "Bearer", "Bearer ", "Basic eDp5", "Bearer x y", "Bearer \xff", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.",
    "Bearer e30.e30.e30", "Bearer " + "." * 200, "Bearer eyJhbGciOiJIUzI1NiIsImtpZCI6W119.W10.AA", "vapid t=a.b.c,k=AA",
    "WebPush a.b.c", "vapid " + "x" * 4000,
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW")
OUTSIDE = {"directory", "url", "endpoint"}  # fields that make the server write or connect somewhere
NOWHERE: tuple[Any, ...] = (
    "",
    "relative",
    "http://[::1",
    "https://",
    "http://127.0.0.1:1/",
    "ftp://x/",
    None,
    7,
    ["x"],
)
LIVE = ("/v1/tail", "/v1/stats/live")  # answers that do not end


@dataclass(slots=True)
class Form:
    """A request as a real client sends it."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None  # bytes, or a value that is sent as JSON
    live: bool = False  # its answer does not end, or does not begin at once
    token: bool = True  # it is sent with one


@dataclass(frozen=True, slots=True)
class Input:
    """What is sent, and what may be expected of the answer."""

    data: bytes
    framed: bool = True  # one request to the byte: another may follow it on the same connection
    live: bool = False


class Inputs:
    """An endless supply."""

    def __init__(self, chance: random.Random, forms: list[Form], token: str, commands: list[Any] | None = None) -> None:
        self._chance, self._forms, self._token, self._commands = chance, forms, token, commands or []

    def request(self) -> Input:
        """One request; in one of twelve not even its bytes are in order."""
        chance = self._chance
        form = copy.deepcopy(chance.choice(self._forms))
        authorization = f"Authorization: Bearer {self._token}" if form.token else "X-No: token"
        if chance.random() < 0.05:
            authorization = f"Authorization: {chance.choice(STRANGERS)}"
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            chance.choice((self._spoil_query, self._spoil_query, self._spoil_body, self._spoil_body, self._spoil_path,
                           self._spoil_header))(form)  # fmt: skip
        if chance.random() < 0.03:
            form.method, form.live = chance.choice(METHODS), True  # of that path it may be one that waits
        data = self._encoded(form, authorization)
        if chance.random() < 1 / 12:
            return Input(self._stirred(data), framed=False, live=form.live)
        return Input(data, live=form.live or form.method == "HEAD")

    def frame(self) -> bytes:
        """One frame for a WebSocket: a command with nonsense in it, or nonsense."""
        chance = self._chance
        if chance.random() < 0.06:
            return self._odd_frame()
        text = chance.choice(BODIES)
        if chance.random() < 0.9:
            text = _json(self._spoilt(copy.deepcopy(chance.choice(self._commands))))
        return self._framed(0x81, text)

    def _odd_frame(self) -> bytes:
        chance = self._chance
        first = chance.choice((0x01, 0x00, 0x80, 0x82, 0x83, 0x88, 0x89, 0x8A, 0x8F, 0xC1, 0x09, 0x81))
        payload = chance.choice((b"", b"\x03", b"\x03\xe8", b"\x03\xe8bye", b"\xff\xff\xff", b"x" * 126, b"x" * 70_000))
        frame = self._framed(first, payload)
        return frame if chance.random() < 0.8 else frame[: chance.randrange(len(frame)) + 1]

    def _framed(self, first: int, payload: bytes) -> bytes:
        return framed(first, payload, self._chance.randbytes(4))

    # ── places in a request ───────────────────────────────────────────────────────────────────────

    def _word(self) -> str:
        return self._chance.choice(self._chance.choice((WORDS, NUMBERS)))

    def _spoil_query(self, form: Form) -> None:
        chance, choices = self._chance, list(form.query)
        if choices and chance.random() < 0.2:
            del form.query[chance.choice(choices)]
        elif choices and chance.random() < 0.9:
            form.query[chance.choice(choices)] = self._escaped()
        else:
            form.query[chance.choice(("nonsense", "", "limit", "after"))] = self._escaped()

    def _escaped(self) -> str:
        return self._chance.choice(ESCAPES) if self._chance.random() < 0.2 else quote(self._word(), safe="/>:,")

    def _spoil_path(self, form: Form) -> None:
        levels = form.path.split("/")
        if self._chance.random() < 0.3 or len(levels) < 3:
            levels.append(self._escaped())
        else:
            levels[self._chance.randrange(2, len(levels))] = self._escaped()
        form.path = "/".join(levels)

    def _spoil_header(self, form: Form) -> None:
        form.headers[self._chance.choice(HEADERS)] = self._word().replace("\0", "")

    def _spoil_body(self, form: Form) -> None:
        if form.body is None:
            return
        if self._chance.random() < 0.2:
            form.body = self._chance.choice(BODIES)
        elif not isinstance(form.body, bytes):
            form.body = self._spoilt(form.body)

    def _spoilt(self, value: Any) -> Any:
        """*value* with something else in one place, or as it is."""
        chance = self._chance
        if isinstance(value, dict) and value and chance.random() < 0.9:
            name = chance.choice(list(value))
            if chance.random() < 0.1:
                del value[name]
            elif name in OUTSIDE:
                value[name] = chance.choice(NOWHERE)
            else:
                value[name] = self._spoilt(value[name])
            return value
        if isinstance(value, list) and value and chance.random() < 0.7:
            place = chance.randrange(len(value))
            value[place] = self._spoilt(value[place])
            return value
        return copy.deepcopy(chance.choice(VALUES)) if chance.random() < 0.8 else value

    # ── bytes ─────────────────────────────────────────────────────────────────────────────────────

    def _encoded(self, form: Form, authorization: str) -> bytes:
        query = "&".join(f"{name}={value}" for name, value in form.query.items())
        target = form.path + (f"?{query}" if query else "")
        body = form.body if isinstance(form.body, bytes) else b"" if form.body is None else _json(form.body)
        lines = [f"{form.method} {target} HTTP/1.1", "Host: x", authorization]
        lines += [f"{name}: {value}" for name, value in form.headers.items()]
        if body and self._chance.random() < 0.1:
            lines.append("Transfer-Encoding: chunked")
            cut = self._chance.randrange(len(body) + 1)
            parts = [part for part in (body[:cut], body[cut:]) if part]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        elif body or form.method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body

    def _stirred(self, data: bytes) -> bytes:
        chance = self._chance
        for _ in range(chance.randrange(1, 4)):
            begin = chance.randrange(len(data) + 1)
            end = min(len(data), begin + chance.choice((0, 1, 1, 2, 8, 40)))
            piece = chance.choice((b"", b"\0", b"\r\n", b"\n", b" ", b":", chance.randbytes(3), data[begin:end] * 2))
            data = data[:begin] + piece + data[end:]
        return data[: chance.randrange(len(data) + 1)] if chance.random() < 0.2 else data


def framed(first: int, payload: bytes, mask: bytes) -> bytes:
    """A frame as a client sends it."""
    size = len(payload)
    head = bytes([first]) + (
        bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big") if size < 65_536
        else b"\xff" + size.to_bytes(8, "big")
    )  # fmt: skip
    times = size // 4 + 1
    masked = int.from_bytes(payload, "big") ^ int.from_bytes((mask * times)[:size], "big")
    return head + mask + masked.to_bytes(size, "big")


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def forms_of(document: dict[str, Any]) -> list[Form]:
    """A form for every operation of `/openapi.json`: a new route gets its inputs without being listed."""
    forms = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            query = {one["name"]: quote(_likely(one["name"], one["schema"])) for one in operation["parameters"]
                     if one["in"] == "query"}  # fmt: skip
            names = {one["name"]: _likely(one["name"], one["schema"]) for one in operation["parameters"]}
            body = _body(document, operation.get("requestBody"))
            forms.append(Form(method.upper(), path.format(**names), query, {}, body, live=path in LIVE))
    return forms


_LIKELY = {
    "stream": "/f/a", "streams": ">", "pattern": ">", "cursor": "/f/a:0:0:127.0.0.1", "entry": "1", "after": "0",
    "time": "2026-11-15T12:00:00Z", "recipient": "alice", "columns": "id", "prefix": "lake/", "month": "2026_11",
    "expect": "0", "wait": "0", "space": "lake", "name": "x", "id": "x", "actor": "alice", "meta": "true", "upto": "5",
    "consumer": "me", "reason": "bye",
}  # fmt: skip


def _likely(name: str, schema: dict[str, Any]) -> str:
    return _LIKELY.get(name) or str(schema.get("minimum", 1) or 1)


def _body(document: dict[str, Any], described: dict[str, Any] | None) -> Any:
    if described is None:
        return None
    found = described["content"].get("application/json")
    return b"1\n2\n" if found is None else _example(document, found["schema"])


def _example(document: dict[str, Any], schema: dict[str, Any]) -> Any:
    """Some value of a schema, as far as that is easily had."""
    if "$ref" in schema:
        return _example(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "enum" in schema:
        return schema["enum"][-1]
    if (several := schema.get("anyOf") or schema.get("oneOf")) and "type" not in schema:
        return _example(document, several[0])
    match schema.get("type"):
        case "object":
            fields: dict[str, Any] = schema.get("properties", {})
            return {name: _LIKELY.get(name) or _example(document, one) for name, one in fields.items()}
        case "array":
            items = schema.get("prefixItems") or [schema.get("items") or {}]
            return [_example(document, one) for one in items]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
    return "a"
