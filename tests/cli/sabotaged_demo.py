"""`python -m tests.cli.sabotaged_demo WHAT demo …`: the demo with a server or a client that is broken on purpose."""

from __future__ import annotations

import json
import sys

from msgspec import structs

from penstock.cli.app import run
from penstock.cli.demo import cast, story
from penstock.cli.demo.listeners import ORDERS, App, Phone, WebPage
from penstock.core.promise import Promise
from penstock.engines.sqlite.log import SqliteLog
from penstock.testing import RunningServer
from penstock.values import Appended, Batch

LOST = 60  # an order that is published under load
SILENCE_SECONDS = 10.0
"""What is lost does not come later: no need to wait for it as long as a real run does."""

MISSED, LOAD_SECONDS = 50, 0.5  # and fewer orders will do


def lose_orders() -> None:
    """The server acknowledges an order, and nobody will ever find it."""
    append = SqliteLog.append

    def forgetful(log: SqliteLog, batch: Batch) -> Promise[Appended]:
        draft = batch.drafts[0] if batch.drafts else None
        if draft and draft.stream == ORDERS and f'"order": {LOST},'.encode() in draft.body:
            batch = structs.replace(batch, drafts=(structs.replace(draft, stream="/nowhere"),))
        return append(log, batch)

    SqliteLog.append = forgetful


def forget_the_position() -> None:
    """The page comes back and does not say where it was."""
    WebPage.place = lambda page: {}


def apply_twice() -> None:
    """The app stores one order twice."""
    store = App._store

    def careless(app: App, stream: str, line: object, database: object) -> None:
        store(app, stream, line, database)
        if not line.meta_type and json.loads(line.content)["order"] == 7:
            store(app, stream, line, database)

    App._store = careless


def drop_a_push() -> None:
    """The phone acknowledges a message without having read it."""
    take = Phone.take
    Phone.take = lambda phone, number: None if number == 7 else take(phone, number)


def outlive_the_demo() -> None:
    """The server does not hear that the demo is gone."""
    story.end_with_parent = lambda: None


CLIENTS = {"position": forget_the_position, "twice": apply_twice, "push": drop_a_push, "orphan": outlive_the_demo}

if __name__ == "__main__":
    if sys.argv[1] == "serve":  # it is the server that the demo has started
        lose_orders()
        sys.exit(run(sys.argv[1:]))
    cast.SILENCE_SECONDS, story.MISSED, story.LOAD_SECONDS = SILENCE_SECONDS, MISSED, LOAD_SECONDS
    if (what := sys.argv[1]) in CLIENTS:
        CLIENTS[what]()
    else:
        RunningServer.module = "tests.cli.sabotaged_demo"
    sys.exit(run(sys.argv[2:]))
