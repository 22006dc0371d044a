"""Managed pushers and apps of all kinds: the dialogue of the protocol, and what the original got wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from penstock.api.auth import Authenticator, Caller, SigningKeys, open_keys
from penstock.api.context import Context
from penstock.core.clock import ManualClock
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.doors.eventhorizon.local_source import LocalSource
from penstock.doors.eventhorizon.subscriptions import Subscriptions
from penstock.engines.memory import MemoryEngine
from penstock.errors import Forbidden
from penstock.http.timers import Wheel
from penstock.testing import RunningServer, start_server, wait_until
from penstock.values import Batch, Draft
from penstock.wire.eventhorizon import Cursor
from tests.api.client import ask, publish
from tests.doors.eventhorizon_client import (
    Answer,
    Model,
    add_pusher,
    append,
    call,
    create,
    lines,
    offsets,
    pusher,
    scripted,
    subscribe,
)

NO_KEYS = SigningKeys(Path(), ())
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {
        "eventhorizon_activity_interval": 0.05,
        "eventhorizon_push_retry": 0.05,
        "eventhorizon_push_retry_longest": 0.2,
        "eventhorizon_push_repeat": 0.3,
        "eventhorizon_push_timeout": 1,
        "eventhorizon_push_slots": 4,
    }
    with start_server(tmp_path_factory.mktemp("pusher") / "data", **settings) as running:
        yield running


@pytest.fixture
def name(server: RunningServer) -> str:
    """A name of the test's own; the subscription `/_sub/NAME` exists."""
    made = f"t{next(_numbers)}"
    create(server, f"/_sub/{made}")
    return made


def stream(server: RunningServer, name: str, *suffixes: str) -> list[str]:
    """Streams that the test's subscription covers."""
    names = [f"/{name}-{suffix}" for suffix in suffixes]
    create(server, *names)
    for one in names:
        subscribe(server, one, f"/_sub/{name}")
    return names


def test_the_dialogue_of_the_protocols_description_with_the_offsets_a_writer_gives(
    server: RunningServer,
) -> None:
    # Given the streams of the description, written by us, so with the offsets that follow from the texts
    sub, data = "/_sub/example-sub", "/sampledata"
    create(server, sub, data)
    subscribe(server, data, sub)
    wait_until(lambda: len(lines(server, f"{sub}:0:0")) == 2)
    for count, day in enumerate(["Mon Mar 27 16:55:02", "Mon Mar 27 18:10:24", "Mon Mar 27 18:23:08"], 3):
        append(server, data, f"{day} UTC 2017")
        wait_until(lambda count=count: len(lines(server, f"{sub}:0:0")) == count)
    assert offsets(lines(server, f"{data}:0:0")) == [65, 149, 179, 209, 239]
    assert offsets(lines(server, f"{sub}:0:0")) == [65, 164, 263, 362, 461]

    with scripted(Model(sub)) as app:
        id = add_pusher(server, app.url)
        wait_until(lambda: len(app.requests) >= 5 and pusher(server, id)["lag_bytes"] == 0)
        ask(server, "DELETE", f"/v1/pushers/{id}")
    # Then the dialogue is that of the description, request by request
    whole_sub, whole_data = lines(server, f"{sub}:0:0"), lines(server, f"{data}:0:0")
    first = whole_sub[0]["PtrAfter"]
    assert app.requests[:5] == [
        {"SubscriptionId": "_query_", "Push": {"FromOffset": "/:-1:-1", "Lines": []}},
        {"SubscriptionId": sub, "Push": {"FromOffset": f"{sub}:-1:-1", "Lines": []}},
        {"SubscriptionId": sub, "Push": {"FromOffset": f"{sub}:0:0:127.0.0.1", "Lines": whole_sub}},
        {"SubscriptionId": sub, "Push": {"FromOffset": f"{data}:0:0:127.0.0.1", "Lines": whole_data}},
        {"SubscriptionId": sub, "Push": {"FromOffset": first, "Lines": whole_sub[1:]}},
    ]
    assert app.bodies[0] == b'{"SubscriptionId":"_query_","Push":{"FromOffset":"/:-1:-1","Lines":[]}}'


