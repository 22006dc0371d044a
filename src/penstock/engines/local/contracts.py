"""The contracts of `core/` as calls: which there are, what they are given and what they answer.

Arguments and answers are read from the contracts' own signatures. A new `async` method of a contract is a call at once;
whether it is a long one is said below (`_BY_LIMIT`, `_BY_NAME`). Appends and followers have their own ways.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from penstock.core.log import Log
from penstock.core.mailbox import Mailbox
from penstock.core.names import is_exact
from penstock.core.registry import Registry
from penstock.engines.pages import SHORT_ENTRIES
from penstock.limits import ENTRY_BYTES, PAGE_BYTES

_MISSING: Final = inspect.Parameter.empty

SHORT, PAGE, SCAN, LETTER = "short", "page", "scan", "letter"
CALLS_AT_ONCE: Final = {SHORT: 64, PAGE: 32, SCAN: 256, LETTER: 1_024}
"""Calls of one worker that are under way at once, by what they wait for. Further ones wait for others of their kind.

What looks through many names or makes a page of many entries takes long, and a letter waits for another worker: none of
them is in the way of a short call. Pages are what is largest; a look through names takes turns with the others anyway.
"""


class Method:
    """One call of one contract."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        hints = get_type_hints(function)
        answer = hints.pop("return")
        if get_origin(answer) in (Awaitable, Coroutine):
            answer = get_args(answer)[-1]
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self._parameters = [(one.name, one.default) for one in parameters]
        self._names = [one.name for one in parameters]
        self._positional = sum(one.kind is not one.KEYWORD_ONLY for one in parameters)
        self._arguments = msgspec.msgpack.Decoder(tuple[tuple(hints[one.name] for one in parameters)])  # type: ignore[misc]
        self.answer: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(answer)

    def arguments(self, given: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """What a call was given, in the order of the contract."""
        values = [*given, *(named.pop(name, default) for name, default in self._parameters[len(given) :])]
        if named or _MISSING in values or len(values) > len(self._parameters):
            raise TypeError(f"{self.name} is not called like that")
        return values

    def read(self, arguments: msgspec.Raw) -> tuple[Any, ...]:
        """What `arguments` made, after it has travelled."""
        values: tuple[Any, ...] = self._arguments.decode(arguments)
        return values

    def value_of(self, name: str, values: tuple[Any, ...]) -> int:
        """One of the numbers that a call was given."""
        value: int = values[self._names.index(name)]
        return value

    def call(self, part: object, values: tuple[Any, ...]) -> Awaitable[Any]:
        """Call it with what was read."""
        named = dict(zip(self._names[self._positional :], values[self._positional :], strict=True))
        called: Awaitable[Any] = getattr(part, self.name)(*values[: self._positional], **named)
        return called


def _methods(part: str, contract: type) -> dict[str, Method]:
    found = inspect.getmembers(contract, inspect.isfunction)
    return {f"{part}.{name}": Method(name, function) for name, function in found if _is_call(name, function)}


def _is_call(name: str, function: Callable[..., Any]) -> bool:
    """Whether it is answered later. Appends and followers have ways of their own."""
    later = inspect.iscoroutinefunction(function) or name == "put"
    return later and not name.startswith("_")


METHODS: Final = {
    **_methods("log", Log), **_methods("mailbox", Mailbox), **_methods("registry", Registry),
}  # fmt: skip


_BY_LIMIT: Final = frozenset({"log.read_after", "log.read_index", "log.read_cursor"})
_BY_NAME: Final = {"log.heads": SCAN, "export_next": PAGE, "blocks": PAGE, "send": LETTER}
_LARGE: Final = frozenset({"export_next", "mailbox.take"})


class CallCost(NamedTuple):
    """What a call takes of the log process."""

    kind: str  # what it waits for (`CALLS_AT_ONCE`)
    answer_bytes: int = 0  # of its answer at most, where that can be large


def cost_of(name: str, arguments: msgspec.Raw) -> CallCost:
    """What a call will take. Long reads are told from short ones as the engines do it."""
    if name not in _BY_LIMIT:
        return CallCost(_BY_NAME.get(name, SHORT), PAGE_BYTES if name in _LARGE else 0)
    try:
        values = METHODS[name].read(arguments)
    except msgspec.MsgspecError:
        return CallCost(SHORT)  # it will fail when it is made, and its caller hears why
    answer_bytes = max(METHODS[name].value_of("limit_bytes", values), ENTRY_BYTES)  # one entry always fits
    if name == "log.read_after" and not all(map(is_exact, values[0])):
        return CallCost(SCAN, answer_bytes)
    return CallCost(PAGE if METHODS[name].value_of("limit", values) > SHORT_ENTRIES else SHORT, answer_bytes)
