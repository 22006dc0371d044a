"""The table of Penstock's API. Doors have rows of their own under `/v1`, in `doors/*/door.py`."""

from __future__ import annotations

from penstock.api.context import Context
from penstock.api.v1.export import ExportApi
from penstock.api.v1.openapi import OpenApiDocument
from penstock.api.v1.operations import OperationsApi
from penstock.api.v1.publish import PublishApi
from penstock.api.v1.read import ReadApi
from penstock.api.v1.tail import TailApi
from penstock.api.v1.why_recipients import WayApi
from penstock.core.busy_streams import StreamTraffic
from penstock.http.routing import WHOLE, Route
from penstock.limits import CALL_BYTES


def v1_routes(
    context: Context,
    publisher: PublishApi,
    operations: OperationsApi,
    exporter: ExportApi,
    document: OpenApiDocument,
    traffic: StreamTraffic,
) -> list[Route]:
    """The paths that are there whatever doors are open, those for operators among them."""
    reader, tails = ReadApi(context, traffic), TailApi(context)
    admin = context.admitting(lambda caller: caller.check_admin("backup"))
    return [
        Route(
            "POST", "/v1/publish", publisher.publish, body=WHOLE(context.body_limit), admit=publisher.admit, door="v1"
        ),
        Route("GET", "/v1/read", reader.read, door="v1"),
        Route("GET", "/v1/tail", tails, timeout=None, door="v1"),
        Route("GET", "/v1/streams", reader.streams, door="v1"),
        Route("GET", "/v1/consumers", reader.consumers, door="v1"),
        Route("GET", "/v1/why", operations.why, door="v1"),
        *WayApi(context, operations.lookup).routes(),
        Route("GET", "/v1/log/plan", exporter.plan, door="export"),
        Route("GET", "/v1/log/arrow", exporter.arrow, timeout=None, door="export"),
        Route("POST", "/v1/backup", operations.backup, body=WHOLE(CALL_BYTES), timeout=None, admit=admin, door="v1"),
        Route("GET", "/openapi.json", document),
        Route("GET", "/health", operations.alive),
        Route("GET", "/__lbheartbeat__", operations.alive),
        Route("GET", "/ready", operations.ready),
        Route("GET", "/__heartbeat__", operations.ready),
        Route("GET", "/__version__", operations.version),
    ]
