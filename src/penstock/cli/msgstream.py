"""`session` and `emit`: a backend's side of the message stream, by hand."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from penstock.cli.options import Json, Token, Url, connect, server_url
from penstock.cli.output import as_line, say, show
from penstock.errors import InputInvalid


def session(
    actor: Annotated[str, typer.Argument(metavar="ACTOR", help="Who logs in. An actor has one session.")],
    ttl: Annotated[int, typer.Option(metavar="SECONDS", help="Its life without a sign of life; 0 is the default.")] = 0,
    follow: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Streams that come as packs, too; again for more.")
    ] = None,
    end: Annotated[str, typer.Option(metavar="REASON", help="End the actor's session instead, for this reason.")] = "",
    listen: Annotated[bool, typer.Option("--listen", help="Show its messages as they come, until Ctrl-C.")] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Begin a session of the message stream and print its key, or end one.

    \b
    ./penstock session alice --follow '/shop/*' --listen
    ./penstock session alice --end loggedOut
    """
    with connect(url, token) as client:
        if end:
            client.send("DELETE", f"/v1/sessions/{quote(actor, safe='')}", {"reason": end})
            show({"ended": actor}, f"ended the session of {actor}", json)
            return
        wanted = {"actorId": actor, "follow": follow or []} | ({"ttl": ttl} if ttl else {})
        made = client.call("POST", "/v1/sessions", body=msgspec.json.encode(wanted))
    show(made, made["sessionKey"], json)
    if listen:
        _listen(server_url(url), made["sessionKey"], json)


def _listen(url: str, key: str, as_json: bool) -> None:
    from penstock.client.msgstream import MessageStream

    for message in MessageStream(url, key, transport="websocket").messages():
        data = as_line(message.data) if message.has_data else ""
        say(as_line(message) if as_json else f"{message.type} {data}".strip())


def emit(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="Like shop.purchase.")],
    data: Annotated[str, typer.Argument(metavar="[DATA]", help="JSON; none for a message without data.")] = "",
    to: Annotated[list[str] | None, typer.Option(metavar="ACTOR", help="Whom it is for; again for more.")] = None,
    stream: Annotated[
        list[str] | None, typer.Option(metavar="STREAM", help="A stream that it goes into; again for more.")
    ] = None,
    broadcast: Annotated[bool, typer.Option("--broadcast", help="It is for everybody.")] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Emit one message: to actors, into streams, or to everybody.

    \b
    ./penstock emit shop.purchase '{"item":"boots"}' --to alice
    ./penstock emit maintenance --broadcast
    """
    message: list[object] = [type, *([_as_json(data)] if data else [])]
    wanted: dict[str, object] = {"messages": [message], "broadcast": broadcast}
    wanted |= {name: names for name, names in (("actors", to), ("streams", stream)) if names}
    with connect(url, token) as client:
        answer = client.call("POST", "/v1/emit", body=msgspec.json.encode(wanted))
    show(answer, _words(answer), json)


def _as_json(data: str) -> msgspec.Raw:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except msgspec.MsgspecError as error:
        raise InputInvalid(
            "DATA", f"is not JSON: {error}", remedy="Put quotes around a text: '\"like this\"'."
        ) from None
    return msgspec.Raw(data.encode())


def _words(answer: dict[str, object]) -> str:
    packs = answer["packs"]
    told = [f"{actor}: pack {id}" for actor, id in packs.items()] if isinstance(packs, dict) else []
    for why in ("offline", "full"):
        names = answer.get(why)
        told += [f"{actor}: {why}" for actor in names] if isinstance(names, list) else []
    if "broadcast" in answer:
        told.append(f"broadcast as id {answer['broadcast']}")
    if "last" in answer:
        told.append(f"stored as ids {answer['first']} to {answer['last']}")
    return "\n".join(told)
