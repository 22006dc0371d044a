"""Checks for those who run a push service: the public origin, keys, nodes, and proxies."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from penstock.cli.doctor_checks import Check, DoctorFinding, reachable
from penstock.client.http import ApiError, HttpClient, ServerUnreachable
from penstock.settings import Settings
from penstock.units import parse_address
from penstock.wire.vapid import parse_origin

PROXY_SECONDS = 60
"""After so much silence nginx and most load balancers close a connection, if nobody told them otherwise."""

_PROBE_SECONDS = 3.0
_NGINX = (
    'proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade"; '
    "proxy_set_header Host $host;"
)


class _Key(msgspec.Struct):
    public_key: str


def check_origin(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """Endpoints carry an origin that senders reach, and that VAPID's `aud` is compared with."""
    origin = settings.webpush.origin
    if not origin:
        yield _without_origin(settings)
        return
    try:
        right = parse_origin(origin)
    except ValueError:
        remedy = "Set it to scheme, host and port alone, like https://push.example.net."
        yield DoctorFinding("push origin", "fail", f"webpush.origin {origin!r} is no origin", remedy)
        return
    parts = urlsplit(right)
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        remedy = "Put TLS in front, and set webpush.origin to the https:// address."
        yield DoctorFinding("push origin", "warn", f"{origin} is plain HTTP: browsers and senders expect https", remedy)
    yield _probe(right, settings)


def _without_origin(settings: Settings) -> DoctorFinding:
    listen = parse_address(settings.server.listen)[0]
    if _is_loopback(listen) and not settings.server.trusted_proxies:
        return DoctorFinding("push origin", "ok", "webpush.origin is empty: endpoints say what the Host header says")
    remedy = "Set webpush.origin to what browsers and senders use, like https://push.example.net."
    message = "webpush.origin is empty: behind a proxy endpoints may get a wrong host, and VAPID's aud will not match"
    return DoctorFinding("push origin", "warn", message, remedy)


def _probe(origin: str, settings: Settings) -> DoctorFinding:
    """Whether the server that answers at the origin is the one that listens here."""
    there, why = _public_key(origin)
    if not there:
        remedy = "Check DNS, the proxy and its certificate: senders must reach this address."
        return DoctorFinding("push origin", "warn", f"{origin} does not answer as this service ({why})", remedy)
    host, port = parse_address(settings.server.listen)
    here, _ = _public_key(f"http://{reachable(host)}:{port}") if port else ("", "")
    if here and here != there:
        message = f"another service than this one answers at {origin}: every aud would mismatch"
        return DoctorFinding("push origin", "fail", message, "Correct webpush.origin, or the proxy's upstream.")
    return DoctorFinding("push origin", "ok", f"{origin} answers" + (", and is this server" if here else ""))


def _public_key(origin: str) -> tuple[str, str]:
    """The sender's public key that is shown at *origin*, or why there is none."""
    try:
        with HttpClient(origin, timeout=_PROBE_SECONDS).open("/v1/webpush/key", timeout=_PROBE_SECONDS) as answer:
            return msgspec.json.decode(answer.read(65_536), type=_Key).public_key, ""
    except msgspec.MsgspecError:
        return "", "its answer is another server's"
    except ApiError as error:
        return "", f"it answered {error.status}"
    except ServerUnreachable as error:
        return "", error.why


