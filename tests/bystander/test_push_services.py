"""Push services that answer the sender: whatever one says, the bindings of the others are served, and nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.testing import RunningServer, wait_until
from tests.api.client import publish
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.test_answers import MOST_BYTES, HostileApp, answers_without_limits, hostile_apps
from tests.bystander.test_eventhorizon_catalogue import ANSWERS, hostile_app
from tests.bystander.watching import beside
from tests.doors.push_service import Browser, bind, binding, push_service

SETTINGS = {"webpush_send_timeout": 2, "webpush_send_retry": 0.5}
MESSAGES = 20


def bind_to(server: RunningServer, url: str) -> str:
    return bind(server, Browser().subscription(url), "/orders")


def send_to_all(server: RunningServer, endless: dict[str, HostileApp], others: dict[str, str]) -> None:
    """Bind each of them and an honest one to a stream: each is cut, the honest one gets everything in order."""
    browser = Browser()
    with push_service() as honest:
        bind(server, browser.subscription(honest.endpoint("x")), "/orders")
        bound = {name: bind_to(server, service.url) for name, service in endless.items()}
        bound |= {name: bind_to(server, url) for name, url in others.items()}
        sent = [b"message %d" % number for number in range(MESSAGES)]
        for body in sent:
            publish(server, "/orders", body)
        wait_until(lambda: all(service.ended for service in endless.values()))
        wait_until(lambda: len(honest.taken) >= MESSAGES)
        assert [browser.read(push.body) for push in honest.taken] == sent
    assert {name: one.most for name, one in endless.items() if one.most > MOST_BYTES} == {}
    for one in bound.values():  # each has been tried, and has its own word for it
        wait_until(lambda one=one: (shown := binding(server, one))["error"] or shown["sent"])
    assert {name for name in endless if "answer" not in binding(server, bound[name])["error"]} == set()


def attack(data: Path, sabotage: Callable[[], None] | None, *names: str) -> None:
    with start_sabotaged(data, sabotage, **SETTINGS) as server, hostile_apps(*names) as endless, ExitStack() as stack:
        others = {
            f"{name}, {'held' if hold else 'closed'}": stack.enter_context(hostile_app(answer, hold))
            for name, answer in (ANSWERS.items() if not names else ())
            for hold in (False, True)
        }
        with beside(server) as bystander:
            send_to_all(server, endless, others)
        bystander.noticed_nothing()
        assert "Traceback" not in server.log_text()


def test_no_answer_of_a_push_service_delays_anybody(tmp_path: Path) -> None:
    attack(tmp_path / "data", None)


def test_answers_without_limits_are_noticed_here_too(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        attack(tmp_path / "data", answers_without_limits, "a header")
