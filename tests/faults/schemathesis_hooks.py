"""What schemathesis must know to call every operation and come to an end: SCHEMATHESIS_HOOKS names this module."""

from __future__ import annotations

import os
from itertools import count
from typing import Any

import requests
import schemathesis
from requests.adapters import HTTPAdapter

LIVE = ("application/x-ndjson", "text/event-stream")
UNKNOWN = "x-schemathesis-unknown-property"
BACKUPS = os.environ["BACKUPS"]  # a directory: no backup is made anywhere else
_send, _numbers = HTTPAdapter.send, count()


def send_and_leave(self: HTTPAdapter, request: Any, *arguments: Any, **options: Any) -> requests.Response:
    """Take the head of an answer that never ends, and go."""
    response = _send(self, request, *arguments, **{**options, "stream": True})
    if response.headers.get("Content-Type") in LIVE:
        response.close()
        response._content = b""
    return response


HTTPAdapter.send = send_and_leave  # type: ignore[method-assign]


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Headers that nobody knows are passed over, as HTTP has it: to send one more is no violation."""
    return UNKNOWN not in (case.headers or {})


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Do not wait a minute for news, and leave the machine's directories alone."""
    if case.path == "/v1/pipeline/news" and isinstance((case.query or {}).get("wait"), int | float):
        case.query["wait"] = min(case.query["wait"], 0.01)
    if case.path == "/v1/backup" and isinstance(case.body, dict) and str(case.body.get("directory")).startswith("/"):
        case.body["directory"] = f"{BACKUPS}/{next(_numbers)}"
