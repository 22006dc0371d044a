"""The export over HTTP: plans, slices, what is refused, and who may have what."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.auth import Caller
from penstock.api.v1.export import _selection
from penstock.core.export import Selection
from penstock.testing import wait_until_async
from tests.api.export_site import Site, code, publish, read_export, site


async def test_a_plan_and_its_slices_are_the_log(tmp_path: Path) -> None:
    async with site(tmp_path, "sqlite") as node:
        for _ in range(3):
            end = await publish(node, 900)
        status, headers, body = await node.get("/v1/log/plan", after=0, parts=4)
        plan = json.loads(body)
        assert (status, plan["after"], plan["upto"]) == (200, 0, end)
        assert set(plan["slices"][0]) == {"lo", "hi", "day", "rows", "bytes"}
        ids: list[int] = []
        for part in plan["slices"]:
            status, headers, body = await node.get("/v1/log/arrow", after=part["lo"], upto=part["hi"], columns="id")
            table, upto = read_export(body)
            assert headers["content-type"] == "application/vnd.apache.arrow.stream"
            assert headers["transfer-encoding"] == "chunked"
            assert (status, table.num_rows, upto) == (200, part["rows"], part["hi"])
            ids += table.column("id").to_pylist()
        assert ids == list(range(1, end + 1))


async def test_a_plan_keeps_its_limits(tmp_path: Path) -> None:
    async with site(tmp_path, "sqlite") as node:
        await publish(node, 500, body=b"x" * 10)
        _, _, by_rows = await node.get("/v1/log/plan", after=0, max_rows=7)
        _, _, by_bytes = await node.get("/v1/log/plan", after=10, max_bytes=95)
        assert [(part["lo"], part["hi"]) for part in json.loads(by_rows)["slices"]] == [(0, 7)]
        assert json.loads(by_bytes)["upto"] == 19


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/v1/log/plan", {}),
        ("/v1/log/plan", {"after": "x"}),
        ("/v1/log/plan", {"after": 2, "upto": 1}),
        ("/v1/log/plan", {"after": 0, "parts": 0}),
        ("/v1/log/plan", {"after": 0, "streams": "/a"}),
        ("/v1/log/arrow", {"after": 0}),
        ("/v1/log/arrow", {"after": 0, "upto": 1, "columns": "id,boddy"}),
        ("/v1/log/arrow", {"after": 0, "upto": 1, "columns": ""}),
        ("/v1/log/arrow", {"after": 0, "upto": 1, "streams": "a"}),
        ("/v1/log/arrow", {"after": 0, "upto": 1, "limit": 1}),
    ],
)
async def test_what_cannot_be_understood_is_refused(tmp_path: Path, path: str, params: dict[str, object]) -> None:
    async with site(tmp_path) as node:
        status, _, _ = await node.get(path, **params)
        assert status == 400


@pytest.mark.parametrize("path", ["/v1/log/plan", "/v1/log/arrow"])
async def test_below_the_trim_point_is_gone(tmp_path: Path, path: str) -> None:
    async with site(tmp_path) as node:
        end = await publish(node, 10)
        await node.engine.log.trim(5)
        status, _, body = await node.get(path, after=4, upto=end)
        assert (status, code(body)) == (410, "range_trimmed")
        status, _, _ = await node.get(path, after=5, upto=end)
        assert status == 200


@pytest.mark.parametrize("path", ["/v1/log/plan", "/v1/log/arrow"])
@pytest.mark.parametrize("beyond", [1, 10**6, 2**63 - 100])
async def test_an_id_beyond_the_log_is_refused_at_once(tmp_path: Path, path: str, beyond: int) -> None:
    async with site(tmp_path, patience=1e9) as node:
        end = await publish(node)
        status, _, body = await node.get(path, after=0, upto=end + beyond)
        assert (status, code(body)) == (404, "id_beyond_log")
        status, _, body = await node.get("/v1/log/plan", after=end + beyond)
        assert (status, code(body)) == (404, "id_beyond_log")


def fall_behind(node: Site, newest: int) -> None:
    """Other nodes have written up to *newest*, and this one has not seen it yet."""

    async def known() -> int:
        return newest

    node.engine.log.newest = known


@pytest.mark.parametrize("path", ["/v1/log/plan", "/v1/log/arrow"])
async def test_an_id_of_the_log_that_does_not_come_in_time_is_a_503(tmp_path: Path, path: str) -> None:
    async with site(tmp_path, patience=0.01) as node:
        end = await publish(node)
        fall_behind(node, end + 1)
        status, headers, body = await node.get(path, after=0, upto=end + 1)
        assert (status, code(body), headers["retry-after"]) == (503, "not_followed", "1")


async def test_an_id_that_is_on_its_way_is_waited_for(tmp_path: Path) -> None:
    async with site(tmp_path, patience=20) as node:
        end = await publish(node)
        fall_behind(node, end + 1)
        request = asyncio.create_task(node.get("/v1/log/arrow", after=end, upto=end + 1))
        await wait_until_async(lambda: node.exporter._waiting)
        await publish(node)
        table, upto = read_export((await request)[2])
        assert (table.num_rows, upto) == (1, end + 1)


async def test_who_may_export_what(tmp_path: Path) -> None:
    async with site(tmp_path) as node:
        await publish(node, stream="/users/7")
        await publish(node, stream="/users/8")
        end = await publish(node, stream="/a")
        reader = node.keys.issue("7", subscribe=(">",))
        job = node.keys.issue("7", subscribe=(">",), grants=("export",))
        narrow = node.keys.issue("7", subscribe=("/a",), grants=("export",))
        wanted = {"after": 0, "upto": end}

        async def status(path: str, token: str, **more: object) -> int:
            return (await node.get(path, token, **wanted, **more))[0]

        assert await status("/v1/log/plan", "nonsense") == 401
        assert await status("/v1/log/plan", reader) == 403
        assert await status("/v1/log/plan", narrow) == 200
        assert await status("/v1/log/arrow", reader, streams=">") == 403
        assert await status("/v1/log/arrow", job) == 403
        assert await status("/v1/log/arrow", narrow, streams="/b") == 403
        assert await status("/v1/log/arrow", narrow, streams="/a") == 200
        _, _, body = await node.get("/v1/log/arrow", job, **wanted, streams=">")
        shown = set(read_export(body)[0].column("stream").to_pylist())
        assert {"/a", "/users/7"} <= shown
        assert "/users/8" not in shown


names = st.lists(st.sampled_from(["users", "7", "8", "a", "_x"]), min_size=1, max_size=3).map(
    lambda n: "/" + "/".join(n)
)
patterns = st.one_of(
    names, st.sampled_from([">", "/*", "/>", "/*/7", "/users/*", "/users/>", "/users/7", "/*/*", "/a/>", "/_x/>"])
)


class Asked:
    """As much of a request as a selection looks at."""

    def __init__(self, streams: list[str]) -> None:
        self.params = {"streams": ",".join(streams)}


@given(st.lists(patterns, min_size=1, max_size=3), st.lists(patterns, min_size=1, max_size=3), names)
def test_a_selection_shows_what_the_grants_allow_and_nothing_else(
    streams: list[str], grants: list[str], name: str
) -> None:
    caller = Caller("7", subscribe=tuple(grants), grants=frozenset({"export"}))
    try:
        selection = _selection(Asked(streams), caller)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - refused: nothing is shown
        return
    asked = Selection(tuple(streams)).wants(name)
    assert selection.wants(name) == (asked and caller.may_read(name))
