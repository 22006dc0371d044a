"""A registry whose answers are late, for tests of what happens before they come."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.core.registry import Registry
from penstock.values import Record


class LateRegistry:
    """Stores at once, and answers a put when it is told to."""

    def __init__(self, inner: Registry) -> None:
        self._inner, self.stored, self.answer = inner, asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, key: str, value: bytes, **more: Any) -> Record:
        record = await self._inner.put(key, value, **more)
        self.stored.set()
        await self.answer.wait()
        return record
