"""What a door is to the server: a table of routes with a life."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, Self, runtime_checkable

from penstock.api.context import Context
from penstock.api.recipients import RecipientKind
from penstock.core.metering import Sample
from penstock.http.routing import Route
from penstock.settings import Settings


class Door(Protocol):
    """One protocol put onto the core. It is entered before the listener opens and left after it has drained."""

    def routes(self) -> list[Route]:
        """Its rows of the one table."""
        ...

    def samples(self) -> Iterable[Sample]:
        """What it adds to `/metrics`."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...


@runtime_checkable
class InternalDoor(Protocol):
    """A door that other nodes of a cluster talk to, on the internal listener."""

    def internal_routes(self) -> list[Route]:
        """Its rows of that listener's table. Each checks a token itself: the cluster's, or that of the client."""
        ...

    def reachable(self, address: str) -> None:
        """Other nodes find that listener at *address*; told before the first request comes."""
        ...


@runtime_checkable
class MonthlyDoor(Protocol):
    """A door whose recipients are on a month of the mailboxes and move on by themselves."""

    async def leave_month(self, month: str) -> None:
        """Drop the recipients whose mailboxes are still in that month, or make them move: it is about to be dropped."""
        ...


@runtime_checkable
class RecipientsDoor(Protocol):
    """A door that says who its recipients are."""

    def recipient_kinds(self) -> list[RecipientKind]:
        """One for each kind."""
        ...


@runtime_checkable
class ServingDoor(Protocol):
    """A door with clients that have no open live answer: waiting readers, publishers, apps that it pushes to."""

    def served(self) -> tuple[str, int]:
        """The name of the door, and how many it serves besides."""
        ...


MakeDoor = Callable[[Context, Settings], Door]
