"""Who may publish, subscribe and delete; the server's own channel; and pages of other origins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.api.auth import open_keys
from penstock.testing import RunningServer, ServerFailed, start_server, wait_until
from tests.api.client import ask
from tests.doors.trickle_client import Get, Post, create, delete, get, head_of, made, new_channel, path, post


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("rights") / "data"
    with start_server(data, trickle_autocreate=True, trickle_changefeed=True) as running:
        yield running


def token(server: RunningServer, *grants: str, publish: str = "", subscribe: str = "") -> str:
    return open_keys(server.data).issue(
        "app", publish=(publish,) if publish else (), subscribe=(subscribe,) if subscribe else (), grants=grants
    )


def test_publishing_subscribing_and_deleting_are_separate_grants(server: RunningServer) -> None:
    channel = made(server)
    post(server, channel, 0, b"x")
    pattern = f"/channels/{channel}"
    tokens = {
        "publish": token(server, publish=pattern),
        "subscribe": token(server, subscribe=pattern),
        "delete": token(server, "channels", publish=pattern),
    }

    allowed = {
        name: (
            post(server, channel, -1, b"x", token=held).status,
            get(server, channel, 0, token=held).status,
            delete(server, channel, 0, token=held).status,
        )
        for name, held in tokens.items()
    }

    assert allowed == {"publish": (200, 403, 403), "subscribe": (403, 200, 403), "delete": (200, 403, 200)}
    assert [delete(server, channel, token=tokens[name]).status for name in ("publish", "subscribe", "delete")] == [
        403,
        403,
        200,
    ]


def test_nobody_gets_around_the_check_by_making_a_channel_with_its_first_segment(server: RunningServer) -> None:
    channel = new_channel()
    other = token(server, "channels", publish="/channels/other", subscribe="/channels/other")

    assert create(server, channel, token=other).status == 403
    assert post(server, channel, 0, b"x", token=other).status == 403
    assert get(server, channel, "next").status == 404
    for answer in (
        create(server, channel, token=None),
        post(server, channel, 0, b"x", token=None),
        get(server, channel, 0, token=None),
        delete(server, channel, token=None),
    ):
        assert answer.status == 401


def capability(server: RunningServer, channel: str, *rights: str, ttl: int = 0, token: str | None = "") -> str:
    answer = ask(
        server,
        "POST",
        "/v1/capabilities",
        json.dumps({"channel": channel, "rights": rights, "ttl": ttl}).encode(),
        token=token,
    )
    assert answer.status == 201, answer
    sealed: str = answer.json["channel"]
    return sealed


def test_a_client_without_headers_carries_its_right_in_the_name(server: RunningServer) -> None:
    channel = new_channel()
    writer, reader = capability(server, channel, "publish"), capability(server, channel, "subscribe", ttl=60)
    both = capability(server, channel, "publish", "delete")

    assert post(server, writer, 0, b"x", token=None).status == 200
    assert get(server, reader, 0, token=None).body == b"x"
    assert get(server, writer, 0, token=None).status == 403
    assert post(server, reader, 1, b"x", token=None).status == 403
    assert delete(server, writer, token=None).status == 403
    assert delete(server, both, token=None).status == 200


def test_a_right_that_was_made_up_is_worth_nothing(server: RunningServer) -> None:
    channel = made(server)
    good = capability(server, channel, "subscribe")

    for bad in (
        good[:-1] + ("A" if good[-1] != "A" else "B"),
        good.replace("~s.", "~p."),
        good.replace(channel, "other"),
    ):
        assert get(server, bad, 0, token=None).status == 401
        assert post(server, bad, 0, b"x", token=None).status == 401
    expired = capability(server, channel, "subscribe").replace(".0.", ".1.")
    assert get(server, expired, 0, token=None).status == 401


def test_nobody_gives_a_right_that_he_has_not(server: RunningServer) -> None:
    held = token(server, publish="/channels/mine")

    body = json.dumps({"channel": "mine", "rights": ["subscribe"]}).encode()
    assert ask(server, "POST", "/v1/capabilities", body, token=held).status == 403
    assert capability(server, "mine", "publish", token=held)
    for bad in (
        b"{}",
        b'{"channel":"a","rights":["all"]}',
        b'{"channel":"a","rights":[]}',
        b'{"channel":"a~b","rights":["publish"]}',
    ):
        assert ask(server, "POST", "/v1/capabilities", bad).status == 400
    assert ask(server, "GET", "/v1/channels", token=held).status == 403


def test_open_mode_is_for_local_clients_on_a_local_address(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", trickle_open=True) as server:
        channel = made(server)
        assert post(server, channel, 0, b"x", token=None).status == 200
        assert get(server, channel, 0, token=None).body == b"x"
        assert get(server, channel, 0, token="wrong").status == 401
        # As in the original: what nobody vouches for makes no channels, unless autocreate says so.
        assert create(server, new_channel(), token=None).status == 404
        assert delete(server, channel, token=None).status == 200
    with (
        pytest.raises(ServerFailed, match=r"trickle\.open"),
        start_server(tmp_path / "other", "--listen", "0.0.0.0:0", "--insecure", trickle_open=True),
    ):
        pass


def test_changes_are_told_by_the_server_alone(server: RunningServer) -> None:
    before = head_of(server, "_changes")
    assert get(server, "_changes", 0).body == b'{"added":["_changes"]}'
    channel = made(server, "<&>")
    delete(server, channel)

    messages = [get(server, "_changes", seq) for seq in (before, before + 1)]

    assert [json.loads(message.body) for message in messages] == [{"added": [channel]}, {"removed": [channel]}]
    assert messages[0].body.startswith(b'{"added":["\\u003c\\u0026\\u003e')
    assert messages[0].headers["content-type"] == "application/json"
    assert post(server, "_changes", -1, b"{}").status == 403
    assert delete(server, "_changes").status == 403
    assert create(server, "_mine").status == 403
    assert get(server, "_changes", 0, token=token(server, subscribe=">")).status == 403


def test_there_are_no_changes_by_default(shared_server: RunningServer) -> None:
    assert get(shared_server, "_changes", 0).status == 404


def test_a_page_may_read_the_headers(server: RunningServer) -> None:
    channel = made(server)
    post(server, channel, 0, b"x")

    answer = ask(server, "GET", path(channel, 0), None, {"Origin": "https://page.example"})

    assert "Lp-Trickle-Seq" in answer.headers["access-control-expose-headers"]


def test_nobody_reads_under_anothers_name(server: RunningServer) -> None:
    channel = made(server, record="true")
    post(server, channel, 0, b"x")
    held = open_keys(server.data).issue("mallory", subscribe=(f"/channels/{channel}",))
    assert get(server, channel, 0, token=held, consumer="victim").status == 200

    entry = ask(server, "GET", "/v1/read", stream=f"/channels/{channel}/1").json["entries"][0]["id"]

    def verdict(recipient: str) -> object:
        return ask(server, "GET", "/v1/why", entry=entry, recipient=recipient).json["verdict"]

    wait_until(lambda: verdict("mallory/victim") == "sent")
    assert verdict("victim") == "no_record"


def rights_for_a_moment(server: RunningServer, channel: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A name and headers: a token that ends soon, and a right in the name that does."""
    short = open_keys(server.data).issue("app", subscribe=(f"/channels/{channel}",), ttl=2)
    yield channel, {"Authorization": f"Bearer {short}"}
    yield capability(server, channel, "subscribe", ttl=2), {"Authorization": "Bearer none"}


