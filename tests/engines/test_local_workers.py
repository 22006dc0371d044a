"""Workers of one log process: who is given what, nothing missed, and one that is slow, silent or gone."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from penstock.core.feed import take_if_room
from penstock.core.hub import Hub
from penstock.core.ledger import Recipient
from penstock.doors.eventhorizon.subscriptions import Subscriptions
from penstock.engines.local import LogServer, WorkerEngine, open_worker_engine, served_worker
from penstock.engines.local.contracts import CALLS_AT_ONCE as AT_ONCE
from penstock.engines.local.contracts import SHORT, CallCost
from penstock.engines.local.frames import FrameCutter, LogFrame, Welcome, WorkerFrame, encode, framed
from penstock.engines.local.served_worker import ServedWorker
from penstock.engines.local.worker_calls import Call, LogCalls
from penstock.engines.local.worker_log import WorkerLog
from penstock.engines.memory import MemoryEngine
from penstock.engines.sqlite import open_sqlite
from penstock.engines.sqlite.log import SqliteLog
from penstock.errors import EngineGone
from penstock.limits import ENTRY_BYTES
from penstock.settings import LogSettings
from penstock.testing import TooLate, wait_until_async
from penstock.values import Batch, Draft, Kind
from penstock.wire import eventhorizon
from tests.faults.children import ENVIRONMENT, command

NO_EVENTS = ([], [], [])


class Machine:
    """A log process and its workers in one loop, with real sockets between them."""

    def __init__(self, log: LogServer, path: Path, stack: AsyncExitStack) -> None:
        self.log, self.path, self.stack = log, path, stack

    async def worker(self, name: str) -> WorkerEngine:
        engine = open_worker_engine(self.path, node=name, settings=LogSettings())
        return await self.stack.enter_async_context(engine)

    async def hub(self, worker: WorkerEngine) -> Hub:
        return await self.stack.enter_async_context(Hub(worker.log, selective=True))


@asynccontextmanager
async def started(
    directory: Path, *, durable: bool = False, kind: type[LogServer] = LogServer
) -> AsyncIterator[Machine]:
    async with AsyncExitStack() as stack:
        kept = open_sqlite(directory, node="log") if durable else MemoryEngine()
        engine = await stack.enter_async_context(kept)
        log = await stack.enter_async_context(kind(engine, directory / "log.sock"))
        yield Machine(log, directory / "log.sock", stack)


class Reader:
    """Takes what comes."""

    full = False

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.who = Recipient("test", "reader")

    def deliver(self, entries) -> None:
        self.got += [entry.body for entry in entries]

    deliver_last = take_if_room

    def gap(self, after: int, upto: int) -> None:
        raise AssertionError("nothing was trimmed")

    def failed(self, error: Exception) -> None:
        raise error


def data_of(entries) -> list[bytes]:
    return [entry.body for entry in entries if entry.index is not None]


def one(stream: str, body: bytes) -> Batch:
    return Batch((Draft(stream, body),))


# ── who is given what ─────────────────────────────────────────────────────────────────────────


async def test_an_entry_goes_once_to_each_worker_that_has_somebody_for_it(tmp_path: Path) -> None:
    async with started(tmp_path) as machine:
        a, b, c = [await machine.worker(name) for name in "abc"]
        given: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
        for name, worker in zip("abc", (a, b, c), strict=True):
            await machine.hub(worker)
            worker.log.followers.add(lambda entries, to=given[name]: to.extend(data_of(entries)))
        hub_b, hub_c = await machine.hub(b), await machine.hub(c)
        readers = [Reader() for _ in range(4)]
        for hub, reader, patterns in zip(
            (hub_b, hub_b, hub_c, hub_c), readers, [("/s",), ("/s", "/>"), ("/t",), ("/*",)], strict=True
        ):
            hub.start(reader, patterns)
        await a.log.append(one("/s", b"first"))
        await a.log.append(one("/u/x", b"second"))

        await wait_until_async(lambda: readers[1].got == [b"first", b"second"])
        await wait_until_async(lambda: readers[3].got == [b"first"])
        assert given == {"a": [], "b": [b"first", b"second"], "c": [b"first"]}
        assert (readers[0].got, readers[2].got) == ([b"first"], [])
        await wait_until_async(lambda: hub_c.position == a.log.followed)  # it has moved on all the same


async def test_what_nobody_wants_any_more_is_not_sent_any_more(tmp_path: Path) -> None:
    async with started(tmp_path) as machine:
        a, b = await machine.worker("a"), await machine.worker("b")
        hub, told = await machine.hub(b), []
        b.log.followers.add(lambda entries: told.extend(data_of(entries)))
        feeds = [hub.start(Reader(), ("/s",)) for _ in range(2)]
        await a.log.append(one("/s", b"1"))
        await wait_until_async(lambda: told == [b"1"])
        feeds[0].stop()
        await a.log.append(one("/s", b"2"))
        await wait_until_async(lambda: told == [b"1", b"2"])
        feeds[1].stop()
        await b.registry.get("x")  # an answer comes after all that was said before
        await a.log.append(one("/s", b"3"))
        await wait_until_async(lambda: b.log.followed == a.log.followed)

        assert told == [b"1", b"2"]


def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long to look up is looked up as it is."""
    monkeypatch.setattr(served_worker, "quick_cover", lambda pattern: pattern)


