"""Keeps the driver running beside the server, for `up`.

The server is ready before anything of this begins, and goes on whatever becomes of it.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from penstock.cli import java
from penstock.cli.output import say
from penstock.cli.processes import end_group, end_with_parent
from penstock.errors import PenstockError
from penstock.wire.retrying import RetryPolicy

ROOT: Final = Path(__file__).parents[3]
RETRY: Final = RetryPolicy(first=1.0, longest=60.0)
STEADY_SECONDS: Final = 300.0
"""A driver that ran for so long failed for a new reason: the next pause is a short one again."""

STOP_SECONDS: Final = 10.0


class Supervisor:
    """Starts the driver, and starts it again when it ends. Lives in `with`; nothing of it is left afterwards."""

    def __init__(self, url: str, token: str, lake: str, log: Path) -> None:
        self._url, self._token, self._lake, self._log = url, token, lake, log
        self._ending = threading.Event()
        self._driver: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        if self._driver is not None:
            end_group(self._driver, STOP_SECONDS)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        """In a thread that lives as long as we do: the driver gets its signal when the thread that made it ends."""
        if problem := self._prepare():
            self._tell("missing", problem)
            say(f"penstock: {problem}; the server runs without it — {java.REMEDY}, or give --no-pipeline", sys.stderr)
            return
        failures = 0
        while not self._ending.is_set():
            began = time.monotonic()
            code = self._drive()
            if self._ending.is_set():
                return
            if time.monotonic() - began > STEADY_SECONDS:
                failures = 0
            failures += 1
            self._restarts += 1
            pause = RETRY.delay(failures, 1)
            self._tell("restarting", f"the driver ended with {code}; the next one comes in {pause:g} s")
            self._ending.wait(pause)

    def _prepare(self) -> str:
        """See to pyspark and Java; returns what is missing."""
        if importlib.util.find_spec("pyspark") is None and not self._install():
            return "pyspark could not be installed, which the pipeline needs"
        try:
            return java.ensure()
        except PenstockError as error:
            return str(error)

    def _install(self) -> bool:
        self._tell("installing", "pyspark")
        wrapper = ROOT / "penstock"
        if not wrapper.exists():
            return False
        done = subprocess.run([str(wrapper), "install", "pipeline"], stdin=subprocess.DEVNULL, check=False)
        importlib.invalidate_caches()
        return done.returncode == 0 and importlib.util.find_spec("pyspark") is not None

    def _drive(self) -> int:
        self._tell("running", "")
        command = [sys.executable, "-m", "penstock.pipeline.driver", "--url", self._url, "--lake", self._lake]
        environment = {**os.environ, "PENSTOCK_TOKEN": self._token}
        with self._log.open("ab") as log:
            self._driver = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        code = self._driver.wait()
        end_group(
            self._driver, STOP_SECONDS
        )  # the JVM outlives its driver for half a second: the next one must not meet it
        return code

    def _tell(self, state: str, detail: str) -> None:
        """Show in `/v1/pipeline` how it goes. A server that does not listen is no reason to stop."""
        from penstock.pipeline.client import PipelineClient

        client = PipelineClient(self._url, self._token, patience=2)
        told = {"state": state, "detail": detail, "restarts": self._restarts, "at_ms": int(time.time() * 1000)}
        with suppress(PenstockError):
            client.put("pipeline/supervisor", told, expect=client.get("pipeline/supervisor").version)
