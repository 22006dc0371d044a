"""`/iceberg`: the lake's tables as a read-only Iceberg REST catalog. docs/lake.md.

    GET       /iceberg/v1/config                                   what this catalog can do
    GET       /iceberg/v1/namespaces                               one: `penstock`
    GET HEAD  /iceberg/v1/namespaces/penstock
    GET       /iceberg/v1/namespaces/penstock/tables
    GET HEAD  /iceberg/v1/namespaces/penstock/tables/TABLE         its metadata as it is now

A client asks here which state of a table is the newest, and reads its files by itself: from the folder, or from the
store with the keys in `config`. The tables are written by the pipeline alone. Whatever would change something is
refused, and `endpoints` names only what is answered, so that clients refuse it before they ask.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from penstock.api.context import Context
from penstock.errors import NotFound, PeerError
from penstock.http.problems import Problem
from penstock.http.requests import Handler, Request
from penstock.http.responses import Response
from penstock.http.routing import Route
from penstock.settings import LakeSettings

NAMESPACE: Final = "penstock"
_ONE: Final = "/v1/{prefix}/namespaces/{namespace}"
ENDPOINTS: Final = (
    "GET /v1/{prefix}/namespaces", f"GET {_ONE}", f"HEAD {_ONE}", f"GET {_ONE}/tables", f"GET {_ONE}/tables/{{table}}",
    f"HEAD {_ONE}/tables/{{table}}",
)  # fmt: skip
WRITING: Final = ("POST", "PUT", "PATCH", "DELETE")

_TYPES: Final = {
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    405: "UnsupportedOperationException",
    503: "ServiceUnavailableException",
}
_NO_TABLE, _NO_NAMESPACE = "table_unknown", "namespace_unknown"
_MISSING: Final = {_NO_TABLE: "NoSuchTableException", _NO_NAMESPACE: "NoSuchNamespaceException"}
_encode = msgspec.json.Encoder().encode


class LakeTables(Protocol):
    """The tables of a lake."""

    async def tables(self) -> dict[str, str]:
        """Every table by its name, with the location of its metadata.json."""
        ...

    async def table(self, name: str) -> tuple[str, bytes] | None:
        """The location of a table's metadata.json, and that file; None if there is no table of that name."""
        ...


def iceberg_form(problem: Problem) -> Response:
    """The form of errors that Iceberg's clients understand."""
    kind = _MISSING.get(problem.code) or _TYPES.get(problem.status, "RESTException")
    told = {"message": f"{problem.message} — {problem.remedy}", "type": kind, "code": problem.status}
    return Response(problem.status, _encode({"error": told}), headers=problem.headers)


class IcebergCatalog:
    """Answers clients of Iceberg."""

    def __init__(self, context: Context, lake: LakeTables | None, settings: LakeSettings) -> None:
        self._context, self._lake = context, lake
        self._config = _client_config(settings)

    def routes(self) -> list[Route]:
        """Its rows of the table."""
        answered: dict[str, Handler] = {
            "/iceberg/v1/config": self.config,
            "/iceberg/v1/namespaces": self.namespaces,
            "/iceberg/v1/namespaces/*": self.namespace,
            "/iceberg/v1/namespaces/*/tables": self.tables,
            "/iceberg/v1/namespaces/*/tables/*": self.table,
            "/iceberg/**": self.unknown,
        }
        rows = [Route("GET", path, handler, door="export", form=iceberg_form) for path, handler in answered.items()]
        for path, handler in (("namespaces/*", self.namespace), ("namespaces/*/tables/*", self.table_exists)):
            rows.append(Route("HEAD", f"/iceberg/v1/{path}", handler, door="export", form=iceberg_form))
        for path in answered:
            rows += (Route(method, path, self.refuse, door="export", form=iceberg_form) for method in WRITING)
        return rows

    def config(self, request: Request) -> Response:
        """What this catalog can do."""
        self._check(request)
        return Response(200, _encode({"defaults": {}, "overrides": {}, "endpoints": ENDPOINTS}))

    def namespaces(self, request: Request) -> Response:
        """The one namespace; it has none below it."""
        self._check(request)
        names = [] if request.params.get("parent") or self._lake is None else [[NAMESPACE]]
        return Response(200, _encode({"namespaces": names}))

    def namespace(self, request: Request) -> Response:
        """That there is this namespace."""
        self._check(request)
        self._tables_of(request.captures[0])
        if request.method == "HEAD":
            return Response(204)
        return Response(200, _encode({"namespace": [NAMESPACE], "properties": {}}))

    async def tables(self, request: Request) -> Response:
        self._check(request)
        names = await self._tables_of(request.captures[0]).tables()
        return Response(200, _encode({"identifiers": [{"namespace": [NAMESPACE], "name": name} for name in names]}))

    async def table(self, request: Request) -> Response:
        """One table: all of its metadata as it is now, and how its files are reached."""
        self._check(request)
        name = request.captures[1]
        found = await self._tables_of(request.captures[0]).table(name)
        if found is None:
            raise _no_table(name)
        location, metadata = found
        told = {"metadata-location": location, "metadata": msgspec.Raw(metadata), "config": self._config}
        return Response(200, _encode(told))

    async def table_exists(self, request: Request) -> Response:
        """That there is this table."""
        self._check(request)
        if request.captures[1] not in await self._tables_of(request.captures[0]).tables():
            raise _no_table(request.captures[1])
        return Response(204)

    def unknown(self, request: Request) -> Response:
        """Say that there is nothing here."""
        self._check(request)
        raise NotFound(
            "path", request.path[:80], code="path_unknown", remedy="GET /iceberg/v1/config says what there is."
        )

    def refuse(self, request: Request) -> Response:
        """Refuse to change anything."""
        self._check(request)
        error = PeerError(405, "this catalog is read-only: the tables are written by Penstock's pipeline alone")
        error.code, error.remedy = "catalog_read_only", "Publish events to change them; a token is made beforehand."
        raise error

    def _check(self, request: Request) -> None:
        self._context.caller(request).check_grant("export")

    def _tables_of(self, namespace: str) -> LakeTables:
        if self._lake is None:
            raise NotFound("lake", "of this server", code=_NO_NAMESPACE, remedy="Set lake.url, or start it with up.")
        if namespace != NAMESPACE:
            raise NotFound("namespace", namespace[:40], code=_NO_NAMESPACE, remedy=f"There is one: {NAMESPACE}.")
        return self._lake


def _no_table(name: str) -> NotFound:
    remedy = "GET /iceberg/v1/namespaces/penstock/tables lists them; each is there from its first commit on."
    return NotFound("table", name[:40], code=_NO_TABLE, remedy=remedy)


def _client_config(settings: LakeSettings) -> dict[str, str]:
    """How clients reach the files: what the operator has set for them, and nothing of the server's own."""
    told = {
        "s3.endpoint": settings.reader_endpoint,
        "s3.region": settings.reader_region,
        "client.region": settings.reader_region,
        "s3.access-key-id": settings.reader_access_key_id,
        "s3.secret-access-key": settings.reader_secret_access_key,
        "s3.path-style-access": "true" if settings.reader_endpoint else "",
    }
    return {name: value for name, value in told.items() if value}
