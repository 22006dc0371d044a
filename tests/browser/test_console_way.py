"""The view Way in a real browser: everybody as a picture, found by name, each with what happened when."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from playwright.sync_api import expect

from penstock.testing import RunningServer, wait_until
from tests.api.client import Tail, ask, publish
from tests.browser.console_page import Scheme, console, every_look, look
from tests.doors import msgstream_client
from tests.doors.push_service import Browser, bind, push_service

ODD = "/way/<img-src=x"
NAME = "<script>window.hit=1</script>"
NUMBERS = itertools.count()  # a stream for each test


@contextmanager
def fan_out(server: RunningServer, readers: int = 12) -> Iterator[int]:
    """An event that some have, one has confirmed, and a push service has refused; its id."""
    with ExitStack() as things, push_service(lambda push: 400) as service:
        stream = f"{ODD}/{next(NUMBERS)}"
        bind(server, Browser().subscription(service.endpoint("way")), stream, ttl=600)
        tails = [
            things.enter_context(Tail(server, stream, consumer=f"{NAME} {number}" if number else NAME))
            for number in range(readers)
        ]
        id: int = publish(server, stream, b"<script>window.hit=1</script>").json["id"]
        for tail in tails:
            tail.line()
        things.enter_context(Tail(server, stream, consumer=NAME, after=id))
        wait_until(lambda: counts(server, id) == {"dropped": 1, "sent": readers - 1, "acked": 1})
        yield id


def counts(server: RunningServer, id: int) -> dict[str, int]:
    found: dict[str, int] = ask(server, "GET", "/v1/why/recipients", entry=id).json["states"]
    return found


@every_look
def test_everybody_is_drawn_found_and_explained(module_server: RunningServer, width: int, scheme: Scheme) -> None:
    with fan_out(module_server) as id, console(module_server, f"#/way/{id}", width=width, scheme=scheme) as page:
        # Everybody is counted by state, those first who need a look
        expect(page.get_by_role("figure")).to_have_accessible_name("13 recipients: 1 dropped, 11 sent, 1 acked")
        expect(page.get_by_role("img", name="11 recipients sent")).to_be_visible()
        expect(page.get_by_text("1–13 of 13")).to_be_visible()
        # One is found by a part of its name, and its story is told
        page.get_by_label("Search").fill("</SCRIPT> 7")
        expect(page.get_by_text("1–1 of 1")).to_be_visible()
        page.get_by_role("row").nth(1).click()
        steps = page.get_by_role("article").get_by_role("listitem")
        expect(steps).to_have_count(4)
        expect(steps.nth(2)).to_contain_text("sent")
        expect(page.get_by_role("article")).to_contain_text("accepted and stored at")
        page.get_by_label("Search").fill("")
        page.get_by_label("State").select_option("dropped")
        expect(page.get_by_role("row").nth(1)).to_contain_text("dropped")
        expect(page.get_by_text("1–1 of 1")).to_be_visible()
        page.get_by_role("row").nth(1).click()
        expect(page.get_by_role("article")).to_contain_text("400")
        look(page, "way", width, scheme)
        assert page.evaluate("window.hit") is None


def test_a_shape_of_the_picture_is_one_recipient(module_server: RunningServer) -> None:
    with fan_out(module_server) as id, console(module_server, f"#/way/{id}") as page:
        page.get_by_role("img", name="1 recipient acked").click(position={"x": 4, "y": 4})
        expect(page.get_by_role("article")).to_contain_text("acked")
        expect(page.get_by_role("article").get_by_role("heading")).to_contain_text(NAME)
        page.get_by_role("button", name="sent 11").click()
        expect(page.get_by_text("1–11 of 11")).to_be_visible()


def test_a_message_id_is_typed_and_the_list_is_walked_with_the_keyboard_alone(module_server: RunningServer) -> None:
    key = msgstream_client.login(module_server, "way <b>")
    reply = msgstream_client.emit_raw(module_server, {"actors": ["way <b>"], "messages": [["x"]]})
    message = reply.headers["message-id"]
    with console(module_server, "#/way") as page:
        expect(page.get_by_text("Which message?")).to_be_visible()
        expect(page.get_by_label("Id of an event or of a message")).to_be_focused()
        page.keyboard.type(message)
        page.keyboard.press("Enter")
        expect(page.get_by_role("figure")).to_have_accessible_name("1 recipient: 1 accepted")
        page.get_by_label("Door").focus()
        page.keyboard.press("Tab")
        expect(page.locator("[data-row]").first).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("article")).to_contain_text("way <b>")
        msgstream_client.packs(module_server, key, confirm="1")


def test_an_id_that_nobody_has_is_explained(module_server: RunningServer) -> None:
    with console(module_server, "#/now") as page:
        expect(page.get_by_role("link", name="Way")).to_be_visible()
    lonely = publish(module_server, "/lonely").json["id"]
    with console(module_server, f"#/way/{lonely}") as page:
        expect(page.get_by_text("Nothing is recorded of anybody")).to_be_visible()
