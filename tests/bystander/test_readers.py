"""A reader that fails, and a ledger that is told too much: others read on, and are confirmed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from penstock.api.auth import open_keys
from penstock.core import ledger as ledger_module
from penstock.core.hub import Hub
from penstock.doors.eventhorizon import door, pushers
from penstock.doors.trickle import streams
from penstock.testing import RunningServer, wait_until
from tests.api.client import Reply, Tail, ask, publish
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside
from tests.doors.trickle_client import Raw, request

SOON = 1.0
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


def the_ledger_tries_for_ever() -> None:
    class Nothing(Exception):
        pass

    door.REPORT_BYTES = 1 << 30
    pushers.LEDGER_REPORT_STATES, ledger_module.LEDGER_BATCH_BYTES, ledger_module.CallerError = 10**6, 1 << 40, Nothing


def report(server: RunningServer, token: str, subscription: str, states: list[list[str]], stream: str = "/s") -> Reply:
    said = {"SubscriptionId": subscription, "Stream": stream, "Ids": [1, 1], "States": states}
    return ask(server, "POST", "/reader/report", json.dumps(said).encode(), token=token)


def token_for(server: RunningServer, name: str, *subscribe: str) -> str:
    return open_keys(server.data).issue(name, subscribe=subscribe, grants=("pushers",))


def innocent_acks_are_answered(server: RunningServer) -> Reply:
    assert publish(server, "/s").status == 201
    attacker = token_for(server, "attacker", "/s", "/_sub/attacker")
    innocent = token_for(server, "innocent", "/s", "/_sub/innocent")
    hostile = report(server, attacker, "/_sub/attacker", [["retried", "\x01" * 200]] * 5_000)
    said = {"SubscriptionId": "/_sub/innocent", "Stream": "/s", "Ids": [1, 1], "States": [["acked", ""]]}
    line = request(server, "POST", "/reader/report", {}, "1.1")
    body = json.dumps(said).encode()
    head = line.replace(server.admin_token.encode(), innocent.encode()).rstrip(b"\r\n")
    with closing(Raw(server, head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)) as raw:
        raw.socket.settimeout(SOON)
        assert raw.head() == 200
    return hostile


@pytest.mark.parametrize("sabotage", [None, the_ledger_tries_for_ever])
def test_a_report_that_no_entry_can_hold_holds_up_no_confirmation(
    tmp_path: Path, sabotage: Callable[[], None] | None
) -> None:
    with start_sabotaged(tmp_path / "data", sabotage) as server:
        if sabotage:
            with pytest.raises(TimeoutError):
                innocent_acks_are_answered(server)
            return
        with beside(server) as bystander:
            hostile = innocent_acks_are_answered(server)
        bystander.noticed_nothing()
        assert (hostile.status, hostile.code) == (413, "too_large")
        long = report(server, token_for(server, "a", "/s", "/_sub/a"), "/_sub/a", [["retried", "r" * 201]])
        assert (long.status, long.code) == (400, "input_invalid")
        # And what is just allowed, over and over, is written down.
        for _ in range(20):
            done = report(server, "", "/_sub/a", [["retried", "\x01" * 200]] * 99 + [["acked", ""]])
            assert done.status == 200


def test_who_may_not_hear_a_subscription_may_not_say_what_became_of_it(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", None) as server:
        publish(server, "/s")
        token = token_for(server, "app", "/s", "/_sub/mine")

        assert report(server, token, "/_sub/mine", [["acked", ""]]).status == 200
        for other in ("/_sub/other", "/_sub/min", "/_sub/mine/x"):
            refused = report(server, token, other, [["acked", ""]])
            assert (refused.status, refused.code) == (403, "forbidden")
        assert report(server, token, "/elsewhere", [["acked", ""]]).status == 400
        assert report(server, token, "/_sub/mine", [["acked", ""]], stream="/other").status == 403
