"""`stream …` and `pusher`: Event Horizon's commands."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock.cli.options import Json, Token, Url, connect, find_token, server_url
from penstock.cli.output import read_lines, show
from penstock.errors import InputInvalid
from penstock.settings import DEFAULTS

if TYPE_CHECKING:
    from penstock.doors.eventhorizon.pusher import Pusher

LINES = 1000  # of one append from a file
_BATCH_BYTES = 3 * 1024 * 1024
_PUSHER: Final = DEFAULTS.eventhorizon

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="Like /orders/eu.")]
Subscription = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="The subscription's stream: /_sub/NAME.")]

stream = typer.Typer(no_args_is_help=True, help="Make, fill, subscribe and read Event Horizon streams.")


@stream.command()
def create(stream: Stream, url: Url = "", token: Token = "") -> None:
    """Make a stream; the one above it must exist.

    \b
    ./penstock stream create /orders
    """
    _call(url, token, "/writer/create_stream", {"Name": stream})


@stream.command()
def append(
    stream: Stream,
    line: Annotated[str, typer.Argument(metavar="LINE", help="The event; no newline in it.")],
    expect: Annotated[str, typer.Option(metavar="CURSOR", help="Only if the stream ends there.")] = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Append one line, and print the position after it.

    \b
    ./penstock stream append /orders 'OrderPlaced {"item":"boots"}'
    """
    answer = _call(url, token, "/writer/append", {"Stream": stream, "Lines": [line], "ExpectedOffset": expect})
    print(answer["Offset"])


@stream.command("append-from-file")
def append_from_file(
    stream: Stream,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="One event a line; the CR of CRLF is dropped.")],
    url: Url = "",
    token: Token = "",
) -> None:
    """Append every line of a file, in batches of a thousand.

    \b
    ./penstock stream append-from-file /orders orders.txt
    """
    count, offset = 0, ""
    with connect(url, token) as client:
        for lines in _batches(_text(number, line) for number, line in enumerate(read_lines(file), 1)):
            body = msgspec.json.encode({"Stream": stream, "Lines": lines})
            offset = client.call("POST", "/writer/append", body=body)["Offset"]
            count += len(lines)
    print(f"appended {count:,} lines to {stream}; it is at {offset}")


@stream.command()
def subscribe(stream: Stream, subscription: Subscription, url: Url = "", token: Token = "") -> None:
    """Let a subscription hear of a stream.

    \b
    ./penstock stream subscribe /orders /_sub/billing
    """
    _call(url, token, "/writer/subscribe", {"Stream": stream, "SubscriptionId": subscription})


@stream.command()
def unsubscribe(stream: Stream, subscription: Subscription, url: Url = "", token: Token = "") -> None:
    """Let a subscription hear no more of a stream.

    \b
    ./penstock stream unsubscribe /orders /_sub/billing
    """
    _call(url, token, "/writer/unsubscribe", {"Stream": stream, "SubscriptionId": subscription})


@stream.command()
def read(
    cursor: Annotated[
        str, typer.Argument(metavar="CURSOR|STREAM", help="Like /orders:0:145; a stream: from the start.")
    ],
    lines: Annotated[int, typer.Option(metavar="N", min=1, help="How many lines at most.")] = LINES,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Print lines from a cursor on, on through the chunks: content bare, meta lines as /Type json.

    \b
    ./penstock stream read /orders
    ./penstock stream read /orders:0:145 --lines 10 --json
    """
    at = cursor if ":" in cursor else f"{cursor}:0:0:?"
    with connect(url, token) as client:
        for line in _read(client, at, lines):
            show(line, _shown(line), json)


def _read(client: Any, cursor: str, left: int) -> Iterator[dict[str, Any]]:
    while left > 0:
        body = msgspec.json.encode({"Cursor": cursor, "MaxLinesToRead": min(left, LINES)})
        page = client.call("POST", "/reader/read", body=body)
        yield from page["Lines"]
        left -= len(page["Lines"])
        if not page["More"]:
            return
        cursor = page["Lines"][-1]["PtrAfter"]


def _shown(line: dict[str, Any]) -> str:
    return f"/{line['MetaType']} {line['Content']}" if line["MetaType"] else str(line["Content"])


def _call(url: str, token: str, path: str, value: dict[str, Any]) -> dict[str, Any]:
    """One call. Two of the writer's answer with a plain OK."""
    with connect(url, token) as client:
        answer = client.send("POST", path, body=msgspec.json.encode(value))
    return {} if answer == b"OK\n" else dict(msgspec.json.decode(answer))


def _batches(lines: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for line in lines:
        if len(batch) == LINES or size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line.encode())
    if batch:
        yield batch


def _text(number: int, raw: bytes) -> str:
    try:
        return raw.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise InputInvalid(f"line {number}", "is not UTF-8") from None


def pusher(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The app's endpoint, its ?auth= included.")],
    server: Annotated[
        str, typer.Option("--server", "--url", metavar="URL", help="The server; else PENSTOCK_URL.")
    ] = "",
    token: Token = "",
    secret: Annotated[str, typer.Option(metavar="whsec_…", help="Sign by Standard Webhooks with this secret.")] = "",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For the app to answer.")] = _PUSHER.push_timeout,
    retry: Annotated[
        float, typer.Option(metavar="SECONDS", help="Until the first retry; then twice as long.")
    ] = _PUSHER.push_retry,
    retry_longest: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between retries at most.")
    ] = _PUSHER.push_retry_longest,
    repeat: Annotated[
        float, typer.Option(metavar="SECONDS", help="Until an app that did not move is tried again.")
    ] = _PUSHER.push_repeat,
    stop_on_eof: Annotated[bool, typer.Option("--stop-on-eof", help="End when standard input does.")] = False,
) -> int:
    """Push a subscription's streams to an app, until SIGTERM.

    It keeps no state: the app says who it is and where it is. An app may start it as its child, and with
    --stop-on-eof it ends with the app.

    \b
    ./penstock pusher 'http://127.0.0.1:9000/_eventhorizon_push?auth=8c382056' --server http://127.0.0.1:8800
    """
    from penstock import logs
    from penstock.cli.pusher_source import RemoteSource
    from penstock.doors.eventhorizon.pusher import Pusher
    from penstock.http.client import Target, parse_url
    from penstock.wire.retrying import RetryPolicy
    from penstock.wire.webhooks import parse_secret

    logs.set_up()
    key = parse_secret(secret) if secret else None
    app = Target(parse_url(target), allow_private=True, timeout=timeout)
    policy = RetryPolicy(retry, max(retry, retry_longest))

    async def push() -> int:
        async with RemoteSource(server_url(server), find_token(token)) as source:
            pusher = Pusher(app, source, policy, repeat=repeat, slots=_PUSHER.push_slots, secret=key)
            return await _run_until_told(pusher, stop_on_eof)

    return asyncio.run(push())


async def _run_until_told(pusher: Pusher, stop_on_eof: bool) -> int:
    from penstock.wire.eventhorizon_pusher import AppGone

    running = asyncio.ensure_future(pusher.run())
    _stop_when_told(running, stop_on_eof)
    try:
        await running
    except AppGone:
        print("penstock: gone: the app answered 410 — it wants no more pushes", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return 0
    return 0


def _stop_when_told(running: asyncio.Future[None], stop_on_eof: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    if stop_on_eof:

        def wait_for_the_end() -> None:
            while sys.stdin.buffer.read(4096):
                pass
            loop.call_soon_threadsafe(running.cancel)

        threading.Thread(target=wait_for_the_end, daemon=True).start()
