"""Recipients of a whole server: what this node knows, and what only another worker or node knows of its connections.

    kinds that each node knows all of      sessions, user agents, pushers, bindings, consumers: looked up here
    kinds that are known where they are    wires, tails, channels: every other worker or node is asked, too

A session that another node serves is looked up here, and acted on there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from penstock.api.context import Context
from penstock.api.recipients import Action, RecipientKind, RecipientView
from penstock.core.node_calls import NodeSilent
from penstock.limits import RECIPIENTS_SEEN, RECIPIENTS_TOLD_BYTES

AT_ONCE: Final = 1_000
"""Recipients that are looked at before the loop may do something else: some milliseconds."""
LIST, FIND, ACT = "recipients", "recipient", "recipient.act"

Kinds = Callable[[], Sequence[RecipientKind]]
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.decode


class RecipientQuery(msgspec.Struct, frozen=True):
    """Which recipients are wanted, and how many of the first ones in what order."""

    kind: str
    state: str
    words: str
    sort: str
    rows: int

    def wants(self, view: RecipientView) -> bool:
        """Whether it is one of them."""
        if self.state not in ("", view.state):
            return False
        return not self.words or any(self.words in text.casefold() for text in (view.name, view.error, *view.streams))


class RecipientList(msgspec.Struct):
    """The first of those that are wanted, and how many there are."""

    rows: list[RecipientView]
    kinds: dict[str, int]
    states: dict[str, int]
    total: int
    found: int
    complete: bool  # False: there are more than one list looks at
    silent: int = 0  # workers or nodes that did not answer


class AllRecipients:
    """Lists, finds and acts on recipients wherever they are."""

    def __init__(self, context: Context, kinds: Kinds) -> None:
        self._node, self._others, self._kinds = context.bus.node, context.other_workers, kinds
        self._others.answer(LIST, self._list_for_others)
        self._others.answer(FIND, self._find_for_others)
        self._others.answer(ACT, self._act_for_others)

    async def look(self, query: RecipientQuery) -> RecipientList:
        """The recipients of all nodes: those that others know alone are asked for."""
        kinds = [kind for kind in self._kinds() if query.kind in ("", kind.kind)]
        lists, silent = [await _listed(kinds, query)], 0
        if not query.kind or not all(kind.known_everywhere for kind in kinds):
            others = await self._others.ask(LIST, RecipientList, _encode(query))
            lists, silent = [*lists, *others.told], others.silent
        return RecipientList(
            sorted((view for one in lists for view in one.rows), key=ORDERS[query.sort])[: query.rows],
            _summed([one.kinds for one in lists]),
            _summed([one.states for one in lists]),
            sum(one.total for one in lists),
            sum(one.found for one in lists),
            all(one.complete for one in lists) and not silent,
            silent,
        )

    async def find(self, kind: RecipientKind, name: str) -> tuple[RecipientView | None, int]:
        """One of them; and if it is not found, how many there are that did not answer and may have it."""
        view = await kind.find(name)
        if view is None and kind.known_everywhere:
            return None, 0
        if view is not None and (view.actions or not view.node):
            return view, 0
        others = await self._others.ask(FIND, list[RecipientView], _encode((kind.kind, name)))
        found = [one for some in others.told for one in some]
        return (found[0], 0) if found else (view, others.silent)

    async def act(self, kind: RecipientKind, name: str, action: Action) -> int:
        """Do it wherever that recipient is; how many did not answer who may have one of that name, too.

        `NodeSilent` if it was done nowhere, and some did not answer.
        """
        view = await kind.find(name)
        here = view is not None and action in view.actions
        if view is not None and here:
            await kind.act(view, action)
            if kind.known_everywhere:
                return 0
        others = await self._others.ask(ACT, bool, _encode((kind.kind, name, action)))
        if others.silent and not here and not any(others.told):
            raise NodeSilent(others.silent)
        return others.silent

    # ── what others ask ────────────────────────────────────────────────────────────────────────

    async def _list_for_others(self, about: bytes) -> RecipientList:
        query = _decode(about, type=RecipientQuery)
        kinds = [one for one in self._kinds() if not one.known_everywhere and query.kind in ("", one.kind)]
        listed = await _listed(kinds, query)
        shown = cut(listed.rows, RECIPIENTS_TOLD_BYTES)
        for view in shown:
            view.node = self._node
        listed.complete = listed.complete and len(shown) == len(listed.rows)
        listed.rows = shown
        return listed

    async def _find_for_others(self, about: bytes) -> list[RecipientView]:
        _, view = await self._own(*_decode(about, type=tuple[str, str]))
        if view is None:
            return []
        view.node = self._node
        return [view]

    async def _act_for_others(self, about: bytes) -> bool:
        name_of_kind, name, action = _decode(about, type=tuple[str, str, Action])
        kind, view = await self._own(name_of_kind, name)
        if kind is None or view is None or action not in view.actions:
            return False
        await kind.act(view, action)
        return True

    async def _own(self, name_of_kind: str, name: str) -> tuple[RecipientKind | None, RecipientView | None]:
        """A recipient that is at this node."""
        for kind in self._kinds():
            if kind.kind == name_of_kind:
                view = await kind.find(name)
                return kind, view if view is not None and not view.node else None
        return None, None


async def _listed(kinds: Sequence[RecipientKind], query: RecipientQuery) -> RecipientList:
    views, complete = await _views(kinds)
    found = [view for view in views if query.wants(view)]
    found.sort(key=ORDERS[query.sort])
    by_kind, by_state = Counter(view.kind for view in views), Counter(view.state for view in views)
    return RecipientList(found[: query.rows], by_kind, by_state, len(views), len(found), complete)


async def _views(kinds: Sequence[RecipientKind]) -> tuple[list[RecipientView], bool]:
    views: list[RecipientView] = []
    complete = True
    for one in kinds:
        seen = 0
        async for view in one.each():
            views.append(view)
            seen += 1
            if seen == RECIPIENTS_SEEN:
                complete = False
                break
            if seen % AT_ONCE == 0:
                await asyncio.sleep(0)
    return views, complete


def cut(views: Sequence[RecipientView], limit_bytes: int) -> list[RecipientView]:
    """The first of them that have so many bytes together."""
    shown: list[RecipientView] = []
    for view in views:
        limit_bytes -= len(_encode(view))
        if limit_bytes < 0:
            break
        shown.append(view)
    return shown


def _summed(all_counts: Sequence[dict[str, int]]) -> dict[str, int]:
    summed = Counter[str]()
    for counts in all_counts:
        summed.update(counts)
    return summed


def _by_lag(view: RecipientView) -> tuple[int, str, str]:
    return -(view.lag if view.lag is not None else -1), view.kind, view.name


def _by_name(view: RecipientView) -> tuple[str, str]:
    return view.kind, view.name


def _by_time(view: RecipientView) -> tuple[int, str]:
    return -(view.since_ms or 0), view.name


ORDERS: Final[dict[str, Callable[[RecipientView], Any]]] = {"name": _by_name, "lag": _by_lag, "since": _by_time}