def test_an_append_reaches_an_idle_app_without_waiting_for_the_next_announcement(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("idle")
    with start_server(folder / "data", eventhorizon_activity_interval=600) as server:
        create(server, "/_sub/idle", "/idle")
        subscribe(server, "/idle", "/_sub/idle")
        model = Model("/_sub/idle")
        with scripted(model) as app:
            add_pusher(server, app.url)
            wait_until(lambda: len(app.requests) >= 3)
            append(server, "/idle", "now")
            wait_until(lambda: model.applied.get("/idle") == ["now"])


def test_long_streams_are_pushed_in_pages_and_then_nothing_more(server: RunningServer, name: str) -> None:
    [one] = stream(server, name, "long")
    for begin in range(0, 2498, 1000):
        append(server, one, *map(str, range(begin, min(begin + 1000, 2498))))
    model = Model(f"/_sub/{name}")
    with scripted(model) as app:
        add_pusher(server, app.url)
        wait_until(lambda: len(model.applied.get(one, [])) == 2498)

        assert [len(push["Lines"]) for push in app.pushes(one)] == [1000, 1000, 500]
        assert model.applied[one] == [*map(str, range(2498))]


def test_seven_streams_that_are_behind_are_all_delivered(server: RunningServer, name: str) -> None:
    names = stream(server, name, *map(str, range(7)))
    for one in names:
        append(server, one, "a", "b")
    model = Model(f"/_sub/{name}")
    running, most, seen = set[str](), [0], list[str]()
    lock = threading.Lock()

    def decide(request: dict[str, Any]) -> Answer:
        which = request["Push"]["FromOffset"].split(":")[0]
        with lock:
            assert which not in running
            running.add(which)
            most[0] = max(most[0], len(running))
            seen.append(which)
        answer = model(request)
        with lock:
            running.discard(which)
        return answer

    with scripted(decide) as app:
        add_pusher(server, app.url)
        wait_until(lambda: all(model.applied.get(one) == ["a", "b"] for one in names))
        assert most[0] <= 4
        assert set(names) <= set(seen)
        assert len(app.requests) > 7


def test_a_rotation_in_the_middle_is_followed(server: RunningServer, name: str) -> None:
    [one] = stream(server, name, "rotated")
    for _ in range(9):
        append(server, one, *(["x" * 1022] * 1000))
    append(server, one, "after")
    model = Model(f"/_sub/{name}")
    with scripted(model) as app:
        add_pusher(server, app.url)
        wait_until(lambda: model.applied.get(one, [])[-1:] == ["after"])

        pushes = app.pushes(one)
        [sealing] = [push for push in pushes if push["Lines"][-1]["MetaType"] == "Rotated"]
        following = pushes[pushes.index(sealing) + 1]
        assert following["FromOffset"] == f"{one}:1:0:127.0.0.1"
        assert len(model.applied[one]) == 9001


# ── what the original gets wrong ───────────────────────────────────────────────────────────────


def test_the_subscription_is_read_again_after_its_end(server: RunningServer, name: str) -> None:  # defects i, ii
    """A stream whose hint nobody got is found through the subscription's own stream."""
    model = Model(f"/_sub/{name}")
    with scripted(model) as app:
        add_pusher(server, app.url)
        wait_until(lambda: model.offsets.get(f"/_sub/{name}"))
        names = stream(server, name, "a", "b")  # subscribed after the pusher began
        for one in names:
            append(server, one, "x")
        wait_until(lambda: all(model.applied.get(one) == ["x"] for one in names))
        at = lines(server, f"/_sub/{name}:0:0")[-1]["PtrAfter"]
        wait_until(lambda: model.offsets[f"/_sub/{name}"] >= at)
        assert app.requests


def test_a_hung_app_is_given_up_on_and_tried_again(server: RunningServer, name: str) -> None:  # defect vii
    [one] = stream(server, name, "hung")
    append(server, one, "x")
    model, released, hung = Model(f"/_sub/{name}"), threading.Event(), threading.Event()

    def decide(request: dict[str, Any]) -> Answer:
        if request["Push"]["FromOffset"].startswith(one) and not hung.is_set():
            hung.set()
            released.wait(20)
        return model(request)

    with scripted(decide) as app:
        id = add_pusher(server, app.url)
        wait_until(hung.is_set)
        wait_until(lambda: "no answer within 1 s" in pusher(server, id)["error"])
        wait_until(lambda: model.applied.get(one) == ["x"])
        released.set()
        assert model.applied == {one: ["x"]}


def test_streams_that_fail_do_not_hold_up_the_others(server: RunningServer, name: str) -> None:  # defect vi
    bad = stream(server, name, *(f"bad{number}" for number in range(6)))
    [good] = stream(server, name, "good")
    for one in bad:
        append(server, one, "poison")
    model = Model(f"/_sub/{name}")

    def decide(request: dict[str, Any]) -> Answer:
        if request["Push"]["FromOffset"].split(":")[0] in bad and request["Push"]["Lines"]:
            return 400, b"the handler failed"
        return model(request)

    with scripted(decide) as app:
        id = add_pusher(server, app.url)
        wait_until(lambda: sum(len(app.pushes(one)) for one in bad) >= 12)
        append(server, good, "x")
        wait_until(lambda: model.applied.get(good) == ["x"])
        shown = pusher(server, id)
        assert (shown["state"], "400: the handler failed" in shown["error"]) == ("failing", True)
        assert shown["behind"] >= 6


@pytest.mark.parametrize(
    "bad",
    [
        (200, {"Code": "no_idea"}),  # the original crashes
        (200, b"<html>not json</html>"),
        (200, b""),
        (200, {"Code": "success", "AcceptedOffset": "/another:0:0", "BehindCursors": []}),
        (200, {"Code": "success", "AcceptedOffset": "?", "BehindCursors": []}),
        (200, {"Code": "incorrect_subscription_id", "CorrectSubscriptionId": "nothing"}),
        (200, {"Code": "success", "AcceptedOffset": "", "BehindCursors": ["/_ledger:0:0"]}),
        (201, {"Code": "success"}),
        (204, b""),
        (301, b"", {"Location": "http://127.0.0.1:1/"}),
        (404, b"no such path"),
        (500, b"broken"),
        (503, b"later", {"Retry-After": "0"}),
        (200, b"x" * 2_000_000),
    ],
    ids=lambda answer: f"{answer[0]}-{str(answer[1])[:30]}",
)
def test_a_wrong_answer_is_shown_and_the_push_tried_again(server: RunningServer, name: str, bad: Answer) -> None:
    [one] = stream(server, name, "retried")
    append(server, one, "x")
    model = Model(f"/_sub/{name}")
    left = [3]

    def decide(request: dict[str, Any]) -> Answer:
        if request["Push"]["Lines"] and left[0]:
            left[0] -= 1
            return bad
        return model(request)

    with scripted(decide) as app:
        id = add_pusher(server, app.url)
        wait_until(lambda: model.applied.get(one) == ["x"])
        shown = pusher(server, id)
        assert (shown["failures"], bool(shown["error"])) == (3, True)
        wait_until(lambda: pusher(server, id)["state"] == "pushing")
        assert app.requests


def test_an_app_that_is_not_there_yet_is_waited_for(server: RunningServer, name: str) -> None:
    [one] = stream(server, name, "late")
    append(server, one, "x")
    model = Model(f"/_sub/{name}")
    with scripted(model) as app:
        url = app.url
    id = add_pusher(server, url)
    wait_until(lambda: pusher(server, id)["failures"] >= 2)
    assert "no connection" in pusher(server, id)["error"]
    with scripted(model, port=int(url.split(":")[2].split("/")[0])):
        wait_until(lambda: model.applied.get(one) == ["x"])


def test_one_dead_app_does_not_delay_another(server: RunningServer, name: str) -> None:
    [one] = stream(server, name, "alive")
    dead = f"{name}x"
    create(server, f"/_sub/{dead}")
    subscribe(server, one, f"/_sub/{dead}")
    released = threading.Event()

    def hang(request: dict[str, Any]) -> Answer:
        released.wait(20)
        return 500, b""

    model = Model(f"/_sub/{name}")
    with scripted(hang) as bad, scripted(model) as good:
        first = add_pusher(server, bad.url)
        add_pusher(server, good.url)
        wait_until(lambda: bad.requests)
        for number in range(20):
            append(server, one, str(number))
        wait_until(lambda: model.applied.get(one) == [*map(str, range(20))])
        assert pusher(server, first)["lines"] == 0
        released.set()


def test_retry_after_is_heeded(server: RunningServer, name: str) -> None:
    [one] = stream(server, name, "patient")
    append(server, one, "x")
    model, times = Model(f"/_sub/{name}"), list[float]()

    def decide(request: dict[str, Any]) -> Answer:
        if request["Push"]["FromOffset"].startswith(one) and request["Push"]["Lines"]:
            times.append(time.monotonic())
            if len(times) == 1:
                return 503, b"", {"Retry-After": "1"}
        return model(request)

    with scripted(decide) as app:
        add_pusher(server, app.url)
        wait_until(lambda: model.applied.get(one) == ["x"])
    # The first retry would come after 25 to 50 ms
    assert times[1] - times[0] >= 0.9


def test_an_app_that_says_410_is_left_alone_until_somebody_resumes_it(server: RunningServer, name: str) -> None:
    [one] = stream(server, name, "gone")
    append(server, one, "x")
    model, gone = Model(f"/_sub/{name}"), [True]

    def decide(request: dict[str, Any]) -> Answer:
        return (410, b"never again") if gone[0] and request["Push"]["Lines"] else model(request)

    with scripted(decide) as app:
        id = add_pusher(server, app.url)
        wait_until(lambda: pusher(server, id)["state"] == "gone")
        count = len(app.requests)
        append(server, one, "y")
        wait_until(lambda: len(lines(server, f"/_sub/{name}:0:0")) >= 3)
        assert len(app.requests) == count

        gone[0] = False
        assert ask(server, "POST", f"/v1/pushers/{id}/resume").status == 200
        wait_until(lambda: model.applied.get(one) == ["x", "y"])


def test_an_app_that_changes_its_id_is_followed(server: RunningServer, name: str) -> None:
    other = f"{name}b"
    create(server, f"/_sub/{other}")
    [one] = stream(server, name, "first")
    [two] = stream(server, other, "second")
    model = Model(f"/_sub/{name}")
    with scripted(lambda request: model(request)) as app:
        id = add_pusher(server, app.url)
        append(server, one, "x")
        wait_until(lambda: model.applied.get(one) == ["x"])
        model = Model(f"/_sub/{other}")
        append(server, one, "y")
        append(server, two, "z")
        wait_until(lambda: model.applied.get(two) == ["z"])
        assert pusher(server, id)["subscription"] == f"/_sub/{other}"


def test_an_app_whose_database_was_set_back_gets_the_lines_again(server: RunningServer, name: str) -> None:
    [one] = stream(server, name, "back")
    append(server, one, "x", "y")
    model = Model(f"/_sub/{name}")
    with scripted(lambda request: model(request)) as app:
        add_pusher(server, app.url)
        wait_until(lambda: model.applied.get(one) == ["x", "y"])
        model = Model(f"/_sub/{name}")
        append(server, one, "z")
        wait_until(lambda: model.applied.get(one) == ["x", "y", "z"])


def test_an_app_cannot_ask_for_streams_it_was_not_told_of(server: RunningServer, name: str) -> None:
    publish(server, "/secret", b"hidden")
    [one] = stream(server, name, "honest")
    model = Model(f"/_sub/{name}")

    def decide(request: dict[str, Any]) -> Answer:
        status, answer = model(request)[:2]
        if answer.get("Code") == "success":
            answer["BehindCursors"] = [*answer["BehindCursors"], "/secret:0:0:?"]
        return status, answer

    with scripted(decide) as app:
        id = add_pusher(server, app.url)
        append(server, one, "x")
        wait_until(lambda: "of which it was not told" in pusher(server, id)["error"])
        assert app.pushes("/secret") == []
        assert not any("/secret" in request["Push"]["FromOffset"] for request in app.requests)


# ── looking after them ─────────────────────────────────────────────────────────────────────────


def test_a_pusher_is_paused_resumed_and_deleted(server: RunningServer, name: str) -> None:
    [one] = stream(server, name, "managed")
    model = Model(f"/_sub/{name}")
    with scripted(model) as app:
        id = add_pusher(server, app.url)
        append(server, one, "x")
        wait_until(lambda: model.applied.get(one) == ["x"])
        assert ask(server, "POST", f"/v1/pushers/{id}/pause").json["state"] == "paused"
        append(server, one, "y")
        at = lines(server, f"{one}:0:0")[-1]["PtrAfter"]
        wait_until(lambda: at in str(lines(server, f"/_sub/{name}:0:0")))
        assert model.applied[one] == ["x"]

        assert ask(server, "POST", f"/v1/pushers/{id}/resume").status == 200
        wait_until(lambda: model.applied.get(one) == ["x", "y"])
        assert id in [shown["id"] for shown in ask(server, "GET", "/v1/pushers").json["pushers"]]
        assert ask(server, "DELETE", f"/v1/pushers/{id}").status == 204
        assert ask(server, "GET", f"/v1/pushers/{id}").status == 404
        assert id not in [shown["id"] for shown in ask(server, "GET", "/v1/pushers").json["pushers"]]


def test_pushers_and_subscriptions_outlive_the_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("restart")
    with start_server(folder / "data", eventhorizon_activity_interval=0.05) as server:
        create(server, "/_sub/r", "/r")
        subscribe(server, "/r", "/_sub/r")
        model = Model("/_sub/r")
        with scripted(model) as app:
            id = add_pusher(server, app.url)
            paused = add_pusher(server, app.url)
            ask(server, "POST", f"/v1/pushers/{paused}/pause")
            append(server, "/r", "before")
            wait_until(lambda: model.applied.get("/r") == ["before"])
            server.kill()
            server.restart()
            append(server, "/r", "after")
            wait_until(lambda: model.applied.get("/r") == ["before", "after"])
            assert (pusher(server, id)["state"], pusher(server, paused)["state"]) == ("pushing", "paused")


def test_the_list_shows_neither_the_apps_token_nor_its_secret(server: RunningServer, name: str) -> None:
    secret = "whsec_" + b64encode(b"k" * 32).decode()
    with scripted(Model(f"/_sub/{name}")) as app:
        id = add_pusher(server, app.url, secret=secret)
        shown = ask(server, "GET", f"/v1/pushers/{id}").body.decode()
        assert "8c382056" not in shown
        assert secret.removeprefix("whsec_") not in shown
        assert json.loads(shown)["signed"] is True
        assert "8c382056" not in server.log_text()


def test_pushes_are_signed_as_the_standard_says(server: RunningServer, name: str) -> None:
    secret = "whsec_" + b64encode(b"k" * 32).decode()
    [one] = stream(server, name, "signed")
    append(server, one, "x")
    model = Model(f"/_sub/{name}")
    failed = list[str]()

    def decide(request: dict[str, Any]) -> Answer:
        if request["Push"]["Lines"] and request["Push"]["FromOffset"].startswith(one) and not failed:
            failed.append("once")
            return 500, b""
        return model(request)

    with scripted(decide) as app:
        add_pusher(server, app.url, secret=secret)
        wait_until(lambda: model.applied.get(one) == ["x"])
        for headers, body in zip(app.headers, app.bodies, strict=True):
            Webhook(secret).verify(body, headers)
        retried = [
            headers["webhook-id"]
            for headers, request in zip(app.headers, app.requests, strict=True)
            if request["Push"]["Lines"] and request["Push"]["FromOffset"].startswith(one)
        ]
        assert len(retried) >= 2
        assert len(set(retried)) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"url": "ftp://127.0.0.1/"},
        {"url": "http://"},
        {"url": "http://user:password@127.0.0.1/"},
        {"url": "http://127.0.0.1:99999/"},
        {"url": "http://127.0.0.1/ x"},
        {"url": "http://127.0.0.1/\r\nX: y"},
        {"url": "http://127.0.0.1/", "secret": "short"},
        {"url": "http://127.0.0.1/", "sekret": "whsec_"},
        {"url": 7},
    ],
)
def test_a_pusher_that_cannot_be_is_refused(server: RunningServer, fields: dict[str, object]) -> None:
    assert call(server, "/v1/pushers", **fields).status == 400


