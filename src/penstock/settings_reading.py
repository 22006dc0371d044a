"""Where the values of settings come from.

Later sources win:

    the default in `settings.py`  <  a TOML file  <  PENSTOCK_SECTION_NAME  <  --set section.name=value

Numbers may carry a unit: `30s` or `24h` where seconds are meant, `4MiB` where bytes are meant. A list is written
with commas.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from penstock.errors import ConfigInvalid
from penstock.settings import ROLES, LogSettings, ServerSettings, Settings, TrickleSettings
from penstock.units import measure, parse_address, parse_keep, parse_workers


@dataclass(frozen=True, slots=True)
class SettingDescription:
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


def _describe() -> dict[str, SettingDescription]:
    described = {}
    for section in fields(Settings):
        types = get_type_hints(type(section.default))
        for one in fields(type(section.default)):  # type: ignore[arg-type]
            name = f"{section.name}.{one.name}"
            described[name] = SettingDescription(name, types[one.name], one.default, **one.metadata)
    return described


KNOWN: Mapping[str, SettingDescription] = _describe()
"""Every setting by its name, in the order of `settings.py`."""

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
    _check_roles(server)
    _check_engine(settings.log)
    parse_keep(settings.log.keep)
    parse_workers(settings.server.workers)
    _check_server_name(settings.eventhorizon.server)
    _check_trickle(settings.trickle, server)


def _check_engine(log: LogSettings) -> None:
    if log.engine not in ("sqlite", "memory") and not log.engine.startswith(("nats://", "unix:/")):
        raise ConfigInvalid("log.engine", f"{log.engine!r} is none of sqlite, memory, nats://…, unix:/…")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", log.prefix):
        raise ConfigInvalid("log.prefix", f"{log.prefix!r} is not 1 to 64 letters, digits, - and _")


def _check_server_name(server: str) -> None:
    # It is the part of every cursor after the last colon, and cursors stand in URLs, lines and lists with commas.
    if not re.fullmatch(r"[A-Za-z0-9._~-]{1,255}", server):
        raise ConfigInvalid(
            "eventhorizon.server",
            f"{server[:40]!r} is not 1 to 255 letters, digits, '.', '-', '_' and '~'",
            remedy="Write a host's name or IPv4 address; it is part of every cursor for ever.",
        )


def _check_roles(server: ServerSettings) -> None:
    for role in server.roles:
        if role not in ROLES:
            raise ConfigInvalid("server.roles", f"there is no role {role!r}", remedy=f"Known: {', '.join(ROLES)}.")
    if server.internal_listen:
        parse_address(server.internal_listen)


def _check_trickle(trickle: TrickleSettings, server: ServerSettings) -> None:
    if not (trickle.base.startswith("/") and trickle.base.endswith("/") and "*" not in trickle.base):
        raise ConfigInvalid("trickle.base", f"{trickle.base!r} does not begin and end with a slash")
    if trickle.missing_status not in (404, 470):
        raise ConfigInvalid("trickle.missing_status", "is neither 470 nor 404")
    host = parse_address(server.listen)[0]
    if trickle.open and not (host.startswith("127.") or host in ("::1", "localhost")):
        raise ConfigInvalid("trickle.open", f"is for local use, but {host} is not a loopback address")


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


def find(name: str) -> SettingDescription:
    """The setting called *name*; `ConfigInvalid` names the nearest one if there is none."""
    if name not in KNOWN:
        raise _unknown(name, list(KNOWN))
    return KNOWN[name]


def _unknown(name: str, known: list[str]) -> ConfigInvalid:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0)
    return ConfigInvalid(name, "is not known", remedy=f"Did you mean {near[0]}? docs/operations.md lists them all.")


def parse(about: SettingDescription, value: Any) -> Any:
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


def _convert(about: SettingDescription, value: Any) -> Any:
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


def _number(about: SettingDescription, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is not a number")
    number = measure(value, about.unit) if isinstance(value, str) else float(value)
    if about.type is float:
        return number
    if number != int(number):
        raise ValueError(f"{value!r} is not a whole number")
    return int(number)
