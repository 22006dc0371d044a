"""Every setting, with its default, its unit and its reason. docs/operations.md is made from this file.

A setting is `section.name` everywhere. Later sources win:

    the default here  <  a TOML file  <  PENSTOCK_SECTION_NAME  <  --set section.name=value

Adding one is one line in its section. Numbers may carry a unit: `30s` or `24h` where seconds are
meant, `4MiB` where bytes are meant. A list is written with commas.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from penstock.errors import ConfigInvalid
from penstock.measures import measure, parse_address, parse_keep

T = TypeVar("T")


def setting(
    default: T,
    description: str,
    *,
    unit: str = "",
    choices: tuple[str, ...] = (),
    least: float = 0,
    most: float = float("inf"),
    secret: bool = False,
) -> T:
    """Declare one setting of a section."""
    about = {"description": description, "unit": unit, "choices": choices, "secret": secret}
    declared: T = field(default=default, metadata={**about, "least": least, "most": most}, repr=not secret)
    return declared


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The listener and its connections."""

    listen: str = setting("127.0.0.1:8800", "Address and port of the one listener; port 0 takes a free one.")
    doors: tuple[str, ...] = setting(("all",), "Doors to open: all, or names with commas.")
    linger_ms: int = setting(
        0, "How long an event may wait for others to share its write. 0: one loop turn.", unit="ms", most=20
    )
    request_timeout: float = setting(30.0, "From a request's head to the beginning of its answer.", unit="s")
    head_timeout: float = setting(
        10.0, "For a request's head to arrive: a slower peer is holding a slot open.", unit="s"
    )
    body_timeout: float = setting(30.0, "In each such span 1 KiB of a body must come.", unit="s")
    idle_timeout: float = setting(
        75.0, "Keep-alive without a request. Above the 60 s of common proxies, so that they close first.", unit="s"
    )
    stall_timeout: float = setting(
        30.0, "A subscriber that takes no byte for so long is cut; it resumes at its cursor.", unit="s"
    )
    drain_seconds: float = setting(
        10.0, "After SIGTERM, for running requests to end. Below the 30 s of common supervisors.", unit="s"
    )
    connections: int = setting(
        18_000, "Connections at once; below the common limit of 20,000 open files. Over it: closed at once.", least=1
    )
    connections_per_address: int = setting(
        20_000, "Connections at once from one address; high, as a proxy is one address.", least=1
    )
    requests_per_address: float = setting(0.0, "Requests per second from one address. 0: no limit. Over it: 429.")
    requests_per_token: float = setting(0.0, "Requests per second under one token. 0: no limit. Over it: 429.")
    trusted_proxies: tuple[str, ...] = setting(
        (), "Addresses or networks whose X-Forwarded-* and PROXY lines are believed."
    )
    proxy_protocol: bool = setting(False, "Trusted proxies begin every connection with a PROXY line.")
    cors_origins: tuple[str, ...] = setting(
        ("*",), "Origins whose pages may call. Safe as *: no cookie ever grants anything."
    )
    tls_certificate: str = setting("", "PEM file of the certificate chain. It is read again when it changes.")
    tls_key: str = setting("", "PEM file of the certificate's key; empty when the certificate's file holds it too.")
    insecure: bool = setting(False, "Allow plain HTTP on other addresses than loopback: tokens travel readable.")
    write_high: int = setting(
        65_536, "Unsent bytes at which a connection's reader counts as slow. One socket buffer.", unit="bytes", least=1
    )
    websocket_bytes: int = setting(
        1024 * 1024, "Bytes of one WebSocket message from a peer: a full entry. Over it: 1009.", unit="bytes", least=1
    )
    body_limit: int = setting(
        8 * 1024 * 1024,
        "Bytes of a request body. Two full batches: longer input is sent in pieces. Over it: 413.",
        unit="bytes",
        least=1,
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The durable log."""

    engine: str = setting("sqlite", "Storage engine.", choices=("sqlite", "memory"))
    keep: str = setting("", "How much to keep: an age (30d), a size (50GiB), or empty for everything.")
    queue: int = setting(20_000, "Entries waiting for the writer; half a second of its work. Over it: 503.", least=1)
    queue_bytes: int = setting(
        256 * 1024 * 1024, "Bytes waiting for the writer: bounds memory. Over it: 503.", unit="bytes", least=1
    )
    fold: int = setting(
        32_768, "Entries in one transaction at most: group commit gains nothing beyond, latency grows.", least=1
    )
    readers: int = setting(2, "Threads that read: one long replay must not hold up the others.", least=1)


@dataclass(frozen=True, slots=True)
class EventHorizonSettings:
    """The Event Horizon door."""

    server: str = setting(
        "127.0.0.1", "Last part of every cursor. One constant for a cluster, fixed at the first start."
    )
    activity_interval: float = setting(
        5.0, "Between two announcements of what moved in subscribed streams.", unit="s", least=0.01
    )
    push_timeout: float = setting(
        30.0, "For an app to answer a push. Over it: tried again later.", unit="s", least=0.01
    )
    push_retry: float = setting(1.0, "Until the first retry; doubled for each further one.", unit="s", least=0.01)
    push_retry_longest: float = setting(60.0, "Between retries at most.", unit="s", least=0.01)
    push_repeat: float = setting(
        5.0, "Until an app that did not move gets the same lines again, as the original does.", unit="s", least=0.01
    )
    push_slots: int = setting(8, "Pushes to one app at once, each of another stream.", least=1, most=256)


@dataclass(frozen=True, slots=True)
class SpsSettings:
    """The sps door."""

    anti_idle: float = setting(
        30.0, "Silence on a wire after which it gets a sign of life; below the 60 s of common proxies.", unit="s"
    )
    anti_idle_least: float = setting(5.0, "Shortest silence that a client may ask for with `i`.", unit="s", least=0.25)
    anti_idle_most: float = setting(300.0, "Longest silence that a client may ask for with `i`.", unit="s")
    subsist: float = setting(
        0.0, "Every client must show life this often, or is cut after three times as long. 0: those that promise it.",
        unit="s",
    )  # fmt: skip
    subsist_least: float = setting(5.0, "Shortest promise of life (`s`) that is taken.", unit="s", least=0.25)
    retry_ms: int = setting(2_000, "How long an EventSource waits before it comes back.", unit="ms")
    presence: bool = setting(True, "Write who comes and goes to /_presence.")
    encoded: int = setting(
        8_192, "Newest events kept as they look on the wire, so that a storm of reconnects encodes nothing.", least=1
    )
    encoded_bytes: int = setting(16 * 1024 * 1024, "Bytes of them at most, for each form.", unit="bytes", least=1)


@dataclass(frozen=True, slots=True)
class HubSettings:
    """What is kept in memory for live readers."""

    recent: int = setting(8_192, "Newest entries kept in memory, so that a storm of reconnects reads no disk.", least=1)
    recent_bytes: int = setting(16 * 1024 * 1024, "Bytes of them at most.", unit="bytes", least=1)
    tail: int = setting(
        1_000, "Entries that wait for one reader. Over it: it is behind and reads on from the log.", least=1
    )


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """The record of what reached whom."""

    enabled: bool = setting(True, "Record deliveries.")
    flush_ms: float = setting(
        200.0, "How long a record of sending may wait. A crash loses at most this much of it.", unit="ms", least=1
    )


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Who may do what. Signing keys are kept in the data directory."""

    admin_token: str = setting(
        "", "Token that may do everything. Empty: one is made and kept in the data directory.", secret=True
    )
    admin_token_file: str = setting("", "File that holds the admin token: keeps it out of the list of processes.")


@dataclass(frozen=True, slots=True)
class LogsSettings:
    """What the server says about itself."""

    format: str = setting("human", "Lines for people, or one JSON object a line.", choices=("human", "json"))
    level: str = setting(
        "info", "The least important line that is written.", choices=("debug", "info", "warning", "error")
    )


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The metrics page."""

    public: bool = setting(False, "Serve /metrics without a token.")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one server."""

    server: ServerSettings = ServerSettings()
    log: LogSettings = LogSettings()
    eventhorizon: EventHorizonSettings = EventHorizonSettings()
    sps: SpsSettings = SpsSettings()
    hub: HubSettings = HubSettings()
    ledger: LedgerSettings = LedgerSettings()
    auth: AuthSettings = AuthSettings()
    logs: LogsSettings = LogsSettings()
    metrics: MetricsSettings = MetricsSettings()


@dataclass(frozen=True, slots=True)
class About:
    """One setting, described."""

    name: str  # section.name
    type: Any
    default: Any
    description: str
    unit: str
    choices: tuple[str, ...]
    secret: bool
    least: float
    most: float

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "PENSTOCK_" + self.name.replace(".", "_").upper()


def _describe() -> dict[str, About]:
    described = {}
    for section in fields(Settings):
        types = get_type_hints(type(section.default))
        for one in fields(type(section.default)):  # type: ignore[arg-type]
            name = f"{section.name}.{one.name}"
            described[name] = About(name, types[one.name], one.default, **one.metadata)
    return described


KNOWN: Mapping[str, About] = _describe()
"""Every setting by its name, in the order of this file."""

OTHER_VARIABLES = frozenset({"PENSTOCK_URL", "PENSTOCK_TOKEN", "PENSTOCK_NO_SYSTEM"})
"""Variables of the command line and the wrapper that are not settings of the server."""


def load(file: Path | None = None, environment: Mapping[str, str] | None = None, given: Iterable[str] = ()) -> Settings:
    """Settings from the defaults, then *file*, then *environment*, then *given* (`section.name=value`).

    Raises `ConfigInvalid` for a name that is not known, with the nearest one, and for a value it
    cannot have.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values.update(_from_file(file))
    values.update(_from_environment(environment or {}))
    values.update(_from_pairs(given))
    return _build(values)


def _build(values: Mapping[str, Any]) -> Settings:
    settings = Settings()
    for name, value in values.items():
        section, _, key = name.partition(".")
        changed = replace(getattr(settings, section), **{key: value})
        settings = replace(settings, **{section: changed})
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    server = settings.server
    if server.tls_key and not server.tls_certificate:
        raise ConfigInvalid("server.tls_key", "is of no use without server.tls_certificate")
    parse_address(server.listen)
    parse_keep(settings.log.keep)


def _from_file(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        sections = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigInvalid("--config", f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigInvalid("--config", f"{file} is not TOML: {error}") from error
    values = {}
    for section, content in sections.items():
        if not isinstance(content, dict):
            raise ConfigInvalid(section, f"stands outside a section in {file}", remedy="Write it under [section].")
        for key, value in content.items():
            about = find(f"{section}.{key}")
            values[about.name] = parse(about, value)
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for variable, text in environment.items():
        if not variable.startswith("PENSTOCK_") or variable in OTHER_VARIABLES:
            continue
        name = variable.removeprefix("PENSTOCK_").lower().replace("_", ".", 1)
        if name not in KNOWN:
            raise _unknown(variable, [about.variable for about in KNOWN.values()])
        values[name] = parse(KNOWN[name], text)
    return values


def _from_pairs(pairs: Iterable[str]) -> dict[str, Any]:
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        about = find(name.strip())
        if not equals:
            raise ConfigInvalid(about.name, "has no value", remedy=f"Write {about.name}=VALUE.")
        values[about.name] = parse(about, text)
    return values


def find(name: str) -> About:
    """The setting called *name*; `ConfigInvalid` names the nearest one if there is none."""
    if name not in KNOWN:
        raise _unknown(name, list(KNOWN))
    return KNOWN[name]


def _unknown(name: str, known: list[str]) -> ConfigInvalid:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0)
    return ConfigInvalid(name, "is not known", remedy=f"Did you mean {near[0]}? docs/operations.md lists them all.")


def parse(about: About, value: Any) -> Any:
    """*value*, a text or a TOML value, as the setting's own type."""
    try:
        parsed = _convert(about, value)
    except ValueError as error:
        raise ConfigInvalid(about.name, str(error)) from error
    if about.choices and parsed not in about.choices:
        raise ConfigInvalid(about.name, f"{parsed!r} is none of {', '.join(about.choices)}")
    if isinstance(parsed, (int, float)) and not about.least <= parsed <= about.most:
        raise ConfigInvalid(about.name, f"{value!r} is not between {about.least:g} and {about.most:g}")
    return parsed


def _convert(about: About, value: Any) -> Any:
    if about.type is bool:
        return _boolean(value)
    if about.type is str:
        return _text(value)
    if about.type in (int, float):
        return _number(about, value)
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list):
        raise ValueError(f"{value!r} is not a list")
    return tuple(text for item in items if (text := _text(item).strip()))


def _boolean(value: Any) -> bool:
    word = str(value).strip().lower()
    if word in ("true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"{value!r} is neither true nor false")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _number(about: About, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is not a number")
    number = measure(value, about.unit) if isinstance(value, str) else float(value)
    if about.type is float:
        return number
    if number != int(number):
        raise ValueError(f"{value!r} is not a whole number")
    return int(number)
