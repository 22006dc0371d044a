from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import settings
from penstock.errors import ConfigInvalid
from penstock.settings import Settings
from penstock.settings_reading import KNOWN, load


def test_without_any_source_the_defaults_hold() -> None:
    assert load() == Settings()


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[server]\nlinger_ms = 1\nlisten = "127.0.0.1:1"\ndrain_seconds = 1\n[hub]\ntail = 7\n')
    environment = {"PENSTOCK_SERVER_LISTEN": "127.0.0.1:2", "PENSTOCK_SERVER_DRAIN_SECONDS": "2", "HOME": "/"}

    settings = load(file, environment, ["server.drain_seconds=3"])

    assert settings.server.linger_ms == 1
    assert settings.server.listen == "127.0.0.1:2"
    assert settings.server.drain_seconds == 3
    assert settings.hub.tail == 7


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("server.insecure=yes", True),
        ("ledger.enabled=off", False),
        ("hub.tail=2_000", 2000),
        ("server.idle_timeout=2m", 120.0),
        ("server.idle_timeout=0.5", 0.5),
        ("server.head_timeout=250ms", 0.25),
        ("ledger.flush_ms=1s", 1000.0),
        ("server.body_limit=4MiB", 4 * 2**20),
        ("log.queue_bytes=1.5kB", 1500),
        ("server.doors=v1, sps", ("v1", "sps")),
        ("server.cors_origins=", ()),
        ("log.keep=30d", "30d"),
        ("auth.admin_token=a=b", "a=b"),
    ],
)
def test_a_value_is_read_as_its_type(pair: str, value: object) -> None:
    section, key = pair.partition("=")[0].split(".")

    found = getattr(getattr(load(given=[pair]), section), key)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "pair",
    [
        "server.insecure=maybe",
        "hub.tail=1.5",
        "hub.tail=0",
        "hub.tail=many",
        "hub.tail=5MiB",
        "server.linger_ms=21",
        "server.idle_timeout=-1",
        "server.idle_timeout=5M",
        "server.body_limit=5m",
        "server.listen=8800",
        "server.listen=127.0.0.1:99999",
        "server.tls_key=key.pem",
        "log.engine=paper",
        "log.keep=30",
        "log.keep=500M",
        "log.keep=-1d",
        "log.keep=0GiB",
        "eventhorizon.server=",
        "eventhorizon.server=a:b",
        "eventhorizon.server=a\nb",
        "eventhorizon.server=a\n",
        "eventhorizon.server=a,b",
        "eventhorizon.server=a b",
        "logs.level=loud",
        "logs.level",
    ],
)
def test_a_value_it_cannot_have_is_refused_by_name(pair: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load(given=[pair])

    assert refused.value.setting == pair.partition("=")[0]


@pytest.mark.parametrize(
    ("given", "environment", "nearest"),
    [
        (["server.lisen=x"], {}, "server.listen"),
        (["linger_ms=3"], {}, "server.linger_ms"),
        ([], {"PENSTOCK_HUB_TALE": "3"}, "PENSTOCK_HUB_TAIL"),
        ([], {"PENSTOCK_NONSENSE": "3"}, "PENSTOCK_"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(
    given: list[str], environment: dict[str, str], nearest: str
) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load(None, environment, given)

    assert nearest in refused.value.remedy


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[server]\nlisen = 1", "server.lisen"),
        ("[hub]\ntail = true", "hub.tail"),
        ("[server]\nlisten = 5", "server.listen"),
        ("[server]\ndoors = 5", "server.doors"),
        ("listen = 'x'", "listen"),
        ("= nonsense", "not TOML"),
    ],
)
def test_a_file_with_a_mistake_is_refused(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(text)

    with pytest.raises(ConfigInvalid, match=part):
        load(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml")


def test_a_list_in_a_file_is_a_list(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[server]\ndoors = ["v1", "sps"]\n')

    assert load(file).server.doors == ("v1", "sps")


def test_variables_of_the_command_line_are_not_settings() -> None:
    assert load(None, {"PENSTOCK_URL": "x", "PENSTOCK_TOKEN": "y", "PENSTOCK_NO_SYSTEM": "1"}) == Settings()


@pytest.mark.parametrize("about", KNOWN.values(), ids=lambda about: about.name)
def test_every_setting_says_what_it_is_and_takes_its_own_default(about) -> None:
    text = ",".join(about.default) if isinstance(about.default, tuple) else str(about.default)

    assert about.description.endswith(".")
    assert load(given=[f"{about.name}={text}"]) == Settings()
    assert load(None, {about.variable: text}) == Settings()


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().server.listen = "x"  # type: ignore[misc]


def test_a_secret_is_not_shown_with_the_rest() -> None:
    assert "hidden-thing" not in repr(load(given=["auth.admin_token=hidden-thing"]))


def test_a_role_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load(given=["server.roles=endpoints"])

    assert refused.value.remedy == "Known: all, endpoint, connection."
    assert load(given=["server.roles=endpoint,connection"]).server.roles == ("endpoint", "connection")


def defaults(tree: ast.AST) -> Iterator[tuple[int, str, ast.expr]]:
    """Line, name and value of every default of an argument or a field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            places = [*node.posonlyargs, *node.args]
            pairs = [*zip(reversed(places), reversed(node.defaults), strict=False)]
            pairs += [(name, value) for name, value in zip(node.kwonlyargs, node.kw_defaults, strict=True) if value]
            yield from ((value.lineno, name.arg, value) for name, value in pairs)
        elif isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.value:
                    yield field.lineno, field.target.id, field.value


def repeated(tree: ast.AST, place: str = "") -> list[int]:
    """Lines in which the default of a setting stands as a default of the same name, but 0, 1 and what is empty.

    In a file of a section, as *place* says, the end of the name is enough: `repeat` for `push_repeat`.
    """
    sections = [(*name.split("."), about.default) for name, about in KNOWN.items() if about.type in (int, float, str)]
    found = []
    for line, name, value in defaults(tree):
        if all(isinstance(part, (ast.Constant, ast.BinOp, ast.operator)) for part in ast.walk(value)):
            given = eval(ast.unparse(value))  # noqa: S307 - of our own source, and no name is in it
            same = [
                setting == name or (section in place and setting.endswith(f"_{name}"))
                for section, setting, default in sections
                if default == given
            ]
            if given not in (0, 1, "") and any(same):
                found.append(line)
    return found


def test_a_default_stands_in_one_place() -> None:
    source = Path(settings.__file__).parent
    texts = {str(file.relative_to(source)): file.read_text() for file in source.rglob("*.py")}
    found = {place: repeated(ast.parse(text), place) for place, text in texts.items() if place != "settings.py"}

    assert {place: lines for place, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "code",
    [
        "def hub(tail=1000): ...",
        "def hub(*, tail: int = 10 * 100): ...",
        "class Hub:\n    tail: int = 1000",
        "def engine(server: str = '127.0.0.1'): ...",
        "def pusher(repeat: Annotated[float, ...] = 5.0): ...",
    ],
)
def test_one_that_is_repeated_is_found(code: str) -> None:
    assert repeated(ast.parse(code), "cli/eventhorizon.py")


def test_another_default_of_a_short_name_is_none_of_them() -> None:
    assert repeated(ast.parse("def target(timeout=30.0): ..."), "http/client.py") == []
