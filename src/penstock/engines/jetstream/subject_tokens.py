"""Names of ours as parts of NATS subjects, and back.

A subject is made of tokens with dots between them. Letters, digits, `-` and `_` stand for themselves; every
other byte becomes `=` and two hexadecimal digits, and a token without any becomes `=`. So a name can never
reach out of its token, and two names never share one.
"""

from __future__ import annotations

import re

_OTHER = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPED = re.compile(r"=([0-9a-f]{2})")


def token(text: str) -> str:
    """One level of a name as one token."""
    if not text:
        return "="
    return _OTHER.sub(lambda found: b"=%02x" % found[0][0], text.encode()).decode()


def text_of(token: str) -> str:
    """The level that became *token*."""
    if token == "=":  # noqa: S105 (not a secret)
        return ""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), token).encode("latin-1").decode()


def path(key: str) -> str:
    """A name with levels, `a/b`, as tokens."""
    return ".".join(token(level) for level in key.split("/"))


def key_of(path: str) -> str:
    """The name that became these tokens."""
    return "/".join(text_of(part) for part in path.split("."))
