"""A real Firefox with our server as its push service: a push while a page is open, and a stored one after a restart."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from py_vapid import Vapid02
from pywebpush import webpush

from penstock.testing import RunningServer, start_server, wait_until
from penstock.wire.webcrypto import encode64, load_private, point_of
from tests.api.client import ask, publish
from tests.browser.marionette import Firefox, firefox
from tests.doors.push_service import bind, binding

OTHER = load_private(b"\x07" * 32)

PAGE = b"<!doctype html><title>push</title>"
WORKER = b"""
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("push", (event) => {
  const text = event.data ? event.data.text() : "";
  const keep = async () => {
    const cache = await caches.open("pushes");
    await cache.put("/pushed/" + (await cache.keys()).length, new Response(self.registration.scope + " " + text));
  };
  event.waitUntil(navigator.locks.request("pushes", keep));
});
"""
SUBSCRIBE = """
  const [scope, key] = args;
  const registration = await navigator.serviceWorker.register("/worker.js", {scope});
  while (!registration.active) await new Promise((resolve) => setTimeout(resolve, 20));
  const subscription = await registration.pushManager.subscribe({userVisibleOnly: true, applicationServerKey: key});
  return subscription.toJSON();
"""
PUSHED = """
  const cache = await caches.open("pushes");
  const answers = await Promise.all((await cache.keys()).map((request) => cache.match(request)));
  return Promise.all(answers.map((answer) => answer.text()));
"""


class Site(http.server.BaseHTTPRequestHandler):
    """The page and its worker."""

    def do_GET(self) -> None:  # the name that http.server calls
        worker = self.path == "/worker.js"
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if worker else "text/html")
        self.end_headers()
        self.wfile.write(WORKER if worker else PAGE)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def site() -> Iterator[str]:
    """Where the page is; on the loopback address it is a secure context."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def preferences(server: RunningServer) -> dict[str, object]:
    """Our server instead of Mozilla's, over plain ws:// as it is on this machine."""
    return {
        "dom.push.serverURL": f"ws://127.0.0.1:{server.port}/",
        "dom.push.testing.allowInsecureServerURL": True,
        "dom.push.enabled": True,
        "dom.push.connection.enabled": True,
        "dom.push.retryBaseInterval": 200,
        "permissions.default.desktop-notification": 1,
    }


def pushed(browser: Firefox) -> list[str]:
    found: list[str] = browser.run(PUSHED)
    return found


def subscribe(browser: Firefox, scope: str, key: str) -> dict[str, Any]:
    made: dict[str, Any] = browser.run(SUBSCRIBE, scope, key)
    return made


def verdict(server: RunningServer, entry: int, recipient: str) -> str:
    found: str = ask(server, "GET", "/v1/why", entry=entry, recipient=recipient).json["verdict"]
    return found


def send(subscription: dict[str, Any], text: str) -> None:
    """As somebody else's application server does it."""
    vapid = Vapid02.from_pem(OTHER.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    claims = {"sub": "mailto:me@example.net"}
    assert webpush(subscription, text, vapid_private_key=vapid, vapid_claims=claims, ttl=600).status_code == 201


def test_a_page_gets_a_push_while_it_is_open_and_a_stored_one_after_a_restart(tmp_path: Path) -> None:
    with start_server(tmp_path / "data") as server, site() as origin:
        profile, wanted = tmp_path / "profile", preferences(server)
        own_key = ask(server, "GET", "/v1/webpush/key", token=None).json["public_key"]
        with firefox(profile, wanted) as browser:
            # Given a page with two subscriptions: one for our sender, one for somebody else's
            browser.open(origin + "/")
            ours = subscribe(browser, "/ours/", own_key)
            theirs = subscribe(browser, "/theirs/", encode64(point_of(OTHER)))
            assert ours["endpoint"].startswith(f"{server.url}/wpush/v2/")
            id = bind(server, ours, "/orders", receipts=True)
            # When both send while the page is open
            opened = publish(server, "/orders", "boots é".encode()).json["id"]
            send(theirs, "hello")
            # Then both arrive, decrypted by the browser
            wanted_texts = {f"{origin}/ours/ boots é", f"{origin}/theirs/ hello"}
            wait_until(lambda: set(pushed(browser)) == wanted_texts)
            browser.quit()
        # When both send while the browser is away
        stored = publish(server, "/orders", b"stored").json["id"]
        send(theirs, "stored too")
        wait_until(lambda: binding(server, id)["sent"] == 2)
        with firefox(profile, wanted) as browser:
            # Then they come when it is back, and the first ones do not come again
            browser.open(origin + "/")
            wanted_texts |= {f"{origin}/ours/ stored", f"{origin}/theirs/ stored too"}
            wait_until(lambda: set(pushed(browser)) == wanted_texts)
            assert len(pushed(browser)) == 4
            # and it is proved: the browser's own acknowledgements are in the ledger
            for entry in (opened, stored):
                wait_until(lambda entry=entry: verdict(server, entry, id) == "acked")
            browser.quit()


# ── the console's playground ──────────────────────────────────────────────────────────────────────

PRESS = """
  const [title] = args;
  const card = [...document.querySelectorAll(".step")].find((one) => one.getAttribute("aria-label") === title);
  card?.querySelector("button.primary, button:not(.copy)").click();
  return Boolean(card);
"""
CAME = "return [...document.querySelectorAll('.said .mono')].map((one) => one.textContent);"
SUBSCRIBE_STEP, PUBLISH_STEP = "Subscribe this browser, and bind it to the stream", "Publish into the stream"


def test_the_playground_subscribes_this_browser_and_shows_what_is_pushed(tmp_path: Path) -> None:
    with (
        start_server(tmp_path / "data") as server,
        firefox(tmp_path / "profile", preferences(server)) as browser,
    ):
        browser.open(f"{server.url}/console/#token={server.admin_token}")
        browser.run("location.hash = '#/try/webpush'")
        wait_until(lambda: browser.run(PRESS, SUBSCRIBE_STEP))
        wait_until(lambda: any("bound to /demo/push" in one for one in browser.run(CAME)))
        assert any(one.startswith(f"subscribed at {server.url}/wpush/v2/") for one in browser.run(CAME))
        browser.run(PRESS, PUBLISH_STEP)
        wait_until(lambda: "pushed: hello" in browser.run(CAME))
        # It is proved, and nothing is left behind when it is stopped
        (bound,) = ask(server, "GET", "/v1/webpush").json["bindings"]
        entry = ask(server, "GET", "/v1/read", streams="/demo/push").json["entries"][0]["id"]
        wait_until(lambda: verdict(server, entry, bound["id"]) == "acked")
        browser.run(PRESS, SUBSCRIBE_STEP)
        wait_until(lambda: ask(server, "GET", "/v1/webpush").json["bindings"] == [])
        wait_until(lambda: "stopped" in browser.run(CAME))
        browser.quit()
