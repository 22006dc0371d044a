"""The view Trouble in a real browser: what failed, by reason, and tried again by a click."""

from __future__ import annotations

from playwright.sync_api import expect

from penstock.testing import RunningServer, wait_until
from tests.api.client import publish
from tests.api.test_v1_recipients import actions
from tests.api.test_v1_trouble import states
from tests.browser.console_page import Scheme, console, every_look, look
from tests.doors.push_service import Browser, bind, push_service

ODD = "/trouble/<img-src=x-onerror=window.hit=1"


@every_look
def test_what_failed_is_grouped_and_tried_again(module_server: RunningServer, width: int, scheme: Scheme) -> None:
    answer = [400]
    with push_service(lambda push: answer[0]) as service:
        stream, browsers = f"{ODD}-{width}-{scheme}", [Browser().subscription(service.endpoint(one)) for one in "ab"]
        refused, gone = (bind(module_server, browser, stream, ttl=600) for browser in browsers)
        for _ in range(3):
            publish(module_server, stream)
        wait_until(lambda: states(module_server, refused) == states(module_server, gone) == ["dropped"] * 3)
        with console(module_server, "#/trouble", width=width, scheme=scheme) as page:
            groups, one_by_one = page.get_by_label("By reason"), page.get_by_label("One by one")
            expect(groups.get_by_role("row")).to_have_count(2)
            expect(groups.get_by_role("row").nth(1)).to_contain_text("400")
            expect(one_by_one.get_by_role("row")).to_have_count(7)
            look(page, "trouble", width, scheme)
            answer[0] = 201
            # One of them first, then all
            row = one_by_one.get_by_role("row").nth(1)
            row.get_by_role("button", name="Redrive").click()
            row.get_by_role("button", name="Try it again").click()
            expect(page.get_by_text("tried again", exact=False).first).to_be_visible()
            wait_until(lambda: len(service.taken) == 1)
            page.mouse.move(0, 0)
            expect(one_by_one.get_by_role("row")).to_have_count(6)
            page.get_by_role("button", name="Redrive all 5").click()
            page.get_by_role("button", name="Try 5 again").click()
            wait_until(lambda: len(service.taken) == 6)
            page.mouse.move(0, 0)
            expect(page.get_by_text("Nothing is in trouble")).to_be_visible()
            look(page, "trouble-none", width, scheme)
            assert page.evaluate("window.hit") is None
    assert [one["action"] for one in actions(module_server)][-2:] == ["redrive", "redrive"]


def test_what_cannot_be_tried_again_is_explained(module_server: RunningServer) -> None:
    with push_service(lambda push: 410) as service:
        id = bind(module_server, Browser().subscription(service.endpoint("gone")), "/gone", ttl=600)
        publish(module_server, "/gone")
        wait_until(lambda: states(module_server, id) == ["dead"])
        with console(module_server, "#/trouble") as page:
            page.get_by_role("button", name="Redrive all 1").click()
            page.mouse.move(0, 0)
            for _ in range(2):  # who thinks about it is not interrupted by the next look
                with page.expect_response(lambda reply: "/v1/trouble?" in reply.url):
                    pass
            expect(page.get_by_role("button", name="Cancel")).to_be_focused()
            page.get_by_role("button", name="Try 1 again").click()
            expect(page.get_by_text("the browser must subscribe again")).to_be_visible()
            page.get_by_label("By reason").locator("[data-row]").first.focus()
            page.keyboard.press("Enter")
            expect(page.get_by_text("Only")).to_be_visible()
            page.get_by_role("button", name="Show everything").click()
            expect(page.get_by_text("Only")).to_have_count(0)
