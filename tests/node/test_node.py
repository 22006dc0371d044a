"""A node as an operator sees it: certificates, keys, doors, a second process, a full disk."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import jwt
import pytest

from penstock.testing import RunningServer, ServerFailed, start_server, wait_until
from tests.api.client import ask, publish
from tests.http.certificates import make_certificate


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, check=False)


def certificate_of(port: int) -> bytes:
    """The certificate that a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain, context.wrap_socket(plain) as secure:
        shown = secure.getpeercert(binary_form=True)
        assert shown
        return shown


@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_makes_the_server_read_certificate_and_keys_again(tmp_path: Path, workers: int) -> None:
    certificate, key = make_certificate(tmp_path, "one")
    settings = {"server_workers": workers, "server_tls_certificate": certificate, "server_tls_key": key}
    with start_server(tmp_path / "data", **settings) as server:
        before = certificate_of(server.port)
        renewed, renewed_key = make_certificate(tmp_path, "two")
        Path(certificate).write_bytes(Path(renewed).read_bytes())
        Path(key).write_bytes(Path(renewed_key).read_bytes())
        server.process.send_signal(signal.SIGHUP)

        wait_until(lambda: server.log_text().count("reload.done") == workers)
        shown = {certificate_of(server.port) for _ in range(8 * workers)}  # by each of them
        assert (len(shown), before in shown) == (1, False)


def test_a_rotated_key_is_taken_up_and_the_old_one_still_verifies(server: RunningServer) -> None:
    data = str(server.data)
    old = penstock("token", "--data", data, "--sub", "a", "--subscribe", "/a").stdout.strip()
    listed = penstock("keys", "--data", data, "--rotate", "EdDSA").stdout.split("\n")
    new = penstock("token", "--data", data, "--sub", "b", "--subscribe", "/a").stdout.strip()
    publish(server, "/a")
    assert ask(server, "GET", "/v1/read", token=new, stream="/a").status == 401

    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: ask(server, "GET", "/v1/read", token=new, stream="/a").status == 200)

    assert ask(server, "GET", "/v1/read", token=old, stream="/a").status == 200
    assert listed[0].endswith("EdDSA  signs")
    assert listed[1].endswith("HS256  verifies")


def test_a_key_file_that_went_bad_leaves_the_old_keys_in_use(server: RunningServer) -> None:
    token = penstock("token", "--data", str(server.data), "--sub", "a", "--subscribe", "/a").stdout.strip()
    publish(server, "/a")
    (server.data / "keys.json").write_text('[{"kid":"a","alg":"HS256","secret":"abc"}]')

    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "reload.failed" in server.log_text())

    assert "reload.done" not in server.log_text()
    assert ask(server, "GET", "/v1/read", token=token, stream="/a").status == 200
    forged = jwt.encode({"sub": "a", "exp": 2**40}, "abc" * 11, algorithm="HS256", headers={"kid": "a"})
    assert ask(server, "GET", "/v1/read", token=forged, stream="/a").status == 401
    refused = penstock("token", "--data", str(server.data), "--sub", "a")
    assert refused.returncode == 2
    assert refused.stderr.startswith("penstock: config_invalid: setting auth.keys:")
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content"), [("admin.token", ""), ("keys.json", '[{"kid":"a","alg":"ES256","public":"x"}]')]
)
def test_a_start_with_a_secret_that_is_none_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text(content)

    with (
        pytest.raises(ServerFailed, match=f"config_invalid.*{name}"),
        start_server(tmp_path / "data", environment={"PENSTOCK_AUTH_ADMIN_TOKEN": ""}),
    ):
        pass


def test_a_page_may_read_when_to_come_back(server: RunningServer) -> None:
    answer = ask(server, "GET", "/health", headers={"Origin": "https://page.example"})

    assert "Retry-After" in answer.headers["access-control-expose-headers"].split(", ")


def test_a_second_process_on_one_directory_is_refused(server: RunningServer) -> None:
    second = penstock("serve", "--data", str(server.data), "--listen", "127.0.0.1:0")

    assert second.returncode == 1
    assert "data_locked" in second.stderr
    assert str(server.process.pid) in second.stderr
    assert second.stderr.count("\n") == 1 + second.stderr.count(" warning ")
    assert publish(server, "/a").status == 201


def test_a_door_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match="there is no door 'back'"),
        start_server(tmp_path / "data", "--doors", "back"),
    ):
        pass


def test_plain_http_beyond_loopback_is_refused(tmp_path: Path) -> None:
    refused = penstock("serve", "--data", str(tmp_path / "data"), "--listen", "0.0.0.0:0")

    assert refused.returncode != 0
    assert "insecure" in refused.stderr


def test_a_full_disk_is_507_and_goes_on_when_there_is_space(tmp_path: Path) -> None:
    """On a real disk of eight megabytes, in a mount namespace of its own."""
    script = Path(__file__).with_name("full_disk.py")
    alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    done = subprocess.run(
        [*alone, sys.executable, str(script), str(tmp_path / "disk")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["201", "507", "disk_full", "200", "201", "kept"]


def test_a_short_admin_token_works_and_is_warned_of(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", environment={"PENSTOCK_AUTH_ADMIN_TOKEN": "secret"}) as server:
        assert ask(server, "GET", "/v1/streams", token="secret").status == 200
        assert "auth.admin_token_short" in server.log_text()
        assert "secret" not in server.log_text()
