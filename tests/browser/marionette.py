"""Drives a real Firefox: the wire protocol of Marionette, which comes with the browser.

A message is `LENGTH:JSON` over TCP; a command is `[0, id, name, parameters]`, its answer `[1, id, error, result]`.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.testing import require_program, wait_until

QUIET = {
    "app.normandy.enabled": False,
    "app.update.enabled": False,
    "browser.safebrowsing.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage": "about:blank",
    "browser.startup.page": 0,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.update.enabled": False,
    "marionette.port": 0,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "http://127.0.0.1:9/",
    "toolkit.telemetry.server": "",
}
"""A browser that talks to nobody but us, on a port that it chooses itself."""


class ScriptFailed(AssertionError):
    """Firefox refused a command, or a script of the page threw."""


class Firefox:
    """One browser process and the connection to it."""

    def __init__(self, profile: Path, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._profile, self._process, self._connection = profile, process, connection
        self._buffer = b""
        self._count = 0
        self._receive()  # it says who it is
        self.command("WebDriver:NewSession", capabilities={"alwaysMatch": {"timeouts": {"script": 60_000}}})

    def command(self, name: str, **parameters: Any) -> Any:
        """Run one command and return its result."""
        self._count += 1
        message = json.dumps([0, self._count, name, parameters]).encode()
        self._connection.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self._receive()
        if error:
            raise ScriptFailed(f"{name}: {error['error']}: {error['message']}")
        return result

    def open(self, url: str) -> None:
        """Load a page."""
        self.command("WebDriver:Navigate", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that the promise of an async function with this body comes to."""
        body = f"const [finish] = [...arguments].slice(-1); (async (...args) => {{ {script} }})(...arguments)"
        body += ".then((value) => finish({value}), (error) => finish({error: String(error)}));"
        answer = self.command("WebDriver:ExecuteAsyncScript", script=body, args=list(arguments))["value"]
        if "error" in answer:
            raise ScriptFailed(answer["error"])
        return answer.get("value")

    def quit(self) -> None:
        """End it as a user does: everything that should be in the profile is."""
        self.command("Marionette:Quit", flags=["eAttemptQuit"])
        self._process.wait(30)

    def _receive(self) -> Any:
        while b":" not in self._buffer:
            self._buffer += self._some()
        length, _, rest = self._buffer.partition(b":")
        while len(rest) < int(length):
            rest += self._some()
        self._buffer = rest[int(length) :]
        return json.loads(rest[: int(length)])

    def _some(self) -> bytes:
        data = self._connection.recv(65_536)
        if not data:
            raise ScriptFailed("Firefox closed the connection")
        return data


@contextmanager
def firefox(profile: Path, preferences: Mapping[str, object]) -> Iterator[Firefox]:
    """A Firefox without a window, on *profile*, which may have been used before."""
    program = require_program("firefox-esr")
    profile.mkdir(parents=True, exist_ok=True)
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in {**QUIET, **preferences}.items()]
    (profile / "user.js").write_text("\n".join(lines))
    place = profile / "MarionetteActivePort"
    place.unlink(missing_ok=True)
    command = [program, "--headless", "--no-remote", "--marionette", "--profile", str(profile)]
    with profile.with_name(profile.name + ".log").open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(lambda: process.poll() is not None or (place.exists() and place.read_text()))
        with socket.create_connection(("127.0.0.1", int(place.read_text())), timeout=60) as connection:
            yield Firefox(profile, process, connection)
    finally:
        process.kill()
        process.wait()
