"""The rooms of the house, as a test: who may import whom, and that the arrows never come back."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.iceberg.files import arrow_schema
from penstock.testing import wait_until
from penstock.wire.lake_files import LakeFile
from tests.engines.lake_files import NOW_MS, WrittenLake

SOURCE = Path(__file__).parents[1] / "src"

IMPURE = frozenset(
    {"asyncio", "socket", "time", "random", "secrets", "uuid", "logging", "threading", "os", "subprocess"}
)
"""What a pure protocol has no use for: it neither waits, nor talks, nor asks the clock."""

PURE_LIBRARIES = ("msgspec", "httptools", "websockets.utils", "cryptography")
"""Others' code that takes and gives bytes, and does nothing else."""

VERSION = "penstock.__version__"
PURE = (VERSION, "penstock.values", "penstock.limits", "penstock.errors")
BASE = (*PURE, "penstock.settings", "penstock.units")
NEUTRAL = ("penstock.core.clock", "penstock.core.promise")
"""What the connection layer has of `core`: the time, and results that come later. Nothing of logs."""

FACING_DOORS = tuple(
    f"penstock.http.{name}"
    for name in (
        "requests", "responses", "problems", "routing", "live_answer", "output", "websocket", "timers", "client",
    )
)  # fmt: skip
"""The side that the connection layer turns towards doors. Never its listener or its connections."""

FOR_DOORS = tuple(
    f"penstock.api.{name}" for name in ("auth", "context", "describing", "door", "live", "recipients", "shares")
)
"""What a door needs of a request's owner. Never Penstock's API itself."""

MAY_IMPORT = {
    "penstock.wire": (*PURE, "penstock.wire"),
    "penstock.core": (*BASE, "penstock.wire", "penstock.core"),
    "penstock.iceberg": (*BASE, "penstock.wire", "penstock.iceberg"),
    "penstock.engines": (*BASE, "penstock.wire", "penstock.core", "penstock.iceberg", "penstock.engines"),
    "penstock.http": (*BASE, "penstock.wire", *NEUTRAL, "penstock.http"),
    "penstock.api": (*BASE, "penstock.wire", "penstock.core", "penstock.http", "penstock.api"),
    "penstock.doors": (*BASE, "penstock.wire", "penstock.core", *FACING_DOORS, *FOR_DOORS),
    "penstock.client": (*PURE, "penstock.wire", "penstock.client"),
}
"""What of Penstock a room may import; one that is not listed may import any but the ones below."""

OF_THE_LOG = ("NameInvalid", "StreamExists", "PositionMismatch", "Trimmed", "SystemStream", "MailboxFull")
"""Errors that the connection layer answers without knowing what they are about."""

MAY_NOT_IMPORT = {
    "penstock.http": tuple(f"penstock.errors.{name}" for name in OF_THE_LOG),
    "penstock.node": ("penstock.pipeline", "penstock.cli", "penstock.testing", "penstock.client"),
    "penstock.pipeline": tuple(f"penstock.{room}" for room in ("http", "api", "engines", "doors", "node")),
    "penstock.testing": ("penstock.node", "penstock.doors", "penstock.pipeline"),
}
ONLY_IN = {
    "nats": "penstock.engines.jetstream",
    "pyiceberg": "penstock.iceberg",
    "pyspark": "penstock.pipeline",
    "py4j": "penstock.pipeline",
}


def is_in(module: str, layer: str) -> bool:
    return module == layer or module.startswith(layer + ".")


