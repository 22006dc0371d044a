"""What the console's views are built from, each function as the browser runs it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from penstock.testing import RunningServer
from tests.browser.console_page import console

FORMATS = {
    "short": {
        None: "–",
        0: "0",
        0.01: "<0.1",
        0.26: "0.3",
        12.34: "12.3",
        1234: "1,234",
        56_700: "56.7k",
        2_500_000: "2.5M",
    },
    "duration": {
        None: "–",
        0.84: "0.8 ms",
        12: "12 ms",
        3400: "3.4 s",
        300_000: "5 min",
        7_200_000: "2 h",
        2.6e8: "3 d",
    },
    "bytes": {None: "–", 0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 * 1024**3: "5.0 GiB"},
    "count": {None: "–", 1234567: "1,234,567"},
    "cut": {"short": "short", "x" * 41: "x" * 20 + "…" + "x" * 19, "😀" * 50: "😀" * 20 + "…" + "😀" * 19},
}


def test_numbers_say_their_unit_and_names_are_cut_in_the_middle(shared_server: RunningServer) -> None:
    with console(shared_server) as page:
        for name, cases in FORMATS.items():
            said = page.evaluate(
                """async ([name, values]) => {
                const kit = await import('/console/kit.js'); return values.map(one => kit[name](one)) }""",
                [name, list(cases)],
            )
            assert said == list(cases.values()), name


def test_text_never_becomes_markup(shared_server: RunningServer) -> None:
    with console(shared_server) as page:
        made = page.evaluate(
            """async () => { const { h, name, notice } = await import('/console/kit.js');
            return ['<b>x</b>', '"><script>'].map(t => h('p', { title: t }, t, [name(t), [notice('empty', t, t)]]))
              .map(e => [e.querySelectorAll('b, script').length, e.title, e.textContent]) }"""
        )
        assert made == [[0, "<b>x</b>", "<b>x</b>" * 4], [0, '"><script>', '"><script>' * 4]]


@pytest.mark.parametrize("status", [400, 503])
def test_a_refusal_is_shown_with_its_code_and_its_remedy(shared_server: RunningServer, status: int) -> None:
    answer = '{"error":{"code":"odd_thing","message":"It is odd.","remedy":"Make it even."}}'
    with console(shared_server, caused=str(status)) as page:
        expect(page.locator("#status")).to_have_text("live")
        page.route("**/v1/streams*", lambda route: route.fulfill(status=status, body=answer))
        page.get_by_role("link", name="Streams").click()
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("It is odd.")
        expect(alert).to_contain_text("Make it even.")
        expect(alert).to_contain_text(f"odd_thing, HTTP {status}")
        page.unroute("**/v1/streams*")  # it comes back by itself
        expect(page.get_by_role("alert")).to_have_count(0)


def test_server_sent_events_are_read_however_they_are_cut(shared_server: RunningServer) -> None:
    text = "id: 1\\ndata: a\\ndata: b\\n\\n: a comment\\nevent: sold\\r\\ndata:ü\\r\\n\\r\\n"
    with console(shared_server) as page:
        events = page.evaluate(
            f"""async () => {{ const {{ eventsOf }} = await import('/console/kit.js');
            const all = [];
            for (const size of [1, 2, 7, 1000]) {{
              const bytes = new TextEncoder().encode("{text}");
              const body = new ReadableStream({{ start(pipe) {{
                for (let at = 0; at < bytes.length; at += size) pipe.enqueue(bytes.slice(at, at + size));
                pipe.close();
              }} }});
              const found = []; for await (const one of eventsOf(new Response(body))) found.push(one);
              all.push(found);
            }} return all }}"""
        )
        assert events == [[{"id": "1", "data": "a\nb"}, {"event": "sold", "data": "ü"}]] * 4
