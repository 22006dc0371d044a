"""The contracts of `core/` as calls: which there are, what they are given and what they answer.

All of it is read from the contracts' own signatures. A method that joins a contract is a call from then on.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from penstock.core.log import Log
from penstock.core.mailbox import Mailbox
from penstock.core.registry import Registry

_MISSING: Final = inspect.Parameter.empty


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

    def call(self, part: object, values: tuple[Any, ...]) -> Awaitable[Any]:
        """Call it with what was read."""
        names = [name for name, _ in self._parameters[self._positional :]]
        named = dict(zip(names, values[self._positional :], strict=True))
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
