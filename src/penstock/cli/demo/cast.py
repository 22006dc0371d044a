"""All who take part in the demo, and the count: what was acknowledged, and what each of them has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from penstock.cli.demo.film import SEGMENT_BYTES, Camera, Viewer
from penstock.cli.demo.listeners import App, Game, OrderClient, Phone, WebPage
from penstock.cli.demo.orders import Shop
from penstock.client.api import Client
from penstock.errors import OperatorError

SILENCE_SECONDS: Final = 20.0
"""Without anything new for so long, what has not come is missing."""

_LOOK_SECONDS: Final = 0.02


class DemoFailed(OperatorError):
    """Something did not come, came twice, or cannot be proved."""

    code = "demo_failed"
    remedy = "Keep the folder with --data DIR and look at server.log there."


class Cast:
    """A shop that publishes orders, four who get them, a camera, and one who watches its film."""

    def __init__(self, admin: Client, folder: Path) -> None:
        url, token = admin.url, admin.token
        self.admin, self.shop, self.page = admin, Shop(url, token), WebPage(url, admin)
        self.listeners: list[OrderClient] = [
            Phone(url, admin), self.page, App(url, admin, folder / "app.db"), Game(url, admin),
        ]  # fmt: skip
        self.camera, self.viewer = Camera(url, token), Viewer(url, token)

    def start(self, stack: ExitStack) -> None:
        """Let all of them listen until *stack* ends."""
        for listener in self.listeners:
            stack.enter_context(listener)
        stack.enter_context(self.camera)
        if not (self.camera.ready.wait(SILENCE_SECONDS) and self.page.wait_for_the_wire(SILENCE_SECONDS)):
            self.check_health()
            raise DemoFailed("the server did not let the film's camera and the page in")
        stack.enter_context(self.viewer)

    def check_health(self) -> None:
        """Fail if one of them has met what it cannot deal with."""
        for name, failure in (
            *((one.name, one.failure) for one in self.listeners),
            (self.viewer.name, self.viewer.failure),
            ("camera", self.camera.failure),
            ("shop", self.shop.failure),
        ):
            if failure is not None:
                raise DemoFailed(f"the {name} failed: {type(failure).__name__}: {failure}") from failure

    # ── waiting ──

    def wait_for_orders(self, listeners: Sequence[OrderClient]) -> None:
        """Until each of *listeners* has all that was acknowledged, or nothing new comes any more."""
        wanted = set(self.shop.acknowledged)
        self._wait(
            lambda: all(wanted <= set(one.numbers()) for one in listeners),
            lambda: sum(len(one.numbers()) for one in listeners),
        )

    def wait_for_film(self) -> None:
        """The same for the viewer."""
        self._wait(lambda: set(self.camera.acknowledged) <= self.viewer.seen, lambda: len(self.viewer.seen))

    def wait_for_proof(self, entry: str, listener: OrderClient) -> list[dict[str, Any]]:
        """What the ledger has of an entry that *listener* got: its states, the last of which is `acked`."""
        answer: dict[str, Any] = {}

        def is_acked() -> bool:
            answer.update(self.admin.why(entry, listener.recipient))
            return bool(answer["verdict"] == "acked")

        self._wait(is_acked, lambda: len(answer["events"]))
        if not is_acked():
            raise DemoFailed(f"the {listener.name} has entry {entry}, and the ledger says {answer['verdict']}")
        events: list[dict[str, Any]] = answer["events"]
        return events

    def _wait(self, is_done: Callable[[], bool], progress: Callable[[], int]) -> None:
        """Wait while there is progress. What is not there then is for the count to say."""
        came, since = -1, time.monotonic()
        while not is_done():
            self.check_health()
            if (now := progress()) != came:
                came, since = now, time.monotonic()
            elif time.monotonic() - since > SILENCE_SECONDS:
                return
            time.sleep(_LOOK_SECONDS)

    # ── counting ──

    def account_of(self, listener: OrderClient) -> str:
        """What *listener* has, in words."""
        numbers, wanted = listener.numbers(), self.shop.acknowledged.keys()
        account = f"{len(wanted & set(numbers)):,} of {len(wanted):,}"
        if listener.may_repeat:
            repeats = len(numbers) - len(set(numbers))
            return account + (f"; {repeats} came twice, as Web Push allows" if repeats else "")
        return account + ("" if self.faults_of(listener) else ", in order, none twice")

    def account_of_film(self) -> str:
        """What the viewer has, in words."""
        seen, made = len(self.viewer.seen), len(self.camera.acknowledged)
        return f"{seen} of {made} segments, {seen * SEGMENT_BYTES / 1e6:.1f} MB, each byte right"

    def faults_of(self, listener: OrderClient) -> list[str]:
        """What is wrong with the orders that *listener* has."""
        numbers, wanted = listener.numbers(), self.shop.acknowledged
        faults = []
        if missing := sorted(wanted.keys() - set(numbers)):
            faults.append(
                f"the {listener.name} lacks {len(missing):,} of {len(wanted):,} orders, order {missing[0]} first"
            )
        if listener.may_repeat:
            return faults
        if repeats := len(numbers) - len(set(numbers)):
            faults.append(f"the {listener.name} has {repeats:,} orders twice")
        ids = [wanted[number] for number in numbers if number in wanted]
        if ids != sorted(ids):
            faults.append(f"the {listener.name} has orders out of order")
        return faults

    def faults_of_film(self) -> list[str]:
        """What is wrong with the segments that the viewer has."""
        missing = set(self.camera.acknowledged) - self.viewer.seen
        faults = [f"the viewer lacks {len(missing)} segments of the film"] if missing else []
        return faults + ([f"{len(self.viewer.wrong)} segments of the film are wrong"] if self.viewer.wrong else [])


def require_none(faults: Iterable[str]) -> None:
    """Fail with all that is wrong."""
    if found := list(faults):
        raise DemoFailed("; ".join(found))
