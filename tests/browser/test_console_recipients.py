"""The view Recipients in a real browser: one list of all kinds, one of them in full, and what is done about it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from playwright.sync_api import Page, expect

from penstock.testing import RunningServer
from tests.api.client import Tail, publish
from tests.api.test_v1_recipients import actions, state
from tests.browser.console_page import Scheme, console, every_look, look
from tests.doors import msgstream_client, trickle_client
from tests.doors.push_service import Browser, bind, push_service
from tests.doors.sps_client import Wire

NAME = '<img src=x onerror="window.hit=1">/%2F " name that is long enough to be cut in the middle of it'


@every_look
def test_everybody_is_listed_and_one_is_shown_in_full(server: RunningServer, width: int, scheme: Scheme) -> None:
    with ExitStack() as things, push_service(lambda push: 503) as service:
        things.enter_context(Tail(server, "/orders/eu,/orders/>", consumer=NAME))
        wire = things.enter_context(Wire(server, hid="phone")).opened()
        msgstream_client.login(server, "<b>actor")
        trickle_client.made(server, "film")
        bind(server, Browser().subscription(service.endpoint("x")), "/orders/eu", ttl=600)
        publish(server, "/orders/eu", b"<b>waits</b>")
        with console(server, "#/recipients", width=width, scheme=scheme) as page:
            expect(page.get_by_role("row")).to_have_count(6)
            expect(page.get_by_role("row").filter(has_text="binding")).to_contain_text("failing")
            look(page, "recipients", width, scheme)
            page.get_by_label("Kind").select_option("wire")
            expect(page.get_by_role("row")).to_have_count(2)
            expect(page.get_by_role("row").nth(1)).to_contain_text(f"{wire.uid}/phone")
            page.get_by_label("Kind").select_option("")
            page.get_by_label("Search").fill("ONERROR")
            expect(page.get_by_role("row").nth(1)).to_contain_text("<img")
            expect(page.get_by_role("row")).to_have_count(2)
            page.get_by_role("row").nth(1).click()
            expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x")
            expect(page.get_by_label("State", exact=True)).to_contain_text("/orders/eu")
            expect(page.get_by_text("Nothing waits")).to_be_visible()
            page.go_back()
            page.get_by_label("Kind").select_option("binding")
            expect(page.get_by_role("row")).to_have_count(2)
            page.get_by_role("row").nth(1).click()
            expect(page.get_by_label("What waits for it")).to_contain_text("/orders/eu")
            expect(page.get_by_label("State", exact=True)).to_contain_text("503")
            look(page, "recipient", width, scheme)
            assert page.evaluate("window.hit") is None


def test_nobody_yet_is_explained(module_server: RunningServer) -> None:
    with console(module_server, "#/recipients") as page:
        expect(page.get_by_text("Nobody receives yet")).to_be_visible()


def test_an_action_is_asked_for_twice_done_and_an_entry(module_server: RunningServer) -> None:
    with Tail(module_server, "/acted", consumer=NAME) as tail, console(module_server, "#/recipients") as page:
        page.get_by_role("row").filter(has_text="tail").click()
        page.get_by_role("button", name="Disconnect").click()
        page.get_by_role("button", name="Cancel").click()
        assert state(module_server, "tail", NAME) == "live"
        page.get_by_role("button", name="Disconnect").focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="End its connection").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_text("Done: disconnect.").first).to_be_visible()
        expect(page.get_by_text("It is not there any more")).to_be_visible()
        assert tail.response.read() == b""
        assert state(module_server, "tail", NAME) == ""
    said = actions(module_server)[-1]
    assert (said["action"], said["recipient"], said["by"]) == ("disconnect", NAME, "admin")


def read_with_the_pointer(page: Page) -> None:
    page.get_by_role("row").nth(1).hover()


def read_with_the_keyboard(page: Page) -> None:
    page.get_by_role("row").nth(1).focus()


@pytest.mark.parametrize("read", [read_with_the_pointer, read_with_the_keyboard])
def test_a_list_that_is_read_holds_still(module_server: RunningServer, read: Callable[[Page], None]) -> None:
    with ExitStack() as tails, console(module_server, "#/recipients") as page:
        tails.enter_context(Tail(module_server, "/held", consumer="first"))
        row = page.get_by_role("row").filter(has_text="first")
        expect(row).to_have_count(1)
        read(page)
        kept = row.element_handle()
        tails.enter_context(Tail(module_server, "/held", consumer="another"))
        for _ in range(2):  # the second one finds what the first did to the list
            with page.expect_response(
                lambda reply: "/v1/recipients" in reply.url and "another" in reply.text(), timeout=20_000
            ):
                pass
        expect(page.get_by_text("2 recipients at")).to_be_visible()
        assert kept.evaluate("row => row.isConnected && (row.matches(':hover') || row.matches(':focus'))")
        expect(page.get_by_role("row")).to_have_count(2)
        page.mouse.move(0, 0)
        page.get_by_label("Search").focus()
        expect(page.get_by_role("row")).to_have_count(3)
