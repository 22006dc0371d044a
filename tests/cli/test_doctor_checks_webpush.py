from __future__ import annotations

import base64
from pathlib import Path

import pytest

from penstock.cli import doctor
from penstock.cli.doctor_checks import DoctorFinding
from penstock.settings_reading import load
from penstock.testing import RunningServer, start_server

LOOPBACK = "server.listen=127.0.0.1:0"
OUTSIDE = ("server.listen=0.0.0.0:0", "server.insecure=true")
KEY = base64.urlsafe_b64encode(bytes(32)).decode()


def findings(check: str, *given: str) -> list[DoctorFinding]:
    settings = load(given=[LOOPBACK, *given])
    return [one for one in doctor.examine(Path("/nonexistent-data"), settings) if one.check == check]


def statuses(check: str, *given: str) -> list[str]:
    found = findings(check, *given)
    assert all(one.remedy for one in found if one.status != "ok")
    return [one.status for one in found]


def test_a_server_for_itself_is_all_right() -> None:
    for check in ("push origin", "push keys", "push nodes", "push proxy"):
        assert statuses(check) == ["ok"], check


def test_nothing_is_said_where_the_door_is_closed() -> None:
    assert statuses("push origin", "server.doors=sps", *OUTSIDE) == []


@pytest.mark.parametrize(
    "origin", ["push.example.net", "https://push.example.net/path", "ftp://x", "https://", "https://x:99999"]
)
def test_an_origin_that_is_none_is_found(origin: str) -> None:
    assert statuses("push origin", f"webpush.origin={origin}") == ["fail"]


def test_a_missing_origin_is_found_where_others_come_in() -> None:
    assert statuses("push origin", *OUTSIDE) == ["warn"]
    assert statuses("push origin", "server.trusted_proxies=127.0.0.1") == ["warn"]


def test_an_origin_that_does_not_answer_is_found() -> None:
    [found] = findings("push origin", "webpush.origin=http://127.0.0.1:9")
    assert found.status == "warn"
    assert "does not answer" in found.message


def test_an_origin_where_another_server_answers_is_found(tmp_path: Path, shared_server: RunningServer) -> None:
    with start_server(tmp_path / "data") as server:
        here = f"server.listen=127.0.0.1:{server.port}"
        assert statuses("push origin", here, f"webpush.origin={server.url}") == ["ok"]
        [found] = findings("push origin", here, f"webpush.origin={shared_server.url}")
    assert found.status == "fail"
    assert "aud" in found.message


@pytest.mark.parametrize(
    "given",
    [
        f"webpush.token_keys='{KEY}'",
        f"webpush.token_keys=[{KEY}]",
        "webpush.token_keys=abc",
        "webpush.vapid_key=AAAA",
        "webpush.contact=me@example.net",
    ],
)
def test_keys_that_cannot_be_used_are_found(given: str) -> None:
    assert statuses("push keys", given) == ["fail"]


def test_keys_that_others_can_read_are_found(tmp_path: Path) -> None:
    def found() -> list[str]:
        settings = load(given=[LOOPBACK])
        return [one.status for one in doctor.examine(tmp_path, settings) if one.check == "push keys"]

    (tmp_path / "penstock.db").touch(mode=0o644)
    tmp_path.chmod(0o755)
    assert found() == ["fail"]
    tmp_path.chmod(0o700)  # as the server makes it
    assert found() == ["ok"]


def test_keys_that_can_be_used_are_not() -> None:
    assert statuses("push keys", f"webpush.token_keys={KEY},{KEY}", "webpush.contact=mailto:me@example.net") == ["ok"]


@pytest.mark.parametrize(
    ("listen", "address", "status"),
    [
        ("0.0.0.0:0", "", "fail"),
        ("0.0.0.0:0", "http://0.0.0.0:8801", "fail"),
        ("0.0.0.0:0", "10.0.0.5:8801", "fail"),
        ("0.0.0.0:0", "http://name.invalid:8801", "fail"),
        ("0.0.0.0:0", "http://localhost:8801", "warn"),
        ("0.0.0.0:0", "http://10.0.0.5:8801", "ok"),
        ("127.0.0.1:0", "", "ok"),
    ],
)
def test_an_address_that_other_nodes_cannot_reach_is_found(listen: str, address: str, status: str) -> None:
    given = (f"server.internal_listen={listen}", f"server.internal_address={address}")

    assert statuses("push nodes", *given) == [status]


def test_a_proxy_that_cuts_first_is_found() -> None:
    behind = "server.trusted_proxies=127.0.0.1"
    assert statuses("push proxy", behind) == ["warn"]
    assert statuses("push proxy", behind, "webpush.ping_interval=45") == ["ok"]
    assert statuses("push proxy", "webpush.ping_interval=0") == ["warn"]