def test_nobody_reads_on_when_the_right_to_it_has_ended(server: RunningServer) -> None:
    channel = made(server)
    with Post(server, channel, 0, b"so far"):
        for name, fields in rights_for_a_moment(server, channel):
            with Get(server, name, 0, **fields).opened() as reader:
                assert reader.chunk() == b"so far"
                with pytest.raises((EOFError, ConnectionError)):  # an end must not look like the segment's
                    reader.chunk()


@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_longer_than_its_token_lasts_gets_nothing(server: RunningServer, stream: bool) -> None:
    channel = f"/late{new_channel()}" if stream else made(server)
    if stream:
        ask(server, "POST", "/v1/publish", b"first", stream=channel)
    seq = 1 if stream else 0
    pattern = channel if stream else f"/channels/{channel}"
    short = open_keys(server.data).issue("app", subscribe=(pattern,), ttl=1)
    with Get(server, channel, seq, Authorization=f"Bearer {short}") as reader:
        wait_until(lambda: ask(server, "GET", "/v1/read", token=short, stream="/another").status == 401)
        if stream:
            ask(server, "POST", "/v1/publish", b"second", stream=channel)
        else:
            assert post(server, channel, 0, b"x").status == 200

        assert reader.head() == 401
        assert b"expired" in reader.rest()


def test_no_capability_is_in_the_servers_log(server: RunningServer) -> None:
    sealed = capability(server, new_channel(), "publish", "subscribe")
    post(server, sealed, 0, b"x", token=None)
    post(server, sealed, 9, b"x", token=None)

    assert sealed.rpartition(".")[2] not in server.log_text()


def test_metrics_count(server: RunningServer) -> None:
    made(server)

    text = ask(server, "GET", "/metrics").body.decode()

    assert "penstock_trickle_channels" in text
    assert "penstock_trickle_relayed_bytes" in text
