"""What the command `pipeline` needs before Spark comes in."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from penstock import debian
from penstock.cli import java
from penstock.cli.pipeline import (
    SparkMissing,
    SparkPlace,
    job_options,
    place_of_session,
    require_spark,
    spark_settings,
    with_whole_paths,
)
from penstock.errors import InputInvalid


def install_java(folder: Path, says: str) -> None:
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "wrong"),
    [
        ('openjdk version "17.0.15" 2025-04-15', False),
        ('openjdk version "21" 2023-09-19', False),
        ('java version "1.8.0_402"', True),
        ('openjdk version "11.0.2"', True),
        ("something else", True),
    ],
)
def test_a_java_is_taken_by_its_version(
    says: str, wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert bool(java.what_is_wrong()) is wrong


def test_a_machine_without_java_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_NO_SYSTEM", "1")

    assert "there is no Java" in java.ensure()


# ── installing a Java, by an apt-get of our own: the system's must not be touched here ──────────


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the programs of a machine that has neither Java nor apt-get."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sh", "cat", "chmod"):
        program = shutil.which(name)
        assert program
        (folder / name).symlink_to(program)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PENSTOCK_NO_SYSTEM", raising=False)
    monkeypatch.setattr(debian, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return folder


def add_apt(folder: Path, offers: str) -> Path:
    """An apt-get that notes how it is called, and has one package, which brings a Java 17."""
    calls, program = folder / "calls", folder / "apt-get"
    java_says = """echo 'openjdk version "17.0.15"' >&2"""
    program.write_text(
        f"""#!/bin/sh
echo "$DEBIAN_FRONTEND $*" >> {calls}
case "$*" in
*{offers}*) cat > {folder}/java <<'END'
#!/bin/sh
{java_says}
END
chmod +x {folder}/java ;;
update*) ;;
*) echo "E: Unable to locate package" >&2; exit 100 ;;
esac
"""
    )
    program.chmod(0o755)
    return calls


INSTALL = "noninteractive install -y -qq --no-install-recommends"


@pytest.mark.parametrize("offers", java.PACKAGES)
def test_a_java_is_installed_where_that_is_allowed(
    bare_machine: Path, offers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = add_apt(bare_machine, offers)

    assert java.ensure() == ""

    called = calls.read_text().splitlines()
    assert called[0] == f"{INSTALL} openjdk-17-jre-headless"
    assert called[-1] == f"{INSTALL} {offers}"
    assert f"penstock: installing the Debian packages {offers}" in capsys.readouterr().err
    assert not debian.POLICY.exists(), "services may start again"


def test_a_release_without_any_is_told_what_to_run(bare_machine: Path) -> None:
    add_apt(bare_machine, "another-package")

    with pytest.raises(debian.PackagesMissing, match="Unable to locate package") as refused:
        java.ensure()

    assert refused.value.remedy == "Run: apt-get update && apt-get install openjdk-21-jre-headless"


@pytest.mark.parametrize("why", ["forbidden", "not root", "no apt-get"])
def test_nothing_is_installed_where_it_may_not_be(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    calls = add_apt(bare_machine, "openjdk-17")
    if why == "forbidden":
        monkeypatch.setenv("PENSTOCK_NO_SYSTEM", "1")
    elif why == "not root":
        monkeypatch.setattr("os.geteuid", lambda: 1000)
    else:
        (bare_machine / "apt-get").unlink()

    with pytest.raises(SparkMissing, match="there is no Java") as refused:
        require_spark()

    assert refused.value.remedy == "Run: apt-get install openjdk-17-jre-headless"
    assert not calls.exists()


def test_what_follows_the_job_are_its_options() -> None:
    given = ["--all", "--from", "17", "--to=23", "--dry-run"]

    assert job_options(given) == {"all": "", "from": "17", "to": "23", "dry-run": ""}


def test_a_file_is_named_from_where_the_command_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert with_whole_paths({"source": "people.csv"}) == {"source": str(tmp_path / "people.csv")}
    assert with_whole_paths({"source": "/a/people.csv", "key": "k"}) == {"source": "/a/people.csv", "key": "k"}
    assert with_whole_paths({"all": ""}) == {"all": ""}


def test_a_stray_word_is_refused() -> None:
    with pytest.raises(InputInvalid, match="neither an option nor its value"):
        job_options(["everything"])


def test_settings_of_spark_are_names_and_values() -> None:
    assert spark_settings(["spark.a=b=c", "spark.d="]) == {"spark.a": "b=c", "spark.d": ""}
    for wrong in ("spark.a", "a=b", "=x"):
        with pytest.raises(InputInvalid, match="NAME=VALUE"):
            spark_settings([wrong])


def test_a_job_with_settings_of_its_own_is_not_handed_to_a_driver_that_has_others() -> None:
    assert SparkPlace("", {}).may_be_handed_over
    assert not SparkPlace("", {"spark.a": "b"}).may_be_handed_over
    assert not SparkPlace("local[1]", {}).may_be_handed_over
    assert not SparkPlace("", {}, own=True).may_be_handed_over


MASTER, FILES = "spark.master", "spark.submit.pyFiles"


@pytest.mark.parametrize(
    ("place", "given", "master"),
    [
        (SparkPlace("", {}), {}, "local[2]"),
        (SparkPlace("", {}), {MASTER: "spark://defaults:1"}, "spark://defaults:1"),
        (SparkPlace("spark://option:2", {}), {MASTER: "spark://defaults:1"}, "spark://option:2"),
        (SparkPlace("spark://option:2", {MASTER: "spark://conf:3"}), {MASTER: "spark://defaults:1"}, "spark://conf:3"),
        (SparkPlace("local[1]", {}), {MASTER: "spark://defaults:1"}, "local[1]"),
    ],
)
def test_a_job_runs_where_conf_master_or_spark_s_own_settings_say_in_this_order(
    place: SparkPlace, given: dict[str, str], master: str
) -> None:
    with place_of_session(place, given) as (found, settings):
        assert found == master
        assert (FILES in settings) is not master.startswith("local")


def test_workers_elsewhere_get_our_code_beside_what_they_are_given() -> None:
    given = {MASTER: "spark://defaults:1", FILES: "/defaults.zip"}
    of_job = SparkPlace("", {FILES: "/a.py,/b.py"})
    for place, theirs in ((SparkPlace("", {}), "/defaults.zip"), (of_job, "/a.py,/b.py")):
        with place_of_session(place, given) as (_, settings):
            before, _, ours = settings[FILES].rpartition(",")
            assert before == theirs
            assert "penstock/pipeline/old_lake.py" in zipfile.ZipFile(ours).namelist()
        assert not Path(ours).exists()
