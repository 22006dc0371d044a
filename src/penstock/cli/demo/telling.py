"""How the demo tells its story: a time, a word, a sentence; 80 columns, colour where somebody watches."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from typing import Final, TextIO

COLUMNS: Final = 80
_WORD: Final = 9  # columns of the word that a line is about
_INDENT: Final = " " * (12 + _WORD)  # where sentences begin
_BOLD, _GREEN = "1", "1;32"


class Teller:
    """Prints the story, each line as it happens."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._began = time.monotonic()
        self._coloured = self._out.isatty() and not os.environ.get("NO_COLOR")

    @property
    def seconds(self) -> float:
        """Since the story began."""
        return time.monotonic() - self._began

    def say(self, text: str = "") -> None:
        """A line without a time: the beginning, the end, an address."""
        self._print(text)

    def tell(self, word: str, sentence: str, colour: str = _BOLD) -> None:
        """What happened just now."""
        first, *more = textwrap.wrap(sentence, COLUMNS - len(_INDENT))
        self._print(f"{self.seconds:7.1f} s  {self._paint(f'{word:<{_WORD}}', colour)} {first}")
        for line in more:
            self._print(_INDENT + line)

    def add(self, text: str) -> None:
        """More about the line above."""
        for line in textwrap.wrap(text, COLUMNS, initial_indent=_INDENT, subsequent_indent=_INDENT):
            self._print(line)

    def show(self, name: str, text: str) -> None:
        """A row that belongs to the line above: a name, and what there is to say of it."""
        lead = f"{_INDENT}{name:<7} "
        for line in textwrap.wrap(text, COLUMNS, initial_indent=lead, subsequent_indent=" " * len(lead)):
            self._print(line)

    def conclude(self, word: str, sentence: str) -> None:
        """The good end. A bad one is an error, as of any command."""
        self.tell(word, sentence, _GREEN)

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._coloured else text

    def _print(self, line: str) -> None:
        print(line, file=self._out, flush=True)
