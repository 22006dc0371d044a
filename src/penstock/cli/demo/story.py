"""The story of `./penstock demo`, chapter by chapter. Every figure in it was counted, and every check can fail."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from threading import Timer
from typing import Final

from penstock.cli import java
from penstock.cli.demo.cast import Cast, DemoFailed, require_none
from penstock.cli.demo.telling import Teller
from penstock.cli.processes import end_group, end_with_parent
from penstock.client.api import Client
from penstock.testing import RunningServer, start_server

MISSED: Final = 200  # orders that are published while the page is away
LOAD_SECONDS: Final = 1.5  # before the kill, and after the restart
PAUSE_SECONDS: Final = 0.01  # of each publisher after an order
JOBS: Final = "archive,ledger,audit"
SPARK_SECONDS: Final = 300.0
STOP_SECONDS: Final = 10.0


class Story:
    """One run, from the start of the server to the verdict. Lives in `with`; nothing of it goes on afterwards."""

    def __init__(self, folder: Path, teller: Teller) -> None:
        self._folder, self._teller = folder, teller
        self._stack = ExitStack()
        self._after_restart = 0  # the first order that was not on its way when the server died

    def __enter__(self) -> Story:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def console(self) -> str:
        """Where the console is, with the token that it asks for."""
        return f"{self.server.url}/console/#token={self.server.admin_token}"

    def start(self) -> None:
        """A server, on a port and a folder of its own.

        A push message is stored before it is sent: else kill -9 may take the one that is on its way. And no phone is
        dropped for what it comes back to: there are more orders here than anybody has notifications.
        """
        (self._folder / "lake").mkdir(mode=0o700)
        starting = start_server(
            self._folder / "server",
            before_exec=end_with_parent,
            lake_url=self._folder.absolute() / "lake",
            webpush_direct="durable",
            webpush_msg_limit=0,
        )
        self.server: RunningServer = self._stack.enter_context(starting)
        place = f"pid {self.server.process.pid}, port {self.server.port}"
        self._teller.tell("server", f"is up ({place}), its log on the disk")

    def listen(self) -> None:
        """Five who listen, each by its own protocol."""
        self._cast = Cast(Client(self.server.url, self.server.admin_token), self._folder)
        self._cast.start(self._stack)
        for one in self._cast.listeners:
            self._teller.tell(one.name, f"listens: {one.how}")
        self._teller.tell(self._cast.viewer.name, f"listens: {self._cast.viewer.how}")

    def publish_one(self) -> None:
        """One order, and how soon each of them has it."""
        began = time.monotonic()
        self._cast.shop.publish(1)
        self._cast.wait_for_orders(self._cast.listeners)
        require_none(fault for one in self._cast.listeners for fault in self._cast.faults_of(one))
        took = sorted((round((one.arrived[1] - began) * 1000), one.name) for one in self._cast.listeners)
        self._teller.tell("publish", "one order: " + ", ".join(f"{name} {ms} ms" for ms, name in took))

    def cut_the_page(self) -> None:
        """The page loses its connection, misses much, and comes back."""
        page = self._cast.page
        page.cut()
        position = page.position
        self._cast.shop.publish(MISSED)
        self._teller.tell("cut", f"the page is offline; {MISSED} orders are published meanwhile")
        page.come_back()
        self._cast.wait_for_orders([page])
        require_none(self._cast.faults_of(page))
        self._teller.tell("back", f"it says 'after id {position}' and has all {MISSED}: no gap, none twice")

    def kill_the_server(self) -> None:
        """End it by kill -9 in the middle of the load, and start it again on the same folder."""
        shop = self._cast.shop
        with shop.publishing(PAUSE_SECONDS):
            self._go_on_for(LOAD_SECONDS)
            self.server.kill()
            self._teller.tell("kill -9", f"the server dies under load; {len(shop.acknowledged):,} orders acknowledged")
            began = time.monotonic()
            self.server.restart()
            took = time.monotonic() - began
            self._cast.admin.close()  # its connection went with the old one
            self._after_restart = max([*shop.acknowledged, *shop.repeated]) + 1
            self._go_on_for(LOAD_SECONDS)
        again = len(shop.repeated)
        self._teller.tell("restart", f"ready after {took:.1f} s; {again} orders without an answer sent again")

    def count(self) -> None:
        """What was acknowledged, and what each of them has."""
        cast = self._cast
        cast.camera.stop()
        cast.wait_for_orders(cast.listeners)
        cast.wait_for_film()
        orders, segments = len(cast.shop.acknowledged), len(cast.camera.acknowledged)
        self._teller.tell("count", f"{orders:,} orders and {segments} film segments were acknowledged")
        for listener in cast.listeners:
            self._teller.show(listener.name, cast.account_of(listener))
        self._teller.show(cast.viewer.name, cast.account_of_film())
        faults = [fault for listener in cast.listeners for fault in cast.faults_of(listener)]
        require_none(faults + cast.faults_of_film())

    def ask_why(self) -> None:
        """What the ledger knows of one order, for each who should have it."""
        cast = self._cast
        cast.page.confirm()
        number = min(number for number in cast.shop.acknowledged if number >= self._after_restart)
        entry = str(cast.shop.acknowledged[number])
        self._teller.tell("why", f"order {number} (id {entry}), the first after the restart:")
        for listener in cast.listeners:
            events = cast.wait_for_proof(entry, listener)
            self._teller.show(listener.name, ", ".join(f"{one['state']} {clock(one['ms'])}" for one in events))

    def archive(self) -> str:
        """The Spark pipeline archives the log and audits it; returns why not, where it cannot run."""
        if problem := java.ensure():
            self._teller.tell("spark", f"left out: {problem} ({java.REMEDY})")
            return problem
        self._teller.tell("spark", "starts; it archives the log and the ledger, and audits both")
        command = [sys.executable, "-m", "penstock.pipeline.driver", "--once", "--jobs", JOBS]
        command += ["--url", self.server.url, "--lake", str(self._folder.absolute() / "lake")]
        with (self._folder / "pipeline.log").open("wb") as log:
            driver = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PENSTOCK_TOKEN": self.server.admin_token},
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self._stack.callback(end_group, driver, STOP_SECONDS)
        at_most = Timer(SPARK_SECONDS, driver.kill)
        self._stack.callback(at_most.cancel)
        at_most.start()
        lines = []
        for line in driver.stdout or ():
            lines.append(line.decode().rstrip())
            self._tell_of_job(lines[-1])
        if any(line.startswith("  unknown") for line in lines):
            self._teller.add("(Of these kill -9 took the record; the orders themselves are counted above.)")
        if driver.wait():
            raise DemoFailed(f"the audit did not pass: the pipeline's driver ended with {driver.returncode}")
        return ""

    def conclude(self, not_audited: str) -> None:
        """The verdict. It says so when there was no audit, and why."""
        orders, segments = len(self._cast.shop.acknowledged), len(self._cast.camera.acknowledged)
        audit = f"not audited ({not_audited})" if not_audited else "the audit agrees"
        self._teller.conclude("verdict", f"nothing is missing of {orders:,} orders and {segments} segments; {audit}")

    def _go_on_for(self, seconds: float) -> None:
        time.sleep(seconds)
        self._cast.check_health()

    def _tell_of_job(self, line: str) -> None:
        """A job's outcome, or a line that says more of it."""
        word, _, words = line.partition(" ")
        if word:
            self._teller.tell(word.rstrip(":"), words)
        else:
            self._teller.add(" ".join(words.split()))


def clock(ms: int) -> str:
    """A moment of this day, as people write it."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
