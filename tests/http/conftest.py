"""Tests of the connection layer that hold over TLS just as well are run both ways."""

from __future__ import annotations

import pytest

from tests.http import wires
from tests.http.certificates import make_certificate


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "plain_and_tls" in metafunc.fixturenames:
        only_plain = metafunc.definition.get_closest_marker("only_plain")
        metafunc.parametrize("plain_and_tls", ["plain"] if only_plain else ["plain", "tls"], indirect=True)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    chain, key = make_certificate(tmp_path_factory.mktemp("certificate"), "test")
    return {"tls_certificate": chain, "tls_key": key}


@pytest.fixture
def plain_and_tls(request: pytest.FixtureRequest, certificate: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tls":
        monkeypatch.setattr(wires, "secured", certificate)
