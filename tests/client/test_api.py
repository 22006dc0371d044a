from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.api import ApiError, Client, Event, ServerUnreachable, pieces
from penstock.errors import InputInvalid
from penstock.testing import RunningServer, start_server


@pytest.fixture
def client(shared_server: RunningServer) -> Iterator[Client]:
    with Client(shared_server.url, shared_server.admin_token) as opened:
        yield opened


@pytest.mark.parametrize("body", [b"hello", b'{"a":1}', "žluťoučký".encode(), b"\xff\x00\nbinary"])
def test_what_is_published_is_read_back_byte_for_byte(client: Client, body: bytes) -> None:
    place = client.publish("/client/bodies", body, type="t")

    found = client.read("/client/bodies", start=place.index or 0, limit=1).entries[0]

    assert found.body == body
    assert (found.id, found.stream, found.index, found.cursor, found.type) == (
        place.id, "/client/bodies", place.index, place.cursor, "t",
    )  # fmt: skip


def test_a_repeat_under_the_same_key_stores_nothing(client: Client) -> None:
    first = client.publish("/client/keys", b"once", key="k")

    assert client.publish("/client/keys", b"once", key="k") == first
    assert len(client.read("/client/keys").entries) == 1
    with pytest.raises(ApiError) as refused:
        client.publish("/client/keys", b"another", key="k")
    assert (refused.value.status, refused.value.code) == (409, "idempotency_key_reused")


def test_many_are_stored_in_their_order(client: Client) -> None:
    bodies = [b"%d" % number for number in range(2_500)]

    answer = client.publish_many("/client/many", bodies)

    assert answer.count == 2_500
    assert answer.first.index == 0
    assert answer.last.index == 2_499
    read: list[bytes] = []
    while len(read) < 2_500:
        read += [event.body for event in client.read("/client/many", start=len(read), limit=1000).entries]
    assert read == bodies


def test_nothing_and_a_newline_are_refused_before_anything_is_sent(client: Client) -> None:
    with pytest.raises(InputInvalid, match="there are none"):
        client.publish_many("/client/none", [])
    with pytest.raises(InputInvalid, match="newline"):
        client.publish_many("/client/none", [b"a\nb"])
    assert list(client.streams("/client/none")) == []


def test_a_tail_begins_with_what_was_missed_and_goes_on_live(client: Client, shared_server: RunningServer) -> None:
    first = client.publish("/client/tail", b"missed")
    tail = client.tail("/client/*", after=first.id - 1)
    assert isinstance(event := next(tail), Event)
    assert event.body == b"missed"

    client.publish("/client/tail", b"live")

    assert isinstance(event := next(tail), Event)
    assert event.body == b"live"
    tail.close()


def test_reading_by_id_goes_on_after_upto(client: Client) -> None:
    client.publish_many("/client/ids/a", [b"1", b"2", b"3"])
    after, bodies = 0, []
    while len(bodies) < 3:
        page = client.read_after("/client/ids/*", after, limit=2)
        bodies += [event.body for event in page.entries]
        assert page.upto > after
        after = page.upto

    assert bodies == [b"1", b"2", b"3"]


def test_all_streams_come_though_they_are_fetched_in_pages(client: Client) -> None:
    names = [f"/client/listed/{number:04d}" for number in range(1_050)]
    for name in names:
        client.publish(name, b"x")

    assert [stream.stream for stream in client.streams("/client/listed/*")] == names


def test_a_wrong_token_is_refused_with_a_remedy(shared_server: RunningServer) -> None:
    with Client(shared_server.url, "wrong") as stranger, pytest.raises(ApiError) as refused:
        stranger.publish("/client/x", b"x")

    assert refused.value.status == 401
    assert "token" in refused.value.remedy


def test_why_and_health_answer(client: Client) -> None:
    place = client.publish("/client/why", b"x")

    assert client.why(str(place.id), "nobody")["verdict"] == "no_record"
    assert client.health()["status"] == "ok"


def test_a_server_that_restarts_is_reached_again(tmp_path: Path) -> None:
    with start_server(tmp_path / "data") as server, Client(server.url, server.admin_token) as client:
        client.publish("/a", b"1")
        server.restart()

        # The kept connection is dead by now; a call that may be repeated does not notice
        assert client.read("/a").entries[0].body == b"1"
        server.restart()
        assert client.publish("/a", b"2", key="k").index == 1
        server.restart()
        with pytest.raises(ServerUnreachable):
            client.publish("/a", b"3")  # without a key nobody knows whether it was stored


@contextmanager
def stranger(answer: bytes) -> Iterator[str]:
    """Something that listens and is no Penstock."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_an_answer_that_is_not_ours_is_told() -> None:
    with (
        stranger(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\noops") as url,
        Client(url) as client,
        pytest.raises(ApiError, match="oops") as refused,
    ):
        client.health()
    assert refused.value.code == "http_502"


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut"])
def test_an_answer_that_is_cut_or_no_http_is_unreachable(answer: bytes) -> None:
    with stranger(answer) as url, Client(url) as client, pytest.raises(ServerUnreachable):
        client.health()


@given(st.lists(st.binary(max_size=30).map(lambda body: body.replace(b"\n", b"")), max_size=50))
def test_pieces_lose_nothing(bodies: list[bytes]) -> None:
    assert b"".join(pieces(bodies)) == b"".join(body + b"\n" for body in bodies)


def test_a_piece_stays_within_its_limits() -> None:
    big = list(pieces(bytes(1024 * 1024) for _ in range(9)))
    many = list(pieces(b"x" for _ in range(20_001)))

    assert [len(piece) for piece in big] == [3 * (1024 * 1024 + 1)] * 3
    assert [piece.count(b"\n") for piece in islice(many, 3)] == [10_000, 10_000, 1]
