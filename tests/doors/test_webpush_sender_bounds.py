"""What the sender remembers of push services is bounded, and what it forgets costs nobody a confirmation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from penstock.doors.webpush_sender import push_client, receipts
from penstock.doors.webpush_sender.push_client import PushClient
from penstock.doors.webpush_sender.receipts import AwaitedReceipts
from penstock.doors.webpush_sender.vapid_keys import make_key, open_given
from penstock.testing import TooLate, wait_until_async
from penstock.values import Batch, Draft, Entry
from penstock.wire.webpush_sender import PushOutcome, Verdict
from penstock.wire.webpush_tokens import receipt_stream
from tests.doors.test_webpush_sender_binding import Room, room, tokens

MOST, SERVICES = 3, 5


def origin(number: int) -> str:
    return f"https://push{number}.test"


async def published(here: Room, stream: str, body: bytes = b"x", type: str = "") -> Entry:
    """An entry, as the log has it."""
    appended = await here.context.log.append(Batch((Draft(stream, body, type),)))
    entry = await here.context.log.entry(appended.last.id)
    assert entry is not None
    return entry


def line(url: str) -> bytes:
    return msgspec.json.encode({"message": url, "status": 204})


class Forgetful(AwaitedReceipts):
    """The sabotage: what is awaited at a receipt subscription that was forgotten is forgotten, too."""

    def deliver(self, entries: Sequence[Entry]) -> None:
        self._forgot = False
        super().deliver(entries)

    deliver_last = AwaitedReceipts.deliver_last


@pytest.mark.parametrize("kind", [AwaitedReceipts, Forgetful])
async def test_more_services_than_are_remembered_confirm_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[AwaitedReceipts]
) -> None:
    monkeypatch.setattr(receipts, "_KNOWN", MOST)
    async with room(tmp_path) as here:
        names, proved = tokens(), list[str]()
        listening = kind(here.context, names, lambda binding: True, proved.append)
        await listening.start()
        ids = [names.receipt_id(7, number) for number in range(SERVICES)]
        for number, id in enumerate(ids):
            there = origin(number)
            verdict = Verdict(PushOutcome.ACCEPTED, location=f"{there}/m/1", receipt=f"{there}/r/{id}")
            await listening.expect(f"binding {number}", await published(here, "/news"), verdict, f"{there}/push", 0)

        assert list(listening._ids) == ids[-MOST:]
        assert list(listening._subscriptions) == [origin(number) for number in range(SERVICES)][-MOST:]
        for number, id in enumerate(ids):
            await published(here, receipt_stream(7), line(f"{origin(number)}/m/1"), type=id)
        everybody = [f"binding {number}" for number in range(SERVICES)]
        if kind is AwaitedReceipts:
            await wait_until_async(lambda: proved == everybody)
        else:
            await wait_until_async(lambda: proved == everybody[-MOST:])
            with pytest.raises(TooLate):
                await wait_until_async(lambda: len(proved) > MOST, within=0.2)
        await listening.stop()


def remember_all(known: dict[str, object], key: str, value: object, most: int) -> bool:
    """The sabotage: no bound."""
    known[key] = value
    return False


@pytest.mark.parametrize("sabotage", [None, remember_all])
async def test_outcomes_that_nobody_waits_for_are_kept_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sabotage: object
) -> None:
    monkeypatch.setattr(receipts, "_EARLY", MOST)
    if sabotage:
        monkeypatch.setattr(receipts, "_remember", sabotage)
    async with room(tmp_path) as here:
        names = tokens()
        listening = AwaitedReceipts(here.context, names, lambda binding: True, lambda binding: None)
        urls = [f"{origin(number)}/m/1" for number in range(SERVICES)]
        listening.deliver([await published(here, "/r", line(url), names.receipt_id(7, 1)) for url in urls])

        kept = urls if sabotage else urls[-MOST:]
        assert list(listening._early) == [receipts._digest(url) for url in kept]


@pytest.mark.parametrize("most", [MOST, 1 << 40])
def test_signatures_of_a_few_services_are_kept(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(push_client, "_SIGNED_ORIGINS", most)
    client = PushClient(open_given(make_key()), "mailto:a@example.net", 1.0)
    made = [client._authorization(origin(number)) for number in range(SERVICES)]

    assert len(set(made)) == SERVICES
    assert client._authorization(origin(SERVICES - 1)) == made[-1]  # the newest is used again
    assert (len(client._signed) <= MOST) == (most == MOST)
