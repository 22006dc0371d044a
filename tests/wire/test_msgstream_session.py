"""A session's state machine against a world in which anything happens in any order.

The world has a mailbox, a log, another node and clients. It knows what every client must get: each pack that was
stored, under one id, until its confirmation is durable and never after that; on the newest connection, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import EngineGone
from penstock.limits import CONFIRMS
from penstock.values import Entry, Item, Kind, MailboxHead
from penstock.wire.msgstream import LONG, SHORT, WEBSOCKET
from penstock.wire.msgstream_actions import (
    Action,
    ChangeMonth,
    ConfirmPacks,
    EndConnection,
    FetchPacks,
    PlainAction,
    RefreshPacks,
    SendPacks,
    SessionRecord,
    SessionRules,
    StartFeed,
    StoreEntries,
    WaitForPacks,
    pending,
)
from penstock.wire.msgstream_session import Following, Link, SessionMachine, Work

TTL = 100
LIMIT = 4  # packs that wait
PAGE = 3  # entries of a feed's page, and items of a mailbox's
BASE = 10  # packs of former sessions


class Client:
    """A connection."""

    def __init__(self, transport: str, must: set[str]) -> None:
        self.transport, self.must = transport, must  # must: what it names; nothing is answered before that is durable
        self.got: list[int] = []
        self.over = self.full = False

    def send(self, delivery: bytes, packs: Sequence[Any]) -> None: ...
    def wait(self) -> None: ...
    def end(self, reason: str, error: Exception | None) -> None: ...


@dataclass
class Box:
    """A mailbox of one month."""

    items: dict[int, Item] = field(default_factory=dict)
    next_number: int = BASE + 1
    position: int = 0

    def put(self, name: str, entry: Entry | None = None) -> Item:
        body = b"" if entry else name.encode()
        item = Item(self.next_number, 0, name, entry.id if entry else None, body, "/f" if entry else "", "", "", None)
        self.items[self.next_number] = item
        self.next_number += 1
        return item

    def after(self, number: int) -> list[Item]:
        return [item for one, item in sorted(self.items.items()) if one > number]

    @property
    def head(self) -> MailboxHead:
        return MailboxHead("a", "", self.next_number, self.position)


class World:
    """Performs actions, some of them later, and checks each."""

    def __init__(self, kind: type[SessionMachine] = SessionMachine, *, resend_all: bool = False) -> None:
        self.kind, self.rules = kind, SessionRules(LIMIT, 1 << 20, resend_all)
        self.now_ms, self.month, self.names = 0, "m1", count(1)
        self.boxes = {"m1": Box()}
        self.record = SessionRecord(
            digest="", created_ms=0, expires_ms=TTL * 1000, ttl=TTL, month="m1", base=BASE, after=0
        )
        self.log: list[Entry] = []
        self.ids: dict[int, str] = {}  # what each id stands for
        self.certain: set[str] = set()  # confirmed, and the machine knows it
        self.newest: Client | None = None
        self.clients: list[Client] = []
        self.load()

    def load(self) -> None:
        """As a node that knows nothing of the session."""
        self.feed: int | None = None
        self.storing: Action | None = None
        self.machine = self.kind(self.rules, self.record, self.box.head, self.now_ms)
        self.machine.load([pending(item) for item in self.box.after(0)])

    @property
    def box(self) -> Box:
        return self.boxes[self.record.month]

    # ── performing ────────────────────────────────────────────────────────────────────────────

    def perform(self, actions: list[Action]) -> None:
        assert not any(isinstance(one, StartFeed) or one is PlainAction.RESUME_FEED for one in actions[:-1])
        for action in actions:
            match action:
                case SendPacks():
                    self.sent(action)
                case EndConnection(client):
                    self.ended(action, client)  # type: ignore[arg-type]
                case WaitForPacks(client):
                    assert client.transport == LONG
                    assert client is self.newest
                case StartFeed(after):
                    assert self.feed is None
                    self.feed = after
                case PlainAction.RESUME_FEED:
                    self.pump()
                case PlainAction.STOP_FEED:
                    self.feed = None
                case PlainAction.BECOME_QUIET:
                    assert self.machine.link is Link.NONE
                case PlainAction.FORGET:
                    pass
                case _:
                    assert self.storing is None, "two things at once"
                    self.storing = action
        assert (self.machine.link is Link.NONE) == (self.machine.connection is None)
        assert sum(bool(item.entry_id) for item in self.box.items.values()) <= LIMIT + 2 * PAGE, "it takes too much"

    def sent(self, action: SendPacks) -> None:
        client: Client = action.connection  # type: ignore[assignment]
        numbers = [number for number, _ in action.bodies]
        assert client is self.newest, "a former connection was given something"
        assert not client.over
        assert numbers == sorted(set(numbers))
        assert [number for number, _ in action.packs] == numbers
        assert client.must <= self.certain
        if client.transport == WEBSOCKET:
            assert self.rules.resend_all or not client.got or numbers[0] > client.got[-1]
        else:
            client.over = True
        for number, body in action.bodies:
            item = self.box.items[number]
            assert body == item.body if isinstance(body, bytes) else body.id == item.entry_id
            assert item.message_id not in self.certain, "what was confirmed came again"
            assert self.ids.setdefault(number - self.record.base, item.message_id) == item.message_id
        client.got = numbers

    def ended(self, action: EndConnection, client: Client) -> None:
        assert not client.over, "it was ended twice"
        client.over = True
        if not action.reason and action.error is None:
            assert client.must <= self.certain, "it heard that its confirmation holds"

    # ── what happens ──────────────────────────────────────────────────────────────────────────

    def connect(self, transport: str, confirm: bool) -> None:
        ids = self.unconfirmed() if confirm else ()
        must = {self.ids[id] for id in ids} if transport != WEBSOCKET else set()
        self.newest = Client(transport, must)
        self.clients.append(self.newest)
        self.perform(self.machine.connect(self.newest, ids, self.now_ms, self.month))

    def unconfirmed(self) -> tuple[int, ...]:
        return tuple(id for id, name in self.ids.items() if name not in self.certain)

    def poll(self) -> None:
        """A short poll that is answered at once if there is nothing for it."""
        actions = self.machine.poll_without_waiting(self.now_ms, self.month)
        if actions is not None:
            assert not self.box.items
            assert all(entry.id <= self.machine.position or entry.id <= (self.feed or 0) for entry in self.log)
            self.newest = None
            self.perform(actions)

    def confirm(self, early: bool) -> None:
        """A frame of ids; *early*: one that names a pack which is still to come."""
        to_come = (self.machine.newest - self.record.base + 1,) if early else ()
        self.perform(self.machine.confirm((*self.unconfirmed(), *to_come), self.now_ms, self.month))

    def lose(self) -> None:
        if self.newest is not None:
            self.newest.over = True
            self.perform(self.machine.lost(self.newest))

    def dismiss(self) -> None:
        if self.newest is not None and not self.newest.over:
            self.perform(self.machine.dismiss(self.newest))

    def fill(self) -> None:
        if self.newest is not None and self.newest.transport == WEBSOCKET and self.machine.link is Link.OPEN:
            self.machine.filled(self.newest)

    def drain(self) -> None:
        if self.newest is not None:
            self.perform(self.machine.drained(self.newest))

    def emit(self, here: bool) -> None:
        item = self.box.put(f"e{next(self.names)}")
        if here:
            self.perform(self.machine.packs_added([item], self.record.month))
        else:
            self.perform(self.machine.hear_of(item.number))

    def publish(self) -> None:
        id = 1 + (self.log[-1].id if self.log else 0)
        entry = Entry(id, "/f", id, 0, 0, 0, Kind.DATA, "", 0, None, "", b"x")
        was_live = self.feed is not None and self.feed >= id - 1
        self.log.append(entry)
        if was_live and not self.machine.full and self.machine.following is Following.LIVE:
            self.feed = id
            self.perform(self.machine.delivered((entry,)))

    def pump(self) -> None:
        """The feed's turn."""
        if self.feed is None or self.machine.full:
            return
        page = [entry for entry in self.log if entry.id > max(self.feed, self.machine.position)][:PAGE]
        if page:
            self.feed = page[-1].id
            self.perform(self.machine.delivered(page))
        else:
            self.perform(self.machine.caught_up())

    def rival(self) -> None:
        """The node that served the session before makes packs of entries at the last moment."""
        for entry in [entry for entry in self.log if entry.id > self.box.position][:2]:
            self.box.put(str(entry.id), entry)
            self.box.position = entry.id

    def pass_time(self, month: bool) -> None:
        self.now_ms += TTL * 60
        self.month = f"m{int(self.month[1:]) + month}"
        self.perform(self.machine.touch(self.now_ms, self.month))

    def end(self, reason: str) -> None:
        self.perform(self.machine.end(reason))
        self.finish_last()

    def fail(self) -> None:
        """The storage fails, or it does not and nobody hears of it."""
        if self.storing is not None:
            self.storing = None
            self.perform(self.machine.fail(EngineGone("full")))
            self.finish_last()

    def conflict(self) -> None:
        """The record cannot be written now."""
        if self.storing is PlainAction.WRITE_LIFE or isinstance(self.storing, ChangeMonth):
            self.storing = None
            self.perform(self.machine.not_written())

    def finish_last(self) -> None:
        """The session is over: nobody is left waiting, and another node, or this one, begins anew."""
        if self.machine.work is Work.LAST_CONFIRM:
            self.store()
        assert self.machine.work is Work.OVER
        assert all(client.over for client in self.clients), "somebody waits for ever"
        self.newest = None
        self.load()

    # ── the storage ───────────────────────────────────────────────────────────────────────────

    def store(self) -> None:
        """What is asked of the storage is done."""
        action, self.storing = self.storing, None
        machine, box = self.machine, self.box
        match action:
            case RefreshPacks(after):
                self.perform(machine.refreshed(box.after(after)))
            case ConfirmPacks(packs):
                names = {number - self.record.base: box.items.pop(number).message_id for number, _ in packs}
                self.ids |= names  # those that were named early are known by now
                self.certain |= set(names.values())
                self.perform(machine.confirmed())
            case ChangeMonth(month):
                self.change_month(month)
            case StoreEntries(entries, expect) if box.position != expect:
                self.perform(machine.entries_overtaken(box.position))
            case StoreEntries(entries, _):
                items = [box.put(str(entry.id), entry) for entry in entries]
                box.position = entries[-1].id
                self.perform(machine.entries_stored(entries, items))
            case FetchPacks():
                self.fetch(action)
            case PlainAction.WRITE_LIFE:
                self.record = msgspec.structs.replace(self.record, expires_ms=machine.expires_ms + TTL * 100)
                self.perform(machine.life_written(self.record, self.now_ms))

    def change_month(self, month: str) -> None:
        machine = self.machine
        if machine.packs or self.box.items:
            self.perform(machine.not_written())
            self.perform(machine.hear_of())
            return
        base = BASE - (machine.newest - self.record.base)
        after = max(machine.position, self.box.position)
        box = self.boxes[month] = Box()
        self.record = msgspec.structs.replace(self.record, month=month, base=base, after=after)
        self.perform(machine.month_changed(self.record, box.head))

    def fetch(self, action: FetchPacks) -> None:
        items, upto = self.box.after(action.after), action.upto
        if not action.whole and len(items) > PAGE:
            items, upto = items[:PAGE], items[PAGE - 1].number
        texts = [(item.number, item.body or b"entry") for item in items]
        self.box.items |= {n: msgspec.structs.replace(i, body=i.body or b"entry") for n, i in self.box.items.items()}
        self.perform(self.machine.fetched(action.connection, texts, upto))

    # ── the end ───────────────────────────────────────────────────────────────────────────────

    def collect(self) -> None:
        """Ask for everything that is left, and confirm it."""
        for _ in range(20 + 4 * len(self.log) + self.box.next_number):
            self.connect(SHORT, confirm=True)
            client = self.clients[-1]
            for _ in range(50 + 4 * len(self.log)):
                self.pump()
                self.store()
                if client.over:
                    break
            assert client.over, "a short poll is held"
        names = {f"e{n}" for n in range(1, next(self.names))} | {str(entry.id) for entry in self.log}
        assert self.certain == names, "something was lost"
        assert sorted(self.ids) == list(range(1, len(names) + 1))


