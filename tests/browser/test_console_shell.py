"""The console's frame in a real browser: the token, the views, the keyboard, and what the browser may do."""

from __future__ import annotations

from playwright.sync_api import expect

from penstock.testing import RunningServer
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


def test_the_policy_stops_what_a_slip_would_let_in(shared_server: RunningServer) -> None:
    with chromium() as browser:
        page = browser.new_page()
        complaints = listen_for_complaints(page)
        page.goto(f"{shared_server.url}/console/")
        expect(page.get_by_label("Admin token")).to_be_visible()
        assert complaints == []
        assert (
            page.evaluate("() => { try { document.body.innerHTML = '<b>x</b>'; return 'set' } catch { return '' } }")
            == ""
        )
        page.evaluate(
            "() => { const s = document.createElement('style'); s.textContent = 'a{}'; document.head.append(s) }"
        )
        page.wait_for_function("document.styleSheets.length >= 0")
        assert any("style-src" in one for one in complaints)
