"""The months of the mailboxes: made in advance, dropped when nobody is on them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from penstock.api.context import Context
from penstock.cli.app import run
from penstock.core.months import month_of, shifted
from penstock.http.timers import Wheel
from penstock.node.mailbox_months import MailboxMonths, MonthsPlan
from penstock.testing import RunningServer, wait_until_async
from penstock.values import NewItem
from tests.api.client import ask
from tests.doors.webpush_place import Place, place

CHANNEL = "d9b74644-4f97-46aa-b8fa-9393985cd6cd"


def tables_of(made: Place) -> MailboxMonths:
    context = Context(
        made.engine.log, made.engine.mailbox, made.engine.registry, made.engine.bus, made.hub, made.ledger,
        made.authenticator, made.clock, Wheel(made.time), 1024,
    )  # fmt: skip
    return MailboxMonths(context, [node.door for node in made.nodes])


def pass_months(made: Place, count: int, days: int = 2) -> None:
    """Go to a day of the month so many months from now."""
    target = shifted(month_of(made.clock.now_ms()), count)
    while month_of(made.clock.now_ms()) != target:
        made.clock.advance(86_400)
    made.clock.advance(86_400 * (days - 1))


async def test_this_month_and_the_next_are_made(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        pass_months(made, 1)
        month = month_of(made.clock.now_ms())

        plan = await tables_of(made).plan()

        assert plan == MonthsPlan(month, [shifted(month, 1)], [])
        assert await tables_of(made).apply() == plan
        assert await made.engine.mailbox.months() == [shifted(month, -1), month, shifted(month, 1)]
        assert (await tables_of(made).plan()).make == []


async def test_a_user_agent_that_was_not_seen_is_dropped_with_its_month(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        seen, unseen = await node.agent(), await node.agent()
        endpoints = [await agent.register(CHANNEL) for agent in (seen, unseen)]
        for agent in (seen, unseen):
            await agent.socket.close()
        await wait_until_async(lambda: not node.agents.table)
        old = node.agents.month()
        assert (await node.send(endpoints[1], b"x", TTL="2592000")).status == 201
        pass_months(made, 1)
        await tables_of(made).apply()
        back = await node.agent(seen.uaid)  # moves to the new month
        assert await back.heard() == []
        await back.socket.close()
        pass_months(made, 1)

        plan = await tables_of(made).apply()

        assert plan.drop == [old]
        assert old not in await made.engine.mailbox.months()
        assert await made.record(unseen.uaid) is None
        assert await made.record(seen.uaid) is not None
        assert (await node.send(endpoints[1], b"x")).status == 410
        assert (await node.send(endpoints[0], b"x")).status == 201
        assert (await node.agent(unseen.uaid)).uaid != unseen.uaid


async def test_a_month_goes_a_day_late(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        old = made.nodes[0].agents.month()
        pass_months(made, 2, days=1)

        assert (await tables_of(made).plan()).drop == []
        made.clock.advance(86_400)
        assert (await tables_of(made).plan()).drop == [old]


async def test_who_stayed_connected_for_months_has_to_connect_anew_and_loses_nothing(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        agent = await node.agent()
        endpoint = await agent.register(CHANNEL)
        old = node.agents.month()
        pass_months(made, 2)

        first = await tables_of(made).apply()

        assert first.kept == [old]
        assert await agent.closed() == 1011
        back = await node.agent(agent.uaid)
        assert back.uaid == agent.uaid
        assert await back.heard() == []
        assert (await node.send(endpoint, b"x")).status == 201
        assert (await tables_of(made).apply()).drop == [old]


async def test_a_user_agent_whose_month_is_gone_gets_a_new_name(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        agent = await node.agent()
        endpoint = await agent.register(CHANNEL)
        await agent.socket.close()
        await made.engine.mailbox.drop_month(node.agents.month())
        node.agents.lookup.forget(agent.uaid)

        reply = await node.send(endpoint, b"x")
        made.clock.advance(40 * 86_400)
        again = await node.agent(agent.uaid)

        assert (reply.status, reply.errno) == (410, 103)
        assert again.uaid != agent.uaid
        assert await made.record(agent.uaid) is None


async def test_recipients_of_other_doors_keep_their_month_while_their_record_says_so(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        mailbox, registry, old = made.engine.mailbox, made.engine.registry, made.nodes[0].agents.month()
        for name in ("msgstream/alice", "msgstream/bob"):
            await mailbox.put(name, old, [NewItem("1", body=b"x")])
        await registry.put("msgstream/alice", msgspec.json.encode({"month": old}))
        pass_months(made, 2)

        assert (await tables_of(made).apply()).kept == [old]
        await registry.put("msgstream/alice", msgspec.json.encode({"month": "2099_01", "former": "2098_12"}))
        assert (await tables_of(made).apply()).drop == [old]


async def test_it_is_done_once_a_day_by_one_node(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        tables = [tables_of(made), tables_of(made)]

        done = [await each.daily() is not None for each in tables]
        made.clock.advance(86_401)
        done += [await each.daily() is not None for each in tables]

        assert done == [True, False, True, False]


def test_the_server_shows_and_applies_the_plan_to_its_admin(server: RunningServer) -> None:
    plan = ask(server, "GET", "/v1/tables").json

    assert plan["make"] == plan["drop"] == []
    assert ask(server, "POST", "/v1/tables").json["month"] == plan["month"]
    assert ask(server, "POST", "/v1/tables", token=None).status == 401
    assert ask(server, "GET", "/v1/tables", now=1).status == 400


def test_the_command_line_shows_and_applies_it(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    there = ["--url", server.url, "--token", server.admin_token]

    assert run(["tables", *there]) == 0
    assert run(["tables", "--apply", "--json", *there]) == 0

    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("this month: ")
    assert json.loads(shown[-1])["drop"] == []
