"""The folder of a demo (`demo`, `cluster demo`), and its end: SIGTERM is handled as Ctrl-C."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import InputInvalid


def interrupt(*_: object) -> None:
    """A handler of signals: end as by Ctrl-C."""
    raise KeyboardInterrupt


@contextmanager
def own_folder(data: Path | None, prefix: str, *, empty: bool = False) -> Iterator[Path]:
    """The folder that was given, which stays; or one that is gone afterwards. With *empty* it must be a new one."""
    if data is None:
        with tempfile.TemporaryDirectory(prefix=prefix) as made:
            yield Path(made)
        return
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    if empty and any(data.iterdir()):
        raise InputInvalid("--data", f"{data} is not empty", remedy="Name a new folder.")
    yield data
