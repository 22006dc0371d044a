"""The commands against a real server, each as a process of its own, as a user runs them."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.client.api import ApiError, Client, ServerUnreachable
from penstock.testing import RunningServer, start_server, wait_until

pytestmark = pytest.mark.doors


@pytest.fixture
def environment(shared_server: RunningServer) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_URL": shared_server.url, "PENSTOCK_TOKEN": shared_server.admin_token}


def penstock(environment: dict[str, str], *arguments: str, input: str = "", cwd: Path | None = None) -> str:
    command = [sys.executable, "-m", "penstock", *arguments]
    done = subprocess.run(
        command, env=environment, input=input, capture_output=True, text=True, cwd=cwd, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def started(
    command: list[str], environment: dict[str, str], cwd: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A command that does not end by itself, and the file it writes to."""
    output = cwd / "command.out"
    with output.open("wb") as out, (cwd / "command.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=log, cwd=cwd)
    try:
        yield process, output
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_publish_takes_an_argument_or_standard_input(environment: dict[str, str]) -> None:
    said = penstock(environment, "publish", "/cli/one", "hello", "--type", "greeting")
    assert said.startswith("published /cli/one index 0, id ")
    place = json.loads(penstock(environment, "publish", "/cli/one", "-", "--json", input="from a pipe"))
    assert (place["stream"], place["index"]) == ("/cli/one", 1)

    with Client(environment["PENSTOCK_URL"], environment["PENSTOCK_TOKEN"]) as client:
        assert [(e.body, e.type) for e in client.read("/cli/one").entries] == [
            (b"hello", "greeting"),
            (b"from a pipe", ""),
        ]


def test_publish_takes_the_lines_of_a_file(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "orders.ndjson"
    file.write_text('{"a":1}\n\n{"a":2}\r\n{"a":3}')

    first = json.loads(penstock(environment, "publish", "/cli/file", "--ndjson", str(file), "--key", "f", "--json"))
    again = json.loads(penstock(environment, "publish", "/cli/file", "--ndjson", str(file), "--key", "f", "--json"))

    assert first["count"] == again["count"] == 3
    assert first["last"] == again["last"]
    with Client(environment["PENSTOCK_URL"], environment["PENSTOCK_TOKEN"]) as client:
        assert [e.body for e in client.read("/cli/file").entries] == [b'{"a":1}', b'{"a":2}', b'{"a":3}']


def test_what_is_not_ascii_is_sent_as_utf_8(environment: dict[str, str]) -> None:
    said = [penstock(environment, "publish", "/cli/é", "é", "--key", "clé", "--type", "été", "--json") for _ in "ab"]

    assert said[0] == said[1]
    with Client(environment["PENSTOCK_URL"], environment["PENSTOCK_TOKEN"]) as client:
        assert [(e.data, e.type) for e in client.read("/cli/é").entries] == [("é", "été")]


def test_a_body_that_is_no_text_is_published_as_it_was_typed(environment: dict[str, str]) -> None:
    penstock(environment, "publish", "/cli/bytes", os.fsdecode(b"\xff\xfe"))

    with Client(environment["PENSTOCK_URL"], environment["PENSTOCK_TOKEN"]) as client:
        assert [e.body for e in client.read("/cli/bytes").entries] == [b"\xff\xfe"]


def test_streams_lists_them(environment: dict[str, str]) -> None:
    penstock(environment, "publish", "/cli/listed/a", "x")
    penstock(environment, "publish", "/cli/listed/b", "x")

    shown = penstock(environment, "streams", "/cli/listed/*")
    listed = [json.loads(line) for line in penstock(environment, "streams", "/cli/listed/*", "--json").splitlines()]

    assert [line.split()[-1] for line in shown.splitlines()[1:]] == ["/cli/listed/a", "/cli/listed/b"]
    assert [(one["stream"], one["next_index"]) for one in listed] == [("/cli/listed/a", 1), ("/cli/listed/b", 1)]


def test_tail_shows_what_was_and_what_comes(environment: dict[str, str], tmp_path: Path) -> None:
    penstock(environment, "publish", "/cli/tail", "first")
    command = [sys.executable, "-m", "penstock", "tail", "/cli/tail", "--from-start"]
    with started(command, environment, tmp_path) as (_, output):
        wait_until(lambda: output.read_text().endswith("first\n"))
        penstock(environment, "publish", "/cli/tail", "second", "--type", "t")

        wait_until(lambda: output.read_text().endswith("/cli/tail[1] t second\n"))


def test_a_terminal_gets_control_characters_escaped(environment: dict[str, str]) -> None:
    # Given an event that would clear the screen, and one with a control character above ASCII
    penstock(environment, "publish", "/cli/controls", "\x1b[2J\r\na\tb")
    penstock(environment, "publish", "/cli/controls", "\x9bé\x7f")
    command = [sys.executable, "-m", "penstock", "tail", "/cli/controls", "--from-start"]
    # When a tail shows them on a terminal
    ours, its = pty.openpty()
    with subprocess.Popen(command, env=environment, stdout=its) as process:
        os.close(its)
        shown = b""
        while shown.count(b"\n") < 2:
            shown += os.read(ours, 1000)
        process.terminate()
    os.close(ours)
    # Then they are spelled; a tab and letters stay
    first, second = (line.partition(b"] ")[2] for line in shown.split(b"\r\n")[:2])
    assert first == rb"\u001b[2J\r\na" + b"\tb"
    assert second == rb"\u009b" + "é".encode() + rb"\u007f"


def test_a_pipe_gets_control_characters_as_they_are(environment: dict[str, str], tmp_path: Path) -> None:
    penstock(environment, "publish", "/cli/raw", "\x1b[2J")
    command = [sys.executable, "-m", "penstock", "tail", "/cli/raw", "--from-start"]

    with started(command, environment, tmp_path) as (_, output):
        wait_until(lambda: output.read_bytes().endswith(b" \x1b[2J\n"))


def test_tail_goes_on_after_the_server_was_away(tmp_path: Path) -> None:
    with start_server(tmp_path / "data") as server:
        environment = {**os.environ, "PENSTOCK_URL": server.url, "PENSTOCK_TOKEN": server.admin_token}
        penstock(environment, "publish", "/a", "before")
        command = [sys.executable, "-m", "penstock", "tail", "/a", "--from-start", "--json"]
        with started(command, environment, tmp_path) as (_, output):
            wait_until(lambda: "before" in output.read_text())
            server.kill()
            server.restart()
            penstock(environment, "publish", "/a", "after")

            wait_until(lambda: "after" in output.read_text())
            assert [json.loads(line)["index"] for line in output.read_text().splitlines()] == [0, 1]


def test_why_tells_what_became_of_it(environment: dict[str, str]) -> None:
    place = json.loads(penstock(environment, "publish", "/cli/why", "x", "--json"))

    assert penstock(environment, "why", str(place["id"]), "nobody").startswith("no_record: accepted and stored at ")


def test_a_refusal_of_the_server_is_one_line_with_its_remedy(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "penstock", "publish", "not-a-name", "x"]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.startswith("penstock: stream_name_invalid: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_token_may_do_what_it_says_and_nothing_else(shared_server: RunningServer) -> None:
    environment = {**os.environ, "PENSTOCK_URL": shared_server.url}
    arguments = ["--sub", "shop", "--publish", "/cli/shop/*", "--ttl", "1h"]
    token = penstock(environment, "token", "--data", str(shared_server.data), *arguments).strip()
    environment["PENSTOCK_TOKEN"] = token

    penstock(environment, "publish", "/cli/shop/boots", "x")
    refused = subprocess.run(
        [sys.executable, "-m", "penstock", "publish", "/cli/other", "x"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert refused.returncode == 2
    assert refused.stderr.startswith("penstock: forbidden: 'shop' may not publish '/cli/other'")
    assert token not in refused.stderr


def test_what_only_the_admin_may_do_says_so(shared_server: RunningServer) -> None:
    token = penstock(dict(os.environ), "token", "--sub", "bob", "--data", str(shared_server.data)).strip()
    command = [sys.executable, "-m", "penstock", "why", "1", "alice"]
    environment = {**os.environ, "PENSTOCK_URL": shared_server.url, "PENSTOCK_TOKEN": token}

    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert refused.stderr.startswith("penstock: forbidden: 'bob' may not use 'why': only the admin may — Use the admin")


def test_a_refused_token_is_told_how_one_is_sent(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "penstock", "streams", "--token", "not-the-token"]

    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert "Authorization: Bearer TOKEN" in refused.stderr
    assert "not-the-token" not in refused.stderr


def test_without_options_the_token_in_the_folder_is_used(tmp_path: Path) -> None:
    with start_server(tmp_path / "penstock-data", environment={"PENSTOCK_AUTH_ADMIN_TOKEN": ""}) as server:
        assert (tmp_path / "penstock-data" / "admin.token").stat().st_mode & 0o777 == 0o600
        environment = {**os.environ, "PENSTOCK_URL": server.url}

        assert penstock(environment, "publish", "/a", "x", cwd=tmp_path).startswith("published /a")


def test_up_prints_two_curl_lines_that_work(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "up", "--listen", "127.0.0.1:0", "--no-system", "--no-pipeline"]
    with started(command, dict(os.environ), tmp_path) as (process, output):
        wait_until(lambda: is_shown(output.read_text()) or process.poll() is not None)
        listen, publish = commands(output.read_text())

        with (tmp_path / "heard").open("wb") as out, subprocess.Popen([*listen, "-s"], stdout=out) as listener:
            try:
                # Publishing again until it is heard: when the listener is connected, only it knows
                wait_until(lambda: _publish(publish) and '"data":"hello"' in (tmp_path / "heard").read_text())
            finally:
                listener.kill()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert (tmp_path / "penstock-data").is_dir()


def is_shown(output: str) -> bool:
    """Whether `up` has printed all of its hints."""
    return len(re.findall(r"Bearer \S+'$", output, re.MULTILINE)) == 2


def commands(output: str) -> list[list[str]]:
    """The commands that were printed, each over two lines, as a shell reads them."""
    found = re.findall(r"^  (curl .*\\\n.*)$", output, re.MULTILINE)
    return [shlex.split(command.replace("\\\n", "")) for command in found]


def test_up_prints_the_address_of_the_console_with_its_token(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "up", "--listen", "127.0.0.1:0", "--no-system", "--no-pipeline"]
    with started(command, dict(os.environ), tmp_path) as (process, output):
        wait_until(lambda: is_shown(output.read_text()) or process.poll() is not None)
        found = re.search(r"^  (http://\S+)/console/#token=(\S+)$", output.read_text(), re.MULTILINE)
        assert found
        with Client(found[1], found[2]) as client:
            assert client.call("GET", "/v1/consumers")["consumers"] == []  # which only the admin may ask
        others = [line for line in output.read_text().splitlines() if "Bearer" not in line and "#token" not in line]
        assert max(map(len, others)) <= 80


def test_serve_prints_the_address_of_the_console_on_a_terminal_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    master, slave = pty.openpty()
    with subprocess.Popen(command, stdout=slave, stderr=subprocess.DEVNULL) as process:
        try:
            shown = b""
            while b"/console/#token=" not in shown:
                shown += os.read(master, 4096)
        finally:
            process.terminate()
    os.close(master)
    os.close(slave)
    with start_server(tmp_path / "data") as server:
        assert "console" not in server._output.read_text() + server.log_text()


def _publish(command: list[str]) -> bool:
    done = subprocess.run([*command, "-s"], capture_output=True, text=True, check=True)
    return '"index":' in done.stdout


def test_up_starts_workers_again_and_leaves_nothing_behind_when_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "up", "--listen", "127.0.0.1:0", "--no-pipeline", "--workers", "2"]
    with started(command, dict(os.environ), tmp_path) as (process, output):
        wait_until(lambda: is_shown(output.read_text()) or process.poll() is not None)
        found = re.search(r"ready on (\S+)", output.read_text())
        assert found
        _, publish = commands(output.read_text())
        assert _publish(publish)
        # The log process dies, and all begin again at the same address
        log = tmp_path / "command.log"
        [keeper] = re.findall(r"log_process.started pid=(\d+)", log.read_text())
        os.kill(int(keeper), signal.SIGKILL)
        wait_until(lambda: len(re.findall(r"worker.started", log.read_text())) == 4)
        wait_until(lambda: _publish(publish))
        process.kill()

        wait_until(lambda: not answers(found[1]))


def answers(url: str) -> bool:
    try:
        with Client(url) as client:
            client.health()
    except ServerUnreachable:
        return False
    return True


def test_serve_says_that_its_directory_is_taken(server: RunningServer) -> None:
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(server.data), "--listen", "127.0.0.1:0"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("penstock: data_locked: ")
    assert "Traceback" not in done.stderr


def test_serve_says_that_its_port_is_taken(server: RunningServer, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "penstock",
        "serve",
        "--data",
        str(tmp_path / "b"),
        "--listen",
        f"127.0.0.1:{server.port}",
    ]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert re.search(r"Address already in use — .* --listen", done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr


def test_serve_runs_and_stops_without_a_standard_output(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path / "data"), "--listen", listen]
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(["bash", "-c", 'exec "$@" <&- >&-', "bash", *command], stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or answers(f"http://{listen}"))
        process.terminate()

        assert process.wait(60) == 0, (tmp_path / "serve.log").read_text()
    finally:
        process.kill()


def test_serve_says_that_there_are_too_few_files_for_its_connections(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    limited = ["bash", "-c", 'ulimit -n 900; exec "$@"', "bash", *command]
    with started(limited, dict(os.environ), tmp_path) as (_, output):
        wait_until(lambda: "ready on" in output.read_text())

    said = (tmp_path / "command.log").read_text()
    assert "files.too_few files=900 connections=18000" in said
    assert "server.connections to 700" in said


def test_a_backup_of_a_running_server_is_restored_and_served(server: RunningServer, tmp_path: Path) -> None:
    environment = {**os.environ, "PENSTOCK_URL": server.url, "PENSTOCK_TOKEN": server.admin_token}
    penstock(environment, "publish", "/kept", "before the backup")
    assert penstock(environment, "backup", str(tmp_path / "backup")).startswith("backed up to ")
    penstock(environment, "publish", "/kept", "after it")

    said = penstock(environment, "restore", str(tmp_path / "backup"), "--data", str(tmp_path / "new"))

    assert said.startswith("restored ")
    with start_server(tmp_path / "new") as restored, Client(restored.url, restored.admin_token) as client:
        assert [event.body for event in client.read("/kept").entries] == [b"before the backup"]


def test_a_backup_that_was_changed_is_not_restored(server: RunningServer, tmp_path: Path) -> None:
    environment = {**os.environ, "PENSTOCK_URL": server.url, "PENSTOCK_TOKEN": server.admin_token}
    penstock(environment, "backup", str(tmp_path / "backup"))
    with (tmp_path / "backup" / "penstock.db").open("r+b") as file:
        file.seek(5000)
        file.write(b"changed")

    done = subprocess.run(
        [sys.executable, "-m", "penstock", "restore", str(tmp_path / "backup"), "--data", str(tmp_path / "new")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr.startswith("penstock: data_corrupt: ")
    assert not list(tmp_path.glob("new/*.db"))


def test_no_log_line_holds_a_token(tmp_path: Path) -> None:
    with (
        start_server(tmp_path / "data", logs_level="debug") as server,
        Client(server.url, server.admin_token) as client,
    ):
        client.publish("/a", b"x")
        with pytest.raises(ApiError):
            client.call("GET", "/nowhere", {"access_token": "hidden-thing", "token": server.admin_token})

    assert server.admin_token not in server.log_text()
    assert "hidden-thing" not in server.log_text()