@cache
def import_statements(text: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports_of(file: Path, module: str) -> Iterator[tuple[int, str]]:
    """Every module that *file* imports anywhere, with its line; a name imported from a package counts as one."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in import_statements(file.read_text()):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        else:
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def why_not(module: str, imported: str) -> str | None:
    """The rule that forbids *module* to import *imported*, if there is one."""
    top = imported.partition(".")[0]
    if top in ONLY_IN and not is_in(module, ONLY_IN[top]):
        return f"only {ONLY_IN[top]} imports {top}"
    if is_in(module, "penstock.wire") and top != "penstock":
        if top in IMPURE:
            return f"wire is pure: no {top}"
        if top not in sys.stdlib_module_names and not any(is_in(imported, pure) for pure in PURE_LIBRARIES):
            return f"wire imports nothing but the standard library and {', '.join(PURE_LIBRARIES)}"
    if top != "penstock":
        return None
    for layer, allowed in MAY_IMPORT.items():
        own = ".".join(module.split(".")[:3]) if layer == "penstock.doors" else layer
        if is_in(module, layer) and not any(is_in(imported, other) for other in (*allowed, own)):
            return f"{layer} may import {', '.join(allowed)} only"
    for layer, refused in MAY_NOT_IMPORT.items():
        if is_in(module, layer) and any(is_in(imported, other) for other in refused):
            return f"{layer} may not import {', '.join(refused)}"
    return None


def violations(source: Path) -> list[str]:
    found = []
    for file in sorted(source.rglob("*.py")):
        module = ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        for line, imported in imports_of(file, module):
            if reason := why_not(module, imported):
                found.append(f"{file.relative_to(source)}:{line}: imports {imported}; {reason}")
    return found


# ── cycles ────────────────────────────────────────────────────────────────────────────────────────


def graph_of(source: Path) -> dict[str, set[str]]:
    """Who imports whom: each module of *source* with those of its own that it imports, for types alone included.

    To import a module is to run the packages above it, so they count, too. Those that the importer is in run before it
    in any case: that their face shows what is in them is no cycle.
    """
    files = {
        ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): file
        for file in source.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        named = {imported for _, imported in imports_of(file, module)}
        found = {name if name in files else name.rpartition(".")[0] for name in named}
        above = {".".join(name.split(".")[:levels]) for name in found for levels in range(1, name.count(".") + 1)}
        found |= {package for package in above if not is_in(module, package)}
        graph[module] = (found & files.keys()) - {module}
    return graph


def rooms_of(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same between packages; a door is a package of its own."""

    def room(module: str) -> str:
        return ".".join(module.split(".")[: 3 if module.startswith("penstock.doors.") else 2])

    rooms: dict[str, set[str]] = {}
    for module, imported in graph.items():
        rooms.setdefault(room(module), set()).update(map(room, imported))
    return {name: others - {name} for name, others in rooms.items()}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups whose members all reach one another."""
    reach = {name: reachable(graph, name) for name in graph}
    back = {name for name in graph if name in reach[name]}
    groups = {tuple(sorted(other for other in reach[name] & back if name in reach[other])) for name in back}
    return sorted(list(group) for group in groups)


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """What *start* imports, directly or through others."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for name in graph.get(ahead.pop(), ()):
            if name not in seen:
                seen.add(name)
                ahead.append(name)
    return seen


def test_no_layer_reaches_where_it_may_not() -> None:
    assert violations(SOURCE) == []


def test_no_modules_import_each_other() -> None:
    assert cycles(graph_of(SOURCE)) == []


def test_no_packages_import_each_other() -> None:
    assert cycles(rooms_of(graph_of(SOURCE))) == []


def test_a_planted_cycle_is_found(tmp_path: Path) -> None:
    """Also one that is there for types alone."""
    plant(tmp_path, "core/hub.py", "from penstock.core import feed")
    (tmp_path / "penstock/core/feed.py").write_text("if TYPE_CHECKING:\n    from penstock.core.hub import Hub")
    plant(tmp_path, "api/live.py", "import penstock.core.hub")

    assert cycles(graph_of(tmp_path)) == [["penstock.core.feed", "penstock.core.hub"]]
    assert cycles(rooms_of(graph_of(tmp_path))) == []
    (tmp_path / "penstock/core/hub.py").write_text("from penstock.api.live import Live")
    assert cycles(rooms_of(graph_of(tmp_path))) == [["penstock.api", "penstock.core"]]


def test_a_planted_cycle_through_the_face_of_a_package_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "pipeline/__init__.py", "from penstock.pipeline.jobs import archive")
    plant(tmp_path, "pipeline/jobs/__init__.py", "")
    (tmp_path / "penstock/pipeline/jobs/archive.py").write_text("from penstock.client import api")
    plant(tmp_path, "client/api.py", "")
    assert cycles(graph_of(tmp_path)) == []

    (tmp_path / "penstock/client/api.py").write_text("from penstock.pipeline.units import Unit")
    (tmp_path / "penstock/pipeline/units.py").write_text("class Unit: ...")
    three = ["penstock.client.api", "penstock.pipeline", "penstock.pipeline.jobs.archive"]
    assert cycles(graph_of(tmp_path)) == [three]

    (tmp_path / "penstock/client/api.py").write_text("")
    (tmp_path / "penstock/pipeline/jobs/archive.py").write_text("from penstock.pipeline import Place")
    assert cycles(graph_of(tmp_path)) == [["penstock.pipeline", "penstock.pipeline.jobs.archive"]]