STEPS = st.one_of(
    st.tuples(st.just("connect"), st.sampled_from([SHORT, LONG, LONG, WEBSOCKET, WEBSOCKET]), st.booleans()),
    st.tuples(st.just("emit"), st.booleans()),
    st.sampled_from([("store",)] * 4 + [("pump",)] * 3),
    st.sampled_from(
        [("publish",), ("publish",), ("poll",), ("lose",), ("dismiss",), ("fill",), ("drain",), ("rival",)]
    ),
    st.tuples(st.just("confirm"), st.booleans()),
    st.tuples(st.just("pass_time"), st.booleans()),
    st.sampled_from([("fail",), ("conflict",), ("end", ""), ("end", "loggedOut")]),
)
SCRIPTS = st.lists(STEPS, max_size=60)


def play(script: list[Any], kind: type[SessionMachine] = SessionMachine, *, resend_all: bool = False) -> None:
    world = World(kind, resend_all=resend_all)
    for name, *arguments in script:
        getattr(world, name)(*arguments)
    world.collect()


@settings(max_examples=400)
@given(SCRIPTS, st.booleans())
def test_nothing_is_lost_and_nothing_confirmed_comes_again(script: list[Any], resend_all: bool) -> None:
    play(script, resend_all=resend_all)


def test_ids_that_wait_to_be_confirmed_are_bounded() -> None:
    world = World()
    world.emit(here=True)
    world.connect(WEBSOCKET, confirm=False)
    world.store()
    world.pump()
    world.store()
    for _ in range(CONFIRMS):
        assert not world.machine.too_many_confirmed
        world.confirm(early=False)

    assert world.machine.too_many_confirmed
    world.store()
    assert not world.machine.too_many_confirmed