@pytest.mark.parametrize("sabotage", [None, narrow])
async def test_a_pattern_that_takes_long_to_look_up_is_looked_up_as_a_wider_one(
    tmp_path, sabotage, monkeypatch
) -> None:
    if sabotage:
        sabotage(monkeypatch)
    async with started(tmp_path) as machine:
        a, b = await machine.worker("a"), await machine.worker("b")
        hub, readers, told = await machine.hub(b), [Reader(), Reader()], []
        b.log.followers.add(lambda entries: told.extend(data_of(entries)))
        feeds = [hub.start(readers[0], ("/1/2/*/4/5/6/*",)), hub.start(readers[1], ("/1/2/*/4/5/6/x/*",))]
        await a.log.append(one("/1/2/3/4/5/6/y/z", b"of neither"))
        await a.log.append(one("/1/2/3/4/5/6/7", b"1"))
        await wait_until_async(lambda: readers[0].got == [b"1"])
        assert told == ([b"1"] if sabotage else [b"of neither", b"1"])
        feeds[0].stop()
        await a.log.append(one("/1/2/3/4/5/6/x/8", b"2"))
        await wait_until_async(lambda: readers[1].got == [b"2"])
        feeds[1].stop()
        await b.registry.get("x")  # an answer comes after all that was said before
        await a.log.append(one("/1/2/3/4/5/6/7", b"3"))
        await wait_until_async(lambda: b.log.followed == a.log.followed)

        assert told[-1] == b"2"
        assert readers[0].got == [b"1"]


def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believes to be sent what it wants as soon as it has asked."""
    monkeypatch.setattr(WorkerLog, "since", lambda self, pattern: 0)


@pytest.mark.parametrize("sabotage", [None, trusting])
async def test_what_comes_before_a_new_wish_is_known_is_not_missed(tmp_path, sabotage, monkeypatch) -> None:
    async with started(tmp_path) as machine:
        a, b = await machine.worker("a"), await machine.worker("b")
        hub, reader = await machine.hub(b), Reader()
        if sabotage:
            sabotage(monkeypatch)
        # Given a reader that begins while entries are on their way to the log
        appends = [a.log.append(one("/s", b"%d" % number)) for number in range(5)]
        a._link.flush()
        hub.start(reader, ("/s",), after=0)
        await asyncio.gather(*appends)
        # Then it gets them, and what comes later, in order
        await a.log.append(one("/s", b"5"))
        if sabotage:
            await wait_until_async(lambda: b"5" in reader.got)
            assert len(reader.got) < 6
            return
        await wait_until_async(lambda: len(reader.got) >= 6)
        assert reader.got == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("sabotage", [None, trusting])
async def test_a_live_feed_that_wants_other_streams_misses_nothing_of_them(tmp_path, sabotage, monkeypatch) -> None:
    async with started(tmp_path) as machine:
        a, b = await machine.worker("a"), await machine.worker("b")
        hub, reader = await machine.hub(b), Reader()
        await a.log.append(one("/t", b"old"))
        feed = hub.start(reader, ("/s",))
        await wait_until_async(lambda: not feed.behind)
        if sabotage:
            sabotage(monkeypatch)
        before = b.log.followed
        sent = a.log.append(one("/t", b"new"))
        a._link.flush()
        feed.change(("/t",))
        await sent
        assert before < a.log.followed
        await a.log.append(one("/t", b"newer"))
        await wait_until_async(lambda: b"newer" in reader.got)

        assert reader.got == ([b"newer"] if sabotage else [b"new", b"newer"])


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends the meta entry, and not what comes after it in the stream."""
    monkeypatch.setattr(
        LogServer, "_want_type", lambda self, entry: [link for link in self.links if entry.type in link.types]
    )


