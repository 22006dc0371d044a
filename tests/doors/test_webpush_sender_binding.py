"""A binding at an entry that cannot be sent, and receipts whose feed fails: both go on by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.fernet import Fernet

from penstock.api.auth import Authenticator, open_keys
from penstock.api.context import Context
from penstock.core.clock import WallClock
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger, LedgerEvent, decode
from penstock.doors.webpush_sender import receipts
from penstock.doors.webpush_sender.binding import POSITIONS, SEND_TRIES, Binding, BindingRecord
from penstock.doors.webpush_sender.bindings import Bindings
from penstock.doors.webpush_sender.push_client import PushClient, PushTarget
from penstock.doors.webpush_sender.receipts import AWAITED, AwaitedReceipt, AwaitedReceipts
from penstock.doors.webpush_sender.vapid_keys import make_key, open_given
from penstock.engines.memory import MemoryEngine
from penstock.errors import EngineGone
from penstock.http.timers import Wheel
from penstock.settings import HubSettings, WebPushSettings
from penstock.testing import TooLate, wait_until_async
from penstock.values import Batch, Draft, Entry
from penstock.wire.webpush_sender import PushOutcome, PushReceiver, PushSubscription, SendOptions, Verdict
from penstock.wire.webpush_tokens import EndpointTokens, receipt_stream
from tests.doors.push_service import Browser

BINDING = "3f9a4c21d07e55b1"


class Poisoned(PushClient):
    """Takes everything but one body, at which it breaks, as a defect of ours would."""

    def __init__(self) -> None:
        super().__init__(open_given(make_key()), "", 1.0)
        self.sent: list[bytes] = []
        self.broken = 0

    async def deliver(
        self,
        target: PushTarget,
        receiver: PushReceiver,
        message: bytes,
        options: SendOptions,
        receipt: str | None = None,
    ) -> Verdict:
        if message == b"poison":
            self.broken += 1
            raise RuntimeError("a defect")
        self.sent.append(message)
        return Verdict(PushOutcome.ACCEPTED)


class Breaking:
    """A log that can be made to fail at reads."""

    def __init__(self, log: Any) -> None:
        self._log, self.broken = log, False

    def __getattr__(self, name: str) -> Any:
        if self.broken and name.startswith("read"):
            raise EngineGone("the disk is away")
        return getattr(self._log, name)


@dataclass
class Room:
    context: Context
    log: Breaking

    async def publish(self, stream: str, *bodies: bytes, type: str = "") -> None:
        await self.context.log.append(Batch(tuple(Draft(stream, body, type) for body in bodies)))

    async def states(self, binding: str) -> list[LedgerEvent]:
        await self.context.ledger.flush()
        page = await self.context.log.read_after(("/_ledger",), 0)
        events = [event for entry in page.entries for event in decode(entry.body)[1]]
        return [event for event in events if event.recipient == binding]


@asynccontextmanager
async def room(keys: Path) -> AsyncIterator[Room]:
    clock = WallClock()
    async with MemoryEngine(clock=clock) as engine:
        log = Breaking(engine.log)
        async with Hub(log, HubSettings(recent=1)) as hub:  # type: ignore[arg-type]
            ledger = Ledger(engine.log, clock, node="test")
            await ledger.open(engine.registry)
            wheel = Wheel(asyncio.get_running_loop(), tick_seconds=0.01)
            context = Context(
                engine.log, engine.mailbox, engine.registry, engine.bus, hub, ledger,
                Authenticator(open_keys(keys), "admin"),
                clock, wheel, 1 << 20,
            )  # fmt: skip
            yield Room(context, log)
            wheel.close()
            await ledger.close()


def tokens() -> EndpointTokens:
    return EndpointTokens([Fernet.generate_key().decode()], b"test")


async def test_an_entry_that_fails_again_and_again_is_dropped_and_the_next_one_is_sent(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        client = Poisoned()
        bindings = Bindings(here.context, WebPushSettings(send_retry=0.001, send_retry_longest=0.002), client, tokens())
        await bindings.start()
        subscription = msgspec.convert(Browser().subscription("https://push.example.net/x"), PushSubscription)
        record = BindingRecord("/news", subscription, 600, "", "", False, "alice", True, (), 1, 0)
        await bindings.keep(BINDING, record)

        await here.publish("/news", b"before", b"poison", b"after")
        await wait_until_async(lambda: client.sent == [b"before", b"after"])
        await wait_until_async(lambda: bindings.running[BINDING].status.sent == 2)

        assert client.broken == SEND_TRIES
        dropped = [event for event in await here.states(BINDING) if event.state == "dropped"]
        assert [event.reason for event in dropped] == [f"given up after {SEND_TRIES} tries: RuntimeError: a defect"]
        assert bindings.running[BINDING].status.dropped == 1
        await bindings.stop()


class Refusing(Poisoned):
    """Refuses the first message, and takes it afterwards."""

    async def deliver(self, *given: Any, **named: Any) -> Verdict:
        verdict = await super().deliver(*given, **named)
        return verdict if len(self.sent) > 1 else Verdict(PushOutcome.REFUSED, "400")


class SlowPositions:
    """A registry that keeps positions only when it is let."""

    def __init__(self, registry: Any) -> None:
        self._registry, self.asked, self.let = registry, asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    async def put(self, key: str, value: bytes, **named: Any) -> Any:
        if key.startswith(POSITIONS):
            self.asked.set()
            await self.let.wait()
        return await self._registry.put(key, value, **named)


def held_means_to_be_sent(self: Binding, entries: Sequence[Entry]) -> None:
    """The sabotage: what it holds is taken for what it will send, also while it is given up."""
    self._waiting.extend(entry for entry in entries if entry not in self._waiting)


@pytest.mark.parametrize("sabotage", [None, held_means_to_be_sent])
async def test_what_is_given_up_can_be_sent_once_more_as_soon_as_that_is_seen(
    tmp_path: Path, sabotage: Callable[..., None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sabotage:
        monkeypatch.setattr(Binding, "redrive", sabotage)
    async with room(tmp_path) as here:
        slow: Any = SlowPositions(here.context.registry)
        client = Refusing()
        bindings = Bindings(replace(here.context, registry=slow), WebPushSettings(), client, tokens())
        await bindings.start()
        subscription = msgspec.convert(Browser().subscription("https://push.example.net/x"), PushSubscription)
        await bindings.keep(BINDING, BindingRecord("/news", subscription, 600, "", "", False, "a", True, (), 1, 0))

        # Given an entry that was given up, as everybody can see, while its position is not written yet
        await here.publish("/news", b"refused at first")
        await asyncio.wait_for(slow.asked.wait(), 60)
        assert [event.state for event in await here.states(BINDING)] == ["dropped"]

        # When it is to be sent once more, then it is
        (entry,) = (await here.context.log.read_after(("/news",), 0)).entries
        assert await bindings.try_again(BINDING, [entry.id]) == 1
        slow.let.set()
        await wait_until_async(lambda: bindings.running[BINDING].status.dropped == 1)
        await wait_until_async(lambda: not bindings.running[BINDING].full)
        assert len(client.sent) == (1 if sabotage else 2)
        await bindings.stop()


class OnlyAtTheStart(AwaitedReceipts):
    """The sabotage: a feed that failed is not begun again."""

    async def _go_on(self) -> None:
        while heard := self._heard[:1]:
            await self._settle(heard)
            del self._heard[:1]


@pytest.mark.parametrize(("kind", "goes_on"), [(AwaitedReceipts, True), (OnlyAtTheStart, False)])
async def test_receipts_are_heard_again_after_their_feed_has_failed(
    tmp_path: Path, kind: type[AwaitedReceipts], goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "RETRY_SECONDS", 0.01)
    async with room(tmp_path) as here:
        names = tokens()
        id, url = names.receipt_id(7, 1), "https://push.test/m/1"
        awaited = AwaitedReceipt(BINDING, "/news", 1, id)
        await here.context.registry.put(AWAITED + receipts._digest(url), msgspec.json.encode(awaited))
        line = msgspec.json.encode({"message": url, "status": 204})
        await here.publish(receipt_stream(7), line, type=id)
        await here.publish("/other", b"x", b"y")  # the line is in the log alone by now
        proved: list[str] = []
        here.log.broken = True
        listening = kind(here.context, names, lambda binding: True, proved.append)
        await listening.start()
        await wait_until_async(lambda: all(feed.stopped for feed in listening._feeds.values()))

        here.log.broken = False
        if goes_on:
            await wait_until_async(lambda: proved == [BINDING])
            assert [event.state for event in await here.states(BINDING)] == ["acked"]
        else:
            with pytest.raises(TooLate):
                await wait_until_async(lambda: proved == [BINDING], within=0.3)
        await listening.stop()
