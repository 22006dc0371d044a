"""Takes the README's picture: `.venv/bin/python docs/screenshot.py [FILE [SECONDS of traffic before it]]`.

A real server, with the clients of `./penstock demo` at work, as its console shows them in Chromium.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from playwright.sync_api import sync_playwright

from penstock.cli.demo.cast import Cast
from penstock.client.api import Client, ServerUnreachable
from penstock.testing import RunningServer, require_program, start_server

PICTURE = Path(__file__).parent / "console.png"
SIZE = {"width": 1280, "height": 800}
SECONDS = 90.0  # of traffic before the picture is taken: charts that show something
PAUSES = (0.2, 0.1, 0.3, 0.15)  # of each publisher after an order, by turns
MOST_BYTES = 150_000
"""Whoever clones the repository has the picture, too."""


def main(picture: Path, seconds: float) -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        starting = start_server(Path(folder, "server"), webpush_direct="durable", webpush_msg_limit=0)
        server = stack.enter_context(starting)
        cast = Cast(Client(server.url, server.admin_token), Path(folder))
        cast.start(stack)
        threading.Thread(target=read_tail, args=(server,), daemon=True).start()
        for turn in range(4 * len(PAUSES)):
            with cast.shop.publishing(PAUSES[turn % len(PAUSES)]):
                time.sleep(seconds / (4 * len(PAUSES)))
            cast.check_health()
        with cast.shop.publishing(PAUSES[0]):
            take_picture(server, picture)
    if picture.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{picture} has {picture.stat().st_size:,} bytes, more than {MOST_BYTES:,}")


def read_tail(server: RunningServer) -> None:
    """One more who listens, by Penstock's API, until the server ends."""
    with suppress(ServerUnreachable):
        for _ in Client(server.url, server.admin_token).tail(">"):
            pass


def take_picture(server: RunningServer, picture: Path) -> None:
    """The console's first view, after it has drawn what it knows."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=require_program("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(f"{server.url}/console/#token={server.admin_token}")
        page.wait_for_selector("main svg")
        page.wait_for_selector("main canvas")
        page.wait_for_timeout(3000)  # three seconds of what comes live
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(Path(given[0]) if given else PICTURE, float(given[1]) if len(given) > 1 else SECONDS)