PLANTED = [
    ("wire/sps.py", "import asyncio"),
    ("wire/sps.py", "from time import time"),
    ("wire/sps.py", "import websockets.asyncio.server"),
    ("wire/sps.py", "from penstock.core import hub"),
    ("wire/sps.py", "def late():\n    import socket"),
    ("core/hub.py", "from penstock.http.requests import Request"),
    ("core/hub.py", "from penstock import engines"),
    ("core/hub.py", "from ..engines import memory"),
    ("core/hub.py", "import penstock.doors.sps"),
    ("engines/memory.py", "from penstock.api import auth"),
    ("engines/memory.py", "import nats"),
    ("http/connection.py", "from penstock.api.auth import Caller"),
    ("http/connection.py", "from penstock.core.log import Log"),
    ("http/problems.py", "from penstock.errors import PenstockError, Trimmed"),
    ("http/connection.py", "if TYPE_CHECKING:\n    from penstock.doors.sps import Sps"),
    ("api/context.py", "from penstock.node.metrics import Metrics"),
    ("api/v1/publish.py", "from penstock.doors import sps"),
    ("api/v1/publish.py", "from penstock.engines.sqlite import open_sqlite"),
    ("doors/sps.py", "from penstock.doors import trickle"),
    ("doors/sps.py", "from penstock.doors.trickle import anything"),
    ("doors/sps.py", "from . import trickle"),
    ("doors/sps/wires.py", "from penstock.doors.trickle import anything"),
    ("doors/sps.py", "from penstock.http.listener import Listener"),
    ("doors/sps.py", "from penstock.http import connection"),
    ("doors/sps.py", "from penstock.api.v1.entry_json import EntryEncoder"),
    ("doors/sps.py", "from penstock.node import mailbox_months"),
    ("doors/sps.py", "from penstock.engines.sqlite import open_sqlite"),
    ("node/node.py", "from penstock.pipeline.jobs import archive"),
    ("node/node.py", "from pyspark.sql import SparkSession"),
    ("node/node.py", "if True:\n    from penstock.testing import start_server"),
    ("pipeline/source.py", "from penstock.api import auth"),
]
ALLOWED = [
    ("wire/sps.py", "import re\nimport msgspec\nfrom penstock.values import Entry\nfrom penstock.wire import http"),
    ("core/hub.py", "import asyncio\nfrom penstock.core.log import Log\nfrom . import names"),
    ("engines/jetstream.py", "import nats\nfrom penstock.core import stamp"),
    ("http/connection.py", "from penstock.wire import http\nfrom penstock.core.clock import Clock"),
    (
        "doors/sps/wires.py",
        "from penstock.doors.sps import frames\nfrom penstock.http.requests import Request",
    ),
    ("node/node.py", "from penstock.doors import sps\nfrom penstock.engines import sqlite"),
    ("pipeline/source.py", "import pyspark\nfrom penstock.client import api"),
]


@pytest.mark.parametrize(("file", "code"), PLANTED)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, code: str) -> None:
    plant(tmp_path, file, code)

    assert len(violations(tmp_path)) >= 1


@pytest.mark.parametrize(("file", "code"), ALLOWED)
def test_what_is_allowed_is_not(tmp_path: Path, file: str, code: str) -> None:
    plant(tmp_path, file, code)

    assert violations(tmp_path) == []


def plant(source: Path, file: str, code: str) -> None:
    path = source / "penstock" / file
    path.parent.mkdir(parents=True)
    path.write_text(code)


ABSENT = ("pyspark", "py4j", "pandas", "numpy", "pytest", "hypothesis")
"""What no server needs."""


