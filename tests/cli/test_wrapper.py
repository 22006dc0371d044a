"""`./penstock` itself, in a copy of this folder that has never run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "cat", "sha256sum", "grep", "rm", "flock", "env", "dirname", "true", "mkdir", "ln", "readlink")
PYTHON = """case "$1 $2" in
    "-m venv") mkdir -p "$3/bin" && ln -s "$0" "$3/bin/python" ;;
    "-m penstock") shift 2; echo "system=${PENSTOCK_NO_SYSTEM:-} $*" ;;
esac"""
"""What the wrapper needs of a Python: it makes an environment of itself, and says what it is asked to run."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """This folder as somebody clones it."""
    fresh = tmp_path / "a folder with spaces"
    for name in ("penstock", "pyproject.toml"):
        fresh.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, fresh / name)
    for name in ("src", "requirements"):
        shutil.copytree(ROOT / name, fresh / name, ignore=shutil.ignore_patterns("__pycache__"))
    return fresh


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def only_tools(folder: Path) -> dict[str, str]:
    """An environment whose PATH has what the wrapper needs, and no Python."""
    folder.mkdir(exist_ok=True)
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (folder / tool).symlink_to(found)
    return {**os.environ, "PATH": str(folder), "PENSTOCK_NO_SYSTEM": "1"}


def test_a_python_that_is_too_old_is_one_line(copy: Path, tmp_path: Path) -> None:
    environment = only_tools(tmp_path / "bin")
    program(tmp_path / "bin", "python3", "exit 1")  # what an old one answers when asked for 3.11

    done = subprocess.run([copy / "penstock", "--help"], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("penstock: no Python 3.11 or later on PATH — install one")
    assert len(done.stderr.splitlines()) == 1


def test_a_python_that_cannot_make_environments_is_one_line_without_root(copy: Path, tmp_path: Path) -> None:
    environment = only_tools(tmp_path / "bin")
    # Debian without python3-venv: new enough, but no ensurepip
    program(tmp_path / "bin", "python3", 'case "$2" in *ensurepip*) exit 1 ;; esac')

    done = subprocess.run([copy / "penstock", "--help"], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "run: apt-get install python3-venv" in done.stderr.splitlines()[-1]


def test_a_group_that_does_not_exist_is_refused() -> None:
    done = subprocess.run([ROOT / "penstock", "install", "tset"], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "the groups are serve, test, pipeline, sql and duckdb" in done.stderr


def call(wrapper: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([wrapper, *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def installed(copy: Path, tmp_path: Path) -> dict[str, str]:
    """The environment in which the copy has run before; its Python only says what it is asked to run."""
    environment = only_tools(tmp_path / "bin")
    del environment["PENSTOCK_NO_SYSTEM"]
    program(tmp_path / "bin", "python3", PYTHON)
    assert call(copy / "penstock", environment, "--version").stdout == "system= --version\n"
    return environment


def test_an_environment_whose_python_has_gone_is_made_again(
    copy: Path, installed: dict[str, str], tmp_path: Path
) -> None:
    # Given an environment that was made with a Python that is no longer there
    (copy / ".venv/bin/python").unlink()
    (copy / ".venv/bin/python").symlink_to(tmp_path / "removed")

    done = call(copy / "penstock", installed, "--version")

    assert (done.returncode, done.stdout) == (0, "system= --version\n"), done.stderr
    assert "making .venv" in done.stderr


def test_a_link_to_the_wrapper_runs_the_folder_it_leads_to(
    copy: Path, installed: dict[str, str], tmp_path: Path
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / "penstock").symlink_to(copy / "penstock")

    done = call(links / "penstock", installed, "streams")

    assert (done.stdout, done.stderr) == ("system= streams\n", "")
    assert [path.name for path in links.iterdir()] == ["penstock"]


@pytest.mark.parametrize("arguments", ["test --help", "bench --help", "bench", "cluster -h", "pipeline status --help"])
def test_help_installs_nothing_more(copy: Path, installed: dict[str, str], arguments: str) -> None:
    done = call(copy / "penstock", installed, *arguments.split())

    assert (done.stdout, done.stderr) == (f"system= {arguments}\n", "")


def test_the_demo_needs_the_pipeline_unless_it_is_the_fast_one(copy: Path, installed: dict[str, str]) -> None:
    fast, whole = (call(copy / "penstock", installed, "demo", *option) for option in (("--fast",), ()))

    assert (fast.stdout, fast.stderr) == ("system= demo --fast\n", "")
    assert whole.stdout == "system= demo\n"
    assert "installed pipeline" in whole.stderr


@pytest.mark.parametrize("arguments", ["--no-system up", "up --no-system"])
def test_no_system_may_come_before_the_command_or_after_it(
    copy: Path, installed: dict[str, str], arguments: str
) -> None:
    done = call(copy / "penstock", installed, *arguments.split())

    assert done.stdout.startswith("system=1 up")


LITTLE = {
    "annotated-doc", "annotated-types", "cffi", "cryptography", "msgspec", "pycparser", "pydantic", "pydantic-core",
    "pyjwt", "shellingham", "typer", "typing-extensions", "typing-inspection",
}  # fmt: skip
"""What `--version` and `token` import. All 43 packages take twice the work of the rest of the test."""


def keep_pins(lock: Path, packages: set[str]) -> None:
    pins = re.split(r"^(?=\S)", lock.read_text(), flags=re.MULTILINE)
    lock.write_text("".join(pin for pin in pins if pin.partition("==")[0] in packages))


@pytest.mark.faults
@pytest.mark.parametrize("packages", [LITTLE, pytest.param(None, marks=pytest.mark.long)], ids=["little", "all"])
def test_two_first_calls_at_once_and_a_uv_that_fails(copy: Path, tmp_path: Path, packages: set[str] | None) -> None:
    if packages:
        keep_pins(copy / "requirements" / "serve.lock", packages)
    # Given a fresh copy, and a uv that finds nothing
    program(tmp_path / "bin", "uv", "exit 1")
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    environment.pop("VIRTUAL_ENV", None)
    # When two people start it at the same time
    calls = [
        subprocess.Popen(
            [copy / "penstock", "--version"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    results = [call.communicate(timeout=300) for call in calls]
    # Then both work, and only one of them installed anything
    assert [call.returncode for call in calls] == [0, 0], results
    assert [out.startswith("penstock ") for out, _ in results] == [True, True]
    assert sum("installed serve" in err for _, err in results) == 1
    # And a third says nothing of it, also after the folder was moved, without any uv or index
    moved = copy.rename(tmp_path / "elsewhere")
    third = subprocess.run(
        [moved / "penstock", "token", "--sub", "me"], capture_output=True, text=True, cwd=moved, check=False
    )
    assert third.returncode == 0, third.stderr
    assert "install" not in third.stderr
    used = subprocess.run(
        [moved / ".venv/bin/python", "-c", "import penstock; print(penstock.__file__)"],
        capture_output=True, text=True, cwd="/", check=True,
    )  # fmt: skip
    assert Path(used.stdout.strip()).is_relative_to(moved)
