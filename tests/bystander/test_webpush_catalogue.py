"""What somebody may do to Web Push, as a user agent or as a sender, beside user agents that do as they should.

One of them stays connected, the other one comes back for each notification; both get and acknowledge all of them,
in their order, and nothing twice.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Frame, Opcode

from penstock.doors.webpush.messages import Messages
from penstock.limits import PUSH_BODY_READ
from penstock.testing import RunningServer, start_server, wait_until
from penstock.values import Room
from penstock.wire import webpush, webpush_session
from penstock.wire.webpush_actions import Action, Unacked
from penstock.wire.webpush_session import PushSession
from tests.api.client import Reply, ask
from tests.bystander.catalogue import Attack, answered, plain, run, sent
from tests.bystander.sabotaged import start_sabotaged
from tests.doors.trickle_client import Raw, request
from tests.doors.user_agent import UserAgent, connected

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
DEEP = "[" * 100_000
CHANNEL = "d9b74644-4f97-46aa-b8fa-%012x"
CODED = {"TTL": "600", "Content-Encoding": "aes128gcm"}


@pytest.fixture(scope="module", params=[1, 2], ids=["process", "workers"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"webpush_stored_most": 50, "server_workers": request.param}
    with start_server(tmp_path_factory.mktemp("catalogue") / "data", **settings) as running:
        yield running


def text(payload: str) -> bytes:
    return bytes(Frame(Opcode.TEXT, payload.encode()).serialize(mask=True))


def says(kind: str, **more: object) -> bytes:
    """A command, as a frame."""
    return text(json.dumps({"messageType": kind, **more}))


def opened(server: RunningServer, *frames: bytes) -> Raw:
    """A WebSocket that says all this at once; to be used in `with`."""
    peer = Raw(server, HANDSHAKE, receive_buffer=4096)
    assert b" 101 " in peer.file.readline()
    while peer.file.readline().strip():
        pass
    with contextlib.suppress(OSError):  # it may be closed before the last one
        peer.socket.sendall(b"".join(frames))
    return peer


def ends(server: RunningServer, *frames: bytes) -> None:
    """Say all this, and return when the server has ended the connection for it."""
    with opened(server, *frames) as peer, contextlib.suppress(ConnectionResetError):
        while head := peer.file.read(2):
            length = int.from_bytes(peer.file.read(2)) if head[1] == 126 else head[1]
            peer.file.read(length)
            if head[0] & 0x0F == Opcode.CLOSE:
                return


def registered(agent: UserAgent) -> str:
    """The path of a new endpoint."""
    return urlsplit(agent.subscribe()["endpoint"]).path


def send(server: RunningServer, path: str, body: bytes = b"x", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(server, "POST", path, body, CODED | named, token=None)


def sends(server: RunningServer, path: str, *bodies: bytes, **fields: str) -> list[int]:
    """A send for each body, with these headers and nobody's token."""
    heads = [request(server, "POST", path, {**CODED, "Content-Length": str(len(one)), **fields}) for one in bodies]
    nobody = f"Authorization: Bearer {server.admin_token}\r\n".encode()
    return answered(server, *(head.replace(nobody, b"") + one for head, one in zip(heads, bodies, strict=True)))


# ── user agents ────────────────────────────────────────────────────────────────────────────────


def agents_garbage(server: RunningServer) -> None:
    """Each of these ends its connection, before a hello and after one."""
    broken = [
        b"\xff" * 500, b"\x81\x85abcd" + bytes(5), Frame(Opcode.BINARY, b"{}").serialize(mask=True), text(""),
        text("null"), text("[]"), text(DEEP), text('{"messageType":' + DEEP), says("x"),
        text('{"messageType":"hello","uaid":' + DEEP), says("ack", updates=[{"version": 1}]), says("ack", updates=7),
        says("broadcast_subscribe", broadcasts=[]),
        text('{"messageType":"hello","broadcasts":{"a":1e999}}'), Frame(Opcode.TEXT, b"\xff\xfe").serialize(mask=True),
        Frame(Opcode.CONT, b"x").serialize(mask=True), b"\x81\xff\x7f" + b"\xff" * 11,
    ]  # fmt: skip
    for frame in broken:
        ends(server, frame)
        ends(server, says("hello"), frame)
    ends(server, says("register", channelID=str(uuid.uuid4())))  # hello comes first


