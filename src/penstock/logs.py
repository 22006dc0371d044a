"""What the server says about itself, on standard error: an event name and keys, never a secret.

    log.info("subscriber.behind", extra={"subscriber": name, "limit": 1000})

    2026-11-15T12:00:00.123Z info    subscriber.behind subscriber=alice limit=1000
    {"time":"2026-11-15T12:00:00.123Z","level":"info","event":"subscriber.behind","subscriber":"alice","limit":1000}

Tokens are replaced by `***` when a line is formatted, so no caller has to think of it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Any

from penstock.settings import DEFAULTS

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has; what else is there came in as `extra`."""

_SECRET_KEYS = frozenset({"authorization", "access_token", "auth", "token", "admin_token", "password", "secret"})

# Three shapes: a header, a query parameter or assignment, and a JWT standing alone. JSON puts a quote
# between name and colon.
_HEADER = re.compile(r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:bearer|basic|webpush|vapid)\s+)?[^\s\"',;]+")
_SCHEME = re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}")
_PARAMETER = re.compile(
    r"(?i)((?<![a-z])(?:access_token|admin_token|auth|token)[\"']?\s*[=:]\s*[\"']?)[^\s&\"',;}\])]+"
)
_JWT = re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*")


def redact(text: str) -> str:
    """*text* with every token replaced by `***`."""
    text = _HEADER.sub(r"\1***", text)
    text = _SCHEME.sub(r"\1***", text)
    text = _PARAMETER.sub(r"\1***", text)
    return _JWT.sub("***", text)


def set_up(format: str = DEFAULTS.logs.format, level: str = DEFAULTS.logs.level) -> None:
    """Send this process's log lines to standard error, in *format* (`human` or `json`)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else HumanFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class HumanFormatter(logging.Formatter):
    """One line for people: time, level, event, then key=value."""

    def format(self, record: logging.LogRecord) -> str:
        pairs = [f"{key}={_shown(value)}" for key, value in keys_of(record).items()]
        line = " ".join([_time(record), f"{record.levelname.lower():<7}", record.getMessage(), *pairs])
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return redact(line)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": _time(record), "level": record.levelname.lower(), "event": redact(record.getMessage())}
        fields |= {key: _clean(value) for key, value in keys_of(record).items()}
        if record.exc_info:
            fields["traceback"] = redact(self.formatException(record.exc_info))
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), default=lambda value: redact(str(value)))


def keys_of(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller passed as `extra`; the value of a key that names a secret is replaced by `***`."""
    extra = {key: value for key, value in vars(record).items() if key not in _OWN}
    return {key: "***" if key.lower() in _SECRET_KEYS else value for key, value in extra.items()}


def _clean(value: Any) -> Any:
    """*value* with tokens taken out of every text in it; the JSON around them stays whole."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {str(key): "***" if str(key).lower() in _SECRET_KEYS else _clean(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(one) for one in value]
    return value


def _shown(value: Any) -> str:
    text = str(value)
    # A value never breaks the line, and never looks like two.
    return json.dumps(text, ensure_ascii=False) if not text or re.search(r"[\s\"=]", text) else text


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