@pytest.mark.parametrize("sabotage", [None, forgetful])
async def test_a_stream_that_was_subscribed_elsewhere_is_followed_from_there_on(
    tmp_path, sabotage, monkeypatch
) -> None:
    async with started(tmp_path) as machine:
        a, b = await machine.worker("a"), await machine.worker("b")
        if sabotage:
            sabotage(monkeypatch)
        subscriptions = Subscriptions(b.log, b.registry, alone=False)
        await subscriptions.load()
        payload = eventhorizon.subscribed("/_sub/app", eventhorizon.timestamp(0))
        subscribed = Draft("/s", payload, "Subscribed", kind=Kind.META)
        await asyncio.gather(a.log.append(Batch((subscribed,))), a.log.append(one("/s", b"x")))

        head = await a.log.head("/s")

        def seen() -> bool:
            newest = subscriptions.newest("/s")
            return newest is not None and newest.offset == head.offset

        if sabotage:
            await wait_until_async(lambda: bool(subscriptions.streams("/_sub/app")))
            with pytest.raises(TooLate):
                await wait_until_async(seen, within=0.5)
            return
        await wait_until_async(seen)
        assert subscriptions.moved == {"/_sub/app": {"/s"}}


# ── members ───────────────────────────────────────────────────────────────────────────────────


async def test_members_are_those_who_are_connected(tmp_path: Path) -> None:
    async with started(tmp_path) as machine:
        a = await machine.worker("a")
        changes: list[tuple[str, ...]] = []
        a.members.on_change.append(lambda: changes.append(a.members.living()))
        async with open_worker_engine(machine.path, node="b", settings=LogSettings()) as b:
            them = b.members.me
            await wait_until_async(lambda: them in a.members.living())
            assert not await a.members.is_dead(them)
            assert a.members.living() == b.members.living()
        await wait_until_async(lambda: them not in a.members.living())
        assert await a.members.is_dead(them)
        assert changes


def hard_of_hearing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that listens when its greeting's coroutine goes on, and has not kept what came before."""
    welcomed = WorkerEngine._welcomed

    def later(self: WorkerEngine, hello: Call) -> None:
        asyncio.get_running_loop().call_soon(welcomed, self, hello)

    def listen(self: LogCalls, hear: Callable[[LogFrame], None]) -> None:
        self.hear = hear

    monkeypatch.setattr(WorkerEngine, "_welcomed", later)
    monkeypatch.setattr(LogCalls, "listen", listen)


class Greeting(asyncio.Protocol):
    """A log process by hand. In one write it says hello, and who has come: in the same frame or in the next."""

    def __init__(self, *, in_the_same_frame: bool) -> None:
        self._same, self._cutter = in_the_same_frame, FrameCutter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for frame in self._cutter.cut(data):
            for number, name, given in msgspec.msgpack.decode(frame, type=WorkerFrame).calls:
                assert name == "hello"
                _, me, _ = msgspec.msgpack.decode(given)
                welcome = msgspec.Raw(encode(Welcome("fsync", "s", 5, 0, [me])))
                both = [me, "other:1"]
                self._transport.write(
                    bytes(framed((5, 0, "", both if self._same else [me], [], [], [], [(number, welcome)], [], [])))
                    + bytes(framed((5, 0, "", None if self._same else both, [], [], [], [], [], [])))
                )


@pytest.mark.parametrize("in_the_same_frame", [True, False])
@pytest.mark.parametrize("sabotage", [None, hard_of_hearing])
async def test_who_joins_while_a_worker_is_welcomed_is_known_to_it(
    tmp_path, sabotage, in_the_same_frame, monkeypatch
) -> None:
    if sabotage:
        sabotage(monkeypatch)
    path = tmp_path / "log.sock"
    listening = await asyncio.get_running_loop().create_unix_server(
        lambda: Greeting(in_the_same_frame=in_the_same_frame), path
    )
    async with listening, open_worker_engine(path, node="a", settings=LogSettings()) as worker:
        await asyncio.sleep(0)  # what came in one read has been taken

        assert len(worker.members.living()) == (1 if sabotage else 2)


