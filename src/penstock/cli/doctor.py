"""`doctor`: what may be wrong around a server, and what to do about it. The checks are in `doctor_checks.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.options import DATA, Config, Data, Json, Set, settings_from
from penstock.cli.output import show

if TYPE_CHECKING:
    from penstock.cli.doctor_checks import DoctorFinding
    from penstock.settings import Settings

_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


def doctor(data: Data = DATA, config: Config = None, set: Set = None, json: Json = False) -> int:
    """Look for what is wrong around a server, and say what to do. Exit code 1 if something is.

    \b
    ./penstock doctor --data /var/lib/penstock
    """
    findings = examine(data, settings_from(config, set))
    for one in findings:
        remedy = f" — {one.remedy}" if one.remedy else ""
        show(one, f"{_MARKS[one.status]}  {one.check:<11} {one.message}{remedy}", json)
    return 1 if any(one.status == "fail" for one in findings) else 0


def examine(data: Path, settings: Settings) -> list[DoctorFinding]:
    """All findings, in the order of the checks."""
    from penstock.cli.doctor_checks import MACHINE_CHECKS
    from penstock.cli.doctor_checks_webpush import WEB_PUSH_CHECKS

    return [finding for check in (*MACHINE_CHECKS, *WEB_PUSH_CHECKS) for finding in check(data, settings)]
