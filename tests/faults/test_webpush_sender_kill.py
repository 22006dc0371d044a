"""Bound streams reach the browser whole and in order, whatever is killed: the server, or the push service."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import publish
from tests.doors.push_service import Browser, PushService, bind, push_service
from tests.faults.children import ENVIRONMENT

COUNT, KILLS = 60, 2
FAST = ("--set=webpush.send_retry=0.05", "--set=webpush.send_retry_longest=0.2")


class ForgetfulServer(RunningServer):
    module = "tests.faults.forgetful_sender"


def received_over_kills(folder: Path, kind: type[RunningServer]) -> list[int]:
    """What a push service took of a stream while the server was killed again and again."""
    browser = Browser()
    server = kind(folder / "data", FAST, ENVIRONMENT)
    try:
        with push_service() as service:
            bind(server, browser.subscription(service.endpoint("a")), "/killed")
            for part in range(KILLS):
                before = len(service.taken)
                for number in range(COUNT):
                    assert publish(server, "/killed", b"%d" % (part * COUNT + number)).status == 201
                wait_until(lambda before=before: len(service.taken) > before + COUNT // 4)
                server.kill()
                server.restart()
            last = b"%d" % (KILLS * COUNT - 1)
            wait_until(lambda: browser.read(service.taken[-1].body) == last)
            return [int(browser.read(push.body)) for push in service.taken]
    finally:
        server.stop()


def assert_in_order(numbers: list[int]) -> None:
    """All are there, in order; of each kill at most the one that was on its way came twice."""
    assert sorted(set(numbers)) == list(range(KILLS * COUNT))
    assert numbers == sorted(numbers)
    assert len(numbers) <= KILLS * COUNT + KILLS


def test_every_entry_is_sent_in_order_over_kills_of_the_server(tmp_path: Path) -> None:
    assert_in_order(received_over_kills(tmp_path, RunningServer))


def test_a_sender_that_forgets_where_it_was_is_found_out(tmp_path: Path) -> None:
    """The sabotage: positions in memory only."""
    numbers = received_over_kills(tmp_path, ForgetfulServer)

    with pytest.raises(AssertionError):
        assert_in_order(numbers)


@pytest.mark.parametrize("answers", [(500, *[201] * 9), (201,)])
def test_every_entry_is_sent_over_restarts_of_the_push_service(tmp_path: Path, answers: tuple[int, ...]) -> None:
    with start_server(tmp_path / "data", *FAST) as server:
        numbers = received_over_restarts(server, answers)
    # Nothing is missing and nothing overtakes; what was cut off at a restart may have come twice
    assert sorted(set(numbers)) == list(range(60))
    assert numbers == sorted(numbers)


def received_over_restarts(server: RunningServer, answers: tuple[int, ...]) -> list[int]:
    """What push services at one address took of a stream, one after the other."""
    browser, counter = Browser(), count()
    services: list[PushService] = []

    def received() -> list[int]:
        return [int(browser.read(push.body)) for service in services for push in service.taken]

    with push_service() as service:  # for its port: nobody is there yet
        port = int(service.origin.rpartition(":")[2])
    bind(server, browser.subscription(service.endpoint("a")), "/away")
    for part in range(1, 4):
        for number in range(20):
            publish(server, "/away", b"%d" % (part * 20 - 20 + number))
        with push_service(lambda push: answers[next(counter) % len(answers)], port=port) as service:
            services.append(service)
            wanted = 60 if part == 3 else part * 20 - 15
            wait_until(lambda wanted=wanted: len(set(received())) >= wanted)
    return received()