def agents_names(server: RunningServer) -> None:
    """Hellos with names that are none are those of new user agents."""
    for name in ("x" * 50_000, 7, None, [], {}, "0" * 32, "é" * 32, "../" * 10, "0" * 31 + "\0"):
        with UserAgent(server, name) as agent:  # type: ignore[arg-type]
            assert agent.uaid != name


def agents_keys(server: RunningServer) -> None:
    """Channels and keys that are none are refused, and the connection goes on."""
    with UserAgent(server) as agent:
        for key in ("", "x", [], {}, 0, False, "A" * 87, "B" * 5_000, "é", DEEP[:500], [[]], {"a": 1}):
            answer = agent.ask({"messageType": "register", "channelID": str(uuid.uuid4()), "key": key})
            assert answer["status"] == 400, (key, answer)
        for channel in ("", None, 7, [], {}, "x" * 50_000, CHANNEL % 1 + "\n", (CHANNEL % 1).upper(), "\0"):
            for kind in ("register", "unregister"):
                answer = agent.ask({"messageType": kind, "channelID": channel})
                assert answer["status"] == 401, (channel, answer)
        registered(agent)


def agents_hellos(server: RunningServer) -> None:
    """Says hello again and again."""
    ends(server, says("hello") * 500)
    ends(server, text("{}") * 500)
    for number in range(100):
        sent(server, HANDSHAKE, says("hello"), reset=number % 2 == 0)


def agents_crowding(server: RunningServer) -> None:
    """Comes with one name many times at once, while something for it is on its way and it still says something."""
    with UserAgent(server) as agent:
        path = registered(agent)
    for turn in range(4):
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(opened(server, says("hello", uaid=agent.uaid)))
            send(server, path)
            crowd = [stack.enter_context(opened(server)) for _ in range(20)]
            for peer in crowd:
                peer.socket.sendall(says("hello", uaid=agent.uaid))
            with contextlib.suppress(OSError):
                first.socket.sendall(says("register", channelID=CHANNEL % turn) * 20)
    wait_until(lambda: comes_back(server, agent.uaid))


def comes_back(server: RunningServer, uaid: str) -> bool:
    """Whether it is connected; else one of the crowd was heard of later, by another worker, and it is to try again."""
    try:
        with UserAgent(server, uaid) as again:
            return again.uaid == uaid
    except ConnectionClosedError as error:
        if "already_connected" not in str(error):
            raise
        return False


def agents_commands(server: RunningServer) -> None:
    """More at once than may wait, small and large, and reads nothing of it."""
    asked = {str(number): "" for number in range(5_000)}
    for flood in (
        b"".join(says("register", channelID=CHANNEL % number) for number in range(1_500)),
        says("unregister", channelID=CHANNEL % 1) * 5_000, says("nack", version="x") * 5_000,
        says("register", channelID="x") * 5_000, says("broadcast_subscribe", broadcasts=asked) * 40,
        Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 5_000,
    ):  # fmt: skip
        with opened(server, says("hello")) as peer:
            peer.socket.settimeout(0.2)  # who is not read from any more goes
            with contextlib.suppress(OSError):
                peer.socket.sendall(flood)


def agents_acks(server: RunningServer) -> None:
    """Acknowledges what is others', what is none, and far too much."""
    with UserAgent(server) as victim, UserAgent(server) as thief:
        path = registered(victim)
        registered(thief)
        version = send(server, path).headers["location"].rpartition("/")[2]
        update = {"channelID": victim.channels[0], "version": version, "code": 100}
        thief.send({"messageType": "ack", "updates": [update] * 100})
        thief.send({"messageType": "ack", "updates": [{"version": str(n), "code": 10**15} for n in range(20_000)]})
        thief.send({"messageType": "nack", "version": version})
        thief.ask({"messageType": "unregister", "channelID": victim.channels[0]})
        assert victim.notification()["version"] == version
        send(server, path)  # waits in the storage: nobody has acknowledged the one before
        assert victim.ask({"messageType": "unregister", "channelID": CHANNEL % 1})["messageType"] == "unregister"
    with UserAgent(server, victim.uaid) as again:
        assert version in {again.notification()["version"] for _ in range(2)}


