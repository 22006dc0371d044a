"""The table of the own API."""

from __future__ import annotations

from penstock.api.context import Context
from penstock.api.v1.export import Exporter
from penstock.api.v1.openapi import Document
from penstock.api.v1.operations import Operations
from penstock.api.v1.pipeline import Pipeline
from penstock.api.v1.publish import Publisher
from penstock.api.v1.read import Reader
from penstock.api.v1.tail import Tails
from penstock.http.routing import WHOLE, Route
from penstock.limits import CALL_BYTES


def v1_routes(
    context: Context,
    publisher: Publisher,
    operations: Operations,
    exporter: Exporter,
    document: Document,
) -> list[Route]:
    """Every path of the own API, and of operations."""
    reader, tails = Reader(context), Tails(context)
    admin = context.admitting(lambda caller: caller.check_admin("backup"))
    return [
        Route("POST", "/v1/publish", publisher, body=WHOLE(context.body_limit), admit=publisher.admit, door="v1"),
        Route("GET", "/v1/read", reader.read, door="v1"),
        Route("GET", "/v1/tail", tails, timeout=None, door="v1"),
        Route("GET", "/v1/streams", reader.streams, door="v1"),
        Route("GET", "/v1/consumers", reader.consumers, door="v1"),
        Route("GET", "/v1/why", operations.why, door="v1"),
        Route("GET", "/v1/log/plan", exporter.plan, door="export"),
        Route("GET", "/v1/log/arrow", exporter.arrow, timeout=None, door="export"),
        *Pipeline(context).routes(),
        Route("POST", "/v1/backup", operations.backup, body=WHOLE(CALL_BYTES), timeout=None, admit=admin, door="v1"),
        Route("GET", "/openapi.json", document),
        Route("GET", "/health", operations.alive),
        Route("GET", "/__lbheartbeat__", operations.alive),
        Route("GET", "/ready", operations.ready),
        Route("GET", "/__heartbeat__", operations.ready),
        Route("GET", "/__version__", operations.version),
    ]
