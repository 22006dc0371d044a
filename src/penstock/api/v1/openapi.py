"""`/openapi.json`: Penstock's API described, from the table of routes and what their handlers declare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from penstock import __version__
from penstock.api.describing import Operation, Parameter, Schema, declared
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import Route

ANYWHERE: Final = (400, 408, 413, 414, 429, 431, 503)
"""Errors that any request can meet: it is malformed, too slow, too large or one too many, or the server is busy."""

KNOWN_CALLER: Final = (401, 403)
"""Errors of every request that needs a token."""

_REFERENCE: Final = "#/components/schemas/{name}"


class OpenApiDocument:
    """Serves the description of all that *routes* has when it is asked first."""

    def __init__(self, routes: Callable[[], Iterable[Route]]) -> None:
        self._routes = routes
        self._encoded = b""

    def __call__(self, request: Request) -> Response:
        """The document."""
        self._encoded = self._encoded or msgspec.json.encode(describe(self._routes()))
        return Response(200, self._encoded)


def describe(routes: Iterable[Route]) -> Schema:
    """The document about those of *routes* that are declared."""
    known = [(route, found) for route in routes if (found := declared(route.handler))]
    schemas = _Schemas(kind for _, found in known for kind in _kinds(found))
    paths: dict[str, Schema] = {}
    for route, found in known:
        paths.setdefault(_template(route.path, found.path), {})[route.method.lower()] = _operation(found, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__, "license": {"name": "Apache-2.0"}},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {"Problem": _problem()},
            "schemas": schemas.components,
        },
    }


class _Schemas:
    """The schemas of types, each under one name."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        known = list(dict.fromkeys(kinds))
        found, self.components = msgspec.json.schema_components(known, ref_template=_REFERENCE)
        self._of = dict(zip(known, found, strict=True))

    def of(self, what: Any) -> Any:
        """*what* with the types in it replaced by their schemas."""
        if isinstance(what, dict):
            return {name: self.of(value) for name, value in what.items()}
        if isinstance(what, list):
            return [self.of(value) for value in what]
        return self._of[what] if _is_kind(what) else what


def _is_kind(what: Any) -> bool:
    return isinstance(what, type) or hasattr(what, "__origin__")


def _kinds(found: Operation) -> Iterator[Any]:
    """The types that an operation speaks of."""
    waiting: list[Any] = [found.body, found.answers]
    while waiting:
        what = waiting.pop()
        if isinstance(what, dict):
            waiting += what.values()
        elif isinstance(what, list):
            waiting += what
        elif _is_kind(what):
            yield what


def _template(path: str, parameters: tuple[Parameter, ...]) -> str:
    """The path with names for its wildcards; one that stands for the rest gets all names that are left."""
    names = [f"{{{one.name}}}" for one in parameters]
    levels = []
    for level in path.split("/"):
        if level == "**":
            levels += names
        else:
            levels.append(names.pop(0) if level == "*" else level)
    return "/".join(levels)


def _operation(found: Operation, schemas: _Schemas) -> Schema:
    errors = {*ANYWHERE, *(() if found.public else KNOWN_CALLER), *found.errors}
    answers = {200: None} if found.answers is None else found.answers
    shown: Schema = {
        "summary": found.summary,
        "parameters": [
            _parameter(one, place)
            for place, several in (("path", found.path), ("query", found.query), ("header", found.headers))
            for one in several
        ],
        "responses": {str(error): {"$ref": "#/components/responses/Problem"} for error in sorted(errors)}
        | {str(status): _answer(status, answer, found.media, schemas) for status, answer in answers.items()},
    }
    if found.body is not None:
        media = found.body if isinstance(found.body, dict) else {"application/json": found.body}
        content = {name: {"schema": schemas.of(kind)} if kind else {} for name, kind in media.items()}
        shown["requestBody"] = {"required": found.body_required, "content": content}
    if found.public:
        shown["security"] = []
    return shown


def _parameter(one: Parameter, place: str) -> Schema:
    required = one.required or place == "path"
    return {"name": one.name, "in": place, "description": one.about, "required": required, "schema": one.schema}


def _answer(status: int, answer: Any, media: str, schemas: _Schemas) -> Schema:
    if status == 204:
        return {"description": "Done."}
    return {"description": "Done.", "content": {media: {"schema": schemas.of({} if answer is None else answer)}}}


def _problem() -> Schema:
    texts = {name: {"type": "string"} for name in ("code", "message", "remedy")}
    error = {"type": "object", "properties": texts, "required": list(texts)}
    schema = {"type": "object", "properties": {"error": error}, "required": ["error"]}
    return {"description": "What is wrong, and what to do.", "content": {"application/json": {"schema": schema}}}
