"""What operators did, in the stream `/_actions`: one entry before anything is done, and one more if it failed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.errors import PenstockError
from penstock.http.requests import Request
from penstock.values import Batch, Draft

STREAM: Final = "/_actions"
_encode = msgspec.json.Encoder().encode


class ActionLog:
    """Writes down who does what, and when (the entry's time)."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @asynccontextmanager
    async def noted(self, request: Request, caller: Caller, action: str, **what: Any) -> AsyncIterator[int]:
        """Write an action down, then let it be done. Gives the id of its entry."""
        id = await self._append({"action": action, "by": caller.subject, "address": request.peer, **what})
        try:
            yield id
        except PenstockError as error:
            await self._append({"action": action, "by": caller.subject, "failed": id, "error": str(error)})
            raise

    async def _append(self, said: dict[str, Any]) -> int:
        appended = await self._context.log.append(Batch((Draft(STREAM, _encode(said), "penstock.action"),)))
        return appended.last.id