# ── sabotage ───────────────────────────────────────────────────────────────────────────────────


class AnswersTooEarly(SessionMachine):
    """Serves a poll before what it names is durable."""

    def connect(self, *arguments: Any) -> list[Action]:
        actions = super().connect(*arguments)
        self.link = Link.OPEN
        return actions + self._serve(self.connection) if self.connection else actions


class ConfirmsWhatIsToCome(SessionMachine):
    """Takes all that waits for confirmed."""

    def confirmed(self) -> list[Action]:
        actions = super().confirmed()
        self.packs.clear()
        return actions


class KeepsTheFormer(SessionMachine):
    """Says nothing to the connection before."""

    def _end_connection(self, reason: str = "", error: Exception | None = None) -> list[Action]:
        return super()._end_connection(reason, error) if reason or error else []


class ForgetsEntries(SessionMachine):
    """Believes that what comes while nobody is connected was stored."""

    def delivered(self, entries: Sequence[Entry]) -> list[Action]:
        actions = super().delivered(entries)
        if self.connection is None:
            self.position = entries[-1].id
        return actions


class HearsNothing(SessionMachine):
    """Knows only of what was stored here."""

    def hear_of(self, number: int = 0) -> list[Action]:
        return []


EMIT, STORE, PUMP, CONFIRM = ("emit", True), ("store",), ("pump",), ("confirm", False)
SOCKET, HOLD = ("connect", WEBSOCKET, False), ("connect", LONG, False)
SABOTAGED: list[tuple[type[SessionMachine], list[Any]]] = [
    (AnswersTooEarly, [EMIT, SOCKET, PUMP, STORE, ("connect", SHORT, True)]),
    (ConfirmsWhatIsToCome, [EMIT, SOCKET, PUMP, STORE, CONFIRM, EMIT, STORE]),
    (KeepsTheFormer, [HOLD, SOCKET, ("end", "")]),
    (ForgetsEntries, [HOLD, PUMP, ("lose",), ("publish",)]),
    (HearsNothing, [("emit", False)]),
]


@pytest.mark.parametrize(("kind", "script"), SABOTAGED)
def test_the_world_finds_a_machine_that_is_wrong(kind: type[SessionMachine], script: list[Any]) -> None:
    play(script)

    with pytest.raises((AssertionError, KeyError)):
        play(script, kind)
