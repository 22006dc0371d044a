"""Room that all callers share: how much of it one of them may take, so that there is some left for others."""

from __future__ import annotations

from collections import Counter

from penstock.errors import Busy
from penstock.limits import SUBJECT_SHARE


def share(most: int, who: str) -> int:
    """What *who* may have of *most*: a part of it, and all of it without a name, as the admin is."""
    return max(1, most // SUBJECT_SHARE) if who else most


class SharedRoom:
    """Places that are counted, and under whose name. *setting* says how many there are."""

    def __init__(self, setting: str, most: int) -> None:
        self._setting, self._most = setting, most
        self._taken_by = Counter[str]()
        self.taken = 0

    def check(self, who: str) -> None:
        """Raise `Busy` where there is no place left, or none for *who*."""
        if self.taken >= self._most:
            raise Busy(self._setting, self._most)
        if self._taken_by[who] >= share(self._most, who):
            raise Busy(f"the share of one subject in {self._setting}", share(self._most, who))

    def take(self, who: str) -> None:
        """Count a place under that name; `check` comes before."""
        self._taken_by[who] += 1
        self.taken += 1

    def leave(self, who: str) -> None:
        """The place is free again."""
        self._taken_by[who] -= 1
        self.taken -= 1
        if not self._taken_by[who]:
            del self._taken_by[who]
