"""The view Streams in a real browser: found, followed, paged through, read in full, published into."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from penstock.testing import RunningServer, wait_until
from tests.api.client import ask, publish
from tests.browser.console_page import NARROW, WIDE, Scheme, check_fits, console, every_look, look

ODD = "/odd/<b\"&'\\ü%41"
SCRIPT = (
    b'{"say":"<script>window.hit=1</script>","<img src=x onerror=window.hit=1>":[1,{"deep":{"er":null}}],'
    b'"n":12345678901234567890}'
)


def rows(page: Page) -> Locator:
    return page.locator(".line:visible")


@every_look
def test_streams_are_found_opened_and_read_in_full(shared_server: RunningServer, width: int, scheme: Scheme) -> None:
    # Given a stream with an odd name, and bodies that want to be markup
    publish(shared_server, ODD, SCRIPT, Event_Type="<i>type</i>")
    publish(shared_server, ODD, b"\x00\xff<script>\x01" * 10)
    with console(shared_server, "#/streams", width=width, scheme=scheme) as page:
        # When it is searched for and opened
        page.get_by_label("Search").fill("ODD/<B")
        expect(page.get_by_role("row")).to_have_count(2)
        look(page, "streams", width, scheme)
        page.get_by_role("link", name="/odd/").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(ODD)
        page.get_by_role("button", name="History").click()
        # Then each entry is there in full, as text: JSON to fold, bytes in hexadecimal
        rows(page).filter(has_text="that are no text").first.click()
        expect(page.locator(".hex")).to_contain_text("00 ff 3c 73 63 72 69 70 74 3e 01")
        rows(page).filter(has_text="12345678901234567890").first.click()
        expect(page.locator(".json")).to_contain_text("<script>window.hit=1</script>")
        expect(page.locator(".json .number").last).to_have_text("12345678901234567890")
        expect(page.locator(".json").get_by_text('"er"')).to_have_count(0)  # folded
        page.locator(".json summary").last.click()
        expect(page.locator(".json").get_by_text('"deep"')).to_be_visible()
        way = page.get_by_role("link", name="Its way to every recipient").get_attribute("href") or ""
        assert re.fullmatch(r"#/way/[0-9]+", way)
        look(page, "stream", width, scheme)
        assert page.evaluate("window.hit") is None


def test_a_tail_is_followed_held_paused_and_filtered(module_server: RunningServer) -> None:
    publish(module_server, "/tail", b"before")
    with console(module_server, "#/streams/%2Ftail") as page:
        expect(page.get_by_text("Nothing has come yet")).to_be_visible()
        wait_until(lambda: ask(module_server, "GET", "/v1/consumers").json["consumers"])
        # What comes is shown, the newest first
        for number in range(3):
            publish(module_server, "/tail", b"event %d" % number)
        expect(rows(page)).to_have_count(3)
        expect(rows(page).first).to_contain_text("event 2")
        # It holds still under the pointer, and goes on when the pointer leaves
        rows(page).first.hover()
        publish(module_server, "/tail", b"event 3")
        expect(page.get_by_text("1 new, held while you read")).to_be_visible()
        expect(rows(page).first).to_contain_text("event 2")
        page.mouse.move(5, 5)
        expect(rows(page).first).to_contain_text("event 3")
        # It pauses when it is told to
        page.get_by_role("button", name="Pause").click()
        publish(module_server, "/tail", b"event 4")
        expect(page.get_by_text("1 new, paused")).to_be_visible()
        expect(rows(page)).to_have_count(4)
        page.get_by_role("button", name="Go on").click()
        expect(rows(page)).to_have_count(5)
        # And it shows what is filtered for
        page.get_by_label("Show entries with this text").fill("EVENT 3")
        expect(rows(page)).to_have_count(1)


def test_a_test_event_is_published_by_keyboard_alone(module_server: RunningServer) -> None:
    publish(module_server, "/keys")
    with console(module_server, "#/streams") as page:
        expect(page.get_by_role("link", name="/keys")).to_be_visible()
        page.get_by_label("Search").focus()
        page.keyboard.type("keys")
        expect(page.get_by_role("row")).to_have_count(2)
        for _ in range(3):
            page.keyboard.press("Tab")  # two columns to sort by, then the list
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("/keys")
        wait_until(lambda: ask(module_server, "GET", "/v1/consumers").json["consumers"])
        page.get_by_text("Publish a test event").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Control+A")
        page.keyboard.type("typed <b>here</b>")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_text("published as id")).to_be_visible()
        expect(rows(page)).to_have_count(1)
        rows(page).first.focus()
        page.keyboard.press("Enter")
        expect(page.locator(".text")).to_have_text("typed <b>here</b>")
    assert ask(module_server, "GET", "/v1/read", streams="/keys").json["entries"][-1]["data"] == "typed <b>here</b>"


def test_history_is_paged_through_and_found_by_time(module_server: RunningServer) -> None:
    lines = b"".join(b"%d\n" % number for number in range(120))
    publish(module_server, "/past", lines, Content_Type="application/x-ndjson")
    with console(module_server, "#/streams/%2Fpast") as page:
        page.get_by_role("button", name="History").click()
        told = page.get_by_text("events, from index")
        expect(told).to_have_text("50 events, from index 70 to 119")
        page.get_by_role("button", name="Older").click()
        expect(told).to_have_text("50 events, from index 20 to 69")
        page.get_by_role("button", name="Newer").click()
        expect(told).to_have_text("50 events, from index 70 to 119")
        page.get_by_role("button", name="Oldest").click()
        expect(told).to_contain_text("from index 0 to")
        page.get_by_label("Begin at this time").fill("2001-01-01T00:00:00")
        page.get_by_role("button", name="Go to this time").click()
        expect(told).to_contain_text("from index 0 to")
        page.get_by_label("Begin at this time").fill("2101-01-01T00:00:00")
        page.get_by_role("button", name="Go to this time").click()
        expect(page.get_by_text("No event here.")).to_be_visible()


def test_ten_thousand_streams_are_searched(server: RunningServer) -> None:
    for start in range(0, 10_000, 1000):
        names = [f"/many/{number:05}" for number in range(start, start + 1000)]
        message = json.dumps({"streams": names, "messages": [["made", 1]]}).encode()
        assert ask(server, "POST", "/v1/emit", message).status == 200
    with console(server, "#/streams") as page:
        expect(page.get_by_text("or more streams")).to_be_visible()
        page.get_by_label("Search").fill("09999")
        expect(page.get_by_role("row")).to_have_count(2)
        page.get_by_label("Search").fill("no such name")
        expect(page.get_by_text("No stream has that in its name")).to_be_visible()


@pytest.mark.parametrize("place", ["#/streams", "#/recipients", "#/trouble"])
def test_who_leaves_while_something_is_looked_for_hears_nothing_of_it(module_server: RunningServer, place: str) -> None:
    with console(module_server, place) as page:
        held: list[Route] = []
        page.route("**/v1/*search=wanted*", lambda route: held.append(route))
        page.get_by_label("Search").fill("wanted")
        wait_until(lambda: page.evaluate("1") and held)
        page.evaluate("location.hash = '#/try'")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Try")
        held[0].abort()


def test_rows_that_come_while_one_has_the_focus_leave_it_there(module_server: RunningServer) -> None:
    for name in ("/rows/here/a", "/rows/here/b"):
        publish(module_server, name)
    with console(module_server, "#/streams") as page:
        page.get_by_label("Search").fill("here/")
        expect(page.get_by_role("row")).to_have_count(3)
        held: list[Route] = []
        page.route("**/v1/streams?search=here%2Fb*", lambda route: route.continue_() if held else held.append(route))
        page.get_by_label("Search").fill("here/b")
        wait_until(lambda: page.evaluate("1") and held)
        page.locator("[data-row]").nth(1).focus()
        held[0].continue_()
        expect(page.get_by_role("row")).to_have_count(2)
        expect(page.locator("[data-row]").first).to_be_focused()


def test_names_of_any_length_fit_and_are_whole_on_hover(shared_server: RunningServer) -> None:
    long = "/" + "/".join(letter * 100 for letter in "abcd")
    publish(shared_server, long, b"y" * 5000, Event_Type="t" * 200)
    for width in (WIDE, NARROW):
        with console(shared_server, "#/streams", width=width) as page:
            page.get_by_label("Search").fill("bbbb/cccc")
            expect(page.get_by_title(long)).to_be_visible()
            check_fits(page)
            page.get_by_title(long).click()
            expect(page.get_by_role("heading", level=1).get_by_title(long)).to_contain_text("…")
            page.get_by_role("button", name="History").click()
            rows(page).first.click()
            expect(page.locator(".entry")).to_be_visible()
            check_fits(page)


def names(page: Page) -> list[str]:
    return page.locator("tbody a").all_inner_texts()


def test_the_list_is_sorted_by_its_heads_and_holds_still_under_the_pointer(server: RunningServer) -> None:
    for _ in range(5):
        publish(server, "/b")
    publish(server, "/a")
    with console(server, "#/streams") as page:
        wait_until(lambda: names(page)[:2] == ["/b", "/a"])
        page.get_by_role("button", name="Stream", exact=True).click()
        wait_until(lambda: names(page) == ["/", "/a", "/b"])
        page.get_by_role("button", name="Events/s").click()
        wait_until(lambda: names(page)[:2] == ["/b", "/a"])
        # When another becomes the busiest while somebody reads, nothing moves until the pointer leaves
        page.locator("tbody tr").nth(1).hover()
        shown = page.locator(".found").inner_text()
        for _ in range(40):
            publish(server, "/a")
        wait_until(lambda: ask(server, "GET", "/v1/streams", sort="traffic").json["streams"][0]["stream"] == "/a")
        for _ in range(2):  # it has asked again since then
            expect(page.locator(".found")).not_to_have_text(shown)
            shown = page.locator(".found").inner_text()
        assert names(page)[:2] == ["/b", "/a"]
        page.mouse.move(5, 5)
        wait_until(lambda: names(page)[:2] == ["/a", "/b"])