@pytest.mark.parametrize("sabotage", [None, hard_of_hearing])
async def test_workers_that_come_at_once_all_know_each_other(tmp_path, sabotage, monkeypatch) -> None:
    if sabotage:
        sabotage(monkeypatch)
    async with started(tmp_path) as machine:
        workers = await asyncio.gather(*(machine.worker(name) for name in "abcdefgh"))
        await asyncio.gather(*(worker.registry.get("x") for worker in workers))  # comes after what was told before

        alike = {worker.members.living() for worker in workers} == {tuple(machine.log.members())}
        assert alike == (not sabotage)


async def test_a_worker_whose_log_process_is_gone_says_so_to_all_who_wait(tmp_path: Path) -> None:
    engine = MemoryEngine()
    path = tmp_path / "log.sock"
    async with (
        LogServer(engine, path) as log,
        open_worker_engine(path, node="a", settings=LogSettings()) as worker,
    ):
        for link in list(log.links):
            link.abort()
        waiting = worker.log.append(one("/s", b"x"))
        with pytest.raises(EngineGone):
            await waiting
        assert worker.trouble
        assert not worker.members.holds
        with pytest.raises(EngineGone):
            await worker.registry.get("x")


# ── peers that do harm ────────────────────────────────────────────────────────────────────────


class Peer:
    """A worker by hand: it says what it is told to, and reads nothing."""

    def __init__(self, machine: Machine) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(machine.path))
        machine.stack.callback(self._socket.close)

    @classmethod
    async def join(cls, machine: Machine, name: str) -> Peer:
        peer = cls(machine)
        peer.call(1, "hello", (name, f"{name}:1", True))
        await wait_until_async(lambda: machine.log.link_of(name) is not None)
        return peer

    def call(self, number: int, name: str, arguments: object) -> None:
        raw = msgspec.Raw(msgspec.msgpack.encode(arguments))
        self.say(framed(([], [], NO_EVENTS, [], [(number, name, raw)], [], [])))

    def append(self, number: int, batch: Batch) -> None:
        self.say(framed(([], [], NO_EVENTS, [(number, batch)], [], [], [])))

    def say(self, frame: bytes | bytearray) -> None:
        self._socket.sendall(frame)

    def read(self, count: int) -> None:
        """Take that many bytes, and no more."""
        while count > 0:
            count -= len(self._socket.recv(min(count, 1 << 20)))

    def leave(self) -> None:
        self._socket.close()


def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_worker, "WAITING_BYTES", 2**40)


@pytest.mark.parametrize("sabotage", [None, unbounded])
async def test_a_worker_that_takes_nothing_is_cut_and_no_other_notices(tmp_path, sabotage, monkeypatch) -> None:
    async with started(tmp_path) as machine:
        monkeypatch.setattr(served_worker, "WAITING_BYTES", 2 * 1024 * 1024)
        if sabotage:
            sabotage(monkeypatch)
        innocent = await machine.worker("innocent")
        hub, reader = await machine.hub(innocent), Reader()
        hub.start(reader, ("/s",))
        await Peer.join(machine, "slow")
        slow, most = machine.log.link_of("slow"), 0
        for number in range(60):
            await innocent.log.append(one("/s", b"%d " % number + bytes(200_000)))
            most = max(most, slow.waiting_bytes)
        await wait_until_async(lambda: len(reader.got) == 60)

        assert [int(body.partition(b" ")[0]) for body in reader.got] == list(range(60))
        assert (most > 5_000_000, machine.log.link_of("slow") is None) == (bool(sabotage), not sabotage)
        assert innocent.members.holds


