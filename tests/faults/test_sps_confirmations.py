"""What a device confirms after the server that sent it has ended: all of that, and nothing else.

Each check is also run on a server that is wrong about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.testing import RunningServer, wait_until
from tests.api.client import ask
from tests.doors.sps_client import Wire, notify_id
from tests.faults.children import ENVIRONMENT

Ended = Callable[[RunningServer], object]
KILLED, STOPPED = RunningServer.kill, RunningServer.stop


class Sabotaged(RunningServer):
    module = "tests.faults.forgetful_sps"


@contextmanager
def serving(folder: Path, sabotage: str = "", *arguments: str) -> Iterator[RunningServer]:
    kind = Sabotaged if sabotage else RunningServer
    server = kind(folder / "data", arguments, {**ENVIRONMENT, "SABOTAGE": sabotage})
    try:
        yield server
    finally:
        server.stop()


def verdict(server: RunningServer, id: int, recipient: str) -> str:
    answer: str = ask(server, "GET", "/v1/why", entry=id, recipient=recipient).json["verdict"]
    return answer


def verdicts(server: RunningServer, ids: list[int], recipient: str = "7/phone") -> list[str]:
    return [verdict(server, id, recipient) for id in ids]


def end(server: RunningServer, how: Ended) -> None:
    """End it and start it again, when the ledger has what was sent."""
    ask(server, "GET", "/v1/why", entry=1, recipient="nobody")  # an answer waits for all that was recorded
    how(server)
    server.restart()


def offline(server: RunningServer) -> None:
    wait_until(lambda: not ask(server, "GET", "/online", uid="7").json["online"])


# ── by coming back ─────────────────────────────────────────────────────────────────────────────


def check_a_restart_loses_no_confirmation(server: RunningServer, how: Ended, *, subsist: bool = False) -> None:
    # Given a device that was sent events of several streams, some before it was replaced
    with Wire(server, uid="7", hid="phone", tid="earth").opened() as wire:
        ids = [notify_id(server, "user", uid="7"), notify_id(server, "room", tid="earth")]
        wire.lines(2)
    offline(server)
    with Wire(server, uid="7", hid="phone", tid="earth", o=ids[0]).opened() as wire:
        ids += [
            notify_id(server, "room", tid="earth,mars"),
            notify_id(server, "all"),
            notify_id(server, "user", uid="7"),
        ]
        wire.lines(4)
        # When the server ends
        end(server, how)

    # Then it can still say what it has
    if subsist:
        with Wire(server, uid="7", hid="phone").opened():
            assert ask(server, "POST", "/subsist", uid="7", hid="phone", o=ids[3]).status == 204
            assert verdicts(server, ids) == ["acked"] * 4 + ["sent"]
    else:
        with Wire(server, uid="7", hid="phone", tid="earth", o=ids[3]).opened() as wire:
            assert wire.line()["id"] == ids[4]
            wait_until(lambda: verdicts(server, ids) == ["acked"] * 4 + ["sent"])


@pytest.mark.parametrize("how", [KILLED, STOPPED])
def test_a_device_confirms_what_it_was_sent_before_a_restart(tmp_path: Path, how: Ended) -> None:
    with serving(tmp_path) as server:
        check_a_restart_loses_no_confirmation(server, how)


def test_a_device_confirms_it_by_subsist_too_and_that_is_durable_before_the_answer(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        check_a_restart_loses_no_confirmation(server, KILLED, subsist=True)


def test_the_same_check_finds_a_server_that_knows_nothing_of_former_lives(tmp_path: Path) -> None:
    with serving(tmp_path, "forgetful") as server, pytest.raises(AssertionError):
        check_a_restart_loses_no_confirmation(server, KILLED, subsist=True)


def test_it_may_come_back_several_lives_later(server: RunningServer) -> None:
    with Wire(server, uid="7", hid="phone").opened() as wire:
        first = notify_id(server, "user", uid="7")
        wire.line()
        end(server, KILLED)
    with Wire(server, uid="7", hid="phone").opened() as wire:  # says nothing
        second = notify_id(server, "user", uid="7")
        wire.line()
        end(server, STOPPED)
    with Wire(server, uid="7", hid="phone", o=second).opened():
        wait_until(lambda: verdicts(server, [first, second]) == ["acked", "acked"])


# ── nothing else ───────────────────────────────────────────────────────────────────────────────


def check_nothing_is_confirmed_that_was_not_sent(server: RunningServer) -> None:
    with Wire(server, uid="7", hid="phone").opened() as wire:
        sent = [notify_id(server, "user", uid="7")]
        other = [notify_id(server, "user", uid="7", hid="tv")]
        wire.line()
    offline(server)
    missed = [notify_id(server, "user", uid="7") for _ in range(3)]
    with Wire(server, uid="7", hid="phone").opened() as wire:  # live only: it does not ask for what it missed
        sent += [notify_id(server, "user", uid="7")]
        wire.line()
        end(server, KILLED)
    with Wire(server, uid="7", hid="phone", o=sent[-1]).opened():
        wait_until(lambda: verdicts(server, sent) == ["acked", "acked"])
        assert set(verdicts(server, missed + other)) == {"no_record"}
        assert verdict(server, sent[0], "7/tv") == "no_record"


def test_only_what_was_sent_is_confirmed(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        check_nothing_is_confirmed_that_was_not_sent(server)


def test_the_same_check_finds_a_server_that_believes_too_much(tmp_path: Path) -> None:
    with serving(tmp_path, "credulous") as server, pytest.raises(AssertionError):
        check_nothing_is_confirmed_that_was_not_sent(server)


def test_who_is_told_the_newest_id_has_not_received_it(server: RunningServer) -> None:
    early = [notify_id(server, "user", uid="7") for _ in range(3)]
    with Wire(server, uid="7", hid="phone") as wire:
        newest = wire.line()["newest"]
        end(server, KILLED)
    with Wire(server, uid="7", hid="phone", o=newest).opened():
        assert ask(server, "POST", "/subsist", uid="7", hid="phone", o=newest).status == 204
        assert set(verdicts(server, early)) == {"no_record"}


# ── what a crash took from the ledger ──────────────────────────────────────────────────────────


def check_what_a_crash_took_is_said_as_it_is(folder: Path, sabotage: str = "") -> None:
    """Killed right after the device has received, before the ledger was written."""
    with serving(folder, sabotage, "--set=ledger.flush_ms=600000") as server:
        with Wire(server, uid="7", hid="phone", tid="earth").opened() as wire:
            ids = [notify_id(server, "user", uid="7"), notify_id(server, "room", tid="earth")]
            wire.lines(2)
            server.kill()
        server.restart()
        with Wire(server, uid="7", hid="phone", tid="earth", o=ids[-1]).opened():
            first, last = (ask(server, "GET", "/v1/why", entry=id, recipient="7/phone").json for id in ids)
            assert (first["verdict"], last["verdict"]) == ("no_record", "no_record")
            assert f"7/phone confirmed a later event, id {ids[-1]}, at " in first["words"]
            assert "7/phone confirmed it at " in last["words"]
            assert first["words"].endswith("; no record of the sending.")


def test_what_a_crash_took_is_said_as_it_is(tmp_path: Path) -> None:
    check_what_a_crash_took_is_said_as_it_is(tmp_path)


def test_the_same_check_finds_a_server_that_takes_a_position_for_a_proof(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check_what_a_crash_took_is_said_as_it_is(tmp_path, "credulous")
