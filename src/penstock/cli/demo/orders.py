"""The shop of the demo: publishes numbered orders, and repeats each under its key until it is acknowledged."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from penstock.cli.demo.listeners import ORDERS
from penstock.client.api import Client, ServerUnreachable

PUBLISHERS: Final = 4
_AGAIN_SECONDS: Final = 0.02


class Shop:
    """Publishes from several threads. What was acknowledged is what must reach everybody."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token
        self._numbers = itertools.count(1)
        self.acknowledged: dict[int, int] = {}  # an order's number → its entry's id
        self.repeated: set[int] = set()  # had no answer at first
        self.failure: Exception | None = None
        self._given_up = threading.Event()

    def publish(self, count: int) -> None:
        """Publish *count* orders, and return when all are acknowledged."""
        with Client(self._url, self._token) as client:
            for _ in range(count):
                self._publish_one(client)

    @contextmanager
    def publishing(self, pause: float) -> Iterator[None]:
        """Publish from several threads meanwhile, each with a *pause* after an order. All are acknowledged afterwards.

        After an error in the block those that have no answer are given up.
        """
        over = threading.Event()

        def work() -> None:
            with Client(self._url, self._token) as client:
                while not over.wait(pause):
                    self._publish_one(client)

        threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for _ in range(PUBLISHERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        except BaseException:
            self._given_up.set()
            raise
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the story looks at it, and ends
            self.failure = error

    def _publish_one(self, client: Client) -> None:
        number = next(self._numbers)
        body = json.dumps({"order": number, "item": "boots"}).encode()
        while not self._given_up.is_set():
            with suppress(ServerUnreachable):
                self.acknowledged[number] = client.publish(ORDERS, body, key=f"order-{number}").id
                return
            self.repeated.add(number)
            self._given_up.wait(_AGAIN_SECONDS)