def stalling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server for which nobody leaves: answers are made for those who are gone, and it raises."""

    def flush(self: ServedWorker) -> None:
        if not self.is_open:
            self._loop.call_soon(self._server._listening.close)
            for link in list(self._server.links):
                link.abort()
        Link_flush(self)

    Link_flush = ServedWorker.flush  # noqa: N806
    monkeypatch.setattr(ServedWorker, "flush", flush)


@pytest.mark.parametrize("sabotage", [None, stalling])
async def test_an_answer_to_a_worker_that_has_left_harms_nobody(tmp_path, sabotage, monkeypatch) -> None:
    async with started(tmp_path, durable=True) as machine:
        if sabotage:
            sabotage(monkeypatch)
            with pytest.raises((EngineGone, OSError)):
                await leave_in_the_middle(machine, await machine.worker("innocent"))
        else:
            innocent = await machine.worker("innocent")
            await leave_in_the_middle(machine, innocent)
            assert innocent.members.holds


async def leave_in_the_middle(machine: Machine, innocent: WorkerEngine) -> None:
    for number in range(20):
        name = f"peer-{number}"
        peer = await Peer.join(machine, name)
        for call in range(10):
            peer.append(100 + call, one("/s", b"x"))
            peer.call(200 + call, "log.read_after", ([">"], 0, 1000, 2**20, False, False))
            peer.call(300 + call, "send", ("innocent", "nothing", b""))
        peer.leave()
        await wait_until_async(lambda name=name: machine.log.link_of(name) is None)
        await innocent.log.append(one("/s", b"beside"))


def wordless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose good-bye is not heard."""
    monkeypatch.setattr(ServedWorker, "_leaving", property(lambda self: False, lambda self, value: None), raising=False)


@pytest.mark.parametrize("sabotage", [None, wordless])
async def test_who_goes_without_a_word_is_killed_and_nobody_else(tmp_path, sabotage, monkeypatch) -> None:
    if sabotage:
        sabotage(monkeypatch)
    async with started(tmp_path) as machine:
        innocent, ends = await machine.worker("innocent"), {}
        for how in ("says good-bye", "goes without a word", "never said who it is"):
            child = await asyncio.create_subprocess_exec(
                *command("tests.engines.leaving_worker", machine.path, how), env=ENVIRONMENT, stdin=-1, stdout=-1
            )
            await child.stdout.readline()  # or the end, if it is killed before
            await wait_until_async(lambda: len(machine.log.links) == 1)
            await innocent.log.append(one("/s", b"beside"))
            if how == "goes without a word":
                await child.wait()  # else it would wait for the end of its input
            child.stdin.close()
            ends[how] = await child.wait()

        assert ends["goes without a word"] == -signal.SIGKILL
        assert ends["never said who it is"] == 0
        assert ends["says good-bye"] == (-signal.SIGKILL if sabotage else 0)
        assert innocent.members.holds


class BlamesWorkers(LogServer):
    """Sabotage: does not notice that it stood still itself."""

    async def _look_after(self) -> None:
        self._looked = asyncio.get_running_loop().time()
        await super()._look_after()


class Patient(LogServer):
    """Sabotage: waits for ever."""

    async def _look_after(self) -> None:
        for link in self.links:
            link.heard = asyncio.get_running_loop().time()
        await super()._look_after()


async def check_silence(machine: Machine) -> None:
    """A worker that is silent is cut, but not by a log process that stood still itself; another notices nothing."""
    innocent, log = await machine.worker("innocent"), machine.log
    await Peer.join(machine, "silent")
    silent, now = log.link_of("silent"), asyncio.get_running_loop().time()
    silent.heard = now - served_worker.SILENT_SECONDS - 1
    log._looked = now - served_worker.SILENT_SECONDS
    await log._look_after()
    assert (log.cut, log.link_of("silent")) == (0, silent)
    silent.heard = now - served_worker.SILENT_SECONDS - 1
    await log._look_after()
    assert log.cut == 1
    await wait_until_async(lambda: log.link_of("silent") is None)
    await innocent.log.append(one("/s", b"beside"))
    assert (log.cut, innocent.members.holds) == (1, True)


async def test_a_worker_that_is_silent_is_cut_but_not_by_a_log_process_that_stood_still(tmp_path: Path) -> None:
    async with started(tmp_path) as machine:
        await check_silence(machine)


@pytest.mark.parametrize("kind", [BlamesWorkers, Patient])
async def test_the_same_check_finds_a_log_process_that_is_too_strict_or_too_patient(
    tmp_path: Path, kind: type[LogServer]
) -> None:
    async with started(tmp_path, kind=kind) as machine:
        with pytest.raises(AssertionError):
            await check_silence(machine)