def venv_without(folder: Path, *absent: str) -> Path:
    """A virtual environment with all that is installed here but *absent*; returns its Python."""
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for item in Path(sysconfig.get_path("purelib")).iterdir():
        name = item.name.partition(".")[0].partition("-")[0].removeprefix("_")
        if name not in absent and item.suffix != ".pth":
            (folder / "lib" / version / "site-packages" / item.name).symlink_to(item)
    (folder / "lib" / version / "site-packages" / "penstock.pth").write_text(f"{SOURCE}\n")
    return folder / "bin" / "python"


def test_the_server_starts_where_spark_and_java_are_not_installed(tmp_path: Path) -> None:
    python, output = venv_without(tmp_path / "venv", *ABSENT), tmp_path / "server.out"
    nowhere = {**os.environ, "PATH": "/nonexistent", "JAVA_HOME": "/nonexistent"}
    for name in ABSENT:
        assert subprocess.run([python, "-c", f"import {name}"], capture_output=True, check=False).returncode == 1
    command = [python, "-m", "penstock", "serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with output.open("wb") as out, (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=out, stderr=log, env=nowhere)
    try:
        wait_until(lambda: output.read_text() or server.poll() is not None)
        assert output.read_text().startswith("penstock ready on http://127.0.0.1:")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()


READS_A_LAKE = """
import asyncio, sys
from penstock.core.clock import ManualClock
from penstock.engines.lake import open_lake
from penstock.engines.memory import MemoryEngine
from penstock.engines.pages import look_within

async def main():
    engine = MemoryEngine(clock=ManualClock())
    await engine.registry.put("lake/events", sys.argv[2].encode())
    async with open_lake(sys.argv[1], engine.registry) as lake:
        entries, upto = await lake.read(None, 0, 9, look_within(9, 100, 10_000, True, 0))
        print([entry.id for entry in entries], upto, await lake.find_index("/t5", 5))

asyncio.run(main())
"""


def test_a_lake_is_read_where_spark_and_numpy_are_not_installed(tmp_path: Path) -> None:
    written = WrittenLake(tmp_path / "lake")
    written.prepare("events", [written.write(LakeFile(0, 9, "2026-11-15", "events"), numbered_events(9))])
    python = venv_without(tmp_path / "venv", *ABSENT)

    command = [python, "-c", READS_A_LAKE, str(tmp_path / "lake"), json.dumps(written.record("events"))]
    told = subprocess.run(command, capture_output=True, text=True, check=False)

    assert told.stdout == "[1, 2, 3, 4, 5, 6, 7, 8, 9] 9 5\n", told.stderr


def numbered_events(count: int) -> pa.Table:
    """Rows of `events` that differ in their id, stream and index."""
    ids = list(range(1, count + 1))
    plain = {"kind": ["data"] * count, "stream": [f"/t{id}" for id in ids], "time": [NOW_MS * 1000 + id for id in ids]}
    known = dict.fromkeys(("id", "index", "chunk", "offset", "size", "schema_version"), ids)
    schema = arrow_schema("events")
    return pa.table([pa.array((plain | known).get(field.name, [None] * count), field.type) for field in schema], schema)


def test_a_job_says_in_one_line_what_is_missing(tmp_path: Path) -> None:
    python = venv_without(tmp_path / "venv", *ABSENT)

    done = subprocess.run(
        [python, "-m", "penstock", "pipeline", "archive", "--once", "--lake", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("penstock: spark_missing: pyspark is not installed — ")
    assert done.stderr.count("\n") == 1


def test_a_server_loads_nothing_of_the_lake_before_it_is_read() -> None:
    """pyarrow takes 0.2 s and 50 MB, pyiceberg's manifests 0.3 s and 20 MB more: only for who has a lake, and reads it.

    What only commits need (`pyiceberg.io.pyarrow`, 0.5 s and 60 MB) is never loaded for reading.
    """
    heavy = "sorted({name.partition('.')[0] for name in sys.modules} & {'pyarrow', 'pyiceberg', 'pydantic', 'duckdb'})"
    for imported, loaded in (
        ("penstock.node.node", "[]"),
        ("penstock.iceberg.reading", "['pyarrow', 'pydantic', 'pyiceberg']"),
    ):
        code = f"import sys, {imported}; print({heavy}, 'pyiceberg.io.pyarrow' in sys.modules)"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert told == f"{loaded} False\n"
