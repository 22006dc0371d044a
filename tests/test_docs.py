from __future__ import annotations

import ast
import importlib.util
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import pytest

from bench import reconnect
from bench.rig.figures import is_whole

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


@cache
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec
    assert spec.loader
    sys.path.insert(0, str(DOCS))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", generator().MADE)
def test_the_pages_that_are_made_are_current(page: str) -> None:
    assert (DOCS / page).read_text() == generator().MADE[page]()


@pytest.mark.parametrize("page", generator().PARTS)
def test_the_parts_of_pages_that_are_made_are_current(page: str) -> None:
    assert (DOCS / page).read_text() == generator().page_with_parts(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_short_enough_to_read(page: Path) -> None:
    """120 characters; a single word that is longer, as the name of a test, cannot be cut."""
    long = [line for line in page.read_text().splitlines() if len(line) > 120 and len(line.split()) > 1]

    assert long == []


def test_the_index_leads_to_every_page() -> None:
    ahead, seen = [DOCS / "index.md"], set[Path]()
    while ahead:
        page = ahead.pop()
        seen.add(page)
        links = re.findall(r"\]\((?!https?:|#)([^)#\s]+\.md)", page.read_text())
        ahead += {(page.parent / link).resolve() for link in links} - seen

    assert set(DOCS.rglob("*.md")) - seen == set()


DOORS = ("eventhorizon", "sps", "trickle", "webpush", "msgstream")
SHAPE = ["What it is for", "A session that runs", "Reference", "Limits", "The seed, line by line"]


@pytest.mark.parametrize("door", DOORS)
def test_the_pages_of_doors_have_one_shape(door: str) -> None:
    """What the sessions print is for tests/doors/test_pages.py."""
    assert re.findall(r"^## (.+)$", (DOCS / f"{door}.md").read_text(), re.MULTILINE) == SHAPE


GLOSSARY = (
    "stream", "entry", "id", "index", "cursor", "mailbox", "item", "registry", "ledger", "recipient", "door", "wire",
    "feed", "hub", "lake", "node", "member", "owner",
)  # fmt: skip


def test_the_glossary_has_its_words_once() -> None:
    words = re.findall(r"^\| (\w+) \| \w", (DOCS / "glossary.md").read_text(), re.MULTILINE)

    assert set(GLOSSARY) <= set(words)
    assert len(words) == len(set(words))


TOUR_LINES = 300


def test_the_tour_names_every_module_once_in_its_room_and_stays_short() -> None:
    tour = (DOCS / "tour.md").read_text()
    source = ROOT / "src" / "penstock"
    rooms = re.split(r"^### `([\w/]+)/`:.*$", tour.partition("<!-- end of rooms -->")[0], flags=re.MULTILINE)[1:]
    named = [
        (Path("" if room == "penstock" else room) / name).as_posix()
        for room, modules in zip(rooms[::2], rooms[1::2], strict=True)
        for name in re.findall(r"`(\w+\.py)`", modules)
    ]
    modules = {file.relative_to(source).as_posix() for file in source.rglob("*.py") if file.name != "__init__.py"}

    assert sorted(named) == sorted(modules)
    assert len(tour.splitlines()) <= TOUR_LINES


FIGURE = re.compile(
    r"[0-9][0-9,.]*\s?(?:(?:events|deliveries|messages|appends|lines|writes|reads)/s\b|CPU µs|µs of CPU|MB/s)"
    r"|p(?:50|99)\b"
)
"""What a measured figure looks like."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name != "decisions"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_figures_stand_on_one_page(page: Path) -> None:
    if page.name in ("performance.md", "scale.md", "CHANGELOG.md"):
        return
    by_hand = re.sub(r"<!-- (\w+): made by .*?<!-- end of \1 -->", "", page.read_text(), flags=re.DOTALL)
    assert FIGURE.findall(by_hand) == []


def run_of(value: float, floor: float | None, met: str | None) -> dict[str, object]:
    return {"value": value, "floor": floor, "ratio": floor and value / floor, "met": met, "date": "", "machine": ""}


MISSED = {
    "unit": "events/s", "floor_of": "a peer", "must": 4, "aim": 6, "judged": "ratio",
    "runs": [run_of(300, 100, "no"), run_of(900, None, None)],
}  # fmt: skip
MET_LAST = {**MISSED, "runs": [run_of(300, 100, "no"), run_of(700, 100, "aim")]}


def check_rows_show_what_was_missed() -> None:
    for row in (partial(generator()._figure, "x"), generator()._beside):
        missed = row(MISSED)
        assert " 100 " in missed, missed
        assert " 3 " in missed, missed
        assert "**no**" in missed, missed
        assert "**no** aim" in row(MET_LAST)


def test_a_run_without_its_floor_or_a_better_one_hides_no_miss() -> None:
    check_rows_show_what_was_missed()


def test_rows_made_from_the_last_run_alone_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generator()._values
    monkeypatch.setattr(generator(), "_values", lambda runs, name: whole(runs[-1:], name))

    with pytest.raises(AssertionError):
        check_rows_show_what_was_missed()


def test_each_run_of_the_book_was_held_against_what_it_names() -> None:
    book = json.loads((DOCS / "figures.json").read_text())

    for figure in (figure for figures in book.values() for figure in figures.values()):
        assert [run for run in figure["runs"] if not is_whole({**figure, **run})] == []


def test_the_numbers_that_scale_is_reckoned_with_are_those_that_were_measured() -> None:
    """Within a factor of two: they are round, and the machines differ by half."""
    book = json.loads((DOCS / "figures.json").read_text())
    rows = re.findall(r"^\| .+? \| ([\d,.]+) \| ([a-z]+): (.+?) \|$", (DOCS / "scale.md").read_text(), re.MULTILINE)

    assert len(rows) == 8
    for taken, bench, figure in rows:
        if (bench, figure) == reconnect.HANDSHAKE and figure not in book[bench]:
            assert float(taken) == reconnect.ASSUMED_TLS_US
            continue
        measured = statistics.median(run["value"] for run in book[bench][figure]["runs"])
        assert 0.5 < float(taken.replace(",", "")) / measured < 2, (bench, figure, measured)


def test_the_page_of_errors_has_each_code_that_the_source_names() -> None:
    """By a plain look at the text, unlike the generator, which reads the syntax."""
    page = (DOCS / "errors.md").read_text()
    source = "".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"\bcode(?:: str)? ?= ?\"([a-z_]+)\"", source))

    assert len(named) > 50
    assert {code for code in named if f"`{code}`" not in page and not code.startswith("segment_")} == set()


def test_a_limit_without_a_reason_is_refused() -> None:
    source = "# ── a heading ──\nA: Final = 1\nB: Final = 2\n"

    with pytest.raises(ValueError, match="has no reason"):
        generator()._limits(source)


def refusing(tree: ast.AST) -> Iterator[str]:
    """Constants that a module refuses a caller by, other than those of limits.py; also plain numbers in their place.

    A caller is refused by `Busy` and `TooLarge`, and by the `most` of a number in a query.
    """
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "penstock.limits")
    limits = {alias.name for node in imports for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Busy", "TooLarge"):
            names = {part.id for argument in node.args[1:] for part in ast.walk(argument) if isinstance(part, ast.Name)}
            yield from (name for name in names if name.isupper() and not name.startswith("_") and name not in limits)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "integer":
            for most in (keyword.value for keyword in node.keywords if keyword.arg == "most"):
                names = {part.id for part in ast.walk(most) if isinstance(part, ast.Name)}
                if not names & limits and not isinstance(most, ast.Attribute):  # an attribute is of the settings
                    yield ast.unparse(most)


def test_whoever_is_refused_by_a_limit_finds_it_on_the_page_of_limits() -> None:
    nats = {"GROUP_MESSAGES"}  # a limit of NATS' own, which no peer reaches: batches are cut before it
    texts = [file.read_text() for file in (ROOT / "src").rglob("*.py")]
    found = {
        name for text in texts if re.search(r"\b(Busy|TooLarge|integer)\(", text) for name in refusing(ast.parse(text))
    }

    assert found - nats == set()
    assert list(refusing(ast.parse('raise Busy("exports", EXPORTS)'))) == ["EXPORTS"]
    assert list(refusing(ast.parse('integer(request, "hours", 48, most=HOURS)'))) == ["HOURS"]
    assert list(refusing(ast.parse('integer(request, "segments", 5, most=10 * 1000)'))) == ["10 * 1000"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


NAMES_OF_OTHERS = {"PushManager", "NoncurrentVersionExpiration", "AbortIncompleteMultipartUpload"}  # browsers, S3
NOT_HISTORY = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "decisions"]


def code_names(text: str) -> Iterator[str]:
    """Names of classes and fields that a page shows as code: alone, as what a call returns, or as a part of a list."""
    for code in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        yield from re.findall(r"(?:^|-> |, |\.|[({])([A-Z][a-z][A-Za-z0-9]*)(?=$|[,(}).?])", code)


def modules_named(text: str) -> list[str]:
    return re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|js|css|html))`", text)


@pytest.mark.parametrize("page", NOT_HISTORY, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_of_code_in_a_page_is_a_word_of_the_source(page: Path) -> None:
    text, places = page.read_text(), (ROOT, ROOT / "src" / "penstock")

    assert set(code_names(text)) - words_of_the_source() - NAMES_OF_OTHERS == set()
    assert [name for name in modules_named(text) if not any((place / name).exists() for place in places)] == []


@cache
def words_of_the_source() -> frozenset[str]:
    return frozenset(word for file in (ROOT / "src").rglob("*.py") for word in re.findall(r"\w+", file.read_text()))


def test_a_name_that_is_gone_is_found() -> None:
    page = "`run(place, options) -> Outcome` of `pipeline/jobs.py`, `AgentBroken`, `{Stream, Offset?}`, `Last-Event-ID`"

    assert list(code_names(page)) == ["Outcome", "AgentBroken", "Stream", "Offset"]
    assert modules_named(page) == ["pipeline/jobs.py"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_of_the_source_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|bench|docs|requirements|\.ci)/[\w./-]*\w/?)`", page.read_text())

    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_command_in_the_pages_exists() -> None:
    shown = {name for page in PAGES for name in re.findall(r"\./penstock ([a-z]+)", page.read_text())}
    help_text = subprocess.run(
        [sys.executable, "-m", "penstock", "--help"], capture_output=True, text=True, check=True
    ).stdout

    assert "up" in shown
    assert {name for name in shown - {"install"} if not re.search(rf"^\W*{name}\b", help_text, re.MULTILINE)} == set()


def test_every_dependency_has_its_reason() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [project["project"]["dependencies"], *project["dependency-groups"].values()]
    names = {re.split(r"[=<>~!\[; ]", line)[0] for group in groups for line in group}
    reasons = (DOCS / "decisions" / "0001-dependencies.md").read_text()

    assert {name for name in names if f"**{name}**" not in reasons and f"| {name} |" not in reasons} == set()


def test_every_dependency_is_pinned_with_hashes_and_no_place_is_named() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        lines = lock.read_text().splitlines()
        pins = [line for line in lines if line and not line.startswith((" ", "#"))]
        assert pins
        assert [pin for pin in pins if not re.match(r"[a-z0-9-]+==\S+ (;.* )?\\$", pin)] == []
        assert "://" not in lock.read_text()


PICTURE_BYTES = 150_000


def test_the_picture_of_the_readme_is_one_and_small() -> None:
    picture = (DOCS / "console.png").read_bytes()

    assert picture.startswith(b"\x89PNG\r\n")
    assert len(picture) <= PICTURE_BYTES
    assert "(docs/console.png)" in (ROOT / "README.md").read_text()