def test_private_addresses_are_refused_unless_the_admin_allows_them(server: RunningServer, name: str) -> None:
    token = open_keys(server.data).issue("app", grants=("pushers",))
    nobody = open_keys(server.data).issue("app2")
    with scripted(Model(f"/_sub/{name}")) as app:
        made = call(server, "/v1/pushers", token, url=app.url)
        assert made.status == 201
        id = made.json["id"]
        wait_until(lambda: "which is private" in pusher(server, id)["error"])
        assert app.requests == []
        assert call(server, "/v1/pushers", token, url=app.url, allow_private=True).status == 403
        assert call(server, "/v1/pushers", nobody, url=app.url).status == 403
        # Everybody sees the own ones only
        assert [shown["id"] for shown in ask(server, "GET", "/v1/pushers", token=token).json["pushers"]] == [id]
        mine = add_pusher(server, app.url)
        assert ask(server, "GET", f"/v1/pushers/{mine}", token=token).status == 404
        assert ask(server, "DELETE", f"/v1/pushers/{mine}", token=token).status == 404


async def test_a_pusher_reads_what_its_owner_may_read() -> None:
    async with MemoryEngine(node="n", server="s", clock=ManualClock()) as engine:
        for name in ("/mine", "/other"):
            await engine.log.append(Batch((Draft(name, b"x"),)))
        clock, ledger = ManualClock(), Ledger(engine.log, ManualClock(), node="n")
        async with Hub(engine.log) as hub:
            context = Context(
                engine.log, engine.mailbox, engine.registry, engine.bus, hub, ledger, Authenticator(NO_KEYS, "t"),
                clock,
                Wheel(asyncio.get_running_loop()), 0,
            )  # fmt: skip
            source = LocalSource(
                context, Subscriptions(engine.log, engine.registry), Caller("app", subscribe=("/mine",))
            )
            assert [line.content for line in (await source.read(Cursor("/mine", 0, 0))).lines][1:] == ["x"]
            with pytest.raises(Forbidden):
                await source.read(Cursor("/other", 0, 0))


