"""The view Now in a real browser: the drawing, the charts, the first start, and traffic through the real doors."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Page, expect

from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import Tail, ask, publish
from tests.browser.console_page import Scheme, console, every_look, keep, look

DOORS = ("v1", "sps", "msgstream", "webpush", "trickle", "eventhorizon")


def seconds(server: RunningServer) -> list[dict[str, object]]:
    found: list[dict[str, object]] = ask(server, "GET", "/v1/stats").json["seconds"]
    return found


def flow(page: Page) -> str:
    return page.locator("svg.drawing").get_attribute("aria-label") or ""


@every_look
def test_an_empty_system_says_what_to_do(module_server: RunningServer, width: int, scheme: Scheme) -> None:
    with console(module_server, width=width, scheme=scheme) as page:
        expect(page.get_by_text("Nothing has been published yet")).to_be_visible()
        expect(page.get_by_role("button", name="Send sample traffic")).to_be_visible()
        expect(page.locator(".chart canvas")).to_have_count(8)
        look(page, "first-start", width, scheme)
        page.locator("main").get_by_role("link", name="Try it").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Try it")


@every_look
def test_rates_stand_on_the_arrows_and_the_past_is_there_at_once(
    server: RunningServer, width: int, scheme: Scheme
) -> None:
    # Given traffic before anybody looked
    with Tail(server, "/busy") as tail:
        for number in range(50):
            publish(server, "/busy", b"%d" % number)
        tail.lines(50)
        wait_until(lambda: any(one.get("delivered") for one in seconds(server)))
        # When the console is opened
        with console(server, width=width, scheme=scheme) as page:
            expect(page.locator("#status")).to_have_text("live")
            # Then the drawing has the open reader, and the charts have what happened before
            wait_until(lambda: "Penstock's API" in flow(page) and "1 connected" in flow(page))
            expect(page.get_by_text("Nothing has been published yet")).to_have_count(0)
            expect(page.locator(".chart canvas")).to_have_count(8)
            publish(server, "/busy")
            wait_until(lambda: not flow(page).startswith("0/s published"))
            look(page, "now", width, scheme)


def test_the_view_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    with start_server(tmp_path / "data") as server, console(server, caused="ERR_CONNECTION_REFUSED") as page:
        expect(page.locator("#status")).to_have_text("live")
        page.evaluate("window.stays = true")
        server.stop()
        expect(page.locator("#status")).to_contain_text("no answer since")
        keep(page, "offline")
        server.restart()
        expect(page.locator("#status")).to_have_text("live")
        assert page.evaluate("window.stays")


def test_sample_traffic_goes_through_every_door_and_stops(server: RunningServer) -> None:
    with console(server) as page:
        page.get_by_role("button", name="Send sample traffic").focus()
        page.keyboard.press("Enter")

        def through() -> set[str]:
            return {door for one in seconds(server) for door in dict(one.get("delivered", {}))}  # type: ignore[call-overload]

        wait_until(lambda: set(DOORS) <= through())
        rows = page.locator(".sample .doors > div")
        expect(rows).to_have_count(6)
        came = "els => els.map(e => Number(/([0-9,]+) came/.exec(e.textContent)?.[1] ?? 0))"
        wait_until(lambda: min(rows.evaluate_all(came)) > 2)
        keep(page, "sample-traffic")
        page.get_by_role("link", name="Streams").click()  # it goes on when the view is left
        expect(page.get_by_role("link", name="/sample/orders/eu")).to_be_visible()
        page.get_by_role("link", name="Now").click()
        page.get_by_role("button", name="Stop the sample traffic").click()
        expect(page.get_by_role("button", name="Send sample traffic")).to_be_visible()
        sessions = ask(server, "GET", "/v1/sessions").json
        assert json.dumps(sessions).count('"connected"') <= 1


def test_the_slowest_reader_is_named_beside_its_lag(server: RunningServer) -> None:
    with Tail(server, "/slow", consumer="<b>slow</b>"), console(server) as page:
        for _ in range(500):
            publish(server, "/slow", b"x" * 20_000)  # more than sockets hold
        chart = page.locator(".chart", has_text="Lag of the slowest")
        expect(chart.locator(".noted")).to_have_text("v1 <b>slow</b>")
        expect(chart.locator(".value")).not_to_have_text("0 ids")


def test_a_door_that_is_closed_is_shown_as_closed(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", server_doors="sps") as server, console(server) as page:
        wait_until(lambda: flow(page).count("closed") == 4)
        page.get_by_role("button", name="Send sample traffic").click()
        expect(page.locator(".sample .doors > div")).to_have_count(2)
