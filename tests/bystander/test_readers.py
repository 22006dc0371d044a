"""A reader that fails, and a ledger that is told too much: others read on, and are confirmed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from penstock.api.auth import Caller, open_keys
from penstock.core import ledger as ledger_module
from penstock.core.hub import Hub
from penstock.doors.eventhorizon import door, requests
from penstock.doors.trickle import streams
from penstock.limits import LEDGER_REASON_CHARACTERS, LEDGER_REPORT_STATES, REPORT_BYTES
from penstock.testing import RunningServer, wait_until
from tests.api.client import Reply, Tail, ask, publish
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside
from tests.doors.trickle_client import Raw, request

Sabotage = Callable[[], None]
Check = Callable[[RunningServer], None]
SOON = 1.0
NEVER_MS = 600_000
HOSTILE = [
    {"parts": "x"}, {"parts": "-1"}, {"parts": "9" * 400}, {"parts": "٣"}, {"parts": "1", "content-type": "a\r\nb: c"},
    {"content-type": "\u0000"}, {"content-type": "日本"}, {"content-type": "t" * 1000},
]  # fmt: skip


def readers_are_not_guarded() -> None:
    def about(entry):
        return msgspec.json.decode(entry.attributes or "{}", type=streams.SegmentAttributes)

    def end(self, feed, error):
        raise error

    streams.attributes_of, Hub._end = about, end


def waits(server: RunningServer, stream: str) -> bool:
    found = ask(server, "GET", "/v1/consumers").json["consumers"]
    return any(stream in json.dumps(one) and one["door"] == "trickle" for one in found)


def trickle_reader(server: RunningServer, stream: str) -> Raw:
    """Waits for the second entry of a stream."""
    reader = Raw(server, request(server, "GET", f"/trickle/~{stream}/1", {}, "1.1"))
    wait_until(lambda: waits(server, stream))
    return reader


def both_are_told(server: RunningServer, number: int, attributes: dict[str, str]) -> None:
    stream = f"/read/{number}"
    assert publish(server, stream, b"first").status == 201
    with closing(trickle_reader(server, stream)) as reader, Tail(server, stream) as innocent:
        innocent._connection.sock.settimeout(SOON)
        assert publish(server, stream, b"hostile", Event_Attributes=json.dumps(attributes)).status == 201
        assert innocent.line()["data"] == "hostile"
        if attributes.get("parts") != "1":  # one that says so is sent with the next entry, when no part came
            assert reader.head() == 200
        assert publish(server, stream, b"next").status == 201
        assert innocent.line()["data"] == "next"
        if attributes.get("parts") == "1":
            assert reader.head() == 200
        assert b"hostile" in reader.rest()


def test_attributes_that_make_no_sense_end_nothing_and_hold_up_nobody(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", None) as server:
        with beside(server) as bystander:
            for number, attributes in enumerate(HOSTILE):
                both_are_told(server, number, attributes)
        bystander.noticed_nothing()
        assert "feed.failed" not in server.log_text()


def test_without_the_guards_a_neighbour_is_not_told(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", readers_are_not_guarded) as server, pytest.raises(TimeoutError):
        both_are_told(server, 0, HOSTILE[0])


def a_defect_in_one_reader() -> None:
    """Entries with the body `poison` cannot be read by Trickle; the guard around feeds is there."""
    honest = streams.attributes_of

    def about(entry):
        if entry.body == b"poison":
            raise ValueError("a defect")
        return honest(entry)

    streams.attributes_of = about


def test_a_defect_in_one_reader_ends_its_answer_alone_and_is_counted(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", a_defect_in_one_reader) as server:
        assert publish(server, "/read/x", b"first").status == 201
        with closing(trickle_reader(server, "/read/x")) as reader, Tail(server, "/read/x") as innocent:
            with beside(server) as bystander:
                assert publish(server, "/read/x", b"poison").status == 201
                assert innocent.line()["data"] == "poison"
                for _ in range(20):
                    assert publish(server, "/read/x", b"well").status == 201
                    assert innocent.line()["data"] == "well"
            bystander.noticed_nothing()
            assert reader.head() == 500
        assert "feed.failed" in server.log_text()
        assert "penstock_feeds_failed_total 1" in ask(server, "GET", "/metrics").body.decode()


# ── the ledger ─────────────────────────────────────────────────────────────────────────────────


def report(server: RunningServer, token: str, subscription: str, states: list[list[str]], stream: str = "/s") -> Reply:
    said = {"SubscriptionId": subscription, "Stream": stream, "Ids": [1, 1], "States": states}
    return ask(server, "POST", "/reader/report", json.dumps(said).encode(), token=token)


def token_for(server: RunningServer, name: str, *subscribe: str) -> str:
    return open_keys(server.data).issue(name, subscribe=subscribe, grants=("pushers",))


@contextmanager
def reports(server: RunningServer, body: bytes, token: str, size: int) -> Iterator[Raw]:
    """Begin a report of *size* bytes with *body*; what is answered to it is expected soon."""
    line = request(server, "POST", "/reader/report", {}, "1.1")
    head = line.replace(server.admin_token.encode(), token.encode()).rstrip(b"\r\n")
    with closing(Raw(server, head + b"\r\nContent-Length: %d\r\n\r\n" % size + body)) as raw:
        raw.socket.settimeout(SOON)
        yield raw


def innocent_is_answered(server: RunningServer) -> None:
    said = {"SubscriptionId": "/_sub/innocent", "Stream": "/s", "Ids": [1, 1], "States": [["acked", ""]]}
    body, token = json.dumps(said).encode(), token_for(server, "innocent", "/s", "/_sub/innocent")
    with reports(server, body, token, len(body)) as raw:
        assert raw.head() == 200


def attacker(server: RunningServer) -> str:
    """The token of somebody who may report; there is one entry to report on."""
    assert publish(server, "/s").status == 201
    return token_for(server, "attacker", "/s", "/_sub/attacker")


def a_report_that_is_too_long_is_not_read(server: RunningServer) -> None:
    with reports(server, b"", attacker(server), REPORT_BYTES + 1) as raw:
        assert raw.head() == 413


def a_report_of_too_many_states_is_refused(server: RunningServer) -> None:
    states = [["retried", ""]] * (LEDGER_REPORT_STATES + 1)
    refused = report(server, attacker(server), "/_sub/attacker", states)
    assert refused.status == 413
    assert refused.code == "too_large"


def reports_that_no_single_entry_holds_spoil_no_confirmation(server: RunningServer) -> None:
    fill_the_next_batch(server)
    innocent_is_answered(server)


def a_batch_that_the_log_refuses_holds_up_no_confirmation(server: RunningServer) -> None:
    fill_the_next_batch(server)
    with suppress(AssertionError):
        innocent_is_answered(server)  # he is told that his record is lost with the others
    innocent_is_answered(server)


def fill_the_next_batch(server: RunningServer) -> None:
    """Report twelve times as much as is allowed, while nothing makes the ledger write: more than one entry holds."""
    token = attacker(server)
    for _ in range(12):
        states = [["retried", "\x01" * LEDGER_REASON_CHARACTERS]] * LEDGER_REPORT_STATES
        assert report(server, token, "/_sub/attacker", states).status == 200


def no_limit_of_a_report() -> None:
    door.REPORT_BYTES = 1 << 30


def no_limit_of_states() -> None:
    requests.LEDGER_REPORT_STATES = 10**6


def no_limit_of_a_batch() -> None:
    ledger_module.LEDGER_BATCH_BYTES = 1 << 40


def no_limit_of_a_batch_and_it_is_tried_for_ever() -> None:
    class Nothing(Exception):
        pass

    no_limit_of_a_batch()
    ledger_module.CallerError = Nothing


GUARDED = [  # what must hold, with the guards that it needs, and without one of them
    (a_report_that_is_too_long_is_not_read, None, no_limit_of_a_report),
    (a_report_of_too_many_states_is_refused, None, no_limit_of_states),
    (reports_that_no_single_entry_holds_spoil_no_confirmation, None, no_limit_of_a_batch),
    (
        a_batch_that_the_log_refuses_holds_up_no_confirmation,
        no_limit_of_a_batch,
        no_limit_of_a_batch_and_it_is_tried_for_ever,
    ),
]


@pytest.mark.parametrize(("holds", "setting", "sabotage"), GUARDED)
def test_each_guard_of_reports_is_needed(
    tmp_path: Path, holds: Check, setting: Sabotage | None, sabotage: Sabotage
) -> None:
    with start_sabotaged(tmp_path / "honest", setting, ledger_flush_ms=NEVER_MS) as server:
        holds(server)
    with (
        start_sabotaged(tmp_path / "sabotaged", sabotage, ledger_flush_ms=NEVER_MS) as server,
        pytest.raises((AssertionError, TimeoutError)),
    ):
        holds(server)


def test_a_report_that_no_entry_can_hold_holds_up_no_confirmation(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", None) as server:
        with beside(server) as bystander:
            hostile = report(server, attacker(server), "/_sub/attacker", [["retried", "\x01" * 200]] * 5_000)
            innocent_is_answered(server)
        bystander.noticed_nothing()
        assert (hostile.status, hostile.code) == (413, "too_large")
        long = report(server, token_for(server, "a", "/s", "/_sub/a"), "/_sub/a", [["retried", "r" * 201]])
        assert (long.status, long.code) == (400, "input_invalid")
        # And what is just allowed, over and over, is written down.
        for _ in range(20):
            done = report(server, "", "/_sub/a", [["retried", "\U0001f6b0" * 200]] * 99 + [["acked", ""]])
            assert done.status == 200


def anybody_may_report() -> None:
    """The sabotage: the right to read is not looked at."""
    Caller.check_subscribe = lambda self, pattern: None  # type: ignore[method-assign]


def report_for_others(server: RunningServer) -> None:
    publish(server, "/s")
    token = token_for(server, "app", "/s", "/_sub/mine")

    assert report(server, token, "/_sub/mine", [["acked", ""]]).status == 200
    for other in ("/_sub/other", "/_sub/min", "/_sub/mine/x"):
        refused = report(server, token, other, [["acked", ""]])
        assert refused.status == 403
        assert refused.code == "forbidden"
    assert report(server, token, "/elsewhere", [["acked", ""]]).status == 400
    assert report(server, token, "/_sub/mine", [["acked", ""]], stream="/other").status == 403


@pytest.mark.parametrize("sabotage", [None, anybody_may_report])
def test_who_may_not_hear_a_subscription_may_not_say_what_became_of_it(
    tmp_path: Path, sabotage: Sabotage | None
) -> None:
    with start_sabotaged(tmp_path / "data", sabotage) as server:
        if sabotage is None:
            report_for_others(server)
        else:
            with pytest.raises(AssertionError, match="200"):
                report_for_others(server)