# ── what the ledger says ───────────────────────────────────────────────────────────────────────


def test_why_answers_for_an_app(server: RunningServer, name: str) -> None:
    [one, late] = stream(server, name, "why", "late")
    id = f"/_sub/{name}"
    model, failing = Model(id), [True]

    def decide(request: dict[str, Any]) -> Answer:
        if failing[0] and request["Push"]["Lines"] and request["Push"]["FromOffset"].startswith(late):
            return 500, b""
        return model(request)

    with scripted(decide) as app:
        add_pusher(server, app.url)
        reached = publish(server, one, b"x").json["id"]
        waiting = publish(server, late, b"x").json["id"]
        wait_until(lambda: model.applied.get(one) == ["x"])
        wait_until(lambda: why(server, reached, id) == "acked")
        wait_until(lambda: why(server, waiting, id) == "retried")
        failing[0] = False
        wait_until(lambda: why(server, waiting, id) == "acked")
        assert app.requests


def test_an_app_that_took_the_lines_and_whose_answer_was_lost_has_acknowledged_them(
    server: RunningServer, name: str
) -> None:
    [one] = stream(server, name, "unheard")
    model = Model(f"/_sub/{name}")
    lost = threading.Event()

    def decide(request: dict[str, Any]) -> Answer:
        answer = model(request)
        if model.applied.get(one) and not lost.is_set():
            lost.set()
            return 500, b""
        return answer

    with scripted(decide) as app:
        id = publish(server, one, b"x").json["id"]
        add_pusher(server, app.url)
        wait_until(lambda: why(server, id, f"/_sub/{name}") == "acked")
        assert model.applied[one] == ["x"]