def agents_leavers(server: RunningServer) -> None:
    """Goes in the middle: of a frame, of a message, of a command that is carried out."""
    register = says("register", channelID=str(uuid.uuid4()))
    for number in range(60):
        for rest in (register, register[:9], bytes(Frame(Opcode.TEXT, b"{", fin=False).serialize(mask=True))):
            sent(server, HANDSHAKE, says("hello"), rest, reset=number % 2 == 0)


def agents_deaf(server: RunningServer) -> None:
    """Never reads and never acknowledges, while senders go on; what is over its room is refused."""
    with UserAgent(server) as agent:
        path = registered(agent)
    with opened(server, says("hello", uaid=agent.uaid)):
        statuses = sends(server, path, *[b"x" * 4_000] * 120)
    assert set(statuses) == {201, 507}


# ── senders ────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def endpoint(server: RunningServer) -> Iterator[str]:
    with UserAgent(server) as agent:
        yield registered(agent)


def senders_heads(server: RunningServer) -> None:
    with endpoint(server) as path:
        for name, values in {
            "TTL": ["", "-1", "x", "9" * 400, "1e5", "0x1", "٣", "1, 2"],
            "Topic": ["", "x" * 33, "é", "a b", "a/b", "x" * 5_000, "\t"],
            "Urgency": ["", "x", "high, low", "x" * 5_000],
            "Content-Encoding": ["", "gzip", "aesgcm", "aes128gcm, aes128gcm", "x" * 5_000],
            "Encryption": ["salt=" + "A" * 5_000, ";" * 5_000, "salt=é", 'salt="'],
            "Crypto-Key": ["dh=" + "A" * 5_000, "," * 5_000, "dh=é;p256ecdsa=x"],
            "Authorization": ["", "vapid", "vapid t=a.b.c,k=x", "WebPush " + "." * 7_000, "Bearer x", "x" * 7_000],
            "Push-Receipt": ["", "/r/x", "http://elsewhere/r/x", "<" * 5_000],
            "Prefer": ["respond-async" * 300, ",;=" * 999],
        }.items():
            for value in values:
                sends(server, path, b"x", **{name: value.encode().decode("latin-1")})
                sends(server, path, b"x", **{"Content-Encoding": "aesgcm", name: value.encode().decode("latin-1")})


