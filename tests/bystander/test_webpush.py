"""Web Push under attack: an innocent user agent on the same server keeps getting its notifications, and so does who
publishes and tails beside it."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.doors.webpush.agents import Agents
from penstock.testing import RunningServer, wait_until
from penstock.values import Room
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside
from tests.doors.user_agent import UserAgent
from tests.server.api import Reply

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
    honest = Agents.__init__

    def endless(self, *arguments, **more):
        honest(self, *arguments, **more)
        self.room = Room(2**40, 2**40)

    Agents.__init__ = endless


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
