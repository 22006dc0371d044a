"""The console's frame in a real browser: the token, the views, the keyboard, and what the browser may do."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, expect

from penstock.testing import RunningServer, wait_until
from tests.api.client import publish
from tests.browser.console_page import Scheme, chromium, console, every_look, listen_for_complaints, look


@every_look
def test_the_token_is_asked_for_once_and_kept_for_the_tab(
    shared_server: RunningServer, width: int, scheme: Scheme
) -> None:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        complaints = listen_for_complaints(page)
        page.goto(f"{shared_server.url}/console/")
        field = page.get_by_label("Admin token")
        expect(field).to_be_focused()
        look(page, "token", width, scheme)
        page.keyboard.type(shared_server.admin_token)
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="Streams")).to_be_visible()
        page.reload()
        expect(page.get_by_role("link", name="Streams")).to_be_visible()
        assert page.evaluate("Object.keys(localStorage).length + document.cookie.length") == 0
        assert complaints == []


def test_a_wrong_token_is_told_and_nothing_is_kept(shared_server: RunningServer) -> None:
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{shared_server.url}/console/")
        page.get_by_label("Admin token").fill("not it")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("does not know")
        assert page.evaluate("sessionStorage.length") == 0


def test_the_token_in_the_address_leaves_it_at_once(shared_server: RunningServer) -> None:
    with chromium() as browser:
        page = browser.new_page()
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        page.goto(f"{shared_server.url}/console/#token={shared_server.admin_token}")
        expect(page.get_by_role("link", name="Streams")).to_be_visible()
        assert page.url == f"{shared_server.url}/console/#/now"
        page.go_back()
        assert shared_server.admin_token not in page.url
        asked = [url for url in urls if "#" not in url]  # what follows the hash stays in the browser
        assert len(asked) > 3
        assert all(shared_server.admin_token not in url for url in asked)
        assert shared_server.admin_token not in shared_server.log_text()


def test_the_keyboard_alone_reaches_every_view(shared_server: RunningServer) -> None:
    with console(shared_server) as page:
        expect(page.get_by_role("link", name="Now")).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        for title in page.get_by_role("navigation").get_by_role("link").all_inner_texts():
            page.get_by_role("link", name=title, exact=True).focus()
            page.keyboard.press("Enter")
            expect(page.get_by_role("link", name=title, exact=True)).to_have_attribute("aria-current", "page")
            expect(page.get_by_role("heading", level=1)).to_be_visible()


MARKUP = b"<img src=x onerror='window.hit = 1'>"
TEXT = "element.append(...children.flat(Infinity).filter("


def sabotage(page: Page, *, policy: bool) -> None:
    """Let the kit make markup of text, as one slip in it would; without *policy* the page may do that, too."""

    def spoil(route: Route) -> None:
        answer = route.fetch()
        headers = {k: v for k, v in answer.headers.items() if policy or k != "content-security-policy"}
        text = answer.text()
        if route.request.url.endswith("/kit.js"):
            assert TEXT in text
            text = text.replace(TEXT, "for (const one of children.flat(Infinity)) if (typeof one === 'string') "
                "element.insertAdjacentHTML('beforeend', one);\n  element.append(...children.flat(Infinity)"
                ".filter((one) => typeof one !== 'string').filter(")  # fmt: skip
        route.fulfill(response=answer, headers=headers, body=text)

    page.route("**/console/**", spoil)


@pytest.mark.parametrize("policy", [True, False], ids=["with the policy", "without it"])
def test_markup_that_a_slip_lets_through_runs_without_the_policy_alone(
    shared_server: RunningServer, policy: bool
) -> None:
    publish(shared_server, "/marked", MARKUP)
    with chromium() as browser:
        page = browser.new_page()
        complaints = listen_for_complaints(page)
        sabotage(page, policy=policy)
        page.goto(f"{shared_server.url}/console/#token={shared_server.admin_token}")
        page.evaluate("location.hash = '#/streams/%2Fmarked'")
        if policy:
            wait_until(lambda: page.evaluate("1") and any("TrustedHTML" in one for one in complaints))
            assert page.evaluate("window.hit") is None
        else:
            page.get_by_role("button", name="History").click()
            page.wait_for_function("window.hit === 1")


def test_nobody_may_frame_the_console(shared_server: RunningServer) -> None:
    with chromium() as browser:
        page = browser.new_page()
        complaints = listen_for_complaints(page)
        page.goto(f"{shared_server.url}/health")
        page.set_content(f"<iframe src='{shared_server.url}/console/'></iframe>")
        wait_until(lambda: page.evaluate("1") and any("frame-ancestors" in one for one in complaints))
