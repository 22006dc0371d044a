"""A server with two routes that are broken on purpose, for the test that must notice them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

import msgspec

from penstock.api.context import Context
from penstock.api.describing import operation
from penstock.cli.app import run
from penstock.core.metering import Sample
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import WHOLE, Route
from penstock.node.doors import DOORS
from penstock.settings import Settings
from penstock.testing import RunningServer


class Ordered(msgspec.Struct):
    """The body that both of them expect."""

    item: str = ""


@operation("Fails.", body=Ordered)
def fails(request: Request) -> Response:
    """The sabotage: takes for granted that a body is JSON, and what is in it."""
    return Response(200, b"%d" % len(msgspec.json.decode(request.body)["item"]))


@operation("Hangs.", body=Ordered)
async def hangs(request: Request) -> Response:
    """The sabotage: waits for ever for an item that is not there."""
    if b'"item":"' not in request.body:
        await asyncio.Event().wait()
    return Response(200)


class Failing:
    """A door that nobody should open."""

    def __init__(self, context: Context, settings: Settings) -> None:
        pass

    async def __aenter__(self) -> Failing:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/v1/fails", fails, body=WHOLE(1000)),
            Route("POST", "/v1/hangs", hangs, body=WHOLE(1000), timeout=None),
        ]

    def samples(self) -> Iterable[Sample]:
        return ()


class FailingServer(RunningServer):
    """A server with that door."""

    module = "tests.faults.failing_routes"


if __name__ == "__main__":
    DOORS["failing"] = (Failing,)
    sys.exit(run(sys.argv[1:]))
