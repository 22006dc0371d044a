"""`/openapi.json`: the own API described, from one table."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock import __version__
from penstock.server.exchange import Request, Response

_STREAM = ("stream", "query", "Name of a stream, like /orders/eu.", True)
_PATTERN = ("streams", "query", "Patterns with commas: * is one level, > the rest.", True)
_META = ("meta", "query", "true also shows meta entries and tombstones.", False)
_LIMIT = ("limit", "query", "Entries at most, up to 1000.", False)

Parameter = tuple[str, str, str, bool]

# method, path, summary, parameters, media type of the body, success status, errors
_OPERATIONS: tuple[tuple[str, str, str, tuple[Parameter, ...], str, int, tuple[int, ...]], ...] = (
    ("post", "/v1/publish", "Publish one event (raw body) or many (application/x-ndjson, a line each).",
     (_STREAM,
      ("Idempotency-Key", "header", "The same key stores nothing again and gets the first answer.", False),
      ("Producer", "header", "NAME/SEQUENCE: a sequence not above the last is a repeat, for ever.", False),
      ("Expected-Position", "header", "Index or cursor at which the stream must be.", False),
      ("Event-Type", "header", "Type of the event.", False),
      ("Event-Attributes", "header", "A JSON object of strings.", False),
      ("Expires-In", "header", "Seconds after which nobody gets it any more.", False)),
     "application/octet-stream", 201, (400, 401, 403, 409, 413, 503, 507)),
    ("get", "/v1/read", "Read a page: by stream= and from=, by cursor=, or by streams= and after=.",
     (("stream", "query", "Name of a stream; with from=.", False),
      ("from", "query", "Index of the first entry.", False),
      ("cursor", "query", "A cursor, as publish answers it.", False),
      ("streams", "query", _PATTERN[2], False),
      ("after", "query", "Entries with greater ids only.", False), _LIMIT, _META),
     "", 200, (400, 401, 403, 404, 410)),
    ("get", "/v1/tail", "Follow streams: a line of JSON per entry, as they come.",
     (_PATTERN, ("after", "query", "First everything after this id; without it only what comes.", False), _META,
      ("consumer", "query", "Name under which the ledger records it.", False)),
     "", 200, (400, 401, 403)),
    ("get", "/v1/streams", "List streams, in order of their names.",
     (("pattern", "query", "Which ones; > is all.", False), ("after", "query", "Names after this one.", False), _LIMIT),
     "", 200, (400, 401, 403)),
    ("get", "/v1/consumers", "List those who read now, with their lag.", (), "", 200, (401, 403)),
    ("get", "/v1/why", "What became of an entry, or of a message, for a recipient.",
     (("entry", "query", "Id of the entry, or of the message.", True),
      ("recipient", "query", "Name of the recipient.", True)),
     "", 200, (400, 401, 403, 404)),
    ("get", "/v1/log/plan", "Cut a range of the log into slices for a parallel export.",
     (("after", "query", "Ids greater than this.", True),
      ("upto", "query", "Ids up to this; without it, to the end.", False),
      ("parts", "query", "How many slices are wanted.", False), ("max_rows", "query", "Rows in all at most.", False),
      ("max_bytes", "query", "Bytes in all at most.", False)),
     "", 200, (400, 401, 403, 410, 503)),
    ("get", "/v1/log/arrow", "Export a range of the log as an Arrow IPC stream that ends in a trailer.",
     (("after", "query", "Ids greater than this.", True), ("upto", "query", "Ids up to this.", True),
      ("streams", "query", _PATTERN[2], False), ("columns", "query", "Columns with commas; without it, all.", False)),
     "", 200, (400, 401, 403, 410, 503)),
    ("get", "/v1/pipeline", "How far the lake is, and how the pipeline's driver and its jobs do.",
     (), "", 200, (401, 403)),
    ("get", "/v1/pipeline/news", "The newest id, as soon as it is above after=.",
     (("after", "query", "Wait for an id above this.", False), ("wait", "query", "Seconds at most, up to 60.", False)),
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
     (("key", "path", "lake/… or pipeline/…", True), ("expect", "query", "Its version now; 0: there is none.", True)),
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
      ("limit", "query", "Recipients at most, up to 500.", False)), "", 200, (400, 401, 403)),
    ("get", "/v1/audit/pushers", "The pushers there are, and their states.", (), "", 200, (401, 403)),
    ("get", "/v1/retention/months", "The months of the mailboxes, and what is in them.", (), "", 200, (401, 403)),
    ("post", "/v1/backup", "Copy the data of the running node into a directory of its machine.",
     (), "application/json", 201, (400, 401, 403)),
    ("post", "/v1/pushers", "Have a subscription pushed into an app (Event Horizon).",
     (), "application/json", 201, (400, 401, 403)),
    ("get", "/v1/pushers", "List the pushers, with their lag and last error.", (), "", 200, (401, 403)),
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


def describe() -> dict[str, Any]:
    """The document."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary, parameters, media, status, errors in _OPERATIONS:
        operation: dict[str, Any] = {
            "summary": summary,
            "parameters": [_parameter(*parameter) for parameter in parameters],
            "responses": {str(status): {"description": "Done."}}
            | {str(error): {"$ref": "#/components/responses/Problem"} for error in errors},
        }
        if media:
            operation["requestBody"] = {"required": True, "content": {media: {}}}
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__, "license": {"name": "Apache-2.0"}},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {"Problem": _problem()},
        },
    }


def _parameter(name: str, place: str, description: str, required: bool) -> dict[str, Any]:
    schema = {"type": "string"}
    return {"name": name, "in": place, "description": description, "required": required, "schema": schema}


def _problem() -> dict[str, Any]:
    fields = {name: {"type": "string"} for name in ("code", "message", "remedy")}
    error = {"type": "object", "properties": fields, "required": list(fields)}
    schema = {"type": "object", "properties": {"error": error}, "required": ["error"]}
    return {"description": "What is wrong, and what to do.", "content": {"application/json": {"schema": schema}}}


def openapi(request: Request) -> Response:
    """Serve the document."""
    return Response(200, msgspec.json.encode(describe()))
