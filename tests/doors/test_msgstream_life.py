"""How long sessions live, on a clock that is moved by hand: slides, sweeps, months, and two nodes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedOK

from penstock.core.ledger import LedgerEvent, decode
from penstock.doors.msgstream import MessageStreamDoor
from penstock.doors.msgstream.records import FORM
from penstock.doors.msgstream.session import Session
from penstock.doors.msgstream.sessions import SESSIONS_KNOWN, Sessions
from penstock.errors import EngineGone
from penstock.testing import wait_until_async
from penstock.values import Batch, Draft, Item, NewItem, Record
from penstock.wire.ledger import FINAL
from penstock.wire.msgstream_actions import SessionRecord
from tests.doors.msgstream_place import Place, place, two_nodes

UNSET = {reason: {"0": [["session.unset", reason]]} for reason in ("noSession", "keyMismatch", "loggedOut")}
MONTH = 31 * 24 * 3600


async def ledger(here: Place, actor: str) -> list[LedgerEvent]:
    await here.ledger.flush()
    page = await here.engine.log.read_after(("/_ledger",), 0)
    return [event for entry in page.entries for event in decode(entry.body)[1] if event.recipient == actor]


async def test_a_session_without_a_sign_of_life_ends(tmp_path: Path) -> None:
    async with place(tmp_path, ttl=600) as here:
        key = await here.login("alice")
        await here.emit("alice")
        here.clock.advance(599)
        await here.door.sessions.sweep()
        assert (await here.poll(key)).json == {"1": [["test"]]}

        here.clock.advance(601)

        assert (await here.poll(key)).json == UNSET["noSession"]
        assert (await here.emit("alice")).json == {"packs": {}, "offline": ["alice"]}
        await here.door.sessions.sweep()
        assert [event.state for event in await ledger(here, "alice")] == ["accepted", "sent", "expired"]
        assert await here.engine.registry.list("msgstream/") == []
        assert await here.engine.mailbox.take("msgstream/alice", here.door.sessions.month) == []


async def test_a_life_is_written_down_in_steps(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        key = await here.login("alice", ttl=1000)
        first = record_now(here)
        for _ in range(9):
            here.clock.advance(10)
            await here.poll(key)
        assert record_now(here) == first  # nothing was written for these

        here.clock.advance(10)
        await here.poll(key)
        await wait_until_async(lambda: record_now(here) != first)

        # One step more than its life, so that a crash never shortens it.
        assert record_now(here).expires_ms == here.clock.now_ms() + 1_100_000


def record_now(here: Place) -> SessionRecord:
    """What is written down of alice's session."""
    return FORM.decode(here.engine.registry._records["msgstream/alice"].value)


