"""The rooms of the source with all their modules, for docs/tour.md: each with the beginning of its own head."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import penstock

SOURCE = Path(penstock.__file__).parent
ROOMS = {
    "": "what travels, what can go wrong, what may be set",
    "wire": "protocols, pure: bytes or values in, values or actions out",
    "core": "contracts and decisions",
    "engines": "what all engines share",
    "engines/memory": "the contracts in their simplest form",
    "engines/sqlite": "the embedded engine",
    "engines/jetstream": "the engine of a cluster, on NATS",
    "engines/local": "several processes on one machine",
    "engines/lake": "cold reads",
    "iceberg": "the lake's tables on any store",
    "http": "the connection layer",
    "api": "whose request it is, and live answers",
    "api/v1": "Penstock's API",
    "doors/eventhorizon": "Event Horizon",
    "doors/sps": "sps",
    "doors/trickle": "Trickle",
    "doors/webpush": "Web Push, the service",
    "doors/webpush_sender": "Web Push, the sender",
    "doors/msgstream": "the message stream",
    "node": "a node, put together and taken apart",
    "pipeline": "Spark: source, sink, lake",
    "pipeline/jobs": "the jobs",
    "client": "for users of a server",
    "cli": "the commands",
    "cli/demo": "the story of `./penstock demo`",
    "testing": "real parts for tests",
}
"""Each folder with modules, in the order in which one may read them."""

LONGEST = 48
"""Characters of what is shown of a module. Its own head says more."""


def rooms_list() -> str:
    """Every module in its room."""
    parts: list[str] = []
    for room, title in ROOMS.items():
        files = sorted(file for file in (SOURCE / room).glob("*.py") if file.name != "__init__.py")
        shown = " ".join(f"`{file.name}` {phrase(file)}." for file in files)
        whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), shown)
        parts += [f"### `{room or 'penstock'}/`: {title}", ""]
        parts += [*textwrap.wrap(whole, 120, break_long_words=False, break_on_hyphens=False), ""]
    return "\n".join(parts).replace("\0", " ")


def phrase(file: Path) -> str:
    """The beginning of a module's docstring: its first sentence, cut where a shorter one makes sense."""
    head = re.match(r'"""(.*?)"""', file.read_text(), re.DOTALL)
    text = (head[1] if head else "").strip().partition("\n\n")[0].replace("\n", " ")
    sentence = re.split(r"\. |\.$", text)[0]
    for mark in (";", ":", ","):
        if len(sentence) <= LONGEST:
            break
        cut = sentence.find(mark, 16)
        sentence = sentence[:cut] if cut > 0 else sentence
    return sentence