def test_why_says_dead_after_410(server: RunningServer, name: str) -> None:
    [one] = stream(server, name, "dead")
    entry = publish(server, one, b"x").json["id"]
    model = Model(f"/_sub/{name}")

    def decide(request: dict[str, Any]) -> Answer:
        return (
            (410, b"") if request["Push"]["FromOffset"].startswith(one) and request["Push"]["Lines"] else model(request)
        )

    with scripted(decide) as app:
        id = add_pusher(server, app.url)
        wait_until(lambda: pusher(server, id)["state"] == "gone")
        assert why(server, entry, f"/_sub/{name}") == "dead"
        assert app.requests


def why(server: RunningServer, entry: int, recipient: str) -> str:
    verdict: str = ask(server, "GET", "/v1/why", entry=entry, recipient=recipient).json["verdict"]
    return verdict


def test_pushers_are_listed_in_pages(server: RunningServer) -> None:
    token = open_keys(server.data).issue("many", grants=("pushers",), subscribe=("/_sub/many",))
    made = {call(server, "/v1/pushers", token, url=f"http://203.0.113.1/{number}").json["id"] for number in range(5)}
    found, after, more = [], "", True
    while more:
        page = ask(server, "GET", "/v1/pushers", token=token, limit=2, after=after).json
        assert 0 < len(page["pushers"]) <= 2
        found += [one["id"] for one in page["pushers"]]
        after, more = found[-1], page["more"]
    for id in found:
        assert ask(server, "DELETE", f"/v1/pushers/{id}", token=token).status == 204

    assert found == sorted(made)
    assert ask(server, "GET", "/v1/pushers", token=token, limit=1_001).status == 400