async def test_a_restart_never_shortens_a_life(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        key = await here.login("alice", ttl=1000)
        here.clock.advance(950)
        await here.poll(key)
        await wait_until_async(lambda: record_now(here).expires_ms > here.clock.now_ms() + 1_000_000)
        here.clock.advance(90)  # less than a step: nobody writes that down
        await here.poll(key)
        await here.crash()
        here.clock.advance(999)
        await here.door.sessions.sweep()

        assert (await here.poll(key)).status == 204


async def test_an_open_socket_keeps_its_session_alive(tmp_path: Path) -> None:
    async with place(tmp_path, ping=0.25) as here:
        key = await here.login("alice", ttl=600)
        async with connect(here.url(key)) as socket:
            await wait_until_async(lambda: here.door.sessions.connected == 1)
            session = here.door.sessions.known["alice"]
            for _ in range(3):
                here.clock.advance(550)
                await wait_until_async(lambda: session.machine.expires_ms == here.clock.now_ms() + 600_000)
                await here.door.sessions.sweep()
            await here.emit("alice", ["there"])
            assert json.loads(await socket.recv()) == {"1": [["there"]]}


async def test_a_socket_that_answers_no_ping_is_cut(tmp_path: Path) -> None:
    async with place(tmp_path, ping=0.25) as here:
        key = await here.login("alice")
        host, port = here.listener.address
        _, writer = await asyncio.open_connection(host, port)
        writer.write(
            f"GET /msgstream?sessionKey={key} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        await wait_until_async(lambda: here.door.sessions.connected == 1)
        await wait_until_async(lambda: here.door.sessions.connected == 0)
        writer.transport.abort()


async def test_confirm_frames_keep_a_session_alive(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        key = await here.login("alice", ttl=600)
        async with connect(here.url(key)) as socket:
            await wait_until_async(lambda: here.door.sessions.connected == 1)
            here.clock.advance(500)
            await socket.send("1")
            session = here.door.sessions.known["alice"]
            await wait_until_async(lambda: session.machine.expires_ms == here.clock.now_ms() + 600_000)


async def hold(here: Place, key: str) -> asyncio.Task[Any]:
    """A long poll that waits."""
    poll = asyncio.create_task(here.poll(key, transport="longpolling"))
    await wait_until_async(lambda: here.door.sessions.connected == 1)
    return poll


async def live_on(here: Place, actor: str, seconds: int, steps: int) -> None:
    """Let much more time pass than the session lives without a sign of life."""
    session = here.door.sessions.known[actor]
    for _ in range(steps):
        here.clock.advance(seconds * 0.9)
        await wait_until_async(lambda: session.machine.expires_ms == here.clock.now_ms() + seconds * 1000)
        # Its record follows, long before it is over by a clock that runs. This one jumps: others would see the past.
        await wait_until_async(lambda: session.record.expires_ms >= session.machine.expires_ms)
        await here.door.sessions.sweep()


@pytest.mark.parametrize("heartbeat", [60, 0])
async def test_a_held_poll_keeps_its_session_alive(tmp_path: Path, heartbeat: float) -> None:
    async with place(tmp_path, heartbeat=heartbeat) as here:
        key = await here.login("alice", ttl=1)
        poll = await hold(here, key)
        await live_on(here, "alice", 1, 5)
        assert here.door.sessions.connected == 1

        await here.emit("alice", ["there"])

        assert (await poll).json == {"1": [["there"]]}
        here.clock.advance(1.2)
        assert (await here.poll(key)).json == UNSET["noSession"]


async def test_a_held_poll_ends_with_its_own_heartbeat_however_short_its_sessions_life(tmp_path: Path) -> None:
    async with place(tmp_path, heartbeat=0.5) as here:
        key = await here.login("alice", ttl=1)

        assert (await here.poll(key, transport="longpolling")).status == 204


async def test_a_session_that_a_poll_kept_alive_ends_in_time_after_a_crash(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        key = await here.login("alice", ttl=1)
        poll = await hold(here, key)
        await live_on(here, "alice", 1, 3)
        await here.crash()
        await poll
        assert (await here.poll(key)).status == 204

        await here.crash()
        here.clock.advance(1.2)

        assert (await here.poll(key)).json == UNSET["noSession"]


async def test_other_nodes_see_that_a_held_poll_keeps_its_session_alive_and_when_it_ends(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two, _):
        key = await one.login("alice", ttl=1)
        poll = await hold(one, key)
        await live_on(one, "alice", 1, 3)
        await two.door.sessions.sweep()
        assert (await two.emit("alice", ["there"])).json == {"packs": {"alice": 1}}
        assert (await poll).json == {"1": [["there"]]}

        one.clock.advance(1.2)
        await two.door.sessions.sweep()

        assert (await two.emit("alice")).json["offline"] == ["alice"]


# ── months ─────────────────────────────────────────────────────────────────────────────────────


async def test_ids_go_on_over_months(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        key = await here.login("alice", ttl=MONTH * 2, follow=["/f"])
        month = here.door.sessions.month
        for number in range(3):
            await here.emit("alice", [f"m{number + 1}"])
        await here.poll(key)
        here.clock.advance(MONTH)
        assert here.door.sessions.month != month

        # What waits keeps the session in its old month …
        assert list((await here.poll(key, "1,2")).json) == ["3"]
        assert (await here.emit("alice", ["m4"])).json == {"packs": {"alice": 4}}
        assert list((await here.poll(key)).json) == ["3", "4"]
        assert await here.engine.mailbox.take("msgstream/alice", month) != []
        # … and when nothing does, it goes on in the new one, and its ids with it.
        assert (await here.poll(key, "3,4")).status == 204
        await here.engine.log.append(Batch((Draft("/f", b"5"),)))
        assert (await here.poll(key)).json == {"5": [["f", 5]]}
        assert (await here.emit("alice", ["m6"])).json == {"packs": {"alice": 6}}
        assert len(await here.engine.mailbox.take("msgstream/alice", here.door.sessions.month)) == 2
        await here.engine.mailbox.drop_month(month)
        await here.crash()
        assert list((await here.poll(key, "5")).json) == ["6"]
        assert (await here.emit("alice")).json == {"packs": {"alice": 7}}


async def without_end(here: Place, actor: str) -> list[tuple[str, int]]:
    """Items that neither wait nor have a record of their end: what an audit would call missing."""
    mailbox, name = here.engine.mailbox, f"msgstream/{actor}"
    ended = {(event.month, event.number) for event in await ledger(here, actor) if event.state in FINAL}
    found = []
    for month in await mailbox.months():
        waiting = {item.number for item in await mailbox.take(name, month)}
        numbers = range(1, (await mailbox.head(name, month)).next_number)
        found += [(month, number) for number in numbers if number not in waiting and (month, number) not in ended]
    return found


async def test_an_emit_during_the_change_of_the_month_is_not_lost(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        key = await here.login("alice", ttl=MONTH * 2)
        await here.poll(key)
        here.clock.advance(MONTH)
        emits = [asyncio.create_task(here.emit("alice", [f"m{n}"])) for n in range(4)]
        await asyncio.gather(here.poll(key), *emits)

        told = sorted(answer.json["packs"]["alice"] for answer in [task.result() for task in emits])
        assert told == [1, 2, 3, 4]
        assert sorted((await here.poll(key)).json) == ["1", "2", "3", "4"]
        assert await without_end(here, "alice") == []


class DoesNotWait(Sessions):
    """The sabotage: a pack counts for the month that it was stored in, though another is being written down."""

    async def put(self, session: Session, new: NewItem) -> Item:
        month = session.record.month
        (item,) = await self.context.mailbox.put(session.mailbox, month, [new])
        session.added([item], month)
        return item


@pytest.mark.parametrize(("kind", "lost"), [(Sessions, False), (DoesNotWait, True)])
async def test_an_emit_that_is_stored_while_the_change_of_the_month_is_written_is_not_lost(
    tmp_path: Path, kind: type[Sessions], lost: bool
) -> None:
    async with place(tmp_path, type("Door", (MessageStreamDoor,), {"kind": kind})) as here:
        key = await here.login("alice", ttl=MONTH * 2)
        await here.poll(key)
        left, put = record_now(here).month, here.engine.registry.put
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def held(name: str, value: bytes, **rest: Any) -> Record:
            if b'"former"' in value:
                begun.set()
                await go_on.wait()
            return await put(name, value, **rest)

        here.engine.registry.put = held  # type: ignore[method-assign]
        here.clock.advance(MONTH)
        polls = asyncio.create_task(here.poll(key))
        await begun.wait()
        emits = [asyncio.create_task(here.emit("alice", [f"m{n}"])) for n in range(2)]
        await wait_until_async(lambda: here.stored("alice", left) == 2)
        go_on.set()
        await polls

        assert sorted([(await task).json["packs"]["alice"] for task in emits]) == [1, 2]
        assert record_now(here).month != left
        answer = await here.poll(key)
        if lost:
            assert answer.status == 204
            return
        assert sorted(answer.json) == ["1", "2"]
        assert await without_end(here, "alice") == []


class MovesSilently(Sessions):
    """Takes an item that went on to another month away without a word."""

    async def _moved(self, actor: str, month: str, item: Item, to: str) -> None:
        await self.context.mailbox.confirm(f"msgstream/{actor}", month, [item.number])


@pytest.mark.parametrize(("kind", "silent"), [(Sessions, False), (MovesSilently, True)])
async def test_an_item_that_is_brought_along_ends_in_the_month_it_leaves(
    tmp_path: Path, kind: type[Sessions], silent: bool
) -> None:
    async with two_nodes(tmp_path, type("Door", (MessageStreamDoor,), {"kind": kind})) as (one, two, _):
        key = await one.login("alice", ttl=MONTH * 2)
        left = record_now(one).month
        one.clock.advance(MONTH)
        assert (await one.poll(key)).status == 204  # it has gone on
        await one.engine.mailbox.put("msgstream/alice", left, [NewItem("late", body=b'[["late"]]')])

        assert (await two.poll(key)).json == {"1": [["late"]]}
        assert bool(await without_end(two, "alice")) is silent


# ── storage that fails ─────────────────────────────────────────────────────────────────────────


async def test_a_poll_whose_confirmation_cannot_be_stored_is_told_so(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        key = await here.login("alice")
        await here.emit("alice")
        right = here.engine.mailbox.confirm

        async def broken(*_: object) -> Any:
            raise EngineGone("the disk is on fire")

        here.engine.mailbox.confirm = broken  # type: ignore[method-assign]
        answer = await here.poll(key, "1")
        assert (answer.status, answer.body) == (500, b"")
        async with connect(here.url(key)) as socket:
            await socket.recv()
            await socket.send("1")
            with pytest.raises(Exception, match="1011"):
                await socket.recv()
        here.engine.mailbox.confirm = right  # type: ignore[method-assign]

        assert (await here.poll(key)).json == {"1": [["test"]]}
        assert (await here.poll(key, "1")).status == 204


async def test_a_displaced_poll_is_not_answered_before_its_confirmation_is_durable(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        key = await here.login("alice")
        await here.emit("alice")
        await here.poll(key)
        gate, right = asyncio.Event(), here.engine.mailbox.confirm

        async def slow(*arguments: Any) -> Any:
            await gate.wait()
            return await right(*arguments)

        here.engine.mailbox.confirm = slow  # type: ignore[method-assign]
        first = asyncio.create_task(here.poll(key, "1"))
        await wait_until_async(lambda: here.door.sessions.connected == 1)
        second = asyncio.create_task(here.poll(key, transport="longpolling"))
        session = here.door.sessions.known["alice"]
        await wait_until_async(lambda: session.transport == "longpolling")
        assert not first.done()
        gate.set()
        assert (await first).status == 204
        await here.emit("alice", ["next"])
        assert (await second).json == {"2": [["next"]]}


async def test_quiet_sessions_are_forgotten_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SESSIONS_KNOWN > 1000
    monkeypatch.setattr("penstock.doors.msgstream.sessions.SESSIONS_KNOWN", 3)
    async with place(tmp_path) as here:
        keys = [await here.login(f"a{number}") for number in range(10)]
        assert len(here.door.sessions.known) == 3
        await here.emit("a0", ["still"])
        assert (await here.poll(keys[0])).json == {"1": [["still"]]}


# ── two nodes ──────────────────────────────────────────────────────────────────────────────────


async def test_a_session_is_served_by_any_node(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two, _):
        key = await one.login("alice", follow=["/f"])
        await two.emit("alice", ["m1"])
        assert (await one.poll(key)).json == {"1": [["m1"]]}
        await one.engine.log.append(Batch((Draft("/f", b"2"),)))
        assert list((await two.poll(key, "1")).json) == ["2"]
        assert (await one.emit("alice", ["m3"])).json == {"packs": {"alice": 3}}
        assert list((await one.poll(key)).json) == ["2", "3"]
        assert (await two.poll(key, "2,3")).status == 204
        assert (await one.poll(key)).status == 204


@pytest.mark.parametrize("deaf", [False, True])
async def test_an_emit_at_another_node_reaches_the_connection(tmp_path: Path, deaf: bool) -> None:
    async with two_nodes(tmp_path) as (one, two, wires):
        key = await one.login("alice")
        wires.deaf = deaf  # then it comes with the next look
        waiting = asyncio.create_task(one.poll(key, transport="longpolling"))
        await wait_until_async(lambda: one.door.sessions.connected == 1)
        assert (await two.emit("alice", ["far"])).json == {"packs": {"alice": 1}}
        assert (await waiting).json == {"1": [["far"]]}


@pytest.mark.parametrize("deaf", [False, True])
async def test_the_newest_connection_wins_across_nodes(tmp_path: Path, deaf: bool) -> None:
    async with two_nodes(tmp_path) as (one, two, wires):
        key = await one.login("alice")
        wires.deaf = deaf
        async with connect(one.url(key)) as first:
            await wait_until_async(lambda: one.door.sessions.connected == 1)
            async with connect(two.url(key)) as second:
                with pytest.raises(ConnectionClosedOK):
                    await asyncio.wait_for(first.recv(), 20)
                # The late end of the first changes nothing.
                await one.emit("alice", ["news"])
                assert json.loads(await asyncio.wait_for(second.recv(), 20)) == {"1": [["news"]]}
                await second.send("1")
                await wait_until_async(lambda: not two.door.sessions.known["alice"].machine.packs)
        assert (await one.poll(key)).status == 204


async def test_a_login_elsewhere_ends_a_connection_here(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two, _):
        key = await one.login("alice")
        waiting = asyncio.create_task(one.poll(key, transport="longpolling"))
        await wait_until_async(lambda: one.door.sessions.connected == 1)
        new = await two.login("alice")
        assert (await waiting).json == UNSET["keyMismatch"]
        assert (await one.poll(new)).status == 204
        held = asyncio.create_task(one.poll(new, transport="longpolling"))
        await wait_until_async(lambda: one.door.sessions.connected == 1)
        await two.ask("DELETE", "/v1/sessions/alice", reason="loggedOut")
        assert (await held).json == UNSET["loggedOut"]
        assert (await two.poll(new)).json == UNSET["noSession"]


async def test_what_was_put_into_the_old_month_at_the_last_moment_is_brought_along(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two, _):
        key = await one.login("alice", ttl=MONTH * 2)
        await one.emit("alice", ["m1"])
        await one.poll(key)
        kept = record_now(one)
        one.clock.advance(MONTH)
        assert (await one.poll(key, "1")).status == 204  # it has gone on
        await one.engine.mailbox.put("msgstream/alice", kept.month, [NewItem("late", body=b'[["late"]]')])
        assert (await two.poll(key)).json == {"2": [["late"]]}


class TrustsItsCopy(Sessions):
    """Believes that nobody else writes."""

    async def open(self, actor: str, secret: str | None = None) -> Session | str:
        session = self.known.get(actor)
        return await super().open(actor, secret) if session is None else self.why_not(actor, session.record, secret)

    def _lost(self, *_: object) -> None:
        """Everything is as it was."""


async def test_a_node_that_trusts_its_copy_is_found_out(tmp_path: Path) -> None:
    wrong = type("Wrong", (MessageStreamDoor,), {"kind": TrustsItsCopy})
    async with two_nodes(tmp_path, wrong) as (one, two, _):
        key = await one.login("alice")
        await one.poll(key)
        new = await two.login("alice")

        assert (await one.poll(new)).json == UNSET["keyMismatch"]