def senders_tokens(server: RunningServer) -> None:
    """Endpoints that are none, or somebody's with a byte changed."""
    with endpoint(server) as path:
        other = "A" if path[40] != "A" else "B"
        changed = [path[:40] + other + path[41:], path[: len(path) // 2], path.swapcase(), path + "/x"]
    names = ["", "/", "/v1/", "/v1/x", "/v2/" + "A" * 300, "/v9/x", "/%00", "/..%2F..", "/" + "a" * 7_000, "/a/b/c/d"]
    for target in [*changed, *("/wpush" + name for name in names)]:
        assert set(sends(server, target, b"", b"x")) <= {400, 401, 404, 410}, target


def senders_sizes(server: RunningServer) -> None:
    with endpoint(server) as path:
        assert sends(server, path, b"x" * 4_097, b"x" * (PUSH_BODY_READ - 1)) == [413, 413]
        for length in (str(2**62), "-1", "9" * 400):
            answered(server, request(server, "POST", path, {**CODED, "Content-Length": length}))
        for fields in ({"Transfer-Encoding": "chunked"}, {"Content-Length": "4000"}):  # slow, or gone in the middle
            for number in range(30):
                sent(server, request(server, "POST", path, CODED | fields) + b"4\r\nha", reset=number % 2 == 0)
        tiny = request(server, "POST", path, {**CODED, "Transfer-Encoding": "chunked"})
        answered(server, tiny + b"1\r\nx\r\n" * 4_000 + b"0\r\n\r\n")


def senders_topics(server: RunningServer) -> None:
    """Fills the room of one who is away with topics, and replaces them."""
    with endpoint(server) as path:
        pass
    wait_until(lambda: connected(server) == 1)  # the innocent one's
    statuses = [sends(server, path, b"x", Topic=f"t{number % 100}")[0] for number in range(200)]
    assert set(statuses) == {201, 507}


def senders_cancels(server: RunningServer) -> None:
    """Deletes messages by ids that are guessed, changed, or others'."""
    with UserAgent(server) as agent:
        path = registered(agent)
    wait_until(lambda: connected(server) == 1)
    id = send(server, path).headers["location"].rpartition("/")[2]
    for guess in (id[:-1], id + "A", id[::-1], id.swapcase(), "%00", "x" * 7_000, "..%2F" + id, "A" * len(id)):
        answered(server, plain(server, "DELETE", f"/m/{guess}"))
        answered(server, plain(server, "GET", f"/r/{guess}"))
    with UserAgent(server, agent.uaid) as again:
        assert again.notification()["version"] == id


def senders_hosts(server: RunningServer) -> None:
    """Addresses the service by names that are none."""
    with endpoint(server) as path:
        for host in ("", "[", "[::1", "a" * 5_000, "x:99999", "x:-1", "a@b", "é", "..", "x y"):
            sends(server, path, b"x", Host=host.encode().decode("latin-1"), Authorization="vapid t=a.b.c,k=x")


# ── beside them ────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def innocent(server: RunningServer) -> Iterator[Callable[[int], None]]:
    """One that stays, and one that is away when its notifications come."""
    with UserAgent(server) as away:
        left = registered(away)
    with UserAgent(server) as agent:
        path = registered(agent)

        def check(turn: int) -> None:
            for number in range(3):
                version = send(server, path, b"%d" % number).headers["location"].rpartition("/")[2]
                notification = agent.notification()
                assert notification["version"] == version
                agent.acknowledge(notification)
            versions = [send(server, left).headers["location"].rpartition("/")[2] for _ in range(3)]
            with UserAgent(server, away.uaid) as back:
                assert back.uaid == away.uaid
                for version in versions:
                    notification = back.notification()
                    assert notification["version"] == version
                    back.acknowledge(notification)

        yield check


ATTACKS = [
    agents_garbage, agents_names, agents_keys, agents_hellos, agents_crowding, agents_commands, agents_acks,
    agents_leavers, agents_deaf, senders_heads, senders_tokens, senders_sizes, senders_topics, senders_cancels,
    senders_hosts,
]  # fmt: skip


def test_nothing_that_one_peer_does_hurts_another(server: RunningServer) -> None:
    run(server, innocent, ATTACKS)


def believing() -> None:
    """Whoever acknowledges a message is believed, every name and key is one, and there is always room."""

    sessions: list[PushSession] = []

    def take_acks(self: PushSession, updates: list[webpush.Update], actions: list[Action]) -> tuple[Unacked, ...]:
        return tuple(
            one.unacked.pop(update.version) for update in updates for one in sessions if update.version in one.unacked
        )

    def remembered(self: PushSession, *arguments: Any) -> None:
        first(self, *arguments)
        sessions.append(self)

    def endless(self: Messages, *arguments: Any) -> None:
        honest(self, *arguments)
        self.room = Room(2**40, 2**40)

    honest, Messages.__init__ = Messages.__init__, endless  # type: ignore[method-assign]
    first, PushSession.__init__ = PushSession.__init__, remembered  # type: ignore[method-assign]
    PushSession._take_acks = take_acks  # type: ignore[assignment, method-assign]
    webpush_session.parse_key = lambda key: str(key).encode()


@pytest.fixture(scope="module")
def believer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_sabotaged(tmp_path_factory.mktemp("believer") / "data", believing, webpush_stored_most=50) as running:
        yield running


@pytest.mark.parametrize("attack", [agents_keys, agents_acks, agents_deaf])
def test_the_catalogue_notices_a_door_that_believes_what_it_is_told(believer: RunningServer, attack: Attack) -> None:
    with pytest.raises(AssertionError):
        attack(believer)
