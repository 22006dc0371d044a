"""The endpoint: what a sender may ask, what it is told, and what the user agent gets of it."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.errors import Busy
from penstock.testing import wait_until_async
from penstock.values import Kind
from penstock.wire import vapid
from penstock.wire.webcrypto import encode64, point_of
from penstock.wire.webpush_tokens import EndpointSubscription
from tests.doors.webpush_place import Agent, NodePlace, Place, place

CHANNEL = "d9b74644-4f97-46aa-b8fa-9393985cd6cd"
ORIGIN = "http://push.test"


async def subscribed(made: Place, **more: str) -> tuple[NodePlace, Agent, str]:
    node = made.nodes[0]
    agent = await node.agent()
    return node, agent, await agent.register(CHANNEL, **more)


async def away(node: NodePlace, agent: Agent) -> None:
    await agent.socket.close()
    await wait_until_async(lambda: agent.uaid not in node.agents.table)


def signed(key: ec.EllipticCurvePrivateKey, made: Place, *, origin: str = ORIGIN, seconds: int = 600) -> str:
    return vapid.sign(key, origin=origin, exp=made.clock.now_ms() // 1000 + seconds, sub="mailto:a@example.net")


async def test_a_message_reaches_a_connected_user_agent_past_the_storage(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)

        reply = await node.send(endpoint, b"\x00\xffbytes", Urgency="high")

        heard = await agent.notification()
        assert reply.status == 201
        assert reply.headers["ttl"] == "600"
        assert reply.headers["location"] == f"{ORIGIN}/m/{heard['version']}"
        assert heard["data"] == base64.urlsafe_b64encode(b"\x00\xffbytes").decode().rstrip("=")
        assert heard["headers"] == {"encoding": "aes128gcm"}
        assert await made.stored(agent.uaid, node.agents.month()) == []


async def test_a_message_without_a_body_has_neither_data_nor_headers(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)

        await node.send(endpoint, Encryption="salt=x", Crypto_Key="dh=y")

        assert (await agent.notification()).keys() == {"messageType", "channelID", "version"}


async def test_the_older_coding_passes_its_headers_on_without_quotes_and_padding(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        salt, key = encode64(b"s" * 16), encode64(point_of(ec.generate_private_key(ec.SECP256R1())))

        reply = await node.send(
            endpoint, b"x", Content_Encoding="aesgcm", Encryption=f'keyid=p256dh;salt="{salt}=="',
            Crypto_Key=f"keyid=p256dh;dh={key}=",
        )  # fmt: skip

        assert reply.status == 201, reply.body
        headers = (await agent.notification())["headers"]
        assert headers == {
            "encoding": "aesgcm", "encryption": f"keyid=p256dh;salt={salt}", "crypto_key": f"keyid=p256dh;dh={key}",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "headers", "status", "errno"),
    [
        (b"x", {"TTL": ""}, 400, 111),
        (b"x", {"TTL": "soon"}, 400, 112),
        (b"x", {"TTL": "-1"}, 400, 114),
        (b"x", {"Topic": "a" * 33}, 400, 113),
        (b"x", {"Topic": "not/base64url"}, 400, 113),
        (b"x", {"Content_Encoding": ""}, 400, 110),
        (b"x", {"Content_Encoding": "gzip"}, 400, 110),
        (b"x", {"Content_Encoding": "aesgcm"}, 400, 110),
        (b"x", {"Encryption": "salt=abc"}, 400, 110),
        (b"x" * 4097, {}, 413, 104),
        (b"x", {"Authorization": "Bearer "}, 401, 109),
        (b"x", {"Authorization": "vapid t=no,k=no"}, 401, 109),
    ],
)
async def test_what_is_wrong_is_said_with_its_number_and_a_remedy(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int, errno: int
) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        if headers.get("Authorization") == "Bearer ":
            headers = {"Authorization": "Bearer"}

        reply = await node.send(endpoint, body, **headers)

        said = json.loads(reply.body)
        assert (reply.status, said["code"], said["errno"]) == (status, status, errno)
        assert said.keys() == {"code", "errno", "error", "message", "more_info"}
        assert ". " in said["message"]
        await agent.ping_pong()  # and nothing came


async def test_the_body_limit_can_be_raised_for_senders_that_encode_twice(tmp_path: Path) -> None:
    async with place(tmp_path, body_limit=5630) as made:
        node, _, endpoint = await subscribed(made)

        assert (await node.send(endpoint, b"x" * 5624)).status == 201
        assert (await node.send(endpoint, b"x" * 5631)).status == 413


@pytest.mark.parametrize(
    "path",
    [
        "/wpush/v1/garbage", "/wpush/garbage", "/wpush/v3/TOKEN", "/wpush/v2/TOKEN", "/wpush/v1/TOKEN/x", "/wpush/v1/",
        "/wpush/v1/TOKEN%2F",
    ],
)  # fmt: skip
async def test_a_strange_token_is_not_found(tmp_path: Path, path: str) -> None:
    async with place(tmp_path) as made:
        node, _, endpoint = await subscribed(made)

        reply = await node.send(path.replace("TOKEN", endpoint.rpartition("/")[2]), b"x")

        assert (reply.status, reply.errno) == (404, 102)


async def test_a_page_may_send_and_read_where_its_message_is(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, _, endpoint = await subscribed(made)

        reply = await node.send(endpoint, b"x", Origin="https://page.example")

        assert reply.headers["access-control-allow-origin"] == "*"
        assert "Location" in reply.headers["access-control-expose-headers"]


async def test_the_version_may_be_left_out_and_put_is_taken_too(tmp_path: Path) -> None:
    async with place(tmp_path, window=2) as made:
        node, agent, endpoint = await subscribed(made)

        assert (await node.send(endpoint.replace("/v1/", "/"), b"x")).status == 201
        assert (await node.send(endpoint, b"y", method="PUT")).status == 201
        assert [(await agent.notification())["data"] for _ in range(2)] == ["eA", "eQ"]


async def test_a_user_agent_that_is_not_known_is_gone(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        endpoint = node.agents.tokens.endpoint(EndpointSubscription("f" * 32, CHANNEL))

        reply = await node.send(endpoint, b"x")

        assert (reply.status, reply.errno, reply.headers["cache-control"]) == (410, 103, "max-age=86400")


async def test_a_ttl_over_the_longest_is_cut_and_said(tmp_path: Path) -> None:
    async with place(tmp_path, ttl_most=1000.0) as made:
        node, _, endpoint = await subscribed(made)

        for ttl in ("1001", "100000", "9" * 100):
            assert (await node.send(endpoint, b"x", TTL=ttl)).headers["ttl"] == "1000"


async def test_without_a_ttl_to_wait_a_message_is_delivered_now_or_never(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        await away(node, agent)

        reply = await node.send(endpoint, b"x", TTL="0")

        assert (reply.status, reply.headers["ttl"]) == (201, "0")
        assert await made.stored(agent.uaid, node.agents.month()) == []
        assert await made.states(agent.uaid) == ["accepted", "dropped"]


async def test_a_later_message_of_a_topic_takes_the_place_of_the_earlier(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        await away(node, agent)
        for body, topic in ((b"old", "score"), (b"other", "news"), (b"new", "score")):
            assert (await node.send(endpoint, body, Topic=topic)).status == 201

        assert await made.stored(agent.uaid, node.agents.month()) == [b"other", b"new"]


async def test_an_ack_of_a_replaced_message_leaves_the_newer_one(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        await away(node, agent)
        await node.send(endpoint, b"old", Topic="score")
        agent = await node.agent(agent.uaid)
        old = await agent.notification()
        await node.send(endpoint, b"new", Topic="score")

        await agent.ack(old)

        new = await agent.notification()
        assert (new["data"], new["version"] != old["version"]) == ("bmV3", True)


async def test_a_message_whose_time_runs_out_is_not_delivered_and_recorded_as_expired(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        await away(node, agent)
        await node.send(endpoint, b"x", TTL="60")
        made.clock.advance(61)

        again = await node.agent(agent.uaid)
        await again.ping_pong()
        await node.agents.messages.sweep()

        assert await made.states(agent.uaid) == ["stored", "accepted", "expired"]


async def test_a_stored_message_can_be_cancelled_by_who_knows_its_id(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        await away(node, agent)
        location = (await node.send(endpoint, b"x")).headers["location"]

        statuses = [(await node.ask("DELETE", location.removeprefix(ORIGIN))).status for _ in range(2)]

        assert statuses == [204, 204]
        assert await made.stored(agent.uaid, node.agents.month()) == []
        assert (await node.ask("DELETE", "/m/garbage")).status == 400


async def test_an_old_id_does_not_cancel_the_replacement(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        await away(node, agent)
        old = (await node.send(endpoint, b"old", Topic="t")).headers["location"]
        await node.send(endpoint, b"new", Topic="t")

        await node.ask("DELETE", old.removeprefix(ORIGIN))

        assert await made.stored(agent.uaid, node.agents.month()) == [b"new"]


async def test_a_storage_that_takes_nothing_is_a_503_to_try_again(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        await away(node, agent)

        async def full() -> None:
            raise Busy("log.queue", 1)

        node.mailbox.pause = full
        reply = await node.send(endpoint, b"x")

        assert (reply.status, reply.errno, reply.headers["retry-after"]) == (503, 201, "1")


# ── VAPID ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_subscription_with_a_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    key, other = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made, key=encode64(point_of(key)) + "=")

        answers = [
            await node.send(endpoint, b"x"),
            await node.send(endpoint, b"x", Authorization=signed(other, made)),
            await node.send(endpoint, b"x", Authorization=signed(key, made, origin="https://elsewhere")),
            await node.send(endpoint, b"x", Authorization=signed(key, made)),
        ]

        assert "/wpush/v2/" in endpoint
        assert [answer.status for answer in answers] == [401, 401, 401, 201]
        assert all(answer.headers["www-authenticate"] == "vapid" for answer in answers[:3])
        assert "aud_mismatch" in json.loads(answers[2].body)["message"]
        assert (await agent.notification())["data"] == "eA"


async def test_the_older_form_of_the_header_is_taken(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    async with place(tmp_path) as made:
        node, _, endpoint = await subscribed(made, key=encode64(point_of(key)))
        token = signed(key, made).partition("t=")[2].partition(",")[0]

        for scheme in ("WebPush", "Bearer"):
            reply = await node.send(
                endpoint, b"x", Authorization=f"{scheme} {token}", Crypto_Key=f"p256ecdsa={encode64(point_of(key))}"
            )
            assert reply.status == 201


async def test_a_remembered_signature_still_expires(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    async with place(tmp_path) as made:
        node, _, endpoint = await subscribed(made)
        authorization = signed(key, made, seconds=60)

        statuses = []
        for _ in range(3):
            statuses.append((await node.send(endpoint, b"x", Authorization=authorization)).status)
            made.clock.advance(61)

        assert statuses == [201, 201, 401]  # the second within the leeway for wrong clocks


# ── the window ────────────────────────────────────────────────────────────────────────────────────


async def test_while_one_is_unacknowledged_the_next_is_stored_and_sent_after_the_ack(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        for body in (b"one", b"two", b"three"):
            assert (await node.send(endpoint, body)).status == 201
        first = await agent.notification()
        await agent.ping_pong()  # nothing else came

        assert await made.stored(agent.uaid, node.agents.month()) == [b"two", b"three"]
        await agent.ack(first)

        second, third = await agent.notification(), await agent.notification()
        assert [one["data"] for one in (first, second, third)] == ["b25l", "dHdv", "dGhyZWU"]
        await agent.ack(second, third)
        await agent.ping_pong()
        assert (await node.send(endpoint, b"four")).status == 201
        assert (await agent.notification())["data"] == "Zm91cg"
        assert await made.stored(agent.uaid, node.agents.month()) == []


async def test_a_wider_window_lets_more_past_the_storage(tmp_path: Path) -> None:
    async with place(tmp_path, window=3) as made:
        node, agent, endpoint = await subscribed(made)
        for number in range(5):
            await node.send(endpoint, b"%d" % number)

        assert len(await made.stored(agent.uaid, node.agents.month())) == 2
        heard = [await agent.notification() for _ in range(3)]
        await agent.ack(*heard)
        heard += [await agent.notification() for _ in range(2)]
        assert [base64.b64decode(one["data"] + "==") for one in heard] == [b"0", b"1", b"2", b"3", b"4"]


async def test_direct_ones_that_were_not_acknowledged_are_stored_when_the_session_ends(tmp_path: Path) -> None:
    async with place(tmp_path, window=3) as made:
        node, agent, endpoint = await subscribed(made)
        for body, ttl in ((b"a", "600"), (b"b", "600"), (b"now or never", "0")):
            await node.send(endpoint, body, TTL=ttl)
        heard = [await agent.notification() for _ in range(3)]
        await agent.ack(heard[0])
        await agent.ping_pong()
        await away(node, agent)

        again = await node.agent(agent.uaid)

        assert await again.notification() == heard[1]
        await again.ping_pong()


async def test_durable_direct_notifications_are_stored_first(tmp_path: Path) -> None:
    async with place(tmp_path, direct="durable") as made:
        node, agent, endpoint = await subscribed(made)

        await node.send(endpoint, b"x")

        assert await made.stored(agent.uaid, node.agents.month()) == [b"x"]
        await agent.ack(await agent.notification())
        await agent.ping_pong()
        assert await made.stored(agent.uaid, node.agents.month()) == []


# ── receipts and the ledger ───────────────────────────────────────────────────────────────────────


async def test_a_receipt_tells_what_became_of_each_message(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        asked = await node.send(endpoint, b"one", Prefer="respond-async")
        receipt = asked.headers["link"].partition(">")[0].removeprefix("<")
        await agent.ack(await agent.notification())
        await agent.ping_pong()
        await away(node, agent)
        again = await node.send(endpoint, b"two", Prefer="respond-async", Push_Receipt=receipt)
        await node.ask("DELETE", again.headers["location"].removeprefix(ORIGIN))

        lines = await _lines(node, receipt, 2)

        assert asked.status == again.status == 202
        assert asked.headers["link"].endswith('rel="urn:ietf:params:push:receipt"')
        assert again.headers["link"] == asked.headers["link"]
        assert [(line["message"], line["status"]) for line in lines] == [
            (asked.headers["location"], 204),
            (again.headers["location"], 410),
        ]
        assert (await node.ask("GET", "/r/garbage")).status == 404
        strange = await node.send(endpoint, b"x", Prefer="respond-async", Push_Receipt="http://push.test/r/x")
        assert strange.status == 400


async def _lines(node: NodePlace, receipt: str, count: int) -> list[dict[str, object]]:
    reader, writer = await asyncio.open_connection(*node.listener.address)
    writer.write(f"GET {receipt.removeprefix(ORIGIN)} HTTP/1.0\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    lines = [json.loads(await asyncio.wait_for(reader.readline(), 20)) for _ in range(count)]
    writer.close()
    return lines


async def test_the_ledger_tells_the_life_of_each_message(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        await node.send(endpoint, b"direct")
        await agent.ack(await agent.notification())
        await agent.ping_pong()
        await away(node, agent)
        await node.send(endpoint, b"stored")
        agent = await node.agent(agent.uaid)
        stored = await agent.notification()
        await agent.ack(stored)
        await agent.ping_pong()

        events = await made.ledger_events(agent.uaid)

        assert [event.state for event in events] == ["accepted", "sent", "acked", "stored", "accepted", "sent", "acked"]
        assert {event.key for event in events[3:]} == {stored["version"]}
        assert [(event.month, event.number) for event in events if event.state == "stored"] == [
            (node.agents.month(), 1)
        ]


async def test_two_endpoints_of_one_user_agent_cannot_be_linked(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        _, agent, first = await subscribed(made)
        second = await agent.register(str(uuid4()))
        raw = [base64.urlsafe_b64decode(one.rpartition("/")[2] + "==") for one in (first, second)]

        assert bytes.fromhex(agent.uaid) not in b"".join(raw)
        # What they have in common is the version and the time, no run of bytes beyond.
        assert not any(raw[0][start : start + 4] in raw[1] for start in range(9, len(raw[0]) - 4))


async def test_receipts_come_as_events_too_and_go_on_after_the_last_one_seen(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        first = await node.send(endpoint, b"one", Prefer="respond-async")
        receipt = first.headers["link"].partition(">")[0].removeprefix("<")
        await agent.ack(await agent.notification())
        await agent.ping_pong()
        event = await _event(node, receipt)
        await node.send(endpoint, b"two", Prefer="respond-async", Push_Receipt=receipt)
        second = await agent.notification()
        await agent.ack(second)

        later = await _event(node, receipt, f"Last-Event-ID: {event['id']}\r\n")

        assert json.loads(event["data"])["message"] == first.headers["location"]
        assert json.loads(later["data"])["message"].endswith(second["version"])


async def _event(node: NodePlace, receipt: str, headers: str = "") -> dict[str, str]:
    reader, writer = await asyncio.open_connection(*node.listener.address)
    writer.write(f"GET {receipt.removeprefix(ORIGIN)} HTTP/1.0\r\nAccept: text/event-stream\r\n{headers}\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    raw = await asyncio.wait_for(reader.readuntil(b"\n\n"), 20)
    writer.close()
    return dict(line.split(": ", 1) for line in raw.decode().splitlines() if line)


async def test_a_receipt_of_a_message_that_expires_says_so(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        await away(node, agent)
        sent = await node.send(endpoint, b"x", TTL="60", Prefer="respond-async")
        made.clock.advance(61)
        await node.agents.messages.sweep()

        (line,) = await _lines(node, sent.headers["link"].partition(">")[0].removeprefix("<"), 1)

        assert (line["message"], line["status"]) == (sent.headers["location"], 410)


@pytest.mark.parametrize(("kept", "found"), [(3600, 1), (60, 0)])
async def test_an_outcome_can_be_read_for_as_long_as_the_setting_says(tmp_path: Path, kept: int, found: int) -> None:
    async with place(tmp_path, receipts_kept=kept) as made:
        node, agent, endpoint = await subscribed(made)
        await node.send(endpoint, b"x", Prefer="respond-async")
        await agent.ack(await agent.notification())
        await agent.ping_pong()
        made.clock.advance(1800)

        outcomes = (await made.engine.log.read_after(("/_receipts/*",), 0)).entries

        assert sum(one.kind is Kind.DATA for one in outcomes) == found


async def test_of_many_at_once_under_one_topic_all_but_the_last_are_recorded_as_replaced(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        await away(node, agent)

        await asyncio.gather(*(node.send(endpoint, b"%d" % number, Topic="score") for number in range(6)))

        events = await made.ledger_events(agent.uaid)
        assert len(await made.stored(agent.uaid, node.agents.month())) == 1
        assert sorted(event.number for event in events if event.state == "dropped") == [1, 2, 3, 4, 5]
        assert node.agents.messages._turns._locks == {}


async def test_a_replaced_message_is_recorded_as_such(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await subscribed(made)
        await away(node, agent)
        for body in (b"old", b"new"):
            await node.send(endpoint, body, Topic="score")

        reasons = [event.reason for event in await made.ledger_events(agent.uaid) if event.state == "dropped"]

        assert reasons == ["replaced"]


# ── how much is stored ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("over", ["alone", "bus"])
@pytest.mark.parametrize("limit", [{"stored_most": 3}, {"stored_bytes": 10_000}])
async def test_a_mailbox_that_is_full_takes_no_more_until_its_owner_was_there(
    tmp_path: Path, over: str, limit: dict[str, int]
) -> None:
    async with place(tmp_path, over=over, **limit) as made:
        node, agent, endpoint = await subscribed(made)
        await agent.socket.close()
        await wait_until_async(lambda: not node.agents.table)
        taken = [await node.send(endpoint, b"x" * 3000) for _ in range(3)]

        refused = [await node.send(endpoint, b"x" * 3000, **more) for more in ({}, {"Topic": "new"})]
        again = await node.agent(agent.uaid)
        await again.ack(*[await again.notification() for _ in range(3)])
        await again.ping_pong()

        assert [reply.status for reply in taken] == [201, 201, 201]
        for reply in refused:
            assert (reply.status, reply.errno) == (507, 201)
            assert int(reply.headers["retry-after"]) > 0
        assert (await node.send(endpoint, b"x" * 3000)).status == 201


async def test_a_topic_is_replaced_in_a_full_mailbox_without_a_look_at_the_others(tmp_path: Path) -> None:
    async with place(tmp_path, stored_most=30) as made:
        node, agent, endpoint = await subscribed(made)
        await agent.socket.close()
        await wait_until_async(lambda: not node.agents.table)
        for number in range(30):
            assert (await node.send(endpoint, b"x", Topic=f"t{number}")).status == 201
        looked = [node.mailbox.stop("before", method) for method in ("take", "find", "head")]

        reply = await node.send(endpoint, b"new", Topic="t7")

        assert reply.status == 201
        assert not any(stop.reached.is_set() for stop in looked)
        assert len(await made.stored(agent.uaid, node.agents.month())) == 30
        assert [one.reason for one in await made.ledger_events(agent.uaid)].count("replaced") == 1


async def test_connections_leave_no_more_behind_than_there_is_room_for(tmp_path: Path) -> None:
    """What went past the storage is stored when its session ends, full or not: so nothing goes past a full one."""
    async with place(tmp_path, stored_most=2, window=4) as made:
        node, agent, endpoint = await subscribed(made)
        for _ in range(6):
            for _ in range(6):
                await node.send(endpoint, b"x")
            agent.socket.transport.abort()
            await wait_until_async(lambda: not node.agents.table)
            async with node.agents.worker_slots:
                await node.agents.saved(agent.uaid, node.agents.next_generation())
            agent = await node.agent(agent.uaid)

        assert len(await made.stored(agent.uaid, node.agents.month())) <= 2 + 4


async def test_receipt_subscriptions_that_share_a_stream_do_not_hear_each_other(tmp_path: Path) -> None:
    async with place(tmp_path, window=8) as made:
        node, agent, endpoint = await subscribed(made)
        tokens = node.agents.tokens
        mine, others = (tokens.receipt_id(7, made.clock.now_ms()) for _ in range(2))
        replies = [
            await node.send(endpoint, b"x", Prefer="respond-async", Push_Receipt=f"{ORIGIN}/r/{id}")
            for id in (others, mine, others, mine)
        ]
        for _ in replies:
            await agent.ack(await agent.notification())

        first = await _event(node, f"/r/{mine}")
        second = await _event(node, f"/r/{mine}", f"Last-Event-ID: {first['id']}\r\n")

        heard = [json.loads(event["data"])["message"] for event in (first, second)]
        assert heard == [replies[1].headers["location"], replies[3].headers["location"]]
