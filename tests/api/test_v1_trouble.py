"""What is in trouble, by reason, and trying it again: what can be is, what cannot be is counted with the reason."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.doors.webpush_sender.binding import Binding
from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import Reply, ask, publish
from tests.api.test_v1_recipients import SLOW_RETRIES, actions
from tests.bystander.sabotaged import start_sabotaged
from tests.doors.eventhorizon_client import Model, add_pusher, append, create, scripted, subscribe
from tests.doors.push_service import Browser, Push, bind, push_service

ODD = "/trouble/<img-src=x"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("trouble") / "data", **SLOW_RETRIES) as running:
        yield running


def trouble(server: RunningServer, **params: object) -> dict[str, Any]:
    reply = ask(server, "GET", "/v1/trouble", **params)
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json
    return found


def redrive(server: RunningServer, **wanted: object) -> Reply:
    return ask(server, "POST", "/v1/trouble/redrive", json.dumps(wanted).encode())


def states(server: RunningServer, recipient: str) -> list[str]:
    return [one["state"] for one in trouble(server, search=recipient)["troubles"] if one["recipient"] == recipient]


def test_what_a_push_service_refused_is_grouped_by_reason_and_sent_once_more_on_demand(server: RunningServer) -> None:
    answer = [400]
    with push_service(lambda push: answer[0]) as service:
        browser = Browser()
        id = bind(server, browser.subscription(service.endpoint("refusing")), ODD, ttl=600)
        for number in range(3):
            publish(server, ODD, b"%d" % number)
        wait_until(lambda: states(server, id) == ["dropped"] * 3)
        found = trouble(server, search=id)
        [group] = found["groups"]
        assert (group["state"], group["door"], group["count"], group["recipients"]) == ("dropped", "webpush", 3, 1)
        assert "400" in group["reason"]
        assert len(group["examples"]) == 3
        one = found["troubles"][-1]
        answer[0] = 201
        reply = redrive(server, recipient=id, entry=one["first"])
        assert (reply.json["redriven"], reply.json["impossible"]) == (1, {})
        wait_until(lambda: [browser.read(push.body) for push in service.taken] == [b"0"])
        wait_until(lambda: states(server, id) == ["dropped"] * 2)
        assert redrive(server, reason=group["reason"], search="no such stream", all=True).json["redriven"] == 0
        assert redrive(server, reason=group["reason"], state="dropped", search=ODD).json["redriven"] == 2
        wait_until(lambda: {browser.read(push.body) for push in service.taken} == {b"0", b"1", b"2"})
        wait_until(lambda: states(server, id) == [])
        publish(server, ODD, b"next")  # and it goes on where it was
        wait_until(lambda: browser.read(service.taken[-1].body) == b"next")
        assert len(service.taken) == 4
    said = actions(server)[-1]
    assert (said["action"], said["by"], said["query"]["reason"]) == ("redrive", "admin", group["reason"])


def test_an_app_that_failed_or_was_gone_is_pushed_to_again(server: RunningServer) -> None:
    create(server, "/_sub/again", "/again")
    subscribe(server, "/again", "/_sub/again")
    model, status = Model("/_sub/again"), [200]

    def decide(request: dict[str, Any]) -> Any:
        return model(request) if status[0] == 200 or not request["Push"]["Lines"] else (status[0], "")

    with scripted(decide) as app:
        add_pusher(server, app.url)
        status[0] = 500
        append(server, "/again", "1")
        wait_until(lambda: states(server, "/_sub/again") == ["retried"])
        status[0] = 200
        assert redrive(server, door="eventhorizon", recipient="/_sub/again").json["redriven"] == 1
        wait_until(lambda: model.applied.get("/again") == ["1"])
        wait_until(lambda: states(server, "/_sub/again") == [])
        status[0] = 410
        append(server, "/again", "2")
        wait_until(lambda: states(server, "/_sub/again") == ["dead"])
        status[0] = 200
        assert redrive(server, state="dead", recipient="/_sub/again").json["redriven"] == 1
        wait_until(lambda: model.applied.get("/again") == ["1", "2"])
        wait_until(lambda: states(server, "/_sub/again") == [])


def test_what_cannot_be_tried_again_is_said_and_counted(server: RunningServer) -> None:
    with push_service(lambda push: 410) as service:
        id = bind(server, Browser().subscription(service.endpoint("gone")), "/gone", ttl=600)
        publish(server, "/gone", b"1")
        wait_until(lambda: states(server, id) == ["dead"])
        reply = redrive(server, recipient=id)

        assert reply.json["redriven"] == 0
        [(why, count)] = reply.json["impossible"].items()
        assert ("gone" in why, count) == (True, 1)
        assert states(server, id) == ["dead"]


def test_what_is_too_large_for_any_push_is_not_held_for_another_try(server: RunningServer) -> None:
    with push_service(lambda push: 413) as service:
        id = bind(server, Browser().subscription(service.endpoint("large")), "/large", ttl=600)
        publish(server, "/large", b"x" * 100_000)
        publish(server, "/large", b"small")
        wait_until(lambda: states(server, id) == ["dropped"] * 2)
        tried = len(service.pushes)
        done = redrive(server, recipient=id).json

        assert done["redriven"] == 1
        assert done["impossible"] == {"the body is gone, or larger than a push message may be": 1}
        wait_until(lambda: len(service.pushes) == tried + 1)


def check_that_a_crash_forgets_no_trouble(folder: Path, sabotage: Callable[[], None] | None) -> None:
    """A redrive is under way when the server is killed: what it was about is in trouble as before, and tried again."""
    answer, held = [400], threading.Event()

    def decide(push: Push) -> int:
        if answer[0] == 0:
            held.wait(20)  # it has come, and nothing is answered while the server lives
        return answer[0] or 500

    with start_sabotaged(folder / "data", sabotage, **SLOW_RETRIES) as server, push_service(decide) as service:
        id = bind(server, Browser().subscription(service.endpoint("crash")), "/crash", ttl=600)
        publish(server, "/crash", b"1")
        wait_until(lambda: states(server, id) == ["dropped"])
        answer[0] = 0
        assert redrive(server, recipient=id).json["redriven"] == 1
        wait_until(lambda: len(service.pushes) == 2)
        trouble(server)  # whatever was recorded of the redrive is on the disk
        server.kill()
        held.set()
        server.restart()
        assert states(server, id) == ["dropped"]
        answer[0] = 201
        assert redrive(server, recipient=id).json["redriven"] == 1
        wait_until(lambda: states(server, id) == [])
        assert len(service.taken) == 1


def test_a_redrive_that_a_crash_forgets_is_still_in_trouble(tmp_path: Path) -> None:
    check_that_a_crash_forgets_no_trouble(tmp_path, None)


def count_on_it() -> None:
    """The sabotage: what is redriven is recorded as sent before it is."""
    honest = Binding.redrive

    def redrive_and_record(self, entries):
        for entry in entries:
            self._context.ledger.record(self.who, "sent", entry.stream, entry.id, entry.id)
        honest(self, entries)

    Binding.redrive = redrive_and_record


def test_a_redrive_that_is_recorded_before_it_is_done_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="dropped"):
        check_that_a_crash_forgets_no_trouble(tmp_path, count_on_it)


def test_a_redrive_must_say_what(server: RunningServer) -> None:
    before = len(actions(server))

    assert redrive(server).code == "input_invalid"
    assert redrive(server, state="sent").status == redrive(server, state="dead", cat=1).status == 400
    assert redrive(server, entry=2**63).status == 400
    assert len(actions(server)) == before
    assert redrive(server, all=True, state="lost").json["redriven"] == 0
    assert len(actions(server)) == before + 1
