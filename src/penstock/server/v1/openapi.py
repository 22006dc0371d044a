"""`/openapi.json`: the own API described, from one table."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock import __version__
from penstock.server.exchange import Request, Response
from penstock.server.v1.publish import ManyShown, PlaceShown
from penstock.server.v1.read import ConsumerShown, StreamShown
from penstock.server.v1.shown import EntryShown

_STREAM = ("stream", "query", "Name of a stream, like /orders/eu.", True)
_PATTERN = ("streams", "query", "Patterns with commas: * is one level, > the rest.", True)
_META = ("meta", "query", "true also shows meta entries and tombstones.", False, "boolean")
_PUSHER = ("id", "path", "As it was given when it was made.", True)
_LIMIT = ("limit", "query", "Entries at most, up to 1000.", False, "integer")

Parameter = tuple[str, str, str, bool] | tuple[str, str, str, bool, str]  # the last is its type, if not a string

# method, path, summary, parameters, media types of the body, success status, errors
_OPERATIONS: tuple[tuple[str, str, str, tuple[Parameter, ...], str, int, tuple[int, ...]], ...] = (
    ("post", "/v1/publish", "Publish one event (raw body) or many (application/x-ndjson, a line each).",
     (_STREAM,
      ("Idempotency-Key", "header", "The same key stores nothing again and gets the first answer.", False),
      ("Producer", "header", "NAME/SEQUENCE: one not above your last under NAME is a repeat, for ever.", False),
      ("Expected-Position", "header", "Index or cursor at which the stream must be.", False),
      ("Event-Type", "header", "Type of the event.", False),
      ("Event-Attributes", "header", "A JSON object of strings.", False),
      ("Expires-In", "header", "Seconds after which nobody gets it any more.", False, "integer")),
     "application/octet-stream application/x-ndjson", 201, (400, 401, 403, 409, 413, 503, 507)),
    ("get", "/v1/read", "Read a page: by stream= and from=, by cursor=, or by streams= and after=.",
     (("stream", "query", "Name of a stream; with from=.", False),
      ("from", "query", "Index of the first entry.", False, "integer"),
      ("cursor", "query", "A cursor, as publish answers it.", False),
      ("streams", "query", _PATTERN[2], False),
      ("after", "query", "Entries with greater ids only.", False, "integer"), _LIMIT, _META),
     "", 200, (400, 401, 403, 404, 410)),
    ("get", "/v1/tail", "Follow streams: a line of JSON per entry, as they come.",
     (_PATTERN, _META,
      ("after", "query", "First everything after this id; without it only what comes.", False, "integer"),
      ("consumer", "query", "Name under which the ledger records it.", False)),
     "", 200, (400, 401, 403)),
    ("get", "/v1/streams", "List streams, in order of their names.",
     (("pattern", "query", "Which ones; > is all.", False), ("after", "query", "Names after this one.", False), _LIMIT),
     "", 200, (400, 401, 403)),
    ("get", "/v1/consumers", "List those who read now, with their lag.", (), "", 200, (401, 403)),
    ("get", "/v1/why", "What became of an entry, or of a message, for a recipient.",
     (("entry", "query", "Id of the entry, or of the message.", True),
      ("recipient", "query", "Name of the recipient.", True)),
     "", 200, (400, 401, 403, 404, 410)),
    ("get", "/v1/log/plan", "Cut a range of the log into slices for a parallel export.",
     (("after", "query", "Ids greater than this.", True, "integer"),
      ("upto", "query", "Ids up to this; without it, to the end.", False, "integer"),
      ("parts", "query", "How many slices are wanted.", False, "integer"),
      ("max_rows", "query", "Rows in all at most.", False, "integer"),
      ("max_bytes", "query", "Bytes in all at most.", False, "integer")),
     "", 200, (400, 401, 403, 410, 503)),
    ("get", "/v1/log/arrow", "Export a range of the log as an Arrow IPC stream that ends in a trailer.",
     (("after", "query", "Ids greater than this.", True, "integer"),
      ("upto", "query", "Ids up to this.", True, "integer"),
      ("streams", "query", _PATTERN[2], False), ("columns", "query", "Columns with commas; without it, all.", False)),
     "", 200, (400, 401, 403, 410, 503)),
    ("get", "/v1/pipeline", "How far the lake is, and how the pipeline's driver and its jobs do.",
     (), "", 200, (401, 403)),
    ("get", "/v1/pipeline/news", "The newest id, as soon as it is above after=.",
     (("after", "query", "Wait for an id above this.", False, "integer"),
      ("wait", "query", "Seconds at most, up to 60.", False, "number")),
     "", 200, (400, 401, 403)),
    ("get", "/v1/pipeline/position", "The last id that was published before a time.",
     (("time", "query", "Like 2026-11-15T12:00:00Z.", True),), "", 200, (400, 401, 403)),
    ("post", "/v1/pipeline/consumers/{name}", "Settle where a consumer begins; the first answer stays.",
     (("name", "path", "Name of the consumer.", True),), "application/json", 200, (400, 401, 403)),
    ("get", "/v1/pipeline/records", "List records of the pipeline.",
     (("prefix", "query", "Keys begin with this: lake/… or pipeline/….", True),
      ("after", "query", "Keys after this one.", False)), "", 200, (400, 401, 403)),
    ("get", "/v1/pipeline/records/{key}", "One record of the pipeline; version 0 if there is none.",
     (("key", "path", "lake/… or pipeline/…", True),), "", 200, (400, 401, 403)),
    ("put", "/v1/pipeline/records/{key}", "Change one record by compare-and-set.",
     (("key", "path", "lake/… or pipeline/…", True),
      ("expect", "query", "Its version now; 0: there is none.", True, "integer")),
     "application/json", 200, (400, 401, 403, 409, 413)),
    ("delete", "/v1/pipeline/records/{key}", "Remove one record.",
     (("key", "path", "lake/… or pipeline/…", True),), "", 204, (400, 401, 403)),
    ("post", "/v1/log/trim", "Drop the oldest entries; a dry run unless the body says apply.",
     (), "application/json", 200, (400, 401, 403, 409)),
    ("post", "/v1/log/erase", "Take the bodies of events away for good.",
     (), "application/json", 200, (400, 401, 403, 404, 413)),
    ("post", "/v1/audit/cut", "Flush the ledger and say up to which id the log is complete.", (), "", 200, (401, 403)),
    ("get", "/v1/audit/heads", "Where every stream goes on, those of the system too.",
     (("after", "query", "Names after this one.", False), _LIMIT), "", 200, (400, 401, 403)),
    ("post", "/v1/audit/heads", "Where the streams of the body go on.", (), "application/json", 200, (400, 401, 403)),
    ("get", "/v1/audit/mailboxes", "What each recipient of a month still has to confirm.",
     (("month", "query", "A month, like 2026_11.", True), ("after", "query", "Recipients after this one.", False),
      ("limit", "query", "Recipients at most, up to 500.", False, "integer")), "", 200, (400, 401, 403)),
    ("get", "/v1/audit/pushers", "The pushers there are, and their states.", (), "", 200, (401, 403)),
    ("get", "/v1/retention/months", "The months of the mailboxes, and what is in them.", (), "", 200, (401, 403)),
    ("post", "/v1/backup", "Copy the data of the running node into a directory of its machine.",
     (), "application/json", 201, (400, 401, 403)),
    ("post", "/v1/pushers", "Have a subscription pushed into an app (Event Horizon).",
     (), "application/json", 201, (400, 401, 403)),
    ("get", "/v1/pushers", "List the pushers, with their lag and last error.", (), "", 200, (401, 403)),
    ("get", "/v1/pushers/{id}", "One pusher.", (_PUSHER,), "", 200, (401, 403, 404)),
    ("delete", "/v1/pushers/{id}", "Remove a pusher.", (_PUSHER,), "", 204, (401, 403, 404)),
    ("post", "/v1/pushers/{id}/pause", "Push no more for now.", (_PUSHER,), "", 200, (401, 403, 404)),
    ("post", "/v1/pushers/{id}/resume", "Push again, from where it was.", (_PUSHER,), "", 200, (401, 403, 404)),
    ("post", "/v1/capabilities", "Put rights into the name of a Trickle channel, for clients without headers.",
     (), "application/json", 201, (400, 401, 403)),
    ("get", "/v1/channels", "List the Trickle channels that are open on this node.", (), "", 200, (401, 403)),
    ("post", "/v1/sessions", "Begin a session of the message stream for an actor.",
     (), "application/json", 201, (400, 401, 403, 413, 503)),
    ("get", "/v1/sessions", "List sessions, in order of their actors.",
     (("after", "query", "Actors after this one.", False), _LIMIT), "", 200, (400, 401, 403)),
    ("get", "/v1/sessions/{actor}", "One session, with what waits in it.",
     (("actor", "path", "The actor.", True),), "", 200, (401, 403, 404)),
    ("delete", "/v1/sessions/{actor}", "End a session.",
     (("actor", "path", "The actor.", True), ("reason", "query", "What its client hears; expired.", False)),
     "", 204, (400, 401, 403, 404)),
    ("post", "/v1/actors", "Which of these actors have a session.", (), "application/json", 200, (400, 401, 403, 413)),
    ("post", "/v1/emit", "Emit messages to actors, to everybody, or into streams (message stream).",
     (), "application/json", 200, (400, 401, 403, 413, 503, 507)),
    ("post", "/v1/tokens", "Make the token of a user who has logged in (sps).",
     (), "application/json", 201, (400, 401, 403)),
    ("post", "/v1/webpush", "Bind a browser's PushSubscription to a stream, or send it one message.",
     (), "application/json", 201, (400, 401, 403, 404, 413, 503)),
    ("get", "/v1/webpush", "List the bindings, with what became of them.",
     (("after", "query", "Ids after this one.", False), _LIMIT), "", 200, (400, 401, 403)),
    ("get", "/v1/webpush/key", "The public key that pages subscribe with (applicationServerKey).", (), "", 200, ()),
    ("get", "/v1/webpush/broadcasts", "List the broadcasts, with their versions.", (), "", 200, (401, 403)),
    ("put", "/v1/webpush/broadcasts/{id}", "Give a broadcast a new version; user agents are told at once.",
     (("id", "path", "Up to 128 printable characters; slashes stay as they are.", True),),
     "application/json", 200, (400, 401, 403, 413)),
    ("delete", "/v1/webpush/broadcasts/{id}", "Forget what was put; the setting's version counts again.",
     (("id", "path", "Up to 128 printable characters; slashes stay as they are.", True),),
     "", 204, (400, 401, 403, 404)),
    ("get", "/v1/webpush/{id}", "One binding.",
     (("id", "path", "As it was given when it was made.", True),), "", 200, (401, 403, 404)),
    ("delete", "/v1/webpush/{id}", "Unbind: send no more.",
     (("id", "path", "As it was given when it was made.", True),), "", 204, (401, 403, 404)),
    ("get", "/v1/tables", "The months of mailboxes that are missing or due to go.", (), "", 200, (401, 403)),
    ("post", "/v1/tables", "Make the missing months, and drop those that nobody is on.", (), "", 200, (401, 403)),
    ("get", "/health", "The process answers.", (), "", 200, ()),
    ("get", "/ready", "Requests should be sent here.", (), "", 200, (503,)),
    ("get", "/metrics", "Counts in Prometheus' format.", (), "", 200, (401,)),
)  # fmt: skip


_ANYWHERE = (408, 414, 429, 431)
"""Errors that any request can have: too slow, its target or its head too long, too many of them."""

_SHOWN = (EntryShown, PlaceShown, ManyShown, StreamShown, ConsumerShown)


def _ref(kind: type) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_ID = {"type": "integer"}
_PAGE = _object(entries=_array(_ref(EntryShown)), upto=_ID, more={"type": "boolean"})
_GAP = _object(gap=_object(**{"from": _ID, "to": _ID}))
_ANSWERS: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("post", "/v1/publish"): ("application/json", {"oneOf": [_ref(PlaceShown), _ref(ManyShown)]}),
    ("get", "/v1/read"): ("application/json", _PAGE),
    ("get", "/v1/tail"): ("application/x-ndjson", {"oneOf": [_ref(EntryShown), _GAP]}),
    ("get", "/v1/streams"): (
        "application/json",
        _object(streams=_array(_ref(StreamShown)), after={"type": ["string", "null"]}),
    ),
    ("get", "/v1/consumers"): ("application/json", _object(consumers=_array(_ref(ConsumerShown)), upto=_ID)),
    ("get", "/v1/log/arrow"): ("application/vnd.apache.arrow.stream", {}),
    ("get", "/metrics"): ("text/plain", {}),
}
"""What the answers are that programs read most; of the others only that they are JSON."""


def describe() -> dict[str, Any]:
    """The document."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary, parameters, media, status, errors in _OPERATIONS:
        operation: dict[str, Any] = {
            "summary": summary,
            "parameters": [_parameter(*parameter) for parameter in parameters],
            "responses": {str(status): _answer(method, path, status)}
            | {str(error): {"$ref": "#/components/responses/Problem"} for error in sorted((*errors, *_ANYWHERE))},
        }
        if media:
            operation["requestBody"] = {"required": True, "content": {one: {} for one in media.split()}}
        if 401 not in errors:
            operation["security"] = []
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__, "license": {"name": "Apache-2.0"}},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {"Problem": _problem()},
            "schemas": msgspec.json.schema_components(_SHOWN, ref_template="#/components/schemas/{name}")[1],
        },
    }


def _parameter(name: str, place: str, description: str, required: bool, type: str = "string") -> dict[str, Any]:
    schema = {"type": type}
    return {"name": name, "in": place, "description": description, "required": required, "schema": schema}


def _answer(method: str, path: str, status: int) -> dict[str, Any]:
    if status == 204:
        return {"description": "Done."}
    media, schema = _ANSWERS.get((method, path), ("application/json", {}))
    return {"description": "Done.", "content": {media: {"schema": schema}}}


def _problem() -> dict[str, Any]:
    error = _object(**{name: {"type": "string"} for name in ("code", "message", "remedy")})
    schema = _object(error=error)
    return {"description": "What is wrong, and what to do.", "content": {"application/json": {"schema": schema}}}


def openapi(request: Request) -> Response:
    """Serve the document."""
    return Response(200, msgspec.json.encode(describe()))
