"""A real browser: EventSource opens a wire, breaks with its server, and resumes by itself."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page

from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import ask
from tests.browser.console_page import chromium
from tests.doors.sps_client import Wire, notify_id, token

PAGE = b"""<!doctype html><title>wire</title><script>
window.seen = []; window.opened = 0; window.words = [];
function listen(url) {
  const source = new EventSource(url);
  source.onopen = () => { window.opened += 1; };
  source.onmessage = (event) => window.seen.push([Number(event.lastEventId), event.data]);
  source.addEventListener("sold", (event) => window.words.push("sold " + event.data));
  source.addEventListener("replaced", () => { window.words.push("replaced"); source.close(); });
}
</script>"""


class OnePage(http.server.BaseHTTPRequestHandler):
    """Serves the page, from another origin than the wire's."""

    def do_GET(self) -> None:  # the name that http.server calls
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def browser_page() -> Iterator[Page]:
    """An empty page of Chromium, served over HTTP."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OnePage)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with chromium() as browser:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            yield page
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def listen(page: Page, server: RunningServer, uid: str, **params: str) -> None:
    query = "".join(f"&{name}={value}" for name, value in params.items())
    url = f"{server.url}/subscribe?uid={uid}{query}&access_token={token(server, uid)}"
    page.evaluate("url => listen(url)", url)
    wait_until(lambda: page.evaluate("window.opened") == 1)


def seen(page: Page) -> list[list[object]]:
    found: list[list[object]] = page.evaluate("window.seen")
    return found


def wait_for(page: Page, count: int) -> None:
    wait_until(lambda: len(seen(page)) >= count)


def test_an_event_source_resumes_by_itself_over_a_restart(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", sps_retry_ms=100) as server, browser_page() as page:
        # Given a page that listens, and has seen something
        listen(page, server, "7", tid="earth")
        published = [[notify_id(server, "user", b"line one\nline two", uid="7"), "line one\nline two"]]
        published.append([notify_id(server, "room", b"hello", tid="earth,mars"), "hello"])
        wait_until(lambda: seen(page) == published)
        # When the server goes away, and more is published as soon as it is back
        for _ in range(2):
            server.kill()
            server.restart()
            missed = [f"missed {number}" for number in range(20)]
            published += [[notify_id(server, "user", text.encode(), uid="7"), text] for text in missed]
            wait_for(page, len(published))
            published.append([notify_id(server, "user", b"live", uid="7"), "live"])
            # Then the page has everything, once, in order
            wait_for(page, len(published))
            assert seen(page) == published
        assert page.evaluate("window.opened") == 3


def test_a_page_that_saw_nothing_yet_resumes_where_it_began(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", sps_retry_ms=100) as server, browser_page() as page:
        notify_id(server, "user", b"before", uid="7")
        listen(page, server, "7")
        server.kill()
        server.restart()
        missed = notify_id(server, "user", b"missed", uid="7")

        wait_until(lambda: seen(page) != [])
        assert seen(page) == [[missed, "missed"]]


def test_a_page_hears_named_events_and_that_it_was_replaced(tmp_path: Path) -> None:
    with start_server(tmp_path / "data") as server, browser_page() as page:
        listen(page, server, "7", hid="web")
        ask(server, "POST", "/notify_to_user", b"boots", {"Event-Type": "sold"}, uid="7")
        wait_until(lambda: page.evaluate("window.words") == ["sold boots"])
        with Wire(server, uid="7", hid="web").opened():
            wait_until(lambda: page.evaluate("window.words") == ["sold boots", "replaced"])
