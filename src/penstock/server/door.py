"""What a door is to the server: a table of routes with a life."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol, Self

from penstock.config import Settings
from penstock.core.metering import Sample
from penstock.server.context import Context
from penstock.server.routing import Route


class Door(Protocol):
    """One protocol put onto the core. It is entered before the listener opens and left after it has drained."""

    def routes(self) -> list[Route]:
        """Its rows of the one table."""
        ...

    def samples(self) -> Iterable[Sample]:
        """What it adds to `/metrics`."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


MakeDoor = Callable[[Context, Settings], Door]
