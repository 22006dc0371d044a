"""`publish`, `tail`, `streams` and `why`: talking to a server that runs."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Json, Token, Url, connect
from penstock.cli.output import as_line, read_lines, say, show
from penstock.errors import InputInvalid
from penstock.wire.retrying import RetryPolicy

if TYPE_CHECKING:
    from penstock.client.api import Client, Event, Gap, PublishedMany

RETRY = RetryPolicy(first=0.5, longest=15.0)


def publish(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Like /orders/eu; it is made when it is missing.")],
    body: Annotated[
        str, typer.Argument(metavar="[BODY|-]", help="The event; '-' or nothing reads standard input.")
    ] = "-",
    type: Annotated[str, typer.Option(metavar="TYPE", help="What kind of event it is.")] = "",
    key: Annotated[
        str, typer.Option(metavar="KEY", help="Idempotency key: repeating the command stores nothing twice.")
    ] = "",
    ndjson: Annotated[str, typer.Option(metavar="FILE|-", help="Publish every line of a file as one event.")] = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Publish one event, or every line of a file.

    \b
    ./penstock publish /orders '{"item":"boots"}' --type order.placed --key order-17
    date | ./penstock publish /clock
    ./penstock publish /orders --ndjson orders.ndjson
    """
    if ndjson and body != "-":
        raise InputInvalid("BODY", "is given, and so is --ndjson", remedy="Give the event, or the file of events.")
    with connect(url, token) as client:
        if ndjson:
            many = _publish_file(client, stream, ndjson, type, key)
            show(many, f"published {many.count:,} events to {stream}, ids {many.first.id} to {many.last.id}", json)
            return
        content = sys.stdin.buffer.read() if body == "-" else os.fsencode(body)
        place = client.publish(stream, content, type=type, key=key)
        show(place, f"published {place.stream} index {place.index}, id {place.id}", json)


def _publish_file(client: Client, stream: str, file: str, type: str, key: str) -> PublishedMany:
    lines = sys.stdin.buffer if file == "-" else read_lines(Path(file))
    return client.publish_many(stream, filter(None, (line.rstrip(b"\r\n") for line in lines)), type=type, key=key)


def tail(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="'*' is one level, '>' is the rest.")],
    after: Annotated[int | None, typer.Option(metavar="ID", help="First everything after this id.")] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="First everything there is.")] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show events as they come, until Ctrl-C.

    When the connection is lost it is made again, and the tail goes on after the last event shown.
    A terminal gets control characters escaped, a pipe gets them as they are.

    \b
    ./penstock tail '/orders/*'
    ./penstock tail '>' --from-start --json
    """
    if from_start and after is not None:
        raise InputInvalid("--after", "says the opposite of --from-start")
    with connect(url, token) as client:
        for event in _follow(client, pattern, 0 if from_start else after):
            say(_line(event, json))


def _follow(client: Client, pattern: str, after: int | None) -> Iterator[Event | Gap]:
    """Events without an end. Only a first attempt that fails is an error."""
    from penstock.client.api import ApiError, Event, ServerUnreachable

    reached, failures = False, 0
    while True:
        try:
            for event in client.tail(pattern, after=after):
                reached, failures = True, 0
                yield event
                after = event.id if isinstance(event, Event) else event.gap.last
        except (ApiError, ServerUnreachable) as error:
            if not reached or 400 <= getattr(error, "status", 0) < 500:
                raise
            print(f"penstock: {error.code}: {error} — trying again", file=sys.stderr, flush=True)
        failures += 1
        time.sleep(RETRY.delay(failures, random.random()))  # noqa: S311 - spreads retries, guards nothing


def _line(event: Event | Gap, as_json: bool) -> str:
    if as_json:
        return as_line(event)
    from penstock.client.api import Gap

    if isinstance(event, Gap):
        return f"(ids {event.gap.first} to {event.gap.last} are no longer in the log)"
    shown = event.data if event.data is not None else f"({len(event.body):,} bytes)"
    return " ".join(filter(None, [f"{event.id}", f"{event.stream}[{event.index}]", event.type, shown]))


def streams(
    pattern: Annotated[str, typer.Argument(metavar="[PATTERN]", help="'*' is one level, '>' is the rest.")] = ">",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List streams: how many events each had, and when the last one came.

    \b
    ./penstock streams '/shop/>'
    """
    with connect(url, token) as client:
        if json:
            for stream in client.streams(pattern):
                print(as_line(stream))
            return
        found = list(client.streams(pattern))
        print(f"{'events':>10}  {'last id':>10}  {'last event':<28}  stream")
        for stream in found:
            print(f"{stream.next_index:>10,}  {stream.last_id:>10}  {stream.last_time:<28}  {stream.stream}")


def why(
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help="Id of an entry, as publish answers, or of a message.")],
    recipient: Annotated[str, typer.Argument(metavar="RECIPIENT", help="Who should have got it.")],
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Tell what became of an entry, or of a message in a mailbox, for a recipient.

    Looks in the log, in the ledger and in the lake; no Spark is started.

    \b
    ./penstock why 17 alice
    """
    with connect(url, token) as client:
        answer = client.why(entry, recipient)
    show(answer, f"{answer['verdict']}: {answer['words']}", json)
