"""The view Try it in a real browser: each door's requests run in the page, and work as they are copied."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import ask
from tests.browser.console_page import Scheme, console, every_look, look

CAME = {
    "v1": ["HTTP 200, and stays open", '"data":"{\\"hello\\": \\"world\\"}"', "HTTP 201", '"upto"'],
    "sps": ["the wire is open", 'message: {"text": "hello"}', '"delivered":1'],
    "msgstream": ['{"1":[["shop.purchase",{"item": "boots"}]]}', '{"packs":{"alice":1}}'],
    "webpush": [
        '"pushEndpoint"',
        '"messageType":"notification"',
        '"code":100',
        "HTTP 201",
        "public_key",
        "does not subscribe",
    ],
    "trickle": ["one segment, whole", "HTTP 200 one segment, whole"],
    "eventhorizon": ['{"Cursor":"/accounts:', '"Content":"debit 5"', "HTTP 200 OK"],
}
"""What each door's playground shows when its steps were run in their order."""


def step(page: Page, title: str) -> Locator:
    return page.get_by_role("region", name=title)


@pytest.mark.parametrize("door", CAME)
def test_every_step_of_a_door_runs_in_the_page(module_server: RunningServer, door: str) -> None:
    with console(module_server, f"#/try/{door}") as page:
        steps = page.locator(".step")
        expect(steps).not_to_have_count(0)
        for number in range(steps.count()):
            one = steps.nth(number)
            expect(one.get_by_role("button", name="Run", exact=True)).to_be_enabled()
            one.get_by_role("button", name="Run", exact=True).click()
            said = page.locator(".said.came, .said.bad", has_text=f" {number + 1}. ")
            if (door, number) == ("trickle", 1):  # nothing comes before the segment's first byte
                wait_until(lambda: b"penstock_trickle_waiting 1" in ask(module_server, "GET", "/metrics").body)
            elif (door, number) != ("msgstream", 2):  # a long poll is answered by the next step
                expect(said).not_to_have_count(0)
        for text in CAME[door]:
            expect(page.get_by_role("log").get_by_text(text).first).to_be_attached()
        # This Chromium has no push service, and the page says so.
        expect(page.locator(".said.bad")).to_have_count(1 if door == "webpush" else 0)


@every_look
def test_a_playground_can_be_read(module_server: RunningServer, width: int, scheme: Scheme) -> None:
    with console(module_server, "#/try/v1", width=width, scheme=scheme) as page:
        step(page, "Follow a stream").get_by_role("button", name="Run", exact=True).click()
        expect(page.get_by_role("log").get_by_text("stays open")).to_be_visible()
        step(page, "Publish into it").get_by_role("button", name="Run", exact=True).click()
        expect(page.get_by_role("log").get_by_text('"index":').first).to_be_attached()
        look(page, "try", width, scheme)


def test_requests_are_shown_without_the_token_and_copied_so_that_they_run(module_server: RunningServer) -> None:
    with console(module_server, "#/try/v1") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_label("body").fill("""it's "quoted" $HOME `x` \\n""")
        one = step(page, "Publish into it")
        assert module_server.admin_token not in page.locator("body").inner_text()
        one.get_by_role("button", name="Copy as curl").click()
        command = page.evaluate("navigator.clipboard.readText()")
        ran = subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=20)
        assert b'"stream":"/demo"' in ran.stdout
    entries = ask(module_server, "GET", "/v1/read", streams="/demo").json["entries"]
    assert entries[-1]["data"] == """it's "quoted" $HOME `x` \\n"""


def test_what_is_wrong_is_told_with_its_remedy(module_server: RunningServer) -> None:
    with console(module_server, "#/try/v1", caused="400") as page:
        page.get_by_role("textbox", name="stream").fill("no name")
        step(page, "Publish into it").get_by_role("button", name="Run", exact=True).click()
        expect(page.locator(".said.bad")).to_contain_text("stream_name_invalid")
        expect(page.locator(".said.bad")).to_contain_text("Names look like /orders/eu")


def test_a_tail_is_stopped_by_keyboard(module_server: RunningServer) -> None:
    with console(module_server, "#/try/v1") as page:
        one = step(page, "Follow a stream")
        one.get_by_role("button", name="Run", exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("log").get_by_text("stays open")).to_be_visible()
        page.keyboard.press("Enter")
        expect(page.get_by_text("stopped")).to_be_visible()
        expect(one.get_by_role("button", name="Run", exact=True)).to_be_focused()


def test_a_closed_door_says_how_to_open_it(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", server_doors="sps") as server, console(server, "#/try/trickle") as page:
        expect(page.get_by_text("This door is closed on this server")).to_be_visible()
        expect(page.get_by_text("server.doors")).to_be_visible()
