"""The event loop of a node: uvloop's, with an end that always comes."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

_Result = TypeVar("_Result")


class EventLoop(uvloop.Loop):
    """uvloop's loop, which closes what was left open before it says so."""

    def close(self) -> None:
        """Close the loop and every handle in it; then warn of those that somebody should have closed.

        uvloop warns in the midst of closing them. Where warnings are errors, that one stays open, and the
        loop then waits for it for ever, inside libuv.
        """
        with warnings.catch_warnings(record=True) as left_open:
            warnings.simplefilter("always", ResourceWarning)
            super().close()
        for one in left_open:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, source=one.source)


def run_loop(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run *main* on a loop of its own until it is over."""
    return uvloop.run(main, loop_factory=EventLoop)