def check_push_keys(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """Keys that were given can be used: a wrong one makes every endpoint dead."""
    from penstock.doors.webpush_sender.vapid_keys import open_given
    from penstock.errors import ConfigInvalid

    given = settings.webpush
    for number, key in enumerate(given.token_keys, 1):
        if trouble := _trouble(key):
            remedy = "Write the bare keys, with commas between them: no quotes, no brackets, none empty."
            yield DoctorFinding("push keys", "fail", f"webpush.token_keys: key {number} {trouble}", remedy)
            return
    try:
        if given.vapid_key:
            open_given(given.vapid_key)
    except ConfigInvalid as error:
        yield DoctorFinding("push keys", "fail", str(error), error.remedy)
        return
    if given.contact and not given.contact.startswith(("mailto:", "https:")):
        yield DoctorFinding("push keys", "fail", "webpush.contact is neither mailto:… nor https:…", "Correct it.")
        return
    if any(_readable(path) for path in data.glob("penstock.db*")) and _readable(data):
        message = f"others can read {data / 'penstock.db'}, where keys are kept"
        yield DoctorFinding("push keys", "fail", message, f"chmod 700 {data}")
        return
    told = "given" if given.token_keys else "made at the first start, and kept with the data"
    wish = "" if given.contact else "; webpush.contact is empty, and some push services want one"
    yield DoctorFinding("push keys", "ok", f"keys of endpoints are {told}{wish}")


def _readable(path: Path) -> bool:
    """Whether others than its owner get at it."""
    return bool(path.stat().st_mode & 0o077)


def _trouble(key: str) -> str:
    from cryptography.fernet import Fernet

    if not key:
        return "is empty"
    if key[0] in "'\"[" or key[-1] in "'\"]":
        return "has quotes or brackets around it"
    try:
        Fernet(key)
    except ValueError:
        return "is not 32 bytes in base64url"
    return ""


def check_nodes(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """Other nodes can reach this one at the address that it writes into the router table."""
    server = settings.server
    if not server.internal_listen:
        yield DoctorFinding("push nodes", "ok", "no internal listener; nodes talk over the bus")
        return
    listen = parse_address(server.internal_listen)[0]
    address = server.internal_address
    host = (urlsplit(address).hostname or "") if address else listen
    if address and urlsplit(address).scheme not in ("http", "https"):
        remedy = "Write it like http://10.0.0.5:8801."
        yield DoctorFinding("push nodes", "fail", f"server.internal_address {address!r} is no URL", remedy)
    elif host in ("0.0.0.0", "::", ""):  # noqa: S104 (this is looked for, not listened on)
        remedy = "Set server.internal_address to this machine's address, like http://10.0.0.5:8801."
        yield DoctorFinding("push nodes", "fail", "other nodes would be told to connect to 0.0.0.0", remedy)
    else:
        yield _resolvable(host, listen)


def _resolvable(host: str, listen: str) -> DoctorFinding:
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        remedy = "Use a name or an address that other nodes know."
        return DoctorFinding("push nodes", "fail", f"{host} cannot be resolved: {error.strerror}", remedy)
    if all(_is_loopback(address) for address in found) and not _is_loopback(listen):
        remedy = "Set server.internal_address to an address that other machines reach."
        return DoctorFinding("push nodes", "warn", f"other machines would be told {host}, which is their own", remedy)
    return DoctorFinding("push nodes", "ok", f"other nodes reach this one at {host}")


def check_proxy(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
    """The server pings before a proxy in front believes that a connection is dead."""
    interval, behind = settings.webpush.ping_interval, bool(settings.server.trusted_proxies)
    if not interval:
        remedy = f"Set webpush.ping_interval below the proxy's idle limit, which is {PROXY_SECONDS} s for most."
        yield DoctorFinding(
            "push proxy", "warn", "user agents are never pinged: dead connections are not noticed", remedy
        )
    elif behind and interval >= PROXY_SECONDS:
        remedy = f"In nginx: proxy_read_timeout {2 * interval:.0f}s; or set webpush.ping_interval to 45."
        message = f"pings come every {interval:g} s; most proxies cut after {PROXY_SECONDS} s of silence"
        yield DoctorFinding("push proxy", "warn", message, f"{remedy} And let WebSockets through: {_NGINX}")
    else:
        yield DoctorFinding("push proxy", "ok", f"user agents are pinged after {interval:g} s of silence")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _if_open(check: Check) -> Check:
    """*check*, where the door is open at all."""

    def checked(data: Path, settings: Settings) -> Iterator[DoctorFinding]:
        if {"all", "webpush"} & set(settings.server.doors):
            yield from check(data, settings)

    return checked


WEB_PUSH_CHECKS: tuple[Check, ...] = tuple(
    _if_open(check) for check in (check_origin, check_push_keys, check_nodes, check_proxy)
)