def in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls of a worker wait for each other."""
    monkeypatch.setattr(served_worker, "cost_of", lambda name, arguments: CallCost(SHORT))


@pytest.mark.parametrize("sabotage", [None, in_one_line])
async def test_looks_through_all_names_hold_up_no_short_call_of_the_same_worker(
    tmp_path, sabotage, monkeypatch
) -> None:
    async with started(tmp_path, durable=True) as machine:
        worker = await machine.worker("a")
        await worker.log.append(Batch(tuple(Draft(f"/n{number}/y", b"x") for number in range(100))))
        if sabotage:
            sabotage(monkeypatch)
        scans = [asyncio.create_task(worker.log.heads("/*/x")) for _ in range(300)]
        await asyncio.sleep(0)  # they are called before what follows
        page = await worker.log.read_index("/n7/y", 0, limit=1)
        await worker.registry.get("x")
        before = sum(scan.done() for scan in scans)
        assert data_of(page.entries) == [b"x"]
        for scan in scans:
            scan.cancel()

        assert before > 300 - 2 * AT_ONCE[SHORT] if sabotage else before < 150


def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServedWorker, "_give_up", lambda self, number: None)


@pytest.mark.parametrize("sabotage", [None, in_one_line, unheard])
async def test_calls_that_wait_for_ever_hold_up_no_other_and_end_with_their_callers(
    tmp_path, sabotage, monkeypatch
) -> None:
    async with started(tmp_path) as machine:
        worker, count = await machine.worker("a"), 2 * AT_ONCE[SHORT]
        await Peer.join(machine, "silent")
        link = machine.log.link_of("a")
        if sabotage:
            sabotage(monkeypatch)

        def under_way() -> int:
            return sum(map(len, link._running.values()))

        call = worker._link.call
        letters = [
            asyncio.create_task(worker._link.wait_for(call("send", bool, "silent", "topic", b""))) for _ in range(count)
        ]
        await wait_until_async(lambda: under_way() >= AT_ONCE[SHORT])
        short = asyncio.create_task(worker.registry.get("x"))
        if sabotage is in_one_line:
            with pytest.raises(TooLate):
                await wait_until_async(short.done, within=0.5)
            short.cancel()
            return
        assert await short is None
        for letter in letters:
            letter.cancel()
        if sabotage is unheard:
            with pytest.raises(TooLate):
                await wait_until_async(lambda: not under_way(), within=0.5)
            return
        await wait_until_async(lambda: not under_way())
        assert await worker.registry.get("x") is None  # the link is as it was


def unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives a call up hears no more of it."""
    monkeypatch.setattr(ServedWorker, "_fail", lambda self, number, error: None)


@pytest.mark.parametrize("sabotage", [None, unanswered])
async def test_a_call_that_is_given_up_before_it_begins_leaves_nothing_behind(tmp_path, sabotage, monkeypatch) -> None:
    async with started(tmp_path, durable=True) as machine:
        worker = await machine.worker("a")
        await worker.log.append(one("/s", b"x"))
        if sabotage:
            sabotage(monkeypatch)
        for number in range(50):
            read = asyncio.create_task(worker.log.read_after(("/s",), 0, limit=900 - number))
            await asyncio.sleep(0)  # it is called, and given up in the same frame
            read.cancel()
            await asyncio.wait([read])
        if sabotage:
            with pytest.raises(TooLate):
                await wait_until_async(lambda: not worker._link._calls_open, within=0.5)
            return
        await wait_until_async(lambda: not worker._link._calls_open)


