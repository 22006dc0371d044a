from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import logs

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlLXNpZ25hdHVyZQ"


def record(event: str, *arguments: object, error: bool = False, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord(
        "penstock", logging.INFO, "file.py", 1, event, arguments, sys.exc_info() if error else None
    )
    vars(made).update(extra)
    made.created, made.msecs = 1_763_200_000.643, 643.0
    return made


def test_a_human_line_is_the_event_and_its_keys() -> None:
    line = logs.HumanFormatter().format(record("subscriber.behind", subscriber="alice", limit=1000))

    assert line == "2025-11-15T09:46:40.643Z info    subscriber.behind subscriber=alice limit=1000"


def test_a_json_line_has_the_same_keys() -> None:
    line = logs.JsonFormatter().format(record("subscriber.behind", subscriber="alice", limit=1000))

    assert json.loads(line) == {
        "time": "2025-11-15T09:46:40.643Z",
        "level": "info",
        "event": "subscriber.behind",
        "subscriber": "alice",
        "limit": 1000,
    }


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer {}",
        "authorization: {}",
        "{{'Authorization': 'Bearer {}'}}",
        '{{"authorization":"Bearer {}"}}',
        "GET /subscribe?access_token={}&tid=1",
        "POST http://127.0.0.1/_eventhorizon_push?auth={} failed",
        "token={}",
        "--admin-token: token={}, next",
        "sent Bearer {} to it",
    ],
)
@pytest.mark.parametrize("secret", ["s3cret-Value.of~it", JWT])
def test_a_token_is_never_written(text: str, secret: str) -> None:
    full = text.format(secret)

    for formatter in (logs.HumanFormatter(), logs.JsonFormatter()):
        for line in (formatter.format(record("%s", full)), formatter.format(record("request.failed", detail=full))):
            assert secret not in line
            assert "***" in line


def test_a_jwt_alone_is_taken_out_too() -> None:
    assert logs.redact(f"refused {JWT} twice") == "refused *** twice"


def test_what_stands_around_a_token_stays() -> None:
    assert logs.redact("GET /s?access_token=abc&tid=7 HTTP/1.1") == "GET /s?access_token=***&tid=7 HTTP/1.1"


@pytest.mark.parametrize("text", ["author=kim", "/authors?tokens=3", "auth failed", "Bearer", "the token is old"])
def test_other_words_stay(text: str) -> None:
    assert logs.redact(text) == text


@pytest.mark.parametrize("key", ["token", "Authorization", "access_token", "auth"])
def test_a_key_that_names_a_secret_hides_its_value(key: str) -> None:
    for formatter in (logs.HumanFormatter(), logs.JsonFormatter()):
        assert "hidden-thing" not in formatter.format(record("request", **{key: "hidden-thing"}))
        assert "hidden-thing" not in formatter.format(record("request", headers={key: "hidden-thing"}))


def test_a_traceback_is_redacted() -> None:
    try:
        raise ValueError("bad url /x?token=hidden-thing")
    except ValueError:
        failed = record("request.failed", error=True)

    for formatter in (logs.HumanFormatter(), logs.JsonFormatter()):
        line = formatter.format(failed)
        assert "ValueError: bad url /x?token=***" in line


@given(st.text())
def test_no_value_breaks_a_line(value: str) -> None:
    human = logs.HumanFormatter().format(record("event", key=value))
    machine = logs.JsonFormatter().format(record("event", key=value))

    assert "\n" not in human
    assert "\r" not in human
    assert len(machine.split("\n")) == 1
    assert json.loads(machine)["event"] == "event"


def test_lines_go_to_standard_error_at_the_level_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logs.set_up("human", "warning")
        logging.getLogger("penstock.test").info("quiet")
        logging.getLogger("penstock.test").warning("loud", extra={"disk": 3})
    finally:
        root.handlers[:], root.level = handlers, level

    shown = capsys.readouterr()
    assert shown.out == ""
    assert "quiet" not in shown.err
    assert shown.err.endswith("warning loud disk=3\n")
