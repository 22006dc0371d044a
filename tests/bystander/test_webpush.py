"""Web Push under attack: an innocent user agent on the same server keeps getting its notifications, and so does who
publishes and tails beside it."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.doors.webpush.messages import Messages
from penstock.doors.webpush.receipts import Receipts
from penstock.doors.webpush_sender.receipts import AwaitedReceipts
from penstock.testing import RunningServer, wait_until
from penstock.values import Batch, Draft, Room
from penstock.wire.vapid import origin_of
from tests.api.client import Reply, ask, publish
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside
from tests.doors.push_service import Browser, bind, binding, push_service
from tests.doors.user_agent import UserAgent

STORED_MOST = 20
SENT = 200


class Sender:
    """Somebody who knows an endpoint, on a connection that stays."""

    def __init__(self, server: RunningServer, endpoint: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        self._path = urlsplit(endpoint).path

    def send(self, body: bytes = b"x", **headers: str) -> Reply:
        fields = {"TTL": "600", **({"Content-Encoding": "aes128gcm"} if body else {})}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("POST", self._path, body, fields)
        answer = self._connection.getresponse()
        return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def close(self) -> None:
        self._connection.close()


class Scene:
    """A server, an innocent user agent to whom everything arrives at once, and senders."""

    def __init__(self, server: RunningServer, agent: UserAgent, stack: ExitStack) -> None:
        self.server, self._agent, self._stack = server, agent, stack
        self._sender = self.sender(agent.subscribe()["endpoint"])

    def sender(self, endpoint: str) -> Sender:
        return self._stack.enter_context(closing(Sender(self.server, endpoint)))

    def innocent_gets_its_notifications(self) -> None:
        reply = self._sender.send(b"")
        assert reply.status == 201, reply
        notification = self._agent.notification()
        assert reply.headers["location"].endswith(notification["version"])
        self._agent.acknowledge(notification)


@contextmanager
def attacked(data: Path, sabotage: Callable[[], None] | None, **settings: object) -> Iterator[Scene]:
    """A server with an innocent user agent and a bystander, who must notice nothing of what happens in the block."""
    with (
        start_sabotaged(data, sabotage, **settings) as server,
        UserAgent(server) as agent,
        ExitStack() as stack,
    ):
        scene = Scene(server, agent, stack)
        scene.innocent_gets_its_notifications()
        with beside(server) as bystander:
            yield scene
            scene.innocent_gets_its_notifications()
        bystander.noticed_nothing()


def everything_is_stored() -> None:
    """No limit to what is stored for a user agent."""
    honest = Messages.__init__

    def endless(self, *arguments, **more):
        honest(self, *arguments, **more)
        self.room = Room(2**40, 2**40)

    Messages.__init__ = endless


def flood_a_user_agent_that_is_away(data: Path, sabotage: Callable[[], None] | None) -> None:
    with attacked(data, sabotage, webpush_stored_most=STORED_MOST) as scene:
        with UserAgent(scene.server) as victim:
            sender = scene.sender(victim.subscribe()["endpoint"])
        replies = [sender.send(b"x" * 4096) for _ in range(SENT)]
        replies += [sender.send(b"x" * 4096, Topic=f"t{number}") for number in range(SENT)]
        scene.innocent_gets_its_notifications()

        taken = [reply for reply in replies if reply.status == 201]
        assert len(taken) <= STORED_MOST + 1  # one may have been sent to who was just leaving
        for reply in replies:
            assert reply.status == 201 or (reply.status, reply.json["errno"]) == (507, 201)
            assert reply.status == 201 or int(reply.headers["retry-after"]) > 0
        with UserAgent(scene.server, victim.uaid) as back:  # and who was flooded has what was taken
            assert back.uaid == victim.uaid
            for _ in taken:
                back.acknowledge(back.notification())
            wait_until(lambda: sender.send(b"again").status == 201)  # and there is room again


@pytest.mark.parametrize("sabotage", [None, everything_is_stored])
def test_what_is_stored_for_one_user_agent_has_a_limit(tmp_path: Path, sabotage: Callable[[], None] | None) -> None:
    if sabotage is None:
        flood_a_user_agent_that_is_away(tmp_path / "data", None)
    else:
        with pytest.raises(AssertionError):
            flood_a_user_agent_that_is_away(tmp_path / "data", sabotage)


def every_link_is_believed() -> None:
    """A push service may say which receipt subscription another one has."""

    async def believing(self, binding, entry, verdict, endpoint, deadline_ms):
        if verdict.receipt:
            self._subscriptions[origin_of(verdict.receipt)] = verdict.receipt

    AwaitedReceipts.expect = believing


def name_receipts_of_another_service(data: Path, sabotage: Callable[[], None] | None) -> None:
    with attacked(data, sabotage) as scene, UserAgent(scene.server) as agent:
        server = scene.server
        lie = {
            "Link": f'<{server.url}/r/forged>; rel="urn:ietf:params:push:receipt"',
            "Location": f"{server.url}/m/forged",
        }
        with push_service(lambda push: (201, lie)) as hostile:
            bind(server, Browser().subscription(hostile.endpoint("x")), "/hostile", receipts=True)
            publish(server, "/hostile")
            wait_until(lambda: hostile.taken)
            bound = bind(server, agent.subscribe(), "/orders", receipts=True)
            for number, body in enumerate((b"one", b"two"), start=1):
                publish(server, "/orders", body)
                wait_until(lambda n=number: binding(server, bound)["sent"] + binding(server, bound)["dropped"] == n)
                assert not binding(server, bound)["dropped"]
                assert agent.read() == body
            publish(server, "/hostile")
            wait_until(lambda: len(hostile.taken) == 2)

        assert "push-receipt" not in hostile.taken[1].headers  # nor does he get to name one for himself
        wait_until(lambda: binding(server, bound)["acked"] == 2)


@pytest.mark.parametrize("sabotage", [None, every_link_is_believed])
def test_a_push_service_is_believed_about_itself_alone(tmp_path: Path, sabotage: Callable[[], None] | None) -> None:
    if sabotage is None:
        name_receipts_of_another_service(tmp_path / "data", None)
    else:
        with pytest.raises(AssertionError):
            name_receipts_of_another_service(tmp_path / "data", sabotage)


def a_stream_for_each_receipt_subscription() -> None:
    """Outcomes are in a stream of their own for each receipt subscription."""

    async def report(self, receipt, message, status):
        id = receipt.partition(" ")[0]
        await self._context.log.append(Batch((Draft("/_receipts/" + id, b"{}", id),)))

    Receipts.report = report


def have_many_receipt_subscriptions(data: Path, sabotage: Callable[[], None] | None) -> None:
    with attacked(data, sabotage) as scene:
        with UserAgent(scene.server) as victim:
            sender = scene.sender(victim.subscribe()["endpoint"])
        for _ in range(SENT):  # each replaces the one before, whose sender is told so: 200 receipt subscriptions
            assert sender.send(Topic="t", Prefer="respond-async").status == 202
        streams = ask(scene.server, "GET", "/v1/streams", pattern="/_receipts/*", limit=1000).json["streams"]

        names = [one["stream"] for one in streams]
        assert 1 < len(names) <= 256
        assert all(len(name) == len("/_receipts/00") for name in names)
        heads = ask(scene.server, "GET", "/v1/audit/heads", limit=1000).json["heads"]
        assert set(names) <= {head[0] for head in heads}  # the audit asks for them, too


@pytest.mark.parametrize("sabotage", [None, a_stream_for_each_receipt_subscription])
def test_receipts_for_nobody_make_no_streams(tmp_path: Path, sabotage: Callable[[], None] | None) -> None:
    if sabotage is None:
        have_many_receipt_subscriptions(tmp_path / "data", None)
    else:
        with pytest.raises(AssertionError):
            have_many_receipt_subscriptions(tmp_path / "data", sabotage)