class DelayedPage:
    """Reads of a log, the first of which has its page at once, and gives it when `gate` is set."""

    def __init__(self, log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read_after, self.reads, self.made, self.gate = log.read_after, 0, asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(log, "read_after", self._delayed)

    async def _delayed(self, *given, **named):
        self.reads += 1
        page = await self._read_after(*given, **named)
        if not self.made.is_set():
            self.made.set()
            await self.gate.wait()
        return page


def shared_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read joins one that is under way, as those of the hub do."""
    read_after = WorkerLog.read_after
    monkeypatch.setattr(
        WorkerLog, "read_after", lambda self, patterns, after: read_after(self, patterns, after, ahead=True)
    )


@pytest.mark.parametrize("publisher", ["the same worker", "another"])
@pytest.mark.parametrize("sabotage", [None, shared_by_all])
async def test_a_read_sees_what_was_acknowledged_before_it_though_another_is_under_way(
    tmp_path, sabotage, publisher, monkeypatch
) -> None:
    if sabotage:
        sabotage(monkeypatch)
    async with started(tmp_path, durable=True) as machine:
        reader, other = await machine.worker("a"), await machine.worker("b")
        await reader.log.append(one("/s", b"old"))
        delayed = DelayedPage(machine.log.engine.log, monkeypatch)
        # Given a page that was made, and is on its way
        before = asyncio.create_task(reader.log.read_after(("/s",), 0))
        await delayed.made.wait()
        # When an event is acknowledged, and then somebody asks for the same page
        await (reader if publisher == "the same worker" else other).log.append(one("/s", b"new"))
        after = asyncio.create_task(reader.log.read_after(("/s",), 0))
        await reader.registry.get("x")  # it was asked for
        delayed.gate.set()

        assert data_of((await before).entries) == [b"old"]
        assert data_of((await after).entries) == ([b"old"] if sabotage else [b"old", b"new"])


async def test_wires_that_come_back_together_share_a_page_and_miss_nothing(tmp_path, monkeypatch) -> None:
    async with started(tmp_path, durable=True) as machine:
        worker = await machine.worker("a")
        await worker.log.append(one("/s", b"old"))
        hub, readers = await machine.hub(worker), [Reader() for _ in range(4)]
        delayed = DelayedPage(machine.log.engine.log, monkeypatch)
        for reader in readers[:3]:
            hub.start(reader, ("/s",), after=0)
        await delayed.made.wait()
        await worker.log.append(one("/s", b"new"))
        hub.start(readers[3], ("/s",), after=0)
        await worker.registry.get("x")
        assert delayed.reads == 1
        delayed.gate.set()

        await wait_until_async(lambda: all(reader.got == [b"old", b"new"] for reader in readers))


def promises_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_worker, "PROMISED_BYTES", 2**40)


@pytest.mark.parametrize("sabotage", [None, promises_without_end])
async def test_large_answers_are_no_reason_to_cut_a_worker_that_is_busy_for_a_moment(
    tmp_path, sabotage, monkeypatch
) -> None:
    async with started(tmp_path, durable=True) as machine:
        monkeypatch.setattr(served_worker, "WAITING_BYTES", 32 * ENTRY_BYTES)
        monkeypatch.setattr(served_worker, "PROMISED_BYTES", 8 * ENTRY_BYTES)
        if sabotage:
            sabotage(monkeypatch)
        innocent = await machine.worker("innocent")
        await innocent.log.append(one("/big/x", bytes(ENTRY_BYTES - 1024)))
        # When a worker asks for a hundred pages at once, and reads none of them yet
        peer = await Peer.join(machine, "busy")
        for number in range(100):
            peer.call(10 + number, "log.read_after", (("/big/*",), 0, 1000 - number, ENTRY_BYTES, False, False))
        link = machine.log.link_of("busy")
        await wait_until_async(lambda: machine.log.cut or (link.waiting_bytes and not any(link._running.values())))

        # Then it is still a member, and what waits for it is bounded; nobody else waits
        assert (machine.log.cut == 1) == bool(sabotage)
        assert await innocent.registry.get("x") is None
        if not sabotage:
            assert link.waiting_bytes < 16 * ENTRY_BYTES
            await asyncio.to_thread(peer.read, 100 * (ENTRY_BYTES - 1024))
            await wait_until_async(lambda: not any(link._queues.values()) and not link.waiting_bytes)
            assert not link._promised_bytes


async def test_what_is_no_frame_ends_its_own_link_alone(tmp_path: Path) -> None:
    async with started(tmp_path) as machine:
        innocent = await machine.worker("innocent")
        frames = [[1, 2], (1, [], NO_EVENTS, [], [], [], []), ([], [], ([7], ["/s"], []), [], [], [], []),
                  ([], [], ([7, 8], ["/s"], [b"x"]), [], [], [], [])]  # fmt: skip
        for garbage in (b"\0\0\0\3abc", b"\0\0\0\1\xc1", *map(framed, frames)):
            peer = await Peer.join(machine, "garbled")
            peer.say(garbage)
            await wait_until_async(lambda: machine.log.link_of("garbled") is None)
        await innocent.log.append(one("/s", b"x"))


async def test_a_call_that_does_not_exist_fails_by_itself(tmp_path: Path) -> None:
    async with started(tmp_path) as machine:
        worker = await machine.worker("a")
        for name, given in (("log.nothing", ()), ("nothing", ()), ("log.head", (1, 2, 3))):
            with pytest.raises((EngineGone, ValueError)):
                await worker._link._begin(name, given, msgspec.msgpack.Decoder())
        assert await worker.log.head("/s") is None
