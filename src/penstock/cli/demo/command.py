"""`demo`: the whole of Penstock in a story of two minutes, on a port and a folder of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.demo_folder import interrupt, own_folder

if TYPE_CHECKING:
    from penstock.cli.demo.story import Story
    from penstock.cli.demo.telling import Teller


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Without Spark: some 20 seconds.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="End after the verdict.")] = False,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep everything here; else it goes away.")] = None,
    no_system: Annotated[bool, typer.Option("--no-system", help="Never install Debian packages.")] = False,
) -> None:
    """See it work: five kinds of clients, a cut connection, kill -9, and a count of what reached whom.

    Starts a server of its own on a free port. A phone, a page, an app, a game and a film's viewer listen by their
    real protocols. Ends with 0 if nothing that was acknowledged is missing, with 1 if anything is.

    \b
    ./penstock demo
    ./penstock demo --fast --no-wait
    """
    from penstock.cli.demo.story import Story
    from penstock.cli.demo.telling import Teller

    if no_system:
        os.environ["PENSTOCK_NO_SYSTEM"] = "1"
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, interrupt)
    teller = Teller()
    teller.say("Penstock in one story: five kinds of clients, one log, one kill -9.\n")
    try:
        with own_folder(data, "penstock-demo-", empty=True) as folder, Story(folder, teller) as story:
            _tell(story, fast=fast)
            if not no_wait:
                _wait(teller, story.console)
    except KeyboardInterrupt:
        teller.say("\nEnded early; nothing of it is left.")
        raise


def _tell(story: Story, *, fast: bool) -> None:
    story.start()
    story.listen()
    story.publish_one()
    story.cut_the_page()
    story.kill_the_server()
    story.count()
    story.ask_why()
    story.conclude("--fast" if fast else story.archive())


def _wait(teller: Teller, console: str) -> None:
    teller.say(f"\nThe server stays up. Its console:\n  {console}\nEnter or Ctrl-C ends it.")
    try:
        sys.stdin.readline()
    except KeyboardInterrupt:
        teller.say()
