"""`webpush …`, the sender's commands, and `tables`, the months of the push service's storage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from penstock.cli.options import Json, Token, Url, connect
from penstock.cli.output import show
from penstock.errors import InputInvalid

Subscription = Annotated[
    str, typer.Argument(metavar="FILE", help="What JSON.stringify(subscription) gives in the browser; - is stdin.")
]
Ttl = Annotated[
    int | None, typer.Option(metavar="SECONDS", min=0, help="How long it is worth delivering; if not said, a day.")
]
Urgency = Annotated[str, typer.Option(metavar="very-low|low|normal|high", help="For devices that save power.")]
Topic = Annotated[str, typer.Option(metavar="NAME", help="A later message of the same topic replaces one that waits.")]
Private = Annotated[bool, typer.Option("--allow-private", help="The push service may be at a private address.")]

webpush = typer.Typer(no_args_is_help=True, help="Send to browsers: one message, or every event of a stream.")


@webpush.command()
def keys(
    new: Annotated[bool, typer.Option("--new", help="Print a fresh pair for the setting webpush.vapid_key.")] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Print the public key that pages subscribe with (applicationServerKey).

    The server made it at its first start, and keeps the private one with its data.

    \b
    ./penstock webpush keys
    ./penstock webpush keys --new
    """
    if new:
        from penstock.doors.webpush_sender.vapid_keys import make_key
        from penstock.wire.webcrypto import decode64, encode64, load_private, point_of

        private = make_key()
        pair = {"public_key": encode64(point_of(load_private(decode64(private)))), "private_key": private}
    else:
        with connect(url, token) as client:
            pair = client.call("GET", "/v1/webpush/key")
    show(pair, "\n".join(_named(pair) if new else pair.values()), json)


@webpush.command()
def send(
    subscription: Subscription,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What the page's service worker gets.")],
    ttl: Ttl = None,
    urgency: Urgency = "",
    topic: Topic = "",
    allow_private: Private = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Send one message to a browser.

    \b
    ./penstock webpush send subscription.json 'Your order is on its way'
    """
    answer = _post(url, token, subscription, message=message, ttl=ttl, urgency=urgency, topic=topic,
                   allow_private=allow_private)  # fmt: skip
    show(answer, f"sent {answer['location']}".rstrip(), json)


@webpush.command()
def bind(
    subscription: Subscription,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="A stream, or a pattern of streams.")],
    after: Annotated[int | None, typer.Option(metavar="ID", help="Begin after this id, not with what comes.")] = None,
    ttl: Ttl = None,
    urgency: Urgency = "",
    topic: Topic = "",
    receipts: Annotated[
        bool, typer.Option("--receipts", help="Hear from the service what reached the browser.")
    ] = False,
    allow_private: Private = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Send every event of a stream to a browser, until it is unbound or gone.

    \b
    ./penstock webpush bind subscription.json /orders/eu
    """
    answer = _post(url, token, subscription, stream=stream, after=after, ttl=ttl, urgency=urgency, topic=topic,
                   receipts=receipts, allow_private=allow_private)  # fmt: skip
    show(answer, f"bound {answer['stream']} as {answer['id']}", json)


@webpush.command("list")
def list_bindings(url: Url = "", token: Token = "", json: Json = False) -> None:
    """List what is bound, with what became of it.

    \b
    ./penstock webpush list
    """
    with connect(url, token) as client:
        after, more = "", True
        while more:
            page = client.call("GET", "/v1/webpush", {"after": after})
            for one in page["bindings"]:
                show(one, _line(one), json)
                after = one["id"]
            more = page["more"]


@webpush.command()
def unbind(
    id: Annotated[str, typer.Argument(metavar="ID", help="As bind printed it.")], url: Url = "", token: Token = ""
) -> None:
    """Send no more.

    \b
    ./penstock webpush unbind 3f9a4c21d07e55b1
    """
    with connect(url, token) as client:
        client.send("DELETE", f"/v1/webpush/{id}")
    print(f"unbound {id}")


@webpush.command()
def broadcast(
    id: Annotated[str, typer.Argument(metavar="ID", help="What user agents subscribe to.")],
    version: Annotated[str, typer.Argument(metavar="VERSION", help="Its new version.")],
    url: Url = "",
    token: Token = "",
) -> None:
    """Give a broadcast a new version; the user agents that asked for it are told at once.

    \b
    ./penstock webpush broadcast remote-settings/monitor_changes '"1763200000000"'
    """
    with connect(url, token) as client:
        body = msgspec.json.encode({"version": version})
        client.call("PUT", f"/v1/webpush/broadcasts/{quote(id, safe='/')}", body=body)
    print(f"{id} is at {version}")


def _post(url: str, token: str, subscription: str, **fields: Any) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if value is not None}
    body = msgspec.json.encode({"subscription": _read(subscription), **given})
    with connect(url, token) as client:
        return dict(client.call("POST", "/v1/webpush", body=body))


def _read(place: str) -> Any:
    text = sys.stdin.read() if place == "-" else Path(place).read_text()
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise InputInvalid("subscription", f"is not JSON: {error}") from None


def _named(pair: dict[str, str]) -> list[str]:
    return [f"{name.replace('_', ' ')}: {value}" for name, value in pair.items()]


def _line(one: dict[str, Any]) -> str:
    trouble = f"  {one['error']}" if one["error"] else ""
    return f"{one['id']}  {one['stream']}  {one['service']}  {one['state']}  {one['sent']:,} sent{trouble}"


def tables(
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without it only say what is to be done.")] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Make the tables of this month and the next, and drop those that nobody is on any more.

    A running server does this once a day by itself.

    \b
    ./penstock tables
    ./penstock tables --apply
    """
    with connect(url, token) as client:
        plan = client.call("POST" if apply else "GET", "/v1/tables")
    make, drop = ("made", "dropped") if apply else ("to make", "to drop")
    lines = [
        f"this month: {plan['month']}",
        f"{make}: {', '.join(plan['make']) or 'none'}",
        f"{drop}: {', '.join(plan['drop']) or 'none'}",
        *([f"kept, as somebody is still on them: {', '.join(plan['kept'])}"] if plan["kept"] else []),
    ]
    show(plan, "\n".join(lines), json)
