from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock import debian
from penstock.testing import require_program


def test_a_program_that_is_there_is_found() -> None:
    assert Path(require_program("sh")).name == "sh"


def test_a_missing_program_skips_only_where_it_cannot_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_NO_SYSTEM", "1")

    with pytest.raises(pytest.skip.Exception, match="no-such-program is missing and --no-system forbids"):
        require_program("no-such-program", package="no-such-package")


def apt(folder: Path, script: str) -> None:
    """An apt-get of our own: the system's must not be touched here."""
    file = folder / "apt-get"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("PENSTOCK_NO_SYSTEM", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(debian, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_a_missing_program_is_installed_where_that_is_allowed(
    as_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apt(as_root, f'echo "$@" >>{as_root}/calls; cp /bin/sh {as_root}/brandnew; cp {as_root}/policy-rc.d {as_root}/seen')

    assert require_program("brandnew", package="brandnew-bin") == str(as_root / "brandnew")
    assert "brandnew-bin" in (as_root / "calls").read_text()
    assert capsys.readouterr().err == "penstock: installing the Debian packages brandnew-bin\n"
    # Its service was not started, and nothing of that stays behind
    assert "exit 101" in (as_root / "seen").read_text()
    assert not (as_root / "policy-rc.d").exists()


def test_old_package_lists_are_fetched_again(as_root: Path) -> None:
    apt(
        as_root,
        f"cd {as_root}; case $1 in update) touch lists ;; *) test -e lists && cp /bin/sh brandnew ;; esac",
    )

    assert require_program("brandnew")


def test_an_installation_that_fails_is_a_failure_not_a_skip(as_root: Path) -> None:
    apt(as_root, "echo 'E: Unable to locate package' >&2; exit 100")

    with pytest.raises(debian.PackagesMissing, match="Unable to locate package"):
        require_program("brandnew")


def test_nobody_but_root_may_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PENSTOCK_NO_SYSTEM", raising=False)
    apt(tmp_path, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert debian.why_not() == "only root can install it"
