"""What a route says of itself in `/openapi.json`, declared beside its handler.

    @operation("List streams, in order of their names.", query=(pattern("pattern", "Which ones."), limit()))
    async def streams(self, request: Request) -> Response: ...

Bodies and answers are the msgspec structs that the handlers decode and encode, bounds are those of limits.py.
The document is made from the table of routes (`v1/openapi.py`): what a server does not answer is not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from msgspec import Meta

from penstock.limits import LEVEL_BYTES, NAME_BYTES, NAME_LEVELS, PAGE_ENTRIES, PATTERNS

Schema = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE: Final = "operation"

LARGEST: Final = 2**63 - 1
"""The largest id, index or number of bytes."""

_LETTER = r"[^\x00-\x20\x7f-\xa0:,*>/\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_LEVEL = rf"/(?!\.\.?(?:/|$)){_LETTER}{{1,{LEVEL_BYTES}}}"
NAME: Final = rf"^(?:/|(?:{_LEVEL}){{1,{NAME_LEVELS}}})$"
"""A stream's name (`core/names.py`), but for its bytes: no pattern can count those."""

_PATTERN = rf"(?:>|/|/>|(?:{_LEVEL}|/\*){{1,{NAME_LEVELS - 1}}}(?:/>|{_LEVEL}|/\*)?)"
ONE_PATTERN: Final = f"^{_PATTERN}$"
SEVERAL_PATTERNS: Final = f"^{_PATTERN}(?:,{_PATTERN}){{0,{PATTERNS - 1}}}$"
CURSOR: Final = rf"^(?:/|(?:{_LEVEL}){{1,{NAME_LEVELS}}}):[+-]?[0-9]{{1,18}}:[+-]?[0-9]{{1,18}}(?::[^:]*)?$"
PRINTABLE: Final = r"^[ -~]+$"
PATH_LEVEL: Final = r"^(?!\.\.?$)[^\x00-\x1f\x7f/]+$"
"""What a wildcard of a path can stand for (`routing.py`)."""
_WITHOUT_NUL: Final = r"^[^\x00]*$"
WEBHOOK_KEY: Final = r"^(?:whsec_)?[A-Za-z0-9+/]{32}$|^$"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the query, of the path, or a header."""

    name: str
    about: str
    schema: Schema
    required: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """What a route says of itself."""

    summary: str
    path: tuple[Parameter, ...] = ()
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    body: Any = None  # a type that msgspec knows, or by media type
    body_required: bool = True
    answers: dict[int, Any] | None = None  # by status; a type that msgspec knows, a schema, or None for any JSON
    media: str = "application/json"  # of the answers that are no errors
    errors: tuple[int, ...] = ()  # besides those that any request may meet
    public: bool = False  # no token is needed


def operation(
    summary: str,
    *,
    path: tuple[Parameter, ...] = (),
    query: tuple[Parameter, ...] = (),
    headers: tuple[Parameter, ...] = (),
    body: Any = None,
    body_required: bool = True,
    answers: dict[int, Any] | None = None,
    media: str = "application/json",
    errors: tuple[int, ...] = (),
    public: bool = False,
) -> Callable[[F], F]:
    """Declare what the handler below answers."""
    declared = Operation(summary, path, query, headers, body, body_required, answers, media, errors, public)

    def declare(handler: F) -> F:
        setattr(handler, _ATTRIBUTE, declared)
        return handler

    return declare


def declared(handler: object) -> Operation | None:
    """What is declared of *handler*, a function, a method, or an object that is called."""
    found = getattr(handler, _ATTRIBUTE, None) or getattr(type(handler).__call__, _ATTRIBUTE, None)
    return found if isinstance(found, Operation) else None


# ── parameters ────────────────────────────────────────────────────────────────────────────────────


def number(name: str, about: str, *, least: int = 0, most: int = LARGEST, required: bool = False) -> Parameter:
    """A whole number, as `context.integer` takes it."""
    return Parameter(name, about, {"type": "integer", "minimum": least, "maximum": most}, required)


def flag(name: str, about: str) -> Parameter:
    """Yes or no."""
    return Parameter(name, about, {"type": "boolean"})


def limit(about: str = "Entries at most.", most: int = PAGE_ENTRIES) -> Parameter:
    """How many of a list."""
    return number("limit", about, least=1, most=most)


def text(
    name: str, about: str, *, pattern: str = "", least: int = 0, most: int | None = None, required: bool = False
) -> Parameter:
    """Text; *least* and *most* are characters."""
    schema: Schema = {"type": "string"}
    schema["pattern"] = pattern or _WITHOUT_NUL
    schema |= {"minLength": least} if least else {}
    schema |= {"maxLength": most} if most is not None else {}
    return Parameter(name, about, schema, required)


def stream(name: str, about: str, *, required: bool = False) -> Parameter:
    """The name of a stream."""
    return text(name, about, pattern=NAME, most=NAME_BYTES, required=required)


def pattern(name: str, about: str, *, required: bool = False) -> Parameter:
    """One pattern of streams."""
    return text(name, about, pattern=ONE_PATTERN, most=NAME_BYTES, required=required)


def patterns(*, required: bool = False) -> Parameter:
    """`streams=`, as `context.readable` takes it."""
    about = "Patterns with commas: * is one level, > the rest."
    return text("streams", about, pattern=SEVERAL_PATTERNS, required=required)


# ── fields of bodies ──────────────────────────────────────────────────────────────────────────────


def shown_as(**schema: object) -> Meta:
    """What the document says of a field besides its type, where the handler checks it in its own words."""
    return Meta(extra_json_schema=dict(schema))


NAME_FIELD: Final = shown_as(pattern=NAME, maxLength=NAME_BYTES)
PATTERN_FIELD: Final = shown_as(pattern=ONE_PATTERN, maxLength=NAME_BYTES)


# ── schemas of answers ────────────────────────────────────────────────────────────────────────────


def an_object(**properties: Any) -> Schema:
    """An object that has all of these, and may have more; their values are schemas or types."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def a_list(items: Any) -> Schema:
    """A list of schemas or types."""
    return {"type": "array", "items": items}


INTEGER: Final[Schema] = {"type": "integer"}
STRING: Final[Schema] = {"type": "string"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
STRING_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
